//! Giving back memory of ours in another process: only where no register, no stack and no other
//! memory of it holds an address in it.

use std::ops::Range;
use std::thread::sleep;
use std::time::Duration;

use crate::error::is_of_thread;
use crate::machine::NR_MUNMAP;
use crate::patch::calls::take_out_stub;
use crate::patch::chain::{Chain, unwinder_in};
use crate::patch::manifest::{AppliedPatch, Manifest, Region};
use crate::patch::region::is_ours;
use crate::patch::scan::PointerScan;
use crate::process::Process;
use crate::process::inject;
use crate::process::maps::Mapping;
use crate::process::stop::{declined, refusal, stopped};
use crate::{Declined, RelayoutError};

/// A thread that looks for a frame in the region is through after some instructions; so often it is
/// looked at again.
const TRIES: usize = 3;
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// Unmaps a region that nothing leads into; false where something may. True where the process does
/// not have it. The process's unwinder is led past it by then.
pub(crate) fn unmap(
    process: &Process,
    manifest: &Manifest,
    region: &Region,
    stub: &AppliedPatch,
) -> Result<bool, RelayoutError> {
    let (pid, memory) = (process.pid, &process.memory);
    let maps = process.maps()?;
    if !is_ours(memory, &maps, region) {
        return Ok(true);
    }
    let range = region.address..region.end();
    let range = std::slice::from_ref(&range);
    // First the stacks, then the rest while the process runs, then the stacks again: what is
    // nowhere the first time can only have been in the rest, where words stay in their place.
    if region.is_code {
        let Some(search) = past_threads(process, range, &maps)? else {
            return Ok(false);
        };
        // Those lead there until the last moment.
        let slots = unwinder_in(&maps, manifest).map_or(&[][..], |unwinder| &unwinder.slots);
        let found = search.everywhere(memory, pid, &maps, slots)?;
        if found != Some(false) {
            return Ok(false);
        }
    }
    let (address, bytes) = (region.address, region.bytes);
    let chain = Chain::past(process, &maps, manifest, region)?;
    take_out_stub(process, stub)?;
    let (result, _) = stopped(pid, memory, |process| {
        let is_reached = region.is_code && PointerScan::new(range).threads(process, &maps)?;
        if process.is_group_stopped || is_reached {
            return Ok(None);
        }
        let mut threads = process.threads.iter();
        let asked = threads.position(|thread| refusal(pid, *thread).is_none());
        let Some(first) = asked else {
            let reasons = process.threads.iter().map(|thread| refusal(pid, *thread));
            let reason = reasons.flatten().next().unwrap_or(Declined::Seccomp);
            return Err(declined(pid, reason));
        };
        chain.lay(process.memory)?;
        process.memory.write(stub.address, &stub.new.0)?;
        let arguments = [address, bytes, 0, 0, 0, 0];
        let mut done = Err(RelayoutError::Gone { pid });
        for thread in &process.threads[first..] {
            done = inject::syscall(process, *thread, stub.address, NR_MUNMAP, arguments);
            if !done.as_ref().is_err_and(is_of_thread) {
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

/// A search that found no address in one of the ranges in a register or on a stack that a thread is
/// on, and knows what the threads left unused at that moment.
fn past_threads<'a>(
    process: &Process,
    ranges: &'a [Range<u64>],
    maps: &[Mapping],
) -> Result<Option<PointerScan<'a>>, RelayoutError> {
    for attempt in 0..TRIES {
        if attempt > 0 {
            sleep(BETWEEN_TRIES);
        }
        let mut search = PointerScan::new(ranges);
        let (is_reached, _) = stopped(process.pid, &process.memory, |process| {
            search.note_unused(process, maps)?;
            search.threads(process, maps)
        })?;
        if !is_reached {
            return Ok(Some(search));
        }
    }
    Ok(None)
}
