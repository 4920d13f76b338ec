//! Commands of I/O queues, as requests of the server.

use super::command::{Sgl, Status, SubmissionEntry};
use super::{BLOCK_BYTES, number, number32};
use crate::nbd::request::{FLAG_FUA, FLAG_NO_HOLE, NbdRequest, RequestKind};
use crate::nbd::{Errno, ExportInfo};

const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const WRITE_ZEROES: u8 = 0x08;
const DATASET: u8 = 0x09;

/// Ranges of Dataset Management at most.
const RANGES_MAX: usize = 256;
/// Bytes of a range of Dataset Management.
const RANGE_BYTES: usize = 16;
/// Force Unit Access, in the upper half of command dword 12.
const FORCE_ACCESS: u16 = 1 << 14;
/// Write Zeroes may deallocate.
const DEALLOCATE: u16 = 1 << 9;

/// What a command asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// One request.
    Request(NbdRequest),
    /// Ranges to deallocate, or hints that nobody needs. The ranges are the data.
    Ranges {
        /// How many.
        count: usize,
        /// Whether they are to be deallocated.
        deallocates: bool,
    },
}

impl Io {
    /// Bytes of data that the host sends. For ranges the host may send more than it names: Linux
    /// always sends room for all.
    pub fn payload_bytes(&self, entry: &SubmissionEntry) -> usize {
        match self {
            Self::Request(request) => request.payload_len(),
            Self::Ranges { count, .. } => {
                let sent = match entry.sgl() {
                    Sgl::Transport { len_bytes } | Sgl::Capsule { len_bytes, .. } => len_bytes,
                    Sgl::Other => 0,
                };
                let most = RANGES_MAX * RANGE_BYTES;
                (count * RANGE_BYTES).max(most.min(sent as usize))
            }
        }
    }
}

fn request(kind: RequestKind, flags: u16, offset: u64, len_bytes: u64) -> NbdRequest {
    let payload = if kind == RequestKind::Write {
        len_bytes
    } else {
        0
    };
    NbdRequest {
        kind,
        flags,
        cookie: 0,
        offset,
        len_bytes,
        payload_bytes: u32::try_from(payload).unwrap_or(u32::MAX),
    }
}

/// The bytes of blocks, which lie within the namespace.
fn extent(first: u64, blocks: u64, info: &ExportInfo) -> Result<(u64, u64), Status> {
    let end = first.checked_add(blocks).ok_or(Status::OUT_OF_RANGE)?;
    if end > info.size_bytes / BLOCK_BYTES {
        return Err(Status::OUT_OF_RANGE);
    }
    Ok((first * BLOCK_BYTES, blocks * BLOCK_BYTES))
}

/// Reads a command. Writes are durable if the host asks for that, or has turned the cache off.
///
/// # Errors
/// The status to answer with.
pub fn parse(
    entry: &SubmissionEntry,
    info: &ExportInfo,
    transfer_bytes: usize,
    is_write_through: bool,
) -> Result<Io, Status> {
    if entry.has_wrong_flags() {
        return Err(Status::INVALID_FIELD);
    }
    let opcode = entry.opcode();
    if info.is_read_only && matches!(opcode, WRITE | WRITE_ZEROES | DATASET) {
        return Err(Status::WRITE_PROTECTED);
    }
    let control = entry.u16_at(50);
    let durable = if control & FORCE_ACCESS != 0 || is_write_through {
        FLAG_FUA
    } else {
        0
    };
    let whole = || extent(entry.u64_at(40), u64::from(entry.u16_at(48)) + 1, info);
    match opcode {
        FLUSH => Ok(Io::Request(request(RequestKind::Flush, 0, 0, 0))),
        READ | WRITE => {
            let (offset, len_bytes) = whole()?;
            if len_bytes > transfer_bytes as u64 {
                return Err(Status::INVALID_FIELD);
            }
            Ok(Io::Request(if opcode == READ {
                request(RequestKind::Read, 0, offset, len_bytes)
            } else {
                request(RequestKind::Write, durable, offset, len_bytes)
            }))
        }
        WRITE_ZEROES => {
            let (offset, len_bytes) = whole()?;
            let keeps = if control & DEALLOCATE == 0 {
                FLAG_NO_HOLE
            } else {
                0
            };
            let flags = durable | keeps;
            Ok(Io::Request(request(
                RequestKind::WriteZeroes,
                flags,
                offset,
                len_bytes,
            )))
        }
        DATASET => Ok(Io::Ranges {
            count: usize::from(entry.0[40]) + 1,
            deallocates: entry.dword(11) & 1 << 2 != 0,
        }),
        _ => Err(Status::INVALID_OPCODE),
    }
}

