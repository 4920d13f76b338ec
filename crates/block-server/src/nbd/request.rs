//! Requests of the transmission phase: parsed, and checked against the export.

use super::{Errno, ExportInfo, PAYLOAD_MAX_BYTES, Style, number, number16, number32};

const COMPACT_MAGIC: u32 = 0x2560_9513;
const EXTENDED_MAGIC: u32 = 0x21e4_1c71;
const COMPACT_BYTES: usize = 28;
const EXTENDED_BYTES: usize = 32;

/// The data are on stable storage before the answer.
pub const FLAG_FUA: u16 = 1 << 0;
/// Zeros are written without leaving a hole.
pub const FLAG_NO_HOLE: u16 = 1 << 1;
/// The answer to a read is one piece.
pub const FLAG_DF: u16 = 1 << 2;
/// One extent is enough.
pub const FLAG_REQ_ONE: u16 = 1 << 3;
/// Zeros only where that is faster than writing them.
pub const FLAG_FAST_ZERO: u16 = 1 << 4;
/// The length is that of a payload.
pub const FLAG_PAYLOAD_LEN: u16 = 1 << 5;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Read.
    Read,
    /// Write: a payload follows.
    Write,
    /// The client leaves.
    Disconnect,
    /// All answered writes go to stable storage.
    Flush,
    /// The data are not needed any more.
    Trim,
    /// Read ahead.
    Cache,
    /// Write zeros.
    WriteZeroes,
    /// Which parts hold data.
    BlockStatus,
    /// A number that has no meaning.
    Unknown(u16),
}

impl RequestKind {
    fn of(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Unknown(other),
        }
    }
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NbdRequest {
    /// What is asked for.
    pub kind: RequestKind,
    /// `FLAG_…`.
    pub flags: u16,
    /// The client's own number of the request.
    pub cookie: u64,
    /// The offset in the export.
    pub offset: u64,
    /// How many bytes of the export.
    pub len_bytes: u64,
    /// How many bytes follow the header.
    pub payload_bytes: u32,
}

/// Bytes that are no request: the connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Garbage {
    /// The magic number is wrong.
    #[error("no request begins with {0:#x}")]
    Magic(u32),
    /// The payload is larger than any client may send.
    #[error("a payload of {0} bytes is above the limit")]
    Payload(u64),
}

impl NbdRequest {
    /// How many bytes follow the header, as a length of memory.
    pub fn payload_len(&self) -> usize {
        self.payload_bytes as usize
    }

    /// Whether `flag` is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The request at the front of `bytes`, and the length of its header. `None`: more is needed.
    ///
    /// # Errors
    /// The bytes are no request.
    pub fn parse(bytes: &[u8], style: Style) -> Result<Option<(Self, usize)>, Garbage> {
        let is_extended = style == Style::Extended;
        let (magic, header_bytes) = if is_extended {
            (EXTENDED_MAGIC, EXTENDED_BYTES)
        } else {
            (COMPACT_MAGIC, COMPACT_BYTES)
        };
        let expected = magic.to_be_bytes();
        let seen = bytes.len().min(4);
        if bytes[..seen] != expected[..seen] {
            return Err(Garbage::Magic(number32(bytes)));
        }
        if bytes.len() < header_bytes {
            return Ok(None);
        }
        let kind = RequestKind::of(number16(&bytes[6..8]));
        let flags = number16(&bytes[4..6]);
        let len_bytes = if is_extended {
            number(&bytes[24..32])
        } else {
            number32(&bytes[24..28]).into()
        };
        let has_payload = if is_extended {
            flags & FLAG_PAYLOAD_LEN != 0
        } else {
            kind == RequestKind::Write
        };
        let payload_bytes = if has_payload {
            u32::try_from(len_bytes)
                .ok()
                .filter(|&payload| payload <= PAYLOAD_MAX_BYTES)
                .ok_or(Garbage::Payload(len_bytes))?
        } else {
            0
        };
        let request = Self {
            kind,
            flags,
            cookie: number(&bytes[8..16]),
            offset: number(&bytes[16..24]),
            len_bytes,
            payload_bytes,
        };
        Ok(Some((request, header_bytes)))
    }

