//! `slackline throttle watch`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use host::{CgroupReader, CgroupSample, Roots, TightestQuota};
use serde::Serialize;
use throttle::{Counters, Limit, Observed, Verdict};
use tuner::process::Interrupt;

use super::{collect, text};
use crate::Done;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    watched: Watched,
    /// How long to watch, in seconds.
    #[arg(long, default_value_t = 10.0, value_name = "S")]
    duration_s: f64,
    /// Write everything as JSON to this file; `-` prints it instead of the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Whom to watch.
#[derive(clap::Args)]
#[group(multiple = false)]
pub(super) struct Watched {
    /// The control group that this process is in.
    #[arg(long)]
    pid: Option<u32>,
    /// A control group: its path below the hierarchy's root, or the whole path.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// A systemd unit, e.g. `nginx.service`.
    #[arg(long)]
    unit: Option<String>,
}

/// Everything that a watch saw.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) group: String,
    pub(super) cpus: usize,
    pub(super) limit: Option<Limit>,
    /// The group that has the limit: itself or an ancestor.
    pub(super) limited_by: Option<String>,
    pub(super) counters: Option<Counters>,
    pub(super) observed: Observed,
    pub(super) lost_events: u64,
    /// Slackline's own CPU time over the time of the watch.
    pub(super) own_cpu_cores: f64,
    pub(super) verdict: Verdict,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Done> {
    anyhow::ensure!(
        arguments.duration_s >= 0.1 && arguments.duration_s <= 86_400.0,
        "--duration-s must be between 0.1 and 86400"
    );
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    let report = observe(&arguments.watched, arguments.duration_s, &interrupt)?;
    crate::publish(
        arguments.json.as_deref(),
        &report,
        &text::report(&report),
        "Everything",
    )?;
    Ok(match interrupt.signal() {
        Some(signal) => Done::Signal(signal),
        None => Done::Positive,
    })
}

/// Watches for so many seconds, or until a signal comes.
pub(super) fn observe(
    watched: &Watched,
    duration_s: f64,
    interrupt: &Interrupt,
) -> anyhow::Result<Report> {
    let roots = Roots::default();
    let group = group_of(&roots, watched)?;
    let started = |pid| host::start_time(&roots, pid).ok();
    let began = watched.pid.map(started);
    let tightest = host::tightest_quota(&roots, &group)?;
    let limited_by = tightest
        .as_ref()
        .map_or(group.as_str(), |tightest| tightest.group.as_str());
    let mut counters = CgroupReader::open(&roots, limited_by).ok();
    let mut sample = || counters.as_mut().and_then(|reader| reader.sample().ok());
    let (own_before, before) = (host::own_cpu_s(), sample());
    let collected = collect::collect(&group, Duration::from_secs_f64(duration_s), &|| {
        interrupt.signal().is_some()
    })?;
    let after = sample();
    if let (Some(pid), Some(began)) = (watched.pid, began)
        && started(pid) != began
    {
        crate::message(&format!(
            "Process {pid} ended meanwhile, and its number may be another's by now; what follows is of its control group."
        ));
    }
    let limit = tightest.as_ref().map(limit_of);
    let counters = before
        .zip(after)
        .map(|(before, after)| difference(&before, &after));
    let cpus = host::online_cpus(&roots)?.len();
    Ok(Report {
        verdict: throttle::judge(&collected.observed, limit.as_ref(), counters.as_ref(), cpus),
        own_cpu_cores: (host::own_cpu_s() - own_before)
            / (collected.observed.duration_us / 1e6).max(0.001),
        limited_by: tightest.map(|tightest| tightest.group),
        observed: collected.observed,
        lost_events: collected.lost,
        group,
        cpus,
        limit,
        counters,
    })
}

fn group_of(roots: &Roots, target: &Watched) -> anyhow::Result<String> {
    if let Some(pid) = target.pid {
        return Ok(host::group_of(roots, pid)?);
    }
    if let Some(unit) = &target.unit {
        return host::group_of_unit(roots, unit)?.with_context(|| {
            format!("no control group is named {unit} in the hierarchy of the cpu controller: is the unit active?")
        });
    }
    let path = target
        .cgroup
        .as_deref()
        .context("give one of --pid, --cgroup and --unit")?;
    host::group_of_path(roots, path).map_err(|error| match error {
        host::HostError::Absent { path, .. } => anyhow::anyhow!(
            "there is no control group {}: is the service running, and in this hierarchy?",
            path.display()
        ),
        error => error.into(),
    })
}

fn limit_of(tightest: &TightestQuota) -> Limit {
    Limit {
        quota_us: tightest.quota.quota_us,
        period_us: tightest.quota.period_us,
        burst_us: tightest.quota.burst_us.unwrap_or(0),
    }
}

/// What the counters advanced by; one that went backwards (a group made anew) counts as not having moved.
fn difference(before: &CgroupSample, after: &CgroupSample) -> Counters {
    Counters {
        cpu_s: (after.cpu.total_s() - before.cpu.total_s()).max(0.0),
        periods: after.periods.saturating_sub(before.periods),
        throttled_periods: after
            .throttled_periods
            .saturating_sub(before.throttled_periods),
        throttled_s: (after.throttled_s - before.throttled_s).max(0.0),
        burst_s: (after.burst_s - before.burst_s).max(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_went_backwards_count_as_not_having_moved() {
        let sample = |periods, throttled_s| CgroupSample {
            periods,
            throttled_periods: periods / 2,
            throttled_s,
            ..CgroupSample::default()
        };
        let found = difference(&sample(10, 1.0), &sample(30, 1.5));
        assert_eq!((found.periods, found.throttled_periods), (20, 10));
        assert_eq!(
            difference(&sample(30, 1.5), &sample(10, 1.0)),
            Counters::default()
        );
    }
}
