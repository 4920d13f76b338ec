//! Where in a process's own text there is room for the stub of the first injected system call:
//! between the end of an executable segment and the end of its last page, which is mapped and
//! belongs to nobody.

use crate::process::inject::STUB_BYTES;
use crate::process::maps::Mapping;
use crate::{ProcessMemory, RelayoutError};

const PT_LOAD: u32 = 1;
const PF_X: u32 = 1;

/// The address of [`STUB_BYTES`] such bytes in some object; `None` where no object has them.
pub(crate) fn find(memory: &ProcessMemory, maps: &[Mapping]) -> Result<Option<u64>, RelayoutError> {
    for head in maps {
        if head.offset != 0 || head.inode == 0 || !head.is_readable {
            continue;
        }
        let Ok(header) = memory.read(head.start, 64) else {
            continue;
        };
        if !header.starts_with(b"\x7fELF") {
            continue;
        }
        for (vaddr, file_bytes) in executable_segments(memory, head.start, &header)? {
            // The segment's mapping, by its place relative to the header's.
            let ends = maps.iter().filter(|map| {
                map.inode == head.inode && map.is_executable && map.path == head.path
            });
            for map in ends {
                // A position-independent object's first segment begins at 0, a fixed executable's
                // at its address.
                let end = [head.start + vaddr + file_bytes, vaddr + file_bytes];
                if let Some(end) = end.into_iter().find(|end| map.contains(end - 1)) {
                    let at = end.next_multiple_of(16);
                    if map.end >= at + STUB_BYTES as u64 {
                        return Ok(Some(at));
                    }
                }
            }
        }
    }
    Ok(None)
}

/// Address and length of the executable segments, from the program headers in memory.
fn executable_segments(
    memory: &ProcessMemory,
    base: u64,
    header: &[u8],
) -> Result<Vec<(u64, u64)>, RelayoutError> {
    let offset = number(header, 32, 8);
    let (size, count) = (number(header, 54, 2), number(header, 56, 2));
    if !(56..=256).contains(&size) || count > 64 {
        return Ok(Vec::new());
    }
    let bytes = memory.read(base + offset, usize::try_from(size * count).unwrap_or(0))?;
    let segments = bytes.chunks_exact(usize::try_from(size).unwrap_or(56));
    Ok(segments
        .filter(|entry| {
            number(entry, 0, 4) == u64::from(PT_LOAD) && number(entry, 4, 4) & u64::from(PF_X) != 0
        })
        .map(|entry| (number(entry, 16, 8), number(entry, 32, 8)))
        .filter(|(_, file_bytes)| *file_bytes > 0)
        .collect())
}

fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    let mut number = [0; 8];
    if let Some(field) = bytes.get(at..at + size) {
        number[..size].copy_from_slice(field);
    }
    u64::from_le_bytes(number)
}
