//! How a command ended.

/// The finding of a command that ran to its end.
pub(crate) enum CommandOutcome {
    /// Exit code 0.
    Positive,
    /// Exit code 1.
    Negative,
    /// Exit code 128 + n.
    Signal(i32),
    /// Exit code 4.
    RestoreFailed,
}
