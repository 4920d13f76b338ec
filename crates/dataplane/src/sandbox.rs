//! What a server on the runtime gives up after its start: capabilities, and system calls that it
//! does not need.

use std::collections::BTreeMap;

use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Capabilities cannot be dropped.
    #[error("capabilities cannot be dropped: {0}")]
    Capabilities(std::io::Error),
    /// The filter cannot be installed.
    #[error(
        "the seccomp filter cannot be installed ({0}); run with --no-sandbox if this host forbids it"
    )]
    Filter(String),
}

/// System calls of a running server. Those that io_uring carries out are not seen by seccomp.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendmsg,
    libc::SYS_close,
    libc::SYS_futex,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mprotect,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getpeername,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // The thread that serves /metrics, and the one that waits for signals.
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    // Other processors have `ppoll` alone.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_getrandom,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Files that a server may still open by their names. What io_uring opens is not seen by seccomp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opens {
    /// None, unless the list of further system calls has `openat`.
    Nothing,
    /// Any, for reading alone: a file of settings is read again.
    ForReading,
}

/// System calls for [`Opens::ForReading`], beside `openat` itself.
const FOR_READING: &[libc::c_long] = &[
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_lseek,
];

/// Drops all capabilities of the calling thread, for good. Threads that it starts have none either.
///
/// # Errors
/// The kernel refuses.
pub fn drop_capabilities() -> Result<(), SandboxError> {
    keep_capabilities(CapabilitySet::empty())
}

/// As [`drop_capabilities`], except for the capability to read any file, where the thread has it.
///
/// # Errors
/// The kernel refuses.
pub fn drop_capabilities_except_reading() -> Result<(), SandboxError> {
    keep_capabilities(CapabilitySet::DAC_READ_SEARCH)
}

fn keep_capabilities(kept: CapabilitySet) -> Result<(), SandboxError> {
    let failed = |error: rustix::io::Errno| SandboxError::Capabilities(error.into());
    rustix::thread::set_no_new_privs(true).map_err(failed)?;
    let has = rustix::thread::capabilities(None).map_err(failed)?;
    let left = CapabilitySets {
        effective: has.effective & kept,
        permitted: has.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, left).map_err(failed)
}

/// Flags of `openat` (open(2)) by which a file is written, made or emptied. `O_TMPFILE` needs one
/// of the first two.
const WRITES: libc::c_int = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND;

/// `openat` without any of [`WRITES`] among its flags, which are the third argument.
fn opens_for_reading() -> Result<SeccompRule, BackendError> {
    let mask = u64::try_from(WRITES).unwrap_or(u64::MAX);
    let reads = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), 0)?;
    SeccompRule::new(vec![reads])
}

/// Lets all threads of the process make only the system calls that a running server needs, those of
/// `extra`, and those that open what `opens` says. Others fail with EPERM.
///
/// # Errors
/// The kernel lacks seccomp or refuses.
pub fn restrict_system_calls(extra: &[libc::c_long], opens: Opens) -> Result<(), SandboxError> {
    let failed = |error: &dyn std::fmt::Display| SandboxError::Filter(error.to_string());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED
        .iter()
        .chain(extra)
        .map(|&call| (call, Vec::new()))
        .collect();
    if opens == Opens::ForReading {
        rules.extend(FOR_READING.iter().map(|&call| (call, Vec::new())));
        let rule = opens_for_reading().map_err(|error| failed(&error))?;
        rules.insert(libc::SYS_openat, vec![rule]);
    }
    let target = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| failed(&error))?;
    let eperm = u32::try_from(libc::EPERM).unwrap_or(1);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(eperm),
        SeccompAction::Allow,
        target,
    )
    .map_err(|error| failed(&error))?;
    let program: BpfProgram = filter
        .try_into()
        .map_err(|error: BackendError| failed(&error))?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| failed(&error))
}
