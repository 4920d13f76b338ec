//! The plain summary of hey.
//!
//! hey keeps the results of a million requests (`maxRes` in its `requester/report.go`). In a longer
//! run the percentiles, the maximum and the status codes are those of the first million, and
//! "Average" is the time of all requests divided by a million. The total, the rate, the bytes and
//! the errors without a response are right.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Distribution, Report, after, leading_number, number};

/// How many results hey keeps.
const KEPT: f64 = 1e6;

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("hey", text);
    report.only_one("Requests/sec:")?;
    // Seconds with four decimals.
    report.set_resolution_us(100.0);
    let value = |label| after(text, label).and_then(leading_number);
    let rate_line = "line `Requests/sec:`";
    let rate = value("Requests/sec:").ok_or_else(|| report.missing(rate_line))?;
    // The last section: a report without it was cut short.
    if !text.contains("Status code distribution:") {
        return Err(report.missing("section `Status code distribution:`"));
    }
    let distribution = Distribution::of_text(text);
    if distribution.responses <= 0.0 {
        return Err(report.no_requests());
    }
    let us = |seconds: f64| seconds * 1e6;
    let duration_s = value("Total:");
    report.set("duration_s", duration_s);
    if let (Some(bytes), Some(duration_s)) = (value("Total data:"), duration_s) {
        report.set("bytes_per_s", Some(bytes / duration_s));
    }
    let mean_us = value("Average:").map(us);
    let all = duration_s.map(|duration_s| (rate * duration_s - distribution.errors).round());
    // Both numbers have four decimals: a run of exactly a million is whole.
    if let Some(all) = all.filter(|all| distribution.responses >= KEPT && *all > KEPT * 1.0001) {
        report.set("requests", Some(all));
        report.set("requests_per_s", duration_s.map(|seconds| all / seconds));
        report.set("latency_mean_us", mean_us.map(|us| us * KEPT / all));
        return report.finish(rate_line);
    }
    // hey's rate counts requests that got no response; ours does not.
    let share = distribution.responses / (distribution.responses + distribution.errors);
    report.set("requests", Some(distribution.responses));
    report.set("requests_per_s", Some(rate * share));
    report.set("errors", Some(distribution.not_2xx + distribution.errors));
    report.set("latency_mean_us", mean_us);
    report.set("latency_max_us", value("Slowest:").map(us));
    // "  99%% in 0.0054 secs", with one % in newer versions
    for line in text.lines() {
        if let Some((percent, rest)) = line.split_once('%')
            && let Some(percent) = number(percent)
            && let Some(seconds) = rest.trim_start_matches('%').trim().strip_prefix("in ")
        {
            report.set_percentile(percent, leading_number(seconds).map(us));
        }
    }
    report.finish(rate_line)
}
