//! A parameter, as its author writes it.

use std::path::PathBuf;

use bayes_opt::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sched::SchedKind;

/// The kind of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ParameterType {
    /// Whole numbers from `low` to `high`, every `step`.
    Int,
    /// Numbers from `low` to `high`.
    Float,
    /// `values`, whose order means something.
    Ordinal,
    /// `values` without an order.
    Categorical,
    /// `true` or `false`.
    Bool,
}

/// How the range of a number is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Equal differences matter equally.
    #[default]
    Linear,
    /// Equal ratios matter equally.
    Log,
}

/// One parameter: its values and, for a kernel knob, the place of the knob.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParameterSpec {
    /// Name of the parameter. Templates use it as `{name}`.
    pub name: String,
    /// Kind of the values.
    #[serde(rename = "type")]
    pub kind: ParameterType,
    /// Lowest value (`int`, `float`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Highest value (`int`, `float`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Distance between values, counted from `low`. By default 1 for an `int`, and none for a
    /// `float`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// How the search measures distances between values. `log` suits a range over several orders of
    /// magnitude, and needs `low` above 0.
    #[serde(default)]
    pub scale: Scale,
    /// The values of an `ordinal` parameter in their order, or the values of a `categorical`
    /// parameter. For a parameter with two values, list the "off" value first: the search learns
    /// the effect that such switches have in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<Value>>,
    /// Values with a special meaning outside the order of the range, such as 0 for "off". If the
    /// present value of a knob means "no limit" (such as `max`, −1, or a number near 2^63), this
    /// value is special without being listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub special: Vec<Value>,
    /// The control's value. Required in an experiment, except for a kernel knob without `write`:
    /// there Slackline reads the present value. `sched` for a service that Slackline starts has no
    /// present value, and needs a default. `slackline ask-tell` needs no default. If there is none,
    /// `ask-tell` takes the middle of a range or of an `ordinal`'s values, the first value of a
    /// `categorical`, or `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// The value that you expect to be best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prior: Option<PriorSpec>,
    /// This parameter is a sysctl, such as `"vm.swappiness"`. If the sysctl is a list, `[N]` names
    /// one value, counted from 0: `"net.ipv4.tcp_rmem[2]"`. The same holds for other knobs that are
    /// lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysctl: Option<String>,
    /// This parameter is a setting of a block device's queue, such as `"vda/read_ahead_kb"` or
    /// `"vda/iosched/fifo_batch"`. `*` instead of `vda` means the device that holds `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_queue: Option<String>,
    /// This parameter is a file of a control group (v1 or v2), such as `"my.slice/cpu.max"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// This parameter is the content of the file with this absolute path. The file may be in sysfs,
    /// debugfs or procfs, or an ordinary file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// This parameter is a scheduling attribute of the target's threads (sched_setattr(2)). If
    /// Slackline starts the instances, each instance has its own value. Otherwise all threads of
    /// the service in `target.observe` get the value, including new threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sched: Option<SchedKind>,
    /// The text to write to the knob, if the text is more than the value: `"4096 131072 {name}"`.
    /// Needs `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<String>,
    /// `true`: if the host does not have the knob, Slackline leaves the parameter out and says so.
    /// `false`: a missing knob is an error.
    #[serde(default)]
    pub optional: bool,
}

/// Your expectation of the best value.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriorSpec {
    /// The value that you expect to be best.
    pub best_guess: Value,
    /// How sure you are: above 0 (no idea) and below 1 (certain).
    pub confidence: f64,
}
