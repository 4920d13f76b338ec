//! The experiment's specification, as its author writes it in TOML or JSON.
//!
//! These types are only the shape: what `slackline schema` prints and serde checks. [`load()`]
//! turns a file into a [`CheckedSpec`] whose every promise (ranges, names, units) has been tested.

mod check;
mod check_continuous;
mod check_metrics;
mod checked;
mod configuration;
mod continuous;
mod cpus;
pub(crate) mod credentials;
mod earlier;
mod evaluation;
mod expression;
mod form;
mod knobs;
mod locate;
mod masks;
mod metric;
mod numbers;
mod parameters;
mod plan;
mod reading;
mod remarks;
mod scalar;
mod sched;
mod templates;
mod verification;
mod warm_control;

pub use crate::load_loop::LoadLoop;
pub use crate::text::is_deceptive;
pub use check::{NAME_CHARS_MAX, check_dir};
pub use checked::CheckedSpec;
pub use config_errors::plain;
pub use continuous::{AlertSpec, ContinuousSpec, ExperimentMode};
pub use cpus::Pins;
pub use evaluation::{ControlStart, EvaluationSpec, WarmUpRule};
pub use expression::{Comparison, ConstraintLimit, MetricConstraint};
pub use form::is_line;
pub(crate) use knobs::knob_writes;
pub use knobs::{Element, KnobBinding, Originals};
pub use locate::{Source, line_of};
pub use masks::Masks;
pub(crate) use metric::{LatencyMetric, requests_of};
pub use metric::{MetricSpec, PushMetric, ScrapeMetric, WireMetric};
pub use numbers::{EVALUATIONS_MAX, check_wall_time};
pub(crate) use parameters::arm_configuration;
pub use parameters::as_written_here;
pub use plan::PlannedTime;
pub use reading::{check, check_begun, check_beside, check_numbers, check_text, load, load_space};
pub use scalar::Scalar;
pub use sched::SchedKind;
pub use verification::{ArmSpec, VerificationSpec};

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::http::HttpSpec;
use crate::parse::Format;
use crate::quota::QuotaSpec;

/// A whole experiment.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Name of the experiment in reports. By default the file's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Seed of the search. With the same seed and the same measurements, the search proposes the
    /// same configurations.
    #[serde(default)]
    pub seed: u64,
    /// `once`: search, verify, end. `continuous`: promote, keep watching, search again after a
    /// drift (`serve` only).
    #[serde(default, skip_serializing_if = "ExperimentMode::is_once")]
    pub mode: ExperimentMode,
    /// The parameters: what may be changed.
    pub parameters: Vec<ParameterSpec>,
    /// Conditions on several parameters: an order (`"min_pool <= max_pool"`) or a linear constraint
    /// (`"2*threads + cache_mb <= 4096"`). The search proposes only configurations that hold all of
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameter_constraints: Vec<String>,
    /// Configurations to try first. A parameter that you leave out has its default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initial: Vec<BTreeMap<String, Scalar>>,
    /// Constants for templates. An arm of the verification can have other values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, Scalar>,
    /// The service and how a configuration is applied to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetSpec>,
    /// What loads the service. Without this table, the service's own users are the load, and a
    /// metric reads their latency (`wire`, `scrape`, `push`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadSpec>,
    /// Further metrics, by name. The metrics of the workload and of the target's processes need no
    /// entry here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, MetricSpec>,
    /// The metric to improve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<ObjectiveSpec>,
    /// Limits on metrics. Write `METRIC <= NUMBER` or `METRIC <= NUMBER * control`, or use `>=` or
    /// `=`. Examples: `"latency_p99_us <= 1.05 * control"`, `"throttled_periods = 0"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<String>,
    /// How one configuration is measured.
    #[serde(default)]
    pub evaluation: EvaluationSpec,
    /// When the search ends.
    #[serde(default)]
    pub budget: BudgetSpec,
    /// How the winner is measured again.
    #[serde(default)]
    pub verification: VerificationSpec,
    /// How the search chooses configurations.
    #[serde(default)]
    pub search: SearchSpec,
    /// Let workers (`slackline worker`) on other hosts measure, instead of the server's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersSpec>,
    /// For `mode = "continuous"`: how the service is watched after the promotion, and when
    /// something may change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuous: Option<ContinuousSpec>,
}

/// The workers that may measure an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorkersSpec {
    /// Labels that a worker must have, with these values:
    /// `{ kernel = "6.1.0-41-amd64", rack = "b" }`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Number of evaluations that are measured at once, each on another worker.
    pub at_once: usize,
}