/// The requests for ranges to deallocate.
///
/// # Errors
/// A range lies beyond the end: none is deallocated.
pub fn ranges(data: &[u8], count: usize, info: &ExportInfo) -> Result<Vec<NbdRequest>, Status> {
    let mut requests = Vec::new();
    for range in data.chunks_exact(RANGE_BYTES).take(count) {
        let blocks = number32(range, 4);
        let (offset, len_bytes) = extent(number(range, 8, 8), blocks.into(), info)?;
        if len_bytes > 0 {
            requests.push(request(RequestKind::Trim, 0, offset, len_bytes));
        }
    }
    Ok(requests)
}

/// The status for a request that failed.
pub fn status(errno: Errno, kind: RequestKind) -> Status {
    match (errno, kind) {
        (Errno::NoSpace, _) => Status::CAPACITY,
        (Errno::NotPermitted, _) => Status::WRITE_PROTECTED,
        (Errno::Invalid | Errno::NotSupported, _) => Status::INVALID_FIELD,
        (Errno::NoMemory | Errno::Shutdown, _) => Status::INTERNAL,
        (Errno::Io, RequestKind::Read) => Status::READ_ERROR,
        (Errno::Io, _) => Status::WRITE_FAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::super::pdu::ENTRY_BYTES;
    use super::*;

    fn info(is_read_only: bool) -> ExportInfo {
        ExportInfo {
            // 2,048 blocks, and half of another.
            size_bytes: (1 << 20) + 256,
            is_read_only,
            preferred_block_bytes: 4096,
            description: String::new(),
        }
    }

    fn entry(opcode: u8, first: u64, blocks: u16, control: u16) -> SubmissionEntry {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[0] = opcode;
        bytes[1] = 0x40;
        bytes[40..48].copy_from_slice(&first.to_le_bytes());
        bytes[48..50].copy_from_slice(&(blocks - 1).to_le_bytes());
        bytes[50..52].copy_from_slice(&control.to_le_bytes());
        SubmissionEntry(bytes)
    }

    fn parsed(entry: &SubmissionEntry) -> Result<Io, Status> {
        parse(entry, &info(false), 64 << 10, false)
    }

    #[test]
    fn commands_become_requests() {
        let read = parsed(&entry(READ, 8, 8, 0));
        assert_eq!(
            read,
            Ok(Io::Request(request(RequestKind::Read, 0, 4096, 4096)))
        );
        let write = parsed(&entry(WRITE, 0, 1, FORCE_ACCESS)).unwrap();
        let expected = request(RequestKind::Write, FLAG_FUA, 0, 512);
        assert_eq!(write, Io::Request(expected));
        assert_eq!(write.payload_bytes(&entry(WRITE, 0, 1, 0)), 512);
        let through = parse(&entry(WRITE, 0, 1, 0), &info(false), 64 << 10, true);
        assert_eq!(through, Ok(Io::Request(expected)));
        let zeroes = parsed(&entry(WRITE_ZEROES, 0, 2048, DEALLOCATE));
        let expected = request(RequestKind::WriteZeroes, 0, 0, 1 << 20);
        assert_eq!(zeroes, Ok(Io::Request(expected)));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (entry, expected) in [
            (entry(READ, 2048, 1, 0), Status::OUT_OF_RANGE),
            (entry(WRITE, 2041, 8, 0), Status::OUT_OF_RANGE),
            (entry(READ, u64::MAX, 2, 0), Status::OUT_OF_RANGE),
            (
                entry(WRITE_ZEROES, u64::MAX - 1, 2, 0),
                Status::OUT_OF_RANGE,
            ),
            (entry(READ, 0, 129, 0), Status::INVALID_FIELD),
            (entry(0x05, 0, 1, 0), Status::INVALID_OPCODE),
            (entry(0x7f, 0, 1, 0), Status::INVALID_OPCODE),
        ] {
            assert_eq!(parsed(&entry), Err(expected), "{entry:?}");
        }
        for opcode in [WRITE, WRITE_ZEROES, DATASET] {
            let verdict = parse(&entry(opcode, 0, 1, 0), &info(true), 64 << 10, false);
            assert_eq!(verdict, Err(Status::WRITE_PROTECTED));
        }
        // Fused operations, and addresses of pages instead of SGLs.
        for flags in [0x41, 0x42, 0x00, 0x80] {
            let mut entry = entry(READ, 0, 1, 0);
            entry.0[1] = flags;
            assert_eq!(parsed(&entry), Err(Status::INVALID_FIELD));
        }
    }

    #[test]
    fn all_ranges_lie_within_or_none_is_deallocated() {
        let range = |first: u64, blocks: u32| {
            let mut bytes = vec![0; 4];
            bytes.extend(blocks.to_le_bytes());
            bytes.extend(first.to_le_bytes());
            bytes
        };
        let good = [range(0, 8), range(5, 0), range(2040, 8)].concat();
        assert_eq!(ranges(&good, 3, &info(false)).unwrap().len(), 2);
        assert_eq!(ranges(&good, 1, &info(false)).unwrap().len(), 1);
        let bad = [range(0, 8), range(2040, 9)].concat();
        assert_eq!(ranges(&bad, 2, &info(false)), Err(Status::OUT_OF_RANGE));
    }
}
