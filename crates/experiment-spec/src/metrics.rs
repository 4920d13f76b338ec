//! Metrics: their names, where they come from, and what can be derived from them.

use std::collections::BTreeSet;

use crate::metric::requests_of;
pub use crate::side_metrics::{SideMetrics, lookup};
use crate::{Spec, TargetSpec, WorkloadSpec};

/// What a target whose processes are known gives: CPU time, context switches, and the memory at the
/// end of the block. (They are known where Slackline starts it, or where `target.observe` names
/// it.)
pub const PROCESS: [&str; 6] = [
    "cpu_s",
    "cpu_user_s",
    "cpu_system_s",
    "context_switches",
    "involuntary_switches",
    "memory_bytes",
];
/// What a target in a known cgroup gives besides: `target.quota` makes one, `target.observe` may
/// name one.
pub const CGROUP: [&str; 3] = ["periods", "throttled_periods", "throttled_s"];
/// What a JVM gives besides, from its `hsperfdata` file.
pub const JVM: [&str; 4] = [
    "jvm_gc_cycles",
    "jvm_gc_time_s",
    JIT_TIME,
    "jvm_allocated_bytes",
];
/// How long a JVM's compilers took.
pub const JIT_TIME: &str = "jvm_jit_time_s";
/// What the built-in output formats may give; see [`crate::Format`].
pub const WORKLOAD: [&str; 16] = [
    "requests",
    "duration_s",
    "requests_per_s",
    "queries_per_s",
    "latency_mean_us",
    "latency_sd_us",
    "latency_p50_us",
    "latency_p75_us",
    "latency_p90_us",
    "latency_p95_us",
    "latency_p99_us",
    "latency_p999_us",
    "latency_max_us",
    "errors",
    "bytes_per_s",
    "late",
];

/// The metric's name with its unit at the end. The latency of requests that `wire`, `scrape` or
/// `push` reads is in microseconds, whatever its name is: `p99` is `p99_us`.
#[must_use]
pub fn with_unit(spec: &Spec, name: &str) -> String {
    let metric = spec.metrics.get(name);
    let is_latency = metric.is_some_and(|metric| metric.latency().is_some());
    match is_latency && !name.ends_with("_us") {
        true => format!("{name}_us"),
        false => name.to_owned(),
    }
}

/// Ends of names, and the unit that each says.
const UNITS: [(&str, &str); 13] = [
    ("_ns", "ns"),
    ("_us", "us"),
    ("_ms", "ms"),
    ("_s", "s"),
    ("_seconds", "s"),
    ("_min", "min"),
    ("_bytes", "bytes"),
    ("_kib", "KiB"),
    ("_mib", "MiB"),
    ("_j", "J"),
    ("_percent", "%"),
    ("_cores", "cores"),
    ("_hz", "Hz"),
];

/// The unit of a metric, which the end of its name says; `None` of a bare count.
///
/// ```
/// use experiment_spec::metrics::unit;
/// assert_eq!(unit("latency_p99_us").as_deref(), Some("us"));
/// assert_eq!(unit("cpu_s_per_request").as_deref(), Some("s/request"));
/// assert_eq!(unit("requests_per_s").as_deref(), Some("1/s"));
/// assert_eq!(unit("errors"), None);
/// ```
#[must_use]
pub fn unit(name: &str) -> Option<String> {
    let per = [("_per_request", "/request"), ("_per_s", "/s")];
    let per = per
        .into_iter()
        .find_map(|(end, per)| Some((name.strip_suffix(end)?, per)));
    let (counted, per) = per.unwrap_or((name, ""));
    // `bytes_per_s` is a unit from end to end.
    let unit = match counted {
        "bytes" => Some("bytes"),
        _ => UNITS
            .into_iter()
            .find_map(|(end, unit)| counted.ends_with(end).then_some(unit)),
    };
    match (unit, per) {
        (None, "") => None,
        (unit, per) => Some(format!("{}{per}", unit.unwrap_or("1"))),
    }
}

/// The metric names an experiment can use.
pub(crate) struct Known(BTreeSet<String>);

impl Known {
    pub(crate) fn of(spec: &Spec, workload: &WorkloadSpec, target: &TargetSpec) -> Self {
        let observe = target.observe.as_ref();
        let is_group = observe.is_some_and(|observe| observe.cgroup.is_some());
        let mut names: BTreeSet<String> = BTreeSet::new();
        let mut add = |known: &[&str]| names.extend(known.iter().map(|name| (*name).to_owned()));
        if target.start.is_some() || observe.is_some() {
            add(&PROCESS);
        }
        if is_group || target.quota.is_some() {
            add(&CGROUP);
        }
        if target.start.is_some() || (observe.is_some() && !is_group) {
            add(&JVM);
        }
        if workload.parse.is_some() {
            names.extend(WORKLOAD.iter().map(|name| (*name).to_owned()));
        }
        names.insert("duration_s".into());
        names.extend(workload.json.keys().cloned());
        names.extend(workload.regex.keys().cloned());
        names.extend(spec.metrics.keys().cloned());
        let latencies = spec.metrics.iter();
        let latencies = latencies.filter(|(_, metric)| metric.latency().is_some());
        names.extend(latencies.map(|(name, _)| requests_of(name)));
        if workload.is_of_users() {
            names.insert("requests".into());
        }
        Self(names)
    }

    /// What would make the metric known.
    fn hint(&self, name: &str) -> &'static str {
        let is_of = |group: &[&str]| group.iter().any(|known| name.starts_with(known));
        if is_of(&CGROUP) {
            "; throttling is counted where target.quota limits the service, or target.observe names its cgroup"
        } else if is_of(&PROCESS) || is_of(&JVM) {
            "; processes are counted where target.start starts them, or target.observe names them"
        } else {
            ""
        }
    }

    /// An error in words for a metric that no block will have.
    pub(crate) fn check(&self, name: &str) -> Result<(), String> {
        let unit: SideMetrics = self.0.iter().map(|known| (known.clone(), 1.0)).collect();
        if lookup(&unit, name).is_some() {
            return Ok(());
        }
        Err(format!(
            "no metric is called {name:?}; there are {}, and X_per_request and X_per_s of each{}",
            self.0.iter().cloned().collect::<Vec<_>>().join(", "),
            self.hint(name)
        ))
    }
}
