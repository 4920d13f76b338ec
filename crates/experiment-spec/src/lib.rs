//! The experiment's specification, as its author writes it in TOML or JSON.
//!
//! The types here are only the shape: what `slackline schema` prints and serde checks.
//! [`SpecContext::load`] turns a file into a [`CheckedSpec`] whose every promise (ranges, names,
//! units) has been tested against itself and against this host.
//!
//! ```
//! let text = r#"
//! parameters = [{ name = "pool", type = "int", low = 1, high = 64, default = 8 }]
//! target = { start = ["sleep", "9"] }
//! workload = { command = ["load", "{pool}"], json = { requests = "requests" } }
//! objective = { metric = "cpu_s_per_request" }
//! "#;
//! let roots = host::Roots::default();
//! let context = experiment_spec::SpecContext::new(&roots);
//! let spec = context.check(text.to_owned(), "pool.toml".as_ref())?;
//! assert_eq!(spec.name, "pool");
//! assert_eq!(spec.space.default_configuration().to_string(), "pool=8");
//!
//! let wrong = text.replace("high = 64", "high = 0");
//! let error = context.check(wrong, "pool.toml".as_ref()).unwrap_err();
//! assert_eq!(error.to_string(), "pool.toml:2: parameters[0].low: is 1, but it has to be below `high`, 0");
//! # Ok::<(), experiment_spec::SpecError>(())
//! ```
//!
//! Architecture invariant: nothing here starts, measures or changes anything, and nothing knows
//! who does. The crate reads files and kernel interfaces to check what was written.

#![forbid(unsafe_code)]

mod calendar;
mod check;
mod check_continuous;
mod check_metrics;
mod checked;
mod configuration;
mod context;
mod continuous;
mod cpus;
pub mod credentials;
mod earlier;
pub mod environment;
mod error;
mod evaluation;
mod expression;
mod form;
mod format;
mod guard;
mod hours;
mod http;
mod json_path;
mod knobs;
mod load_loop;
mod locate;
mod masks;
mod metric;
pub mod metrics;
mod numbers;
mod objective;
mod parameter;
mod parameters;
mod pattern;
mod plan;
mod quota;
mod reading;
mod rules;
mod sched;
mod search;
mod side_metrics;
mod target;
pub mod template;
mod templates;
mod text;
mod verification;
mod warm_control;
mod workload;

pub use calendar::day_start;
pub use check::{NAME_CHARS_MAX, check_dir};
pub use checked::CheckedSpec;
pub use config_errors::plain;
pub use context::{EarlierReader, SpecContext};
pub use continuous::{AlertSpec, ContinuousSpec, ExperimentMode};
pub use cpus::Pins;
pub use error::SpecError;
pub use evaluation::{ControlStart, EvaluationSpec, WarmUpRule};
pub use expression::{Comparison, ConstraintLimit, MetricConstraint};
pub use form::is_line;
pub use format::Format;
pub use guard::Guard;
pub use hours::Hours;
pub use http::{HttpSpec, http_metrics};
pub use json_path::{JsonStep, check_json_path, json_steps};
pub use knobs::{Element, KnobBinding, Originals, refused_knob};
pub use load_loop::LoadLoop;
pub use locate::{Source, line_of};
pub use masks::Masks;
pub use metric::{LatencyMetric, MetricSpec, PushMetric, ScrapeMetric, WireMetric, requests_of};
pub use numbers::{EVALUATIONS_MAX, check_wall_time};
pub use objective::{Goal, ObjectiveScale, ObjectiveSpec};
pub use parameter::{ParameterSpec, ParameterType, PriorSpec, Scale};
pub use parameters::{arm_configuration, as_written_here};
pub use pattern::{check_regex, compile_regex};
pub use plan::PlannedTime;
pub use quota::QuotaSpec;
pub use reading::{check_numbers, check_text};
pub use rules::ContinuousRules;
pub use sched::SchedKind;
pub use search::{AcquisitionName, SearchSpec, StrategyName};
pub use target::{
    ApplySpec, FileSpec, InFile, ObserveSpec, Pairing, ReadySpec, StopSpec, TargetSpec, TextOrFile,
};
pub use text::{is_deceptive, significant};
pub use verification::{ArmSpec, VerificationSpec};
pub use workload::WorkloadSpec;

use std::collections::BTreeMap;

use bayes_opt::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// `once`, the default: search, verify, end. `continuous`: promote, keep watching, search
    /// again after a drift of the workload or of the gain (`serve` only).
    #[serde(default, skip_serializing_if = "ExperimentMode::is_once")]
    pub mode: ExperimentMode,
    /// The parameters: what may be changed.
    pub parameters: Vec<ParameterSpec>,
    /// Conditions on several parameters: an order (`"min_pool <= max_pool"`) or a linear constraint
    /// (`"2*threads + cache_mb <= 4096"`). The search proposes only configurations that satisfy all
    /// conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameter_constraints: Vec<String>,
    /// Configurations to try first. A parameter that you leave out has its default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initial: Vec<BTreeMap<String, Value>>,
    /// Constants for templates. An arm of the verification can have other values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, Value>,
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
    #[must_use]
    pub fn goal(&self) -> Goal {
        let objective = self.objective.as_ref();
        objective.map_or_else(Goal::default, |objective| objective.goal)
    }

    /// Whether a metric reads the latency of the service's requests, so that it can be measured
    /// under its users' load.
    #[must_use]
    pub fn reads_latency(&self) -> bool {
        self.metrics.values().any(|it| it.latency().is_some())
    }
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

/// The JSON Schema of a specification.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Spec).to_value()
}
