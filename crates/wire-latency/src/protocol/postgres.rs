//! PostgreSQL's messages (its manual, chapter "Frontend/Backend Protocol").

use super::message::{Bytes, Mark, Marks};

/// What begins an exchange: query, parse, bind, describe, execute, close, function call, sync,
/// flush.
const REQUESTS: &[u8] = b"QPBDECFSH";
/// What a client also sends: copied data, its end, its failure; a password; terminate.
const OTHERS: &[u8] = b"dcfpX";
/// Protocol 3, and the codes for TLS, GSS encryption and cancelling.
const STARTUP: [u32; 6] = [
    196_608, 196_610, 80_877_103, 80_877_104, 80_877_102, 131_072,
];

fn is_startup(bytes: &[u8]) -> bool {
    let code = bytes.get(4..8).and_then(|code| code.try_into().ok());
    code.is_some_and(|code| STARTUP.contains(&u32::from_be_bytes(code)))
}

pub(super) fn is_message(bytes: &[u8], length: u32) -> bool {
    let (Some(first), Some(claimed)) = (bytes.first(), bytes.get(1..5)) else {
        return false;
    };
    let claimed = u32::from_be_bytes([claimed[0], claimed[1], claimed[2], claimed[3]]);
    let fits = claimed >= 4 && claimed < length.max(1);
    is_startup(bytes) || (REQUESTS.contains(first) || OTHERS.contains(first)) && fits
}

/// Messages from parse to sync are one exchange, and mostly one segment. Only a client that
/// pipelines begins another before the answer; it is seen where that begins with a query.
pub(super) fn client(bytes: Bytes<'_>) -> Marks {
    let first = bytes.seen.first().copied().unwrap_or_default();
    if is_startup(bytes.seen) || first == b'p' || first == b'X' {
        return Marks::NONE;
    }
    match bytes.is_turn && REQUESTS.contains(&first) || first == b'Q' {
        true => Marks::one(Mark::Start(0)),
        false => Marks::one(Mark::More(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::marks;
    use super::super::{Mark, Protocol};

    #[test]
    fn a_startup_and_a_password_are_no_requests() {
        let client = |bytes: &[u8]| marks(Protocol::Postgres, true, bytes, 44).0;
        assert_eq!(client(b"\0\0\0\x08\x04\xd2\x16\x2f"), []);
        assert_eq!(client(b"p\0\0\0\x05x"), []);
        assert_eq!(client(b"X\0\0\0\x04"), []);
        assert_eq!(client(b"Q\0\0\0\x0dSELECT 1\0"), [Mark::Start(0)]);
        assert_eq!(client(b"P\0\0\0\x10\0SELECT 1\0\0\0"), [Mark::Start(0)]);
        assert_eq!(client(b"d\0\0\0\x10"), [Mark::More(0)]);
    }
}
