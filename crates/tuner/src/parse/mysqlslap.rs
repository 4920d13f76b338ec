//! The report of mysqlslap and mariadb-slap: plain, or `--csv`. Both are averages over
//! `--iterations`.
//!
//! The number of iterations is not printed, so `requests` and `duration_s` are not known.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, after, leading_number, number};

const LOOKED_FOR: &str =
    "line `Average number of seconds to run all queries:`, nor a line of --csv";

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("mysqlslap", text);
    if let Some(error) =
        after(text, "mysqlslap: Error").or_else(|| after(text, "mariadb-slap: Error"))
    {
        return Err(report.gave_up(error));
    }
    // One report for each engine and number of clients.
    report.only_one("Average number of seconds to run all queries:")?;
    let value = |label| after(text, label).and_then(leading_number);
    let plain = || {
        Some([
            value("Average number of seconds to run all queries:")?,
            value("Number of clients running queries:")?,
            value("Average number of queries per client:")?,
        ])
    };
    let rows: Vec<[f64; 3]> = text.lines().filter_map(csv_row).collect();
    let numbers = match (plain(), rows.as_slice()) {
        (Some(numbers), _) => numbers,
        (None, []) => return Err(report.missing(LOOKED_FOR)),
        (None, [row]) => *row,
        (None, rows) => return Err(report.several(format!("{} lines of --csv", rows.len()))),
    };
    let [seconds, clients, queries] = numbers;
    if seconds <= 0.0 {
        return Err(report.gave_up(
            "all queries took 0.000 seconds: give it more of them (--number-of-queries)",
        ));
    }
    report.set("requests_per_s", Some(clients * queries / seconds));
    report.finish(LOOKED_FOR)
}

/// `innodb,mixed,0.012,0.010,0.015,4,100`: engine, kind, average, minimum, maximum, clients,
/// queries of each.
fn csv_row(line: &str) -> Option<[f64; 3]> {
    let cells: Vec<&str> = line.trim().split(',').collect();
    let [_, _, average, minimum, maximum, clients, queries] = cells.as_slice() else {
        return None;
    };
    number(minimum).and(number(maximum))?;
    Some([number(average)?, number(clients)?, number(queries)?])
}
