//! Meta commands: `mg`, `ms`, `md`, `ma`, `me`, as memcached 1.6's protocol.txt describes them.

use super::number::{number, signed};
use super::request::{Flags, Malformed, Meta, MetaKind, Request};
use super::words::{Words, check_key};

fn read_flags(kind: MetaKind, words: Words<'_>) -> Result<Flags, Malformed> {
    let mut flags = Flags {
        delta: 1,
        ..Flags::default()
    };
    let mut seen = [0_u64; 4];
    for word in words {
        let (&letter, token) = word.split_first().ok_or(Malformed::BadFlags)?;
        if !letter.is_ascii_alphabetic() {
            return Err(Malformed::BadFlags);
        }
        // A flag given twice is an error.
        let (slot, bit) = (usize::from(letter / 64), 1 << (letter % 64));
        if seen[slot] & bit != 0 {
            return Err(Malformed::BadFlags);
        }
        seen[slot] |= bit;
        let unsigned = || number(token).ok_or(Malformed::BadFlags);
        let time = || signed(token).ok_or(Malformed::BadFlags);
        match letter {
            b'b' => flags.is_base64 = true,
            b'q' => flags.is_quiet = true,
            b'u' if kind == MetaKind::Get => flags.is_no_access = true,
            b'v' => flags.wants_value = true,
            b'C' => flags.compare = Some(unsigned()?),
            b'E' => flags.explicit = Some(unsigned()?),
            b'F' => {
                flags.client_flags = u32::try_from(unsigned()?).map_err(|_| Malformed::BadFlags)?;
            }
            b'T' => flags.expiry = Some(time()?),
            b'N' => flags.vivify = Some(time()?),
            b'R' => flags.recache = Some(time()?),
            b'I' => flags.invalidate = true,
            b'x' if kind == MetaKind::Delete => flags.empty_value = true,
            b'J' => flags.initial = unsigned()?,
            b'D' => flags.delta = unsigned()?,
            b'M' => {
                flags.mode = Some(
                    token
                        .first()
                        .ok_or(Malformed::BadFlags)?
                        .to_ascii_uppercase(),
                )
            }
            // An opaque token of the client: memcached's limit is 32 bytes.
            b'O' if token.len() > 32 => return Err(Malformed::BadFlags),
            b'O' | b'c' | b'f' | b'h' | b'k' | b'l' | b's' | b't' => {}
            // Later versions have flags that say nothing here (proxy's P and L, S of old ms).
            b'P' | b'L' | b'S' => {}
            _ => return Err(Malformed::BadFlags),
        }
    }
    Ok(flags)
}

pub(super) fn parse(kind: MetaKind, mut words: Words<'_>) -> Result<Request<'_>, Malformed> {
    let key = words.next().ok_or(Malformed::BadFormat)?;
    let key = check_key(key)?;
    let flags = read_flags(kind, words.clone())?;
    if flags.is_base64 && decode_key(key, &mut [0; crate::store::KEY_MAX_BYTES]).is_none() {
        return Err(Malformed::BadFormat);
    }
    Ok(Request::Meta(Meta {
        kind,
        key,
        words: words.0,
        flags,
    }))
}

/// `ms`: the length comes after the key, and a data block follows even if the flags are wrong.
pub(super) fn parse_set(mut words: Words<'_>) -> Request<'_> {
    let (Some(key), Some(len)) = (words.next(), words.next()) else {
        return Request::Malformed(Malformed::BadFormat, None);
    };
    let len = number(len).and_then(|len| usize::try_from(len).ok());
    let Some(len) = len.filter(|&len| len <= 0x7fff_fffd) else {
        return Request::Malformed(Malformed::BadLength, None);
    };
    let kind = MetaKind::Set(len);
    let parsed = check_key(key).and_then(|key| {
        let flags = read_flags(kind, words.clone())?;
        let is_bad =
            flags.is_base64 && decode_key(key, &mut [0; crate::store::KEY_MAX_BYTES]).is_none();
        let mode_is_bad = flags.mode.is_some_and(|mode| !b"EAPRS".contains(&mode));
        if is_bad || mode_is_bad {
            return Err(Malformed::BadFormat);
        }
        Ok(flags)
    });
    match parsed {
        Ok(flags) => Request::Meta(Meta {
            kind,
            key,
            words: words.0,
            flags,
        }),
        Err(malformed) => Request::Malformed(malformed, Some(len)),
    }
}

/// Decodes a base64 key into `out`. `None`: it is none, or it is empty.
pub fn decode_key<'a>(
    text: &[u8],
    out: &'a mut [u8; crate::store::KEY_MAX_BYTES],
) -> Option<&'a [u8]> {
    let value = |byte: u8| {
        Some(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    };
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text
        .strip_suffix(b"==")
        .or(text.strip_suffix(b"="))
        .unwrap_or(text);
    let (mut bits, mut held, mut len) = (0_u32, 0, 0);
    for &byte in digits {
        bits = bits << 6 | u32::from(value(byte)?);
        held += 6;
        if held >= 8 {
            held -= 8;
            *out.get_mut(len)? = u8::try_from(bits >> held & 0xff).unwrap_or(0);
            len += 1;
        }
    }
    (len > 0).then_some(&out[..len])
}
