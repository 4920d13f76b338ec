//! `slackline throttle apply`: another limit on a running service, kept only if it is shown to be
//! better.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use host::{CpuQuota, HostError, Journal, Knob, Roots};
use paired_stats::{Interval, Pair, ratio_interval};
use rustix::io::Errno;
use serde::Serialize;
use tuner::process::Interrupt;
use wire_latency::NoData;

use super::collect::{Collected, Jobs};
use super::requests::{BlockMeter, OfPort};
use super::shell::shell;
use super::target::{Watched, ensure_own_limit, group_of};
use super::watch;

use crate::done::CommandOutcome;
use crate::output::{error_chain, message};

const CONFIDENCE: f64 = 0.95;
/// After a change of the limit, so long is not counted: what queued up under the other one drains.
const SETTLE_S: f64 = 1.0;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    watched: Watched,
    /// The quota to try, in cores. By default the present quota.
    #[arg(long, value_name = "CORES")]
    quota: Option<f64>,
    /// The period to try, in milliseconds. By default the present period.
    #[arg(long, value_name = "MS")]
    period_ms: Option<f64>,
    /// The burst to try, in milliseconds of CPU time. By default the present burst.
    #[arg(long, value_name = "MS")]
    burst_ms: Option<f64>,
    /// A shell command that prints the number to minimise, measured since the command last ran. By
    /// default the metric is the 99th percentile of a job's time, from waking to sleeping, in the
    /// threads of --pool.
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["pool", "port"])]
    metric: Option<String>,
    #[command(flatten)]
    of_port: OfPort,
    /// Name of the threads whose jobs are timed. By default the pool that does most jobs.
    #[arg(long, value_name = "NAME", conflicts_with = "port")]
    pool: Option<String>,
    /// Number of pairs of blocks. A pair has one block under the present limit and one under the
    /// new limit.
    #[arg(long, default_value_t = 6, value_name = "N")]
    pairs: usize,
    /// Length of a block, in seconds.
    #[arg(long, default_value_t = 10.0, value_name = "S")]
    block_s: f64,
    /// Keep the new limit if the metric is shown to be below this multiple of its value under the
    /// present limit. 1 asks for an improvement. To give CPU back, allow a small loss, such as
    /// 1.05.
    #[arg(long, default_value_t = 1.0, value_name = "RATIO")]
    below: f64,
    /// Write the results to this file as JSON. `-` prints them instead of the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One block.
#[derive(Serialize)]
struct Block {
    is_new: bool,
    value: f64,
    /// The requests that the value stands on, where it is the latency of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<u64>,
    throttled_periods: u64,
    periods: u64,
}

#[derive(Serialize)]
struct Report {
    group: String,
    before: CpuQuota,
    tried: CpuQuota,
    metric: String,
    blocks: Vec<Block>,
    /// The metric under the new limit over that under the old one.
    ratio: Interval,
    is_kept: bool,
}

impl Report {
    /// Throttled periods under the new limit, or under the present one.
    fn throttled(&self, is_new: bool) -> u64 {
        let blocks = self.blocks.iter().filter(|block| block.is_new == is_new);
        blocks.map(|block| block.throttled_periods).sum()
    }

    /// Where nothing is throttled, whatever became better is not the limit's doing: the service
    /// warms up, the load changes.
    fn can_help(&self, below: f64) -> bool {
        below > 1.0 || self.throttled(false) > 0
    }
}

