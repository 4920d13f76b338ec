//! The JSON report of fio 3 (`--output-format=json` or `json+`); times in it are in nanoseconds or milliseconds.

use std::collections::BTreeMap;

use serde_json::Value;

use super::ParseError;
use super::json::first_value;
use super::report::{Report, number};

const DIRECTIONS: [&str; 3] = ["read", "write", "trim"];

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("fio", text);
    let looked_for = "complete JSON object with `jobs` (fio --output-format=json)";
    let json = first_value(text).map_err(|_| report.missing(looked_for))?;
    let jobs = json
        .get("jobs")
        .and_then(Value::as_array)
        .ok_or_else(|| report.missing(looked_for))?;

    let active: Vec<&Value> = jobs
        .iter()
        .flat_map(|job| DIRECTIONS.iter().filter_map(|side| job.get(side)))
        .filter(|side| field(side, "total_ios") > 0.0)
        .collect();
    let total = |key| active.iter().map(|side| field(side, key)).sum::<f64>();
    let requests = total("total_ios");
    if requests <= 0.0 {
        return Err(report.no_requests());
    }
    report.set("requests", Some(requests));
    report.set("requests_per_s", Some(total("iops")));
    report.set("bytes_per_s", Some(total("bw_bytes")));
    let runtime_ms = active
        .iter()
        .map(|side| field(side, "runtime"))
        .fold(0.0, f64::max);
    report.set("duration_s", Some(runtime_ms / 1e3));
    // `error` is the errno that ended a job, `total_err` what continue_on_error let pass.
    let errors = jobs
        .iter()
        .map(|job| field(job, "total_err").max(f64::from(field(job, "error") != 0.0)))
        .sum();
    report.set("errors", Some(errors));
    latencies(&mut report, &active);
    report.finish("`iops`")
}

fn latencies(report: &mut Report<'_>, active: &[&Value]) {
    let latencies: Vec<&Value> = active.iter().filter_map(|side| latency(side)).collect();
    if latencies.len() != active.len() {
        return;
    }
    let count: f64 = latencies.iter().map(|l| field(l, "N")).sum();
    let sum: f64 = latencies
        .iter()
        .map(|l| field(l, "mean") * field(l, "N"))
        .sum();
    let max = latencies
        .iter()
        .map(|l| field(l, "max"))
        .fold(0.0, f64::max);
    report.set("latency_mean_us", Some(sum / count / 1e3));
    report.set("latency_max_us", Some(max / 1e3));
    // Percentiles of several groups do not add up to the percentile of all.
    if let [only] = latencies.as_slice() {
        report.set("latency_sd_us", Some(field(only, "stddev") / 1e3));
        let percentiles = only.get("percentile").and_then(Value::as_object);
        for (percent, ns) in percentiles.into_iter().flatten() {
            if let Some(percent) = number(percent) {
                report.set_percentile(percent, ns.as_f64().map(|ns| ns / 1e3));
            }
        }
    }
}

/// The latency that has percentiles: completion by default, total with `lat_percentiles=1`.
fn latency(side: &Value) -> Option<&Value> {
    let of = |key: &str| side.get(key).filter(|l| field(l, "N") > 0.0);
    let total = of("lat_ns");
    total
        .filter(|l| l.get("percentile").is_some())
        .or_else(|| of("clat_ns"))
        .or(total)
}

fn field(object: &Value, key: &str) -> f64 {
    object.get(key).and_then(Value::as_f64).unwrap_or(0.0)
}
