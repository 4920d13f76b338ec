//! Where latencies come from: what a user writes, and what every source can do.

use std::fmt;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::promql::ranges;
use crate::protocol::Protocol;
use crate::reading::{NoData, Slice};
use crate::stopper::Stopper;

/// A place that latencies come from.
pub trait LatencySource: Send {
    /// The source in a few words, without credentials: `the wire, TCP port 8080`.
    fn describe(&self) -> String;

    /// Collects until `until`, and returns what was seen since the last call. May return later than
    /// `until` where the source answers slowly.
    ///
    /// # Errors
    /// The reason for no data. The next call tries again.
    fn poll(&mut self, until: Instant) -> Result<Slice, NoData>;

    /// Ends what the source runs, from another thread; `None` where it runs nothing.
    fn stopper(&self) -> Option<Stopper> {
        None
    }
}

/// Where the latency of a service is read.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceSpec {
    /// Measure requests and answers in the network packets of the service's TCP port. Needs
    /// CAP_NET_RAW.
    Wire(WireSpec),
    /// Read a histogram on the service's own page of metrics. The latency is computed from the
    /// increase of the buckets.
    Scrape(ScrapeSpec),
    /// Ask a Prometheus server.
    Prometheus(PrometheusSpec),
    /// Run a command, given with its arguments. The command prints two numbers for the time since
    /// it last ran: the latency at the objective's percentile in milliseconds, and the number of
    /// requests.
    Command(Vec<String>),
    /// Receive timers that the service sends to a datagram socket, in the format of statsd
    /// (`name:12.5|ms`).
    Push(PushSpec),
}

/// The key of a source.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum SourceKey {
    Wire,
    Scrape,
    Prometheus,
    Command,
    Push,
}

/// What is said where there is no source, or more than one.
const ONE_SOURCE: &str = "give exactly one of wire, scrape, prometheus, command and push";

impl<'de> Deserialize<'de> for SourceSpec {
    /// By hand, as the derived form would not name the keys.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneSource;

        impl<'de> Visitor<'de> for OneSource {
            type Value = SourceSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a source, such as { wire = { port = 8080 } }")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SourceSpec, A::Error> {
                let mut found = None;
                while let Some(key) = map.next_key::<SourceKey>()? {
                    if found.is_some() {
                        return Err(A::Error::custom(ONE_SOURCE));
                    }
                    found = Some(match key {
                        SourceKey::Wire => SourceSpec::Wire(map.next_value()?),
                        SourceKey::Scrape => SourceSpec::Scrape(map.next_value()?),
                        SourceKey::Prometheus => SourceSpec::Prometheus(map.next_value()?),
                        SourceKey::Command => SourceSpec::Command(map.next_value()?),
                        SourceKey::Push => SourceSpec::Push(map.next_value()?),
                    });
                }
                found.ok_or_else(|| A::Error::custom(ONE_SOURCE))
            }
        }

        deserializer.deserialize_map(OneSource)
    }
}

/// What cannot be meant in a specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct Wrong {
    /// The key, below the one that the source is written under: `wire.port`.
    pub key: String,
    /// What is wrong with it.
    pub why: String,
}

impl Wrong {
    pub(crate) fn new(key: &str, why: impl Into<String>) -> Self {
        Self {
            key: key.to_owned(),
            why: why.into(),
        }
    }
}

impl SourceSpec {
    /// Checks what the text alone shows. Nothing is opened and nobody is asked.
    ///
    /// # Errors
    /// The key and the reason.
    pub fn check(&self) -> Result<(), Wrong> {
        match self {
            Self::Wire(spec) => spec.check(),
            Self::Scrape(spec) => spec.check(),
            Self::Prometheus(spec) => spec.check(),
            Self::Push(spec) => spec.check(),
            Self::Command(argv) if argv.first().is_none_or(String::is_empty) => {
                Err(Wrong::new("command", "name a program"))
            }
            Self::Command(argv) if argv.iter().any(|word| word.contains('\0')) => Err(Wrong::new(
                "command",
                "a word of a command has no NUL in it",
            )),
            Self::Command(_) => Ok(()),
        }
    }

    /// Whether the source is asked once a second at most, so that each figure is of a second or
    /// more.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        !matches!(self, Self::Wire(_) | Self::Push(_))
    }
}

