//! The result of HammerDB's TPROC-C: `Vuser 1:TEST RESULT : System achieved 23456 NOPM from 54321
//! MySQL TPM`.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, leading_number};

const LOOKED_FOR: &str = "line `System achieved … NOPM`";

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("HammerDB", text);
    let failed = text
        .lines()
        .find(|line| line.contains("FINISHED FAILED") || line.contains("Error in Virtual User"));
    if let Some(failed) = failed {
        return Err(report.gave_up(failed.trim()));
    }
    let results: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            line.split_once("System achieved ")
                .map(|(_, result)| result)
        })
        .collect();
    let [result] = results.as_slice() else {
        return Err(match results.len() {
            0 => report.missing(LOOKED_FOR),
            several => report.several(format!("{several} lines `System achieved`")),
        });
    };
    let (nopm, tpm) = per_minute(result);
    let nopm = nopm.ok_or_else(|| report.missing(LOOKED_FOR))?;
    report.set("requests_per_s", Some(nopm / 60.0));
    report.set("queries_per_s", tpm.map(|tpm| tpm / 60.0));
    let minutes = text
        .lines()
        .find_map(|line| leading_number(line.split_once("Timing test period of ")?.1));
    report.set("duration_s", minutes.map(|minutes| minutes * 60.0));
    report.set("requests", minutes.map(|minutes| minutes * nopm));
    report.finish(LOOKED_FOR)
}

/// New orders and transactions a minute. Since version 4 `23456 NOPM from 54321 MySQL TPM`, before
/// `54321 MySQL TPM at 23456 NOPM`.
fn per_minute(result: &str) -> (Option<f64>, Option<f64>) {
    let parts = result.split(" from ").flat_map(|part| part.split(" at "));
    let mut found = (None, None);
    for part in parts {
        if part.contains("NOPM") {
            found.0 = leading_number(part);
        } else if part.contains("TPM") {
            found.1 = leading_number(part);
        }
    }
    found
}
