//! `slackline throttle apply`: another limit on a running service, kept only if it is shown to be
//! better.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use host::CpuQuota;
use throttle_watch::{LimitTrialOptions, LimitTrialReport, TrialMetric, try_limit};

use super::latency::OfPort;
use super::target::Watched;
use crate::done::CommandOutcome;
use crate::output::{error_chain, message};

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
    /// Name of the threads whose jobs are timed. By default the pool that does the most jobs.
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

impl Arguments {
    fn options(&self) -> anyhow::Result<LimitTrialOptions> {
        let metric = match (self.of_port.wanted(), &self.metric) {
            (Some(of), _) => TrialMetric::Requests(of),
            (None, Some(command)) => TrialMetric::Command(command.clone()),
            (None, None) => TrialMetric::Jobs(self.pool.clone()),
        };
        Ok(LimitTrialOptions {
            target: self.watched.target()?,
            quota: self.quota,
            period_ms: self.period_ms,
            burst_ms: self.burst_ms,
            metric,
            pairs: self.pairs,
            block_s: self.block_s,
            below: self.below,
        })
    }
}

pub(crate) fn run(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    check(arguments)?;
    crate::output::ensure_writable(&[arguments.json.as_deref()])?;
    let end = try_limit(&arguments.options()?, state_dir, &message)?;
    let report = end.report.map_err(anyhow::Error::from);
    if !end.is_restored {
        if let Err(error) = report {
            message(&format!("slackline: {}", error_chain(&error)));
        }
        let text = "The limit could not be restored: run `slackline restore`.";
        message(&crate::state_dir::with_state_dir(text, state_dir));
        return Ok(CommandOutcome::RestoreFailed);
    }
    if let Some(signal) = end.signal {
        message(&format!(
            "Stopped; the present limit is restored: {}.",
            quota_text(&end.before)
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

fn text(report: &LimitTrialReport, arguments: &Arguments) -> String {
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
        "\nThe limit holds until the group is created again. To keep the limit for good, write it where the group is \
         configured (systemd: CPUQuota=, CPUQuotaPeriodSec=).\n"
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
