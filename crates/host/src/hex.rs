//! Bytes as hexadecimal digits, two for each byte: digests, keys and the bytes of code.

use std::fmt::Write as _;

/// The digits, in lower case.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of these digits, in either case. `None`: something else is among them, or one digit
/// has no second.
///
/// ```
/// use host::hex;
///
/// assert_eq!(hex::encode(&[0, 0xab]), "00ab");
/// assert_eq!(hex::decode("00aB"), Some(vec![0, 0xab]));
/// for wrong in ["0", "+1", " 00", "0g", "ä"] {
///     assert_eq!(hex::decode(wrong), None);
/// }
/// ```
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| {
        char::from(*byte)
            .to_digit(16)
            .and_then(|it| u8::try_from(it).ok())
    };
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some((digit(high)? << 4) | digit(low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(byte).collect()
}
