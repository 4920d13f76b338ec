//! Making a stopped thread do a system call.
//!
//! What it runs is a *stub* in its own text that does the work, puts the signal mask back, pops all
//! registers and returns by `iretq`, which sets instruction pointer, flags and stack pointer in one
//! instruction. The values to pop lie on the thread's own stack, below the red zone. So a thread
//! that is let go at any moment, because we were killed, ends where it was by itself. All signals
//! are blocked meanwhile: a handler must not run while the other threads stand still.

use std::time::{Duration, Instant};

use crate::machine::{NR_RESTART_SYSCALL, Registers};
use crate::process::ptrace::{self, Wait};
use crate::process::stop::{Stopped, declined, not_stopping, refusal, until_next_look};
use crate::{ProcessMemory, RelayoutError};

/// The bytes below the stack pointer that belong to the running function (System V ABI for x86-64,
/// section 3.2.2).
pub(crate) const RED_ZONE_BYTES: u64 = 128;

/// How long an injected call may take; an `mmap` takes microseconds.
const CALL_LIMIT: Duration = Duration::from_secs(2);

/// The room that is looked for: the stub's, rounded up.
pub(crate) const STUB_BYTES: usize = 64;

/// `cs` of 64-bit user code (`__USER_CS` in arch/x86/include/asm/segment.h).
const CODE_SEGMENT: u64 = 0x33;

/// From the result of the work to where the thread was: put the mask back, pop everything. On entry
/// `rsp` is the frame.
const RETURN: &[u8] = &[
    0xbf, 0x02, 0x00, 0x00, 0x00, // mov edi, SIG_SETMASK
    0x48, 0x89, 0xe6, // mov rsi, rsp
    0x31, 0xd2, // xor edx, edx
    0x41, 0xba, 0x08, 0x00, 0x00, 0x00, // mov r10d, 8
    0xb8, 0x0e, 0x00, 0x00, 0x00, // mov eax, __NR_rt_sigprocmask
    0x0f, 0x05, // syscall
    0x41, 0x5f, // pop r15 (the mask)
    0x41, 0x5f, // pop r15
    0x41, 0x5e, // pop r14
    0x41, 0x5d, // pop r13
    0x41, 0x5c, // pop r12
    0x5d, // pop rbp
    0x5b, // pop rbx
    0x41, 0x5b, // pop r11
    0x41, 0x5a, // pop r10
    0x41, 0x59, // pop r9
    0x41, 0x58, // pop r8
    0x58, // pop rax
    0x59, // pop rcx
    0x5a, // pop rdx
    0x5e, // pop rsi
    0x5f, // pop rdi
    0x48, 0xcf, // iretq
];

/// Where in [`RETURN`] the instruction behind its system call is.
const MASK_IS_BACK: u64 = 23;

/// `syscall`.
const SYSCALL: &[u8] = &[0x0f, 0x05];

/// The stub for system calls.
pub(crate) fn syscall_stub() -> Vec<u8> {
    [SYSCALL, RETURN].concat()
}

/// Errors of a system call that was interrupted and is to be done again (include/linux/errno.h):
/// ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, and ERESTART_RESTARTBLOCK, which goes on by
/// `restart_syscall`.
const RESTART: [i64; 3] = [-512, -513, -514];
const RESTART_BLOCK: i64 = -516;

/// The registers with which a stopped thread will go on in user mode: what the kernel makes of an
/// interrupted system call when no handler runs (`arch_do_signal_or_restart` in
/// arch/x86/kernel/signal.c).
pub(crate) fn going_on(mut registers: Registers) -> Registers {
    let (call, result) = (
        registers.orig_rax.cast_signed(),
        registers.rax.cast_signed(),
    );
    if call >= 0 {
        if RESTART.contains(&result) {
            registers.rax = registers.orig_rax;
            registers.rip = registers.rip.wrapping_sub(2);
        } else if result == RESTART_BLOCK {
            registers.rax = NR_RESTART_SYSCALL;
            registers.rip = registers.rip.wrapping_sub(2);
        }
    }
    registers.orig_rax = u64::MAX;
    registers
}

