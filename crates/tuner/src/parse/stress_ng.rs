//! The metrics of stress-ng (`--metrics` or `--metrics-brief`, and its `--yaml` file). A request is
//! a bogo operation.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, number};

const LOOKED_FOR: &str = "row of `bogo ops` (stress-ng --metrics-brief prints to standard error: add --stdout, or 2>&1 in a shell)";

/// What one stressor did.
struct Row<'a> {
    stressor: &'a str,
    operations: f64,
    real_s: f64,
}

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("stress-ng", text);
    let rows = match text.contains("bogo-ops:") {
        true => yaml(text),
        false => table(text),
    };
    let row = match rows.as_slice() {
        [] => return Err(report.missing(LOOKED_FOR)),
        [row] => row,
        rows => {
            // Operations of different kinds do not add up to anything.
            let names: Vec<&str> = rows.iter().map(|row| row.stressor).collect();
            return Err(report.several(format!("rows of {}", names.join(", "))));
        }
    };
    report.set("requests", Some(row.operations));
    report.set("duration_s", Some(row.real_s));
    report.set("requests_per_s", Some(row.operations / row.real_s));
    let failed = text
        .lines()
        .find(|line| line.contains("unsuccessful run completed"));
    if let Some(failed) = failed {
        return Err(report.gave_up(failed.trim()));
    }
    report.finish(LOOKED_FOR)
}

/// `stress-ng: metrc: [20082] cpu   2037   2.00   1.65 …` below the heading `stressor  bogo ops
/// real time …`. The prefix is
/// `info:` before version 0.14, and has a time in front with --timestamp.
fn table(text: &str) -> Vec<Row<'_>> {
    let bodies = text.lines().filter_map(|line| line.split_once("] "));
    let mut in_table = false;
    let mut rows = Vec::new();
    for (_, body) in bodies {
        let cells: Vec<&str> = body.split_whitespace().collect();
        match cells.as_slice() {
            ["stressor", "bogo", "ops", "real", "time", ..] => in_table = true,
            ["(secs)", ..] => {}
            [stressor, operations, real_s, _, _, _, _, ..] if in_table => {
                match (number(operations), number(real_s)) {
                    (Some(operations), Some(real_s)) => rows.push(Row {
                        stressor,
                        operations,
                        real_s,
                    }),
                    _ => in_table = false,
                }
            }
            _ => in_table = false,
        }
    }
    rows
}

fn yaml(text: &str) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.trim().trim_start_matches("- ").split_once(": ") else {
            continue;
        };
        match (key, rows.last_mut()) {
            ("stressor", _) => rows.push(Row {
                stressor: value,
                operations: 0.0,
                real_s: 0.0,
            }),
            ("bogo-ops", Some(row)) => row.operations = number(value).unwrap_or(0.0),
            ("wall-clock-time", Some(row)) => row.real_s = number(value).unwrap_or(0.0),
            _ => {}
        }
    }
    rows
}
