//! A run: threads, each with a loop of its own.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use host::RealTime;

use crate::arrivals::{Schedule, nanoseconds};
use crate::counts::Counts;
use crate::engine::{Engine, Task};
use crate::machine::{Sampler, Watch};
use crate::network::Network;
use crate::report::{Circumstances, Report};
use crate::requests::{check_method, check_path};
use crate::service::Service;
use crate::{Arrivals, Endpoint, Error, Request, ServiceOnHost};

/// No run has more connections: as many ports as Linux gives to one address
/// (`net.ipv4.ip_local_port_range`).
const CONNECTIONS_MAX: usize = 28_000;
const THREADS_MAX: usize = 64;
/// Streams of a connection of HTTP/2; RFC 9113, 6.5.2 recommends at least 100.
const STREAMS_MAX: usize = 1000;
/// For disturbed seconds, at most so much of the plan is added, and at least this.
const REPEATED: (f64, f64) = (0.5, 2.0);

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
pub struct Plan {
    /// Where requests go.
    pub endpoint: Endpoint,
    /// What is sent, in order, and then from the start again.
    pub requests: Vec<Request>,
    /// Headers of every request, each `Name: value`.
    pub headers: Vec<String>,
    /// When.
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

impl Plan {
    /// A plan with one thread of HTTP/1.1 that gets a URL.
    #[must_use]
    pub fn get(endpoint: Endpoint, pace: Pace, duration: Duration) -> Self {
        Self {
            requests: vec![Request::get(endpoint.path())],
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

    fn check(&self) -> Result<(), Error> {
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
}

/// Runs the plan to its end, or until `stop` says so.
///
/// # Errors
///
/// [`Error::Number`] for a plan that cannot be, [`Error::Lookup`] for a host that nobody knows.
pub fn run(plan: &Plan, stop: &(dyn Fn() -> bool + Sync)) -> Result<Report, Error> {
    plan.check()?;
    let service = Service::of(plan)?;
    let watch = Watch::start(&plan.service)?;
    let started = Instant::now();
    let mut counts = Counts::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let service = &service;
                scope.spawn(move || work(plan, service, thread, started, stop))
            })
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(of) => counts.merge(&of?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok::<(), Error>(())
    })?;
    let duration_s = started.elapsed().as_secs_f64();
    let (neighbours, stolen_share) = watch.end();
    let circumstances = Circumstances {
        is_closed_loop: plan.pace == Pace::Closed,
        threads: plan.threads,
        planned_s: plan.end_s(),
        duration_s,
        neighbours,
        stolen_share,
    };
    Ok(Report::of(counts, &circumstances))
}

impl Plan {
    /// When the last request is due at the latest.
    fn end_s(&self) -> f64 {
        let duration_s = self.duration.as_secs_f64();
        match &self.pace {
            Pace::Open(arrivals) => arrivals.end_s(duration_s),
            Pace::Closed => duration_s,
        }
    }
}

/// One thread.
fn work(
    plan: &Plan,
    service: &Service,
    thread: usize,
    started: Instant,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Counts, Error> {
    // A thread of normal priority is otherwise woken up to 50 µs late on purpose (prctl(2),
    // PR_SET_TIMERSLACK).
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let is_known = plan.service != ServiceOnHost::Unknown;
    // A thread of real-time priority that never sleeps would keep the kernel's own threads from its
    // CPU.
    let _real_time = (is_known && !plan.busy_poll).then(RealTime::take);
    // The first threads have one more, where they cannot all have as many.
    let connections =
        plan.connections / plan.threads + usize::from(thread < plan.connections % plan.threads);
    let sampler = Sampler::of(&plan.service)?;
    let network = Network::new(service, connections, started, sampler).map_err(Error::Network)?;
    let end_s = plan.end_s();
    let schedule = match &plan.pace {
        Pace::Open(arrivals) => Some(Schedule::new(
            arrivals,
            end_s,
            thread as u64,
            plan.threads as u64,
        )),
        Pace::Closed => None,
    };
    let (share, least_s) = REPEATED;
    let repeat_s = (share * end_s).max(least_s);
    let repeat_s = plan.repeat_max.map_or(repeat_s, |max| max.as_secs_f64());
    let task = Task {
        schedule,
        end_ns: nanoseconds(end_s),
        tickets: u32::try_from(connections * service.streams()).unwrap_or(u32::MAX),
        requests: plan.requests.len(),
        timeout_ns: u64::try_from(plan.timeout.as_nanos()).unwrap_or(u64::MAX / 4),
        repeat_max_ns: nanoseconds(repeat_s),
        busy_poll: plan.busy_poll,
        stop,
    };
    Ok(Engine::new(network, task).run())
}
