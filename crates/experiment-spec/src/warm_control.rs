//! Whether the control runs on from one evaluation to the next one, and whether it can.

use super::checked::CheckedSpec;
use super::continuous::ExperimentMode;
use super::evaluation::ControlStart;
use super::locate::Source;
use super::{Pairing, Spec, TargetSpec};
use crate::error::SpecError;

impl CheckedSpec {
    /// Whether the control runs on from one evaluation of the search to the next one.
    ///
    /// By default it does where that is right: in pairs of instances, and where nothing prepares
    /// each start, so that an old instance and a young one have the same data. Each worker, and
    /// each round of `mode = "continuous"`, starts both sides.
    #[must_use]
    pub fn has_warm_control(&self) -> bool {
        let can = why_fresh(&self.spec, self.target()).is_none();
        match self.spec.evaluation.control {
            Some(start) => can && start == ControlStart::Warm,
            None => can && self.target().prepare.is_none(),
        }
    }
}

/// Why a control cannot run on.
fn why_fresh(spec: &Spec, target: &TargetSpec) -> Option<&'static str> {
    if target.pairing != Pairing::Parallel {
        return Some("needs target.pairing = \"parallel\": two instances side by side");
    }
    if spec.mode == ExperimentMode::Continuous {
        return Some("is not for mode = \"continuous\": each round starts both sides");
    }
    if spec.workers.is_some() {
        return Some("is not for [workers]: each evaluation may be on another host");
    }
    let mut metrics = spec.metrics.values();
    metrics
        .any(|metric| metric.push.is_some())
        .then_some("is not for metrics with `push`: their sockets are made before each start")
}

/// A warm control is asked for only where there can be one, and the times of a warm-up agree.
pub(super) fn check_evaluation(
    spec: &Spec,
    target: &TargetSpec,
    source: &Source,
) -> Result<(), SpecError> {
    let evaluation = &spec.evaluation;
    if evaluation.warm_up.is_some() && evaluation.warm_up_at_most_s < evaluation.warm_up_s {
        return Err(source.error(
            "evaluation.warm_up_at_most_s",
            "is less than warm_up_s, which is the least with warm_up = \"auto\"",
        ));
    }
    match why_fresh(spec, target) {
        Some(why) if evaluation.control == Some(ControlStart::Warm) => {
            Err(source.error("evaluation.control", format!("warm {why}")))
        }
        _ => Ok(()),
    }
}
