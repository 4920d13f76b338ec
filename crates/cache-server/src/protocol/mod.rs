//! The text and meta protocol of memcached, parsed without I/O, copies or allocation.
//!
//! [`parse`] looks at the bytes of one command line. Keys and flags of the result are slices of the
//! input. A data block that follows the line is the connection's to receive.

mod meta;
mod number;
mod request;
mod words;

pub use self::meta::decode_key;
pub use self::number::{Digits, number, signed};
pub use self::request::{Flags, Malformed, Meta, MetaKind, Request, StorageCommand, StoreKind};
use self::words::check_key;
pub use self::words::{GET_LINE_MAX_BYTES, LINE_MAX_BYTES, Words, line, may_be_long};

/// Parses a line without its end.
pub fn parse(line: &[u8]) -> Request<'_> {
    let mut words = Words(line);
    let Some(verb) = words.next() else {
        return Request::Malformed(Malformed::Unknown, None);
    };
    let parsed = match verb {
        b"get" => get(words, false, None),
        b"gets" => get(words, true, None),
        b"gat" => get_and_touch(words, false),
        b"gats" => get_and_touch(words, true),
        b"set" => return storage(words, StoreKind::Set),
        b"add" => return storage(words, StoreKind::Add),
        b"replace" => return storage(words, StoreKind::Replace),
        b"append" => return storage(words, StoreKind::Append),
        b"prepend" => return storage(words, StoreKind::Prepend),
        b"cas" => return storage(words, StoreKind::Cas(0)),
        b"mg" => meta::parse(MetaKind::Get, words),
        b"ms" => return meta::parse_set(words),
        b"md" => meta::parse(MetaKind::Delete, words),
        b"ma" => meta::parse(MetaKind::Arithmetic, words),
        b"me" => meta::parse(MetaKind::Debug, words),
        b"mn" => Ok(Request::MetaNoop),
        b"delete" => delete(words),
        b"incr" => count(words, true),
        b"decr" => count(words, false),
        b"touch" => touch(words),
        b"flush_all" => flush_all(words),
        b"verbosity" => verbosity(words),
        b"stats" => Ok(Request::Stats(words.0.trim_ascii())),
        b"version" => Ok(Request::Version),
        b"quit" => Ok(Request::Quit),
        // A browser, or a page that makes it send commands: memcached hangs up as well.
        b"GET" | b"PUT" | b"POST" | b"DELETE" => Ok(Request::Quit),
        _ => Err(Malformed::Unknown),
    };
    parsed.unwrap_or_else(|malformed| Request::Malformed(malformed, None))
}

