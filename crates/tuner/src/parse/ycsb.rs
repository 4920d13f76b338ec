//! The report of YCSB: lines such as `[READ], AverageLatency(us), 312.5`.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, number};

const LOOKED_FOR: &str = "line `[OVERALL], Throughput(ops/sec),`";

/// What one section says, such as `[READ]`.
#[derive(Debug, Default)]
struct Section<'a>(BTreeMap<&'a str, f64>);

impl Section<'_> {
    /// The first of these names that the section has. `measurementtype=raw` has names of its own.
    fn any(&self, names: [&str; 2]) -> Option<f64> {
        names.iter().find_map(|name| self.0.get(name)).copied()
    }

    fn operations(&self) -> Option<f64> {
        self.any(["Operations", "Total Operations"])
    }

    fn mean_us(&self) -> Option<f64> {
        self.any(["AverageLatency(us)", "Average"])
    }

    fn max_us(&self) -> Option<f64> {
        self.any(["MaxLatency(us)", "Max"])
    }

    /// Every return code but success: `OK` (`0` before version 0.5) and `BATCHED_OK`.
    fn errors(&self) -> f64 {
        let codes = self.0.iter().filter_map(|(name, count)| {
            let code = name.strip_prefix("Return=")?;
            (!matches!(code, "OK" | "0" | "BATCHED_OK")).then_some(*count)
        });
        codes.sum()
    }
}

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("YCSB", text);
    report.only_one("[OVERALL], Throughput(ops/sec)")?;
    let mut sections = sections(text);
    let overall = sections.remove("OVERALL").unwrap_or_default().0;
    let per_s = overall.get("Throughput(ops/sec)").copied();
    let seconds = overall.get("RunTime(ms)").map(|ms| ms / 1e3);
    let (Some(per_s), Some(seconds)) = (per_s, seconds) else {
        return Err(report.missing(LOOKED_FOR));
    };
    // Without a server there are no sections either.
    if per_s <= 0.0 {
        return Err(report.no_requests());
    }
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
        .filter(|(name, section)| is_operation(name) && section.operations().is_some())
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
        .filter_map(|(_, section)| section.operations())
        .sum();
    if is_apart && (counted - per_s * seconds).abs() > 0.05 * counted {
        return Err(report.contradicts(format!(
            "its sections count {counted} operations, and Throughput × RunTime is {:.0}",
            per_s * seconds
        )));
    }
    let errors = operations.iter().map(|(_, section)| section.errors());
    report.set("errors", Some(errors.sum()));
    // Operations that all failed have times of 0.
    let succeeded = operations.iter().map(|(_, section)| *section);
    let succeeded: Vec<&Section<'_>> = succeeded
        .filter(|section| section.operations() > Some(0.0))
        .collect();
    if is_apart {
        set_mean_and_max(&mut report, &succeeded);
    }
    if let ([_], [only]) = (operations.as_slice(), succeeded.as_slice()) {
        set_percentiles(&mut report, only);
    }
    report.finish(LOOKED_FOR)
}

/// The sections by name. The histograms' lines have whole numbers for names; they are no reason for
/// refusing.
fn sections(text: &str) -> BTreeMap<&str, Section<'_>> {
    let mut sections: BTreeMap<&str, Section<'_>> = BTreeMap::new();
    for line in text.lines() {
        let mut cells = line.splitn(3, ", ");
        if let (Some(section), Some(name), Some(value)) = (cells.next(), cells.next(), cells.next())
            && let Some(section) = section.strip_prefix('[').and_then(|s| s.strip_suffix(']'))
            && let Some(value) = number(value)
        {
            sections.entry(section).or_default().0.insert(name, value);
        }
    }
    // `measurementtype=hdrhistogram+histogram` (or `+raw`) measures each operation twice: `HdrREAD`
    // and `BucketREAD` (or `RawREAD`).
    if sections.keys().any(|name| name.starts_with("Hdr")) {
        let is_second = |name: &str| name.starts_with("Bucket") || name.starts_with("Raw");
        sections.retain(|name, _| !is_second(name));
        let named = sections
            .into_iter()
            .map(|(name, section)| (name.strip_prefix("Hdr").unwrap_or(name), section));
        return named.collect();
    }
    sections
}

fn set_mean_and_max(report: &mut Report<'_>, sections: &[&Section<'_>]) {
    let sum = |value: fn(&Section<'_>) -> Option<f64>| {
        let values = sections.iter().map(|section| value(section));
        values.sum::<Option<f64>>()
    };
    let count = sum(|section| section.operations()).filter(|count| *count > 0.0);
    let total = sum(|section| Some(section.operations()? * section.mean_us()?));
    let mean_us = total.zip(count).map(|(total, count)| total / count);
    report.set("latency_mean_us", mean_us);
    let max = sections.iter().filter_map(|section| section.max_us());
    report.set("latency_max_us", max.reduce(f64::max));
}

/// `99thPercentileLatency(us)`, `99.9PercentileLatency(us)`, before version 0.4
/// `99thPercentileLatency(ms)`; of `measurementtype=raw` `p99.9`.
fn set_percentiles(report: &mut Report<'_>, section: &Section<'_>) {
    // The older kind of histogram has whole milliseconds, and says so by its variance.
    if section.0.contains_key("LatencyVariance(us)") {
        report.set_resolution_us(1000.0);
    }
    for (name, value) in &section.0 {
        let percentile = |unit: &str| {
            let percent = name.strip_suffix(unit)?.strip_suffix("PercentileLatency")?;
            number(percent.trim_end_matches(char::is_alphabetic))
        };
        if let Some(percent) = percentile("(ms)") {
            report.set_resolution_us(1000.0);
            report.set_percentile(percent, Some(value * 1e3));
        } else if let Some(percent) = percentile("(us)").or_else(|| number(name.strip_prefix('p')?))
        {
            report.set_percentile(percent, Some(*value));
        }
    }
}
