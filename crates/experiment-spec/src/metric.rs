//! Metrics from elsewhere: what is written of them, and what of it can be meant.

use std::collections::BTreeMap;

use bayes_opt::Value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wire_latency::{Protocol, PushSpec, ScrapeSpec, SourceSpec, Unit, WireSpec};

use crate::template::{self, Variables};

/// A further metric. Give exactly one of `prometheus`, `command`, `wire`, `scrape` and `push`.
/// `prometheus` and `command` are read once after each block, or, for a counter, before and after
/// each block. `wire`, `scrape` and `push` give a percentile of the latency of the block's
/// requests, in microseconds. The metric `NAME_requests` is the number of these requests. A block
/// with too few requests fails.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricSpec {
    /// Base URL of a Prometheus server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<String>,
    /// An instant query with one value as its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// A command, with its arguments, that prints one number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// `true`: the value is a counter, which only grows. The metric is its increase during the
    /// block.
    #[serde(default)]
    pub counter: bool,
    /// Latency measured in the network packets of the service's TCP port, in the network namespace
    /// of the target's process. Needs CAP_NET_RAW.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<WireMetric>,
    /// Latency from a histogram on the service's own page of metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrape: Option<ScrapeMetric>,
    /// Latency from timers that the service sends to a datagram socket, in the format of statsd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<PushMetric>,
}

/// Latency measured in the network packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WireMetric {
    /// The service's TCP port. For a service that Slackline starts, the default is `"{port}"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<Value>,
    /// The percentile, above 0 and below 100.
    #[serde(default = "percentile")]
    pub percentile: f64,
    /// Smallest number of requests in a block. By default the number for which one request lies
    /// beyond the percentile (100 for the 99th percentile), and at least 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_requests: Option<u64>,
    /// The protocol on the port. By default Slackline detects the protocol from the first bytes of
    /// each connection. `turns` is any other protocol in which client and server take turns.
    #[serde(default, skip_serializing_if = "Protocol::is_auto")]
    pub protocol: Protocol,
    /// CPU that reading the packets may use, in cores. If all packets cost more, Slackline reads a
    /// sample of the connections. By default 0.01.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_budget_cores: Option<f64>,
}

/// Latency from a histogram on a page of metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrapeMetric {
    /// The page, such as `"http://127.0.0.1:{port}/metrics"`. Slackline reads the page before and
    /// after each block.
    pub url: String,
    /// The histogram's name, without `_bucket`.
    pub histogram: String,
    /// Labels that a series must have. All matching series are added up.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Unit of the buckets' bounds.
    #[serde(default)]
    pub unit: Unit,
    /// The percentile, above 0 and below 100.
    #[serde(default = "percentile")]
    pub percentile: f64,
    /// Smallest number of requests in a block. By default the number for which one request lies
    /// beyond the percentile (100 for the 99th percentile), and at least 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_requests: Option<u64>,
}

/// Latency from timers that the service sends. Give exactly one of `udp` and `unix`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushMetric {
    /// An address of the loopback interface, such as `"127.0.0.1:8125"` or `"127.0.0.1:{port}"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<String>,
    /// The path of a Unix datagram socket, such as `"{dir}/timers.sock"`. Slackline creates the
    /// socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix: Option<String>,
    /// The name of the timer that counts. By default every timer counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer: Option<String>,
    /// The percentile, above 0 and below 100.
    #[serde(default = "percentile")]
    pub percentile: f64,
    /// Smallest number of requests in a block. By default the number for which one request lies
    /// beyond the percentile (100 for the 99th percentile), and at least 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_requests: Option<u64>,
}

fn percentile() -> f64 {
    99.0
}

/// The name of the metric that counts the requests which a latency stands on.
pub fn requests_of(name: &str) -> String {
    format!("{name}_requests")
}

