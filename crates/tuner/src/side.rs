//! The two sides of an experiment.

use crate::error::{Crash, Fault};
use crate::process::RunError;

/// One of the two sides of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Control,
    Experiment,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::Control, Self::Experiment];

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Control => 0,
            Self::Experiment => 1,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Experiment => "experiment",
        }
    }

    /// Whose fault a refusal is: the experiment's configuration, or, on the control, the harness.
    pub(crate) fn fault(self, crash: impl Into<Crash>) -> Fault {
        let crash = crash.into();
        match self {
            Self::Control => Fault::Harness(format!("control: {crash}")),
            Self::Experiment => Fault::Configuration(crash),
        }
    }

    /// Whose fault it is that this side's load was not measured: nobody's but the harness's; on the
    /// experiment it may be this configuration's doing all the same, so the next one gets its
    /// chance.
    pub(crate) fn unmeasured(self, message: String) -> Fault {
        match self {
            Self::Control => Fault::Harness(message),
            Self::Experiment => Fault::Unmeasured(message),
        }
    }

    /// As [`Self::unmeasured`]; `what` is the key of the specification whose command failed.
    pub(crate) fn gave_nothing(self, what: &str, why: &str) -> Fault {
        let side = self.name();
        self.unmeasured(format!("{what}: failed on the side of the {side}: {why}"))
    }

    pub(crate) fn run_fault(self, error: RunError) -> Fault {
        match error {
            RunError::Interrupted(stop) => Fault::Interrupted(stop),
            error => self.fault(error.to_string()),
        }
    }
}
