//! memcached's protocols (its doc/protocol.txt, and the wiki's BinaryProtocolRevamped).

use super::message::{Mark, Message, decimal, line};

/// Commands whose line is the whole request.
const SHORT: [&[u8]; 16] = [
    b"get ",
    b"gets ",
    b"gat ",
    b"gats ",
    b"delete ",
    b"incr ",
    b"decr ",
    b"touch ",
    b"mg ",
    b"md ",
    b"ma ",
    b"me ",
    b"stats",
    b"version",
    b"flush_all",
    b"verbosity ",
];
/// Commands that are followed by a block of data.
const STORING: [&[u8]; 7] = [
    b"set ",
    b"add ",
    b"replace ",
    b"append ",
    b"prepend ",
    b"cas ",
    b"ms ",
];
/// Bytes of a binary header.
const HEADER: usize = 24;
const REQUEST_MAGIC: u8 = 0x80;
const ANSWER_MAGIC: u8 = 0x81;
/// Binary requests that are answered only when something is amiss, or never: the quiet ones, and
/// quit.
const QUIET: [u8; 16] = [
    0x07, 0x09, 0x0d, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1e, 0x24, 0x20,
];
/// Answers of one line; others begin with `VALUE`, `VA` or `STAT`.
const LINES: [&[u8]; 19] = [
    b"STORED",
    b"NOT_STORED",
    b"EXISTS",
    b"NOT_FOUND",
    b"DELETED",
    b"TOUCHED",
    b"OK",
    b"ERROR",
    b"CLIENT_ERROR",
    b"SERVER_ERROR",
    b"VERSION",
    b"END",
    b"HD",
    b"EN",
    b"NS",
    b"EX",
    b"NF",
    b"MN",
    b"RESET",
];

pub(super) fn is_request(bytes: &[u8]) -> bool {
    let is_binary = bytes.first() == Some(&REQUEST_MAGIC) && bytes.len() >= 12 && bytes[1] < 0x60;
    is_binary
        || SHORT
            .iter()
            .chain(&STORING)
            .any(|command| bytes.starts_with(command))
}

pub(super) fn request(bytes: &[u8]) -> Message {
    if bytes.first() == Some(&REQUEST_MAGIC) {
        return binary(bytes);
    }
    let is_storing = STORING.iter().any(|command| bytes.starts_with(command));
    if !is_storing && !SHORT.iter().any(|command| bytes.starts_with(command)) {
        // A block of data, `quit`, or something unknown.
        return Message::new(Mark::More(0), None);
    }
    let Some(end) = line(bytes) else {
        return Message::new(Mark::Start(0), None);
    };
    let words: Vec<&[u8]> = bytes[..end - 2].split(|byte| *byte == b' ').collect();
    let is_silent = words.last() == Some(&&b"noreply"[..]);
    // The data's length is the fourth word after the name, of `ms` the third.
    let at = if words[0] == b"ms" { 2 } else { 4 };
    let length = match is_storing {
        false => Some(end),
        true => words
            .get(at)
            .and_then(|word| Some(end + decimal(word)?.0 + 2)),
    };
    Message::new(Some(Mark::Start(0)).filter(|_| !is_silent), length)
}

pub(super) fn answer(bytes: &[u8]) -> Message {
    match bytes.first() {
        Some(&ANSWER_MAGIC) => return binary(bytes),
        Some(first) if first.is_ascii_uppercase() => {}
        _ => return Message::new(Mark::More(0), None),
    }
    if LINES.iter().any(|known| bytes.starts_with(known)) {
        return Message::new(Mark::Start(0), line(bytes));
    }
    // `VA` of the meta commands ends with its data.
    let is_meta = bytes.starts_with(b"VA ");
    if !is_meta && !bytes.starts_with(b"VALUE ") && !bytes.starts_with(b"STAT ") {
        return Message::new(Mark::More(0), None);
    }
    Message::new(Mark::Start(0), values(bytes, is_meta))
}

