//! What can go wrong in an experiment, told apart by whose fault it is.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use experiment_spec::SpecError;

use crate::stop::Stop;

/// An experiment could not go on.
#[derive(Debug, thiserror::Error)]
pub enum TunerError {
    /// The specification is wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A kernel interface or the undo journal refused.
    #[error(transparent)]
    Host(#[from] host::HostError),
    /// The latency of requests cannot be read.
    #[error("metrics.{name}.wire: {source}")]
    Latency {
        /// The metric.
        name: String,
        /// The reason.
        source: wire_latency::Error,
    },
    /// The optimiser refused.
    #[error("the optimiser: {0}")]
    Optimizer(#[from] bayes_opt::Error),
    /// The control cannot be measured, so nothing can be compared with it.
    #[error("the control could not be measured ({attempts} attempts). Last attempt: {reason}")]
    Control {
        /// How often it was tried.
        attempts: usize,
        /// What happened the last time.
        reason: String,
    },
    /// Every worker that might measure it says that it cannot.
    #[error("no worker can measure it; the last reason: {reason}")]
    NoWorker {
        /// What a worker said.
        reason: String,
    },
    /// The load could not be measured under several configurations in a row, while the control's
    /// could.
    #[error(
        "the load could not be measured under {configurations} configurations in a row: {reason}"
    )]
    Load {
        /// How many.
        configurations: usize,
        /// What happened under the last one.
        reason: String,
    },
    /// The winner could not be applied for good; everything is restored.
    #[error("the winner could not be promoted: {0}")]
    Promotion(String),
    /// The service could not be told of its own configuration again.
    #[error(
        "the original configuration files are restored, but reloading the service failed ({0}): reload it yourself"
    )]
    Reapply(String),
    /// Somebody else changed a knob, or a templated file, while it was being tuned; it was left as
    /// found.
    #[error(
        "changed by someone else during the experiment, and left as found: {0}; the measurements cannot be trusted"
    )]
    Disturbed(String),
    /// What is in force between the rounds of a continuous experiment could not be put back, again
    /// and again.
    #[error("after each of {rounds} rounds in a row: {reason}")]
    Unsettled {
        /// How many.
        rounds: usize,
        /// What happened after the last one.
        reason: String,
    },
    /// What was measured could not be kept where it is to be kept.
    #[error("the measurements could not be stored: {0}")]
    Ledger(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// There is no such promotion.
    #[error("there is no promotion {number}; there {}", known_promotions(known))]
    NoPromotion {
        /// Its number.
        number: usize,
        /// Those that there are.
        known: Vec<usize>,
    },
    /// Nothing of a promotion is left to be forgotten.
    #[error("promotion {0} has nothing to forget: its undo restored everything, or there was none")]
    NothingLeft(usize),
    /// An earlier run left something to undo.
    #[error("an earlier run was killed and left this to undo: {0}; run `slackline restore` first")]
    LeftOver(String),
    /// A file of the experiment's own could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
}

fn known_promotions(known: &[usize]) -> String {
    let numbers: Vec<String> = known.iter().map(ToString::to_string).collect();
    match numbers.as_slice() {
        [] => "is none: no command has promoted anything".to_owned(),
        numbers => format!("are {}", numbers.join(", ")),
    }
}

/// Why an evaluation ended without a result: each outcome has an owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The configuration's fault: it did not come up, was refused, or died under load.
    #[error("{0}")]
    Configuration(Crash),
    /// The harness's fault: the control, the workload or a metric failed.
    #[error("{0}")]
    Harness(String),
    /// The candidate's side could not be measured: its load generator or a metric failed while the
    /// service ran.
    #[error("{0}")]
    Unmeasured(String),
    /// A signal or the user asked to stop.
    #[error("stopped by {0}")]
    Interrupted(Stop),
}

/// How the service failed under a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct Crash {
    /// The kind of failure. `refused`: the service or the kernel refused the configuration.
    /// `too-slow`: the load took several times as long as on the control.
    pub kind: CrashKind,
    /// The exit status, if the service ended. Negative for a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// The failure in words.
    pub message: String,
    /// The end of the service's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// The ways in which a service fails under a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CrashKind {
    /// The service or the kernel refused the configuration.
    Refused,
    /// The service ended by itself before it was ready.
    EndedAtStart,
    /// The service was not ready in time.
    NotReady,
    /// The service ended by itself under load.
    EndedUnderLoad,
    /// The load took several times as long as on the control.
    TooSlow,
}

impl Crash {
    /// A refusal in words.
    #[must_use]
    pub fn refused(message: String) -> Self {
        Self {
            kind: CrashKind::Refused,
            status: None,
            message,
            output: None,
        }
    }

    /// Whether both have one reason, as far as that can be known.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.kind == other.kind && self.status == other.status
    }
}

impl From<String> for Crash {
    fn from(message: String) -> Self {
        Self::refused(message)
    }
}

impl From<&str> for Crash {
    fn from(message: &str) -> Self {
        Self::refused(message.to_owned())
    }
}