/// Where a stopped thread goes on that is at `rip` in the middle of a restartable sequence: the
/// sequence is over, as at any preemption (`rseq_ip_fixup` in kernel/rseq.c). The kernel would see
/// to it itself, but not once it finds the thread in a stub.
fn aborted(memory: &ProcessMemory, thread: u32, rip: u64) -> Option<u64> {
    // rseq_cs in struct rseq; start_ip, post_commit_offset and abort_ip in struct rseq_cs
    // (include/uapi/linux/rseq.h).
    let sequence = memory.word(ptrace::rseq(thread)?.checked_add(8)?).ok()?;
    if sequence == 0 {
        return None;
    }
    let word = |at: u64| memory.word(sequence.checked_add(at)?).ok();
    let (start, bytes, abort) = (word(8)?, word(16)?, word(24)?);
    (rip.wrapping_sub(start) < bytes).then_some(abort)
}

/// A system call by a stopped thread, through a stub at `stub`. The kernel's result, negative for
/// an error.
///
/// # Errors
/// [`RelayoutError::Ptrace`], [`RelayoutError::Gone`], [`RelayoutError::Memory`] where its stack
/// has no room, [`Declined::Seccomp`](crate::Declined::Seccomp) or
/// [`Declined::Dispatched`](crate::Declined::Dispatched) where it must not do one: it may end the
/// process.
pub(crate) fn syscall(
    process: &Stopped<'_>,
    thread: u32,
    stub: u64,
    number: u64,
    arguments: [u64; 6],
) -> Result<i64, RelayoutError> {
    if let Some(reason) = refusal(process.pid, thread) {
        return Err(declined(process.pid, reason));
    }
    let (back, frame) = begin(process.memory, thread, stub, number, arguments)?;
    let result = finish(process, thread, stub, &back)?;
    // It is back. One that is not still needs its frame.
    frame.take_up(process.memory);
    Ok(result)
}

/// What the stub pops, below the red zone of a stack, and what was there: other data where a stack
/// is small and no handler is ever run on it.
#[derive(Debug)]
pub(crate) struct Frame {
    address: u64,
    words: Vec<u8>,
    before: Vec<u8>,
}

impl Frame {
    fn lay(memory: &ProcessMemory, address: u64, words: Vec<u8>) -> Result<Self, RelayoutError> {
        let before = memory.read(address, words.len())?;
        memory.write(address, &words)?;
        Ok(Self {
            address,
            words,
            before,
        })
    }

    /// Puts back what was there, but for what others have written there meanwhile.
    fn take_up(self, memory: &ProcessMemory) {
        let Ok(mut now) = memory.read(self.address, self.words.len()) else {
            return;
        };
        let words = self.words.chunks_exact(8).zip(self.before.chunks_exact(8));
        for (now, (word, before)) in now.chunks_exact_mut(8).zip(words) {
            if now == word {
                now.copy_from_slice(before);
            }
        }
        // It could be read.
        let _ = memory.write(self.address, &now);
    }
}

/// Sends a stopped thread into the stub. The registers with which it goes on afterwards, by itself
/// if need be, and where it has them from.
pub(crate) fn begin(
    memory: &ProcessMemory,
    thread: u32,
    stub: u64,
    number: u64,
    arguments: [u64; 6],
) -> Result<(Registers, Frame), RelayoutError> {
    let (back, frame) = lay_frame(memory, thread)?;
    let mut there = back;
    (there.rip, there.rsp, there.rax) = (stub, frame.address, number);
    [
        there.rdi, there.rsi, there.rdx, there.r10, there.r8, there.r9,
    ] = arguments;
    // In this order: killed in between, the thread runs the stub with its own mask.
    if let Err(error) = ptrace::set_registers(thread, &there) {
        frame.take_up(memory);
        return Err(error);
    }
    ptrace::set_signal_mask(thread, u64::MAX)?;
    Ok((back, frame))
}

