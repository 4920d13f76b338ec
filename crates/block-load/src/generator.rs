//! Requests at a rate, or a number of requests under way, and how long they take.
//!
//! At a rate the load is open-loop: requests arrive at random (Poisson) whether or not earlier ones
//! have ended, and a latency counts from the arrival. A medium that falls behind cannot slow the
//! load down, so its tail is not hidden.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use qos::Operation;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::LoadError;
use crate::medium::{Done, IoRequest, Medium};

/// Requests under way at most. Beyond them, arrivals wait in line and their latency grows.
pub const DEPTH_MAX: u32 = 16_384;
/// Arrivals that wait in line at most; more are counted as unanswered.
const LINE_MAX: usize = 1 << 20;
/// How long after the load's end answers are waited for.
const DRAIN: Duration = Duration::from_secs(2);
/// Latencies are kept up to a minute, with three digits.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// One percentile of the latency of reads is kept for each window of this length.
const WINDOW: Duration = Duration::from_secs(1);

/// When requests come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ArrivalProcess {
    /// At random, with this many requests a second on average.
    Open {
        /// Requests a second.
        iops: f64,
        /// Requests under way at most.
        depth_max: u32,
    },
    /// So many requests are always under way.
    Closed {
        /// Requests under way.
        depth: u32,
    },
}

/// Where requests go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessPattern {
    /// Anywhere in the area.
    Random,
    /// One after the other, from the beginning of the area, again and again.
    Sequential,
}

/// A load.
#[derive(Debug, Clone)]
pub struct LoadSpec {
    /// When requests come.
    pub arrivals: ArrivalProcess,
    /// Share of reads, 0 to 1.
    pub read_share: f64,
    /// Bytes of a request. Requests begin at multiples of this.
    pub len_bytes: u32,
    /// Bytes of the medium that are read.
    pub read_area: Range<u64>,
    /// Bytes of the medium that are written.
    pub write_area: Option<Range<u64>>,
    /// Where requests go.
    pub order: AccessPattern,
    /// How long the load runs before anything is counted.
    pub warm_up: Duration,
    /// How long it is counted.
    pub duration: Duration,
    /// Whether the thread polls all the time. Otherwise a load with a fixed number of requests
    /// under way sleeps until one ends.
    pub is_polling: bool,
    /// Decides arrivals, places and operations.
    pub seed: u64,
}

/// What a load showed.
#[derive(Debug, Clone)]
pub struct LoadResult {
    /// Requests that came in the counted time.
    pub offered: u64,
    /// Requests that ended in the counted time.
    pub answered: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Requests that got no answer until two seconds after the load's end.
    pub unanswered: u64,
    /// The counted time.
    pub seconds: f64,
    /// Latencies of reads that arrived in the counted time, in nanoseconds.
    pub read_ns: Histogram<u64>,
    /// The same of writes.
    pub write_ns: Histogram<u64>,
    /// 95th percentile of the latency of reads in each second, in microseconds.
    pub windows_p95_us: Vec<f64>,
    /// CPU time of this thread in the counted time.
    pub cpu_s: f64,
}

impl LoadResult {
    /// Requests that ended a second.
    pub fn iops(&self) -> f64 {
        self.answered as f64 / self.seconds
    }

    /// A percentile of the latency of reads, in microseconds. `None`: no read was answered.
    pub fn read_us(&self, quantile: f64) -> Option<f64> {
        let has_any = !self.read_ns.is_empty();
        has_any.then(|| self.read_ns.value_at_quantile(quantile) as f64 / 1000.0)
    }
}

#[derive(Clone, Copy)]
struct UnderWay {
    arrived: Instant,
    operation: Operation,
}

struct Generator<'a> {
    load: &'a LoadSpec,
    random: ChaCha8Rng,
    /// Position of the next sequential request, in requests.
    at: u64,
    under_way: Vec<Option<UnderWay>>,
    free: Vec<u32>,
    line: VecDeque<Instant>,
    counts_from: Instant,
    counts_to: Instant,
    window: Histogram<u64>,
    window_end: Instant,
    /// When the next request arrives, at a rate.
    next: Instant,
    cpu_before: Option<f64>,
    outcome: LoadResult,
}

fn histogram() -> Histogram<u64> {
    let made = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3);
    #[expect(clippy::expect_used, reason = "constant bounds that are valid")]
    made.expect("the bounds are valid")
}

/// CPU time of the calling thread.
fn cpu() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

fn check(load: &LoadSpec) -> Result<(), LoadError> {
    let areas = [Some(&load.read_area), load.write_area.as_ref()];
    for area in areas.into_iter().flatten() {
        let length_bytes = area.end.saturating_sub(area.start);
        if length_bytes < load.len_bytes.into() {
            return Err(LoadError::AreaTooSmall {
                length_bytes,
                request_bytes: load.len_bytes,
            });
        }
    }
    if load.read_share < 1.0 && load.write_area.is_none() {
        return Err(LoadError::NoWriteArea);
    }
    Ok(())
}

