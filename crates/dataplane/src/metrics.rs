//! Figures for Prometheus, and the thread that serves them.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prometheus_text::{Exposition, Family, Labels, MetricKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::histogram::Snapshot;
use crate::shard::ShardStats;

/// How long a scraper may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a scraper may take to read the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request.
const REQUEST_MAX_BYTES: usize = 4096;
/// Scrapers at one time. One more takes the place of the oldest.
const VISITORS_MAX: usize = 64;
/// How long to wait after an error that may come again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// An answer to a scraper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    content_type: &'static str,
    body: String,
}

impl Page {
    /// Prometheus' text format.
    pub fn metrics(body: String) -> Self {
        Self {
            content_type: "text/plain; version=0.0.4",
            body,
        }
    }

    /// JSON.
    pub fn json(body: String) -> Self {
        Self {
            content_type: "application/json",
            body,
        }
    }
}

/// How a figure is read.
type Pick = fn(&ShardStats) -> u64;

/// Figures of a shard: name, kind, help.
const FIGURES: [(&str, MetricKind, &str, Pick); 12] = [
    (
        "batch_bound",
        MetricKind::Gauge,
        "Largest number of requests in one turn of the loop.",
        |s| s.bound.load(Ordering::Relaxed),
    ),
    (
        "full_turns_total",
        MetricKind::Counter,
        "Turns of the loop that took the largest number of requests (slackline_shard_batch_bound).",
        |s| s.full_turns.load(Ordering::Relaxed),
    ),
    (
        "busy_ns_total",
        MetricKind::Counter,
        "Time that the shard had work, in nanoseconds.",
        |s| s.busy_ns.load(Ordering::Relaxed),
    ),
    (
        "spin_ns_total",
        MetricKind::Counter,
        "Time that the shard spun without work, in nanoseconds.",
        |s| s.spin_ns.load(Ordering::Relaxed),
    ),
    (
        "sleeps_total",
        MetricKind::Counter,
        "Times that the shard went to sleep in the kernel.",
        |s| s.sleeps.load(Ordering::Relaxed),
    ),
    (
        "spin_limit_ns",
        MetricKind::Gauge,
        "Longest time that the shard spins before it sleeps, in nanoseconds.",
        |s| s.spin_limit_ns.load(Ordering::Relaxed),
    ),
    (
        "wake_ns",
        MetricKind::Gauge,
        "Time that a wake-up from a sleep takes, in nanoseconds.",
        |s| s.wake_ns.load(Ordering::Relaxed),
    ),
    (
        "flows",
        MetricKind::Gauge,
        "Connections that this shard serves.",
        |s| s.flows.load(Ordering::Relaxed),
    ),
    (
        "flows_arrived_total",
        MetricKind::Counter,
        "Connections that came from other shards.",
        |s| s.arrived.load(Ordering::Relaxed),
    ),
    (
        "flows_departed_total",
        MetricKind::Counter,
        "Connections that went to other shards.",
        |s| s.departed.load(Ordering::Relaxed),
    ),
    (
        "handed_over_total",
        MetricKind::Counter,
        "New connections and frames that came to this shard and were handed over to the shard that they belong to.",
        |s| s.handed_over.load(Ordering::Relaxed),
    ),
    (
        "refused_total",
        MetricKind::Counter,
        "New connections and frames from other shards that were lost because this shard had no room for them.",
        |s| s.refused.load(Ordering::Relaxed),
    ),
];

/// How a histogram is read.
type Histogram = fn(&ShardStats) -> Snapshot;

/// Histograms of a shard: name, help, and the binary logarithm of the last limit.
const HISTOGRAMS: [(&str, &str, Histogram, u32); 3] = [
    (
        "batch_events",
        "Events in one turn of the loop.",
        |s| s.batch_events.snapshot(),
        7,
    ),
    (
        "service_ns",
        "Time to work on one event, in nanoseconds.",
        |s| s.service_ns.snapshot(),
        24,
    ),
    (
        "sojourn_ns",
        "Time from the arrival of a request to its answer, in nanoseconds.",
        |s| s.sojourn_ns.snapshot(),
        30,
    ),
];

/// Adds the figures of all shards to a page.
pub fn shards(page: &mut Exposition, shards: &[ShardStats]) {
    let labelled = || {
        let all = shards.iter().enumerate();
        all.map(|(shard, stats)| (Labels::new().and("shard", shard), stats))
    };
    for (name, kind, help, pick) in FIGURES {
        let name = format!("slackline_shard_{name}");
        let samples = labelled().map(|(labels, stats)| (labels, pick(stats)));
        page.family(&name, kind, help).samples(samples);
    }
    for (name, help, pick, doublings) in HISTOGRAMS {
        let name = format!("slackline_shard_{name}");
        let mut family = page.family(&name, MetricKind::Histogram, help);
        for (labels, stats) in labelled() {
            histogram(&mut family, &labels, &pick(stats), 0..=doublings);
        }
    }
}

/// Adds a histogram whose limits are these powers of two.
pub fn histogram(
    family: &mut Family<'_>,
    labels: &Labels,
    snapshot: &Snapshot,
    doublings: RangeInclusive<u32>,
) {
    let limits = doublings.map(|doubling| 1_u64 << doubling);
    let buckets = limits.map(|limit| (limit, snapshot.count_up_to(limit)));
    family.histogram(labels, buckets, snapshot.sum, snapshot.count());
}

