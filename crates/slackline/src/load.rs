//! `slackline load`: the HTTP load generator, open loop and closed loop.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use host::Roots;
use load::{Arrivals, Endpoint, HttpRequest, LoadPlan, LoadReport, Pace, ServiceOnHost};

use crate::done::CommandOutcome;
use crate::output::{message, print};
use crate::throttle::{Watched, group_of, process_number};

const SERVICE: &str = "If the service runs on this machine, name it by --pid, --cgroup, --unit or --container. The load generator then \
runs at real-time priority, and the report says which other processes took CPU.";

#[derive(clap::Args)]
#[command(after_help = SERVICE)]
pub(crate) struct Arguments {
    /// The URL, such as http://127.0.0.1:8080/. With `--requests`, the part of the URL before the
    /// paths of the list.
    #[arg(long, value_parser = url)]
    url: String,
    #[command(flatten)]
    pace: PaceArguments,
    #[command(flatten)]
    pub(crate) source: Source,
    /// How long to send requests, in seconds.
    #[arg(long, default_value_t = 10.0, value_parser = seconds, value_name = "S")]
    duration_s: f64,
    /// The service on this machine: the generator then takes real-time priority, and reckons who
    /// else took CPU.
    #[command(flatten)]
    service: Option<Watched>,
    /// The process that is the service, with its descendants, whatever control group they are in.
    #[arg(long, value_name = "PID", conflicts_with = "Watched", hide = true, value_parser = process_number)]
    service_pid: Option<u32>,
    /// The service is on this machine: take real-time priority.
    #[arg(long, hide = true)]
    real_time: bool,
    /// Largest number of seconds to add in place of seconds that other programs or the hypervisor
    /// disturbed. By default half of `--duration-s`, at least two.
    #[arg(long, value_name = "S")]
    repeat_s: Option<f64>,
    /// Exit with code 0 even if the generator or a neighbour was the bottleneck. `bottleneck` in
    /// the report names it.
    #[arg(long)]
    accept_late: bool,
}

/// When requests are sent.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct PaceArguments {
    /// Open loop: requests a second. The rate stays the same even if the service cannot keep up.
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Open loop: a file with recorded arrival times, in seconds, one in each line, in order.
    #[arg(long, value_name = "FILE", conflicts_with = "constant")]
    schedule: Option<PathBuf>,
    /// Closed loop: each connection sends its next request after the answer. This measures the
    /// service's capacity.
    #[arg(long, conflicts_with = "constant")]
    closed: bool,
}

/// What is sent to a URL, and how.
#[derive(clap::Args)]
pub(crate) struct Source {
    /// A file with one request in each line: `METHOD /PATH BODY`. The body is optional. The
    /// requests are sent in order, again and again.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["method", "body", "body_file"])]
    requests: Option<PathBuf>,
    /// The HTTP method, in capitals.
    #[arg(long, default_value = "GET", value_parser = method)]
    method: String,
    /// The body of the request.
    #[arg(long, value_name = "TEXT", conflicts_with = "body_file")]
    body: Option<String>,
    /// A file with the body of the request.
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
    /// A header of every request. Repeatable.
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Largest number of connections. Give more than the number of requests that the service
    /// answers at once. A closed loop uses all of them.
    #[arg(long, default_value_t = 64, value_name = "N")]
    connections: usize,
    /// Threads of the generator. They share the connections. Use at most one for each CPU that the
    /// generator may use.
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Poll instead of sleeping while an answer is awaited or a request is due soon. The latencies
    /// then do not include the time to wake the generator (50 to 150 µs in a virtual machine). Each
    /// thread needs a CPU that nothing else uses (`taskset`).
    #[arg(long)]
    busy_poll: bool,
    /// Close a connection after this number of requests, and open a new one. By default connections
    /// stay open.
    #[arg(long, value_name = "N")]
    requests_per_connection: Option<u64>,
    /// Use HTTP/2. With https, the service must offer it over TLS. With http, the generator uses it
    /// from the first byte on ("prior knowledge").
    #[arg(long)]
    http2: bool,
    /// Largest number of requests at once on one HTTP/2 connection.
    #[arg(long, default_value_t = 100, value_name = "N", requires = "http2")]
    streams: usize,
    /// Connect to this Unix socket. The host and the path still come from the URL.
    #[arg(long, value_name = "PATH")]
    unix_socket: Option<PathBuf>,
    /// Send requests at equal intervals. By default the intervals are random, as with many
    /// independent users.
    #[arg(long)]
    constant: bool,
    /// Seed of the random arrivals. The same seed gives the same arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds after which a request without an answer counts as an error.
    #[arg(long, default_value_t = 10.0, value_parser = seconds, value_name = "S")]
    timeout_s: f64,
}

pub(crate) fn url(text: &str) -> Result<String, String> {
    http_client::check_url(text).map(|()| text.to_owned())
}

