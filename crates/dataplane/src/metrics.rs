//! Figures for Prometheus, and the thread that serves them.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::histogram::Snapshot;
use crate::shard::ShardStats;

/// How long a scraper may take to send its request or to read the answer.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);

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

/// Adds the figures of all shards to a page of Prometheus' text format.
pub fn shards(page: &mut String, shards: &[ShardStats]) {
    type Pick = fn(&ShardStats) -> u64;
    let each: [(&str, &str, &str, Pick); 10] = [
        (
            "batch_bound",
            "gauge",
            "Largest number of requests in one turn of the loop.",
            |s| s.bound.load(Ordering::Relaxed),
        ),
        (
            "full_turns_total",
            "counter",
            "Turns of the loop that reached batch_bound.",
            |s| s.full_turns.load(Ordering::Relaxed),
        ),
        (
            "busy_ns_total",
            "counter",
            "Time with work, in nanoseconds.",
            |s| s.busy_ns.load(Ordering::Relaxed),
        ),
        (
            "spin_ns_total",
            "counter",
            "Time spent spinning, in nanoseconds.",
            |s| s.spin_ns.load(Ordering::Relaxed),
        ),
        ("sleeps_total", "counter", "Sleeps in the kernel.", |s| {
            s.sleeps.load(Ordering::Relaxed)
        }),
        (
            "spin_limit_ns",
            "gauge",
            "Longest time that the shard spins before it sleeps, in nanoseconds.",
            |s| s.spin_limit_ns.load(Ordering::Relaxed),
        ),
        (
            "wake_ns",
            "gauge",
            "Time that a wake-up from a sleep takes, in nanoseconds.",
            |s| s.wake_ns.load(Ordering::Relaxed),
        ),
        (
            "flows",
            "gauge",
            "Connections that this shard serves.",
            |s| s.flows.load(Ordering::Relaxed),
        ),
        (
            "flows_arrived_total",
            "counter",
            "Connections that came from other shards.",
            |s| s.arrived.load(Ordering::Relaxed),
        ),
        (
            "flows_departed_total",
            "counter",
            "Connections that went to other shards.",
            |s| s.departed.load(Ordering::Relaxed),
        ),
    ];
    for (name, kind, help, pick) in each {
        let name = format!("slackline_shard_{name}");
        let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (shard, stats) in shards.iter().enumerate() {
            let _ = writeln!(page, "{name}{{shard=\"{shard}\"}} {}", pick(stats));
        }
    }
    type Histogram = fn(&ShardStats) -> Snapshot;
    let histograms: [(&str, &str, Histogram, u32); 3] = [
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
    for (name, help, pick, doublings) in histograms {
        let name = format!("slackline_shard_{name}");
        let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} histogram\n");
        for (shard, stats) in shards.iter().enumerate() {
            let snapshot = pick(stats);
            for doubling in 0..=doublings {
                let limit = 1_u64 << doubling;
                let count = snapshot.count_up_to(limit);
                let _ = writeln!(
                    page,
                    "{name}_bucket{{shard=\"{shard}\",le=\"{limit}\"}} {count}"
                );
            }
            let (count, sum) = (snapshot.count(), snapshot.sum);
            let _ = write!(
                page,
                "{name}_bucket{{shard=\"{shard}\",le=\"+Inf\"}} {count}\n\
                 {name}_sum{{shard=\"{shard}\"}} {sum}\n{name}_count{{shard=\"{shard}\"}} {count}\n"
            );
        }
    }
}

/// Serves the pages that `page` makes of a path, one client at a time, for ever. Meant for a thread
/// of its own.
pub fn serve(listener: &TcpListener, page: impl Fn(&str) -> Option<Page>) {
    for stream in listener.incoming() {
        match stream {
            // A scraper that goes away or is slow is its own trouble.
            Ok(stream) => drop(answer(stream, &page)),
            // No descriptors: do not spin.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn answer(mut stream: TcpStream, page: &impl Fn(&str) -> Option<Page>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(SCRAPE_TIMEOUT))?;
    stream.set_write_timeout(Some(SCRAPE_TIMEOUT))?;
    let mut request = [0; 4096];
    let mut len = 0;
    while !request[..len]
        .windows(4)
        .any(|window| window == b"\r\n\r\n")
    {
        let read = stream.read(&mut request[len..])?;
        len += read;
        if read == 0 || len == request.len() {
            return Ok(());
        }
    }
    let text = String::from_utf8_lossy(&request[..len]);
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
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{}",
        page.content_type,
        page.body.len(),
        page.body
    )
}
