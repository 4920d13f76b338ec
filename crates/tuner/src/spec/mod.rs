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
pub use continuous::{AlertSpec, ContinuousSpec, Mode};
pub use cpus::Pins;
pub use evaluation::{ControlStart, EvaluationSpec, WarmUpRule};
pub use expression::{Comparison, Limit, MetricConstraint};
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
    /// Name of the experiment, for reports; by default the file's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Seed of the search. With the same seed and the same measurements, the search proposes the
    /// same configurations.
    #[serde(default)]
    pub seed: u64,
    /// `once`: search, verify, end. `continuous`: promote, keep watching, search again after a
    /// drift (`serve` only).
    #[serde(default, skip_serializing_if = "Mode::is_once")]
    pub mode: Mode,
    /// What may be changed.
    pub parameters: Vec<ParameterSpec>,
    /// Orderings and linear constraints between parameters: `"min_pool <= max_pool"`,
    /// `"2*threads + cache_mb <= 4096"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameter_constraints: Vec<String>,
    /// Configurations to try first. A parameter that is left out has its default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initial: Vec<BTreeMap<String, Scalar>>,
    /// Constants for the templates. An arm of the verification may have other values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, Scalar>,
    /// The service and how a configuration is applied to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetSpec>,
    /// What loads the service. Without it, the service's own users are the load, and a metric reads
    /// their latency (`wire`, `scrape`, `push`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadSpec>,
    /// Further metrics, by name. The workload and the target's processes give metrics by
    /// themselves.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, MetricSpec>,
    /// What is to become better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<ObjectiveSpec>,
    /// What must hold, as `METRIC <= NUMBER` or `METRIC <= NUMBER * control`, or with `>=` or `=`:
    /// `"latency_p99_us <= 1.05 * control"`, `"throttled_periods = 0"`.
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
    /// How configurations are chosen.
    #[serde(default)]
    pub search: SearchSpec,
    /// Lets workers (`slackline worker`) on other hosts measure, in place of the server's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersSpec>,
    /// How `mode = "continuous"` watches and when it may change something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuous: Option<ContinuousSpec>,
}

/// Which workers may measure an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorkersSpec {
    /// Labels that a worker must have, with these values:
    /// `{ kernel = "6.1.0-41-amd64", rack = "b" }`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Evaluations that are measured at once, each on another worker.
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

/// One parameter: its values and, if it is a kernel knob, which one.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParameterSpec {
    /// Name, as used in templates: `{name}`.
    pub name: String,
    /// Kind of values.
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
    /// `linear` or `log`; `log` needs `low` above 0.
    #[serde(default)]
    pub scale: Scale,
    /// The values of an `ordinal` parameter, in their order, or of a `categorical` one. For a
    /// parameter with two values, list the "off" value first: the search learns an effect that
    /// switches share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<Scalar>>,
    /// Values with a meaning of their own, outside the order of the range, such as 0 = off. A
    /// knob's live value that stands for "no limit" (`max`, −1, near 2^63 or 2^64) is such a value
    /// without being listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub special: Vec<Scalar>,
    /// The control's value. An experiment needs it, unless the parameter is a kernel knob without
    /// `write`, whose live value is read. `slackline ask-tell` needs no default: it takes the
    /// middle of the range or of an `ordinal`'s values, the first of a `categorical`'s values, or
    /// `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Scalar>,
    /// Where the author believes the best value lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prior: Option<PriorSpec>,
    /// This parameter is the sysctl of that name, e.g. `"vm.swappiness"`. If the sysctl is a list,
    /// `[N]` names one value, counted from 0: `"net.ipv4.tcp_rmem[2]"`. The same holds for other
    /// knobs that are lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysctl: Option<String>,
    /// This parameter is a file of a block device's queue: `"vda/read_ahead_kb"`,
    /// `"vda/iosched/fifo_batch"`; `*` in place of `vda` is the device that holds `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_queue: Option<String>,
    /// This parameter is a file of a cgroup (v1 or v2): `"my.slice/cpu.max"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// This parameter is the contents of a file with this absolute path: of sysfs, debugfs or
    /// procfs, or an ordinary file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// This parameter is a scheduling attribute of the target's threads (sched_setattr(2)):
    /// `slice_us`, `nice` or `policy`. If Slackline starts the instances, each instance has its own
    /// value. Otherwise the threads of the service in `target.observe` have this value, and its new
    /// threads, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sched: Option<SchedKind>,
    /// The text written to the knob, if it is more than the value: `"4096 131072 {name}"`; needs
    /// `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<String>,
    /// If the knob is absent, Slackline leaves the parameter out and says so. Without this key,
    /// that is an error.
    #[serde(default)]
    pub optional: bool,
}