fn get(words: Words<'_>, with_cas: bool, touch: Option<i64>) -> Result<Request<'_>, Malformed> {
    if words.clone().next().is_none() {
        return Err(Malformed::Unknown);
    }
    // Said before any key is answered.
    if words.0.len() > crate::store::KEY_MAX_BYTES {
        for key in words.clone() {
            check_key(key)?;
        }
    }
    Ok(Request::Get {
        keys: words.0,
        with_cas,
        touch,
    })
}

fn get_and_touch(mut words: Words<'_>, with_cas: bool) -> Result<Request<'_>, Malformed> {
    let expiry = words.next().ok_or(Malformed::Unknown)?;
    let expiry = signed(expiry).ok_or(Malformed::BadExpiry)?;
    get(words, with_cas, Some(expiry))
}

/// The words after the last argument: nothing, or `noreply`.
fn quiet(words: &mut Words<'_>) -> bool {
    words.next() == Some(b"noreply")
}

fn storage(words: Words<'_>, kind: StoreKind) -> Request<'_> {
    match storage_words(words, kind) {
        Ok(storage) => Request::Storage(storage),
        Err((malformed, skip)) => Request::Malformed(malformed, skip),
    }
}

type Skipped = (Malformed, Option<usize>);

fn storage_words(mut words: Words<'_>, kind: StoreKind) -> Result<StorageCommand<'_>, Skipped> {
    let mut next = || words.next().ok_or((Malformed::Unknown, None));
    let (key, flags, expiry, len) = (next()?, next()?, next()?, next()?);
    let kind = match kind {
        StoreKind::Cas(_) => {
            let cas = next()?;
            StoreKind::Cas(number(cas).ok_or((Malformed::BadFormat, None))?)
        }
        other => other,
    };
    let is_quiet = quiet(&mut words);
    let len_bytes = signed(len).ok_or((Malformed::BadFormat, None))?;
    // memcached's largest length: it leaves room for the line end in 31 bits.
    let len_bytes = usize::try_from(len_bytes)
        .ok()
        .filter(|&len| len <= 0x7fff_fffd)
        .ok_or((Malformed::BadLength, None))?;
    let with_skip = |malformed| (malformed, Some(len_bytes));
    let key = check_key(key).map_err(with_skip)?;
    let flags = number(flags)
        .and_then(|flags| u32::try_from(flags).ok())
        .ok_or(with_skip(Malformed::BadFormat))?;
    let expiry = signed(expiry).ok_or(with_skip(Malformed::BadFormat))?;
    Ok(StorageCommand {
        kind,
        key,
        flags,
        expiry,
        len_bytes,
        is_quiet,
    })
}

fn delete(mut words: Words<'_>) -> Result<Request<'_>, Malformed> {
    let key = check_key(words.next().ok_or(Malformed::Unknown)?)?;
    // A time of 0 was once allowed, and is still.
    match (words.next(), words.next(), words.next()) {
        (None, ..) | (Some(b"0"), None, _) => Ok(Request::Delete {
            key,
            is_quiet: false,
        }),
        (Some(b"noreply"), None, _) | (Some(b"0"), Some(b"noreply"), None) => Ok(Request::Delete {
            key,
            is_quiet: true,
        }),
        (Some(_), Some(b"noreply"), None) => Err(Malformed::BadDeleteQuiet),
        _ => Err(Malformed::BadDelete),
    }
}

fn count(mut words: Words<'_>, is_increment: bool) -> Result<Request<'_>, Malformed> {
    let key = check_key(words.next().ok_or(Malformed::Unknown)?)?;
    let delta = words.next().ok_or(Malformed::Unknown)?;
    Ok(Request::Count {
        key,
        delta: number(delta).ok_or(Malformed::BadDelta)?,
        is_increment,
        is_quiet: quiet(&mut words),
    })
}

fn touch(mut words: Words<'_>) -> Result<Request<'_>, Malformed> {
    let key = check_key(words.next().ok_or(Malformed::Unknown)?)?;
    let expiry = words.next().ok_or(Malformed::Unknown)?;
    Ok(Request::Touch {
        key,
        expiry: signed(expiry).ok_or(Malformed::BadExpiry)?,
        is_quiet: quiet(&mut words),
    })
}

fn flush_all(mut words: Words<'_>) -> Result<Request<'_>, Malformed> {
    match words.next() {
        None => Ok(Request::FlushAll {
            delay: 0,
            is_quiet: false,
        }),
        Some(b"noreply") => Ok(Request::FlushAll {
            delay: 0,
            is_quiet: true,
        }),
        Some(delay) => Ok(Request::FlushAll {
            delay: signed(delay).ok_or(Malformed::BadExpiry)?,
            is_quiet: quiet(&mut words),
        }),
    }
}

fn verbosity(mut words: Words<'_>) -> Result<Request<'_>, Malformed> {
    let level = words.next().ok_or(Malformed::Unknown)?;
    if level == b"noreply" {
        return Ok(Request::Verbosity {
            level: None,
            is_quiet: true,
        });
    }
    let level = number(level).ok_or(Malformed::BadFormat)?;
    let is_quiet = quiet(&mut words);
    if words.next().is_some() {
        return Err(Malformed::Unknown);
    }
    Ok(Request::Verbosity {
        level: Some(level),
        is_quiet,
    })
}

#[cfg(test)]
mod tests;
