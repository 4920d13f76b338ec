//! Redis' protocol (RESP 2 and 3, redis.io/docs/reference/protocol-spec).

use super::message::{Mark, Message, decimal, line};

/// Commands that wait for others, or begin a stream.
const BLOCKING: [&[u8]; 16] = [
    b"BLPOP",
    b"BRPOP",
    b"BLMOVE",
    b"BRPOPLPUSH",
    b"BZPOPMIN",
    b"BZPOPMAX",
    b"BLMPOP",
    b"BZMPOP",
    b"SUBSCRIBE",
    b"PSUBSCRIBE",
    b"SSUBSCRIBE",
    b"MONITOR",
    b"WAIT",
    b"WAITAOF",
    b"PSYNC",
    b"SYNC",
];
/// Values within values that are followed.
const DEPTH_MAX: usize = 4;
/// Values of one array that are followed.
const ELEMENTS_MAX: usize = 64;

pub(super) fn is_request(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'*')
        && decimal(&bytes[1..]).is_some_and(|(_, digits)| bytes[1 + digits..].starts_with(b"\r\n"))
}

pub(super) fn request(bytes: &[u8]) -> Message {
    match bytes.first() {
        Some(b'*') => {
            let mark = if is_blocking(bytes) {
                Mark::Excluded(0)
            } else {
                Mark::Start(0)
            };
            Message::new(mark, value(bytes, DEPTH_MAX))
        }
        // A command typed by hand.
        Some(byte) if byte.is_ascii_alphabetic() => match line(bytes) {
            Some(end) => Message::new(Mark::Start(0), end),
            None => Message::new(Mark::More(0), None),
        },
        _ => Message::new(Mark::More(0), None),
    }
}

fn is_blocking(bytes: &[u8]) -> bool {
    let name = line(bytes).and_then(|first| {
        let rest = &bytes[first..];
        let (length, _) = decimal(rest.strip_prefix(b"$")?)?;
        let at = line(rest)?;
        rest.get(at..at.checked_add(length)?)
    });
    let waits = |name: &[u8]| {
        BLOCKING
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
    };
    // XREAD and XREADGROUP wait only with BLOCK.
    name.is_some_and(waits)
        || bytes
            .windows(5)
            .any(|five| five.eq_ignore_ascii_case(b"BLOCK"))
            && name.is_some_and(|name| name.to_ascii_uppercase().starts_with(b"XREAD"))
}

pub(super) fn answer(bytes: &[u8]) -> Message {
    let length = || value(bytes, DEPTH_MAX);
    match bytes.first() {
        // A push is nobody's answer.
        Some(b'>') => Message::new(None, length()),
        Some(
            b'+' | b'-' | b':' | b'$' | b'*' | b'_' | b'#' | b',' | b'(' | b'!' | b'=' | b'%'
            | b'~' | b'|',
        ) => Message::new(Mark::Start(0), length()),
        _ => Message::new(Mark::More(0), None),
    }
}

/// Length of the value that begins here, as far as it can be known: its data may reach beyond what
/// was captured.
fn value(bytes: &[u8], depth: usize) -> Option<usize> {
    let head = line(bytes)?;
    let number = || decimal(&bytes[1..]);
    let elements = match bytes[0] {
        b'$' | b'!' | b'=' => {
            return match bytes.get(1) {
                Some(b'-') => Some(head),
                _ => Some(head.checked_add(number()?.0)? + 2),
            };
        }
        b'*' | b'~' | b'>' if bytes.get(1) == Some(&b'-') => 0,
        b'*' | b'~' | b'>' => number()?.0,
        b'%' | b'|' => number()?.0.checked_mul(2)?,
        _ => 0,
    };
    let mut at = head;
    if elements > ELEMENTS_MAX || (elements > 0 && depth == 0) {
        return None;
    }
    for _ in 0..elements {
        at = at.checked_add(value(bytes.get(at..)?, depth - 1)?)?;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::super::tests::marks;
    use super::super::{Mark, Protocol};

    const START: Mark = Mark::Start(0);
    const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n";

    #[test]
    fn commands_are_counted_and_those_that_wait_are_left_out() {
        let client = |bytes: &[u8], captured| marks(Protocol::Auto, true, bytes, captured);
        assert_eq!(client(SET, 44), (vec![START], false));
        assert_eq!(client(&[SET, SET].concat(), 44), (vec![START, START], true));
        let long = [b"*2\r\n$3\r\nGET\r\n$900\r\n".as_slice(), &[b'k'; 902]].concat();
        assert_eq!(client(&long, 44), (vec![START], false));
        assert_eq!(
            client(b"*3\r\n$5\r\nblpop\r\n$1\r\na\r\n$1\r\n0\r\n", 44).0,
            [Mark::Excluded(0)]
        );
        assert_eq!(
            client(b"*2\r\n$5\r\nXREAD\r\n$5\r\nBLOCK\r\n", 44).0,
            [Mark::Excluded(0)]
        );
        assert_eq!(client(b"*1\r\n$5\r\nXREAD\r\n", 44).0, [START]);
    }

    #[test]
    fn answers_are_counted_and_a_push_is_none() {
        let server = |bytes: &[u8], captured| marks(Protocol::Redis, false, bytes, captured);
        assert_eq!(server(b"+OK\r\n:1\r\n$-1\r\n", 44), (vec![START; 3], false));
        assert_eq!(
            server(b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n+OK\r\n", 44),
            (vec![START; 2], false)
        );
        let long = [b"$500\r\n".as_slice(), &[b'x'; 502]].concat();
        assert_eq!(server(&long, 44), (vec![START], false));
        assert_eq!(
            server(&[&long, b"+OK\r\n".as_slice()].concat(), 44),
            (vec![START], true)
        );
        assert_eq!(
            server(b">2\r\n+a\r\n+b\r\n+OK\r\n", 44),
            (vec![START], false)
        );
        assert_eq!(server(b"xx", 44).0, [Mark::More(0)]);
    }
}
