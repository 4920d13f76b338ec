//! The report of vegeta: JSON (`vegeta report -type=json`, times in nanoseconds) or text.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::ParseError;
use super::json::last_object;
use super::report::{Report, after, number, time_us};

const LOOKED_FOR: &str = "complete report (vegeta attack … | vegeta report -type=json)";

/// What both layouts say.
struct Counts {
    sent: f64,
    /// From the first request to the end of the last one.
    duration_s: f64,
    /// The share of 2xx and 3xx.
    success: f64,
    /// Requests that got no response.
    unanswered: f64,
    bytes: Option<f64>,
}

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    match last_object(text) {
        Ok(json) => parse_json(text, &json),
        Err(_) => parse_text(text),
    }
}

fn parse_json(text: &str, json: &Value) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("vegeta", text);
    let get = |path: &str| json.pointer(path).and_then(Value::as_f64);
    let counts = || {
        Some(Counts {
            sent: get("/requests")?,
            duration_s: (get("/duration")? + get("/wait")?) / 1e9,
            success: get("/success")?,
            unanswered: get("/status_codes/0").unwrap_or(0.0),
            bytes: get("/bytes_in/total"),
        })
    };
    let counts = counts().ok_or_else(|| report.missing(LOOKED_FOR))?;
    let latencies = json.get("latencies").and_then(Value::as_object);
    for (name, value) in latencies.into_iter().flatten() {
        let us = value.as_f64().map(|ns| ns / 1e3);
        match name.as_str() {
            "mean" => report.set("latency_mean_us", us),
            "max" => report.set("latency_max_us", us),
            name => {
                if let Some(percent) = name.strip_suffix("th").and_then(number) {
                    report.set_percentile(percent, us);
                }
            }
        }
    }
    finish(report, &counts)
}

/// Each line names its columns: `Latencies     [min, mean, 50, 90, 95, 99, max]  177µs, 378µs, …`.
fn parse_text(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    // `report -every` prints the report again and again, each counted from the start: the last one
    // has all.
    let text = text.rfind("Requests ").map_or(text, |at| &text[at..]);
    let mut report = Report::new("vegeta", text);
    let columns = |label: &str| -> Vec<(&str, &str)> {
        let line = after(text, label).and_then(|line| line.trim_start().strip_prefix('['));
        let Some((names, values)) = line.and_then(|line| line.split_once(']')) else {
            return Vec::new();
        };
        let cells = |list: &'_ str| list.split(',').map(str::trim).count();
        if cells(names) == cells(values) {
            names
                .split(',')
                .map(str::trim)
                .zip(values.split(',').map(str::trim))
                .collect()
        } else {
            Vec::new()
        }
    };
    let get = |label: &str, name: &str| {
        columns(label)
            .into_iter()
            .find_map(|(column, value)| (column == name).then_some(value))
    };
    let counts = || {
        Some(Counts {
            sent: number(get("Requests", "total")?)?,
            duration_s: go_duration_us(get("Duration", "total")?)? / 1e6,
            success: number(get("Success", "ratio")?.strip_suffix('%')?)? / 100.0,
            unanswered: status_codes(get("Status Codes", "code:count")?),
            bytes: get("Bytes In", "total").and_then(number),
        })
    };
    let counts = counts().ok_or_else(|| report.missing(LOOKED_FOR))?;
    for (name, value) in columns("Latencies") {
        let us = go_duration_us(value);
        match name {
            "mean" => report.set("latency_mean_us", us),
            "max" => report.set("latency_max_us", us),
            // Before version 12.8 "50%", since then "50".
            name => {
                if let Some(percent) = number(name.trim_end_matches("th").trim_end_matches('%')) {
                    report.set_percentile(percent, us);
                }
            }
        }
    }
    finish(report, &counts)
}

/// The number of requests with status 0 in `0:17  200:17  503:16`.
fn status_codes(text: &str) -> f64 {
    text.split_whitespace()
        .find_map(|code| code.strip_prefix("0:"))
        .and_then(number)
        .unwrap_or(0.0)
}

/// A duration as Go prints it: `1m30.5s`, `998.689ms`, `298.871µs`.
fn go_duration_us(text: &str) -> Option<f64> {
    let mut total_us = 0.0;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let unit_at = rest.find(|c| !is_number(c))?;
        let after_unit = rest[unit_at..]
            .find(is_number)
            .map_or(rest.len(), |at| unit_at + at);
        total_us += time_us(&rest[..after_unit])?;
        rest = &rest[after_unit..];
    }
    (!text.trim().is_empty()).then_some(total_us)
}

fn finish(mut report: Report<'_>, counts: &Counts) -> Result<BTreeMap<String, f64>, ParseError> {
    let answered = counts.sent - counts.unanswered;
    if answered <= 0.0 {
        return Err(report.no_requests());
    }
    report.set("requests", Some(answered));
    report.set("duration_s", Some(counts.duration_s));
    report.set("requests_per_s", Some(answered / counts.duration_s));
    report.set(
        "errors",
        Some((counts.sent * (1.0 - counts.success)).round()),
    );
    report.set(
        "bytes_per_s",
        counts.bytes.map(|bytes| bytes / counts.duration_s),
    );
    report.finish(LOOKED_FOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_go() {
        assert_eq!(go_duration_us("1m30.5s"), Some(90.5e6));
        assert_eq!(go_duration_us("1h0m1s"), Some(3601e6));
        assert_eq!(go_duration_us("298.5µs"), Some(298.5));
        assert_eq!(go_duration_us("1ms"), Some(1000.0));
        assert_eq!(go_duration_us(""), None);
        assert_eq!(go_duration_us("12"), None);
    }
}
