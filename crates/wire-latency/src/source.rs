//! Where latencies come from: what a user writes, and what every source can do.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// CPU that reading the packets may use, in cores. If all packets cost more, Slackline reads a
    /// sample of the connections. By default 0.01. In `isolate`, all services together have 0.0025
    /// by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_budget_cores: Option<f64>,
}

/// One hundredth of a core: a sampled p99 at 10,000 requests a second still stands on thousands of
/// requests in 15 s (docs/results/wire-latency.md).
const CPU_BUDGET_CORES: f64 = 0.01;

impl WireSpec {
    pub(crate) fn check(&self) -> Result<(), Wrong> {
        if self.port == 0 {
            return Err(Wrong::new("wire.port", "0 is no port"));
        }
        let is_budget = |cores: f64| cores > 0.0 && cores.is_finite();
        if !self.cpu_budget_cores.is_none_or(is_budget) {
            return Err(Wrong::new("wire.cpu_budget_cores", "must be above 0"));
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
        match self.histogram.is_empty() {
            true => Err(Wrong::new("scrape.histogram", "name a histogram")),
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
    /// The time that the query covers, in seconds. By default the range in the query (`[30s]`).
    /// Required if the query has no range, or different ranges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<f64>,
    /// Unit of the number, or of the buckets' bounds.
    #[serde(default)]
    pub unit: Unit,
}

impl PrometheusSpec {
    pub(crate) fn check(&self) -> Result<(), Wrong> {
        http_client::check_url(&self.url).map_err(|why| Wrong::new("prometheus.url", why))?;
        self.window().map(drop)
    }

    /// The time that the query looks back.
    pub(crate) fn window(&self) -> Result<Duration, Wrong> {
        let wrong = |why: String| Wrong::new("prometheus.window_s", why);
        let unusable = |window_s: f64| wrong(format!("{window_s} s cannot be a window"));
        if let Some(window_s) = self.window_s {
            let window = Duration::try_from_secs_f64(window_s).ok();
            return window
                .filter(|window| !window.is_zero())
                .ok_or_else(|| unusable(window_s));
        }
        let mut ranges = ranges(&self.query);
        ranges.dedup();
        match ranges.as_slice() {
            [one] => Ok(*one),
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

impl PushSpec {
    pub(crate) fn check(&self) -> Result<(), Wrong> {
        match (&self.udp, &self.unix) {
            (Some(address), None) if !address.ip().is_loopback() => Err(Wrong::new(
                "push.udp",
                format!("{address} is not on the loopback interface: anybody could send timers"),
            )),
            (Some(_), None) | (None, Some(_)) => Ok(()),
            _ => Err(Wrong::new("push", "give either udp or unix")),
        }
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
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<SourceSpec, String> {
        let table: std::collections::BTreeMap<String, SourceSpec> =
            toml::from_str(text).map_err(|error| error.to_string())?;
        table
            .into_values()
            .next()
            .ok_or_else(|| "nothing".to_owned())
    }

    #[test]
    fn a_source_is_written_in_one_line() {
        let wire = SourceSpec::Wire(WireSpec::of_port(11211));
        assert_eq!(parse("latency = { wire = { port = 11211 } }"), Ok(wire));
        let command = SourceSpec::Command(vec!["p99".to_owned()]);
        assert_eq!(parse("latency = { command = [\"p99\"] }"), Ok(command));
        for wrong in [
            "latency = { wire = { prot = 1 } }",
            "latency = { wire = { port = 70000 } }",
            "latency = { wire = { port = 1 }, command = [\"x\"] }",
            "latency = { tape = 1 }",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_named_by_its_key() {
        for (text, key) in [
            ("s = { wire = { port = 0 } }", "wire.port"),
            (
                "s = { wire = { port = 1, cpu_budget_cores = 0.0 } }",
                "wire.cpu_budget_cores",
            ),
            (
                "s = { scrape = { url = \"x\", histogram = \"h\" } }",
                "scrape.url",
            ),
            (
                "s = { scrape = { url = \"http://a/\", histogram = \"\" } }",
                "scrape.histogram",
            ),
            (
                "s = { prometheus = { url = \"x\", query = \"a[5s]\" } }",
                "prometheus.url",
            ),
            (
                "s = { prometheus = { url = \"http://a/\", query = \"a\" } }",
                "prometheus.window_s",
            ),
            ("s = { push = { udp = \"1.2.3.4:5\" } }", "push.udp"),
            ("s = { push = {} }", "push"),
            ("s = { command = [] }", "command"),
        ] {
            assert_eq!(parse(text).unwrap().check().unwrap_err().key, key, "{text}");
        }
        let good = "s = { scrape = { url = \"http://127.0.0.1:9/metrics\", histogram = \"h\" } }";
        assert_eq!(parse(good).unwrap().check(), Ok(()));
    }

    #[test]
    fn the_window_is_that_of_the_query() {
        let window = |query: &str, window_s| {
            let spec = PrometheusSpec {
                url: String::new(),
                query: query.to_owned(),
                requests: None,
                window_s,
                unit: Unit::Seconds,
            };
            spec.window()
        };
        let seconds = |count| Ok(Duration::from_secs(count));
        assert_eq!(window("increase(a[30s])", None), seconds(30));
        assert_eq!(window("a[1h30m] / b[1h30m]", None), seconds(5400));
        assert_eq!(window("max_over_time(a[5m:10s])", None), seconds(300));
        assert_eq!(window("job:p99:30s", Some(30.0)), seconds(30));
        for (query, window_s) in [
            ("job:p99:30s", None),
            ("a[30s] / b[1m]", None),
            ("a[x]", None),
            ("a[30s]", Some(0.0)),
            ("a[30s]", Some(-1.0)),
            ("a[30s]", Some(f64::NAN)),
        ] {
            let why = window(query, window_s).unwrap_err();
            assert_eq!(why.key, "prometheus.window_s", "{query}: {why}");
        }
    }
}
