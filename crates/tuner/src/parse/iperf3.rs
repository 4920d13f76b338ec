//! The JSON of iperf3 (`-J`). TCP gives bytes only; UDP gives datagrams as requests.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::ParseError;
use super::json::only_object;
use super::report::Report;

const LOOKED_FOR: &str = "JSON object with `end.sum_received` or `end.sum` (iperf3 -J)";

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("iperf3", text);
    let json = only_object(&report, text, &["end", "error"], LOOKED_FOR)?;
    if let Some(error) = json.get("error").and_then(Value::as_str) {
        return Err(report.gave_up(error));
    }
    let end = json.get("end").ok_or_else(|| report.missing(LOOKED_FOR))?;
    // UDP before version 3.10 has `sum` alone: what was sent, and how much of it was lost.
    let get = |sum: &str, key: &str| end.get(sum)?.get(key).and_then(Value::as_f64);
    // --bidir runs both ways at once, and has sums of its own for the way back.
    let back = |key: &str| get("sum_bidir_reverse", key).unwrap_or(0.0);
    let both = |key: &str| Some(get("sum", key)? + back(key));
    let lost = get("sum", "lost_packets");
    let packets = get("sum", "packets");
    let share = match (lost, packets) {
        (Some(lost), Some(packets)) if packets > 0.0 => 1.0 - lost / packets,
        _ => 1.0,
    };
    let received = get("sum_received", "bits_per_second").filter(|bits| *bits > 0.0);
    let bits_per_s = received
        .or_else(|| Some(get("sum", "bits_per_second")? * share))
        .ok_or_else(|| report.missing(LOOKED_FOR))?;
    let bits_back = get("sum_received_bidir_reverse", "bits_per_second").unwrap_or(0.0);
    report.set("bytes_per_s", Some((bits_per_s + bits_back) / 8.0));
    let seconds = get("sum_received", "seconds").or_else(|| get("sum", "seconds"));
    report.set("duration_s", seconds);
    if let (Some(packets), Some(lost), Some(seconds)) =
        (both("packets"), both("lost_packets"), seconds)
    {
        let arrived = packets - lost;
        report.set("requests", Some(arrived));
        report.set("requests_per_s", Some(arrived / seconds));
        report.set("errors", Some(lost));
    }
    report.finish(LOOKED_FOR)
}
