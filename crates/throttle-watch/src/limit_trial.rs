//! Another limit on a running service, kept only if it is shown to be better.

use std::path::Path;
use std::time::Duration;

use host::{CpuQuota, HostError, Journal, Knob, Roots};
use paired_stats::{Interval, Pair, abba, ratio_interval};
use rustix::io::Errno;
use serde::Serialize;
use tuner::process::Interrupt;

use crate::collect::{Collected, Jobs};
use crate::error::ThrottleError;
use crate::requests::{BlockMeter, PortLatency};
use crate::say::Say;
use crate::shell::shell;
use crate::target::{ServiceTarget, ensure_own_limit, group_of};
use crate::watch::observe_group;

const CONFIDENCE: f64 = 0.95;
/// After a change of the limit, so long is not counted: what queued up under the other one drains.
const SETTLE_S: f64 = 1.0;

/// What is tried, and how it is measured.
#[derive(Clone, Debug)]
pub struct LimitTrialOptions {
    /// The service.
    pub target: ServiceTarget,
    /// The quota to try, in cores; absent, the present one.
    pub quota: Option<f64>,
    /// The period to try, in milliseconds; absent, the present one.
    pub period_ms: Option<f64>,
    /// The burst to try, in milliseconds of CPU time; absent, the present one.
    pub burst_ms: Option<f64>,
    /// What is minimised.
    pub metric: TrialMetric,
    /// Pairs of blocks; at least two.
    pub pairs: usize,
    /// Length of a block, in seconds.
    pub block_s: f64,
    /// The new limit is kept if the metric is shown to be below this multiple of its value under
    /// the present one.
    pub below: f64,
}

/// What is minimised.
#[derive(Clone, Debug)]
pub enum TrialMetric {
    /// The 99th percentile of a job's time in the threads of this name; without one, of the pool
    /// that does most jobs.
    Jobs(Option<String>),
    /// The number that a shell command prints, measured since it last ran.
    Command(String),
    /// The latency of a port's requests.
    Requests(PortLatency),
}

/// One block.
#[derive(Clone, Debug, Serialize)]
pub struct TrialBlock {
    /// Under the new limit.
    pub is_new: bool,
    /// The metric.
    pub value: f64,
    /// The requests that the value stands on, where it is the latency of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Periods in which the group was throttled.
    pub throttled_periods: u64,
    /// All periods in which it wanted CPU time.
    pub periods: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct LimitTrialReport {
    /// The control group.
    pub group: String,
    /// The limit that was in force.
    pub before: CpuQuota,
    /// The new one.
    pub tried: CpuQuota,
    /// What was measured, in words.
    pub metric: String,
    /// All blocks, in order of time.
    pub blocks: Vec<TrialBlock>,
    /// The metric under the new limit over that under the old one.
    pub ratio: Interval,
    /// Whether the new limit stays.
    pub is_kept: bool,
}

impl LimitTrialReport {
    /// Throttled periods under the new limit, or under the present one.
    #[must_use]
    pub fn throttled(&self, is_new: bool) -> u64 {
        let blocks = self.blocks.iter().filter(|block| block.is_new == is_new);
        blocks.map(|block| block.throttled_periods).sum()
    }

