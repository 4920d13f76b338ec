//! Calibration: latency against rate at several shares of reads, and the model that fits.

use std::cmp::Ordering::Equal;
use std::ops::Range;
use std::time::{Duration, Instant};

use qos::{CalibrationError, Curve, DeviceModel, Operation};
use serde::Serialize;

use crate::LoadError;
use crate::generator::{self, AccessPattern, ArrivalProcess, LoadResult, LoadSpec};
use crate::medium::Medium;
use crate::picture::{Chart, PlotLine};

/// Bytes of a request: the unit of `qos`.
const LEN_BYTES: u32 = qos::BLOCK_BYTES;
/// Requests under way while the highest rate is looked for: deep queues of NVMe disks are not
/// faster (ReFlex, section 3.2.1, uses the rate alone).
const DEPTH: u32 = 128;
/// Requests under way at most at a rate.
const DEPTH_MAX: u32 = 4096;
/// The lowest and the highest rate, as shares of the highest one that was seen.
const SHARES_OF_MOST: (f64, f64) = (0.05, 0.97);
/// A load below this share of what it offers is one that the device did not keep up with.
const KEPT_UP: f64 = 0.9;
/// A 95th percentile of fewer reads is chance: one in twenty lies above it.
const READS_MIN: u64 = 40;

/// A load with so many times the tail of a higher rate of its share contradicts it: something else
/// slowed one of them down. It runs so many times again, and the run in the middle counts.
const CONTRADICTS: f64 = 1.5;
const RUNS_AGAIN: usize = 2;

/// The device is at rest where the 95th percentile of reads, one at a time, is at most this many
/// times the lowest one that was seen, in so many looks one after another. Disks of virtual
/// machines and flash that collects garbage stay slow for seconds after many writes.
const AT_REST: f64 = 3.0;
const LOOKS: u32 = 4;
const LOOK_MAX: Duration = Duration::from_millis(500);

/// What is measured.
#[derive(Debug, Clone)]
pub struct CalibrationPlan {
    /// Shares of reads, in percent, 1 to 100.
    pub read_percents: Vec<u8>,
    /// Loads of each share, beside the one that looks for the highest rate.
    pub loads_each: u32,
    /// How long each load is counted.
    pub duration: Duration,
    /// How long each load runs before it is counted.
    pub warm_up: Duration,
    /// How long the device may take at most to come to rest after its highest rate.
    pub rest_max: Duration,
    /// Bytes of the device.
    pub size_bytes: u64,
    /// Where writes may go. Without it only reads alone are measured.
    pub write_area: Option<Range<u64>>,
    /// Decides arrivals and places.
    pub seed: u64,
}

/// What one load showed.
#[derive(Debug, Clone, Serialize)]
pub struct CalibrationRun {
    /// Share of reads, in percent.
    pub read_percent: u8,
    /// Requests a second that were offered.
    pub offered_iops: f64,
    /// Requests a second that were answered.
    pub iops: f64,
    /// Median latency of reads, in microseconds.
    pub p50_us: Option<f64>,
    /// 95th percentile of the latency of reads, in microseconds.
    pub p95_us: Option<f64>,
    /// 99th percentile of the latency of reads, in microseconds.
    pub p99_us: Option<f64>,
    /// Why the load is left out of the fit.
    pub left_out: Option<String>,
    /// What kept the device busy beside this load: the load before it, or what the caller knows of
    /// others that use the CPUs or the disk. Such a load counts.
    pub disturbed_by: Option<String>,
}

/// A calibration: what a configuration's `calibration` names, as JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Calibration {
    /// What was measured.
    pub device: String,
    /// Tokens of a write of 4 KiB; a read costs 100. `None`: no write was measured.
    pub write_cost: Option<u32>,
    /// Tokens a second at each 95th percentile.
    pub curve: Curve,
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Seconds of each load.
    pub seconds_each: f64,
    /// All loads.
    pub loads: Vec<CalibrationRun>,
}

