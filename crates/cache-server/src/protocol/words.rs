//! Lines, and the words of a line.

use super::request::Malformed;

/// Longest line of a command other than a retrieval of many keys (memcached closes past 2048).
pub const LINE_MAX_BYTES: usize = 2048;
/// Longest line of a retrieval: about 190 of the longest keys.
pub const GET_LINE_MAX_BYTES: usize = 48 * 1024;

/// Words of a line.
#[derive(Debug, Clone)]
pub struct Words<'a>(pub &'a [u8]);

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.0.iter().position(|&byte| byte != b' ')?;
        let rest = &self.0[start..];
        let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
        self.0 = &rest[end..];
        Some(&rest[..end])
    }
}

/// Length of the first line of `input` without and with its end. `None`: the line is not whole.
pub fn line(input: &[u8]) -> Option<(usize, usize)> {
    let end = memchr::memchr(b'\n', input)?;
    let without = if end > 0 && input[end - 1] == b'\r' {
        end - 1
    } else {
        end
    };
    Some((without, end + 1))
}

/// Whether a line that is not whole yet may grow past [`LINE_MAX_BYTES`].
pub fn may_be_long(input: &[u8]) -> bool {
    let start = input
        .iter()
        .position(|&byte| byte != b' ')
        .unwrap_or(input.len());
    let input = &input[start..];
    [&b"get "[..], b"gets ", b"gat ", b"gats "]
        .into_iter()
        .any(|verb| input.starts_with(verb))
}

/// A key, unless it is too long.
pub(super) fn check_key(key: &[u8]) -> Result<&[u8], Malformed> {
    if key.len() > crate::store::KEY_MAX_BYTES {
        return Err(Malformed::KeyTooLong);
    }
    Ok(key)
}
