//! What a latency source says: a distribution with the number of requests it stands on, or the
//! reason for no data.

use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;

/// The z value of a two-sided interval of 95 %.
const Z_95: f64 = 1.959_964;

/// What a look at a source gives.
pub type Look = Result<Reading, NoData>;

/// Why there is no figure. A controller must treat every reason as "the latency is not known".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum NoData {
    /// The source was started less than one poll ago.
    #[error("the source has just been started")]
    Starting,
    /// No request was answered within the window, and none waits.
    #[error("no request within the last {window_s:.1} s")]
    Idle {
        /// Length of the window, in seconds.
        window_s: f64,
    },
    /// Fewer requests than the figure has to stand on.
    #[error("only {requests} requests within the last {window_s:.1} s, {minimum} are needed")]
    Thin {
        /// Requests that were answered.
        requests: u64,
        /// Requests that are needed.
        minimum: u64,
        /// Length of the window, in seconds.
        window_s: f64,
    },
    /// Requests wait, and none was answered within the window.
    #[error("{waiting} requests wait, the oldest for {oldest_s:.1} s, and none was answered")]
    Stalled {
        /// Requests that wait for an answer.
        waiting: u64,
        /// How long the oldest has waited, in seconds.
        oldest_s: f64,
    },
    /// The newest data is too old.
    #[error("the newest data is {age_s:.1} s old, and at most {limit_s:.1} s are allowed{}", because(.why))]
    Stale {
        /// Age of the newest data, in seconds.
        age_s: f64,
        /// Age that is allowed, in seconds.
        limit_s: f64,
        /// What the source failed with since, if it failed.
        why: Option<String>,
    },
    /// The counters of the service started again from zero.
    #[error("the service's counters went back: was it restarted?")]
    Reset,
    /// Too many exchanges could not be told apart.
    #[error("{:.0} % of the exchanges are ambiguous: requests are pipelined or multiplexed", 100.0 * .share)]
    Ambiguous {
        /// Ambiguous exchanges over all exchanges.
        share: f64,
    },
    /// Too many packets were lost between the kernel and this process.
    #[error("{:.0} % of the packets were dropped before they were read", 100.0 * .share)]
    Dropped {
        /// Dropped packets over all packets.
        share: f64,
    },
    /// Nobody listens on the port.
    #[error("nobody listens on TCP port {port}")]
    NobodyListens {
        /// The port.
        port: u16,
    },
    /// The source cannot be asked, or gives no answer that can be understood.
    #[error("{why}")]
    Failed {
        /// What went wrong, without credentials.
        why: String,
    },
}

fn because(why: &Option<String>) -> String {
    why.as_ref()
        .map_or_else(String::new, |why| format!(": {why}"))
}

/// What was seen of the packets and exchanges of a window; all zero where a source does not read
/// packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Packets that were read.
    pub packets: u64,
    /// Packets that the kernel had no room for.
    pub dropped: u64,
    /// Requests whose answer could not be told apart from others' (pipelined, multiplexed, or a
    /// packet is missing).
    pub ambiguous: u64,
    /// Requests of which only an upper bound of the latency is known; the bound is in the
    /// distribution.
    pub bounded: u64,
    /// Requests whose connection ended, or that were forgotten, without an answer.
    pub unanswered: u64,
    /// Segments that were seen before: retransmitted, or on a second interface.
    pub repeated: u64,
    /// Requests that are not timed because their answer is meant to take long (`BLPOP`, a
    /// replication stream).
    pub excluded: u64,
    /// Connections with a request in the window's last poll.
    pub connections: u64,
    /// Connections that were not followed, because the table is full.
    pub crowded_out: u64,
}

impl Counts {
    /// Sums what adds up; a level (`connections`) is the later one's.
    pub fn add(&mut self, later: &Self) {
        self.packets += later.packets;
        self.dropped += later.dropped;
        self.ambiguous += later.ambiguous;
        self.bounded += later.bounded;
        self.unanswered += later.unanswered;
        self.repeated += later.repeated;
        self.excluded += later.excluded;
        self.crowded_out += later.crowded_out;
        self.connections = later.connections;
    }
}