impl Default for WorkersSpec {
    fn default() -> Self {
        Self {
            labels: BTreeMap::new(),
            at_once: 1,
        }
    }
}

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
    /// parameter. For a parameter with two values, list the "off" value first: the search learns an
    /// effect that switches share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<Scalar>>,
    /// Values with a special meaning outside the order of the range, such as 0 for "off". If the
    /// present value of a knob means "no limit" (`max`, −1, near 2^63 or 2^64), it is special
    /// without being listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub special: Vec<Scalar>,
    /// The control's value. Required in an experiment, except for a kernel knob without `write`:
    /// there Slackline reads the present value. `slackline ask-tell` needs no default. It takes the
    /// middle of a range or of an `ordinal`'s values, the first value of a `categorical`, or
    /// `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Scalar>,
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
    pub best_guess: Scalar,
    /// How sure you are: above 0 (no idea) and below 1 (certain).
    pub confidence: f64,
}

/// The service under test. With `start`, Slackline runs two instances of the service, control and
/// experiment. Without `start`, there is one running service, and Slackline switches its knobs and
/// files from block to block. Commands run in the specification's directory. Commands, URLs, `env`,
/// `files` and template files can contain names in braces. `{NAME}` is the value of a parameter or
/// variable. `{port}` and `{dir}` are the instance's own port and directory. `{side}` is `control`
/// or `experiment`. `{spec_dir}` is the specification's directory. Write `{{NAME}}` for the text
/// `{NAME}`. Other braces stay as they are.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetSpec {
    /// `parallel`: both instances are measured at the same time. `alternating`: one side after the
    /// other. `parallel` needs `start`.
    #[serde(default)]
    pub pairing: Pairing,
    /// A command to run before each start of an instance, such as `initdb`. The instance starts
    /// when the command has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare: Option<Vec<String>>,
    /// The command that runs the service. It must stay in the foreground.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<String>>,
    /// Environment variables for all commands except the workload's, in addition to Slackline's own
    /// environment. Read a secret from a file: `DB_PASSWORD = { file = "password.txt" }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, TextOrFile>,
    /// Files to write from templates, before the start or before the `apply` steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileSpec>,
    /// The steps that make a running service use a new configuration: a reload, a restart, an HTTP
    /// request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apply: Vec<ApplySpec>,
    /// How to find out that the service is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadySpec>,
    /// How to stop a service that Slackline started. By default SIGTERM, and SIGKILL after 10 s.
    #[serde(default)]
    pub stop: StopSpec,
    /// Ports of the control's and the experiment's instance. In templates, `{port}` is the port. By
    /// default free ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<[u16; 2]>,
    /// CPUs of the two instances, such as `["0", "1"]`. With `parallel`, the sides swap their CPUs
    /// after every block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<[String; 2]>,
    /// A CPU quota for each instance, in a control group of its own. Throttling is then counted,
    /// too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaSpec>,
    /// Where to count the CPU time of a service that Slackline did not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observe: Option<ObserveSpec>,
}

impl TargetSpec {
    /// It runs by itself, and takes a configuration by files and `apply` steps.
    #[must_use]
    pub fn is_reconfigurable(&self) -> bool {
        self.start.is_none() && !(self.files.is_empty() && self.apply.is_empty())
    }
}

/// A value that may be kept elsewhere, as a secret is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a text, or { file = \"…\" }")]
pub enum TextOrFile {
    /// The value itself.
    Text(String),
    /// The file that holds it, without the end of its last line. Its contents are read when a
    /// command starts, and kept nowhere.
    File(InFile),
}

/// A value in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InFile {
    /// The file, relative to the specification.
    pub file: PathBuf,
}

/// How control and experiment alternate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// A B B A: one side at a time.
    #[default]
    Alternating,
    /// Both at once, each on its own CPUs, which are swapped after every block.
    Parallel,
}

/// A file made from a template.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// The template file, relative to the specification's directory.
    pub template: PathBuf,
    /// Where to write the result. `{dir}` is the instance's own directory.
    pub path: String,
}

/// One step that applies a configuration to a running service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplySpec {
    /// A command. If its exit code is not 0, the service has refused the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// An HTTP request to this URL. If the status is 400 or above, the service has refused the
    /// configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The method of the HTTP request. By default `POST`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The body of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Run the step only if one of these parameters or variables changes. So a parameter that needs
    /// only a reload does not restart the service. Empty: the step runs at each change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<String>,
}

/// How to find out that a service is ready. Give exactly one of `url`, `port` and `command`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadySpec {
    /// The service is ready when a GET of this URL returns a status 2xx or 3xx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The service is ready when 127.0.0.1 accepts connections on this port, such as `"{port}"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The service is ready when this command ends with exit code 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Seconds after which a service that is not ready counts as crashed.
    #[serde(default = "ready_timeout_s")]
    pub timeout_s: f64,
}

fn ready_timeout_s() -> f64 {
    30.0
}

