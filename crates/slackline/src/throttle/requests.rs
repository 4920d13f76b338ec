//! `--port`: the latency of a service's requests, read off the wire beside the cores in use.

use std::fmt::Write as _;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use host::Roots;
use serde::Serialize;
use wire_latency::{
    Look, Meter, Monitor, NoData, Percentile, Reading, SourceSpec, Surroundings, WindowRules,
    WireSpec, minimum_requests,
};

use super::collect::Collected;

/// Length of a moment of the time line: long enough for a percentile of a busy service.
const MOMENT: Duration = Duration::from_secs(1);
/// Windows of 10 ms in it.
const WINDOWS: usize = 100;
/// Moments that are kept: an hour. Of a longer watch the last hour is shown.
const MOMENTS_MAX: usize = 3600;
/// How often packets are taken in.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// A source that gives nothing for so long has no figure.
const STALE_AFTER: Duration = Duration::from_secs(5);
/// Rows of the time line as text.
const ROWS_MAX: usize = 30;
/// Length of the longest bar in them.
const BAR: f64 = 20.0;

/// Whose latency is read.
#[derive(Default, clap::Args)]
pub(super) struct OfPort {
    /// Measure the latency of the requests on this TCP port from the network packets, in the
    /// service's network namespace. Needs CAP_NET_RAW.
    #[arg(long, value_name = "PORT")]
    port: Option<NonZeroU16>,
    /// Percentile of the latency, above 0 and below 100. By default 99.
    #[arg(long, value_name = "P", requires = "port", value_parser = percentile)]
    percentile: Option<f64>,
}

fn percentile(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    number
        .filter(|percentile| *percentile > 0.0 && *percentile < 100.0)
        .ok_or_else(|| "must be a number above 0 and below 100".to_owned())
}

impl OfPort {
    /// Which percentile, where a port is given.
    fn wanted(&self) -> Option<(WireSpec, f64)> {
        let port = self.port?.get();
        Some((WireSpec::of_port(port), self.percentile.unwrap_or(99.0)))
    }

    /// What it is called, where a port is given: `p99 of the requests on TCP port 80`.
    pub(super) fn name(&self) -> Option<String> {
        let (wire, percentile) = self.wanted()?;
        Some(format!(
            "p{percentile} of the requests on TCP port {}",
            wire.port
        ))
    }

    /// Reads one block after the other, where a port is given.
    pub(super) fn meter(&self, group: &str) -> anyhow::Result<Option<BlockMeter>> {
        let Some((wire, percentile)) = self.wanted() else {
            return Ok(None);
        };
        let minimum = minimum_requests(percentile);
        let meter = Meter::start(&SourceSpec::Wire(wire), &surroundings(group), minimum)?;
        Ok(Some(BlockMeter { meter, percentile }))
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
pub(super) struct BlockMeter {
    meter: Meter,
    percentile: f64,
}

impl BlockMeter {
    pub(super) fn begin(&mut self) -> Result<(), NoData> {
        self.meter.begin()
    }

    /// The percentile of the block's requests, with their number.
    pub(super) fn end(&mut self) -> Result<Percentile, NoData> {
        let reading = self.meter.end()?;
        reading.percentile(self.percentile).ok_or(NoData::Starting)
    }
}

/// A moment of the time line.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Moment {
    /// Its end, in seconds from the beginning of the watch.
    pub(super) at_s: f64,
    /// Cores in use, on average.
    pub(super) cores: f64,
    /// The percentile of the requests that were answered in it; absent where there is no figure.
    pub(super) latency_us: Option<f64>,
    /// The requests that it stands on.
    pub(super) requests: u64,
    /// Why there is no figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) no_data: Option<String>,
}

/// The latency of a watch.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Latency {
    /// Where it was read, in words.
    pub(super) source: String,
    /// Which percentile, 0 to 100.
    pub(super) percentile: f64,
    /// Of the whole watch, with its interval and its number of requests.
    pub(super) whole: Option<Percentile>,
    /// Why there is no figure of the whole watch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) no_data: Option<String>,
    /// Share of the requests that were looked at.
    pub(super) sampled_share: f64,
    /// Requests whose answer could not be told from another one's.
    pub(super) ambiguous: u64,
    /// Packets that the kernel dropped before they were read.
    pub(super) dropped: u64,
    /// The time line, at most the last hour.
    pub(super) moments: Vec<Moment>,
}

/// Requests that are watched.
pub(super) struct Requests {
    monitor: Monitor,
    percentile: f64,
    began: Instant,
    noted: Instant,
    moments: Vec<Moment>,
}

impl Requests {
    /// Begins to read, where a port is given.
    pub(super) fn watch(of: &OfPort, group: &str) -> anyhow::Result<Option<Self>> {
        let Some((wire, percentile)) = of.wanted() else {
            return Ok(None);
        };
        let rules = WindowRules {
            length: 2 * STALE_AFTER,
            // Judged below, for a moment and for the whole.
            minimum_requests: 1,
            stale_after: STALE_AFTER,
        };
        let monitor = Monitor::start(
            &SourceSpec::Wire(wire),
            &surroundings(group),
            rules,
            POLL_EVERY,
        )?;
        let began = Instant::now();
        Ok(Some(Self {
            monitor,
            percentile,
            began,
            noted: began,
            moments: Vec::new(),
        }))
    }

    /// Begins anew.
    pub(super) fn restart(&mut self) {
        self.monitor.restart();
        self.began = Instant::now();
        self.noted = self.began;
        self.moments.clear();
    }

