//! How one configuration is measured, and with which control.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::locate::Source;
use super::{CheckedSpec, Mode, Pairing, Spec, TargetSpec};
use crate::error::SpecError;

/// How one configuration is measured.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationSpec {
    /// Seconds with load before the first block, which are not measured. With `warm_up = "auto"`,
    /// the shortest warm-up.
    pub warm_up_s: f64,
    /// `auto`: the measurement begins when the service is steady. Slackline decides by the CPU time
    /// per request, the objective, and the compilers of a JVM. Without this key, the measurement
    /// begins after `warm_up_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<WarmUpRule>,
    /// With `warm_up = "auto"`, the longest warm-up of a side, in seconds. Then the measurement
    /// begins, and the evaluation says that the side was not steady.
    pub warm_up_at_most_s: f64,
    /// `warm`: the control keeps running from one evaluation of the search to the next. `fresh`:
    /// the control is started for each evaluation. `warm` needs `pairing = "parallel"`, and is the
    /// default there, except with `target.prepare`, `[workers]` or metrics with `push`. A
    /// verification always starts both sides for each run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlStart>,
    /// Length of a block of one side, in seconds.
    pub block_s: f64,
    /// Number of pairs of blocks.
    pub blocks: usize,
    /// Seconds without load after every change of a knob or file.
    pub settle_s: f64,
    /// End an evaluation early if its configuration is shown to be worse than the best one so far.
    pub early_abort: bool,
    /// Error rate of the early abort: the probability that an evaluation is aborted although its
    /// configuration is as good as the best one so far.
    pub abort_alpha: f64,
    /// No abort before this number of blocks.
    pub abort_min_blocks: usize,
}

impl Default for EvaluationSpec {
    fn default() -> Self {
        Self {
            warm_up_s: 2.0,
            warm_up: None,
            warm_up_at_most_s: 300.0,
            control: None,
            block_s: 5.0,
            blocks: 6,
            settle_s: 0.0,
            early_abort: true,
            abort_alpha: 0.05,
            abort_min_blocks: 3,
        }
    }
}

/// How the end of a warm-up is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WarmUpRule {
    /// By change points of what is measured.
    Auto,
}

/// When the control is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ControlStart {
    /// Once; again where it has ended, failed or changed since its first evaluation.
    Warm,
    /// For each evaluation.
    Fresh,
}

/// Slices of a warm-up are a quarter of a block, within these seconds: long enough for a load
/// generator, and short enough for the last level to be seen soon.
const SLICE_S: std::ops::RangeInclusive<f64> = 1.0..=5.0;

impl EvaluationSpec {
    /// How long each slice of a warm-up lasts whose end is detected: whole seconds, unless blocks
    /// are shorter.
    pub(crate) fn slice_s(&self) -> f64 {
        let quarter = (self.block_s / 4.0).round();
        quarter
            .clamp(*SLICE_S.start(), *SLICE_S.end())
            .min(self.block_s)
    }

    /// The longest warm-up.
    pub(crate) fn longest_warm_up_s(&self) -> f64 {
        match self.warm_up {
            Some(WarmUpRule::Auto) => self.warm_up_at_most_s,
            None => self.warm_up_s,
        }
    }
}

impl CheckedSpec {
    /// Whether the control runs on from one evaluation of the search to the next one.
    ///
    /// By default it does where that is right: in pairs of instances, and where nothing prepares
    /// each start, so that an old instance and a young one have the same data. Each worker, and
    /// each round of `mode = "continuous"`, starts both sides.
    #[must_use]
    pub fn has_warm_control(&self) -> bool {
        let can = why_fresh(&self.spec, &self.target).is_none();
        match self.spec.evaluation.control {
            Some(start) => can && start == ControlStart::Warm,
            None => can && self.target.prepare.is_none(),
        }
    }
}

/// Why a control cannot run on.
fn why_fresh(spec: &Spec, target: &TargetSpec) -> Option<&'static str> {
    if target.pairing != Pairing::Parallel {
        return Some("needs target.pairing = \"parallel\": two instances side by side");
    }
    if spec.mode == Mode::Continuous {
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
