//! `workload.http`: Slackline's own open-loop load generator, `slackline load`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An HTTP load whose arrivals do not wait for answers; both sides are sent the same requests at the same times.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpSpec {
    /// The URL, such as `"http://127.0.0.1:{port}/"`; with `requests`, what comes before the paths of the list.
    pub url: String,
    /// Requests a second. Exactly one of `rate` and `schedule`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// A file of recorded arrivals, in seconds, one a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<PathBuf>,
    /// A list of requests, one a line: `METHOD /PATH [BODY]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<PathBuf>,
    /// Connections, each with a thread.
    #[serde(default = "connections")]
    pub connections: usize,
    /// Arrivals at equal distances, instead of at random.
    #[serde(default)]
    pub constant: bool,
    /// An answer that takes longer is an error.
    #[serde(default = "timeout_s")]
    pub timeout_s: f64,
    /// The same seed, the same arrivals.
    #[serde(default = "seed")]
    pub seed: u64,
}

fn connections() -> usize {
    64
}
fn timeout_s() -> f64 {
    10.0
}
fn seed() -> u64 {
    1
}

/// What is read of the generator's report.
const METRICS: [&str; 10] = [
    "requests",
    "errors",
    "requests_per_s",
    "latency_mean_us",
    "latency_p50_us",
    "latency_p90_us",
    "latency_p99_us",
    "latency_p999_us",
    "latency_max_us",
    "waited_share",
];

/// Metric names and where they are in the report.
pub(crate) fn metrics() -> BTreeMap<String, String> {
    METRICS
        .into_iter()
        .map(|name| (name.to_owned(), name.to_owned()))
        .collect()
}

impl HttpSpec {
    /// The command that is this load; an error in words with its key.
    pub(crate) fn command(&self) -> Result<Vec<String>, (&'static str, String)> {
        let positive = |key, value: f64| {
            if value > 0.0 && value.is_finite() {
                Ok(())
            } else {
                Err((key, format!("{value} must be above 0")))
            }
        };
        positive("timeout_s", self.timeout_s)?;
        if self.connections == 0 {
            return Err(("connections", "must be above 0".to_owned()));
        }
        let program = std::env::current_exe()
            .map_err(|error| ("url", format!("Slackline does not find itself: {error}")))?;
        let mut command = vec![program.display().to_string(), "load".to_owned()];
        let mut add = |option: &str, value: String| command.extend([option.to_owned(), value]);
        add("--url", self.url.clone());
        match (self.rate, &self.schedule) {
            (Some(rate), None) => {
                positive("rate", rate)?;
                add("--rate", rate.to_string());
            }
            (None, Some(path)) => add("--schedule", path.display().to_string()),
            _ => return Err(("rate", "give exactly one of rate and schedule".to_owned())),
        }
        if let Some(path) = &self.requests {
            add("--requests", path.display().to_string());
        }
        add("--connections", self.connections.to_string());
        add("--timeout-s", self.timeout_s.to_string());
        add("--seed", self.seed.to_string());
        add("--duration-s", "{duration_s}".to_owned());
        if self.constant {
            command.push("--constant".to_owned());
        }
        Ok(command)
    }
}
