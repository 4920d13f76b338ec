//! How one configuration is measured, and with which control.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// default there, except with `target.prepare`, `mode = "continuous"`, `[workers]` or metrics
    /// with `push`. With the last three, `warm` is refused. A verification always starts both sides
    /// for each run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlStart>,
    /// Length of a block of one side, in seconds.
    pub block_s: f64,
    /// Number of pairs of blocks.
    pub blocks: usize,
    /// Seconds without load after every change of a knob or file.
    pub settle_s: f64,
    /// `true`: end an evaluation early if its configuration is shown to be worse than the best one
    /// so far, or to break a constraint. With `objective.std_weight` above 0, only a broken
    /// constraint ends an evaluation early.
    pub early_abort: bool,
    /// Error rate of the early abort: the probability that an evaluation is aborted although its
    /// configuration is as good as the best one so far.
    pub abort_alpha: f64,
    /// No abort before this number of pairs of blocks.
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
    pub fn slice_s(&self) -> f64 {
        let quarter = (self.block_s / 4.0).round();
        quarter
            .clamp(*SLICE_S.start(), *SLICE_S.end())
            .min(self.block_s)
    }

    /// The longest warm-up.
    pub fn longest_warm_up_s(&self) -> f64 {
        match self.warm_up {
            Some(WarmUpRule::Auto) => self.warm_up_at_most_s,
            None => self.warm_up_s,
        }
    }
}
