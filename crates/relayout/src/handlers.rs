//! Where the threads of a stopped process go on: each where it stopped, and where the signal handlers that it is in return to.

use crate::inject::going_on;
use crate::stop::Stopped;
use crate::{RelayoutError, ptrace};

/// `gs` and `fs` 0, `cs` and `ss` those of 64-bit user code: in what the kernel lays on a stack for a signal handler, they
/// stand two words behind the instruction pointer and three behind the stack pointer (`struct sigcontext_64` in
/// arch/x86/include/uapi/asm/sigcontext.h).
const SEGMENTS: u64 = 0x002b_0000_0000_0033;

/// So much of each stack is searched for it. A handler that is further in is not seen.
const SEARCHED_BYTES: usize = 64 << 10;

/// A handler may run on a stack of its own, and be interrupted by one that does not.
const STACKS_MAX: usize = 4;

/// Every thread with each address that it may go on at. What was left on a stack by handlers that have returned may be among
/// them.
pub(crate) fn continuations(process: &Stopped<'_>) -> Result<Vec<(u32, u64)>, RelayoutError> {
    let mut found = Vec::new();
    let mut bytes = vec![0; SEARCHED_BYTES];
    for thread in &process.threads {
        let now = going_on(ptrace::registers(*thread)?);
        found.push((*thread, now.rip));
        let mut stacks = vec![now.rsp];
        let mut done = 0;
        while let Some(stack) = stacks.get(done).copied().filter(|_| done < STACKS_MAX) {
            done += 1;
            let count = process.memory.read_some(stack, &mut bytes);
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
    let words = |at: usize| u64::from_le_bytes(stack[at..at + 8].try_into().unwrap_or_default());
    let last = stack.len().saturating_sub(31);
    (0..last)
        .step_by(8)
        .filter(move |at| words(at + 24) == SEGMENTS)
        .map(move |at| (words(at), words(at + 8)))
}
