//! The latency of a service's requests, read off the wire beside the cores in use.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use host::Roots;
use serde::Serialize;
use wire_latency::{
    Look, Meter, Monitor, NoData, Percentile, Reading, SourceSpec, Surroundings, WindowRules,
    WireSpec, minimum_requests,
};

use crate::collect::Collected;
use crate::error::ThrottleError;

/// Length of a moment of the timeline: long enough for a percentile of a busy service.
const MOMENT: Duration = Duration::from_secs(1);
/// Windows of 10 ms in it.
const WINDOWS: usize = 100;
/// Moments that are kept: an hour. Of a longer watch the last hour is shown.
const MOMENTS_MAX: usize = 3600;
/// How often packets are taken in.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// A source that gives nothing for so long has no figure.
const STALE_AFTER: Duration = Duration::from_secs(5);

/// Whose latency is read: the requests on a TCP port, in the group's network namespace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PortLatency {
    /// The port.
    pub port: NonZeroU16,
    /// Which percentile, above 0 and below 100.
    pub percentile: f64,
}

impl PortLatency {
    fn wire(&self) -> WireSpec {
        WireSpec::of_port(self.port.get())
    }

    /// What it is called: `p99 of the requests on TCP port 80`.
    pub(crate) fn name(&self) -> String {
        format!(
            "p{} of the requests on TCP port {}",
            self.percentile, self.port
        )
    }

    /// Reads one block after the other.
    pub(crate) fn meter(&self, group: &str) -> Result<BlockMeter, ThrottleError> {
        let percentile = self.percentile;
        let minimum = minimum_requests(percentile);
        let source = SourceSpec::Wire(self.wire());
        let meter = Meter::start(&source, &surroundings(group), minimum)?;
        Ok(BlockMeter { meter, percentile })
    }
}

/// The network namespace is that of a process of the group.
fn surroundings(group: &str) -> Surroundings {
    let processes = host::processes_below(&Roots::default(), group);
    Surroundings {
        pid: processes
            .ok()
            .and_then(|processes| processes.into_iter().min()),
        ..Surroundings::default()
    }
}

/// The latency of one block after the other.
pub(crate) struct BlockMeter {
    meter: Meter,
    percentile: f64,
}

impl BlockMeter {
    pub(crate) fn begin(&mut self) -> Result<(), NoData> {
        self.meter.begin()
    }

    /// The percentile of the block's requests, with their number.
    pub(crate) fn end(&mut self) -> Result<Percentile, NoData> {
        let reading = self.meter.end()?;
        reading.percentile(self.percentile).ok_or(NoData::Starting)
    }
}

/// A moment of the timeline.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyMoment {
    /// Its end, in seconds from the beginning of the watch.
    pub at_s: f64,
    /// Cores in use, on average.
    pub cores: f64,
    /// The percentile of the requests that were answered in it; absent where there is no figure.
    pub latency_us: Option<f64>,
    /// The requests that it stands on.
    pub requests: u64,
    /// Why there is no figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_data: Option<String>,
}

/// The latency of a watch.
#[derive(Clone, Debug, Serialize)]
pub struct RequestLatency {
    /// Where it was read, in words.
    pub source: String,
    /// Which percentile, 0 to 100.
    pub percentile: f64,
    /// Of the whole watch, with its interval and its number of requests.
    pub whole: Option<Percentile>,
    /// Why there is no figure of the whole watch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_data: Option<String>,
    /// Share of the requests that were looked at.
    pub sampled_share: f64,
    /// Requests whose answer could not be told from another one's.
    pub ambiguous: u64,
    /// Packets that the kernel dropped before they were read.
    pub dropped: u64,
    /// The timeline, at most the last hour.
    pub moments: Vec<LatencyMoment>,
}

/// Requests that are watched.
pub struct RequestMonitor {
    monitor: Monitor,
    percentile: f64,
    began: Instant,
    noted: Instant,
    moments: Vec<LatencyMoment>,
}

impl RequestMonitor {
    /// Begins to read.
    ///
    /// # Errors
    /// The packets cannot be read.
    pub fn start(of: &PortLatency, group: &str) -> Result<Self, ThrottleError> {
        let rules = WindowRules {
            length: 2 * STALE_AFTER,
            // Judged below, for a moment and for the whole.
            minimum_requests: 1,
            stale_after: STALE_AFTER,
        };
        let monitor = Monitor::start(
            &SourceSpec::Wire(of.wire()),
            &surroundings(group),
            rules,
            POLL_EVERY,
        )?;
        let began = Instant::now();
        Ok(Self {
            monitor,
            percentile: of.percentile,
            began,
            noted: began,
            moments: Vec::new(),
        })
    }

    /// Begins anew.
    pub fn restart(&mut self) {
        self.monitor.restart();
        self.began = Instant::now();
        self.noted = self.began;
        self.moments.clear();
    }

    /// Takes in a moment, where one has gone by.
    pub fn note(&mut self, seen: &Collected) {
        let now = Instant::now();
        let length = now.duration_since(self.noted);
        if length < MOMENT {
            return;
        }
        self.noted = now;
        let cores = seen.schedule.recent_cores(seen.end_ns, WINDOWS);
        let mean = cores.iter().sum::<f64>() / cores.len().max(1) as f64;
        let look = self.monitor.look_over(length);
        if self.moments.len() == MOMENTS_MAX {
            self.moments.remove(0);
        }
        let at_s = now.duration_since(self.began).as_secs_f64();
        self.moments
            .push(moment(at_s, mean, &look, self.percentile));
    }

    /// What was seen so far.
    #[must_use]
    pub fn report(&self) -> RequestLatency {
        let look = self.monitor.look_since_restart();
        let reading = look.as_ref().ok();
        let counts = reading.map(|reading| reading.counts).unwrap_or_default();
        let figure = figure(&look, self.percentile);
        RequestLatency {
            source: self.monitor.description().to_owned(),
            percentile: self.percentile,
            no_data: figure.as_ref().err().cloned(),
            whole: figure.ok(),
            sampled_share: reading.map_or(1.0, |reading| reading.sampled_share),
            ambiguous: counts.ambiguous,
            dropped: counts.dropped,
            moments: self.moments.clone(),
        }
    }
}

/// The percentile, where enough requests carry it; else why not.
fn figure(look: &Look, percentile: f64) -> Result<Percentile, String> {
    let reading = look.as_ref().map_err(ToString::to_string)?;
    let minimum = minimum_requests(percentile);
    let figure = reading.percentile(percentile);
    figure.filter(|it| it.requests >= minimum).ok_or_else(|| {
        let thin = NoData::Thin {
            requests: reading.requests,
            minimum,
            window_s: reading.window_s,
        };
        thin.to_string()
    })
}

fn moment(at_s: f64, cores: f64, look: &Look, percentile: f64) -> LatencyMoment {
    let figure = figure(look, percentile);
    let requests = |reading: &Reading| reading.requests;
    LatencyMoment {
        at_s,
        cores,
        requests: look.as_ref().map_or(0, requests),
        no_data: figure.as_ref().err().cloned(),
        latency_us: figure.ok().map(|it| it.value_us),
    }
}
