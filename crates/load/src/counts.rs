//! What a thread counts.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::machine::{Sample, Traffic};
use crate::second::{Disturbance, LATE_NS, LATE_SHARE};

/// What kinds of errors are called that came of an answer, of waiting for one, or of the
/// generator's own limits.
pub(crate) const STATUS: &str = "status ";
pub(crate) const NO_ANSWER: &str = "no answer in time";
pub(crate) const NEVER_SENT: &str = "never sent: every connection was busy to the end";
pub(crate) const NO_PORT: &str = "no local port is free for another connection";

/// The longest latency that is told apart: ten minutes.
const LATENCY_MAX_US: u64 = 600_000_000;
/// Three digits of every latency are exact.
const DIGITS: u8 = 3;
/// Kinds of errors that are told apart.
const ERROR_KINDS_MAX: usize = 10;
/// Disturbed seconds that are told one by one.
const DISTURBED_MAX: usize = 100;

/// Times of requests.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    /// From the scheduled arrival to the end of the answer.
    pub(crate) latency: Histogram<u64>,
    /// From the scheduled arrival to the sending.
    pub(crate) sent: Histogram<u64>,
    /// From the sending to the end of the answer.
    pub(crate) answered: Histogram<u64>,
    /// How much of it was the generator's own.
    pub(crate) own: Histogram<u64>,
    /// How long a request waited for a free connection.
    pub(crate) connection: Histogram<u64>,
    /// Answers below 400 among them.
    pub(crate) good: u64,
    /// For how long they were taken.
    pub(crate) length_ns: u64,
}

/// The times of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    pub(crate) due_ns: u64,
    pub(crate) sent_ns: u64,
    pub(crate) answered_ns: u64,
    /// Of the wait until it was sent, and of the wait until its answer was read.
    pub(crate) own_wait_ns: u64,
    pub(crate) own_read_ns: u64,
}

impl Times {
    pub(crate) fn new() -> Self {
        // The bounds are constants that hdrhistogram takes.
        let histogram = || {
            Histogram::new_with_max(LATENCY_MAX_US, DIGITS)
                .unwrap_or_else(|_| unreachable!("1 to {LATENCY_MAX_US} µs with {DIGITS} digits"))
        };
        Self {
            latency: histogram(),
            sent: histogram(),
            answered: histogram(),
            own: histogram(),
            connection: histogram(),
            good: 0,
            length_ns: 0,
        }
    }

    pub(crate) fn record(&mut self, times: &RequestTimes, is_good: bool) {
        let scheduled_to_sent = times.sent_ns.saturating_sub(times.due_ns);
        let sent_to_answered = times.answered_ns.saturating_sub(times.sent_ns);
        self.latency
            .saturating_record((scheduled_to_sent + sent_to_answered) / 1000);
        self.sent.saturating_record(scheduled_to_sent / 1000);
        self.answered.saturating_record(sent_to_answered / 1000);
        self.own
            .saturating_record((times.own_wait_ns + times.own_read_ns) / 1000);
        self.connection
            .saturating_record(scheduled_to_sent.saturating_sub(times.own_wait_ns) / 1000);
        self.good += u64::from(is_good);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.latency += &other.latency;
        self.sent += &other.sent;
        self.answered += &other.answered;
        self.own += &other.own;
        self.connection += &other.connection;
        self.good += other.good;
        self.length_ns += other.length_ns;
    }

    pub(crate) fn clear(&mut self) {
        for histogram in [
            &mut self.latency,
            &mut self.sent,
            &mut self.answered,
            &mut self.own,
            &mut self.connection,
        ] {
            histogram.reset();
        }
        self.good = 0;
        self.length_ns = 0;
    }

    /// Requests that waited longer than matters beside the 99th percentile.
    pub(crate) fn late(&self, waits: &Histogram<u64>) -> u64 {
        let limit_us = self.late_limit_us();
        waits
            .iter_recorded()
            .filter(|step| step.value_iterated_to() as f64 > limit_us)
            .map(|step| step.count_at_value())
            .sum()
    }

