//! What a command line says, in slices of the line.

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

/// Which meta command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaKind {
    /// `mg`
    Get,
    /// `ms`, with the length of its data block.
    Set(usize),
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `me`
    Debug,
}

/// A meta command. `F` is what holds a key and flags: a slice of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta<'a> {
    /// Which command.
    pub kind: MetaKind,
    /// The key as the client wrote it.
    pub key: &'a [u8],
    /// The flags as the client wrote them, in order, for an answer that repeats some.
    pub words: &'a [u8],
    /// What the flags say.
    pub flags: Flags,
}

/// What flags say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags {
    /// `b`: the key is base64.
    pub is_base64: bool,
    /// `q`: no answer to what is usual.
    pub is_quiet: bool,
    /// `u`: the look counts as no access.
    pub is_no_access: bool,
    /// `v`: the value is wanted.
    pub wants_value: bool,
    /// `C`: compare this CAS.
    pub compare: Option<u64>,
    /// `E`: the CAS that the item gets.
    pub explicit: Option<u64>,
    /// `F`: the client's flags.
    pub client_flags: u32,
    /// `T`: the new expiry time.
    pub expiry: Option<i64>,
    /// `N`: make a missing item, with this expiry time.
    pub vivify: Option<i64>,
    /// `R`: the client fetches anew if fewer seconds are left.
    pub recache: Option<i64>,
    /// `I`: invalidate; of `ms`: store even if the CAS is older, and mark the item stale.
    pub invalidate: bool,
    /// `x`: remove the value, keep the item.
    pub empty_value: bool,
    /// `J`: the number with which `ma` begins a missing item.
    pub initial: u64,
    /// `D`: by how much `ma` counts.
    pub delta: u64,
    /// `M`: the mode, in upper case.
    pub mode: Option<u8>,
}
