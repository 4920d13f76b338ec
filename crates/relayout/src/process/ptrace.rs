//! ptrace(2), one request a function. All unsafe code that touches another process is here.
//!
//! Every call about a thread must come from the thread of ours that seized it.

use std::io;
use std::ptr;

use crate::RelayoutError;
use crate::machine::{PTRACE_GETREGS, PTRACE_SETREGS, Registers};

/// Size of the kernel's signal set.
const SIGSET_BYTES: usize = 8;

/// What `waitpid` says of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing yet.
    Nothing,
    /// Stopped by `interrupt`, or at its birth.
    Stopped,
    /// Job control has stopped the process.
    GroupStopped,
    /// At the entry or the exit of a system call.
    Syscall,
    /// A signal is about to be delivered.
    Signal(i32),
    /// The thread, or the process, has ended.
    Ended,
}

fn request(
    name: &'static str,
    request: libc::c_uint,
    thread: u32,
    address: *mut libc::c_void,
    data: *mut libc::c_void,
) -> Result<i64, RelayoutError> {
    let pid = libc::pid_t::try_from(thread).unwrap_or(0);
    // SAFETY: `address` and `data` are numbers, or point to what the request reads or writes, as
    // each caller says.
    let result = unsafe { libc::ptrace(request, pid, address, data) };
    if result == -1 {
        return Err(RelayoutError::Ptrace {
            thread,
            request: name,
            source: io::Error::last_os_error(),
        });
    }
    Ok(result)
}

fn number(value: usize) -> *mut libc::c_void {
    ptr::without_provenance_mut(value)
}

/// Becomes the thread's tracer without stopping it.
pub(crate) fn seize(thread: u32) -> Result<(), RelayoutError> {
    let options = usize::try_from(libc::PTRACE_O_TRACESYSGOOD).unwrap_or(0);
    request(
        "SEIZE",
        libc::PTRACE_SEIZE,
        thread,
        ptr::null_mut(),
        number(options),
    )
    .map(drop)
}

/// Asks a seized thread to stop.
pub(crate) fn interrupt(thread: u32) -> Result<(), RelayoutError> {
    request(
        "INTERRUPT",
        libc::PTRACE_INTERRUPT,
        thread,
        ptr::null_mut(),
        ptr::null_mut(),
    )
    .map(drop)
}

/// Lets a stopped thread run, untraced.
pub(crate) fn detach(thread: u32) -> Result<(), RelayoutError> {
    request(
        "DETACH",
        libc::PTRACE_DETACH,
        thread,
        ptr::null_mut(),
        ptr::null_mut(),
    )
    .map(drop)
}

/// Lets a stopped thread run, delivering `signal` (0: none).
pub(crate) fn resume(thread: u32, signal: i32) -> Result<(), RelayoutError> {
    let signal = usize::try_from(signal).unwrap_or(0);
    request(
        "CONT",
        libc::PTRACE_CONT,
        thread,
        ptr::null_mut(),
        number(signal),
    )
    .map(drop)
}

/// Lets a stopped thread run to the next entry or exit of a system call.
pub(crate) fn resume_to_syscall(thread: u32) -> Result<(), RelayoutError> {
    request(
        "SYSCALL",
        libc::PTRACE_SYSCALL,
        thread,
        ptr::null_mut(),
        ptr::null_mut(),
    )
    .map(drop)
}

/// The general registers of a stopped thread.
pub(crate) fn registers(thread: u32) -> Result<Registers, RelayoutError> {
    let mut registers = Registers::default();
    let data = (&raw mut registers).cast();
    // The kernel writes one user_regs_struct to `data`, and `registers` is one.
    request("GETREGS", PTRACE_GETREGS, thread, ptr::null_mut(), data)?;
    Ok(registers)
}

/// Sets all general registers at once.
pub(crate) fn set_registers(thread: u32, registers: &Registers) -> Result<(), RelayoutError> {
    let data = ptr::from_ref(registers).cast_mut().cast();
    // The kernel reads one user_regs_struct from `data`.
    request("SETREGS", PTRACE_SETREGS, thread, ptr::null_mut(), data).map(drop)
}

