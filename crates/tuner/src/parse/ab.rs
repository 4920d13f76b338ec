//! The report of ApacheBench 2.3.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, after, leading_number, number};

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("ab", text);
    report.only_one("Requests per second:")?;
    // All but the mean is in whole milliseconds.
    report.set_resolution_us(1000.0);
    let value = |label| after(text, label).and_then(leading_number);
    report.set("requests", value("Complete requests:"));
    report.set("duration_s", value("Time taken for tests:"));
    report.set("requests_per_s", value("Requests per second:"));
    // The first of two lines of that name: concurrency × time / requests, finer than the whole
    // milliseconds of the table.
    let mean_ms = value("Time per request:");
    report.set("latency_mean_us", mean_ms.map(|ms| ms * 1e3));
    // Printed in kibibytes.
    let kbytes_per_s = value("Transfer rate:");
    report.set("bytes_per_s", kbytes_per_s.map(|kb| kb * 1024.0));
    report.set("errors", Some(errors(text)));

    // "Total:          0    1   0.9      1       6": minimum, mean, deviation, median, maximum
    if let Some(row) = after(text, "Total:") {
        let sd_ms = row.split_whitespace().nth(2).and_then(number);
        report.set("latency_sd_us", sd_ms.map(|ms| ms * 1e3));
    } else if value("Complete requests:").is_some_and(|count| count > 1.0) {
        // The table is left out for a single request only, and -d and -S shorten what comes after
        // it.
        return Err(report.missing("table `Connection Times (ms)`"));
    }
    // "  99%      5", "  100%      6 (longest request)"
    for line in text.lines() {
        if let Some((percent, rest)) = line.split_once('%')
            && let Some(percent) = number(percent)
        {
            report.set_percentile(percent, leading_number(rest).map(|ms| ms * 1e3));
        }
    }
    report.finish("line `Requests per second:`")
}

/// Failed requests and non-2xx responses. A non-2xx response usually has another length than the
/// first response as well, so ab counts it twice; the larger of the two numbers is taken.
fn errors(text: &str) -> f64 {
    let value = |label| after(text, label).and_then(leading_number).unwrap_or(0.0);
    let failed = value("Failed requests:");
    let wrong_length = after(text, "(Connect:")
        .and_then(|kinds| kinds.split("Length:").nth(1))
        .and_then(|rest| number(rest.split([',', ')']).next()?))
        .unwrap_or(0.0)
        .min(failed);
    let unsuccessful = value("Non-2xx responses:").max(wrong_length);
    failed - wrong_length + unsuccessful + value("Write errors:")
}
