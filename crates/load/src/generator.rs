//! The threads that send, and what each of them counts.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use host::RealTime;
use ureq::http;

use crate::neighbours::Watch;
use crate::report::{Latency, NO_ANSWER, Report, STATUS};
use http_client::{check_url, config, redact};

use crate::{Arrivals, Error, Request};

/// The longest latency that is told apart: ten minutes.
const LATENCY_MAX_US: u64 = 600_000_000;
/// Two digits of every latency are exact.
const DIGITS: u8 = 3;
/// More connections than this would be more threads than a generator should have.
const CONNECTIONS_MAX: usize = 4096;
/// Kinds of errors that are told apart.
const ERROR_KINDS_MAX: usize = 10;
/// A thread sleeps at most this long before it looks whether the run was stopped.
const LOOK: Duration = Duration::from_millis(100);

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is sent, in order, and then from the start again.
    pub requests: Vec<Request>,
    /// When.
    pub arrivals: Arrivals,
    /// For how long requests are due.
    pub duration: Duration,
    /// Connections, each with a thread.
    pub connections: usize,
    /// An answer that takes longer is an error. What is still unsent so long after the last arrival is given up.
    pub timeout: Duration,
    /// The service's control group, where the service is on this machine and the group is known: the generator then runs at
    /// real-time priority, so that the service does not hold back its own load, and who else took CPU is reckoned.
    pub service_group: Option<String>,
}

#[derive(Debug)]
struct Counts {
    latency: Histogram<u64>,
    lateness: Histogram<u64>,
    requests: u64,
    waited: u64,
    errors: BTreeMap<String, u64>,
}

impl Counts {
    fn new() -> Self {
        // The bounds are constants that hdrhistogram takes.
        let histogram = || {
            Histogram::new_with_max(LATENCY_MAX_US, DIGITS)
                .unwrap_or_else(|_| unreachable!("1 to {LATENCY_MAX_US} µs with {DIGITS} digits"))
        };
        Self {
            latency: histogram(),
            lateness: histogram(),
            requests: 0,
            waited: 0,
            errors: BTreeMap::new(),
        }
    }

    fn fail(&mut self, kind: String) {
        let known = self.errors.len() < ERROR_KINDS_MAX || self.errors.contains_key(&kind);
        *self
            .errors
            .entry(if known { kind } else { "other".to_owned() })
            .or_default() += 1;
    }

    fn merge(&mut self, other: &Self) {
        self.latency += &other.latency;
        self.lateness += &other.lateness;
        self.requests += other.requests;
        self.waited += other.waited;
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
    }
}

/// Runs the plan to its end, or until `stop` says so.
///
/// # Errors
///
/// [`Error::Number`] for a plan that cannot be.
pub fn run(plan: &Plan, stop: &(dyn Fn() -> bool + Sync)) -> Result<Report, Error> {
    let number = |what, reason: String| Error::Number { what, reason };
    if plan.requests.is_empty() {
        return Err(number("requests", "there are none".to_owned()));
    }
    for request in &plan.requests {
        check_url(&request.url)
            .map_err(|reason| number("url", format!("{}: {reason}", redact(&request.url))))?;
    }
    if plan.connections == 0 || plan.connections > CONNECTIONS_MAX {
        return Err(number(
            "connections",
            format!("must be 1 to {CONNECTIONS_MAX}"),
        ));
    }
    let due_ns = plan.arrivals.due_ns(plan.duration.as_secs_f64())?;
    let watch = plan
        .service_group
        .as_deref()
        .map(Watch::start)
        .transpose()?;
    let next = AtomicUsize::new(0);
    let cpu_before_s = host::own_cpu_s();
    let started = Instant::now();
    let work = || {
        Worker {
            plan,
            due_ns: &due_ns,
            next: &next,
            started,
            stop,
        }
        .run()
    };
    let mut counts = Counts::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.connections).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            match thread.join() {
                Ok(of) => counts.merge(&of),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    let duration_s = started.elapsed().as_secs_f64();
    let errors = counts.errors.values().sum();
    let due = counts.requests + errors;
    let mut report = Report {
        due,
        requests: counts.requests,
        errors,
        error_kinds: counts.errors,
        duration_s,
        requests_per_s: counts.requests as f64 / duration_s,
        latency: Latency::of(&counts.latency),
        waited_share: counts.waited as f64 / due.max(1) as f64,
        lateness_p99_us: 0.0,
        own_cpu_s: host::own_cpu_s() - cpu_before_s,
        neighbours: watch.map(Watch::end).transpose()?,
        bottleneck: None,
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    report.judge(&counts.lateness, cpus);
    Ok(report)
}

struct Worker<'a> {
    plan: &'a Plan,
    due_ns: &'a [u64],
    next: &'a AtomicUsize,
    started: Instant,
    stop: &'a (dyn Fn() -> bool + Sync),
}