    fn late_limit_us(&self) -> f64 {
        let p99_us = self.latency.value_at_quantile(0.99) as f64;
        (LATE_NS as f64 / 1000.0).max(LATE_SHARE * p99_us)
    }
}

/// A second that was disturbed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Disturbed {
    pub(crate) at_s: f64,
    pub(crate) cause: Disturbance,
}

/// What one thread counted, or all together.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Seconds that nothing disturbed.
    pub(crate) kept: Times,
    /// The others.
    pub(crate) aside: Times,
    pub(crate) disturbed: Vec<Disturbed>,
    pub(crate) disturbed_s: f64,
    /// Requests that were answered with a status below 400, in all seconds.
    pub(crate) requests: u64,
    pub(crate) waited: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    statuses: BTreeMap<u16, u64>,
    /// How long the loops were not waiting, of how long they ran; CPU time and time without a CPU
    /// meanwhile.
    pub(crate) busy_ns: u64,
    pub(crate) wall_ns: u64,
    pub(crate) cpu_ns: u64,
    /// How much of it the loops polled in vain.
    pub(crate) polled_ns: u64,
    pub(crate) run_queue_ns: u64,
    pub(crate) traffic: Traffic,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self {
            kept: Times::new(),
            aside: Times::new(),
            disturbed: Vec::new(),
            disturbed_s: 0.0,
            requests: 0,
            waited: 0,
            errors: BTreeMap::new(),
            statuses: BTreeMap::new(),
            busy_ns: 0,
            wall_ns: 0,
            cpu_ns: 0,
            polled_ns: 0,
            run_queue_ns: 0,
            traffic: Traffic::default(),
        }
    }

    /// An answer came; whether it is a good one.
    pub(crate) fn answer(&mut self, status: u16) -> bool {
        let is_good = status < 400;
        if is_good {
            self.requests += 1;
        } else {
            *self.statuses.entry(status).or_default() += 1;
        }
        is_good
    }

    pub(crate) fn fail(&mut self, kind: &str) {
        if let Some(count) = self.errors.get_mut(kind) {
            *count += 1;
            return;
        }
        let known = self.errors.len() < ERROR_KINDS_MAX;
        let kind = if known { kind } else { "other" };
        *self.errors.entry(kind.to_owned()).or_default() += 1;
    }

    pub(crate) fn disturb(&mut self, at_s: f64, length_s: f64, cause: Disturbance) {
        self.disturbed_s += length_s;
        if self.disturbed.len() < DISTURBED_MAX {
            self.disturbed.push(Disturbed { at_s, cause });
        }
    }

    /// Counters of the thread since it began.
    pub(crate) fn account(&mut self, before: &Sample, after: &Sample) {
        self.cpu_ns = after.cpu_ns.saturating_sub(before.cpu_ns);
        self.run_queue_ns = after.run_queue_ns.saturating_sub(before.run_queue_ns);
    }

    /// All errors by kind.
    pub(crate) fn error_kinds(&self) -> BTreeMap<String, u64> {
        let mut kinds = self.errors.clone();
        for (status, count) in &self.statuses {
            kinds.insert(format!("{}{status}", STATUS), *count);
        }
        kinds
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.kept.merge(&other.kept);
        self.aside.merge(&other.aside);
        self.disturbed.extend_from_slice(&other.disturbed);
        self.disturbed_s += other.disturbed_s;
        self.requests += other.requests;
        self.waited += other.waited;
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        self.busy_ns += other.busy_ns;
        self.wall_ns += other.wall_ns;
        self.cpu_ns += other.cpu_ns;
        self.polled_ns += other.polled_ns;
        self.run_queue_ns += other.run_queue_ns;
        self.traffic.received_bytes += other.traffic.received_bytes;
        self.traffic.opened += other.traffic.opened;
        self.traffic.resent += other.traffic.resent;
    }
}