    /// Takes in a moment, where one has gone by.
    pub(super) fn note(&mut self, seen: &Collected) {
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
    pub(super) fn report(&self) -> Latency {
        let look = self.monitor.look_since_restart();
        let reading = look.as_ref().ok();
        let counts = reading.map(|reading| reading.counts).unwrap_or_default();
        let figure = figure(&look, self.percentile);
        Latency {
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

fn moment(at_s: f64, cores: f64, look: &Look, percentile: f64) -> Moment {
    let figure = figure(look, percentile);
    let requests = |reading: &Reading| reading.requests;
    Moment {
        at_s,
        cores,
        requests: look.as_ref().map_or(0, requests),
        no_data: figure.as_ref().err().cloned(),
        latency_us: figure.ok().map(|it| it.value_us),
    }
}

/// `4.20 ms`.
fn ms(us: f64) -> String {
    format!("{:.2} ms", us / 1000.0)
}

/// The latency of the whole watch, in a sentence.
pub(super) fn sentence(latency: &Latency) -> String {
    let of = format!("{}: p{}", latency.source, latency.percentile);
    let Some(whole) = &latency.whole else {
        let why = latency.no_data.as_deref().unwrap_or("nothing was seen");
        return format!("{of}: no data: {why}");
    };
    let high = whole.high_us.map_or_else(|| "not bounded".to_owned(), ms);
    let mut text = format!(
        "{of} {} of {} requests (95 % interval {} to {high})",
        ms(whole.value_us),
        whole.requests,
        ms(whole.low_us),
    );
    if latency.sampled_share < 1.0 {
        let _ = write!(
            text,
            "; {:.0} % of the requests were looked at",
            100.0 * latency.sampled_share
        );
    }
    for (count, what) in [
        (latency.ambiguous, "requests could not be told apart"),
        (latency.dropped, "packets were dropped"),
    ] {
        if count > 0 {
            let _ = write!(text, "; {count} {what}");
        }
    }
    text
}

/// Moments together, so that a long watch fits: cores on average, the worst latency, all requests.
fn grouped(moments: &[Moment]) -> Vec<Moment> {
    let many = moments.len().div_ceil(ROWS_MAX).max(1);
    let groups = moments.chunks(many).filter_map(|group| {
        let last = group.last()?;
        let latencies = group.iter().filter_map(|moment| moment.latency_us);
        Some(Moment {
            at_s: last.at_s,
            cores: group.iter().map(|moment| moment.cores).sum::<f64>() / group.len() as f64,
            latency_us: latencies.reduce(f64::max),
            requests: group.iter().map(|moment| moment.requests).sum(),
            no_data: last.no_data.clone(),
        })
    });
    groups.collect()
}

/// The time line: cores in use and latency, a line for each second or for several.
pub(super) fn text(latency: &Latency) -> String {
    let mut text = format!("\nLatency, {}\n", sentence(latency));
    let rows = grouped(&latency.moments);
    if rows.is_empty() {
        return text;
    }
    let most = |of: &dyn Fn(&Moment) -> f64| rows.iter().map(of).fold(1e-9, f64::max);
    let (most_cores, most_us) = (
        most(&|row| row.cores),
        most(&|row| row.latency_us.unwrap_or(0.0)),
    );
    let bar = |value: f64, most: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to BAR"
        )]
        let length = (BAR * value / most).round() as usize;
        "█".repeat(length)
    };
    let width = 20;
    let _ = writeln!(
        text,
        "{:>8}  {:<27} {:<33} requests",
        "second",
        "cores in use",
        format!("p{}", latency.percentile)
    );
    for row in &rows {
        let figure = row.latency_us.map_or_else(|| "no data".to_owned(), ms);
        let _ = writeln!(
            text,
            "{:>8.0}  {:>6.2} {:<width$} {figure:>12} {:<width$} {}",
            row.at_s,
            row.cores,
            bar(row.cores, most_cores),
            bar(row.latency_us.unwrap_or(0.0), most_us),
            row.requests
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(second: u32, latency_us: Option<f64>) -> Moment {
        Moment {
            at_s: f64::from(second),
            cores: 0.5,
            latency_us,
            requests: 100,
            no_data: latency_us.is_none().then(|| "thin".to_owned()),
        }
    }

    #[test]
    fn a_long_watch_fits_and_shows_the_worst() {
        let moments: Vec<Moment> = (1..=300)
            .map(|second| moment(second, Some(f64::from(second))))
            .collect();
        let rows = grouped(&moments);
        assert_eq!(rows.len(), ROWS_MAX);
        assert_eq!(
            (rows[0].at_s, rows[0].latency_us, rows[0].requests),
            (10.0, Some(10.0), 1000)
        );
        assert!(grouped(&[]).is_empty());
    }

    #[test]
    fn a_moment_without_a_figure_says_so() {
        let latency = Latency {
            source: "the wire, TCP port 80".to_owned(),
            percentile: 99.0,
            whole: None,
            no_data: Some("no request within the last 2.0 s".to_owned()),
            sampled_share: 1.0,
            ambiguous: 0,
            dropped: 0,
            moments: vec![moment(1, Some(4200.0)), moment(2, None)],
        };
        insta::assert_snapshot!(text(&latency), @r"

        Latency, the wire, TCP port 80: p99: no data: no request within the last 2.0 s
          second  cores in use                p99                               requests
               1    0.50 ████████████████████      4.20 ms ████████████████████ 100
               2    0.50 ████████████████████      no data                      100
        ");
    }
}
