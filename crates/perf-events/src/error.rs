//! What can go wrong when the kernel is asked for tracepoints, samples or counts.

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Tracefs can be neither found nor mounted.
    #[error(
        "the kernel's tracepoints cannot be read: {source}; it needs root (CAP_SYS_ADMIN) and CONFIG_FTRACE, and no lockdown"
    )]
    Tracefs {
        /// Why not.
        source: std::io::Error,
    },
    /// This kernel does not have the tracepoint.
    #[error("this kernel has no tracepoint {system}:{name}: {source}")]
    NoTracepoint {
        /// E.g. `sched`.
        system: String,
        /// E.g. `sched_switch`.
        name: String,
        /// Why it cannot be read.
        source: std::io::Error,
    },
    /// The format of a tracepoint is not as documented.
    #[error("the format of tracepoint {name} cannot be understood: {reason}")]
    Format {
        /// The tracepoint.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A count of a thread's tracepoints could not be begun or read.
    #[error(
        "perf_event_open of thread {thread}: {source}; it needs CAP_PERFMON or kernel.perf_event_paranoid of -1, and a descriptor a thread (ulimit -n)"
    )]
    Count {
        /// The thread.
        thread: u32,
        /// Why not.
        source: std::io::Error,
    },
    /// `perf_event_open` refused.
    #[error(
        "perf_event_open on CPU {cpu}: {source}; it needs CAP_PERFMON or kernel.perf_event_paranoid of -1"
    )]
    Open {
        /// The CPU.
        cpu: usize,
        /// Why not.
        source: std::io::Error,
    },
}
