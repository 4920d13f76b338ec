//! Tests of the negotiation.

use proptest::prelude::*;

use super::*;

struct Two;

impl Catalogue for Two {
    type Export = &'static str;

    fn list(&self) -> Vec<(String, String)> {
        vec![("a".into(), "first".into()), ("b".into(), String::new())]
    }

    fn find(&self, name: &str) -> Option<Self::Export> {
        (name == "a").then_some("a")
    }

    fn describe(&self, export: &Self::Export) -> ExportInfo {
        ExportInfo {
            size_bytes: 1 << 20,
            is_read_only: *export == "b",
            preferred_block_bytes: 4096,
            description: "first".into(),
        }
    }

    fn name(&self, export: &Self::Export) -> String {
        (*export).to_owned()
    }
}

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend(data);
    bytes
}

fn go_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend(u16::try_from(wanted.len()).unwrap().to_be_bytes());
    data.extend(wanted.iter().flat_map(|wanted| wanted.to_be_bytes()));
    data
}

fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend(u32::try_from(queries.len()).unwrap().to_be_bytes());
    for query in queries {
        data.extend(u32::try_from(query.len()).unwrap().to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}

/// A connection past the client's flags.
fn begun(tls: TlsPolicy) -> Handshake {
    let mut handshake = Handshake::new(tls);
    let step = handshake.step(&3_u32.to_be_bytes(), &Two, &mut Vec::new());
    assert_eq!(step, (4, HandshakeStep::Next));
    handshake
}

/// The step that an option leads to, and the types of the replies.
fn send(
    handshake: &mut Handshake,
    option: u32,
    data: &[u8],
) -> (HandshakeStep<&'static str>, Vec<u32>) {
    let bytes = option_bytes(option, data);
    let mut out = Vec::new();
    let (used, step) = handshake.step(&bytes, &Two, &mut out);
    assert!(used == bytes.len() || step == HandshakeStep::Close);
    let mut kinds = Vec::new();
    let mut rest = &out[..];
    while rest.len() >= 20 {
        assert_eq!(rest[..8], REPLY_MAGIC.to_be_bytes());
        assert_eq!(rest[8..12], option.to_be_bytes());
        kinds.push(number32(&rest[12..16]));
        let len = usize::try_from(number32(&rest[16..20])).unwrap();
        rest = &rest[20 + len..];
    }
    (step, kinds)
}

#[test]
fn a_client_lists_asks_and_goes() {
    let mut handshake = begun(TlsPolicy::None);
    let (_, kinds) = send(&mut handshake, option::LIST, &[]);
    assert_eq!(kinds, [answer::SERVER, answer::SERVER, answer::ACK]);
    let (_, kinds) = send(&mut handshake, option::STRUCTURED_REPLY, &[]);
    assert_eq!(kinds, [answer::ACK]);
    let data = meta_data("a", &["base:allocation", "qemu:dirty"]);
    let (_, kinds) = send(&mut handshake, option::SET_META_CONTEXT, &data);
    assert_eq!(kinds, [answer::META_CONTEXT, answer::ACK]);
    let data = go_data("a", &[info::BLOCK_SIZE, info::NAME, 999]);
    let (step, kinds) = send(&mut handshake, option::INFO, &data);
    assert_eq!(step, HandshakeStep::Next);
    assert_eq!(
        kinds,
        [answer::INFO, answer::INFO, answer::INFO, answer::ACK]
    );
    let (step, _) = send(&mut handshake, option::GO, &data);
    let chosen = Chosen {
        export: "a",
        style: Style::Structured,
        has_allocation: true,
    };
    assert_eq!(step, HandshakeStep::Begin(chosen));
}

#[test]
fn refusals_name_their_reason_and_the_negotiation_goes_on() {
    let mut handshake = begun(TlsPolicy::None);
    let cases: [(u32, Vec<u8>, u32); 11] = [
        (option::GO, go_data("c", &[]), answer::UNKNOWN),
        (option::GO, go_data("b", &[]), answer::UNKNOWN),
        (option::GO, vec![0, 0, 0, 9], answer::INVALID),
        (
            option::GO,
            go_data("a", &[1])[..7].to_vec(),
            answer::INVALID,
        ),
        (option::LIST, vec![1], answer::INVALID),
        (option::STRUCTURED_REPLY, vec![1], answer::INVALID),
        (option::STARTTLS, vec![], answer::POLICY),
        (99, vec![1, 2, 3], answer::UNSUPPORTED),
        // Contexts need structured replies.
        (
            option::SET_META_CONTEXT,
            meta_data("a", &["base:allocation"]),
            answer::INVALID,
        ),
        (option::EXTENDED_HEADERS, vec![], answer::ACK),
        (
            option::STRUCTURED_REPLY,
            vec![],
            answer::EXTENDED_HEADERS_REQUIRED,
        ),
    ];
    for (option, data, kind) in cases {
        let (step, kinds) = send(&mut handshake, option, &data);
        assert_eq!((step, kinds), (HandshakeStep::Next, vec![kind]), "{option}");
    }
    // An export name cannot be refused in words.
    let (step, _) = send(&mut handshake, option::EXPORT_NAME, b"c");
    assert_eq!(step, HandshakeStep::Close);
}

#[test]
fn before_tls_a_server_with_tls_answers_nothing_else() {
    let mut handshake = begun(TlsPolicy::Required);
    let (step, kinds) = send(&mut handshake, option::GO, &go_data("a", &[]));
    assert_eq!(
        (step, kinds),
        (HandshakeStep::Next, vec![answer::TLS_REQUIRED])
    );
    let (step, _) = send(&mut handshake, option::LIST, &[]);
    assert_eq!(step, HandshakeStep::Next);
    let (step, kinds) = send(&mut handshake, option::STARTTLS, &[]);
    assert_eq!((step, kinds), (HandshakeStep::StartTls, vec![answer::ACK]));
    handshake.on_tls();
    let (step, _) = send(&mut handshake, option::GO, &go_data("a", &[]));
    assert!(matches!(step, HandshakeStep::Begin(_)));
    let (step, _) = send(&mut begun(TlsPolicy::Required), option::EXPORT_NAME, b"a");
    assert_eq!(step, HandshakeStep::Close);
}

#[test]
fn a_context_of_another_export_does_not_count() {
    let mut handshake = begun(TlsPolicy::None);
    send(&mut handshake, option::STRUCTURED_REPLY, &[]);
    let data = meta_data("a", &["base:allocation"]);
    send(&mut handshake, option::SET_META_CONTEXT, &data);
    send(
        &mut handshake,
        option::SET_META_CONTEXT,
        &meta_data("a", &[]),
    );
    let (step, _) = send(&mut handshake, option::GO, &go_data("a", &[]));
    assert!(matches!(step, HandshakeStep::Begin(chosen) if !chosen.has_allocation));
}

#[test]
fn a_long_option_is_skipped_and_an_absurd_one_ends_it() {
    let mut handshake = begun(TlsPolicy::None);
    let long = option_bytes(option::LIST, &vec![0; OPTION_MAX_BYTES + 1]);
    let mut out = Vec::new();
    let mut used = 0;
    while used < long.len() {
        let (more, step) = handshake.step(&long[used..], &Two, &mut out);
        assert!(more > 0 && step != HandshakeStep::Close);
        used += more;
    }
    assert_eq!(number32(&out[12..16]), answer::TOO_BIG);
    let (_, kinds) = send(&mut handshake, option::LIST, &[]);
    assert_eq!(kinds.len(), 3);
    let mut absurd = option_bytes(option::LIST, &[]);
    absurd[12..].copy_from_slice(&u32::MAX.to_be_bytes());
    let (_, step) = handshake.step(&absurd, &Two, &mut out);
    assert_eq!(step, HandshakeStep::Close);
}

proptest! {
    /// However the bytes are cut and whatever they are, a step uses no more than there is, gets on
    /// or waits, and holds no memory that the client names.
    #[test]
    fn garbage_ends_or_waits(
        options in prop::collection::vec(
            (0_u32..14, prop::collection::vec(any::<u8>(), 0..40), any::<u8>()), 0..8),
        flags in 0_u32..4,
        junk in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = flags.to_be_bytes().to_vec();
        for (option, data, damage) in options {
            let mut next = option_bytes(option, &data);
            if damage < 40 {
                let at = usize::from(damage) % next.len();
                next[at] ^= 1 << (damage % 8);
            }
            bytes.extend(next);
        }
        bytes.extend(junk);
        let mut handshake = Handshake::new(TlsPolicy::Offered);
        let (mut at, mut out) = (0, Vec::new());
        for _ in 0..100 {
            let (used, step) = handshake.step(&bytes[at..], &Two, &mut out);
            prop_assert!(used <= bytes.len() - at);
            at += used;
            match step {
                HandshakeStep::Next => prop_assert!(used > 0),
                HandshakeStep::Wait | HandshakeStep::Close | HandshakeStep::StartTls | HandshakeStep::Begin(_) => break,
            }
        }
        prop_assert!(out.len() < 64 * 1024);
    }
}