/// Why there is no calibration.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A load could not go on.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Nothing answered at some share of reads.
    #[error("at {read_percent} % reads the device answered nothing: {errors} requests failed")]
    NoAnswer {
        /// The share.
        read_percent: u8,
        /// Requests that failed.
        errors: u64,
    },
    /// The loads are no calibration.
    #[error("the measurements do not give a calibration: {source}{}", hint(*.left_out))]
    NoFit {
        /// The reason.
        #[source]
        source: CalibrationError,
        /// Loads that were left out.
        left_out: usize,
    },
}

fn hint(left_out: usize) -> String {
    match left_out {
        0 => String::new(),
        _ => format!(" ({left_out} loads were left out: give each more --seconds)"),
    }
}

/// Rates of a share's loads as shares of its highest rate: closer to each other near the knee.
fn rates(loads: u32) -> impl Iterator<Item = f64> {
    let (low, high) = SHARES_OF_MOST;
    (0..loads).map(move |index| {
        let at = f64::from(index) / f64::from(loads.saturating_sub(1).max(1));
        low + (high - low) * (1.0 - (1.0 - at).powf(1.5))
    })
}

fn load(
    plan: &CalibrationPlan,
    read_percent: u8,
    arrivals: ArrivalProcess,
    number: u64,
) -> LoadSpec {
    LoadSpec {
        arrivals,
        read_share: f64::from(read_percent) / 100.0,
        len_bytes: LEN_BYTES,
        read_area: 0..plan.size_bytes,
        write_area: plan.write_area.clone(),
        order: AccessPattern::Random,
        warm_up: plan.warm_up,
        duration: plan.duration,
        is_polling: true,
        seed: plan.seed.wrapping_add(number),
    }
}

/// Why a load says nothing about the device.
fn reason_to_leave_out(outcome: &LoadResult, offered_iops: f64) -> Option<String> {
    if outcome.errors > 0 {
        return Some(format!("{} requests failed", outcome.errors));
    }
    if outcome.unanswered > 0 {
        return Some(format!("{} requests got no answer", outcome.unanswered));
    }
    let reads = outcome.read_ns.len();
    if reads < READS_MIN {
        return Some(format!("{reads} reads are too few"));
    }
    let kept_up = outcome.iops() >= KEPT_UP * offered_iops;
    (!kept_up).then(|| "the device did not keep up".to_owned())
}

/// Looks at the device until it is at rest after its highest rate.
struct Rest {
    /// The lowest 95th percentile of a look, in microseconds.
    lowest_us: f64,
    looks: u64,
}

impl Rest {
    /// Why the next load is disturbed, where the device has not come to rest in time.
    fn wait<M: Medium>(
        &mut self,
        medium: &mut M,
        plan: &CalibrationPlan,
    ) -> Result<Option<String>, LoadError> {
        let mut look = load(plan, 100, ArrivalProcess::Closed { depth: 1 }, 0);
        look.warm_up = Duration::ZERO;
        look.duration = plan.duration.min(LOOK_MAX);
        let start = Instant::now();
        let mut at_rest = 0;
        loop {
            look.seed = plan.seed.wrapping_sub(self.looks);
            self.looks += 1;
            let outcome = generator::run(medium, &look)?;
            let p95_us = outcome.read_us(0.95);
            self.lowest_us = p95_us.map_or(self.lowest_us, |us| us.min(self.lowest_us));
            at_rest = match p95_us.is_some_and(|us| us <= AT_REST * self.lowest_us) {
                true => at_rest + 1,
                false => 0,
            };
            if at_rest == LOOKS {
                return Ok(None);
            }
            if start.elapsed() >= plan.rest_max {
                let reads = match p95_us {
                    Some(us) => format!(
                        "took {us:.0} µs, and {:.0} µs at other times",
                        self.lowest_us
                    ),
                    None => "got no answer".to_owned(),
                };
                return Ok(Some(format!(
                    "the device was not at rest {:.0} s after the load before: reads one at a time {reads}",
                    plan.rest_max.as_secs_f64()
                )));
            }
        }
    }
}

