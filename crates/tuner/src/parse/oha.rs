//! The summary of oha: JSON (as its `schema.json` describes) or plain text.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::ParseError;
use super::json::only_object;
use super::report::{Distribution, Report, after, number, size_bytes, time_us, without_controls};

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let report = Report::new("oha", text);
    match only_object(&report, text, &["summary"], "object `summary`") {
        Ok(json) => parse_json(report, &json),
        Err(error @ ParseError::Several { .. }) => Err(error),
        // Versions 0.6.3 to 1.7 colour the text for a pipe as well.
        Err(_) => parse_text(&without_controls(text)),
    }
}

fn parse_json(mut report: Report<'_>, json: &Value) -> Result<BTreeMap<String, f64>, ParseError> {
    let value = |key| json.get("summary")?.get(key)?.as_f64();
    let us = |seconds: f64| seconds * 1e6;
    report.set("latency_mean_us", value("average").map(us));
    report.set("latency_max_us", value("slowest").map(us));
    report.set("bytes_per_s", value("sizePerSec"));
    for (key, seconds) in entries(json, "latencyPercentiles") {
        if let Some(percent) = key.strip_prefix('p').and_then(number) {
            report.set_percentile(percent, Some(us(seconds)));
        }
    }
    let mut distribution = Distribution::default();
    for (status, count) in entries(json, "statusCodeDistribution") {
        distribution.add_status(number(status).unwrap_or(0.0), count);
    }
    for (message, count) in entries(json, "errorDistribution") {
        distribution.add_errors(message, count);
    }
    finish(report, &distribution, value("total"), "`summary.total`")
}

fn entries<'a>(json: &'a Value, key: &str) -> impl Iterator<Item = (&'a str, f64)> {
    json.get(key)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.as_str(), value.as_f64()?)))
}

fn parse_text(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("oha", text);
    report.only_one("Requests/sec:")?;
    report.set_resolution_us(100.0);
    if !text.contains("Status code distribution:") {
        return Err(report.missing("section `Status code distribution:`"));
    }
    let time = |label| after(text, label).and_then(time_us);
    report.set("latency_mean_us", time("Average:"));
    report.set("latency_max_us", time("Slowest:"));
    let per_s = after(text, "Size/sec:").and_then(size_bytes);
    report.set("bytes_per_s", per_s);
    // "  99.00% in 1.2345 ms", "  99% in 0.0012 secs" in version 0.5; a second table of the
    // successful requests may follow, the first one counts
    for line in text.lines() {
        if let Some((percent, latency)) = line.split_once("% in ")
            && let Some(percent) = number(percent)
        {
            report.set_percentile(percent, time_us(latency));
        }
    }
    let duration_s = time("Total:").map(|us| us / 1e6);
    finish(
        report,
        &Distribution::of_text(text),
        duration_s,
        "line `Total:`",
    )
}

/// oha's own rate counts requests without a response, so the rate is computed from the responses.
fn finish(
    mut report: Report<'_>,
    distribution: &Distribution,
    duration_s: Option<f64>,
    looked_for: &'static str,
) -> Result<BTreeMap<String, f64>, ParseError> {
    if distribution.responses <= 0.0 {
        return Err(report.no_requests());
    }
    report.set("requests", Some(distribution.responses));
    report.set("errors", Some(distribution.not_2xx + distribution.errors));
    report.set("duration_s", duration_s);
    let rate = duration_s.map(|seconds| distribution.responses / seconds);
    report.set("requests_per_s", rate);
    report.finish(looked_for)
}