/// A belief about the best value.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriorSpec {
    /// The value believed best.
    pub best_guess: Scalar,
    /// Above 0 (no idea) and below 1 (certain).
    pub confidence: f64,
}

/// The service under test.
///
/// With `start`, Slackline runs two instances of it, control and experiment. Without, there is one
/// running system, whose knobs and files are switched from block to block.
///
/// Commands run in the specification's directory. In them, URLs, `env`, `files` and template files
/// `{NAME}` is the value of a parameter or variable; besides, `{port}` and `{dir}` are the
/// instance's own port and directory, `{side}` is `control` or `experiment`, and `{spec_dir}` the
/// specification's directory. `{{NAME}}` is the text `{NAME}`; other braces stay.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetSpec {
    /// Two instances side by side, or one side at a time. `parallel` needs `start`.
    #[serde(default)]
    pub pairing: Pairing,
    /// Command run before each start of an instance, to its end, e.g. `initdb`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare: Option<Vec<String>>,
    /// Command that is the service (it must stay in the foreground).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<String>>,
    /// Environment of all commands but the workload's, beyond Slackline's own. A secret comes from
    /// a file: `DB_PASSWORD = { file = "password.txt" }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, TextOrFile>,
    /// Files made from templates, before the start or the `apply` steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileSpec>,
    /// What tells a running service of a new configuration: reload, restart, an HTTP request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apply: Vec<ApplySpec>,
    /// When the service counts as up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadySpec>,
    /// How a started service is stopped; SIGTERM and 10 s by default.
    #[serde(default)]
    pub stop: StopSpec,
    /// Ports of the control's and the experiment's instance, `{port}` in templates; free ones by
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<[u16; 2]>,
    /// CPUs of the two instances, such as `["0", "1"]`; swapped between the sides after every block
    /// when `parallel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<[String; 2]>,
    /// A CPU quota for each instance, in a control group of its own: throttling is then counted
    /// too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaSpec>,
    /// Where to count the CPU time of a service that Slackline does not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observe: Option<ObserveSpec>,
}

impl TargetSpec {
    /// It runs by itself, and takes a configuration by files and `apply` steps.
    #[must_use]
    pub fn is_told(&self) -> bool {
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
    /// The template, relative to the specification.
    pub template: PathBuf,
    /// Where to put the result; `{dir}` is the instance's own directory.
    pub path: String,
}

/// One step that applies a configuration to a running service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplySpec {
    /// A command. If its exit code is not 0, the configuration is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// An HTTP request to this URL. With a status of 400 or above the configuration is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Its method; `POST` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Its body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The step runs only if one of these parameters or variables changes. So a parameter that
    /// needs only a reload does not restart the service. Empty: the step runs at each change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<String>,
}

/// When a service counts as up; exactly one of `url`, `port`, `command`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadySpec {
    /// A GET of this URL answers 2xx or 3xx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// 127.0.0.1 accepts on this port: `"{port}"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// This command ends with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// A configuration that is not up after this time has crashed.
    #[serde(default = "ready_timeout_s")]
    pub timeout_s: f64,
}

fn ready_timeout_s() -> f64 {
    30.0
}

