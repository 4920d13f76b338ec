//! The report of sysbench 0.4 to 1.1: database tests with their transactions, the others with their
//! events.
//!
//! With `--report-checkpoints` one output holds several reports, each of the part since the one
//! before. They are taken together, as what the service did meanwhile cannot be taken apart;
//! percentiles are given for a single report only.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, after, leading_number, number, time_us};

const LOOKED_FOR: &str = "lines `total time:` and `total number of events:`";

/// One report: of the whole run, or of the part up to a checkpoint.
#[derive(Default)]
struct Part {
    events: f64,
    /// Since the start of the run, also in the report of a later part.
    total_s: f64,
    /// Its own length, where the report gives a rate.
    own_s: Option<f64>,
    transactions: Option<f64>,
    queries: Option<f64>,
    queries_per_s: Option<f64>,
    errors: f64,
    mean_us: Option<f64>,
    max_us: Option<f64>,
    /// Percent and microseconds.
    percentile: Option<(f64, f64)>,
}

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("sysbench", text);
    if let Some(message) = after(text, "FATAL:") {
        return Err(report.gave_up(message));
    }
    let parts = parts_of(text).and_then(|texts| {
        let parts = texts.iter().map(|part| read(part));
        parts.collect::<Option<Vec<Part>>>()
    });
    let parts = parts.ok_or_else(|| report.missing(LOOKED_FOR))?;
    let events: f64 = parts.iter().map(|part| part.events).sum();
    if events <= 0.0 {
        return Err(report.no_requests());
    }
    let duration_s = duration_s(&parts);
    report.set("duration_s", Some(duration_s));
    let sum = |value: fn(&Part) -> Option<f64>| parts.iter().map(value).sum::<Option<f64>>();
    let requests = sum(|part| part.transactions).unwrap_or(events);
    report.set("requests", Some(requests));
    if let [only] = parts.as_slice() {
        // sysbench's own rate of transactions: it has more decimals than the time.
        let own_s = only.own_s.filter(|_| only.transactions.is_some());
        report.set(
            "requests_per_s",
            Some(requests / own_s.unwrap_or(duration_s)),
        );
        report.set("queries_per_s", only.queries_per_s);
        if let Some((percent, us)) = only.percentile {
            report.set_percentile(percent, Some(us));
        }
        report.set("bytes_per_s", bytes_per_s(text));
    } else {
        report.set("requests_per_s", Some(requests / duration_s));
        let queries = sum(|part| part.queries);
        report.set("queries_per_s", queries.map(|queries| queries / duration_s));
    }
    if parts.iter().all(|part| part.transactions.is_some()) {
        report.set("errors", sum(|part| Some(part.errors)));
    }
    let total_us = sum(|part| part.mean_us.map(|us| us * part.events));
    report.set("latency_mean_us", total_us.map(|us| us / events));
    let mut max_us = parts.iter().map(|part| part.max_us);
    let max_us = max_us.try_fold(0.0, |max, us| us.map(|us| f64::max(max, us)));
    report.set("latency_max_us", max_us);
    report.finish(LOOKED_FOR)
}

/// Cuts the output behind each report; `None` if the last one is cut short.
fn parts_of(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut from, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        at += line.len();
        // The last line of the latencies; the threads' fairness adds nothing.
        if line.trim_start().starts_with("sum:") {
            parts.push(&text[from..at]);
            from = at;
        }
    }
    let rest = &text[from..];
    // Version 0.4 has no sum, and no checkpoints.
    if parts.is_empty() {
        return Some(vec![rest]);
    }
    let begins = [
        "transactions:",
        "total time:",
        "time elapsed:",
        "events per second:",
    ];
    let is_cut = begins.iter().any(|line| after(rest, line).is_some());
    (!is_cut).then_some(parts)
}

fn read(text: &str) -> Option<Part> {
    let value = |label| after(text, label).and_then(leading_number);
    let seconds = |label| after(text, label).and_then(time_us).map(|us| us / 1e6);
    let events = value("total number of events:")?;
    // Version 1.1 says "time elapsed", and "events/s (eps)" for all tests.
    let total_s = seconds("total time:").or_else(|| seconds("time elapsed:"))?;
    let transactions = value("transactions:");
    let count_and_rate = transactions.zip(after(text, "transactions:").and_then(in_brackets));
    let per_s = value("events per second:").or_else(|| value("events/s (eps):"));
    let (count, rate) = count_and_rate.or_else(|| Some((events, per_s?))).unzip();
    let own_s = count.zip(rate).map(|(count, rate)| count / rate);
    // Version 0.4 has "deadlocks", and "approx.  95 percentile:" with a unit.
    let errors = ["ignored errors:", "reconnects:", "deadlocks:"];
    Some(Part {
        events,
        total_s,
        own_s: own_s.filter(|seconds| seconds.is_finite() && *seconds > 0.0),
        transactions,
        queries: value("queries:").or_else(|| value("read/write requests:")),
        queries_per_s: after(text, "queries:")
            .or_else(|| after(text, "read/write requests:"))
            .and_then(in_brackets),
        errors: errors.iter().filter_map(|label| value(label)).sum(),
        mean_us: after(text, "avg:").and_then(milliseconds_us),
        max_us: after(text, "max:").and_then(milliseconds_us),
        percentile: text.lines().find_map(percentile),
    })
}

/// How long all parts together took. The total times of checkpoints are counted from the start of
/// the run.
fn duration_s(parts: &[Part]) -> f64 {
    let last_s = parts.last().map_or(0.0, |part| part.total_s);
    match parts {
        [_] => last_s,
        parts => {
            let own: Option<f64> = parts.iter().map(|part| part.own_s).sum();
            own.unwrap_or(last_s)
        }
    }
}

/// "         99th percentile:                       10.09", whichever --percentile asked for.
fn percentile(line: &str) -> Option<(f64, f64)> {
    let (percent, latency) = line.split_once("percentile:")?;
    let percent = percent.trim().trim_start_matches("approx.").trim();
    Some((
        number(percent.trim_end_matches("th"))?,
        milliseconds_us(latency)?,
    ))
}

/// `10.09` is in milliseconds; version 0.4 prints a unit.
fn milliseconds_us(text: &str) -> Option<f64> {
    number(text).map(|ms| ms * 1e3).or_else(|| time_us(text))
}

/// The rate in `581    (289.34 per sec.)`.
fn in_brackets(text: &str) -> Option<f64> {
    leading_number(text.split_once('(')?.1)
}

/// Of the memory test (`1.00 MiB transferred (2.00 MiB/sec)`, before version 1 `MB` of as many
/// bytes) or the file test (`read, MiB/s:` and `written, MiB/s:`).
fn bytes_per_s(text: &str) -> Option<f64> {
    let memory = text
        .lines()
        .find(|line| line.contains("MiB transferred (") || line.contains("MB transferred ("))
        .and_then(in_brackets);
    let value = |label| after(text, label).and_then(leading_number);
    let files = value("read, MiB/s:")
        .zip(value("written, MiB/s:"))
        .map(|(read, written)| read + written);
    memory.or(files).map(|mib| mib * 1024.0 * 1024.0)
}