    /// Where nothing is throttled, whatever became better is not the limit's doing: the service
    /// warms up, the load changes.
    #[must_use]
    pub fn can_help(&self, below: f64) -> bool {
        below > 1.0 || self.throttled(false) > 0
    }
}

/// How a trial ended.
#[derive(Debug)]
pub struct LimitTrialEnd {
    /// What came of it.
    pub report: Result<LimitTrialReport, ThrottleError>,
    /// The limit that was in force before.
    pub before: CpuQuota,
    /// Whether everything that is not kept was put back.
    pub is_restored: bool,
    /// The signal that stopped it.
    pub signal: Option<i32>,
}

/// Tries the limit, and keeps or restores it.
///
/// # Errors
/// The trial cannot begin, or the journal cannot be read at its end.
pub fn try_limit(
    options: &LimitTrialOptions,
    state_dir: &Path,
    say: Say<'_>,
) -> Result<LimitTrialEnd, ThrottleError> {
    let roots = Roots::default();
    let group = group_of(&roots, &options.target)?;
    if group.is_empty() {
        return Err(ThrottleError::RootHasNoLimit);
    }
    // Before any limit is read: what a killed run left in force is not the present limit.
    let mut journal = Journal::open(state_dir)?;
    if !journal.is_empty() {
        return Err(ThrottleError::LeftOver);
    }
    ensure_own_limit(&roots, &group, "to change")?;
    let before = CpuQuota::read(&roots, &group)?;
    let tried = tried(options, &before)?;
    if tried == before {
        return Err(ThrottleError::SameLimit);
    }
    // Before anything is changed: a missing privilege is said first.
    let meter = match &options.metric {
        TrialMetric::Requests(of) => Some(of.meter(&group)?),
        _ => None,
    };
    let interrupt = Interrupt::on_signals().map_err(ThrottleError::Signals)?;
    journal.give_way();
    let mut trial = LimitTrial {
        meter,
        roots: roots.clone(),
        group: group.clone(),
        before,
        tried,
        options,
        interrupt: &interrupt,
        journal: &mut journal,
        say,
    };
    let measured = trial.measure();
    let report = measured.map(|(metric, blocks, ratio)| LimitTrialReport {
        group,
        before,
        tried,
        metric,
        blocks,
        ratio,
        is_kept: false,
    });
    // Asked once: a signal that comes after a limit was kept changes nothing any more.
    let signal = interrupt.signal();
    let report = report.and_then(|mut report| {
        report.is_kept = report.can_help(options.below) && report.ratio.high < options.below;
        if report.is_kept && signal.is_none() {
            keep(&mut journal, &roots, &report)?;
        }
        Ok(report)
    });
    // Also after an error: whatever was not promoted goes back.
    let is_restored = journal.restore(&roots, false)?.is_complete();
    Ok(LimitTrialEnd {
        report,
        before,
        is_restored,
        signal,
    })
}

/// Writes the new limit for good.
fn keep(
    journal: &mut Journal,
    roots: &Roots,
    report: &LimitTrialReport,
) -> Result<(), ThrottleError> {
    set(journal, roots, &report.group, &report.tried)?;
    let writes = report.tried.writes(roots, &report.group)?.into_iter();
    let knobs: Vec<Knob> = writes.map(|write| write.0).collect();
    Ok(journal.promote(&knobs)?)
}

/// The limit that is asked for; what is not named stays.
fn tried(options: &LimitTrialOptions, before: &CpuQuota) -> Result<CpuQuota, ThrottleError> {
    let wrong = |option: &'static str, must: String| ThrottleError::Option { option, must };
    let microseconds = |option: &'static str, ms: f64| {
        let us = (ms * 1000.0).round();
        if !(0.0..=1e12).contains(&us) {
            return Err(wrong(
                option,
                format!("between 0 and a million seconds, not {ms} ms"),
            ));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked above"
        )]
        Ok(us as u64)
    };
    let period_us = options
        .period_ms
        .map_or(Ok(before.period_us), |ms| microseconds("--period-ms", ms))?;
    if !(1000..=1_000_000).contains(&period_us) {
        let must = "between 1 and 1000, as the kernel has it".to_owned();
        return Err(wrong("--period-ms", must));
    }
    let cores = options.quota.unwrap_or_else(|| before.cores());
    // NaN is no number of cores.
    if cores.is_nan() || cores <= 0.0 {
        return Err(wrong("--quota", "above 0".to_owned()));
    }
    let quota_us = if cores.is_infinite() {
        None
    } else {
        Some(microseconds("--quota", cores * period_us as f64 / 1000.0)?)
    };
    if quota_us.is_some_and(|us| us < 1000) {
        return Err(ThrottleError::QuotaTooSmall);
    }
    let burst_us = match options.burst_ms {
        Some(ms) => Some(microseconds("--burst-ms", ms)?),
        None => before.burst_us.map(|us| us.min(quota_us.unwrap_or(0))),
    };
    if burst_us.unwrap_or(0) > quota_us.unwrap_or(0) {
        let quota_ms = quota_us.unwrap_or(0) as f64 / 1000.0;
        let must = format!("at most the quota, {quota_ms} ms a period: the kernel refuses more");
        return Err(wrong("--burst-ms", must));
    }
    Ok(CpuQuota {
        period_us,
        quota_us,
        burst_us,
    })
}