/// How to stop a service that Slackline started.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopSpec {
    /// The signal that ends the service: `TERM`, `INT`, `QUIT` or `KILL`.
    #[serde(default = "stop_signal")]
    pub signal: String,
    /// Seconds after which Slackline kills the service.
    #[serde(default = "stop_grace_s")]
    pub grace_s: f64,
}

fn stop_signal() -> String {
    "TERM".into()
}
fn stop_grace_s() -> f64 {
    10.0
}

impl Default for StopSpec {
    fn default() -> Self {
        Self {
            signal: stop_signal(),
            grace_s: stop_grace_s(),
        }
    }
}

/// Where to count the CPU time of a service that Slackline did not start. Give exactly one key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObserveSpec {
    /// The id of the service's first process. Its descendants count, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// A file that holds the id of the service's first process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_file: Option<PathBuf>,
    /// The service's control group. Throttled periods are counted, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

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
    /// CPUs that the load generator runs on, such as `"2-3"`.
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

impl Spec {
    /// Whether a configuration changes something that outlives the experiment: a knob of the host,
    /// or a service that Slackline does not start.
    #[must_use]
    pub fn changes_host(&self) -> bool {
        let is_of_host = |parameter: &ParameterSpec| {
            parameter.sysctl.is_some()
                || parameter.block_queue.is_some()
                || parameter.cgroup.is_some()
                || parameter.file.is_some()
        };
        let starts = self
            .target
            .as_ref()
            .is_some_and(|target| target.start.is_some());
        !starts || self.parameters.iter().any(is_of_host)
    }

    /// Which way is better, also where there is no objective.
    pub(crate) fn goal(&self) -> Goal {
        let objective = self.objective.as_ref();
        objective.map_or_else(Goal::default, |objective| objective.goal)
    }

    /// Whether a metric reads the latency of the service's requests, so that it can be measured
    /// under its users' load.
    pub(crate) fn reads_latency(&self) -> bool {
        self.metrics.values().any(|it| it.latency().is_some())
    }
}

impl WorkloadSpec {
    /// Slackline loads nothing: the service's own users are the load.
    #[must_use]
    pub fn is_of_users(&self) -> bool {
        self.command.is_empty()
    }
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

/// Against what the objective is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectiveScale {
    /// The ratio to the control of the same block.
    #[default]
    Ratio,
    /// The value itself; the control is measured all the same.
    Absolute,
}

/// The metric to improve.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveSpec {
    /// The name of a metric. From the workload: `requests`, `requests_per_s`, `latency_p99_us`,
    /// `errors` and others that it prints. From the target's processes: `cpu_s`, `cpu_user_s`,
    /// `cpu_system_s`, `context_switches`, `involuntary_switches`, `memory_bytes`. With `quota` or
    /// an observed control group: `periods`, `throttled_periods`, `throttled_s`. From a JVM:
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
    /// `ratio`: the objective is compared with the control's. `absolute`: the value itself counts.
    #[serde(default)]
    pub scale: ObjectiveScale,
}

/// When the search ends: at the limit that is reached first.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetSpec {
    /// Number of evaluations, including failed ones.
    pub evaluations: usize,
    /// Time limit of the search, in minutes. By default no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_time_min: Option<f64>,
}

impl Default for BudgetSpec {
    fn default() -> Self {
        Self {
            evaluations: 20,
            wall_time_min: None,
        }
    }
}

/// How the search chooses configurations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StrategyName {
    /// A Gaussian process decides.
    #[default]
    Bayesian,
    /// Uniformly at random.
    Random,
    /// A scrambled Sobol sequence.
    Sobol,
    /// Latin hypercube.
    LatinHypercube,
}

/// What the Gaussian process maximises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AcquisitionName {
    /// Noisy expected improvement in log form.
    #[default]
    LogNoisyEi,
    /// Expected improvement.
    Ei,
    /// Its logarithm.
    LogEi,
    /// Lower confidence bound, β = 2.
    Ucb,
    /// Probability of improvement.
    Poi,
}

/// How the search chooses configurations.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SearchSpec {
    /// The search strategy.
    pub strategy: StrategyName,
    /// The acquisition function of `bayesian`.
    pub acquisition: AcquisitionName,
    /// Number of configurations that are spread evenly over the space before the model decides. By
    /// default the number of parameters plus one, but at least 4 and at most 6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_random: Option<usize>,
    /// Earlier results from which the search starts, up to 12 files. Each file is a report (`tune
    /// --json`) of an experiment on the same or overlapping parameters, or a `.jsonl` file with
    /// lines `{"config":{…},"value":…}`, as told to `slackline ask-tell`. The search trusts earlier
    /// results only as far as they agree with its own measurements. For `tune`, `value` is the
    /// natural logarithm of the ratio to the control, or with `scale = "absolute"` the measured
    /// value. The objective's `goal` says whether a larger value is better.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warm_start: Vec<PathBuf>,
}

/// The JSON Schema of a specification.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Spec).to_value()
}