/// The signals that a stopped thread blocks (the lasting mask, where a system call has put a
/// temporary one in force).
pub(crate) fn signal_mask(thread: u32) -> Result<u64, RelayoutError> {
    let mut mask = 0_u64;
    let data = (&raw mut mask).cast();
    // The kernel writes SIGSET_BYTES to `data`, a u64.
    request(
        "GETSIGMASK",
        libc::PTRACE_GETSIGMASK,
        thread,
        number(SIGSET_BYTES),
        data,
    )?;
    Ok(mask)
}

/// Sets the signals that a stopped thread blocks.
pub(crate) fn set_signal_mask(thread: u32, mask: u64) -> Result<(), RelayoutError> {
    let mut mask = mask;
    let data = (&raw mut mask).cast();
    // The kernel reads SIGSET_BYTES from `data`, a u64.
    request(
        "SETSIGMASK",
        libc::PTRACE_SETSIGMASK,
        thread,
        number(SIGSET_BYTES),
        data,
    )
    .map(drop)
}

/// `struct ptrace_sud_config` (include/uapi/linux/ptrace.h), and the request that reads it, of
/// Linux 6.4.
#[repr(C)]
#[derive(Default)]
struct Dispatch {
    mode: u64,
    selector: u64,
    offset: u64,
    bytes: u64,
}
const GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;

/// Whether a stopped thread's system calls go to a handler of its own. An older kernel does not
/// say.
pub(crate) fn is_dispatched(thread: u32) -> bool {
    let name = "GET_SYSCALL_USER_DISPATCH_CONFIG";
    configuration(name, GET_SYSCALL_USER_DISPATCH_CONFIG, thread)
        .is_some_and(|dispatch: Dispatch| dispatch.mode != 0)
}

/// `struct ptrace_rseq_configuration` (include/uapi/linux/ptrace.h), and the request that reads it,
/// of Linux 5.13.
#[repr(C)]
#[derive(Default)]
struct Rseq {
    address: u64,
    bytes: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}
const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

/// Where a stopped thread has registered its `struct rseq`, if it has. An older kernel does not
/// say.
pub(crate) fn rseq(thread: u32) -> Option<u64> {
    let rseq: Rseq = configuration("GET_RSEQ_CONFIGURATION", GET_RSEQ_CONFIGURATION, thread)?;
    (rseq.address != 0).then_some(rseq.address)
}

/// What a request reads of a stopped thread that is told the size of what is to be written, one `T`
/// of numbers.
fn configuration<T: Default>(name: &'static str, ask: libc::c_uint, thread: u32) -> Option<T> {
    let mut read = T::default();
    let data = (&raw mut read).cast();
    // The kernel writes no more than the given size to `data`, which is that of one `T`.
    request(name, ask, thread, number(size_of::<T>()), data).ok()?;
    Some(read)
}

/// What a seized thread has come to; does not wait.
pub(crate) fn poll(thread: u32) -> io::Result<Wait> {
    let pid = libc::pid_t::try_from(thread).unwrap_or(0);
    let mut status = 0;
    // SAFETY: waitpid(2) asks for a pointer that is valid for writing one int; `status` is one.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL | libc::WNOHANG) };
    if waited == 0 {
        return Ok(Wait::Nothing);
    }
    if waited < 0 {
        let error = io::Error::last_os_error();
        // Reaped by somebody else: the thread is no tracee of ours any more.
        return if error.raw_os_error() == Some(libc::ECHILD) {
            Ok(Wait::Ended)
        } else {
            Err(error)
        };
    }
    if !libc::WIFSTOPPED(status) {
        return Ok(Wait::Ended);
    }
    let signal = libc::WSTOPSIG(status);
    Ok(match (status >> 16, signal) {
        (libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => Wait::Stopped,
        (libc::PTRACE_EVENT_STOP, _) => Wait::GroupStopped,
        (_, signal) if signal == libc::SIGTRAP | 0x80 => Wait::Syscall,
        (_, signal) => Wait::Signal(signal),
    })
}
