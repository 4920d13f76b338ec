//! The report of YCSB: lines such as `[READ], AverageLatency(us), 312.5`.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, number};

const LOOKED_FOR: &str = "line `[OVERALL], Throughput(ops/sec),`";

/// What one section says, such as `[READ]`.
type Section<'a> = BTreeMap<&'a str, f64>;

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("YCSB", text);
    report.only_one("[OVERALL], Throughput(ops/sec)")?;
    // The histograms' lines have whole numbers for names; they are no reason for refusing.
    let mut sections: BTreeMap<&str, Section<'_>> = BTreeMap::new();
    for line in text.lines() {
        let mut cells = line.splitn(3, ", ");
        if let (Some(section), Some(name), Some(value)) = (cells.next(), cells.next(), cells.next())
            && let Some(section) = section.strip_prefix('[').and_then(|s| s.strip_suffix(']'))
            && let Some(value) = number(value)
        {
            sections.entry(section).or_default().insert(name, value);
        }
    }
    let overall = sections.remove("OVERALL").unwrap_or_default();
    let per_s = overall.get("Throughput(ops/sec)").copied();
    let seconds = overall.get("RunTime(ms)").map(|ms| ms / 1e3);
    let (Some(per_s), Some(seconds)) = (per_s, seconds) else {
        return Err(report.missing(LOOKED_FOR));
    };
    report.set("requests_per_s", Some(per_s));
    report.set("duration_s", Some(seconds));
    report.set("requests", Some((per_s * seconds).round()));
    let is_operation = |name: &str| {
        // `Intended-READ` is the same operation, counted from when it was due; failed ones have a
        // section of their own.
        name != "CLEANUP" && !name.ends_with("-FAILED") && !name.starts_with("Intended-")
    };
    let operations: Vec<(&str, &Section<'_>)> = sections
        .iter()
        .filter(|(name, section)| is_operation(name) && section.contains_key("Operations"))
        .map(|(name, section)| (*name, section))
        .collect();
    if operations.is_empty() {
        return Err(report.missing("section of an operation, such as `[READ], Operations,`"));
    }
    // A read-modify-write holds a read and an update that have sections as well; else no request is
    // in two sections.
    let is_apart = operations
        .iter()
        .all(|(name, _)| *name != "READ-MODIFY-WRITE");
    let counted: f64 = sections
        .iter()
        .filter(|(name, _)| **name != "CLEANUP" && !name.starts_with("Intended-"))
        .filter_map(|(_, section)| section.get("Operations"))
        .sum();
    if is_apart && (counted - per_s * seconds).abs() > 0.05 * counted {
        return Err(report.contradicts(format!(
            "its sections count {counted} operations, and Throughput × RunTime is {:.0}",
            per_s * seconds
        )));
    }
    let errors: f64 = operations
        .iter()
        .map(|(_, section)| errors_of(section))
        .sum();
    report.set("errors", Some(errors));
    if let [(_, only)] = operations.as_slice() {
        set_latencies(&mut report, only);
    } else if operations
        .iter()
        .all(|(name, _)| *name != "READ-MODIFY-WRITE")
    {
        // A read-modify-write holds a read and an update that have sections as well; else no
        // request is in two sections.
        let sum = |value: fn(&Section<'_>) -> Option<f64>| {
            operations
                .iter()
                .map(|(_, section)| value(section))
                .sum::<Option<f64>>()
        };
        let count = sum(|section| section.get("Operations").copied());
        let total =
            sum(|section| Some(section.get("Operations")? * section.get("AverageLatency(us)")?));
        report.set(
            "latency_mean_us",
            total.zip(count).map(|(total, count)| total / count),
        );
        let max = operations
            .iter()
            .map(|(_, section)| section.get("MaxLatency(us)"));
        report.set("latency_max_us", max.flatten().copied().reduce(f64::max));
    }
    report.finish(LOOKED_FOR)
}

/// Every return code but success: `OK` (`0` before version 0.6) and `BATCHED_OK`.
fn errors_of(section: &Section<'_>) -> f64 {
    let codes = section.iter().filter_map(|(name, count)| {
        let code = name.strip_prefix("Return=")?;
        (!matches!(code, "OK" | "0" | "BATCHED_OK")).then_some(*count)
    });
    codes.sum()
}

fn set_latencies(report: &mut Report<'_>, section: &Section<'_>) {
    report.set(
        "latency_mean_us",
        section.get("AverageLatency(us)").copied(),
    );
    report.set("latency_max_us", section.get("MaxLatency(us)").copied());
    // The older kind of histogram has whole milliseconds, and says so by its variance.
    if section.contains_key("LatencyVariance(us)") {
        report.set_resolution_us(1000.0);
    }
    for (name, us) in section {
        let percent = name.strip_suffix("PercentileLatency(us)");
        let percent = percent.map(|percent| percent.trim_end_matches(char::is_alphabetic));
        if let Some(percent) = percent.and_then(number) {
            report.set_percentile(percent, Some(*us));
        }
    }
}
