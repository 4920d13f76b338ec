//! The report of sysbench 1.0: database tests with their transactions, the others with their events.

use std::collections::BTreeMap;

use super::ParseError;
use super::report::{Report, after, leading_number, number};

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("sysbench", text);
    if let Some(message) = after(text, "FATAL:") {
        return Err(ParseError::GaveUp {
            tool: "sysbench",
            message: message.to_owned(),
        });
    }
    let value = |label| after(text, label).and_then(leading_number);
    // The last section: a report without it was cut short.
    let looked_for = "lines `total time:` and `total number of events:`";
    let seconds = after(text, "total time:").and_then(|time| number(time.trim_end_matches('s')));
    let events = value("total number of events:");
    let (Some(seconds), Some(events)) = (seconds, events) else {
        return Err(report.missing(looked_for));
    };
    report.set("duration_s", Some(seconds));
    let transactions = value("transactions:");
    report.set("requests", Some(transactions.unwrap_or(events)));
    let per_s = after(text, "transactions:").and_then(in_brackets);
    report.set("requests_per_s", Some(per_s.unwrap_or(events / seconds)));
    let queries_per_s = after(text, "queries:").and_then(in_brackets);
    report.set("queries_per_s", queries_per_s);
    if transactions.is_some() {
        let errors = value("ignored errors:").unwrap_or(0.0) + value("reconnects:").unwrap_or(0.0);
        report.set("errors", Some(errors));
    }

    let us = |ms: f64| ms * 1e3;
    report.set("latency_mean_us", value("avg:").map(us));
    report.set("latency_max_us", value("max:").map(us));
    // "         99th percentile:                       10.09", whichever --percentile asked for
    for line in text.lines() {
        if let Some((percent, ms)) = line.split_once("th percentile:")
            && let Some(percent) = number(percent)
        {
            report.set_percentile(percent, number(ms).map(us));
        }
    }
    report.set("bytes_per_s", bytes_per_s(text));
    report.finish(looked_for)
}

/// The rate in `581    (289.34 per sec.)`.
fn in_brackets(text: &str) -> Option<f64> {
    leading_number(text.split_once('(')?.1)
}

/// Of the memory test (`1.00 MiB transferred (2.00 MiB/sec)`) or the file test (`read, MiB/s:` and `written, MiB/s:`).
fn bytes_per_s(text: &str) -> Option<f64> {
    let memory = text
        .lines()
        .find(|line| line.contains("MiB transferred ("))
        .and_then(in_brackets);
    let value = |label| after(text, label).and_then(leading_number);
    let files = value("read, MiB/s:")
        .zip(value("written, MiB/s:"))
        .map(|(read, written)| read + written);
    memory.or(files).map(|mib| mib * 1024.0 * 1024.0)
}
