//! What can go wrong.

use std::path::PathBuf;
use std::process::ExitStatus;

use host::HostError;
use paired_stats::StatsError;
use tuner::parse::ParseError;
use tuner::process::Stop;
use wire_latency::NoData;

/// Why there is no plan for the generator.
pub type PlanError = Box<dyn std::error::Error + Send + Sync>;

/// Why a service cannot be watched, recorded, loaded or tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThrottleError {
    /// The host refuses.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The kernel gives no tracepoints.
    #[error(transparent)]
    Tracepoints(#[from] perf_events::Error),
    /// The packets cannot be read.
    #[error(transparent)]
    Packets(#[from] wire_latency::Error),
    /// The load cannot be made.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// There are too few values for an interval.
    #[error(transparent)]
    Statistics(#[from] StatsError),
    /// Signals cannot be caught.
    #[error("signals cannot be caught: {0}")]
    Signals(#[source] std::io::Error),
    /// A signal came.
    #[error("stopped by signal {signal}")]
    Stopped {
        /// Its number.
        signal: i32,
    },
    /// A signal came while a limit settled.
    #[error("stopped by {stop}")]
    StoppedBy {
        /// Who stopped it.
        stop: Stop,
    },
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A recording is no JSON, or has other keys.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A recording describes no service that can be simulated.
    #[error("{}: {reason}", path.display())]
    Service {
        /// The file.
        path: PathBuf,
        /// The key, and what it must be.
        reason: String,
    },

    /// A path is one of another controller.
    #[error(
        "{path} is not in the hierarchy of the cpu controller: name the group from the root of that on, such as --cgroup \
         system.slice/nginx.service"
    )]
    OtherHierarchy {
        /// The path.
        path: String,
    },
    /// There is no such control group.
    #[error("there is no control group {}: is the service running, and in this hierarchy?", path.display())]
    NoGroup {
        /// Its path.
        path: PathBuf,
    },
    /// A unit or a container has no control group, or several.
    #[error("{reason}")]
    NotOneGroup {
        /// What there is, and what to do.
        reason: String,
    },
    /// No process is left in the group.
    #[error("no process is left in {group}")]
    Empty {
        /// The group.
        group: String,
    },
    /// Another group has the limit.
    #[error(
        "the limit of {group} comes from {by} ({cores:.2} cores): {to} that group, give --cgroup {by_path}"
    )]
    LimitedByAnother {
        /// The group, for people.
        group: String,
        /// The one with the limit, for people.
        by: String,
        /// Its path.
        by_path: String,
        /// Its limit.
        cores: f64,
        /// What is done with a limit.
        to: &'static str,
    },
    /// Neither the group nor one above it has a quota.
    #[error("{group} has no CPU quota, nor has a group above it: nothing is throttled")]
    NoQuota {
        /// The group, for people.
        group: String,
    },
    /// There is no pool of this name.
    #[error("no pool is named {name:?}: the pools are {known}")]
    NoPool {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// No thread did anything.
    #[error("no thread of the group ran: is the service under load?")]
    NothingRan,
    /// A URL has no port that could be replaced.
    #[error("{url:?} is no URL with a port")]
    UrlWithoutPort {
        /// The URL.
        url: String,
    },

    /// A command of the user's cannot be started.
    #[error("{option}: {source}")]
    Shell {
        /// The option that has it.
        option: &'static str,
        /// The reason.
        source: std::io::Error,
    },
    /// A command of the user's failed.
    #[error("{option}: {command:?} ended with {status}: {said}")]
    Command {
        /// The option that has it.
        option: &'static str,
        /// The command.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it printed, in short.
        said: String,
    },

    /// The root group cannot be limited.
    #[error("the root group has no limit: name a group below it")]
    RootHasNoLimit,
    /// The journal is not empty.
    #[error("an earlier run left something to undo: run `slackline restore` first")]
    LeftOver,
    /// The limit to try is the present one.
    #[error("that is the present limit: give another --quota, --period-ms or --burst-ms")]
    SameLimit,
    /// A number is not in its range.
    #[error("{option} must be {must}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its range.
        must: String,
    },
    /// The kernel refuses such a quota.
    #[error(
        "the kernel refuses a quota below 1 ms in a period: give a larger --quota or --period-ms"
    )]
    QuotaTooSmall,
    /// The limit of another group contradicts this one.
    #[error(
        "the kernel refuses \"{value}\" in {}: the limit of a group above or below contradicts it. With cgroup v1, a group may \
         not have more than the group above it, and not less than a group below it",
        path.display()
    )]
    LimitContradicted {
        /// The kernel's file.
        path: PathBuf,
        /// What was written.
        value: String,
    },
    /// A block has no figure of latency.
    #[error("--port: no data: {0}")]
    NoFigure(#[source] NoData),
    /// A metric is no number.
    #[error("--metric printed {printed:?} instead of a number")]
    MetricIsNoNumber {
        /// What it printed.
        printed: String,
        /// The reason.
        source: std::num::ParseFloatError,
    },
    /// A metric has no ratio.
    #[error("the metric is {value}: only numbers above 0 have a ratio")]
    MetricHasNoRatio {
        /// The metric.
        value: f64,
    },
    /// The blocks have no ratio.
    #[error("the metric has no ratio")]
    NoRatio(#[source] StatsError),
    /// Nobody can tell what was throttled.
    #[error("the counters of {group} cannot be read")]
    NoCounters {
        /// The group.
        group: String,
    },
    /// No thread of this name did a job.
    #[error("no thread named {name} did a job: threads with jobs are named {known}")]
    NoJobOf {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// No thread did a job.
    #[error("no thread of the group did a job within a block: is the service under load?")]
    NoJob,
    /// No job of a pool ended.
    #[error("no job of {name} ended within a block")]
    NoJobEnded {
        /// The pool.
        name: String,
    },

    /// There is no plan for the generator.
    #[error(transparent)]
    Plan(PlanError),
    /// The thread that made the load panicked.
    #[error("the load generator panicked")]
    GeneratorPanicked,
    /// No rate divides holding from failing.
    #[error(
        "{side}: the highest load was not found: from --start to {last_per_s:.3} requests/s the objective always held, or never: is --slo-p99-ms right?"
    )]
    NoCapacity {
        /// The side.
        side: &'static str,
        /// The last rate that was tried.
        last_per_s: f64,
    },
    /// The service takes more than the generator sends.
    #[error(
        "the service takes more load than the generator can send: the objective held at {held_per_s:.1} requests/s, and at {per_s:.1} requests/s {complaint}"
    )]
    GeneratorLimit {
        /// The highest rate that the service held.
        held_per_s: f64,
        /// The rate that the generator did not hold.
        per_s: f64,
        /// What held it up.
        complaint: String,
    },
    /// The generator was held up each time.
    #[error("at {per_s:.1} requests/s, in {attempts} attempts, {complaint}")]
    Disturbed {
        /// The rate.
        per_s: f64,
        /// How often it was tried.
        attempts: usize,
        /// What held it up.
        complaint: String,
    },
    /// A run was too short for a request.
    #[error(
        "at {per_s:.3} requests/s no request was due within --step-s {step_s}, so nothing was measured: raise --start or --step-s. If \
         all higher rates failed, check the service and --slo-p99-ms"
    )]
    NothingDue {
        /// The rate.
        per_s: f64,
        /// Length of the run, in seconds.
        step_s: f64,
    },
    /// No request reached the service.
    #[error("at {per_s:.1} requests/s {failure}")]
    NobodyReached {
        /// The rate.
        per_s: f64,
        /// The reason.
        failure: String,
    },
    /// The report of another generator cannot be read.
    #[error("--command: {0}")]
    Output(#[source] ParseError),
    /// pgbench counts transactions above another limit.
    #[error(
        "the output counts transactions above {limit_ms} ms, but the objective is {slo_p99_ms} ms: give pgbench -L {slo_p99_ms}"
    )]
    OtherObjective {
        /// pgbench's limit, in milliseconds.
        limit_ms: f64,
        /// The objective, in milliseconds.
        slo_p99_ms: f64,
    },
    /// A report has no 99th percentile.
    #[error("the output has no 99th percentile of latency: {advice}")]
    NoPercentile {
        /// What to do.
        advice: &'static str,
    },

    /// The server's address is none.
    #[error("--prometheus {url}: {reason}")]
    PrometheusUrl {
        /// The address, without credentials.
        url: String,
        /// Why not.
        reason: String,
    },
    /// Prometheus refuses a query.
    #[error("Prometheus refused {query}: {kind}: {message}{hint}")]
    QueryRefused {
        /// The query.
        query: String,
        /// The kind of error.
        kind: String,
        /// Prometheus' words.
        message: String,
        /// What to do.
        hint: &'static str,
    },
    /// Nobody answers.
    #[error("there is no answer; is Prometheus running, and is --prometheus its base URL?")]
    NoPrometheus {
        /// The reason.
        source: http_client::Error,
    },
    /// Whoever answers is no Prometheus.
    #[error(transparent)]
    Prometheus(http_client::Error),
    /// An answer has another type.
    #[error("Prometheus' answer to {query} is not an instant vector")]
    NoVector {
        /// The query.
        query: String,
    },
    /// Prometheus knows of no agent.
    #[error(
        "there is no series slackline_cpu_usage_seconds_total with two samples within {window_s} s{matchers}: does this \
         Prometheus scrape the agents, at an interval well below --window-s?"
    )]
    NoAgents {
        /// How much time was asked about, in seconds.
        window_s: u32,
        /// ` and {…}` where matchers are given.
        matchers: String,
    },
}

impl ThrottleError {
    /// Whether a privilege or a kernel feature is missing (exit code 3).
    #[must_use]
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::Host(error) => error.is_missing_privilege(),
            Self::Load(error) => error.is_missing_privilege(),
            Self::Tracepoints(_) => true,
            Self::Packets(error) => error.is_missing_privilege(),
            _ => false,
        }
    }
}