/// How a started service ends.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopSpec {
    /// The signal that ends the service: `TERM`, `INT`, `QUIT` or `KILL`.
    #[serde(default = "stop_signal")]
    pub signal: String,
    /// After this time Slackline kills the service.
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

/// Where to count CPU time of a service that was running before; exactly one.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObserveSpec {
    /// The service's first process; its descendants count too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// A file that holds that pid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_file: Option<PathBuf>,
    /// The service's cgroup, which gives throttled periods as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

/// What loads the service: run once for each side of each block.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    /// The command; names are filled in as in `target`, and `{duration_s}`, the block's length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Slackline's own load generator, in place of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSpec>,
    /// How its output is read; exactly one of `parse`, `json`, `regex`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parse: Option<Format>,
    /// Metric names and their JSON paths: `{ latency_p99_us = "latency.p99" }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub json: BTreeMap<String, String>,
    /// Metric names and regular expressions whose first group is the number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub regex: BTreeMap<String, String>,
    /// Its environment, beyond Slackline's own, as in `target`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, TextOrFile>,
    /// CPUs it runs on, such as `"2-3"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// The load waits for answers, so its rate is the service's capacity. By default Slackline
    /// decides by the load generator's name and options, if it knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_loop: Option<bool>,
    /// The same load without a fixed rate, which shows the capacity. Slackline runs this command at
    /// the end for the winner and the control, and reads its output as that of `command`. `http`
    /// needs none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capacity_command: Vec<String>,
    /// Its time limit, beyond the block's length.
    #[serde(default = "workload_grace_s")]
    pub grace_s: f64,
    /// Smallest values of metrics on the control. If a value is below, the load was too slow, and
    /// the evaluation has `failed`.
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

/// What is to become better.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveSpec {
    /// The metric, of these: what the workload prints (`requests`, `requests_per_s`,
    /// `latency_p99_us`, `errors` and others); of the target's processes `cpu_s`, `cpu_user_s`,
    /// `cpu_system_s`, `context_switches`, `involuntary_switches`, `memory_bytes`; with `quota`, or
    /// a cgroup that is observed, `periods`, `throttled_periods`, `throttled_s`; of a JVM
    /// `jvm_gc_cycles`, `jvm_gc_time_s`, `jvm_jit_time_s`, `jvm_allocated_bytes`; and those in
    /// `metrics`. `X_per_request` and `X_per_s` of any counted metric X exist by themselves.
    pub metric: String,
    /// `minimise` or `maximise`.
    #[serde(default)]
    pub goal: Goal,
    /// k: the objective is `mean + k·std` over the blocks (`mean − k·std` when maximising).
    #[serde(default)]
    pub std_weight: f64,
    /// `ratio` or `absolute`.
    #[serde(default)]
    pub scale: ObjectiveScale,
}

/// When the search ends, whichever comes first.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetSpec {
    /// Evaluations, the failed ones included.
    pub evaluations: usize,
    /// Minutes; no limit by default.
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

/// How configurations are chosen.
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

/// How configurations are chosen.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SearchSpec {
    /// `bayesian`, `random`, `sobol` or `latin-hypercube`.
    pub strategy: StrategyName,
    /// `log-noisy-ei`, `ei`, `log-ei`, `ucb` or `poi`.
    pub acquisition: AcquisitionName,
    /// Number of configurations that are spread evenly over the space before the model decides. By
    /// default the number of parameters plus one, but at least 4 and at most 6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_random: Option<usize>,
    /// Reports (`tune --json`) of earlier experiments on the same or overlapping parameters, or
    /// `.jsonl` files of `{"config":{…},"value":…}`, lines of what `slackline ask-tell` is told:
    /// the search starts from them, and trusts them as far as they agree with its own measurements.
    /// For `tune` a value is the logarithm of the ratio to the control, or with
    /// `scale = "absolute"` what was measured; the objective's `goal` says whether more of it is
    /// better. 12 at the most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warm_start: Vec<PathBuf>,
}

/// The JSON Schema of a specification.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Spec).to_value()
}
