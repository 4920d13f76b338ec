//! The text and meta protocol of memcached, parsed without I/O, copies or allocation.
//!
//! [`parse`] looks at the bytes of one command line. Keys and flags of the result are slices of the
//! input. A data block that follows the line is the connection's to receive.

mod meta;
mod number;

pub use self::meta::{Flags, Meta, MetaKind, decode_key};
pub use self::number::{Digits, number, signed};

/// Longest line of a command other than a retrieval of many keys (memcached closes past 2048).
pub const LINE_MAX_BYTES: usize = 2048;
/// Longest line of a retrieval: about 190 of the longest keys.
pub const GET_LINE_MAX_BYTES: usize = 48 * 1024;

/// A line that is no command, and what the client is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// No such command.
    Unknown,
    /// Wrong number of words, or a number that is none.
    BadFormat,
    /// A key above 250 bytes.
    KeyTooLong,
    /// `incr` or `decr` by something that is no number.
    BadDelta,
    /// `touch` or `gat` with a time that is no number.
    BadExpiry,
    /// A storage command with a length below 0 or above 2³¹.
    BadLength,
    /// `delete` with more than a key.
    BadDelete,
    /// The same from a client that wants no answer.
    BadDeleteQuiet,
    /// A meta command with flags that do not parse.
    BadFlags,
}

impl Malformed {
    /// The answer.
    pub fn answer(self) -> &'static [u8] {
        match self {
            Self::Unknown => b"ERROR\r\n",
            Self::BadFormat | Self::KeyTooLong | Self::BadLength => {
                b"CLIENT_ERROR bad command line format\r\n"
            }
            Self::BadDelete => {
                b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"
            }
            Self::BadDeleteQuiet => b"",
            Self::BadDelta => b"CLIENT_ERROR invalid numeric delta argument\r\n",
            Self::BadExpiry => b"CLIENT_ERROR invalid exptime argument\r\n",
            Self::BadFlags => b"CLIENT_ERROR invalid flag\r\n",
        }
    }
}

/// A storage command's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// `set`
    Set,
    /// `add`
    Add,
    /// `replace`
    Replace,
    /// `append`
    Append,
    /// `prepend`
    Prepend,
    /// `cas`
    Cas(u64),
}

/// A storage command; its data block follows the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageCommand<'a> {
    /// What to do.
    pub kind: StoreKind,
    /// The key.
    pub key: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// memcached's expiry time: 0, seconds from now, or a date.
    pub expiry: i64,
    /// Length of the data block without its line end.
    pub len_bytes: usize,
    /// Whether the client wants no answer.
    pub is_quiet: bool,
}

/// One command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// `get`, `gets`, `gat`, `gats`: the rest of the line holds keys.
    Get {
        /// Keys, separated by blanks.
        keys: &'a [u8],
        /// Whether the answer has the CAS.
        with_cas: bool,
        /// The new expiry time.
        touch: Option<i64>,
    },
    /// `set` and its like.
    Storage(StorageCommand<'a>),
    /// `delete`
    Delete {
        /// The key.
        key: &'a [u8],
        /// Whether the client wants no answer.
        is_quiet: bool,
    },
    /// `incr`, `decr`
    Count {
        /// The key.
        key: &'a [u8],
        /// By how much.
        delta: u64,
        /// `incr`
        is_increment: bool,
        /// Whether the client wants no answer.
        is_quiet: bool,
    },
    /// `touch`
    Touch {
        /// The key.
        key: &'a [u8],
        /// The new expiry time.
        expiry: i64,
        /// Whether the client wants no answer.
        is_quiet: bool,
    },
    /// `mg`, `ms`, `md`, `ma`, `me`
    Meta(Meta<'a>),
    /// `mn`
    MetaNoop,
    /// `flush_all`
    FlushAll {
        /// When: 0, seconds from now, or a date.
        delay: i64,
        /// Whether the client wants no answer.
        is_quiet: bool,
    },
    /// `verbosity`
    Verbosity {
        /// The level, if it is a number.
        level: Option<u64>,
        /// Whether the client wants no answer.
        is_quiet: bool,
    },
    /// `stats`, with its argument.
    Stats(&'a [u8]),
    /// `version`
    Version,
    /// `quit`
    Quit,
    /// Not a command. A data block of so many bytes follows that has to be skipped.
    Malformed(Malformed, Option<usize>),
}

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

fn check_key(key: &[u8]) -> Result<&[u8], Malformed> {
    if key.len() > crate::store::KEY_MAX_BYTES {
        return Err(Malformed::KeyTooLong);
    }
    Ok(key)
}

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
