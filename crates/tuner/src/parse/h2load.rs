//! The report of h2load (nghttp2), whose table of times has columns that depend on its version.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, after, number, time_us};

const LOOKED_FOR: &str =
    "lines `finished in`, `requests:` and `traffic:`, and the table below them";

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("h2load", text);
    report.only_one("finished in ")?;
    let per_s = || {
        // "finished in 177.64ms, 11258.85 req/s, 7.80MB/s"
        let finished = after(text, "finished in ")?;
        number(finished.split(',').nth(1)?.trim().strip_suffix("req/s")?)
    };
    let per_s = per_s().ok_or_else(|| report.missing(LOOKED_FOR))?;
    // "20 total, 20 started, 20 done, 0 succeeded, 20 failed, 0 errored, 0 timeout": `failed` holds
    // the errored ones and those with a status of 4xx or 5xx; `errored` holds the timeouts.
    let requests = after(text, "requests:").ok_or_else(|| report.missing(LOOKED_FOR))?;
    let count = |name: &str| {
        let counts = requests.split(',').map(str::trim);
        counts
            .filter_map(|count| number(count.strip_suffix(name)?))
            .next()
    };
    let (Some(done), Some(failed), Some(errored)) =
        (count("done"), count("failed"), count("errored"))
    else {
        return Err(report.missing(LOOKED_FOR));
    };
    let answered = (done - errored).max(0.0);
    if answered <= 0.0 || per_s <= 0.0 {
        return Err(report.no_requests());
    }
    // The rate is of the main part; "finished in" also counts the warm-up.
    let duration_s = answered / per_s;
    report.set("requests", Some(answered));
    report.set("requests_per_s", Some(per_s));
    report.set("duration_s", Some(duration_s));
    report.set("errors", Some(failed));
    let bytes = || {
        let traffic = after(text, "traffic:")?;
        number(traffic.split_once('(')?.1.split_once(')')?.0)
    };
    let bytes = bytes().ok_or_else(|| report.missing(LOOKED_FOR))?;
    // The total, too, is of the main part. Headers and data behind it are of all the time.
    report.set("bytes_per_s", Some(bytes / duration_s));
    if !set_latencies(&mut report, text) {
        return Err(report.missing(LOOKED_FOR));
    }
    report.finish(LOOKED_FOR)
}

/// `time for request:  104us  3.06ms  607us  305us  71.00%` below `min max mean sd +/- sd`; since
/// version 1.69 `request     :` below `min max median p95 p99 mean sd +/- sd`.
/// False if the table is missing or cut short.
fn set_latencies(report: &mut Report<'_>, text: &str) -> bool {
    let is_heading = |line: &&str| line.trim_start().starts_with("min ") && line.contains("mean");
    let heading = text.lines().find(is_heading).unwrap_or_default();
    let row = text.lines().map(str::trim).find(|line| {
        line.starts_with("time for request:")
            || line
                .strip_prefix("request")
                .is_some_and(|rest| rest.trim_start().starts_with(':'))
    });
    let Some((_, row)) = row.and_then(|row| row.split_once(':')) else {
        return false;
    };
    let (names, values) = (heading.split_whitespace(), row.split_whitespace());
    // `+/- sd` is one column.
    if names.clone().count() != values.clone().count() + 1 {
        return false;
    }
    for (name, value) in names.zip(values) {
        let us = time_us(value);
        match name {
            "max" => report.set("latency_max_us", us),
            "mean" => report.set("latency_mean_us", us),
            "sd" if value.contains('s') => report.set("latency_sd_us", us),
            "median" => report.set_percentile(50.0, us),
            name => {
                if let Some(percent) = name.strip_prefix('p').and_then(number) {
                    report.set_percentile(percent, us);
                }
            }
        }
    }
    true
}
