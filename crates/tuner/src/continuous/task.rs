//! What is asked for, and what came of it: a search, and a change of what is in force.

use bayes_opt::Configuration;
use jiff::Timestamp;

use super::state::VerifiedCandidate;
use crate::ledger::Drift;
use crate::live::Changed;
use crate::spec::AlertSpec;

/// A search, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Evaluations that there were before the search.
    pub from: usize,
    /// It has not begun yet: an earlier verification is not its own.
    pub is_new: bool,
    /// To be interrupted then, after the evaluation that is measured.
    pub until: Timestamp,
    /// What has drifted since when.
    pub drifts: Vec<Drift>,
    /// What is promoted: measured first, and a candidate of the verification.
    pub in_force: Option<Configuration>,
    /// To be interrupted when this fires.
    pub alert: Option<AlertSpec>,
}

/// What came of a search.
#[derive(Clone, Debug)]
pub enum Tuned {
    /// It goes on later.
    Paused {
        /// Evaluations so far.
        evaluated: usize,
    },
    /// It came to its verified end.
    Ended {
        /// Evaluations so far.
        evaluated: usize,
        /// What was shown to be better than the control, with every constraint held.
        winner: Option<VerifiedCandidate>,
        /// What was shown, in words.
        sentence: String,
        /// The verification came to an end: nothing better is a finding, not an accident.
        is_conclusive: bool,
    },
    /// It could not go on.
    Failed {
        /// Evaluations so far.
        evaluated: usize,
        /// The reason.
        reason: String,
        /// What is in force could not be put back after it, or somebody else changed a knob in it.
        is_unsettled: bool,
    },
}

/// What was changed, or why nothing was.
pub type Applied = Result<Changed, String>;