/// What a source saw between two polls.
#[derive(Clone, Debug, Default)]
pub struct Slice {
    /// The latencies.
    pub distribution: Distribution,
    /// Share of the service's requests that were looked at, above 0, at most 1.
    pub sampled_share: f64,
    /// What else was counted.
    pub counts: Counts,
    /// Requests that wait for an answer now.
    pub waiting: u64,
    /// How long the oldest of those has waited, in seconds.
    pub oldest_waiting_s: f64,
    /// CPU time that the source itself used, in seconds.
    pub own_cpu_s: f64,
    /// The window that the source itself has, as a query of Prometheus has. Such a slice replaces
    /// the earlier ones.
    pub own_window: Option<std::time::Duration>,
}

/// The latencies of a window.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Time that the window spans, in seconds; less than was asked for where the source is younger.
    pub window_s: f64,
    /// Age of the newest data, in seconds.
    pub age_s: f64,
    /// Requests that the figures stand on: those that were timed.
    pub requests: u64,
    /// Share of the service's requests that were looked at, above 0, at most 1.
    pub sampled_share: f64,
    /// What else was counted.
    pub counts: Counts,
    /// Requests that wait for an answer now.
    pub waiting: u64,
    /// How long the oldest of those has waited, in seconds.
    pub oldest_waiting_s: f64,
    /// CPU time that the source itself used within the window, in cores.
    pub own_cpu_cores: f64,
    /// The latencies.
    pub distribution: Distribution,
}

/// One percentile, with the interval that the number of requests allows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    /// Which one, 0 to 100.
    pub percentile: f64,
    /// The estimate, in microseconds.
    pub value_us: f64,
    /// Lower end of the interval of 95 %, in microseconds.
    pub low_us: f64,
    /// Upper end of the interval of 95 %, in microseconds; `None` where so few requests bound
    /// nothing.
    pub high_us: Option<f64>,
    /// Requests that it stands on.
    pub requests: u64,
}

/// With fewer requests a percentile is hardly more than one request's latency.
const REQUESTS_LEAST: f64 = 20.0;

/// Requests that a percentile (0 to 100) has to stand on by default: as many as leave one beyond it
/// on average, 100 for the 99th, and at least 20.
///
/// ```
/// assert_eq!(wire_latency::minimum_requests(99.0), 100);
/// assert_eq!(wire_latency::minimum_requests(50.0), 20);
/// ```
#[must_use]
pub fn minimum_requests(percentile: f64) -> u64 {
    let beyond_one = 100.0 / (100.0 - percentile).max(1e-9);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "20 to 1e11"
    )]
    let least = beyond_one.max(REQUESTS_LEAST).round() as u64;
    least
}

impl Reading {
    /// A percentile (0 to 100). `None` where the source gives one figure only and this is another
    /// one.
    ///
    /// The interval is that of order statistics (Conover, Practical Nonparametric Statistics, 3rd
    /// ed., section 3.2, large samples). It holds for independent requests; requests that queue
    /// behind each other make it too narrow.
    #[must_use]
    pub fn percentile(&self, percentile: f64) -> Option<Percentile> {
        let (n, share) = (self.requests as f64, percentile / 100.0);
        let value_us = self.distribution.quantile_us(share)?;
        let half_width = Z_95 * (n * share * (1.0 - share)).sqrt();
        let at_rank = |rank: f64| self.distribution.quantile_us((rank / n).clamp(0.0, 1.0));
        let (low, high) = (
            n * share - half_width,
            (n * share + half_width).ceil() + 1.0,
        );
        let low_us = at_rank(low).unwrap_or(value_us).min(value_us);
        let high_us = at_rank(high)
            .filter(|_| high <= n)
            .map(|it| it.max(value_us));
        let is_figure = matches!(self.distribution, Distribution::Figure { .. });
        Some(Percentile {
            percentile,
            value_us,
            low_us,
            high_us: high_us.filter(|_| !is_figure),
            requests: self.requests,
        })
    }

    /// Requests a second of the whole service: those that were looked at, over the sampled share.
    #[must_use]
    pub fn requests_per_s(&self) -> f64 {
        let seen = self.requests + self.counts.ambiguous + self.counts.unanswered;
        seen as f64 / self.sampled_share.max(1e-9) / self.window_s.max(1e-9)
    }
}
