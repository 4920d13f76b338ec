//! The summary of k6 as JSON: of `--summary-export`, and the data that `handleSummary` is given.
//! Times are in milliseconds.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::ParseError;
use super::json::only_object;
use super::report::{Report, number};

const LOOKED_FOR: &str =
    "JSON object with `metrics` and `http_reqs` (k6 run --quiet --summary-export=stdout)";

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("k6", text);
    let json = only_object(&report, text, &["metrics"], LOOKED_FOR)?;
    let metrics = json
        .get("metrics")
        .ok_or_else(|| report.missing(LOOKED_FOR))?;
    // handleSummary has the numbers below `values`, --summary-export has them beside the
    // thresholds.
    let get = |metric: &str, key: &str| {
        let metric = metrics.get(metric)?;
        let values = metric.get("values").unwrap_or(metric);
        values.get(key).and_then(Value::as_f64)
    };
    // Scripts of gRPC or WebSockets make no HTTP requests: an iteration is the unit then.
    let (count, duration) = match get("http_reqs", "count") {
        Some(_) => ("http_reqs", "http_req_duration"),
        None => ("iterations", "iteration_duration"),
    };
    let sent = get(count, "count").ok_or_else(|| report.missing(LOOKED_FOR))?;
    if sent <= 0.0 {
        return Err(report.no_requests());
    }
    report.set("requests", Some(sent));
    let per_s = get(count, "rate");
    report.set("requests_per_s", per_s);
    let ms = json
        .get("state")
        .and_then(|state| state.get("testRunDurationMs"))
        .and_then(Value::as_f64);
    let duration_s = ms.map(|ms| ms / 1e3).or_else(|| Some(sent / per_s?));
    report.set("duration_s", duration_s);
    // The share of failed requests: `value` of --summary-export, `rate` of handleSummary. Its
    // `passes` and `fails` are not read, as they count the other way round than their names say.
    let failed = get("http_req_failed", "rate").or_else(|| get("http_req_failed", "value"));
    // An iteration that was due while no virtual user was free was not begun.
    let dropped = get("dropped_iterations", "count").unwrap_or(0.0);
    report.set(
        "errors",
        Some((failed.unwrap_or(0.0) * sent).round() + dropped),
    );
    report.set("bytes_per_s", get("data_received", "rate"));
    let us = |ms: f64| ms * 1e3;
    report.set("latency_mean_us", get(duration, "avg").map(us));
    report.set("latency_p50_us", get(duration, "med").map(us));
    report.set("latency_max_us", get(duration, "max").map(us));
    let trend = metrics.get(duration);
    let values = trend.map(|trend| trend.get("values").unwrap_or(trend));
    for (name, value) in values.and_then(Value::as_object).into_iter().flatten() {
        let percent = name
            .strip_prefix("p(")
            .and_then(|name| name.strip_suffix(')'));
        if let Some(percent) = percent.and_then(number) {
            report.set_percentile(percent, value.as_f64().map(us));
        }
    }
    report.finish(LOOKED_FOR)
}
