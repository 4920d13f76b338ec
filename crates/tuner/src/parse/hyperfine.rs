//! The JSON of hyperfine (`--export-json`). A request is a run of the command; times are in
//! seconds.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::ParseError;
use super::json::only_object;
use super::report::Report;

const LOOKED_FOR: &str =
    "JSON object with `results` (hyperfine --export-json /dev/stdout --style none …)";

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("hyperfine", text);
    let json = only_object(&report, text, &["results"], LOOKED_FOR)?;
    let results = json.get("results").and_then(Value::as_array);
    let results = results.ok_or_else(|| report.missing(LOOKED_FOR))?;
    let [result] = results.as_slice() else {
        return Err(report.several(format!("the results of {} commands", results.len())));
    };
    let numbers = |key: &str| -> Vec<f64> {
        let list = result.get(key).and_then(Value::as_array);
        list.into_iter()
            .flatten()
            .filter_map(Value::as_f64)
            .collect()
    };
    let seconds = numbers("times");
    if seconds.is_empty() {
        return Err(report.no_requests());
    }
    let runs: f64 = seconds.iter().map(|_| 1.0).sum();
    let total_s: f64 = seconds.iter().sum();
    report.set("requests", Some(runs));
    report.set("duration_s", Some(total_s));
    report.set("requests_per_s", Some(runs / total_s));
    let us = |key: &str| {
        result
            .get(key)
            .and_then(Value::as_f64)
            .map(|seconds| seconds * 1e6)
    };
    report.set("latency_mean_us", us("mean"));
    report.set("latency_sd_us", us("stddev"));
    report.set("latency_p50_us", us("median"));
    report.set("latency_max_us", us("max"));
    // Since version 1.11.
    if result.get("exit_codes").is_some() {
        let failed = numbers("exit_codes")
            .into_iter()
            .filter(|code| *code != 0.0);
        report.set("errors", Some(failed.map(|_| 1.0).sum()));
    }
    report.finish(LOOKED_FOR)
}
