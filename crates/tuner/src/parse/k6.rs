//! The summary of k6 as JSON: of `--summary-export`, and the data that `handleSummary` is given.
//! Times are in milliseconds.
//!
//! Since version 1 there is another layout (`--new-machine-readable-summary`): a list of metrics
//! below `results`, without rates, and with the percentiles 90 and 95 alone.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::ParseError;
use super::json::only_object;
use super::report::{Report, number};

const LOOKED_FOR: &str = "JSON object with `metrics` and `http_reqs` (k6 run --quiet --summary-export=/dev/stdout, without --no-summary)";

/// The trend of the requests that did not fail.
const EXPECTED: &str = "http_req_duration{expected_response:true}";

/// The values of each metric, and how long the run took.
struct Summary<'a> {
    metrics: BTreeMap<&'a str, &'a Value>,
    duration_s: Option<f64>,
}

impl<'a> Summary<'a> {
    fn of(json: &'a Value) -> Self {
        let seconds = |pointer: &str| json.pointer(pointer).and_then(Value::as_f64);
        if let Some(list) = json.pointer("/results/metrics").and_then(Value::as_array) {
            let named = |metric: &'a Value| Some((metric.get("name")?.as_str()?, metric));
            return Self {
                metrics: list.iter().filter_map(named).map(valued).collect(),
                duration_s: seconds("/config/duration"),
            };
        }
        let metrics = json.get("metrics").and_then(Value::as_object);
        let metrics = metrics.into_iter().flatten();
        Self {
            metrics: metrics
                .map(|(name, it)| valued((name.as_str(), it)))
                .collect(),
            duration_s: seconds("/state/testRunDurationMs").map(|ms| ms / 1e3),
        }
    }

    fn get(&self, metric: &str, key: &str) -> Option<f64> {
        self.metrics.get(metric)?.get(key)?.as_f64()
    }

    /// What a counter rose by each second. The newer layout leaves that to the reader.
    fn rate(&self, counter: &str) -> Option<f64> {
        let counted = || Some(self.get(counter, "count")? / self.duration_s?);
        self.get(counter, "rate").or_else(counted)
    }
}

/// `--summary-export` has the numbers beside the thresholds, the others have them below `values`.
fn valued<'a>((name, metric): (&'a str, &'a Value)) -> (&'a str, &'a Value) {
    (name, metric.get("values").unwrap_or(metric))
}

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("k6", text);
    let json = only_object(&report, text, &["metrics", "results"], LOOKED_FOR)?;
    let summary = Summary::of(&json);
    // Scripts of gRPC or WebSockets make no HTTP requests: an iteration is the unit then.
    let (count, duration) = match summary.get("http_reqs", "count") {
        Some(_) => ("http_reqs", "http_req_duration"),
        None => ("iterations", "iteration_duration"),
    };
    let sent = summary.get(count, "count");
    let sent = sent.ok_or_else(|| report.missing(LOOKED_FOR))?;
    // The share of failed requests: `value` of --summary-export, `rate` of the others. `passes` and
    // `fails` are not read, as they count the other way round than their names say.
    let failed = summary.get("http_req_failed", "rate");
    let failed = failed.or_else(|| summary.get("http_req_failed", "value"));
    let failed = (failed.unwrap_or(0.0) * sent).round();
    // A request without an answer is one of 0 ms.
    let is_unanswered = failed >= sent && summary.get("http_req_duration", "max") == Some(0.0);
    if sent <= 0.0 || is_unanswered {
        return Err(report.no_requests());
    }
    report.set("requests", Some(sent));
    let per_s = summary.rate(count);
    report.set("requests_per_s", per_s);
    let duration_s = summary.duration_s.or_else(|| Some(sent / per_s?));
    report.set("duration_s", duration_s);
    // An iteration that was due while no virtual user was free was not begun.
    let dropped = summary.get("dropped_iterations", "count").unwrap_or(0.0);
    report.set("errors", Some(failed + dropped));
    report.set("bytes_per_s", summary.rate("data_received"));
    let answered = (failed > 0.0 && summary.metrics.contains_key(EXPECTED)).then_some(EXPECTED);
    set_latencies(&mut report, &summary, answered.unwrap_or(duration));
    report.finish(LOOKED_FOR)
}

fn set_latencies(report: &mut Report<'_>, summary: &Summary<'_>, trend: &str) {
    let us = |ms: f64| ms * 1e3;
    report.set("latency_mean_us", summary.get(trend, "avg").map(us));
    report.set("latency_p50_us", summary.get(trend, "med").map(us));
    report.set("latency_max_us", summary.get(trend, "max").map(us));
    let values = summary.metrics.get(trend).and_then(|it| it.as_object());
    for (name, value) in values.into_iter().flatten() {
        // `p(95)`, and `p95` in the newer layout.
        let percent = name.strip_prefix('p').map(|percent| {
            let inner = percent
                .strip_prefix('(')
                .and_then(|it| it.strip_suffix(')'));
            inner.unwrap_or(percent)
        });
        if let Some(percent) = percent.and_then(number) {
            report.set_percentile(percent, value.as_f64().map(us));
        }
    }
}
