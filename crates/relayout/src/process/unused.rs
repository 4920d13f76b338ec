//! Which part of its own stack a stopped thread does not use: what returned functions left there
//! would else look like the way back into them.
//!
//! Below the stack pointer and its red zone nothing of the running function lives (System V ABI for
//! x86-64, section 3.2.2). But "the stack" is not the mapping that holds the stack pointer: that
//! may be the heap, with the stacks of coroutines all over it, or several stacks that the kernel
//! made one mapping of. So only two stacks count, whose extent is known: the kernel's `[stack]` for
//! the thread that it made it for, and what glibc gave a thread, as it says itself. A thread that
//! is not on its own stack, because it runs a coroutine or a signal handler, uses all of it.

use std::ops::{Range, RangeInclusive};

use crate::machine::Registers;
use crate::process::inject::{RED_ZONE_BYTES, going_on};
use crate::process::maps::{self, Mapping, PAGE};
use crate::process::ptrace;
use crate::process::stop::Stopped;
use crate::{ProcessMemory, RelayoutError};

/// The unused part of each stopped thread's stack, in order of address.
pub(crate) fn parts(
    process: &Stopped<'_>,
    maps: &[Mapping],
) -> Result<Vec<Range<u64>>, RelayoutError> {
    let mut parts = Vec::new();
    for thread in &process.threads {
        let at = going_on(ptrace::registers(*thread)?);
        let end = at.rsp.saturating_sub(RED_ZONE_BYTES) & !7;
        let start = bottom(process.memory, *thread == process.pid, &at, maps);
        parts.extend(start.filter(|start| *start < end).map(|start| start..end));
    }
    parts.sort_unstable_by_key(|part| part.start);
    Ok(parts)
}

/// Where the stack that the thread was given begins, if it is on that.
fn bottom(memory: &ProcessMemory, is_first: bool, at: &Registers, maps: &[Mapping]) -> Option<u64> {
    let map = maps::at(maps, at.rsp)?;
    if is_first && map.path == "[stack]" {
        return Some(map.start);
    }
    if !map.contains(at.fs_base) {
        return None;
    }
    let count = usize::try_from(map.end - at.fs_base).map_or(PAGE, |count| count.min(PAGE));
    let mut bytes = vec![0; count];
    memory.read_into(at.fs_base, &mut bytes).ok()?;
    // A guard is the lowest part of it, and a mapping of its own.
    let guard = maps.iter().find(|below| below.end == map.start);
    let lowest = guard.map_or(map.start, |guard| guard.start);
    let stack = given(&bytes, lowest..=at.rsp, at.fs_base)?;
    Some(stack.max(map.start))
}

/// Where, within `starts`, the stack begins that glibc gave a thread: in the thread's descriptor,
/// which lies at the stack's very end (less than a page: `allocate_stack` in nptl/allocatestack.c),
/// stand its address and its size side by side (`stackblock` and `stackblock_size` of
/// `struct pthread` in nptl/descr.h), further in or less by version.
fn given(descriptor: &[u8], starts: RangeInclusive<u64>, descriptor_at: u64) -> Option<u64> {
    let words = descriptor.as_chunks().0;
    let ends = descriptor_at + 1..=descriptor_at + PAGE as u64;
    words.windows(2).find_map(|pair| {
        let (start, bytes) = (u64::from_le_bytes(pair[0]), u64::from_le_bytes(pair[1]));
        let end = start.checked_add(bytes)?;
        (starts.contains(&start) && *starts.end() < descriptor_at && ends.contains(&end))
            .then_some(start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_on_the_stack_that_its_descriptor_names_or_on_none() {
        let descriptor_at = 0x7f00_0080_0000 - 0x900;
        let start = 0x7f00_0000_0000_u64;
        // Neither a pointer into the stack beside a small number is an extent, nor one into the
        // descriptor behind a 0.
        let (inside, behind) = (start + 64, descriptor_at + 0x2e0);
        let words = [descriptor_at, inside, 8, 0, behind, start, 0x80_0000, 4096];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let given = |rsp| given(&bytes, start - 4096..=rsp, descriptor_at);
        assert_eq!(given(descriptor_at - 8), Some(start));
        assert_eq!(given(start), Some(start));
        for elsewhere in [start - 8, descriptor_at, 0x55_0000] {
            assert_eq!(given(elsewhere), None, "{elsewhere:#x}");
        }
        assert_eq!(
            super::given(&bytes[..48], start - 4096..=start, descriptor_at),
            None
        );
    }
}