/// Writes a limit through the journal.
fn set(
    journal: &mut Journal,
    roots: &Roots,
    group: &str,
    quota: &CpuQuota,
) -> Result<(), ThrottleError> {
    for (knob, value) in quota.writes(roots, group)? {
        journal
            .write(roots, &knob, &value)
            .map_err(|error| match error {
                // kernel/sched/core.c, tg_cfs_schedulable_down; the numbers themselves are checked
                // in `tried`.
                HostError::Write { path, value, errno } if errno == Errno::INVAL.raw_os_error() => {
                    ThrottleError::LimitContradicted { path, value }
                }
                error => error.into(),
            })?;
    }
    Ok(())
}

struct LimitTrial<'a> {
    /// The latency of a port's requests, where it is the metric.
    meter: Option<BlockMeter>,
    roots: Roots,
    group: String,
    before: CpuQuota,
    tried: CpuQuota,
    options: &'a LimitTrialOptions,
    interrupt: &'a Interrupt,
    journal: &'a mut Journal,
    say: Say<'a>,
}

impl LimitTrial<'_> {
    /// Old and new in turns.
    fn measure(&mut self) -> Result<(String, Vec<TrialBlock>, Interval), ThrottleError> {
        let mut blocks = Vec::new();
        let mut pairs = Vec::new();
        let mut pool = match &self.options.metric {
            TrialMetric::Jobs(pool) => pool.clone(),
            _ => None,
        };
        // What the kernel refuses is known before a block has been measured.
        for quota in [self.tried, self.before] {
            set(self.journal, &self.roots, &self.group, &quota)?;
        }
        for pair in 0..self.options.pairs {
            for is_new in abba(pair, [false, true]) {
                let quota = if is_new { self.tried } else { self.before };
                set(self.journal, &self.roots, &self.group, &quota)?;
                let block = self.block(is_new, &mut pool)?;
                (self.say)(&format!(
                    "pair {}/{}, {} limit: {:.3}{}, {} of {} periods throttled",
                    pair + 1,
                    self.options.pairs,
                    if is_new { "new" } else { "present" },
                    block.value,
                    block
                        .requests
                        .map_or_else(String::new, |requests| format!(" of {requests} requests")),
                    block.throttled_periods,
                    block.periods
                ));
                blocks.push(block);
            }
            let value = |is_new: bool| {
                let of_side = blocks.iter().rev().find(|block| block.is_new == is_new);
                of_side.map_or(f64::NAN, |block: &TrialBlock| block.value)
            };
            pairs.push(Pair {
                control: value(false),
                experiment: value(true),
            });
        }
        let metric = match &self.options.metric {
            TrialMetric::Requests(of) => format!("{}, ms", of.name()),
            TrialMetric::Command(command) => command.clone(),
            TrialMetric::Jobs(_) => format!("p99 of a job of {}, ms", pool.unwrap_or_default()),
        };
        let ratio = ratio_interval(&pairs, CONFIDENCE).map_err(ThrottleError::NoRatio)?;
        Ok((metric, blocks, ratio))
    }

    fn block(
        &mut self,
        is_new: bool,
        pool: &mut Option<String>,
    ) -> Result<TrialBlock, ThrottleError> {
        if let Err(stop) = self.interrupt.sleep(Duration::from_secs_f64(SETTLE_S)) {
            return Err(ThrottleError::StoppedBy { stop });
        }
        if let TrialMetric::Command(command) = &self.options.metric {
            // What it counted until now is not this block's.
            shell("--metric", command)?;
        }
        if let Some(meter) = &mut self.meter {
            meter.begin().map_err(ThrottleError::NoFigure)?;
        }
        let mut goes_on = |_: &Collected| self.interrupt.signal().is_none();
        let seconds = self.options.block_s;
        let group = self.group.clone();
        let (report, collected) =
            observe_group(group, seconds, Jobs::Recorded, &mut goes_on, self.say)?;
        if let Some(signal) = self.interrupt.signal() {
            return Err(ThrottleError::Stopped { signal });
        }
        let mut requests = None;
        let value = match (&mut self.meter, &self.options.metric) {
            (Some(meter), _) => {
                // A block without a figure ends the trial: the present limit comes back.
                let figure = meter.end().map_err(ThrottleError::NoFigure)?;
                requests = Some(figure.requests);
                figure.value_us / 1000.0
            }
            (None, TrialMetric::Command(command)) => {
                let output = shell("--metric", command)?;
                let printed = output.trim();
                printed
                    .parse()
                    .map_err(|source| ThrottleError::MetricIsNoNumber {
                        printed: printed.to_owned(),
                        source,
                    })?
            }
            (None, _) => job_p99_ms(&collected, pool)?,
        };
        if !(value > 0.0 && f64::is_finite(value)) {
            return Err(ThrottleError::MetricHasNoRatio { value });
        }
        // Taken for 0, they would say that nothing was throttled.
        let counters = report.counters.ok_or(ThrottleError::NoCounters {
            group: report.group,
        })?;
        Ok(TrialBlock {
            is_new,
            value,
            requests,
            throttled_periods: counters.throttled_periods,
            periods: counters.periods,
        })
    }
}

