//! What a run is to do, and whether it can be done.

use std::time::Duration;

use http_client::check_method;

use crate::requests::check_path;
use crate::{Arrivals, Endpoint, Error, HttpRequest, ServiceOnHost};

/// No run has more connections: as many ports as Linux gives to one address
/// (`net.ipv4.ip_local_port_range`).
const CONNECTIONS_MAX: usize = 28_000;
const THREADS_MAX: usize = 64;
/// Streams of a connection of HTTP/2; RFC 9113, 6.5.2 recommends at least 100.
const STREAMS_MAX: usize = 1000;

/// When requests are sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Pace {
    /// Open loop: when they are due, whether or not the service keeps up.
    Open(Arrivals),
    /// Closed loop: each connection sends the next request when it has the answer. What comes out
    /// is the service's capacity.
    Closed,
}

/// A run.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Where requests go.
    pub endpoint: Endpoint,
    /// What is sent, in order, and then from the start again.
    pub requests: Vec<HttpRequest>,
    /// Headers of every request, each `Name: value`.
    pub headers: Vec<String>,
    /// When requests are sent.
    pub pace: Pace,
    /// For how long.
    pub duration: Duration,
    /// Connections at most; an open loop opens one where all others are busy.
    pub connections: usize,
    /// Threads, which share connections and arrivals.
    pub threads: usize,
    /// An answer that takes longer is an error. What is still unsent so long after the last arrival
    /// is given up.
    pub timeout: Duration,
    /// HTTP/2, over TLS by ALPN, else by prior knowledge.
    pub http2: bool,
    /// Requests at once on one connection of HTTP/2.
    pub streams: usize,
    /// A connection is closed after so many requests.
    pub requests_per_connection: Option<u64>,
    /// Poll instead of sleeping while an answer is awaited or a request is due soon. For threads
    /// that have a CPU each to themselves: what a sleeping thread's wake-up costs is then no part
    /// of the latencies.
    pub busy_poll: bool,
    /// The service, where it is on this machine and known.
    pub service: ServiceOnHost,
    /// At most so much time is added for seconds that were disturbed; by default half of the plan,
    /// at least two seconds.
    pub repeat_max: Option<Duration>,
}

impl LoadPlan {
    /// A plan with one thread of HTTP/1.1 that gets a URL.
    #[must_use]
    pub fn get(endpoint: Endpoint, pace: Pace, duration: Duration) -> Self {
        Self {
            requests: vec![HttpRequest::get(endpoint.path())],
            endpoint,
            headers: Vec::new(),
            pace,
            duration,
            connections: 64,
            threads: 1,
            timeout: Duration::from_secs(10),
            http2: false,
            streams: 100,
            requests_per_connection: None,
            busy_poll: false,
            service: ServiceOnHost::Unknown,
            repeat_max: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let number = |what, reason: String| Err(Error::Number { what, reason });
        if self.requests.is_empty() {
            return number("requests", "there are none".to_owned());
        }
        for request in &self.requests {
            if let Err(reason) = check_method(&request.method) {
                return number("method", reason);
            }
            if let Err(reason) = check_path(&request.path) {
                return number("url", reason);
            }
        }
        for (what, value, max) in [
            ("connections", self.connections, CONNECTIONS_MAX),
            ("threads", self.threads, THREADS_MAX),
            ("streams", self.streams, STREAMS_MAX),
        ] {
            if value == 0 || value > max {
                return number(what, format!("must be 1 to {max}"));
            }
        }
        if self.threads > self.connections {
            return number("threads", "must be at most the connections".to_owned());
        }
        if self.requests_per_connection == Some(0) {
            return number("requests per connection", "must be above 0".to_owned());
        }
        let duration_s = self.duration.as_secs_f64();
        match &self.pace {
            Pace::Open(arrivals) => arrivals.check(duration_s),
            Pace::Closed => Arrivals::Constant { per_s: 1.0 }.check(duration_s),
        }
    }

    /// When the last request is due at the latest.
    pub(crate) fn end_s(&self) -> f64 {
        let duration_s = self.duration.as_secs_f64();
        match &self.pace {
            Pace::Open(arrivals) => arrivals.end_s(duration_s),
            Pace::Closed => duration_s,
        }
    }
}