impl Worker<'_> {
    fn run(&self) -> Counts {
        let agent: ureq::Agent = config(self.plan.timeout)
            .http_status_as_error(false)
            .max_idle_connections(1)
            .build()
            .into();
        let _real_time = self.plan.service_group.as_ref().map(|_| RealTime::take());
        let mut counts = Counts::new();
        let end = self.started + self.plan.duration + self.plan.timeout;
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(due_ns) = self.due_ns.get(index) else {
                return counts;
            };
            let due = self.started + Duration::from_nanos(*due_ns);
            let now = Instant::now();
            if now < due {
                if !self.sleep_until(due) {
                    return counts;
                }
                record(&mut counts.lateness, due.elapsed());
            } else {
                counts.waited += 1;
            }
            if (self.stop)() {
                return counts;
            }
            if now > end {
                counts.fail("never sent: every connection was busy to the end".to_owned());
            } else {
                let request = &self.plan.requests[index % self.plan.requests.len()];
                match send(&agent, request) {
                    Ok(()) => counts.requests += 1,
                    Err(kind) => counts.fail(kind),
                }
            }
            record(&mut counts.latency, due.elapsed());
        }
    }

    /// `false` when the run was stopped meanwhile.
    fn sleep_until(&self, due: Instant) -> bool {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(LOOK));
            if left > LOOK && (self.stop)() {
                return false;
            }
        }
    }
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
}

/// What went wrong, in a few words that many requests have in common.
fn kind(error: ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(_) => NO_ANSWER.to_owned(),
        ureq::Error::Io(error) => match error.kind().to_string() {
            // For a name that nobody knows, for one, the standard library has no word; the error itself has.
            kind if ["other error", "uncategorized error"].contains(&kind.as_str()) => {
                error.to_string()
            }
            kind => kind,
        },
        error => error.to_string(),
    }
}

/// Sends a request and reads the whole answer; the error is its kind, in a few words.
fn send(agent: &ureq::Agent, request: &Request) -> Result<(), String> {
    let built = http::Request::builder()
        .method(request.method.as_str())
        .uri(&request.url)
        .body(request.body.as_str())
        .map_err(|error| error.to_string())?;
    let answer = if request.body.is_empty() {
        agent.run(built.map(|_| ()))
    } else {
        agent.run(built)
    };
    let (parts, body) = answer.map_err(kind)?.into_parts();
    // A body that stalls or breaks off midway is wrapped by its reader.
    io::copy(&mut body.into_reader(), &mut io::sink()).map_err(|error| kind(error.into()))?;
    if parts.status.as_u16() >= 400 {
        return Err(format!("{STATUS}{}", parts.status.as_u16()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// What is said of a service that answers so, and then says nothing more, or closes.
    fn said_of(answer: &'static str, closes: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            if !closes {
                // Until the generator has given up.
                let _ = stream.read(&mut [0; 1]);
            }
        });
        let plan = Plan {
            requests: vec![Request::get(&url)],
            arrivals: Arrivals::Recorded { at_s: vec![0.0] },
            duration: Duration::from_secs(1),
            connections: 1,
            timeout: Duration::from_millis(300),
            service_group: None,
        };
        let report = run(&plan, &|| false).unwrap();
        serving.join().unwrap();
        assert_eq!((report.due, report.errors), (1, 1));
        let (kind, _) = report.error_kinds.into_iter().next().unwrap();
        kind
    }

    #[test]
    fn an_answer_that_stalls_midway_did_not_come_in_time() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nok";
        assert_eq!(said_of(head, false), NO_ANSWER);
        assert_eq!(said_of("", false), NO_ANSWER);
        assert_eq!(said_of(head, true), "unexpected end of file");
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n";
        let kind = said_of(chunks, true);
        assert!(kind.contains("chunk"), "{kind}");
    }

    #[test]
    fn a_name_that_nobody_knows_is_said_to_be_one() {
        let agent: ureq::Agent = config(Duration::from_secs(5)).build().into();
        let kind = send(&agent, &Request::get("http://no-such-host.invalid/")).unwrap_err();
        assert!(
            ["lookup", "host", "resolve"]
                .iter()
                .any(|word| kind.contains(word)),
            "{kind}"
        );
    }
}
