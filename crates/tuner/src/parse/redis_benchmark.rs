//! The reports of redis-benchmark: the long one, `-q`, and `--csv`. Before version 6.2 they have
//! the rate and no latencies finer than whole milliseconds, which are left out.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, leading_number, number};

/// One command that was tested; tests run one after the other.
#[derive(Debug, Default)]
struct Test {
    requests: Option<f64>,
    duration_s: Option<f64>,
    requests_per_s: f64,
    mean_us: Option<f64>,
    max_us: Option<f64>,
    /// Percent and microseconds.
    percentiles: Vec<(f64, f64)>,
}

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("redis-benchmark", text);
    let looked_for = "line with `requests per second`, nor CSV";
    let tests = if text.contains("\"test\",\"rps\"") {
        csv(text)
    } else if text.contains("throughput summary:") || text.contains("requests completed in") {
        long(text)
    } else if text.lines().any(|line| line.starts_with('"')) {
        csv_without_heading(text)
    } else {
        quiet(text)
    };
    if tests.is_empty() {
        return Err(report.missing(looked_for));
    }
    let sum = |value: fn(&Test) -> Option<f64>| tests.iter().map(value).sum::<Option<f64>>();
    let requests = sum(|test| test.requests);
    report.set("requests", requests);
    report.set("duration_s", sum(|test| test.duration_s));
    if let [only] = tests.as_slice() {
        report.set("requests_per_s", Some(only.requests_per_s));
        report.set("latency_mean_us", only.mean_us);
        for &(percent, us) in &only.percentiles {
            report.set_percentile(percent, Some(us));
        }
    } else {
        // Every test makes the same number of requests, so the rate of all is the harmonic mean,
        // and the mean latency the plain one.
        let count = tests.iter().map(|_| 1.0).sum::<f64>();
        let seconds_per_request: f64 = tests.iter().map(|test| 1.0 / test.requests_per_s).sum();
        report.set("requests_per_s", Some(count / seconds_per_request));
        let mean = sum(|test| test.mean_us).map(|total| total / count);
        report.set("latency_mean_us", mean);
    }
    let max = tests
        .iter()
        .map(|test| test.max_us)
        .try_fold(0.0, |max, us| us.map(|us| f64::max(max, us)));
    report.set("latency_max_us", max);
    report.finish(looked_for)
}

/// Sections from `N requests completed in S seconds` to the line of latencies; progress is
/// overwritten with `\r`.
fn long(text: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    let mut test = Test::default();
    let mut names: Vec<&str> = Vec::new();
    for line in text.split(['\n', '\r']).map(str::trim) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [count, "requests", "completed", "in", seconds, "seconds"] => {
                test = Test {
                    requests: number(count),
                    duration_s: number(seconds),
                    ..Test::default()
                };
            }
            // "99.902% <= 7.047 milliseconds (cumulative count 19981)": the histogram halves the
            // rest at every step, and its step at 99.902 % is the nearest to 99.9 %. The cumulative
            // distribution after it has coarser times.
            [percent, "<=", ms, "milliseconds", ..] if names.is_empty() => {
                let percent = match *percent {
                    "75.000%" => 75.0,
                    "99.902%" => 99.9,
                    _ => continue,
                };
                if let Some(ms) = number(ms)
                    && test.percentiles.iter().all(|(p, _)| *p != percent)
                {
                    test.percentiles.push((percent, ms * 1e3));
                }
            }
            ["throughput", "summary:", rate, ..] => {
                test.requests_per_s = number(rate).unwrap_or(0.0);
            }
            // Before version 6.2 the last line of a section.
            [rate, "requests", "per", "second"] if test.requests.is_some() => {
                test.requests_per_s = number(rate).unwrap_or(0.0);
                tests.push(std::mem::take(&mut test));
            }
            ["avg", "min", ..] => names.clone_from(&words),
            _ if !names.is_empty() => {
                for (name, ms) in names.drain(..).zip(&words) {
                    set_latency(&mut test, name, number(ms));
                }
                tests.push(std::mem::take(&mut test));
            }
            _ => {}
        }
    }
    tests
}

/// `SET: 32467.53 requests per second, p50=0.079 msec`
fn quiet(text: &str) -> Vec<Test> {
    text.split(['\n', '\r'])
        .filter_map(|line| {
            let (before, after) = line.split_once(" requests per second")?;
            let mut test = Test {
                requests_per_s: number(before.rsplit(' ').next()?)?,
                ..Test::default()
            };
            if let Some((_, p50)) = after.split_once("p50=") {
                set_latency(&mut test, "p50", leading_number(p50));
            }
            Some(test)
        })
        .collect()
}

/// A header `"test","rps","avg_latency_ms",…` and a row per test.
fn csv(text: &str) -> Vec<Test> {
    let cells = |line: &str| -> Vec<String> {
        line.split("\",\"")
            .map(|cell| cell.trim().trim_matches('"').to_owned())
            .collect()
    };
    let mut lines = text.lines().skip_while(|line| !line.contains("\"rps\""));
    let Some(header) = lines.next().map(cells) else {
        return Vec::new();
    };
    lines
        .map(cells)
        .filter(|row| row.len() == header.len())
        .filter_map(|row| {
            let mut test = Test::default();
            for (name, cell) in header.iter().zip(&row) {
                if name == "rps" {
                    test.requests_per_s = number(cell)?;
                } else if let Some(name) = name.strip_suffix("_latency_ms") {
                    set_latency(&mut test, name, number(cell));
                }
            }
            Some(test)
        })
        .collect()
}

/// `"GET","84175.09"`, before version 6.2.
fn csv_without_heading(text: &str) -> Vec<Test> {
    let rows = text.lines().filter_map(|line| {
        let (_, rate) = line.trim().split_once("\",\"")?;
        Some(Test {
            requests_per_s: number(rate.strip_suffix('"')?)?,
            ..Test::default()
        })
    });
    rows.collect()
}

fn set_latency(test: &mut Test, name: &str, ms: Option<f64>) {
    let Some(us) = ms.map(|ms| ms * 1e3) else {
        return;
    };
    match name {
        "avg" => test.mean_us = Some(us),
        "max" => test.max_us = Some(us),
        "p50" => test.percentiles.push((50.0, us)),
        "p95" => test.percentiles.push((95.0, us)),
        "p99" => test.percentiles.push((99.0, us)),
        _ => {}
    }
}