/// One load of a share of reads and a rate.
fn measure<M: Medium>(
    medium: &mut M,
    plan: &CalibrationPlan,
    (read_percent, iops): (u8, f64),
    number: u64,
) -> Result<CalibrationRun, LoadError> {
    let depth_max = DEPTH_MAX;
    let open = ArrivalProcess::Open { iops, depth_max };
    let outcome = generator::run(medium, &load(plan, read_percent, open, number))?;
    let offered_iops = outcome.offered as f64 / outcome.seconds;
    Ok(CalibrationRun {
        read_percent,
        offered_iops,
        iops: outcome.iops(),
        p50_us: outcome.read_us(0.5),
        p95_us: outcome.read_us(0.95),
        p99_us: outcome.read_us(0.99),
        left_out: reason_to_leave_out(&outcome, offered_iops),
        disturbed_by: None,
    })
}

/// The loads whose tail a higher rate contradicts. `loads` are of one share, with rising rates.
fn contradicting(loads: &[CalibrationRun]) -> Vec<usize> {
    let mut lowest_us = f64::INFINITY;
    let mut found = Vec::new();
    for (index, load) in loads.iter().enumerate().rev() {
        let (None, Some(p95_us)) = (&load.left_out, load.p95_us) else {
            continue;
        };
        if p95_us > CONTRADICTS * lowest_us {
            found.push(index);
        }
        lowest_us = lowest_us.min(p95_us);
    }
    found
}

/// Runs the loads of a share, which is that of `first` and those behind it, again where a higher
/// rate contradicts them. Of their runs one stays in their place; the others come last.
fn again(
    loads: &mut Vec<CalibrationRun>,
    first: usize,
    run: &mut dyn FnMut(f64) -> Result<CalibrationRun, LoadError>,
) -> Result<(), LoadError> {
    for index in contradicting(&loads[first..]) {
        let index = first + index;
        let mut runs = vec![loads[index].clone()];
        for _ in 0..RUNS_AGAIN {
            runs.push(run(loads[index].offered_iops)?);
        }
        middle_first(&mut runs);
        loads[index] = runs.swap_remove(0);
        loads.extend(runs);
    }
    Ok(())
}

/// Of several runs of one load the one with the middle 95th percentile counts, the slower one of
/// two. It becomes the first.
fn middle_first(runs: &mut [CalibrationRun]) {
    let counts = |run: &CalibrationRun| run.p95_us.filter(|_| run.left_out.is_none());
    let mut order: Vec<usize> = (0..runs.len())
        .filter(|&index| counts(&runs[index]).is_some())
        .collect();
    order.sort_by(|&a, &b| {
        counts(&runs[a])
            .partial_cmp(&counts(&runs[b]))
            .unwrap_or(Equal)
    });
    let middle = order.get(order.len() / 2).copied();
    for index in order.iter().copied().filter(|&index| Some(index) != middle) {
        runs[index].left_out = Some("another run of this load counts".to_owned());
    }
    runs.swap(0, middle.unwrap_or(0));
}

