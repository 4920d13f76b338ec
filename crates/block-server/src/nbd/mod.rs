//! The NBD protocol, without I/O: fixed newstyle negotiation, requests, replies.
//!
//! Numbers and names are those of the specification, `doc/proto.md` of NetworkBlockDevice/nbd;
//! extended headers are those of its branch `extension-ext-header`.

pub mod handshake;
pub mod reply;
pub mod request;

/// Largest payload of a read or a write. The specification lets clients assume this much.
pub const PAYLOAD_MAX_BYTES: u32 = 32 << 20;
/// Longest string of the protocol.
pub const STRING_MAX_BYTES: usize = 4096;

/// How replies look. The client chooses during the negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// Simple replies.
    #[default]
    Simple,
    /// Structured replies for all that carries data, simple ones for the rest.
    Structured,
    /// Extended headers in both directions.
    Extended,
}

/// Error numbers of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// The export is read-only.
    NotPermitted = 1,
    /// Input or output failed.
    Io = 5,
    /// No memory.
    NoMemory = 12,
    /// The request is wrong.
    Invalid = 22,
    /// No space on the device, or a write past its end.
    NoSpace = 28,
    /// Not supported.
    NotSupported = 95,
    /// The server ends.
    Shutdown = 108,
}

impl Errno {
    /// The protocol's number for an `errno` of the operating system.
    pub fn of_os(errno: i32) -> Self {
        match errno {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NoSpace,
            libc::EPERM | libc::EACCES | libc::EROFS => Self::NotPermitted,
            libc::ENOMEM | libc::ENOBUFS => Self::NoMemory,
            libc::EINVAL => Self::Invalid,
            libc::EOPNOTSUPP => Self::NotSupported,
            _ => Self::Io,
        }
    }
}

/// What a client is told of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// Bytes.
    pub size_bytes: u64,
    /// Whether writing is refused.
    pub is_read_only: bool,
    /// Block size at which requests are fastest.
    pub preferred_block_bytes: u32,
    /// Text for people.
    pub description: String,
}

/// Big-endian numbers at the front of a slice. The caller has checked the length; what is missing
/// counts as zero.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .take(8)
        .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// As [`number`], for 32 bits.
pub(crate) fn number32(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .take(4)
        .fold(0, |sum, &byte| sum << 8 | u32::from(byte))
}

/// As [`number`], for 16 bits.
pub(crate) fn number16(bytes: &[u8]) -> u16 {
    bytes
        .iter()
        .take(2)
        .fold(0, |sum, &byte| sum << 8 | u16::from(byte))
}
