//! The JSON of JMH (`-rf json`). Throughput gives a rate, average and sample time give latencies as
//! well.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::ParseError;
use super::json::all_values;
use super::report::{Report, number, time_us};

const LOOKED_FOR: &str = "JSON array with `primaryMetric` (-rf json -rff /dev/stdout -o /dev/null)";

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("JMH", text);
    let results: Vec<Value> = all_values(text)
        .into_iter()
        .filter_map(|value| value.as_array().cloned())
        .flatten()
        .filter(|result| result.get("primaryMetric").is_some())
        .collect();
    let [result] = results.as_slice() else {
        return Err(match results.len() {
            0 => report.missing(LOOKED_FOR),
            several => report.several(format!("the results of {several} benchmarks or parameters")),
        });
    };
    let text_of = |key: &str| result.get(key).and_then(Value::as_str).unwrap_or_default();
    let metric = &result["primaryMetric"];
    let score = metric.get("score").and_then(Value::as_f64);
    let unit = metric
        .get("scoreUnit")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let score = score.ok_or_else(|| report.missing(LOOKED_FOR))?;
    let threads = result.get("threads").and_then(Value::as_f64).unwrap_or(1.0);
    // "ops/ms" or "us/op"
    let per_op_us = unit.strip_suffix("/op").and_then(unit_us);
    let per_us = unit.strip_prefix("ops/").and_then(unit_us);
    match (per_op_us, per_us) {
        (Some(unit_us), _) => {
            let mean_us = score * unit_us;
            report.set("latency_mean_us", Some(mean_us));
            report.set("requests_per_s", Some(threads * 1e6 / mean_us));
            // Of single operations in this mode alone; else of whole iterations.
            if text_of("mode") == "sample" {
                let percentiles = metric.get("scorePercentiles").and_then(Value::as_object);
                for (percent, value) in percentiles.into_iter().flatten() {
                    if let Some(percent) = number(percent) {
                        let us = value.as_f64().map(|value| value * unit_us);
                        report.set_percentile(percent, us);
                    }
                }
            }
        }
        (None, Some(unit_us)) => report.set("requests_per_s", Some(score * 1e6 / unit_us)),
        (None, None) => return Err(report.missing("a `scoreUnit` such as `ops/s` or `us/op`")),
    }
    let count = |key: &str| result.get(key).and_then(Value::as_f64);
    let iteration_s = time_us(text_of("measurementTime")).map(|us| us / 1e6);
    let runs = count("forks").zip(count("measurementIterations"));
    let duration_s = runs.zip(iteration_s).map(|((forks, iterations), seconds)| {
        // No fork is one run within the process of JMH itself.
        forks.max(1.0) * iterations * seconds
    });
    report.set("duration_s", duration_s);
    report.finish(LOOKED_FOR)
}

/// JMH's short names of Java's `TimeUnit`.
fn unit_us(name: &str) -> Option<f64> {
    time_us(&format!("1 {name}"))
}