    fn allowed_flags(&self, style: Style) -> u16 {
        let own = match self.kind {
            RequestKind::Read if style == Style::Simple => 0,
            RequestKind::Read => FLAG_DF,
            RequestKind::Write if style == Style::Extended => FLAG_PAYLOAD_LEN,
            RequestKind::WriteZeroes => FLAG_NO_HOLE | FLAG_FAST_ZERO,
            RequestKind::BlockStatus => FLAG_REQ_ONE,
            _ => 0,
        };
        own | FLAG_FUA
    }

    /// Checks the request against the export.
    ///
    /// # Errors
    /// The error to answer with, and why.
    pub fn check(
        &self,
        export: &ExportInfo,
        style: Style,
        has_allocation: bool,
    ) -> Result<(), (Errno, &'static str)> {
        if let RequestKind::Unknown(_) = self.kind {
            return Err((Errno::Invalid, "unknown command"));
        }
        if self.flags & !self.allowed_flags(style) != 0 {
            return Err((Errno::Invalid, "a flag that this command does not have"));
        }
        let writes = matches!(
            self.kind,
            RequestKind::Write | RequestKind::Trim | RequestKind::WriteZeroes
        );
        if writes && export.is_read_only {
            return Err((Errno::NotPermitted, "the export is read-only"));
        }
        match self.kind {
            RequestKind::Flush if self.offset != 0 || self.len_bytes != 0 => {
                return Err((Errno::Invalid, "a flush has neither offset nor length"));
            }
            RequestKind::Flush | RequestKind::Disconnect => return Ok(()),
            RequestKind::Write if style == Style::Extended && !self.has(FLAG_PAYLOAD_LEN) => {
                return Err((Errno::Invalid, "a write without NBD_CMD_FLAG_PAYLOAD_LEN"));
            }
            RequestKind::BlockStatus if !has_allocation => {
                return Err((Errno::Invalid, "no metadata context was negotiated"));
            }
            RequestKind::BlockStatus if self.len_bytes == 0 => {
                return Err((Errno::Invalid, "a block status of no bytes"));
            }
            RequestKind::Read if self.len_bytes > PAYLOAD_MAX_BYTES.into() => {
                return Err((Errno::Invalid, "a read above 32 MiB"));
            }
            _ => {}
        }
        let end = self.offset.checked_add(self.len_bytes);
        if end.is_none_or(|end| end > export.size_bytes) {
            let errno = match self.kind {
                RequestKind::Write | RequestKind::WriteZeroes => Errno::NoSpace,
                _ => Errno::Invalid,
            };
            return Err((errno, "beyond the end of the export"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn export(is_read_only: bool) -> ExportInfo {
        ExportInfo {
            size_bytes: 1 << 30,
            is_read_only,
            preferred_block_bytes: 4096,
            description: String::new(),
        }
    }

    fn compact(flags: u16, kind: u16, offset: u64, len: u32) -> Vec<u8> {
        header(COMPACT_MAGIC, flags, kind, offset, &len.to_be_bytes())
    }

    fn extended(flags: u16, kind: u16, offset: u64, len: u64) -> Vec<u8> {
        header(EXTENDED_MAGIC, flags, kind, offset, &len.to_be_bytes())
    }

    fn header(magic: u32, flags: u16, kind: u16, offset: u64, len: &[u8]) -> Vec<u8> {
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(77_u64.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(len);
        bytes
    }

    fn verdict(bytes: &[u8], style: Style, is_read_only: bool) -> Result<(), Errno> {
        let (request, _) = NbdRequest::parse(bytes, style).unwrap().unwrap();
        request
            .check(&export(is_read_only), style, true)
            .map_err(|(errno, _)| errno)
    }

    #[test]
    fn requests_are_judged_as_the_specification_says() {
        let simple = |flags, kind, offset, len| {
            verdict(&compact(flags, kind, offset, len), Style::Simple, false)
        };
        assert_eq!(simple(0, 0, 0, 4096), Ok(()));
        assert_eq!(simple(0, 0, 0, 0), Ok(()));
        assert_eq!(simple(FLAG_FUA, 0, 0, 4096), Ok(()));
        assert_eq!(simple(0, 0, 0, 32 << 20), Ok(()));
        assert_eq!(simple(0, 0, 0, (32 << 20) + 1), Err(Errno::Invalid));
        assert_eq!(simple(0, 0, (1 << 30) - 1, 2), Err(Errno::Invalid));
        assert_eq!(simple(0, 0, u64::MAX, 2), Err(Errno::Invalid));
        assert_eq!(simple(0, 1, 1 << 30, 1), Err(Errno::NoSpace));
        assert_eq!(simple(0, 6, 1 << 30, 1), Err(Errno::NoSpace));
        assert_eq!(simple(0, 4, 1 << 30, 1), Err(Errno::Invalid));
        assert_eq!(simple(FLAG_DF, 0, 0, 1), Err(Errno::Invalid));
        assert_eq!(simple(1 << 9, 1, 0, 1), Err(Errno::Invalid));
        assert_eq!(simple(0, 3, 0, 0), Ok(()));
        assert_eq!(simple(0, 3, 1, 0), Err(Errno::Invalid));
        assert_eq!(simple(0, 8, 0, 0), Err(Errno::Invalid));
        assert_eq!(simple(FLAG_NO_HOLE | FLAG_FAST_ZERO, 6, 0, 9), Ok(()));
        for kind in [1, 4, 6] {
            let bytes = compact(0, kind, 0, 1);
            let errno = Err(Errno::NotPermitted);
            assert_eq!(verdict(&bytes, Style::Simple, true), errno);
        }
        let df = compact(FLAG_DF, 0, 0, 1);
        assert_eq!(verdict(&df, Style::Structured, false), Ok(()));
        let zeroes = extended(0, 6, 0, 1 << 30);
        assert_eq!(verdict(&zeroes, Style::Extended, false), Ok(()));
        let bare = extended(0, 1, 0, 512);
        assert_eq!(verdict(&bare, Style::Extended, false), Err(Errno::Invalid));
        let strange = extended(FLAG_PAYLOAD_LEN, 7, 0, 12);
        assert_eq!(
            verdict(&strange, Style::Extended, false),
            Err(Errno::Invalid)
        );
    }

    #[test]
    fn payloads_follow_writes_alone_and_have_a_limit() {
        let payload = |bytes: &[u8], style| {
            NbdRequest::parse(bytes, style).map(|parsed| parsed.unwrap().0.payload_bytes)
        };
        assert_eq!(payload(&compact(0, 1, 0, 512), Style::Simple), Ok(512));
        assert_eq!(payload(&compact(0, 0, 0, 512), Style::Simple), Ok(0));
        let huge = compact(0, 1, 0, u32::MAX);
        assert_eq!(
            payload(&huge, Style::Simple),
            Err(Garbage::Payload(u32::MAX.into()))
        );
        let strange = extended(FLAG_PAYLOAD_LEN, 7, 0, 12);
        assert_eq!(payload(&strange, Style::Extended), Ok(12));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_garbage_or_too_few(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            has_magic in any::<bool>(),
            is_extended in any::<bool>(),
        ) {
            let style = if is_extended { Style::Extended } else { Style::Structured };
            let mut bytes = bytes;
            if has_magic && bytes.len() >= 4 {
                let magic = if is_extended { EXTENDED_MAGIC } else { COMPACT_MAGIC };
                bytes[..4].copy_from_slice(&magic.to_be_bytes());
            }
            if let Ok(Some((request, used))) = NbdRequest::parse(&bytes, style) {
                prop_assert!(used <= bytes.len());
                prop_assert!(request.payload_bytes <= PAYLOAD_MAX_BYTES);
                if request.check(&export(false), style, true).is_ok()
                    && request.kind != RequestKind::Disconnect
                {
                    prop_assert!(request.offset + request.len_bytes <= 1 << 30);
                }
            }
        }
    }
}
