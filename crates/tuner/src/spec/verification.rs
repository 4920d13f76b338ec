//! How the winner is measured again.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::Scalar;
use crate::guard::Guard;

/// How the winner is measured again, on fresh runs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VerificationSpec {
    /// How many of the best configurations.
    pub top: usize,
    /// Fresh runs of each configuration. If they do not decide the objective and each constraint,
    /// the same number of runs is added, up to `max_runs`.
    pub runs: usize,
    /// The largest number of fresh runs of each configuration, by default three times `runs`. The
    /// intervals hold at `confidence` for all looks together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_runs: Option<usize>,
    /// Pairs of blocks in each run; as many as in an evaluation by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<usize>,
    /// Confidence of the intervals.
    pub confidence: f64,
    /// The smallest change of interest, 0.01 for 1 %. A verification ends when a larger change is
    /// excluded. A guard that is worse by less does not count.
    pub smallest_effect: f64,
    /// Guards that may be shown worse: the winner is promoted in any case. `throughput`,
    /// `latency-p99`, `errors`, `memory`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_worse: Vec<Guard>,
    /// If the load has a fixed rate, compare the capacity of the winner with the control's at the
    /// end. By default Slackline does so for a service that it starts itself, and not for one that
    /// was running before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<bool>,
    /// Promote even if a constraint could not be decided within `max_runs`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub accept_undecided: bool,
    /// Further metrics to report with intervals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub report: Vec<String>,
    /// Other configurations measured beside the winner, against the same control.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arms: Vec<ArmSpec>,
}

impl Default for VerificationSpec {
    fn default() -> Self {
        Self {
            top: 1,
            runs: 3,
            max_runs: None,
            blocks: None,
            confidence: 0.95,
            smallest_effect: 0.01,
            allow_worse: Vec::new(),
            capacity: None,
            accept_undecided: false,
            report: Vec::new(),
            arms: Vec::new(),
        }
    }
}

impl VerificationSpec {
    /// The most runs of an arm.
    #[must_use]
    pub fn runs_max(&self) -> usize {
        self.max_runs
            .unwrap_or(self.runs.saturating_mul(3))
            .max(self.runs)
    }

    /// How often the runs are looked at.
    #[must_use]
    pub fn looks(&self) -> usize {
        self.runs_max().div_ceil(self.runs.max(1))
    }

    /// The number of runs after which run number `run` is looked at.
    #[must_use]
    pub fn stage_end(&self, run: usize) -> usize {
        (run.div_ceil(self.runs.max(1)) * self.runs).min(self.runs_max())
    }
}

/// Another arm of the verification.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArmSpec {
    /// Its name in the report.
    pub name: String,
    /// Template variables that differ from the experiment's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, Scalar>,
    /// Parameters that differ from their defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Scalar>,
}
