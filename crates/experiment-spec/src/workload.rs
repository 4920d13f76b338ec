//! What loads the service.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target::TextOrFile;
use crate::format::Format;
use crate::http::HttpSpec;

/// What loads the service. The load runs once for each side of each block.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    /// The command of a load generator, with its arguments. Names are replaced as in `target`.
    /// `{duration_s}` is the length of the block, in seconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Use Slackline's own load generator instead of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSpec>,
    /// The tool whose output the command prints. With `command`, give exactly one of `parse`,
    /// `json` and `regex`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parse: Option<Format>,
    /// Metric names and their JSON paths: `{ latency_p99_us = "latency.p99" }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub json: BTreeMap<String, String>,
    /// Metric names and regular expressions whose first group is the number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub regex: BTreeMap<String, String>,
    /// Environment variables for the command, in addition to Slackline's own environment, as in
    /// `target`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, TextOrFile>,
    /// CPUs that the load generator runs on, such as `"2-3"`. By default, `http` runs on the CPUs
    /// that `target.cpus` leaves free, and a command on any CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// `true`: the load waits for answers, so its rate is the service's capacity. By default
    /// Slackline decides by the load generator's name and options, if it knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_loop: Option<bool>,
    /// The command of the same load without a fixed rate, which shows the capacity. Slackline runs
    /// it at the end for the winner and the control, and reads its output like the output of
    /// `command`. `http` does not need this key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capacity_command: Vec<String>,
    /// Seconds that the command may run beyond the length of the block.
    #[serde(default = "workload_grace_s")]
    pub grace_s: f64,
    /// Smallest values of metrics on the control. If a metric is below its value, the load was too
    /// slow, and the evaluation has `failed`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub minimum: BTreeMap<String, f64>,
}

fn workload_grace_s() -> f64 {
    30.0
}

impl WorkloadSpec {
    /// Slackline loads nothing: the service's own users are the load.
    #[must_use]
    pub fn is_of_users(&self) -> bool {
        self.command.is_empty()
    }
}