fn method(text: &str) -> Result<String, String> {
    load::check_method(text).map(|()| text.to_owned())
}

/// No run is shorter or longer, and no answer waited for less or more: a millisecond, a week.
const SECONDS: RangeInclusive<f64> = 0.001..=604_800.0;

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    seconds
        .filter(|seconds| SECONDS.contains(seconds))
        .ok_or_else(|| format!("it has to be from {} to {}", SECONDS.start(), SECONDS.end()))
}

impl Source {
    /// The plan of the `number`-th run at a rate.
    pub(crate) fn at_rate(
        &self,
        url: &str,
        per_s: f64,
        duration_s: f64,
        number: u64,
    ) -> anyhow::Result<LoadPlan> {
        let seed = self.seed.wrapping_add(number);
        let arrivals = if self.constant {
            Arrivals::Constant { per_s }
        } else {
            Arrivals::Random { per_s, seed }
        };
        self.plan(url, Pace::Open(arrivals), duration_s)
    }

    fn plan(&self, url: &str, pace: Pace, duration_s: f64) -> anyhow::Result<LoadPlan> {
        let seconds = |name: &str, value: f64| {
            Duration::try_from_secs_f64(value).with_context(|| format!("{name} {value}"))
        };
        let mut endpoint = Endpoint::parse(url)?;
        if let Some(path) = &self.unix_socket {
            endpoint = endpoint.by_unix_socket(path);
        }
        Ok(LoadPlan {
            requests: self.requests(&endpoint)?,
            headers: self.headers.clone(),
            connections: self.connections,
            threads: self.threads,
            timeout: seconds("--timeout-s", self.timeout_s)?,
            http2: self.http2,
            streams: self.streams,
            requests_per_connection: self.requests_per_connection,
            busy_poll: self.busy_poll,
            ..LoadPlan::get(endpoint, pace, seconds("--duration-s", duration_s)?)
        })
    }

    fn requests(&self, endpoint: &Endpoint) -> anyhow::Result<Vec<HttpRequest>> {
        if let Some(path) = &self.requests {
            let mut requests = HttpRequest::read_list(path)?;
            for request in &mut requests {
                request.path = endpoint.below(&request.path);
            }
            return Ok(requests);
        }
        let body = match (&self.body, &self.body_file) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, Some(path)) => {
                std::fs::read(path).with_context(|| path.display().to_string())?
            }
            (None, None) => Vec::new(),
        };
        Ok(vec![HttpRequest {
            method: self.method.clone(),
            path: endpoint.path().to_owned(),
            body,
        }])
    }
}

impl Arguments {
    fn pace(&self) -> anyhow::Result<Pace> {
        let (source, pace) = (&self.source, &self.pace);
        Ok(match (&pace.schedule, pace.rate) {
            (Some(path), _) => Pace::Open(Arrivals::read(path)?),
            (None, Some(per_s)) if source.constant => Pace::Open(Arrivals::Constant { per_s }),
            (None, Some(per_s)) => Pace::Open(Arrivals::Random {
                per_s,
                seed: source.seed,
            }),
            (None, None) => Pace::Closed,
        })
    }

    fn service(&self) -> anyhow::Result<ServiceOnHost> {
        if let Some(pid) = self.service_pid {
            return Ok(ServiceOnHost::Process(pid));
        }
        Ok(match &self.service {
            Some(watched) => ServiceOnHost::Group(group_of(&Roots::default(), watched)?),
            None if self.real_time => ServiceOnHost::AmongOthers,
            None => ServiceOnHost::Unknown,
        })
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    let (source, url) = (&arguments.source, &arguments.url);
    let repeat_max = arguments.repeat_s.map(Duration::try_from_secs_f64);
    let plan = LoadPlan {
        service: arguments.service()?,
        repeat_max: repeat_max.transpose().context("--repeat-s")?,
        ..source.plan(url, arguments.pace()?, arguments.duration_s)?
    };
    let interrupt = tuner::process::Interrupt::on_signals().context("signals cannot be caught")?;
    let report: LoadReport = load::run(&plan, &|| interrupt.signal().is_some())?;
    print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    if let Some(signal) = interrupt.signal() {
        return Ok(CommandOutcome::Signal(signal));
    }
    if report.due == 0 {
        anyhow::bail!("no request was due: raise --rate or --duration-s");
    }
    for remark in report.remarks() {
        message(&remark);
    }
    if let Some(failure) = report.failure() {
        message(&failure);
        return Ok(CommandOutcome::Negative);
    }
    if let Some(complaint) = report.complaint() {
        if !arguments.accept_late {
            anyhow::bail!(complaint);
        }
        message(&complaint);
    }
    if let Some(few) = tuner::tail::too_few_in_run(report.latency_requests) {
        message(&few);
    }
    Ok(CommandOutcome::Positive)
}
