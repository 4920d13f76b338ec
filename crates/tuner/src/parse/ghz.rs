//! The summary of ghz: JSON (`-O json`, times in nanoseconds) or plain text.
//!
//! ghz keeps the details of a million calls (`maxResult` in its `runner/reporter.go`): in a longer
//! run its percentiles are those of the first million, and are left out.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::ParseError;
use super::json::only_object;
use super::report::{Report, after, number, time_us};

const LOOKED_FOR: &str = "lines `Count:` and `Requests/sec:`";
/// How many details ghz keeps.
const KEPT: f64 = 1e6;

/// What both layouts say.
#[derive(Default)]
struct Summary {
    calls: Option<f64>,
    total_us: Option<f64>,
    mean_us: Option<f64>,
    max_us: Option<f64>,
    /// Calls that ended with status OK.
    ok: f64,
    /// Percent and microseconds.
    percentiles: Vec<(f64, f64)>,
}

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let report = Report::new("ghz", text);
    match only_object(&report, text, &["count"], LOOKED_FOR) {
        Ok(json) => finish(report, &of_json(&json)),
        Err(error @ ParseError::Several { .. }) => Err(error),
        Err(_) => {
            report.only_one("Requests/sec:")?;
            finish(report, &of_text(text))
        }
    }
}

fn of_json(json: &Value) -> Summary {
    let get = |key: &str| json.get(key).and_then(Value::as_f64);
    let us = |key: &str| get(key).map(|ns| ns / 1e3);
    let list = json.get("latencyDistribution").and_then(Value::as_array);
    let percentile = |entry: &Value| {
        let percent = entry.get("percentage")?.as_f64()?;
        Some((percent, entry.get("latency")?.as_f64()? / 1e3))
    };
    let ok = json.pointer("/statusCodeDistribution/OK");
    Summary {
        calls: get("count"),
        total_us: us("total"),
        mean_us: us("average"),
        max_us: us("slowest"),
        ok: ok.and_then(Value::as_f64).unwrap_or(0.0),
        percentiles: list.into_iter().flatten().filter_map(percentile).collect(),
    }
}

fn of_text(text: &str) -> Summary {
    let us = |label: &str| after(text, label).and_then(time_us);
    // "  99 % in 1.23 ms"
    let percentiles = text.lines().filter_map(|line| {
        let (percent, latency) = line.split_once("% in ")?;
        Some((number(percent)?, time_us(latency)?))
    });
    // "  [OK]   200 responses"
    let ok = after(text, "[OK]").and_then(|rest| number(rest.strip_suffix("responses")?));
    Summary {
        calls: after(text, "Count:").and_then(number),
        total_us: us("Total:"),
        mean_us: us("Average:"),
        max_us: us("Slowest:"),
        ok: ok.unwrap_or(0.0),
        percentiles: percentiles.collect(),
    }
}

fn finish(mut report: Report<'_>, summary: &Summary) -> Result<BTreeMap<String, f64>, ParseError> {
    let (Some(calls), Some(total_us)) = (summary.calls, summary.total_us) else {
        return Err(report.missing(LOOKED_FOR));
    };
    if summary.ok <= 0.0 {
        return Err(report.no_requests());
    }
    let seconds = total_us / 1e6;
    report.set("requests", Some(calls));
    report.set("duration_s", Some(seconds));
    report.set("requests_per_s", Some(calls / seconds));
    report.set("errors", Some(calls - summary.ok));
    report.set("latency_mean_us", summary.mean_us);
    report.set("latency_max_us", summary.max_us);
    if calls <= KEPT {
        for (percent, us) in &summary.percentiles {
            report.set_percentile(*percent, Some(*us));
        }
    }
    report.finish(LOOKED_FOR)
}
