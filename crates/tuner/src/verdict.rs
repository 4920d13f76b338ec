//! What the runs of a verification show of a constraint and of a guard.

use paired_stats::Interval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::Guard;

/// What the runs have shown about a constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ConstraintVerdict {
    /// The whole interval is on the good side of the limit.
    Held,
    /// The whole interval is on the bad side of the limit.
    Broken,
    /// The limit is inside the interval.
    NotDecidable,
}

/// One constraint of one arm.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ConstraintResult {
    /// The constraint, as its author wrote it.
    pub constraint: String,
    /// What the verification has shown.
    pub verdict: ConstraintVerdict,
    /// The interval of the metric: as a ratio to the control if the limit is a ratio, otherwise in
    /// the metric's own unit. Missing if there is no interval, for example after a single run.
    pub observed: Option<Interval>,
    /// `true`: `observed` is a ratio to the control.
    pub is_ratio: bool,
    /// `true`: the control itself is shown to break the constraint.
    #[serde(default)]
    pub control_breaks: bool,
}

/// What the runs have shown about a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GuardVerdict {
    /// Shown to be worse than on the control. For all guards except errors: by at least
    /// `verification.smallest_effect`. For memory: also by at least 1 MiB.
    Worse,
    /// Not shown to be worse.
    NotWorse,
    /// No block has a metric of this guard, or there were too few runs.
    NotMeasured,
    /// The objective, or a constraint, is about the same metric.
    Specified,
}

/// One guard of one arm.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GuardResult {
    /// The name of the guard.
    pub guard: Guard,
    /// The metric that the guard compares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// What the verification has shown. `specified`: the objective or a constraint is about the
    /// same metric, so this guard is not compared.
    pub verdict: GuardVerdict,
    /// The ratio to the control. For errors, the difference of the errors per request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Interval>,
    /// `true`: the specification accepts that this guard becomes worse (`allow_worse`).
    #[serde(default)]
    pub is_allowed: bool,
    /// `true`: the load waited for answers, so the throughput is the capacity.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_saturation: bool,
}

impl GuardResult {
    /// It is on the worse side, by too little to count: less than the smallest effect of interest,
    /// or memory below 1 MiB.
    #[must_use]
    pub fn is_slightly_worse(&self) -> bool {
        // A ratio that is shown as +0.0 % is no change.
        const SEEN: f64 = 0.0005;
        let is_not_worse = self.verdict == GuardVerdict::NotWorse;
        let change = self.change.as_ref().filter(|_| is_not_worse);
        change.is_some_and(|change| match self.guard {
            Guard::Throughput => change.high < 1.0 - SEEN,
            Guard::Errors => change.low > 0.0,
            Guard::LatencyP99 | Guard::Memory => change.low > 1.0 + SEEN,
        })
    }

    /// It is memory, and worse by a share that would count were it not below 1 MiB.
    #[must_use]
    pub fn is_little_memory(&self, smallest_effect: f64) -> bool {
        let change = self.change.as_ref().filter(|_| self.guard == Guard::Memory);
        let counts = |it: &Interval| it.estimate.ln().abs() >= smallest_effect.ln_1p();
        self.is_slightly_worse() && change.is_some_and(counts)
    }

    /// What is shown, in a few words.
    #[must_use]
    pub fn word(&self, smallest_effect: f64) -> &'static str {
        match self.verdict {
            GuardVerdict::Worse if self.is_allowed => "worse, as allowed",
            GuardVerdict::Worse => "worse",
            GuardVerdict::NotWorse if self.is_little_memory(smallest_effect) => "below 1 MiB more",
            GuardVerdict::NotWorse if self.is_slightly_worse() => "too little to count",
            GuardVerdict::NotWorse => "not shown worse",
            GuardVerdict::NotMeasured => "not measured",
            GuardVerdict::Specified => "",
        }
    }
}