/// Length of `VALUE` and its data, as often as they come, up to the `END` behind them.
fn values(bytes: &[u8], is_meta: bool) -> Option<usize> {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..) {
        let end = line(rest)?;
        if rest.starts_with(b"END\r\n") {
            return Some(at + end);
        }
        let word = if is_meta { 1 } else { 3 };
        let data = rest[..end - 2].split(|byte| *byte == b' ').nth(word)?;
        at += end + decimal(data)?.0 + 2;
        if is_meta {
            return Some(at);
        }
    }
    // The data reach beyond what was captured. That one value was asked for is the rule.
    Some(at + b"END\r\n".len())
}

fn binary(bytes: &[u8]) -> Message {
    let Some(header) = bytes.get(..HEADER) else {
        return Message::new(Mark::Start(0), None);
    };
    let is_quiet = QUIET.contains(&header[1]);
    let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
    let length = usize::try_from(body).ok().map(|body| HEADER + body);
    Message::new(Some(Mark::Start(0)).filter(|_| !is_quiet), length)
}

#[cfg(test)]
mod tests {
    use super::super::tests::marks;
    use super::super::{Mark, Protocol};

    const START: Mark = Mark::Start(0);

    fn client(bytes: &[u8], captured: usize) -> (Vec<Mark>, bool) {
        marks(Protocol::Memcached, true, bytes, captured)
    }

    fn server(bytes: &[u8], captured: usize) -> (Vec<Mark>, bool) {
        marks(Protocol::Memcached, false, bytes, captured)
    }

    #[test]
    fn requests_are_counted() {
        assert_eq!(client(b"get a\r\n", 44), (vec![START], false));
        assert_eq!(
            client(b"get a\r\nget b\r\n", 44),
            (vec![START, START], false)
        );
        assert_eq!(
            client(b"set a 0 0 3\r\nabc\r\nget b\r\n", 44).0,
            [START, START]
        );
        assert_eq!(
            client(b"set a 0 0 3 noreply\r\nabc\r\nget b\r\n", 44).0,
            [START]
        );
        assert_eq!(client(b"ms a 3\r\nabc\r\n", 44), (vec![START], false));
        let long = [b"set a 0 0 500\r\n".as_slice(), &[b'x'; 502]].concat();
        assert_eq!(client(&long, 44), (vec![START], false));
    }

    #[test]
    fn answers_are_counted_and_a_value_ends_with_its_end() {
        assert_eq!(
            server(b"STORED\r\nEND\r\n", 44),
            (vec![START, START], false)
        );
        let value = b"VALUE a 0 3\r\nabc\r\nEND\r\n";
        assert_eq!(server(value, 44), (vec![START], false));
        assert_eq!(server(value, 15), (vec![START], false));
        let long = [b"VALUE a 0 500\r\n".as_slice(), &[b'x'; 502], b"END\r\n"].concat();
        assert_eq!(server(&long, 44), (vec![START], false));
        let two = [long.as_slice(), b"END\r\n"].concat();
        assert_eq!(server(&two, 44), (vec![START], true));
        assert_eq!(server(b"xxxxVALUE", 44).0, [Mark::More(0)]);
    }

    #[test]
    fn binary_headers_say_their_length_and_quiet_requests_are_not_answered() {
        let binary = |magic: u8, opcode: u8, body: u8| {
            let mut bytes = vec![magic, opcode, 0, body, 0, 0, 0, 0, 0, 0, 0, body];
            bytes.extend(vec![0; 12 + usize::from(body)]);
            bytes
        };
        let requests = [binary(0x80, 0x09, 1), binary(0x80, 0, 3)].concat();
        assert_eq!(client(&requests, 200), (vec![START], false));
        assert_eq!(server(&binary(0x81, 0, 9), 24), (vec![START], false));
    }
}