/// Latency measured in the network packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WireSpec {
    /// The service's TCP port.
    pub port: u16,
    /// The protocol on the port. By default Slackline detects the protocol from the first bytes of
    /// each connection. `turns` is any other protocol in which client and server take turns.
    #[serde(default, skip_serializing_if = "Protocol::is_auto")]
    pub protocol: Protocol,
    /// The id of a process in whose network namespace Slackline reads the packets. By default the
    /// namespace of the watched service. Without a watched service, it is Slackline's own
    /// namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// CPU that reading the packets may use, in cores: above 0, at most 1. If all packets cost
    /// more, Slackline reads a sample of the connections. By default 0.01. In `isolate`, all
    /// services together have 0.0025 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_budget_cores: Option<f64>,
}

/// One hundredth of a core: a sampled p99 at 10,000 requests a second still stands on thousands of
/// requests in 15 s (docs/results/wire-latency.md).
const CPU_BUDGET_CORES: f64 = 0.01;
/// The highest id that a process can have (include/linux/threads.h, `PID_MAX_LIMIT`).
const PID_MAX: u32 = 4 * 1024 * 1024;

impl WireSpec {
    pub(crate) fn check(&self) -> Result<(), Wrong> {
        if self.port == 0 {
            return Err(Wrong::new("wire.port", "0 is no port"));
        }
        if !self.pid.is_none_or(|pid| (1..=PID_MAX).contains(&pid)) {
            let why = format!("must be the id of a process: 1 to {PID_MAX}");
            return Err(Wrong::new("wire.pid", why));
        }
        // One thread reads the packets.
        let is_budget = |cores: f64| cores > 0.0 && cores <= 1.0;
        if !self.cpu_budget_cores.is_none_or(is_budget) {
            let why = "must be above 0 and at most 1";
            return Err(Wrong::new("wire.cpu_budget_cores", why));
        }
        Ok(())
    }

    /// The defaults for a port.
    #[must_use]
    pub fn of_port(port: u16) -> Self {
        Self {
            port,
            protocol: Protocol::Auto,
            pid: None,
            cpu_budget_cores: None,
        }
    }
}

/// Unit of a foreign figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Seconds, as Prometheus' conventions have it.
    #[default]
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
}

impl Unit {
    /// Microseconds in one of it.
    #[must_use]
    pub fn us(self) -> f64 {
        match self {
            Self::Seconds => 1e6,
            Self::Milliseconds => 1e3,
            Self::Microseconds => 1.0,
        }
    }
}

/// A histogram on a service's own page of metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrapeSpec {
    /// The page, such as `"http://127.0.0.1:9090/metrics"`.
    pub url: String,
    /// The histogram's name, without `_bucket`.
    pub histogram: String,
    /// Labels that a series must have. All matching series are added up.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub labels: std::collections::BTreeMap<String, String>,
    /// Unit of the buckets' bounds.
    #[serde(default)]
    pub unit: Unit,
}

impl ScrapeSpec {
    pub(crate) fn check(&self) -> Result<(), Wrong> {
        http_client::check_url(&self.url).map_err(|why| Wrong::new("scrape.url", why))?;
        let histogram = self.histogram.as_str();
        if histogram.trim().is_empty() {
            return Err(Wrong::new("scrape.histogram", "name a histogram"));
        }
        if histogram.contains(|it: char| it.is_whitespace() || it == '{') {
            let why = "must be the name alone: the labels are in the key labels";
            return Err(Wrong::new("scrape.histogram", why));
        }
        if let Some(name) = histogram.strip_suffix("_bucket") {
            let why = format!("must be the name without _bucket: {name:?}");
            return Err(Wrong::new("scrape.histogram", why));
        }
        // A histogram of one bucket has no percentile.
        match self.labels.contains_key("le") {
            true => Err(Wrong::new(
                "scrape.labels.le",
                "le tells the buckets apart: leave it out",
            )),
            false => Ok(()),
        }
    }
}

/// A query to a Prometheus server, or to a store with the same API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrometheusSpec {
    /// Base URL of the server.
    pub url: String,
    /// An instant query. Its result is either buckets by `le` (`sum by (le)
    /// (increase(http_seconds_bucket[30s]))`) or one number: the latency at the objective's
    /// percentile. One number needs the key `requests`, too.
    pub query: String,
    /// An instant query for the number of requests behind the one number of `query`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<String>,
    /// The time that the query covers, in seconds: 1 to 86,400. By default the range in the query
    /// (`[30s]`).
    /// Required if the query has no range, or different ranges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<f64>,
    /// Unit of the number, or of the buckets' bounds.
    #[serde(default)]
    pub unit: Unit,
}

