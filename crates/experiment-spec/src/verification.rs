//! How the winner is measured again.

use std::collections::BTreeMap;

use bayes_opt::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guard::Guard;

/// How the best configurations are measured again, in fresh runs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VerificationSpec {
    /// How many of the best configurations are verified.
    pub top: usize,
    /// Number of fresh runs of each configuration. If they do not decide the objective and each
    /// constraint, Slackline adds the same number of runs, up to `max_runs`.
    pub runs: usize,
    /// The largest number of fresh runs of each configuration. By default three times `runs`. The
    /// intervals have the stated `confidence`, however often runs are added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_runs: Option<usize>,
    /// Number of pairs of blocks in each run. By default the number of an evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<usize>,
    /// Confidence of the intervals, between 0 and 1.
    pub confidence: f64,
    /// The smallest change of interest: 0.01 is 1 %. A verification ends when the measurements
    /// exclude a larger change. A guard (see `allow_worse`) that is worse by less does not count as
    /// worse, except `errors`: there every shown increase counts.
    pub smallest_effect: f64,
    /// Guards that may become worse. A guard is a metric that every verification compares with the
    /// control. The winner is promoted even if the guards of this list are shown to be worse.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_worse: Vec<Guard>,
    /// If the load has a fixed rate, compare the capacity of the winner with the control's at the
    /// end. By default `true` for a service that Slackline starts, and `false` for a service that
    /// was running before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<bool>,
    /// `true`: promote even if a constraint could not be decided within `max_runs`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub accept_undecided: bool,
    /// Further metrics to report with intervals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub report: Vec<String>,
    /// Other configurations to measure beside the winner, against the same control.
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
    /// The name of the arm in the report.
    pub name: String,
    /// Template variables that differ from the candidate's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, Value>,
    /// Parameters that differ from their defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Value>,
}