/// Writes onto the thread's stack what the stub pops. The registers it goes on with, and the frame.
fn lay_frame(memory: &ProcessMemory, thread: u32) -> Result<(Registers, Frame), RelayoutError> {
    let mut back = going_on(ptrace::registers(thread)?);
    back.rip = aborted(memory, thread, back.rip).unwrap_or(back.rip);
    if back.cs != CODE_SEGMENT {
        return Err(RelayoutError::Ptrace {
            thread,
            request: "GETREGS",
            source: std::io::Error::other("the thread is not in 64-bit user code"),
        });
    }
    let mask = ptrace::signal_mask(thread)?;
    let words = [
        mask,
        back.r15,
        back.r14,
        back.r13,
        back.r12,
        back.rbp,
        back.rbx,
        back.r11,
        back.r10,
        back.r9,
        back.r8,
        back.rax,
        back.rcx,
        back.rdx,
        back.rsi,
        back.rdi,
        back.rip,
        back.cs,
        back.eflags,
        back.rsp,
        back.ss,
    ];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let address = (back.rsp - RED_ZONE_BYTES - bytes.len() as u64) & !15;
    Ok((back, Frame::lay(memory, address, bytes)?))
}

/// Lets the thread run through the stub until its mask is back, and then from `back`. The result of
/// the stub's first system call.
fn finish(
    process: &Stopped<'_>,
    thread: u32,
    stub: u64,
    back: &Registers,
) -> Result<i64, RelayoutError> {
    let result_at = stub + SYSCALL.len() as u64;
    let end = result_at + MASK_IS_BACK;
    ptrace::resume_to_syscall(thread)?;
    let since = Instant::now();
    let mut result = 0;
    loop {
        let wait = ptrace::poll(thread).map_err(|source| RelayoutError::Ptrace {
            thread,
            request: "wait",
            source,
        })?;
        match wait {
            Wait::Nothing if since.elapsed() > CALL_LIMIT => {
                // It will come back by itself: when our thread ends, it is let go.
                return Err(not_stopping(process.pid, thread, CALL_LIMIT, 'R'));
            }
            Wait::Nothing => until_next_look(since),
            Wait::Ended => return Err(RelayoutError::Gone { pid: process.pid }),
            Wait::Syscall => {
                let now = ptrace::registers(thread)?;
                // At its entry a system call's result is ENOSYS (arch/x86/entry/entry_64.S).
                let is_exit = now.rax.cast_signed() != -i64::from(libc::ENOSYS);
                if now.rip == result_at && is_exit {
                    result = now.rax.cast_signed();
                }
                if now.rip == end && is_exit {
                    ptrace::set_registers(thread, back)?;
                    return Ok(result);
                }
                ptrace::resume_to_syscall(thread)?;
            }
            Wait::Stopped | Wait::GroupStopped => ptrace::resume_to_syscall(thread)?,
            // Only what cannot be blocked.
            Wait::Signal(signal) => ptrace::resume(thread, signal)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_system_call_is_done_again_and_a_finished_one_is_not() {
        let mut at = Registers::default();
        (at.orig_rax, at.rip, at.rax) = (7, 100, (-512_i64).cast_unsigned());
        let back = going_on(at);
        assert_eq!((back.rip, back.rax, back.orig_rax), (98, 7, u64::MAX));
        at.rax = (-516_i64).cast_unsigned();
        assert_eq!(going_on(at).rax, NR_RESTART_SYSCALL);
        at.rax = (-4_i64).cast_unsigned();
        assert_eq!((going_on(at).rip, going_on(at).rax), (100, at.rax));
        (at.orig_rax, at.rax) = (u64::MAX, (-512_i64).cast_unsigned());
        assert_eq!(going_on(at).rip, 100);
    }

    #[test]
    fn the_stub_fits_and_the_mark_is_behind_the_system_call() {
        let bytes = syscall_stub().len();
        assert!(bytes <= STUB_BYTES, "{bytes}");
        let mark = usize::try_from(MASK_IS_BACK).unwrap();
        assert_eq!(RETURN[mark - 2..mark], *SYSCALL);
    }
}
