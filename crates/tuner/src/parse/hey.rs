//! The plain summary of hey.

use std::collections::BTreeMap;

use super::ParseError;
use super::report::{Distribution, Report, after, leading_number, number};

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("hey", text);
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
    // hey's rate counts requests that got no response; ours does not.
    let share = distribution.responses / (distribution.responses + distribution.errors);
    report.set("requests", Some(distribution.responses));
    report.set("requests_per_s", Some(rate * share));
    report.set("errors", Some(distribution.not_2xx + distribution.errors));
    let duration_s = value("Total:");
    report.set("duration_s", duration_s);
    let us = |seconds: f64| seconds * 1e6;
    report.set("latency_mean_us", value("Average:").map(us));
    report.set("latency_max_us", value("Slowest:").map(us));
    if let (Some(bytes), Some(duration_s)) = (value("Total data:"), duration_s) {
        report.set("bytes_per_s", Some(bytes / duration_s));
    }
    // "  99%% in 0.0054 secs", with one % in older versions
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