/// The first block chooses the pool, where the user did not.
fn job_p99_ms(collected: &Collected, pool: &mut Option<String>) -> Result<f64, ThrottleError> {
    let recording = collected.schedule.clone().recording(collected.end_ns);
    let pools = recording.service.pools.iter().zip(&recording.latencies_us);
    let chosen = match pool {
        Some(name) => pools.clone().find(|(pool, _)| pool.name == *name),
        None => pools.clone().max_by_key(|(_, latencies)| latencies.len()),
    };
    let (chosen, latencies_us) = chosen.ok_or_else(|| {
        let names: Vec<&str> = pools.map(|(pool, _)| pool.name.as_str()).collect();
        match pool {
            Some(name) if !names.is_empty() => ThrottleError::NoJobOf {
                name: name.clone(),
                known: names.join(", "),
            },
            _ => ThrottleError::NoJob,
        }
    })?;
    *pool = Some(chosen.name.clone());
    let p99_us = paired_stats::quantile(latencies_us, throttle::advice::QUANTILE);
    let p99_us = p99_us.ok_or_else(|| ThrottleError::NoJobEnded {
        name: chosen.name.clone(),
    })?;
    Ok(p99_us / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> LimitTrialOptions {
        LimitTrialOptions {
            target: ServiceTarget::Process(1),
            quota: None,
            period_ms: None,
            burst_ms: None,
            metric: TrialMetric::Jobs(None),
            pairs: 2,
            block_s: 1.0,
            below: 1.0,
        }
    }

    const BEFORE: CpuQuota = CpuQuota {
        period_us: 100_000,
        quota_us: Some(200_000),
        burst_us: Some(150_000),
    };

    #[test]
    fn what_is_not_named_stays() {
        assert_eq!(tried(&options(), &BEFORE).unwrap(), BEFORE);
        let period = LimitTrialOptions {
            period_ms: Some(10.0),
            ..options()
        };
        let found = tried(&period, &BEFORE).unwrap();
        // As many cores as before, and no more burst than the kernel takes.
        assert_eq!(
            (found.period_us, found.quota_us, found.burst_us),
            (10_000, Some(20_000), Some(20_000))
        );
    }

    #[test]
    fn a_limit_that_the_kernel_refuses_is_named_with_its_range() {
        let refused = |options: LimitTrialOptions| tried(&options, &BEFORE).unwrap_err();
        for (options, text) in [
            (
                LimitTrialOptions {
                    quota: Some(0.0),
                    ..options()
                },
                "--quota must be above 0",
            ),
            (
                LimitTrialOptions {
                    quota: Some(0.001),
                    ..options()
                },
                "the kernel refuses a quota below 1 ms in a period: give a larger --quota or --period-ms",
            ),
            (
                LimitTrialOptions {
                    period_ms: Some(2000.0),
                    ..options()
                },
                "--period-ms must be between 1 and 1000, as the kernel has it",
            ),
            (
                LimitTrialOptions {
                    burst_ms: Some(300.0),
                    ..options()
                },
                "--burst-ms must be at most the quota, 200 ms a period: the kernel refuses more",
            ),
        ] {
            assert_eq!(refused(options).to_string(), text);
        }
    }
}