/// Runs a load. The calling thread is busy for as long.
///
/// # Errors
/// The load has no room for a request, or the medium is gone. What failed or got no answer is
/// counted in the [`LoadResult`].
pub fn run<M: Medium>(medium: &mut M, load: &LoadSpec) -> Result<LoadResult, LoadError> {
    check(load)?;
    let mut generator = Generator::new(load);
    let mut done = Vec::new();
    while generator.step(medium, &mut done)? {}
    generator.drain(medium, &mut done)?;
    Ok(generator.outcome)
}

/// Runs several loads at once, on one thread: none of them sleeps. All should be equally long.
///
/// # Errors
/// As [`run`].
pub fn run_together<M: Medium>(loads: &mut [(M, LoadSpec)]) -> Result<Vec<LoadResult>, LoadError> {
    let mut running = Vec::new();
    for (medium, load) in loads {
        check(load)?;
        load.is_polling = true;
        running.push((medium, Generator::new(load)));
    }
    let mut done = Vec::new();
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        for (medium, generator) in &mut running {
            goes_on |= generator.step(*medium, &mut done)?;
        }
    }
    let mut outcomes = Vec::new();
    for (medium, mut generator) in running {
        generator.drain(medium, &mut done)?;
        outcomes.push(generator.outcome);
    }
    Ok(outcomes)
}

impl<'a> Generator<'a> {
    fn new(load: &'a LoadSpec) -> Self {
        let depth = match load.arrivals {
            ArrivalProcess::Open { depth_max, .. } => depth_max,
            ArrivalProcess::Closed { depth } => depth,
        };
        let depth = depth.clamp(1, DEPTH_MAX);
        let counts_from = Instant::now() + load.warm_up;
        Self {
            load,
            random: ChaCha8Rng::seed_from_u64(load.seed),
            at: 0,
            under_way: vec![None; depth as usize],
            free: (0..depth).rev().collect(),
            line: VecDeque::new(),
            counts_from,
            counts_to: counts_from + load.duration,
            window: histogram(),
            window_end: counts_from + WINDOW,
            next: Instant::now(),
            cpu_before: None,
            outcome: LoadResult {
                offered: 0,
                answered: 0,
                errors: 0,
                unanswered: 0,
                seconds: load.duration.as_secs_f64(),
                read_ns: histogram(),
                write_ns: histogram(),
                windows_p95_us: Vec::new(),
                cpu_s: 0.0,
            },
        }
    }

    /// One turn: what arrives is submitted, and what has ended is counted. False: the load is over.
    fn step<M: Medium>(&mut self, medium: &mut M, done: &mut Vec<Done>) -> Result<bool, LoadError> {
        let now = Instant::now();
        if self.cpu_before.is_none() && now >= self.counts_from && now < self.counts_to {
            self.cpu_before = Some(cpu());
        }
        if now >= self.counts_to {
            if let Some(before) = self.cpu_before.take() {
                self.outcome.cpu_s = cpu() - before;
            }
            return Ok(false);
        }
        match self.load.arrivals {
            ArrivalProcess::Open { iops, .. } => {
                while self.next <= now {
                    self.arrive(self.next);
                    let share: f64 = self.random.random_range(f64::EPSILON..1.0);
                    self.next += Duration::from_secs_f64((-share.ln() / iops).min(3600.0));
                }
            }
            ArrivalProcess::Closed { .. } => {
                let free = self.free.len();
                (0..free).for_each(|_| self.arrive(now));
            }
        }
        self.submit(medium)?;
        let is_closed = matches!(self.load.arrivals, ArrivalProcess::Closed { .. });
        medium.poll(is_closed && !self.load.is_polling, done)?;
        self.end(done);
        Ok(true)
    }

    fn arrive(&mut self, at: Instant) {
        self.outcome.offered += u64::from(at >= self.counts_from && at < self.counts_to);
        if self.line.len() < LINE_MAX {
            self.line.push_back(at);
        } else {
            self.outcome.unanswered += 1;
        }
    }

    fn submit<M: Medium>(&mut self, medium: &mut M) -> Result<(), LoadError> {
        while !self.line.is_empty() {
            let Some(slot) = self.free.pop() else {
                return Ok(());
            };
            let Some(arrived) = self.line.pop_front() else {
                return Ok(());
            };
            let operation = self.operation();
            let offset = self.place(operation);
            self.under_way[slot as usize] = Some(UnderWay { arrived, operation });
            medium.submit(IoRequest {
                slot,
                operation,
                offset,
                len_bytes: self.load.len_bytes,
            })?;
        }
        Ok(())
    }

    fn operation(&mut self) -> Operation {
        let share = self.load.read_share;
        let is_read = share >= 1.0 || (share > 0.0 && self.random.random_bool(share));
        match is_read {
            true => Operation::Read,
            false => Operation::Write,
        }
    }

    fn place(&mut self, operation: Operation) -> u64 {
        let area = match (operation, &self.load.write_area) {
            (Operation::Write, Some(area)) => area,
            _ => &self.load.read_area,
        };
        let len_bytes = u64::from(self.load.len_bytes);
        let places = (area.end - area.start) / len_bytes;
        let place = match self.load.order {
            AccessPattern::Random => self.random.random_range(0..places),
            AccessPattern::Sequential => {
                self.at += 1;
                (self.at - 1) % places
            }
        };
        area.start + place * len_bytes
    }

