//! Giving back memory of ours in another process: only where no register, no stack and no other memory of it holds an
//! address in it.

use std::ops::Range;

use crate::inject;
use crate::manifest::{Patch, Region};
use crate::maps::Mapping;
use crate::process::Process;
use crate::region::is_ours;
use crate::scan::Search;
use crate::stop::{Stopped, stopped};
use crate::{RelayoutError, calls};

const SYS_MUNMAP: u64 = libc::SYS_munmap as u64;

/// Unmaps a region that nothing leads into; false where something may. True where the process does not have it.
pub(crate) fn unmap(
    process: &Process,
    region: &Region,
    stub: &Patch,
) -> Result<bool, RelayoutError> {
    let (pid, memory) = (process.pid, &process.memory);
    if !is_ours(memory, &process.maps()?, region) {
        return Ok(true);
    }
    let range = region.address..region.address + region.bytes;
    let range = std::slice::from_ref(&range);
    if !region.unwinding.is_empty() && is_reached(process, range)? {
        return Ok(false);
    }
    // The frames are the unwinder's data: only after it has let go of them may they go.
    for index in (0..region.unwinding.len()).rev() {
        if !calls::tell(process, region, index, false)? {
            return Ok(false);
        }
    }
    let maps = process.maps()?;
    // First the stacks, then the rest while the process runs, then the stacks again: what is nowhere the first time
    // can only have been in the rest, where words stay in their place.
    if region.is_code {
        if is_reached(process, range)? {
            return Ok(false);
        }
        let (guard, stacks) = guard_and_stacks(process)?;
        let mut search = Search::new(range);
        search.set_guard(guard);
        let found = search.everywhere(memory, pid, &maps, &stacks)?;
        if found != Some(false) {
            return Ok(false);
        }
    }
    let (address, bytes) = (region.address, region.bytes);
    let (result, _) = stopped(pid, memory, |process| {
        let is_reached = region.is_code && reaches(process, range, &maps)?;
        if process.is_group_stopped || is_reached {
            return Ok(None);
        }
        process.memory.write(stub.address, &stub.new.0)?;
        let arguments = [address, bytes, 0, 0, 0, 0];
        let mut done = Err(RelayoutError::Gone { pid });
        for thread in &process.threads {
            done = inject::syscall(process, *thread, stub.address, SYS_MUNMAP, arguments);
            // Its stack has no room: another's has.
            if !matches!(done, Err(RelayoutError::Memory { .. })) {
                break;
            }
        }
        // Where it failed the call may still be under way.
        let result = done?;
        process.memory.write(stub.address, &stub.old.0)?;
        Ok(Some(result))
    })?;
    Ok(result == Some(0))
}

/// The pointer guard, which all threads share, and each thread's stack pointer.
fn guard_and_stacks(process: &Process) -> Result<(Option<u64>, Vec<u64>), RelayoutError> {
    let (registers, _) = stopped(process.pid, &process.memory, |process| process.registers())?;
    let guard = registers.first().and_then(|registers| {
        let at = registers.fs_base + crate::scan::GUARD_OFFSET;
        process.memory.word(at).ok()
    });
    Ok((
        guard,
        registers.iter().map(|registers| registers.rsp).collect(),
    ))
}

fn is_reached(process: &Process, ranges: &[Range<u64>]) -> Result<bool, RelayoutError> {
    let maps = process.maps()?;
    stopped(process.pid, &process.memory, |process| {
        reaches(process, ranges, &maps)
    })
    .map(|(is_reached, _)| is_reached)
}

/// Whether a stopped process has an address in one of the ranges in a register or on a stack.
fn reaches(
    process: &Stopped<'_>,
    ranges: &[Range<u64>],
    maps: &[Mapping],
) -> Result<bool, RelayoutError> {
    let mut search = Search::new(ranges);
    for thread in &process.threads {
        if search.thread(process, *thread, maps)? {
            return Ok(true);
        }
    }
    Ok(false)
}