/// How far a query can look back, in seconds: from Prometheus' usual resolution to a day, which is
/// no figure of now any more.
const QUERY_WINDOW_S: RangeInclusive<f64> = 1.0..=86_400.0;

impl PrometheusSpec {
    pub(crate) fn check(&self) -> Result<(), Wrong> {
        http_client::check_url(&self.url).map_err(|why| Wrong::new("prometheus.url", why))?;
        let queries = [
            ("prometheus.query", Some(&self.query)),
            ("prometheus.requests", self.requests.as_ref()),
        ];
        for (key, query) in queries {
            if query.is_some_and(|query| query.trim().is_empty()) {
                return Err(Wrong::new(key, "write a query"));
            }
        }
        self.window().map(drop)
    }

    /// The time that the query looks back.
    pub(crate) fn window(&self) -> Result<Duration, Wrong> {
        let wrong = |why: String| Wrong::new("prometheus.window_s", why);
        let (least, most) = (QUERY_WINDOW_S.start(), QUERY_WINDOW_S.end());
        let usable = |window_s: f64| match QUERY_WINDOW_S.contains(&window_s) {
            true => Ok(Duration::from_secs_f64(window_s)),
            false => Err(wrong(format!(
                "the time that the query covers must be between {least} and {most}"
            ))),
        };
        if let Some(window_s) = self.window_s {
            return usable(window_s);
        }
        let mut ranges = ranges(&self.query);
        ranges.dedup();
        match ranges.as_slice() {
            [one] => usable(one.as_secs_f64()),
            _ => Err(wrong(
                "write how far the query looks back, in seconds: the query has no range such as [30s], or several"
                    .to_owned(),
            )),
        }
    }
}

/// A datagram socket that receives statsd timers. Give exactly one of `udp` and `unix`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushSpec {
    /// An address of the loopback interface, such as `"127.0.0.1:8125"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<std::net::SocketAddr>,
    /// The path of a Unix datagram socket. Slackline creates the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix: Option<PathBuf>,
    /// The name of the timer that counts. By default every timer counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer: Option<String>,
}

/// The longest path of a socket (unix(7), `sun_path` without its NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;

impl PushSpec {
    pub(crate) fn check(&self) -> Result<(), Wrong> {
        match (&self.udp, &self.unix) {
            (Some(address), None) if !address.ip().is_loopback() => {
                let why = format!(
                    "{address} is not on the loopback interface: anybody could send timers"
                );
                return Err(Wrong::new("push.udp", why));
            }
            (Some(address), None) if address.port() == 0 => {
                let why =
                    "0 is no port that a service could send to: write one, such as 127.0.0.1:8125";
                return Err(Wrong::new("push.udp", why));
            }
            (Some(_), None) => {}
            (None, Some(path)) => {
                check_socket_path(path).map_err(|why| Wrong::new("push.unix", why))?;
            }
            _ => return Err(Wrong::new("push", "give either udp or unix")),
        }
        let is_name = |timer: &String| {
            let is_odd = |it: char| it.is_control() || matches!(it, ':' | '|');
            !timer.is_empty() && !timer.contains(is_odd)
        };
        match self.timer.as_ref().is_none_or(is_name) {
            true => Ok(()),
            false => {
                let why = "must be the name of a timer: not empty, on one line, without : and |";
                Err(Wrong::new("push.timer", why))
            }
        }
    }
}

/// Whether a socket can have this path.
fn check_socket_path(path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Err("name a path, such as /run/web/timers.sock".to_owned());
    }
    if bytes.iter().any(u8::is_ascii_control) {
        return Err("must be a path without control characters".to_owned());
    }
    match bytes.len() {
        length if length > SOCKET_PATH_BYTES_MAX => Err(format!(
            "the path has {length} bytes, and that of a socket has at most {SOCKET_PATH_BYTES_MAX}"
        )),
        _ => Ok(()),
    }
}

/// What is not in the specification: whose latency is read.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// A process of the service. Its network namespace is the one that packets are read in.
    pub pid: Option<u32>,
    /// The percentile that a source with one figure gives, 0 to 100.
    pub percentile: f64,
    /// CPU time that reading packets may cost where the specification leaves it open, in cores.
    pub cpu_budget_cores: f64,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self {
            pid: None,
            percentile: 99.0,
            cpu_budget_cores: CPU_BUDGET_CORES,
        }
    }
}

#[cfg(test)]
mod tests;
