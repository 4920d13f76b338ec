//! The metric to improve.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which way is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Less is better.
    #[default]
    #[serde(alias = "minimize")]
    Minimise,
    /// More is better.
    #[serde(alias = "maximize")]
    Maximise,
}

impl Goal {
    /// What values are multiplied by so that less is better; 1 or −1.
    pub fn sign(self) -> f64 {
        match self {
            Goal::Minimise => 1.0,
            Goal::Maximise => -1.0,
        }
    }
}

/// How the objective is compared with the control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectiveScale {
    /// The ratio to the control of the same block.
    #[default]
    Ratio,
    /// The value itself, not compared. The control is measured nevertheless.
    Absolute,
}

/// The metric to improve.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveSpec {
    /// The name of a metric. From the workload: `requests`, `requests_per_s`, `latency_p99_us`,
    /// `errors` and others that the load generator prints. From the target's processes: `cpu_s`,
    /// `cpu_user_s`, `cpu_system_s`, `context_switches`, `involuntary_switches`, `memory_bytes`.
    /// With `quota` or an observed control group: `periods`, `throttled_periods`, `throttled_s`.
    /// From a JVM that is the service's first process, but not with `observe.cgroup`:
    /// `jvm_gc_cycles`, `jvm_gc_time_s`, `jvm_jit_time_s`, `jvm_allocated_bytes`. Also each metric
    /// in `metrics`. Each counted metric X also gives `X_per_request` and `X_per_s`.
    pub metric: String,
    /// Whether a smaller value is better (`minimise`) or a larger one (`maximise`).
    #[serde(default)]
    pub goal: Goal,
    /// Weight k of the spread between blocks. The objective is `mean + k·std` over the blocks, or
    /// `mean − k·std` when maximising.
    #[serde(default)]
    pub std_weight: f64,
    /// `ratio`: the objective is compared with the control's. `absolute`: the objective is the
    /// value itself.
    #[serde(default)]
    pub scale: ObjectiveScale,
}

impl ObjectiveSpec {
    /// The objective's name: the metric, or `mean + k·std` of it.
    #[must_use]
    pub fn name(&self) -> String {
        match (self.std_weight, self.goal) {
            (0.0, _) => self.metric.clone(),
            (k, Goal::Minimise) => format!("{} mean + {k} std", self.metric),
            (k, Goal::Maximise) => format!("{} mean − {k} std", self.metric),
        }
    }

    /// Whether a value of one means the same as a value of the other.
    #[must_use]
    pub fn is_comparable_with(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.name(), it.scale, it.goal);
        of(self) == of(other)
    }
}
