//! A watch as text: the verdict, the histogram, the pools.

use std::fmt::Write as _;

use throttle::{BIN_CORES, Cores};
use throttle_watch::{WatchReport, named};

use crate::table::table;

/// Rows of the histogram.
const ROWS_MAX: usize = 20;
/// Length of the longest bar.
const BAR: f64 = 50.0;
/// Thread names that are listed.
const NAMES_MAX: usize = 12;

pub(super) fn report(report: &WatchReport) -> String {
    let mut text = format!("{}\n\n", report.verdict.sentence);
    for note in &report.runtimes {
        let _ = writeln!(text, "Note: {note}.\n");
    }
    let group = named(&report.group);
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
    let _ = writeln!(text, "throttled  {}", throttled(report));
    let _ = writeln!(text, "runnable   {}", runnable(report));
    let _ = writeln!(
        text,
        "\nCores in use, windows of 10 ms ({:.2} on average):",
        report.observed.cores.mean()
    );
    let quota = report.limit.and_then(|limit| limit.in_cores());
    text.push_str(&histogram(&report.observed.cores, quota));
    if let Some(latency) = &report.latency {
        text.push_str(&super::latency::text(latency));
    }
    text.push_str(&names(report));
    text
}

/// What was throttled, in words.
pub(super) fn throttled(report: &WatchReport) -> String {
    report.counters.as_ref().map_or_else(
        || "the group's counters cannot be read".to_owned(),
        |counters| {
            format!(
                "{} of {} periods, {:.3} s; burst used {:.3} s",
                counters.throttled_periods,
                counters.periods,
                counters.throttled_s,
                counters.burst_s
            )
        },
    )
}

/// Threads that want to run, in words.
pub(super) fn runnable(report: &WatchReport) -> String {
    let quota = report.limit.and_then(|limit| limit.in_cores());
    format!(
        "{:.2} on average, {} at most: {:.2} per core of {}",
        report.observed.runnable_mean,
        report.observed.runnable_max,
        report.observed.runnable_mean / quota.unwrap_or(report.cpus as f64),
        if quota.is_some() { "quota" } else { "the host" }
    )
}

/// A watch in short: cores in use with the quota marked, and what was throttled.
pub(super) fn watched(name: &str, report: &WatchReport) -> String {
    let quota = report.limit.and_then(|limit| limit.in_cores());
    format!(
        "{name}\ncores in use, windows of 10 ms\n{}throttled {}\nwant to run: {}\n",
        histogram(&report.observed.cores, quota),
        throttled(report),
        runnable(report),
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

/// A time in milliseconds; a simulated wait may have no end.
pub(super) fn time(us: f64) -> String {
    if us.is_infinite() {
        "no end".to_owned()
    } else {
        format!("{:.2} ms", us / 1000.0)
    }
}

/// Some bins of a histogram together.
pub(super) struct Row {
    /// Cores in use at the lowest of them, and how many cores they span.
    pub(super) low: f64,
    pub(super) width: f64,
    /// Of all windows.
    pub(super) share: f64,
    /// The part of `share` that is above the quota.
    pub(super) over: f64,
}

/// The histogram in at most [`ROWS_MAX`] rows.
pub(super) fn rows(cores: &Cores, quota: Option<f64>) -> Vec<Row> {
    let bins_a_row = cores.bins.len().div_ceil(ROWS_MAX).max(1);
    let windows = cores.windows().max(1) as f64;
    cores
        .bins
        .chunks(bins_a_row)
        .enumerate()
        .map(|(index, bins)| {
            let first = index * bins_a_row;
            let is_over = |bin: &(usize, &u64)| {
                quota.is_some_and(|quota| Cores::is_above(first + bin.0, quota))
            };
            let over = bins.iter().enumerate().filter(is_over);
            Row {
                low: first as f64 * BIN_CORES,
                width: bins_a_row as f64 * BIN_CORES,
                share: bins.iter().sum::<u64>() as f64 / windows,
                over: over.map(|(_, count)| count).sum::<u64>() as f64 / windows,
            }
        })
        .collect()
}

/// One line for each row; the one in which the quota lies says so.
fn histogram(cores: &Cores, quota: Option<f64>) -> String {
    let rows = rows(cores, quota);
    let most = rows.iter().map(|row| row.share).fold(0.0, f64::max);
    let mut text = String::new();
    for Row {
        low, width, share, ..
    } in rows
    {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to BAR"
        )]
        let length = (BAR * share / most.max(1e-9)).ceil() as usize;
        let bar = "█".repeat(length);
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

fn names(report: &WatchReport) -> String {
    let rows: Vec<_> = name_rows(report).collect();
    if rows.is_empty() {
        return "\nNo thread of the group ran.\n".to_owned();
    }
    let mut listed = table(&NAME_HEAD);
    for row in rows.iter().take(NAMES_MAX) {
        listed.add_row(row);
    }
    let more = rows.len().saturating_sub(NAMES_MAX);
    let rest = if more > 0 {
        format!("and {more} more names\n")
    } else {
        String::new()
    };
    format!("\n{listed}\n{rest}")
}

/// The columns of [`name_rows`].
pub(super) const NAME_HEAD: [&str; 7] = [
    "threads named",
    "threads",
    "cores",
    "wanting at once",
    "woken in 10 ms",
    "mean wait",
    "longest wait",
];

/// What the threads of each name did; those that used most CPU time first.
pub(super) fn name_rows(report: &WatchReport) -> impl Iterator<Item = Vec<String>> {
    let mut names: Vec<_> = report
        .observed
        .names
        .iter()
        .filter(|(_, by)| by.waits > 0 || by.cpu_us > 0.0)
        .collect();
    names.sort_by(|a, b| b.1.cpu_us.total_cmp(&a.1.cpu_us).then(a.0.cmp(b.0)));
    let milliseconds = |us: f64| format!("{:.2} ms", us / 1000.0);
    names.into_iter().map(move |(name, by)| {
        vec![
            name.clone(),
            by.threads.to_string(),
            format!("{:.3}", by.cpu_us / report.observed.duration_us.max(1.0)),
            by.runnable_max.to_string(),
            by.woken_at_once_max.to_string(),
            milliseconds(by.waited_us / by.waits.max(1) as f64),
            milliseconds(by.waited_max_us),
        ]
    })
}