/// Loads a device at rising rates, one share of reads after the other, reads alone first.
/// `progress` hears of each load, and may add what disturbed it.
///
/// # Errors
/// See [`CalibrateError`].
pub fn calibrate<M: Medium>(
    medium: &mut M,
    device: &str,
    plan: &CalibrationPlan,
    progress: &mut dyn FnMut(&mut CalibrationRun),
) -> Result<Calibration, CalibrateError> {
    let mut loads = Vec::new();
    let mut number = 0;
    let mut rest = Rest {
        lowest_us: f64::INFINITY,
        looks: 0,
    };
    // Before anything is written it is as fast as it gets.
    rest.wait(medium, plan)?;
    for &read_percent in &plan.read_percents {
        let closed = ArrivalProcess::Closed { depth: DEPTH };
        let fastest = generator::run(medium, &load(plan, read_percent, closed, number))?;
        number += 1;
        if fastest.answered == 0 {
            return Err(CalibrateError::NoAnswer {
                read_percent,
                errors: fastest.errors,
            });
        }
        let mut disturbed_by = rest.wait(medium, plan)?;
        let first = loads.len();
        for rate in rates(plan.loads_each) {
            let iops = rate * fastest.iops();
            let mut measured = measure(medium, plan, (read_percent, iops), number)?;
            number += 1;
            measured.disturbed_by = disturbed_by.take();
            progress(&mut measured);
            loads.push(measured);
        }
        again(&mut loads, first, &mut |iops| {
            let disturbed_by = rest.wait(medium, plan)?;
            let mut measured = measure(medium, plan, (read_percent, iops), number)?;
            number += 1;
            measured.disturbed_by = disturbed_by;
            progress(&mut measured);
            Ok(measured)
        })?;
    }
    let model = fit(&loads)?;
    Ok(Calibration {
        device: device.to_owned(),
        write_cost: write_cost(&model),
        curve: model.curve,
        request_bytes: LEN_BYTES,
        seconds_each: plan.duration.as_secs_f64(),
        loads,
    })
}

fn fit(loads: &[CalibrationRun]) -> Result<DeviceModel, CalibrateError> {
    let counts = loads.iter().filter(|load| load.left_out.is_none());
    let points: Vec<qos::CalibrationPoint> = counts
        .filter_map(|load| {
            Some(qos::CalibrationPoint {
                read_share: f64::from(load.read_percent) / 100.0,
                iops: load.iops,
                p95_us: load.p95_us?,
            })
        })
        .collect();
    qos::fit(&points).map_err(|source| CalibrateError::NoFit {
        source,
        left_out: loads.len() - points.len(),
    })
}

/// What a write costs, where writes are part of the model.
fn write_cost(model: &DeviceModel) -> Option<u32> {
    let has_writes = model.curve.mixed.is_some();
    has_writes.then(|| model.costs.of_block(Operation::Write))
}

/// The calibration of a simulated device, which is known without a load.
pub fn of_model(device: &str, model: &DeviceModel) -> Calibration {
    Calibration {
        device: device.to_owned(),
        write_cost: write_cost(model),
        curve: model.curve.clone(),
        request_bytes: LEN_BYTES,
        seconds_each: 0.0,
        loads: Vec::new(),
    }
}

impl Calibration {
    /// 95th percentile against rate. Loads that were left out are not drawn. A model without loads
    /// is drawn by its columns, in reads of 4 KiB.
    pub fn chart(&self) -> Chart {
        let mut chart = Chart {
            title: format!("{}: latency of reads against the rate", self.device),
            x_label: "requests of 4 KiB a second".to_owned(),
            y_label: "95th percentile, µs".to_owned(),
            series: Vec::new(),
        };
        for load in &self.loads {
            let (None, Some(p95_us)) = (&load.left_out, load.p95_us) else {
                continue;
            };
            let name = format!("{} % reads", load.read_percent);
            match chart.series.last_mut() {
                Some(series) if series.name == name => series.points.push((load.iops, p95_us)),
                _ => chart.series.push(PlotLine {
                    name,
                    points: vec![(load.iops, p95_us)],
                }),
            }
        }
        if self.loads.is_empty() {
            let columns = [
                ("nobody writes", Some(&self.curve.read_only)),
                ("somebody writes", self.curve.mixed.as_ref()),
            ];
            for (name, column) in columns {
                let Some(column) = column else { continue };
                let reads = |tokens_per_s: f64| tokens_per_s / f64::from(qos::READ_COST);
                let points = column.points().iter();
                chart.series.push(PlotLine {
                    name: name.to_owned(),
                    points: points
                        .map(|point| (reads(point.tokens_per_s), point.p95_us))
                        .collect(),
                });
            }
        }
        chart
    }
}

#[cfg(test)]
mod tests;
