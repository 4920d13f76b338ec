//! The table of memtier_benchmark, whose columns depend on its version, options and protocol
//! (versions 1.2 to 2.3).

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, number};

/// How far the time of the progress may be from operations ÷ rate, as a share, beyond the whole
/// seconds that it is given in.
const PROGRESS_TOLERANCE: f64 = 0.05;

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("memtier_benchmark", text);
    let looked_for = "table with a `Totals` row";
    // Several runs (-x) print the best, the worst and the average.
    let table = text
        .split_once("AGGREGATED AVERAGE RESULTS")
        .map_or(text, |(_, table)| table);
    let mut header: Vec<&str> = Vec::new();
    let mut totals: Option<Vec<&str>> = None;
    let mut kib_per_s = 0.0;
    for line in table.lines() {
        // "Type     <= msec         Percent" is the heading of the histogram behind the table.
        if line.starts_with("Type ") && line.contains("Ops/sec") {
            header = columns(line);
            kib_per_s = 0.0;
        } else if line.starts_with("Totals ") && !header.is_empty() {
            // Tables before it are of other runs (-x without an average, or a second command).
            if totals.is_some() {
                return Err(report.several("two rows `Totals`".to_owned()));
            }
            totals = Some(line.split_whitespace().collect());
        } else if totals.is_none() && header.last() == Some(&"KB/sec") {
            // A row of one kind of command, such as `Sets`.
            let cells: Vec<&str> = line.split_whitespace().collect();
            if cells.len() == header.len() {
                kib_per_s += cells.last().copied().and_then(number).unwrap_or(0.0);
            }
        }
    }
    let totals = totals
        .filter(|row| row.len() == header.len())
        .ok_or_else(|| report.missing(looked_for))?;
    for (name, value) in header.iter().zip(totals) {
        let value = number(value);
        let us = value.map(|ms| ms * 1e3);
        match *name {
            "Ops/sec" => report.set("requests_per_s", value),
            // Divided by 1024 in memtier's run_stats.cpp. Versions 2.1 to 2.3 count the bytes of
            // `--command` twice in this row, so the other rows are added up.
            "KB/sec" => {
                let kib_per_s = Some(kib_per_s).filter(|kib| *kib > 0.0).or(value);
                report.set("bytes_per_s", kib_per_s.map(|kib| kib * 1024.0));
            }
            "Avg." | "Latency" => report.set("latency_mean_us", us),
            name => {
                if let Some(percent) = percentile(name) {
                    report.set_percentile(percent, us);
                }
            }
        }
    }
    // The progress is of one run, the table an average of several. The progress has whole seconds
    // (0 for a short run), so the rate tells how long the run took.
    if table.len() == text.len()
        && let Some((requests, seconds)) = progress(text)
    {
        let duration_s = report.get("requests_per_s").map(|rate| requests / rate);
        let is_off = duration_s.zip(seconds).is_some_and(|(exact, seconds)| {
            let slack = PROGRESS_TOLERANCE * exact + 1.5;
            (exact - seconds).abs() > slack
        });
        if is_off {
            return Err(report.contradicts(format!(
                "its progress tells of {requests} operations in {} seconds, and its table of {} a second",
                seconds.unwrap_or_default(),
                report.get("requests_per_s").unwrap_or_default(),
            )));
        }
        report.set("requests", Some(requests));
        report.set("duration_s", duration_s);
    }
    report.finish(looked_for)
}

/// A name for each column. "Avg. Latency" and "p99.999 Latency" are one name each, and may have a
/// single space in front: their second word is left out.
fn columns(heading: &str) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for word in heading.split_whitespace() {
        let is_begun = |last: &&str| *last == "Avg." || percentile(last).is_some();
        if word != "Latency" || !names.last().is_some_and(is_begun) {
            names.push(word);
        }
    }
    names
}

/// The 99.9 of `p99.9`.
fn percentile(name: &str) -> Option<f64> {
    number(name.strip_prefix('p')?)
}

/// Operations and seconds from the last progress line:
/// `[RUN #1 100%,  10 secs]  0 threads:   250000 ops, …`, earlier ones being overwritten with `\r`.
fn progress(text: &str) -> Option<(f64, Option<f64>)> {
    let line = text
        .split(['\n', '\r'])
        .rfind(|line| line.starts_with("[RUN #") && line.contains(" ops,"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let before = |word: &str| {
        let at = words.iter().position(|w| *w == word)?;
        number(words.get(at.checked_sub(1)?)?)
    };
    Some((before("ops,")?, before("secs]")))
}
