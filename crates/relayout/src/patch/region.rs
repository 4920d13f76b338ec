//! What the first bytes of a region of ours say, in the process itself: whose it is, and whether it
//! is complete. So it goes along with a fork, and is right after a kill of Slackline.

use crate::patch::manifest::{Bytes, Manifest, Region};
use crate::process::maps::Mapping;
use crate::{ProcessMemory, RelayoutError};

/// How every region begins; pid and start time of the process that it was first made for follow.
const MARK: &[u8; 16] = b"slackline cache\0";

/// Where the byte is that says that all code has been written.
const COMPLETE: u64 = 40;

/// What a region has before the caller's part.
pub const HEADER_BYTES: u64 = 64;

/// The mark of a process's regions.
pub(crate) fn mark(manifest: &Manifest) -> Bytes {
    let mut mark = MARK.to_vec();
    mark.extend(u64::from(manifest.pid).to_le_bytes());
    mark.extend(manifest.start_time.to_le_bytes());
    Bytes(mark)
}

/// Writes the header of a region that has just been mapped.
pub(crate) fn write_header(memory: &ProcessMemory, region: &Region) -> Result<(), RelayoutError> {
    memory.write(region.address, &region.mark.0)
}

/// Whether the region is mapped and carries our mark; what was announced and never mapped does not.
pub(crate) fn is_ours(memory: &ProcessMemory, maps: &[Mapping], region: &Region) -> bool {
    let covers = |map: &&Mapping| {
        map.start <= region.address && map.end >= region.end() && map.is_anonymous()
    };
    let Some(map) = maps.iter().find(covers) else {
        return false;
    };
    let mark = memory
        .read(region.address, region.mark.0.len())
        .unwrap_or_default();
    // Killed between mapping and marking it is executable, private, and all zero: nobody else has
    // such memory there.
    mark == region.mark.0 || (map.is_executable && mark.iter().all(|byte| *byte == 0))
}

/// Whether all that is to be in it is in it.
pub(crate) fn is_complete(memory: &ProcessMemory, region: &Region) -> bool {
    let byte = memory.read(region.address + COMPLETE, 1);
    byte.is_ok_and(|byte| byte == [1])
}

/// Says that all that is to be in it is in it.
pub(crate) fn set_complete(memory: &ProcessMemory, region: &Region) -> Result<(), RelayoutError> {
    memory.write(region.address + COMPLETE, &[1])
}
