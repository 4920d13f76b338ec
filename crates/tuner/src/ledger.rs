//! Where an experiment writes what it measures while it runs, and where it learns what its user
//! wants.
//!
//! `slackline tune` shows progress and keeps the whole in memory: any closure that takes an
//! [`LedgerEvent`] is such a ledger. A coordinator commits every event to a database before it is
//! acted on, and an experiment goes on from what is there after its process was killed: the loop in
//! [`crate::experiment`] is the same.

use std::collections::BTreeMap;

use bayes_opt::{Configuration, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::begun::Begun;
use crate::bench::Arm;
use crate::error::TunerError;
use crate::evaluation::Block;
use crate::report::EvaluationRecord;
use crate::spec::BudgetSpec;

/// What happens, for whoever shows or keeps it.
#[derive(Clone, Debug)]
pub enum LedgerEvent<'a> {
    /// An evaluation starts.
    Started {
        /// Number of the evaluation, from 1.
        number: usize,
        /// How many there may be.
        of: usize,
        /// What is evaluated.
        configuration: &'a Configuration,
    },
    /// A block was measured.
    Block {
        /// Blocks so far.
        done: usize,
        /// Blocks planned.
        of: usize,
        /// The last one.
        block: &'a Block,
    },
    /// An evaluation ended.
    Ended {
        /// What came of it.
        record: &'a EvaluationRecord,
        /// The signal that cut it off, if one did.
        signal: Option<i32>,
    },
    /// The search is over: these arms will be verified.
    Planned(&'a [PlannedArm]),
    /// A run of the verification starts.
    Verifying {
        /// The arm.
        arm: &'a str,
        /// Number of the run, from 1.
        run: usize,
        /// Runs planned.
        of: usize,
    },
    /// A run of the verification ended.
    Verified(&'a VerificationRun),
}

/// One arm of a verification, before it is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedArm {
    /// `candidate 1`, or the name in the specification.
    pub name: String,
    /// `true`: the search found this arm. `false`: the arm comes from the specification.
    pub is_candidate: bool,
    /// The configuration of the arm.
    pub configuration: Configuration,
    /// Template variables that differ from the candidate's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, Value>,
    /// The candidate whose capacity this arm measures, with a load that waits for answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_of: Option<String>,
}

impl PlannedArm {
    /// A candidate of this number, from 1.
    #[must_use]
    pub fn candidate(number: usize, configuration: Configuration) -> Self {
        Self {
            name: format!("candidate {number}"),
            is_candidate: true,
            configuration,
            variables: BTreeMap::new(),
            capacity_of: None,
        }
    }

    /// The arm that measures the capacity of a candidate.
    #[must_use]
    pub fn capacity_of(candidate: &Self) -> Self {
        Self {
            name: format!("{}, at saturation", candidate.name),
            is_candidate: false,
            capacity_of: Some(candidate.name.clone()),
            ..candidate.clone()
        }
    }

    /// What is measured of it.
    pub fn arm(&self) -> Arm {
        Arm {
            configuration: self.configuration.clone(),
            variables: self.variables.clone(),
            saturates: self.capacity_of.is_some(),
            // What is claimed rests on fresh starts of both sides.
            warm_control: false,
        }
    }
}

/// One arm measured once in a verification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerificationRun {
    /// The arm's place in the plan, from 0.
    pub arm: usize,
    /// Number of the run, from 1.
    pub run: usize,
    /// The pairs of blocks. Empty if the run gave no result.
    pub blocks: Vec<Block>,
    /// Why the run gave no result.
    pub fault: Option<String>,
    /// The worker that measured the run. Missing if this host measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The fingerprint of each template, as it was during the run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub templates: BTreeMap<String, String>,
    /// How the run began, if the end of the warm-up was detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Begun>,
}

/// What earlier sessions of an experiment left.
#[derive(Clone, Debug, Default)]
pub struct ResumeState {
    /// When the first one began.
    pub started: Option<jiff::Timestamp>,
    /// Every evaluation that ended, in order. Their blocks are not needed.
    pub evaluations: Vec<EvaluationRecord>,
    /// The arms of the verification, if it began.
    pub plan: Option<Vec<PlannedArm>>,
    /// The runs of the verification that ended.
    pub runs: Vec<VerificationRun>,
    /// What has drifted since some of these were measured, oldest first.
    pub drifts: Vec<Drift>,
    /// What is in force on the host instead of the control's configuration: measured first after a
    /// drift, and a candidate of the verification.
    pub in_force: Option<Configuration>,
}

/// A drift of the system. Measurements from before the drift count for less.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Drift {
    /// Evaluations up to this number were measured before the drift.
    pub before: usize,
    /// The variance that is added to the scores of these evaluations.
    pub variance: f64,
}

/// The weight that the optimiser is to give a measurement of that variance: the drifts since add
/// theirs.
///
/// ```
/// use tuner::ledger::{Drift, weight};
///
/// let drifts = [Drift { before: 10, variance: 0.03 }];
/// assert_eq!(weight(&drifts, 11, 0.01), 1.0);
/// assert!((weight(&drifts, 10, 0.01) - 0.25).abs() < 1e-12);
/// ```
#[must_use]
pub fn weight(drifts: &[Drift], number: usize, variance: f64) -> f64 {
    let since = drifts.iter().filter(|drift| number <= drift.before);
    let added: f64 = since.map(|drift| drift.variance).sum();
    if added == 0.0 {
        return 1.0;
    }
    // What has no variance of its own would outweigh any drift.
    let own = variance.max(VARIANCE_MIN);
    (own / (own + added)).max(WEIGHT_MIN)
}

/// A standard error of 0.1 %: nothing that drifts is known better.
const VARIANCE_MIN: f64 = 1e-6;

/// Below this, a measurement is as good as absent.
const WEIGHT_MIN: f64 = 1e-6;

/// What the user wants next.
#[derive(Clone, Debug, Default)]
pub struct RunControl {
    /// Another budget than the specification's.
    pub budget: Option<BudgetSpec>,
    /// To be evaluated before anything that the optimiser asks for.
    pub queued: Option<Configuration>,
    /// Go no further for now.
    pub pause: bool,
}

/// Keeps what is measured, and says what is wanted.
pub trait Ledger {
    /// What earlier sessions left; asked once, at the start.
    ///
    /// # Errors
    /// [`TunerError::Ledger`].
    fn kept(&mut self) -> Result<ResumeState, TunerError> {
        Ok(ResumeState::default())
    }

    /// What is wanted; asked before every evaluation and every run of the verification.
    ///
    /// # Errors
    /// [`TunerError::Ledger`].
    fn wish(&mut self) -> Result<RunControl, TunerError> {
        Ok(RunControl::default())
    }

    /// Takes note of what happens. Nothing further is done before this has returned.
    ///
    /// # Errors
    /// [`TunerError::Ledger`]: the experiment ends, with everything restored.
    fn note(&mut self, event: &LedgerEvent<'_>) -> Result<(), TunerError>;
}

impl<F: FnMut(&LedgerEvent<'_>)> Ledger for F {
    fn note(&mut self, event: &LedgerEvent<'_>) -> Result<(), TunerError> {
        self(event);
        Ok(())
    }
}
