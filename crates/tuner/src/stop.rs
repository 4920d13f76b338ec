//! What asks an evaluation to stop, and the signals by which processes are ended.

use rustix::process::Signal;

/// What asked an evaluation to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal of that number: the experiment ends.
    Signal(i32),
    /// The user had enough of this evaluation; the experiment goes on.
    Evaluation,
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::Evaluation => f.write_str("its user"),
        }
    }
}

/// The signal of that name, without `SIG`.
pub(crate) fn signal_of(name: &str) -> Option<Signal> {
    match name {
        "TERM" => Some(Signal::TERM),
        "INT" => Some(Signal::INT),
        "QUIT" => Some(Signal::QUIT),
        "KILL" => Some(Signal::KILL),
        _ => None,
    }
}
