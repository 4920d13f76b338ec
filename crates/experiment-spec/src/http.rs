//! `workload.http`: Slackline's own load generator, `slackline load`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An HTTP load. With `rate` or `schedule`, arrivals do not wait for answers, and both sides get
/// the same requests at the same times. With `closed`, each connection sends its next request after
/// the answer. This shows the capacity.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpSpec {
    /// The URL, such as `"http://127.0.0.1:{port}/"`. With `requests`, the part of the URL before
    /// the paths of the list.
    pub url: String,
    /// Requests a second. Give exactly one of `rate`, `schedule` and `closed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// A file with recorded arrival times, in seconds, one in each line, in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<PathBuf>,
    /// `true`: a closed loop, in which each connection sends its next request after the answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
    /// A file with one request in each line: `METHOD /PATH [BODY]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<PathBuf>,
    /// The HTTP method of a single request, in capitals. By default GET.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The body of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Headers of every request: `{ "Content-Type" = "application/json" }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Threads of the generator. They share the connections. Use at most one for each CPU of the
    /// generator.
    #[serde(default = "threads")]
    pub threads: usize,
    /// Close a connection after this number of requests, and open another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_connection: Option<u64>,
    /// `true`: use HTTP/2.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub http2: bool,
    /// Largest number of requests at once on one HTTP/2 connection. By default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<usize>,
    /// Connect to this Unix socket. Host and path still come from `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_socket: Option<String>,
    /// The largest number of connections.
    #[serde(default = "connections")]
    pub connections: usize,
    /// `true`: requests at equal intervals. `false`: at random intervals.
    #[serde(default)]
    pub constant: bool,
    /// Seconds after which a request without an answer counts as an error.
    #[serde(default = "timeout_s")]
    pub timeout_s: f64,
    /// Seed of the random arrivals. The same seed gives the same arrivals.
    #[serde(default = "seed")]
    pub seed: u64,
}

fn connections() -> usize {
    64
}
fn threads() -> usize {
    1
}
fn timeout_s() -> f64 {
    10.0
}
fn seed() -> u64 {
    1
}

/// What is read of the generator's report.
const METRICS: [&str; 11] = [
    "requests",
    "errors",
    "requests_per_s",
    "bytes_per_s",
    "latency_mean_us",
    "latency_p50_us",
    "latency_p90_us",
    "latency_p99_us",
    "latency_p999_us",
    "latency_max_us",
    "waited_share",
];

/// Metrics that a late generator, or a neighbour, makes wrong.
fn is_time(name: &str) -> bool {
    name.starts_with("latency_") || name == "waited_share"
}

/// Metric names and where they are in the report.
pub fn http_metrics() -> BTreeMap<String, String> {
    METRICS
        .into_iter()
        .map(|name| (name.to_owned(), name.to_owned()))
        .collect()
}

impl HttpSpec {
    /// The command that is this load; an error in words with its key.
    pub fn command(&self) -> Result<Vec<String>, (&'static str, String)> {
        let positive = |key, value: f64| {
            if value > 0.0 && value.is_finite() {
                Ok(())
            } else {
                Err((
                    key,
                    format!("{} must be above 0", bayes_opt::readable(value)),
                ))
            }
        };
        positive("timeout_s", self.timeout_s)?;
        if self.connections == 0 {
            return Err(("connections", "must be above 0".to_owned()));
        }
        if self.threads == 0 {
            return Err(("threads", "must be above 0".to_owned()));
        }
        let program = std::env::current_exe()
            .map_err(|error| ("url", format!("Slackline does not find itself: {error}")))?;
        let mut command = vec![program.display().to_string(), "load".to_owned()];
        let mut add = |option: &str, value: String| command.extend([option.to_owned(), value]);
        add("--url", self.url.clone());
        match (self.rate, &self.schedule, self.closed) {
            (Some(rate), None, false) => {
                positive("rate", rate)?;
                add("--rate", rate.to_string());
            }
            (None, Some(path), false) => add("--schedule", path.display().to_string()),
            (None, None, true) if !self.constant => command.push("--closed".to_owned()),
            (None, None, true) => {
                return Err(("constant", "a closed loop has no arrivals".to_owned()));
            }
            _ => {
                let one = "give exactly one of rate, schedule and closed".to_owned();
                return Err(("rate", one));
            }
        }
        self.add_request(&mut command)?;
        let mut add = |option: &str, value: String| command.extend([option.to_owned(), value]);
        add("--connections", self.connections.to_string());
        add("--threads", self.threads.to_string());
        add("--timeout-s", self.timeout_s.to_string());
        add("--seed", self.seed.to_string());
        add("--duration-s", "{duration_s}".to_owned());
        if self.constant {
            command.push("--constant".to_owned());
        }
        // The report says who was late: latency is set aside then, and what else was measured
        // counts.
        command.push("--accept-late".to_owned());
        Ok(command)
    }

    /// What is sent, and over which kind of connection.
    fn add_request(&self, command: &mut Vec<String>) -> Result<(), (&'static str, String)> {
        let mut add = |option: &str, value: String| command.extend([option.to_owned(), value]);
        if let Some(path) = &self.requests {
            if self.method.is_some() || self.body.is_some() {
                let why = "the list of requests has methods and bodies of its own".to_owned();
                return Err(("requests", why));
            }
            add("--requests", path.display().to_string());
        }
        if let Some(method) = &self.method {
            http_client::check_method(method).map_err(|why| ("method", why))?;
            add("--method", method.clone());
        }
        if let Some(body) = &self.body {
            add("--body", body.clone());
        }
        for (name, value) in &self.headers {
            add("--header", format!("{name}: {value}"));
        }
        if let Some(path) = &self.unix_socket {
            add("--unix-socket", path.clone());
        }
        if let Some(number) = self.requests_per_connection {
            if number == 0 {
                return Err(("requests_per_connection", "must be above 0".to_owned()));
            }
            add("--requests-per-connection", number.to_string());
        }
        if let Some(streams) = self.streams {
            if !self.http2 {
                return Err(("streams", "belongs to http2 = true".to_owned()));
            }
            add("--streams", streams.to_string());
        }
        if self.http2 {
            command.push("--http2".to_owned());
        }
        Ok(())
    }

    /// The same requests without a rate: each connection waits for its answers.
    pub fn saturated(&self) -> Self {
        Self {
            rate: None,
            schedule: None,
            closed: true,
            constant: false,
            ..self.clone()
        }
    }

    /// How long a run of `duration_s` may take: seconds that were disturbed are repeated, and the
    /// last answer is waited for.
    pub fn longest_s(&self, duration_s: f64) -> f64 {
        duration_s + (0.5 * duration_s).max(2.0) + self.timeout_s
    }

    /// Whether the generator's own lateness, or a neighbour, makes this metric wrong.
    pub fn is_hurt(&self, metric: &str) -> bool {
        is_time(metric) || (self.closed && metric.starts_with("requests_per_s"))
    }

    /// Whether the service is surely on this machine.
    pub fn is_local(&self) -> bool {
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let here = ["127.", "localhost", "[::1]"];
        self.unix_socket.is_some() || here.iter().any(|host| rest.starts_with(host))
    }
}
