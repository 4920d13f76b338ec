//! Where the threads of a stopped process go on: each where it stopped, and where the signal
//! handlers that it is in return to.

use crate::RelayoutError;
use crate::process::inject::going_on;
use crate::process::maps::{self, Mapping, PAGE};
use crate::process::ptrace;
use crate::process::stop::Stopped;

/// `gs` and `fs` 0, `cs` and `ss` those of 64-bit user code: in what the kernel lays on a stack for
/// a signal handler, they stand two words behind the instruction pointer and three behind the stack
/// pointer (`struct sigcontext_64` in arch/x86/include/uapi/asm/sigcontext.h).
const SEGMENTS: u64 = 0x002b_0000_0000_0033;

/// So much of each stack is searched for it, while all threads stand still. A handler that is
/// further in is not seen.
const SEARCHED_BYTES: usize = 32 << 10;

/// A handler may run on a stack of its own, and be interrupted by one that does not.
const STACKS_MAX: usize = 4;

/// Every thread with each address that it may go on at. What was left on a stack by handlers that
/// have returned may be among them.
pub(crate) fn continuations(
    process: &Stopped<'_>,
    maps: &[Mapping],
) -> Result<Vec<(u32, u64)>, RelayoutError> {
    let mut found = Vec::new();
    let mut bytes = vec![0; SEARCHED_BYTES];
    for thread in &process.threads {
        let now = going_on(ptrace::registers(*thread)?);
        found.push((*thread, now.rip));
        let mut stacks = vec![now.rsp];
        let mut done = 0;
        while let Some(stack) = stacks.get(done).copied().filter(|_| done < STACKS_MAX) {
            done += 1;
            // A thread that began since its memory was looked up has little on its stack.
            let end = maps::at(maps, stack).map_or(stack + PAGE as u64, |map| map.end);
            let count = usize::try_from(end - stack)
                .map_or(SEARCHED_BYTES, |count| count.min(SEARCHED_BYTES));
            let count = process.memory.read_some(stack, &mut bytes[..count]);
            let searched = stack..stack + count as u64;
            for (rsp, rip) in interrupted(&bytes[..count]) {
                found.push((*thread, rip));
                if !searched.contains(&rsp) {
                    stacks.push(rsp);
                }
            }
        }
    }
    Ok(found)
}

/// The stack and instruction pointers of code that a signal interrupted, as they lie on a stack.
fn interrupted(stack: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    let segments = stack.chunks_exact(8).enumerate().skip(3);
    segments
        .filter(move |(_, bytes)| word(bytes) == SEGMENTS)
        .map(move |(index, _)| {
            let at = 8 * (index - 3);
            (word(&stack[at..at + 8]), word(&stack[at + 8..at + 16]))
        })
}