    fn end(&mut self, done: &mut Vec<Done>) {
        if done.is_empty() {
            return;
        }
        let now = Instant::now();
        for Done { slot, is_ok } in done.drain(..) {
            let Some(UnderWay { arrived, operation }) = self.under_way[slot as usize].take() else {
                continue;
            };
            self.free.push(slot);
            if !is_ok {
                self.outcome.errors += 1;
                continue;
            }
            if now >= self.counts_from && now < self.counts_to {
                self.outcome.answered += 1;
            }
            if arrived < self.counts_from {
                continue;
            }
            let took_ns = now.saturating_duration_since(arrived).as_nanos();
            let took_ns = u64::try_from(took_ns).unwrap_or(u64::MAX).max(1);
            match operation {
                Operation::Read => {
                    self.outcome.read_ns.saturating_record(took_ns);
                    self.count_in_window(now, took_ns);
                }
                Operation::Write => self.outcome.write_ns.saturating_record(took_ns),
            }
        }
    }

    fn count_in_window(&mut self, now: Instant, took_ns: u64) {
        while now >= self.window_end {
            self.window_end += WINDOW;
            if !self.window.is_empty() {
                let p95_us = self.window.value_at_quantile(0.95) as f64 / 1000.0;
                self.outcome.windows_p95_us.push(p95_us);
                self.window.reset();
            }
        }
        self.window.saturating_record(took_ns);
    }

    /// Waits for what is under way or in line.
    fn drain<M: Medium>(&mut self, medium: &mut M, done: &mut Vec<Done>) -> Result<(), LoadError> {
        let end = Instant::now() + DRAIN;
        let depth = self.under_way.len();
        while (self.free.len() < depth || !self.line.is_empty()) && Instant::now() < end {
            self.submit(medium)?;
            medium.poll(false, done)?;
            self.end(done);
        }
        self.outcome.unanswered += (depth - self.free.len() + self.line.len()) as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::MemoryMedium;

    fn load(arrivals: ArrivalProcess, read_share: f64) -> LoadSpec {
        LoadSpec {
            arrivals,
            read_share,
            len_bytes: 4096,
            read_area: 0..1 << 20,
            write_area: Some(1 << 19..1 << 20),
            order: AccessPattern::Random,
            warm_up: Duration::from_millis(20),
            duration: Duration::from_millis(300),
            is_polling: true,
            seed: 1,
        }
    }

    #[test]
    fn an_open_load_offers_its_rate_and_counts_every_answer() {
        let mut memory = MemoryMedium::new(1 << 20);
        let arrivals = ArrivalProcess::Open {
            iops: 20_000.0,
            depth_max: 64,
        };
        let mut load = load(arrivals, 0.5);
        load.duration = Duration::from_secs(1);
        let outcome = run(&mut memory, &load).unwrap();
        // Poisson: 20,000 ± 5 standard deviations of 140. What would arrive at the end is less
        // where another process has the CPU just then.
        assert!((18_000..20_700).contains(&outcome.offered), "{outcome:?}");
        assert_eq!((outcome.errors, outcome.unanswered), (0, 0));
        let all = outcome.read_ns.len() + outcome.write_ns.len();
        assert_eq!(all, outcome.offered);
        let reads = outcome.read_ns.len() as f64 / all as f64;
        assert!((0.45..0.55).contains(&reads), "{reads}");
        assert!(outcome.read_us(0.95).unwrap() > 0.0);
    }

    #[test]
    fn a_medium_that_never_answers_is_no_fast_one() {
        struct Deaf;
        impl Medium for Deaf {
            fn submit(&mut self, _: IoRequest) -> Result<(), LoadError> {
                Ok(())
            }
            fn poll(&mut self, _: bool, _: &mut Vec<Done>) -> Result<(), LoadError> {
                Ok(())
            }
        }
        let outcome = run(&mut Deaf, &load(ArrivalProcess::Closed { depth: 4 }, 1.0)).unwrap();
        assert_eq!((outcome.answered, outcome.unanswered), (0, 4));
        assert_eq!(outcome.read_us(0.95), None);
    }

    #[test]
    fn writes_need_an_area_and_requests_need_room() {
        let mut memory = MemoryMedium::new(1 << 20);
        let mut wrong = load(ArrivalProcess::Closed { depth: 1 }, 0.9);
        wrong.write_area = None;
        let refused = run(&mut memory, &wrong);
        assert!(matches!(refused, Err(LoadError::NoWriteArea)));
        wrong.read_area = 0..100;
        let refused = run(&mut memory, &wrong);
        assert!(matches!(refused, Err(LoadError::AreaTooSmall { .. })));
        // Outside of the medium: an error of each request, not of the load.
        wrong.read_area = 1 << 20..2 << 20;
        wrong.read_share = 1.0;
        let outcome = run(&mut memory, &wrong).unwrap();
        assert!(outcome.errors > 0 && outcome.answered == 0);
    }
}
