//! Where latencies come from: what a user writes, and what every source can do.

use std::path::PathBuf;
use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::protocol::Protocol;
use crate::reading::{NoData, Slice};

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
}

/// Where the latency of a service is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceSpec {
    /// Off the wire: packets of the service's TCP port are paired. Needs CAP_NET_RAW.
    Wire(WireSpec),
    /// From a histogram on the service's own page of metrics: the difference between two looks.
    Scrape(ScrapeSpec),
    /// From a Prometheus server.
    Prometheus(PrometheusSpec),
    /// From a command and its arguments. The command prints two numbers: the latency in
    /// milliseconds, and the number of requests that the latency stands on, both of the time since
    /// the command last ran.
    Command(Vec<String>),
    /// From timers that the service sends to a datagram socket, in the format of statsd
    /// (`name:12.5|ms`).
    Push(PushSpec),
}

/// Latency read off the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WireSpec {
    /// The service's TCP port.
    pub port: u16,
    /// What is spoken on the port. By default each connection's first bytes decide.
    #[serde(default, skip_serializing_if = "Protocol::is_auto")]
    pub protocol: Protocol,
    /// A process in whose network namespace the packets are read. By default that of the watched
    /// service, else Slackline's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// CPU time that reading may cost, in cores. Where packets cost more, connections are sampled.
    #[serde(default = "cpu_budget_cores")]
    pub cpu_budget_cores: f64,
}

/// One hundredth of a core.
fn cpu_budget_cores() -> f64 {
    0.01
}

impl WireSpec {
    /// The defaults for a port.
    #[must_use]
    pub fn of_port(port: u16) -> Self {
        Self {
            port,
            protocol: Protocol::Auto,
            pid: None,
            cpu_budget_cores: cpu_budget_cores(),
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
    /// Labels that a series must have; series that match are added up.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub labels: std::collections::BTreeMap<String, String>,
    /// Unit of the buckets' bounds.
    #[serde(default)]
    pub unit: Unit,
}

/// A query of a Prometheus server, or of a store with the same interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrometheusSpec {
    /// Base URL of the server.
    pub url: String,
    /// An instant query. The query yields buckets by `le`
    /// (`sum by (le) (increase(http_seconds_bucket[30s]))`), or one number, which needs `requests`.
    pub query: String,
    /// An instant query for the number of requests that one number stands on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<String>,
    /// The time that the query looks back, in seconds. By default the range in the query
    /// (`[30s]`), which must then be the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_s: Option<f64>,
    /// Unit of the number, or of the buckets' bounds.
    #[serde(default)]
    pub unit: Unit,
}

/// A datagram socket that takes statsd timers. Exactly one of `udp` and `unix`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushSpec {
    /// An address of the loopback interface, such as `"127.0.0.1:8125"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<std::net::SocketAddr>,
    /// The path of a Unix datagram socket, which is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix: Option<PathBuf>,
    /// The timer's name. By default every timer counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer: Option<String>,
}

/// What is not in the specification: whose latency is read.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// A process of the service. Its network namespace is the one that packets are read in.
    pub pid: Option<u32>,
    /// The percentile that a source with one figure gives, 0 to 100.
    pub percentile: f64,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self {
            pid: None,
            percentile: 99.0,
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
}
