//! What the first page of a region of ours says, in the process itself: whose it is, whether it is complete, and what the
//! unwinder of this very process was told. So it goes along with a fork, and is right after a kill of Slackline.

use crate::inject::call_stub;
use crate::manifest::{Bytes, Manifest, Region};
use crate::maps::Mapping;
use crate::{Memory, RelayoutError};

/// How every region begins; pid and start time of the process that it was first made for follow.
const MARK: &[u8; 16] = b"slackline cache\0";

/// Where the byte is that says that all code has been written.
const COMPLETE: u64 = 40;

/// Where the stub for calls is.
pub(crate) const CALL_STUB: u64 = 64;

/// Where the bytes begin that say what the unwinder was told, one for each set of frames.
const TOLD: u64 = 256;

/// Sets of frames in a region, at most: so many bytes there are for what the unwinder was told.
pub(crate) const FRAMES_MAX: usize = 768;

/// What a region has before the caller's part.
pub const HEADER_BYTES: u64 = TOLD + FRAMES_MAX as u64;

/// What the unwinder of a process knows of some frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Told {
    /// Nothing.
    No = 0,
    /// It was told, and did not forget.
    Yes = 1,
    /// It was being told, or made to forget: nobody knows how far that came.
    Perhaps = 2,
}

/// The mark of a process's regions.
pub(crate) fn mark(manifest: &Manifest) -> Bytes {
    let mut mark = MARK.to_vec();
    mark.extend(u64::from(manifest.pid).to_le_bytes());
    mark.extend(manifest.start_time.to_le_bytes());
    Bytes(mark)
}

/// Writes the header of a region that has just been mapped.
pub(crate) fn write_header(memory: &Memory, region: &Region) -> Result<(), RelayoutError> {
    memory.write(region.address, &region.mark.0)?;
    if region.is_code {
        memory.write(region.address + CALL_STUB, &call_stub())?;
    }
    Ok(())
}

/// Whether the region is mapped and carries our mark; what was announced and never mapped does not.
pub(crate) fn is_ours(memory: &Memory, maps: &[Mapping], region: &Region) -> bool {
    let covers = |map: &&Mapping| {
        map.start <= region.address
            && map.end >= region.address + region.bytes
            && map.is_anonymous()
    };
    let Some(map) = maps.iter().find(covers) else {
        return false;
    };
    let mark = memory
        .read(region.address, region.mark.0.len())
        .unwrap_or_default();
    // Killed between mapping and marking it is executable, private, and all zero: nobody else has such memory there.
    mark == region.mark.0 || (map.is_executable && mark.iter().all(|byte| *byte == 0))
}

/// Whether all that is to be in it is in it.
pub(crate) fn is_complete(memory: &Memory, region: &Region) -> bool {
    let byte = memory.read(region.address + COMPLETE, 1);
    byte.is_ok_and(|byte| byte == [1])
}

/// Says that all that is to be in it is in it.
pub(crate) fn set_complete(memory: &Memory, region: &Region) -> Result<(), RelayoutError> {
    memory.write(region.address + COMPLETE, &[1])
}

/// What this process's unwinder knows of the region's frames number `index`.
pub(crate) fn told(memory: &Memory, region: &Region, index: usize) -> Result<Told, RelayoutError> {
    let byte = memory.read(region.address + TOLD + index as u64, 1)?;
    Ok(match byte[..] {
        [0] => Told::No,
        [1] => Told::Yes,
        _ => Told::Perhaps,
    })
}

/// Puts it down.
pub(crate) fn set_told(
    memory: &Memory,
    region: &Region,
    index: usize,
    told: Told,
) -> Result<(), RelayoutError> {
    memory.write(region.address + TOLD + index as u64, &[told as u8])
}
