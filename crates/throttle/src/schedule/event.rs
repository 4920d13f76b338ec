//! What the scheduler did, as its tracepoints say.

/// How a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchOut {
    /// It still wants to run: it was preempted, or throttled.
    Runnable,
    /// It waits for something else.
    Sleeping,
    /// It has ended.
    Dead,
}

/// Something that the scheduler did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedEvent {
    /// A CPU changed from one thread to another; thread 0 is idleness.
    Switch {
        /// The CPU.
        cpu: usize,
        /// Who ran.
        previous: u32,
        /// How it left.
        left: SwitchOut,
        /// Who runs now.
        next: u32,
    },
    /// A thread became runnable.
    Wakeup {
        /// The thread.
        thread: u32,
    },
    /// A thread was made.
    Fork {
        /// Whose child it is.
        parent: u32,
        /// The new thread.
        child: u32,
    },
}
