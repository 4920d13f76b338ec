//! What can go wrong with another process, and the reasons for which one is left alone.

use std::io;
use std::path::PathBuf;

use host::HostError;

/// An operation on a process failed. Unless a variant says otherwise the process is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayoutError {
    /// The code of this machine's processes is none that this crate understands.
    #[error("relayout rewrites x86-64 machine code; this machine is {machine}")]
    OtherMachine {
        /// The machine.
        machine: &'static str,
    },
    /// A kernel file, the state directory or its lock.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Samples or tracepoints.
    #[error(transparent)]
    Perf(#[from] perf_events::Error),
    /// A file, or what was to be emitted from it.
    #[error("{path}: {source}")]
    Layout {
        /// The object.
        path: String,
        /// What is wrong.
        source: code_layout::Error,
    },
    /// The command that counts units of work.
    #[error("the metric's command `{command}`: {why}")]
    Metric {
        /// The command.
        command: String,
        /// What is wrong.
        why: String,
    },
    /// There is next to nothing to compare.
    #[error(
        "the gain cannot be measured: the process did {per_s:.1} units of work a second (counted: {metric}), and at least {least:.0} are needed; count something else with --metric-command"
    )]
    LittleWork {
        /// What is counted.
        metric: String,
        /// How much of it there is.
        per_s: f64,
        /// How much is needed.
        least: f64,
    },
    /// The comparison has no interval.
    #[error("the gain cannot be measured: {0}")]
    Stats(#[from] paired_stats::StatsError),
    /// The process cannot or should not be re-laid out.
    #[error("process {pid} is declined: {reason}")]
    Declined {
        /// The process.
        pid: u32,
        /// The reason.
        reason: Declined,
    },
    /// It runs in a layout that was not shown to be better, and the way back failed.
    #[error("process {pid} could NOT be rolled back: {why}; slackline restore tries again")]
    NotUndone {
        /// The process.
        pid: u32,
        /// What went wrong.
        why: String,
    },
    /// It ended, or replaced its program, while we were at work.
    #[error("process {pid} ended, or executed another program, meanwhile")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// A ptrace request was refused.
    #[error("ptrace {request} of thread {thread}: {source}")]
    Ptrace {
        /// The thread.
        thread: u32,
        /// The request's name without `PTRACE_`.
        request: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// Memory of the process cannot be read or written.
    #[error("memory of process {pid} at {address:#x} cannot be {verb}: {source}")]
    Memory {
        /// The process.
        pid: u32,
        /// The first address.
        address: u64,
        /// "read" or "written".
        verb: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// Some thread did not stop in time.
    #[error(
        "thread {thread} of process {pid} did not stop within {limit_ms} ms (state {state}): {}; try again", why_not_stopping(*state)
    )]
    NotStopping {
        /// The process.
        pid: u32,
        /// The thread.
        thread: u32,
        /// How long it was waited for.
        limit_ms: u64,
        /// Its state in `/proc`.
        state: char,
    },
    /// A system call that the process was made to do was refused.
    #[error("process {pid} may not {call}: {source}")]
    Refused {
        /// The process.
        pid: u32,
        /// The call.
        call: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The undo manifest cannot be understood.
    #[error("{}: {why}; this file is needed to undo a relayout, so it is not changed: undo the relayout with the version of Slackline that wrote the file, or restart the process and remove the file", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// There is no such generation.
    #[error("process {pid} has no generation {number}: its generations are {known}")]
    NoGeneration {
        /// The process.
        pid: u32,
        /// What was asked for.
        number: u32,
        /// Those there are.
        known: String,
    },
    /// No relayout of this process is on record.
    #[error("process {pid} has no relayout on record in the state directory {}", state_dir.display())]
    NotRelaidOut {
        /// The process.
        pid: u32,
        /// Where the manifests are.
        state_dir: PathBuf,
    },
}

impl RelayoutError {
    /// Whether a privilege or a kernel feature is missing (exit code 3).
    #[must_use]
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::Host(error) => error.is_missing_privilege(),
            Self::OtherMachine { .. } | Self::Perf(_) => true,
            Self::Declined { reason, .. } => matches!(reason, Declined::NotPermitted { .. }),
            Self::Ptrace { source, .. } | Self::Memory { source, .. } => {
                matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES))
            }
            _ => false,
        }
    }
}

/// Whether one thread only cannot be asked for a system call, for what it is under or for its
/// stack.
pub(crate) fn is_of_thread(error: &RelayoutError) -> bool {
    match error {
        RelayoutError::Declined { reason, .. } => {
            matches!(reason, Declined::Seccomp | Declined::Dispatched)
        }
        RelayoutError::Memory { .. } => true,
        _ => false,
    }
}

/// What the state of a thread in `/proc/PID/stat` (proc_pid_stat(5)) says of why it does not stop.
fn why_not_stopping(state: char) -> &'static str {
    match state {
        'D' => {
            "it is in an uninterruptible sleep, waiting for a disk or for a child that it made by vfork"
        }
        _ => "it has no CPU",
    }
}

/// Why a process is left alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Declined {
    /// The kernel does not let us trace it.
    #[error("not permitted to trace it: {why}")]
    NotPermitted {
        /// Which rule forbids it.
        why: String,
    },
    /// Somebody traces it: a debugger, strace.
    #[error("it is already traced, by process {tracer}: a process has one tracer at most")]
    Traced {
        /// The tracer.
        tracer: u32,
    },
    /// Its user stopped it.
    #[error("it is stopped (SIGSTOP, or Ctrl-Z): continue it first")]
    Stopped,
    /// It is a kernel thread or a zombie.
    #[error("it has no program: a kernel thread, or it has ended")]
    NoProgram,
    /// Its executable is none that can be laid out again.
    #[error("{path}: {why}")]
    Program {
        /// The executable or library.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// Its runtime unwinds by tables of its own.
    #[error("it is a {runtime} program: {why}")]
    Runtime {
        /// E.g. Go.
        runtime: &'static str,
        /// What breaks.
        why: &'static str,
    },
    /// A seccomp filter is installed.
    #[error(
        "a seccomp filter is installed, and a refused mmap could end the process; run the service without SystemCallFilter= to have it re-laid out"
    )]
    Seccomp,
    /// Its system calls go to a handler of its own.
    #[error(
        "its system calls go to a handler of its own (PR_SET_SYSCALL_USER_DISPATCH, as Wine and interposers use it), and so would the calls that Slackline makes in it"
    )]
    Dispatched,
    /// It uses shadow stacks.
    #[error("it runs with user shadow stacks, which do not let a return address be moved")]
    ShadowStack,
    /// Another process runs in its memory.
    #[error(
        "process {with} runs in its memory (clone with CLONE_VM), and would run during each change"
    )]
    SharedMemory {
        /// That process.
        with: u32,
    },
    /// There is no hole for the code cache.
    #[error("no room of {wanted_bytes} bytes within 2 GiB of {path}")]
    NoRoom {
        /// The object.
        path: String,
        /// How much was looked for.
        wanted_bytes: u64,
    },
    /// Nothing to win.
    #[error("{0}")]
    NothingToWin(String),
}