/// A client that has not got its whole answer.
struct Visitor {
    stream: TcpStream,
    end: Instant,
    request: Vec<u8>,
    answer: Vec<u8>,
    sent_bytes: usize,
}

impl Visitor {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            end: Instant::now() + REQUEST_TIMEOUT,
            request: Vec::new(),
            answer: Vec::new(),
            sent_bytes: 0,
        }
    }

    /// What the client's next step waits for.
    fn waits_for(&self) -> PollFlags {
        match self.answer.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        }
    }

    /// Reads or sends what there is, without waiting. An error ends the visit, and so does its end.
    fn step(&mut self, page: &impl Fn(&str) -> Option<Page>) -> std::io::Result<()> {
        if self.answer.is_empty() {
            let mut bytes = [0; REQUEST_MAX_BYTES];
            let read = self.stream.read(&mut bytes)?;
            self.request.extend_from_slice(&bytes[..read]);
            if !self.request.windows(4).any(|window| window == b"\r\n\r\n") {
                return match read == 0 || self.request.len() >= REQUEST_MAX_BYTES {
                    true => Err(ErrorKind::InvalidData.into()),
                    false => Ok(()),
                };
            }
            self.answer = answer(&self.request, page).into_bytes();
            self.end = Instant::now() + ANSWER_TIMEOUT;
        }
        self.sent_bytes += self.stream.write(&self.answer[self.sent_bytes..])?;
        match self.sent_bytes == self.answer.len() {
            true => Err(ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }
}

/// Serves the pages that `page` makes of a path, for ever. Meant for a thread of its own. A slow
/// client holds up nobody, and is ended after a time. The listener does not block.
pub fn serve(listener: &TcpListener, page: impl Fn(&str) -> Option<Page>) {
    let mut visitors: VecDeque<Visitor> = VecDeque::new();
    loop {
        let mut waiting = vec![PollFd::new(listener, PollFlags::IN)];
        let of_visitors = visitors.iter();
        waiting.extend(of_visitors.map(|it| PollFd::new(&it.stream, it.waits_for())));
        let next = visitors.iter().map(|visitor| visitor.end).min();
        let next = next.map(|end| end.saturating_duration_since(Instant::now()));
        let timeout = next.and_then(|time| Timespec::try_from(time).ok());
        if poll(&mut waiting, timeout.as_ref()).is_err() {
            std::thread::sleep(PAUSE);
        }
        let mut is_ready = waiting.into_iter().map(|it| !it.revents().is_empty());
        let has_new = is_ready.next().unwrap_or(false);
        let is_ready: Vec<bool> = is_ready.collect();
        let now = Instant::now();
        let mut is_ready = is_ready.into_iter();
        visitors.retain_mut(|visitor| {
            let goes_on = match is_ready
                .next()
                .unwrap_or(false)
                .then(|| visitor.step(&page))
            {
                Some(Err(error)) => error.kind() == ErrorKind::WouldBlock,
                Some(Ok(())) | None => true,
            };
            goes_on && now < visitor.end
        });
        if has_new {
            match accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(stream) => visitors.push_back(Visitor::new(TcpStream::from(stream))),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                // No descriptors: do not spin.
                Err(_) => std::thread::sleep(PAUSE),
            }
            if visitors.len() > VISITORS_MAX {
                visitors.pop_front();
            }
        }
    }
}

/// The answer to a whole request.
fn answer(request: &[u8], page: &impl Fn(&str) -> Option<Page>) -> String {
    let text = String::from_utf8_lossy(request);
    let path = text
        .strip_prefix("GET ")
        .and_then(|rest| rest.split([' ', '?']).next());
    let (status, page) = match path.and_then(page) {
        Some(page) => ("200 OK", page),
        None => (
            "404 Not Found",
            Page::metrics("the page is /metrics\n".to_owned()),
        ),
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{}",
        page.content_type,
        page.body.len(),
        page.body
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half requests, and requests whose answer nobody reads, hold up nobody.
    #[test]
    fn slow_scrapers_hold_up_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            serve(&listener, |path| {
                let bytes = if path == "/large" { 16 << 20 } else { 4 };
                (path != "/none").then(|| Page::metrics("x".repeat(bytes)))
            });
        });
        let ask = |text: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            stream
        };
        let mut slow: Vec<TcpStream> = (0..200).map(|_| ask("GET /metrics HT")).collect();
        slow.push(ask("GET /large HTTP/1.1\r\n\r\n"));
        let begun = Instant::now();
        for (path, expected) in [("/metrics", "200 OK"), ("/none", "404 Not Found")] {
            let mut text = String::new();
            let mut stream = ask(&format!("GET {path} HTTP/1.1\r\n\r\n"));
            stream.read_to_string(&mut text).unwrap();
            assert!(text.contains(expected), "{text}");
        }
        // Less than the answer that nobody reads may take.
        assert!(begun.elapsed() < ANSWER_TIMEOUT);
        for mut stream in slow {
            // The server ends each in time; the end may be a reset.
            stream
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            let mut rest = Vec::new();
            if let Err(error) = stream.read_to_end(&mut rest) {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            }
        }
    }
}