pub(crate) fn run(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    check(arguments)?;
    crate::output::ensure_writable(&[arguments.json.as_deref()])?;
    let roots = Roots::default();
    let group = group_of(&roots, &arguments.watched)?;
    ensure!(
        !group.is_empty(),
        "the root group has no limit: name a group below it"
    );
    // Before any limit is read: what a killed run left in force is not the present limit.
    let mut journal = Journal::open(state_dir)?;
    ensure!(
        journal.is_empty(),
        "an earlier run left something to undo: slackline restore first"
    );
    ensure_own_limit(&roots, &group, "to change")?;
    let before = CpuQuota::read(&roots, &group)?;
    let tried = tried(arguments, &before)?;
    ensure!(
        tried != before,
        "that is the present limit: give another --quota, --period-ms or --burst-ms"
    );
    // Before anything is changed: a missing privilege is said first.
    let meter = arguments.of_port.meter(&group)?;
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    journal.give_way();
    let mut trial = Trial {
        meter,
        roots,
        group,
        before,
        tried,
        arguments,
        interrupt: &interrupt,
        journal: &mut journal,
    };
    let measured = trial.measure();
    let (roots, group) = (trial.roots.clone(), trial.group.clone());
    let report = measured.map(|(metric, blocks, ratio)| {
        let mut report = Report {
            group,
            before,
            tried,
            metric,
            blocks,
            ratio,
            is_kept: false,
        };
        report.is_kept = report.can_help(arguments.below) && report.ratio.high < arguments.below;
        report
    });
    // Asked once: a signal that comes after a limit was kept changes nothing any more.
    let stopped = interrupt.signal();
    let report = report.and_then(|report| {
        if report.is_kept && stopped.is_none() {
            set(&mut journal, &roots, &report.group, &tried)?;
            let writes = tried.writes(&roots, &report.group)?.into_iter();
            let knobs: Vec<Knob> = writes.map(|write| write.0).collect();
            journal.promote(&knobs)?;
        }
        Ok(report)
    });
    // Also after an error: whatever was not promoted goes back.
    if !journal.restore(&roots, false)?.is_complete() {
        if let Err(error) = report {
            message(&format!("slackline: {}", error_chain(&error)));
        }
        message("The limit could not be put back: slackline restore says what is left.");
        return Ok(CommandOutcome::RestoreFailed);
    }
    if let Some(signal) = stopped {
        message(&format!(
            "Stopped; the present limit is back: {}.",
            quota_text(&before)
        ));
        return Ok(CommandOutcome::Signal(signal));
    }
    let report = report?;
    crate::output::publish(
        arguments.json.as_deref(),
        &report,
        &text(&report, arguments),
        "Everything",
    )?;
    Ok(if report.is_kept {
        CommandOutcome::Positive
    } else {
        CommandOutcome::Negative
    })
}

/// The numbers are in their ranges.
fn check(arguments: &Arguments) -> anyhow::Result<()> {
    ensure!(
        arguments.pairs >= 2,
        "--pairs must be at least 2: one has no interval"
    );
    ensure!(
        arguments.block_s >= 1.0 && arguments.block_s <= 3600.0,
        "--block-s must be between 1 and 3600"
    );
    ensure!(
        arguments.below > 0.0 && arguments.below.is_finite(),
        "--below must be above 0"
    );
    Ok(())
}

/// The limit that is asked for; what is not named stays.
fn tried(arguments: &Arguments, before: &CpuQuota) -> anyhow::Result<CpuQuota> {
    let microseconds = |name: &str, ms: f64| {
        let us = (ms * 1000.0).round();
        ensure!(
            (0.0..=1e12).contains(&us),
            "{name} must be between 0 and a million seconds, not {ms} ms"
        );
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked above"
        )]
        Ok(us as u64)
    };
    let period_us = arguments
        .period_ms
        .map_or(Ok(before.period_us), |ms| microseconds("--period-ms", ms))?;
    ensure!(
        (1000..=1_000_000).contains(&period_us),
        "--period-ms must be between 1 and 1000, as the kernel has it"
    );
    let cores = arguments.quota.unwrap_or_else(|| before.cores());
    ensure!(cores > 0.0, "--quota must be above 0");
    let quota_us = if cores.is_infinite() {
        None
    } else {
        Some(microseconds("--quota", cores * period_us as f64 / 1000.0)?)
    };
    ensure!(
        quota_us.is_none_or(|us| us >= 1000),
        "a quota below 1 ms a period is refused by the kernel"
    );
    let burst_us = match arguments.burst_ms {
        Some(ms) => Some(microseconds("--burst-ms", ms)?),
        None => before.burst_us.map(|us| us.min(quota_us.unwrap_or(0))),
    };
    ensure!(
        burst_us.unwrap_or(0) <= quota_us.unwrap_or(0),
        "--burst-ms must be at most the quota, {} ms a period: the kernel refuses more",
        quota_us.unwrap_or(0) as f64 / 1000.0
    );
    Ok(CpuQuota {
        period_us,
        quota_us,
        burst_us,
    })
}

