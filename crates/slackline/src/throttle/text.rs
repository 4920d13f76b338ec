//! A watch as text: the verdict, the histogram, the pools.

use std::fmt::Write as _;

use throttle::{BIN_CORES, Cores};

use super::watch::Report;
use crate::table::table;

/// Rows of the histogram.
const ROWS_MAX: usize = 20;
/// Length of the longest bar.
const BAR: u64 = 50;
/// Thread names that are listed.
const NAMES_MAX: usize = 12;

pub(super) fn report(report: &Report) -> String {
    let mut text = format!("{}\n\n", report.verdict.sentence);
    for note in &report.runtimes {
        let _ = writeln!(text, "Note: {note}.\n");
    }
    let group = super::watch::named(&report.group);
    let limit = match (&report.limit, &report.limited_by) {
        (Some(limit), Some(by)) => {
            let of = if *by == report.group {
                String::new()
            } else {
                format!(", of {by}")
            };
            let burst = if limit.burst_us == 0 {
                "no burst".to_owned()
            } else {
                format!("burst {} ms", limit.burst_us / 1000)
            };
            format!(
                "{:.2} cores in periods of {} ms, {burst}{of}",
                limit.in_cores().unwrap_or(f64::INFINITY),
                limit.period_us / 1000
            )
        }
        _ => "none".to_owned(),
    };
    let seconds = report.observed.duration_us / 1e6;
    let _ = writeln!(text, "group      {group}\nquota      {limit}");
    let _ = writeln!(
        text,
        "watched    {seconds:.1} s on {} CPUs; own CPU use {:.2} % of a core; {} events lost, {} switches not seen",
        report.cpus,
        100.0 * report.own_cpu_cores,
        report.lost_events,
        report.observed.gaps
    );
    match &report.counters {
        Some(counters) => {
            let _ = writeln!(
                text,
                "throttled  {} of {} periods, {:.3} s; burst used {:.3} s",
                counters.throttled_periods,
                counters.periods,
                counters.throttled_s,
                counters.burst_s
            );
        }
        None => text.push_str("throttled  the group's counters cannot be read\n"),
    }
    let quota = report.limit.and_then(|limit| limit.in_cores());
    let per_core = quota.unwrap_or(report.cpus as f64);
    let _ = writeln!(
        text,
        "runnable   {:.2} threads on average, {} at most: {:.2} per core of {}",
        report.observed.runnable_mean,
        report.observed.runnable_max,
        report.observed.runnable_mean / per_core,
        if quota.is_some() { "quota" } else { "the host" }
    );
    let _ = writeln!(
        text,
        "\nCores in use, windows of 10 ms ({:.2} on average):",
        report.observed.cores.mean()
    );
    text.push_str(&histogram(&report.observed.cores, quota));
    text.push_str(&names(report));
    text
}

/// A watch in short: cores in use with the quota marked, and what was throttled.
pub(super) fn watched(name: &str, report: &Report) -> String {
    let quota = report.limit.and_then(|limit| limit.in_cores());
    let throttled = report.counters.as_ref().map_or_else(
        || "throttling is not counted here".to_owned(),
        |counters| {
            let (throttled, periods) = (counters.throttled_periods, counters.periods);
            format!("{throttled} of {periods} periods throttled")
        },
    );
    format!(
        "{name}\ncores in use, windows of 10 ms\n{}{throttled}\n{:.2} threads want to run, {} at most\n",
        histogram(&report.observed.cores, quota),
        report.observed.runnable_mean,
        report.observed.runnable_max,
    )
}

/// Texts in columns.
pub(super) fn side_by_side(columns: &[String]) -> String {
    let width = |column: &String| {
        column
            .lines()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or(0)
    };
    let rows = columns
        .iter()
        .map(|column| column.lines().count())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for row in 0..rows {
        let mut line = String::new();
        for column in columns {
            let cell = column.lines().nth(row).unwrap_or("");
            let _ = write!(line, "{cell:<width$}   ", width = width(column));
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// One row for some bins; the row in which the quota lies says so.
fn histogram(cores: &Cores, quota: Option<f64>) -> String {
    let bins_a_row = cores.bins.len().div_ceil(ROWS_MAX).max(1);
    let rows: Vec<u64> = cores
        .bins
        .chunks(bins_a_row)
        .map(|bins| bins.iter().sum())
        .collect();
    let most = rows.iter().copied().max().unwrap_or(0).max(1);
    let mut text = String::new();
    for (index, count) in rows.iter().enumerate() {
        let low = (index * bins_a_row) as f64 * BIN_CORES;
        let width = bins_a_row as f64 * BIN_CORES;
        let share = *count as f64 / cores.windows().max(1) as f64;
        let length = (BAR * count).div_ceil(most);
        let bar = "█".repeat(usize::try_from(length).unwrap_or(0));
        let is_quota = quota.is_some_and(|quota| {
            quota >= low - BIN_CORES / 2.0 && quota < low + width - BIN_CORES / 2.0
        });
        let mark = if is_quota { " ← quota" } else { "" };
        let _ = writeln!(text, "{low:>6.1} {:>5.1} % {bar}{mark}", 100.0 * share);
    }
    if let Some(quota) = quota {
        let _ = writeln!(
            text,
            "{:.1} % of the windows are above the quota.",
            100.0 * cores.share_above(quota)
        );
    }
    text
}

fn names(report: &Report) -> String {
    let mut names: Vec<_> = report
        .observed
        .names
        .iter()
        .filter(|(_, by)| by.waits > 0 || by.cpu_us > 0.0)
        .collect();
    names.sort_by(|a, b| b.1.cpu_us.total_cmp(&a.1.cpu_us).then(a.0.cmp(b.0)));
    if names.is_empty() {
        return "\nNo thread of the group ran.\n".to_owned();
    }
    let mut rows = table(&[
        "threads named",
        "threads",
        "cores",
        "wanting at once",
        "woken in 10 ms",
        "mean wait",
        "longest wait",
    ]);
    let milliseconds = |us: f64| format!("{:.2} ms", us / 1000.0);
    for (name, by) in names.iter().take(NAMES_MAX) {
        rows.add_row([
            (*name).clone(),
            by.threads.to_string(),
            format!("{:.3}", by.cpu_us / report.observed.duration_us.max(1.0)),
            by.runnable_max.to_string(),
            by.woken_at_once_max.to_string(),
            milliseconds(by.waited_us / by.waits.max(1) as f64),
            milliseconds(by.waited_max_us),
        ]);
    }
    let more = names.len().saturating_sub(NAMES_MAX);
    let rest = if more > 0 {
        format!("and {more} more names\n")
    } else {
        String::new()
    };
    format!("\n{rows}\n{rest}")
}
