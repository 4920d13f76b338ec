//! Lines that are commands, and lines that are not.

use proptest::prelude::*;

use super::*;

#[test]
fn lines_end_in_one_or_two_bytes() {
    assert_eq!(line(b"get a\r\nrest"), Some((5, 7)));
    assert_eq!(line(b"get a\nrest"), Some((5, 6)));
    assert_eq!(line(b"\n"), Some((0, 1)));
    assert_eq!(line(b"get a\r"), None);
}

#[test]
fn commands_are_parsed_in_place() {
    let line = b"set key 5 -1 10 noreply";
    assert_eq!(
        parse(line),
        Request::Storage(StorageCommand {
            kind: StoreKind::Set,
            key: &line[4..7],
            flags: 5,
            expiry: -1,
            len_bytes: 10,
            is_quiet: true
        })
    );
    let Request::Get {
        keys,
        with_cas: true,
        touch: Some(30),
    } = parse(b"gats 30 a  b")
    else {
        panic!("gats");
    };
    assert_eq!(Words(keys).collect::<Vec<_>>(), [b"a", b"b"]);
    assert_eq!(
        parse(b"incr n 18446744073709551615"),
        Request::Count {
            key: b"n",
            delta: u64::MAX,
            is_increment: true,
            is_quiet: false
        }
    );
    assert_eq!(
        parse(b"delete k 0"),
        Request::Delete {
            key: b"k",
            is_quiet: false
        }
    );
}

#[test]
fn what_is_wrong_has_memcacheds_answer_and_the_length_to_skip() {
    let long = [b"set ".as_slice(), &[b'k'; 251], b" 0 0 9"].concat();
    for (line, malformed, skip) in [
        (&b""[..], Malformed::Unknown, None),
        (b"get", Malformed::Unknown, None),
        (b"fetch a", Malformed::Unknown, None),
        (b"set a 0 0", Malformed::Unknown, None),
        (b"set a 0 0 x", Malformed::BadFormat, None),
        (b"set a 0 0 -1", Malformed::BadLength, None),
        (b"set a -1 0 7", Malformed::BadFormat, Some(7)),
        (b"set a 4294967296 0 7", Malformed::BadFormat, Some(7)),
        (&long, Malformed::KeyTooLong, Some(9)),
        (b"incr a b", Malformed::BadDelta, None),
        (b"touch a b", Malformed::BadExpiry, None),
        (b"delete a 9", Malformed::BadDelete, None),
        (b"delete a 9 noreply", Malformed::BadDeleteQuiet, None),
        (b"mg a v v", Malformed::BadFlags, None),
        (b"mg a !", Malformed::BadFlags, None),
        (b"mg", Malformed::BadFormat, None),
        (b"ms a 3 MX", Malformed::BadFormat, Some(3)),
        (b"mg YWE b", Malformed::BadFormat, None),
    ] {
        let text = String::from_utf8_lossy(line);
        assert_eq!(parse(line), Request::Malformed(malformed, skip), "{text}");
    }
}

#[test]
fn base64_keys() {
    let mut out = [0; crate::store::KEY_MAX_BYTES];
    assert_eq!(decode_key(b"Zm9vYmFy", &mut out), Some(&b"foobar"[..]));
    assert_eq!(decode_key(b"Zm8=", &mut out), Some(&b"fo"[..]));
    assert_eq!(decode_key(b"Zg==", &mut out), Some(&b"f"[..]));
    for wrong in [&b""[..], b"====", b"a", b"Zm9v!mFy"] {
        assert_eq!(decode_key(wrong, &mut out), None);
    }
}

proptest! {
    #[test]
    fn no_line_makes_the_parser_panic(line in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&line);
    }

    #[test]
    fn no_words_make_the_parser_panic(words in proptest::collection::vec(
        prop_oneof![
            "(get|gets|gat|set|cas|ms|mg|ma|md|me|incr|touch|flush_all|verbosity|stats)",
            "[-]?[0-9]{1,21}", "[a-zA-Z][a-z0-9]{0,6}", "[A-Za-z+/]{4}={0,2}"
        ], 0..8))
    {
        let _ = parse(words.join(" ").as_bytes());
    }

    #[test]
    fn numbers_there_and_back(value: u64) {
        prop_assert_eq!(number(Digits::new().write(value)), Some(value));

    }
}