/// Writes a limit through the journal.
fn set(journal: &mut Journal, roots: &Roots, group: &str, quota: &CpuQuota) -> anyhow::Result<()> {
    for (knob, value) in quota.writes(roots, group)? {
        journal
            .write(roots, &knob, &value)
            .map_err(|error| match error {
                // kernel/sched/core.c, tg_cfs_schedulable_down; the numbers themselves are checked
                // in `tried`.
                HostError::Write { path, value, errno } if errno == Errno::INVAL.raw_os_error() => {
                    anyhow!(
                        "the kernel takes no \"{value}\" in {}: the limit of a group above or below contradicts it; a group may \
                         not have more than the one above it, nor less than one below it (cgroup v1)",
                        path.display()
                    )
                }
                error => error.into(),
            })?;
    }
    Ok(())
}

struct Trial<'a> {
    /// The latency of a port's requests, where it is the metric.
    meter: Option<BlockMeter>,
    roots: Roots,
    group: String,
    before: CpuQuota,
    tried: CpuQuota,
    arguments: &'a Arguments,
    interrupt: &'a Interrupt,
    journal: &'a mut Journal,
}

impl Trial<'_> {
    /// Old and new in turns, A B B A.
    fn measure(&mut self) -> anyhow::Result<(String, Vec<Block>, Interval)> {
        let mut blocks = Vec::new();
        let mut pairs = Vec::new();
        let mut pool = self.arguments.pool.clone();
        // What the kernel refuses is known before a block has been measured.
        for quota in [self.tried, self.before] {
            set(self.journal, &self.roots, &self.group, &quota)?;
        }
        for pair in 0..self.arguments.pairs {
            let order = if pair % 2 == 0 {
                [false, true]
            } else {
                [true, false]
            };
            for is_new in order {
                let quota = if is_new { self.tried } else { self.before };
                set(self.journal, &self.roots, &self.group, &quota)?;
                let block = self.block(is_new, &mut pool)?;
                message(&format!(
                    "pair {}/{}, {} limit: {:.3}{}, {} of {} periods throttled",
                    pair + 1,
                    self.arguments.pairs,
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
            let [.., first, second] = blocks.as_slice() else {
                bail!("two blocks make a pair");
            };
            let (control, experiment) = if first.is_new {
                (second, first)
            } else {
                (first, second)
            };
            pairs.push(Pair {
                control: control.value,
                experiment: experiment.value,
            });
        }
        let metric = match (self.arguments.of_port.name(), &self.arguments.metric) {
            (Some(name), _) => format!("{name}, ms"),
            (None, Some(command)) => command.clone(),
            (None, None) => format!("p99 of a job of {}, ms", pool.unwrap_or_default()),
        };
        let ratio = ratio_interval(&pairs, CONFIDENCE).context("the metric has no ratio")?;
        Ok((metric, blocks, ratio))
    }

    fn block(&mut self, is_new: bool, pool: &mut Option<String>) -> anyhow::Result<Block> {
        if let Err(stop) = self.interrupt.sleep(Duration::from_secs_f64(SETTLE_S)) {
            bail!("stopped by {stop}");
        }
        if let Some(command) = &self.arguments.metric {
            // What it counted until now is not this block's.
            shell(command).context("--metric")?;
        }
        if let Some(meter) = &mut self.meter {
            meter.begin().map_err(no_data)?;
        }
        let mut goes_on = |_: &Collected| Ok(self.interrupt.signal().is_none());
        let seconds = self.arguments.block_s;
        let (report, collected) =
            watch::observe_group(self.group.clone(), seconds, Jobs::Recorded, &mut goes_on)?;
        if let Some(signal) = self.interrupt.signal() {
            bail!("stopped by signal {signal}");
        }
        let mut requests = None;
        let value = match (&mut self.meter, &self.arguments.metric) {
            (Some(meter), _) => {
                let figure = meter.end().map_err(no_data)?;
                requests = Some(figure.requests);
                figure.value_us / 1000.0
            }
            (None, Some(command)) => {
                let output = shell(command).context("--metric")?;
                output.trim().parse().with_context(|| {
                    format!("--metric printed {:?} in place of a number", output.trim())
                })?
            }
            (None, None) => job_p99_ms(&collected, pool)?,
        };
        ensure!(
            value > 0.0 && f64::is_finite(value),
            "the metric is {value}: only numbers above 0 have a ratio"
        );
        // Taken for 0, they would say that nothing was throttled.
        let counters = report
            .counters
            .with_context(|| format!("the counters of {} cannot be read", report.group))?;
        Ok(Block {
            is_new,
            value,
            requests,
            throttled_periods: counters.throttled_periods,
            periods: counters.periods,
        })
    }
}

/// A block without a figure ends the trial: the present limit comes back.
fn no_data(no_data: NoData) -> anyhow::Error {
    anyhow!("--port: no data: {no_data}")
}

/// The first block chooses the pool, where the user did not.
fn job_p99_ms(collected: &Collected, pool: &mut Option<String>) -> anyhow::Result<f64> {
    let recording = collected.schedule.clone().recording(collected.end_ns);
    let pools = recording.service.pools.iter().zip(&recording.latencies_us);
    let chosen = match pool {
        Some(name) => pools.clone().find(|(pool, _)| pool.name == *name),
        None => pools.clone().max_by_key(|(_, latencies)| latencies.len()),
    };
    let (chosen, latencies_us) = chosen.with_context(|| {
        let names: Vec<&str> = pools.map(|(pool, _)| pool.name.as_str()).collect();
        match pool {
            Some(name) if !names.is_empty() => {
                format!(
                    "no thread named {name} did a job; there are {}",
                    names.join(", ")
                )
            }
            _ => "no thread of the group did a job within a block: is there load on it?".to_owned(),
        }
    })?;
    *pool = Some(chosen.name.clone());
    let p99_us = paired_stats::quantile(latencies_us, throttle::advice::QUANTILE)
        .with_context(|| format!("no job of {} ended within a block", chosen.name))?;
    Ok(p99_us / 1000.0)
}

fn text(report: &Report, arguments: &Arguments) -> String {
    let change = tuner::report::change(&report.ratio);
    let finding = if !report.can_help(arguments.below) {
        "Rolled back: nothing was throttled under the present limit, so no other one can make it faster.".to_owned()
    } else if report.is_kept {
        format!(
            "Kept: {change} of {}, {} pairs of blocks.",
            report.metric, arguments.pairs
        )
    } else {
        let below = match arguments.below {
            1.0 => "the present limit's".to_owned(),
            below => format!("{:+.0} %", 100.0 * (below - 1.0)),
        };
        format!(
            "Rolled back: {change} of {}, {} pairs of blocks: not shown to be below {below}.",
            report.metric, arguments.pairs
        )
    };
    let stays = if report.is_kept {
        "\nIt holds until the group is made anew; to keep it for good, write it where the group is configured (systemd: \
         CPUQuota=, CPUQuotaPeriodSec=).\n"
    } else {
        "\n"
    };
    format!(
        "{finding}\n{} → {}; {} and {} periods throttled{stays}",
        quota_text(&report.before),
        quota_text(&report.tried),
        report.throttled(false),
        report.throttled(true)
    )
}

fn quota_text(quota: &CpuQuota) -> String {
    format!(
        "{:.2} cores, period {} ms, burst {} ms",
        quota.cores(),
        quota.period_us as f64 / 1000.0,
        quota.burst_us.unwrap_or(0) as f64 / 1000.0
    )
}