/// A metric that is a percentile of requests' latency.
#[derive(Clone, Copy)]
pub enum LatencyMetric<'a> {
    /// Read off the wire.
    Wire(&'a WireMetric),
    /// Read from a page of metrics.
    Scrape(&'a ScrapeMetric),
    /// Sent by the service.
    Push(&'a PushMetric),
}

impl MetricSpec {
    /// Where the latency of requests is read; `None` of another metric.
    pub fn latency(&self) -> Option<LatencyMetric<'_>> {
        let wire = self.wire.as_ref().map(LatencyMetric::Wire);
        let scrape = self.scrape.as_ref().map(LatencyMetric::Scrape);
        let push = self.push.as_ref().map(LatencyMetric::Push);
        wire.or(scrape).or(push)
    }
}

impl LatencyMetric<'_> {
    /// Which percentile, 0 to 100.
    pub fn percentile(self) -> f64 {
        match self {
            Self::Wire(it) => it.percentile,
            Self::Scrape(it) => it.percentile,
            Self::Push(it) => it.percentile,
        }
    }

    /// Requests that a block must have.
    pub fn minimum_requests(self) -> u64 {
        let given = match self {
            Self::Wire(it) => it.minimum_requests,
            Self::Scrape(it) => it.minimum_requests,
            Self::Push(it) => it.minimum_requests,
        };
        given.unwrap_or_else(|| wire_latency::minimum_requests(self.percentile()))
    }

    /// The key of the source.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Wire(_) => "wire",
            Self::Scrape(_) => "scrape",
            Self::Push(_) => "push",
        }
    }

    /// The texts in which names may stand, by key.
    pub(super) fn texts(self) -> Vec<(&'static str, String)> {
        match self {
            Self::Wire(it) => {
                let port = it.port.as_ref();
                let port = port.map(Value::to_string);
                vec![("wire.port", port.unwrap_or_else(|| "{port}".to_owned()))]
            }
            Self::Scrape(it) => vec![("scrape.url", it.url.clone())],
            Self::Push(it) => {
                let udp = it.udp.clone().map(|text| ("push.udp", text));
                let unix = it.unix.clone().map(|text| ("push.unix", text));
                udp.into_iter().chain(unix).collect()
            }
        }
    }

    /// The source once names are filled in; an error in words with its key.
    pub fn filled(self, values: &Variables) -> Result<SourceSpec, (String, String)> {
        let fill = |key: &str, text: &str| {
            template::fill(text, values).map_err(|error| (key.to_owned(), error.to_string()))
        };
        let source = match self {
            Self::Wire(it) => {
                let (key, text) = ("wire.port", &self.texts()[0].1);
                let text = fill(key, text)?;
                let port: Option<u16> = text.parse().ok();
                let wrong = || {
                    (
                        key.to_owned(),
                        format!("{text:?} is not a port: 1 to 65535"),
                    )
                };
                let mut wire = WireSpec::of_port(port.ok_or_else(wrong)?);
                wire.protocol = it.protocol;
                wire.cpu_budget_cores = it.cpu_budget_cores;
                SourceSpec::Wire(wire)
            }
            Self::Scrape(it) => SourceSpec::Scrape(ScrapeSpec {
                url: fill("scrape.url", &it.url)?,
                histogram: it.histogram.clone(),
                labels: it.labels.clone(),
                unit: it.unit,
            }),
            Self::Push(it) => {
                let udp = it
                    .udp
                    .as_ref()
                    .map(|text| fill("push.udp", text))
                    .transpose()?;
                let address = udp.map(|text| {
                    let wrong = format!("{text:?} is not an address such as 127.0.0.1:8125");
                    text.parse().map_err(|_| ("push.udp".to_owned(), wrong))
                });
                let unix = it
                    .unix
                    .as_ref()
                    .map(|text| fill("push.unix", text))
                    .transpose()?;
                SourceSpec::Push(PushSpec {
                    udp: address.transpose()?,
                    unix: unix.map(Into::into),
                    timer: it.timer.clone(),
                })
            }
        };
        source.check().map_err(|wrong| (wrong.key, wrong.why))?;
        Ok(source)
    }
}
