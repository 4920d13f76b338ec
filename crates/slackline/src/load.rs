//! `slackline load`: the open-loop HTTP load generator.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use load::{Arrivals, Plan, Report, Request};

use crate::{Done, message, print};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The URL to get, such as http://127.0.0.1:8080/; with `--requests`, what comes before the paths of the list.
    #[arg(long, value_parser = url)]
    url: String,
    #[command(flatten)]
    pub(crate) source: Source,
    /// Requests a second.
    #[arg(long, value_name = "N", required_unless_present = "schedule")]
    rate: Option<f64>,
    /// Arrivals as recorded: a file with a number of seconds in each line, in order.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "constant"])]
    schedule: Option<PathBuf>,
    /// How long requests are due, in seconds.
    #[arg(long, default_value_t = 10.0, value_parser = seconds, value_name = "S")]
    duration_s: f64,
}

/// What is sent to a URL, and how.
#[derive(clap::Args)]
pub(crate) struct Source {
    /// A list of requests, one a line: `METHOD /PATH BODY`, where the body may be missing. They are sent in order, again and again.
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// Connections, each with a thread: more than the service ever answers at once.
    #[arg(long, default_value_t = 64, value_name = "N")]
    connections: usize,
    /// Arrivals at equal distances, instead of at random like those of many users.
    #[arg(long)]
    constant: bool,
    /// The same seed, the same arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// An answer that takes longer is an error.
    #[arg(long, default_value_t = 10.0, value_parser = seconds, value_name = "S")]
    timeout_s: f64,
}

pub(crate) fn url(text: &str) -> Result<String, String> {
    http_client::check_url(text).map(|()| text.to_owned())
}

/// No run is longer, and no answer waited for longer: a week.
const SECONDS_MAX: f64 = 604_800.0;

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    seconds
        .filter(|seconds| *seconds > 0.0 && *seconds <= SECONDS_MAX)
        .ok_or_else(|| format!("it has to be above 0 and at most {SECONDS_MAX}"))
}

impl Source {
    /// The plan of the `number`-th run at a rate.
    pub(crate) fn at_rate(
        &self,
        url: &str,
        per_s: f64,
        duration_s: f64,
        number: u64,
    ) -> anyhow::Result<Plan> {
        let seed = self.seed.wrapping_add(number);
        let arrivals = if self.constant {
            Arrivals::Constant { per_s }
        } else {
            Arrivals::Random { per_s, seed }
        };
        self.plan(url, arrivals, duration_s)
    }

    fn plan(&self, url: &str, arrivals: Arrivals, duration_s: f64) -> anyhow::Result<Plan> {
        let seconds = |name: &str, value: f64| {
            Duration::try_from_secs_f64(value).with_context(|| format!("{name} {value}"))
        };
        Ok(Plan {
            requests: match &self.requests {
                Some(path) => Request::read_list(path, url)?,
                None => vec![Request::get(url)],
            },
            arrivals,
            duration: seconds("--duration-s", duration_s)?,
            connections: self.connections,
            timeout: seconds("--timeout-s", self.timeout_s)?,
            service_group: None,
        })
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Done> {
    let (source, url) = (&arguments.source, &arguments.url);
    let plan = match (&arguments.schedule, arguments.rate) {
        (Some(path), _) => {
            let arrivals = Arrivals::read(path)?;
            source.plan(url, arrivals, arguments.duration_s)?
        }
        (None, rate) => {
            let rate = rate.context("--rate is missing")?;
            source.at_rate(url, rate, arguments.duration_s, 0)?
        }
    };
    let interrupt = tuner::process::Interrupt::on_signals().context("signals cannot be caught")?;
    let report: Report = load::run(&plan, &|| interrupt.signal().is_some())?;
    print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    if let Some(signal) = interrupt.signal() {
        return Ok(Done::Signal(signal));
    }
    if report.due == 0 {
        anyhow::bail!("no request was due: raise --rate or --duration-s");
    }
    if let Some(complaint) = report.complaint() {
        anyhow::bail!(complaint);
    }
    let Some(failure) = report.failure() else {
        return Ok(Done::Positive);
    };
    message(&failure);
    Ok(Done::Negative)
}
