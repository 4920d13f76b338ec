//! The reports of netperf 2.4 to 2.7: the classic tables of stream and request/response tests, and,
//! since 2.5, `-k` of the omni tests.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, number};

const LOOKED_FOR: &str =
    "table below `Throughput` or `Trans.`, nor `THROUGHPUT=` (netperf … -- -k all)";

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("netperf", text);
    // Each test begins with a line "TCP STREAM TEST from …" or "MIGRATED UDP REQUEST/RESPONSE TEST
    // from …".
    let tests = text
        .lines()
        .filter(|line| line.contains(" TEST from "))
        .count();
    if tests > 1 {
        return Err(report.several(format!("{tests} tests")));
    }
    if text.lines().any(|line| line.starts_with("THROUGHPUT=")) {
        key_values(&mut report, text);
    } else {
        table(&mut report, text);
    }
    report.finish(LOOKED_FOR)
}

/// `THROUGHPUT=59092.65`, `THROUGHPUT_UNITS=Trans/s`, `P99_LATENCY=31`: times are in microseconds.
fn key_values(report: &mut Report<'_>, text: &str) {
    let values: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.trim().split_once('='))
        .collect();
    let get = |key: &str| values.get(key).copied().and_then(number);
    let seconds = get("ELAPSED_TIME");
    report.set("duration_s", seconds);
    set_rate(
        report,
        get("THROUGHPUT"),
        values.get("THROUGHPUT_UNITS").copied().unwrap_or_default(),
        seconds,
    );
    // A stream of UDP: datagrams are requests, as in its table.
    let is_udp = values.get("PROTOCOL") == Some(&"UDP") && values.get("DIRECTION") == Some(&"Send");
    if let (true, Some(sent), Some(arrived), Some(seconds)) = (
        is_udp,
        get("LOCAL_SEND_CALLS"),
        get("REMOTE_RECV_CALLS"),
        seconds,
    ) {
        set_datagrams(report, sent, arrived, seconds);
    }
    for (key, metric) in [
        ("MEAN_LATENCY", "latency_mean_us"),
        ("STDDEV_LATENCY", "latency_sd_us"),
        ("P50_LATENCY", "latency_p50_us"),
        ("P90_LATENCY", "latency_p90_us"),
        ("P99_LATENCY", "latency_p99_us"),
        ("MAX_LATENCY", "latency_max_us"),
    ] {
        // −1 without the histogram; `set` leaves negative numbers out.
        report.set(metric, get(key));
    }
}

/// The last line of the heading has a unit for each column: `bytes  bytes  bytes  secs.
/// 10^6bits/sec`. Columns that options add (CPU use) come behind those read here.
fn table(report: &mut Report<'_>, text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    let Some(units_at) = lines.iter().position(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("bytes") && words.any(|word| word.starts_with("sec"))
    }) else {
        return;
    };
    let rows = lines[units_at + 1..].iter().map(|line| {
        let cells = line.split_whitespace().map(number);
        cells.collect::<Option<Vec<f64>>>().unwrap_or_default()
    });
    let mut rows = rows.filter(|row| !row.is_empty());
    let units: Vec<&str> = lines[units_at].split_whitespace().collect();
    match units.as_slice() {
        // Request/response; "per sec" is one column.
        ["bytes", _, "bytes", "bytes", seconds, "per", ..] if seconds.starts_with("sec") => {
            if let Some([_, _, _, _, seconds, per_s, ..]) = rows.next().as_deref() {
                report.set("duration_s", Some(*seconds));
                set_rate(report, Some(*per_s), "Trans/s", Some(*seconds));
            }
        }
        // UDP_STREAM: a row of what was sent, and one of what arrived.
        ["bytes", "bytes", seconds, "#", "#", unit, ..] if seconds.starts_with("sec") => {
            let sent = rows.next().unwrap_or_default();
            if let (Some([_, seconds, arrived, rate, ..]), Some(sent)) =
                (rows.next().as_deref(), sent.get(3))
            {
                report.set("duration_s", Some(*seconds));
                set_datagrams(report, *sent, *arrived, *seconds);
                set_rate(report, Some(*rate), unit, None);
            }
        }
        ["bytes", "bytes", "bytes", seconds, unit, ..] if seconds.starts_with("sec") => {
            if let Some([_, _, _, seconds, rate, ..]) = rows.next().as_deref() {
                report.set("duration_s", Some(*seconds));
                set_rate(report, Some(*rate), unit, None);
            }
        }
        _ => {}
    }
}

/// Datagrams that were sent and did not arrive are errors.
fn set_datagrams(report: &mut Report<'_>, sent: f64, arrived: f64, seconds: f64) {
    report.set("requests", Some(arrived));
    report.set("requests_per_s", Some(arrived / seconds));
    report.set("errors", Some((sent - arrived).max(0.0)));
}

/// Sets a rate in netperf's units: `Trans/s`, `10^6bits/s`, `MBytes/sec`, ….
fn set_rate(report: &mut Report<'_>, rate: Option<f64>, unit: &str, seconds: Option<f64>) {
    let Some(rate) = rate else {
        return;
    };
    let unit = unit.trim_end_matches("/sec").trim_end_matches("/s");
    let bytes = match unit {
        "Trans" => {
            report.set("requests_per_s", Some(rate));
            report.set("requests", seconds.map(|seconds| (rate * seconds).round()));
            return;
        }
        "10^0bits" => 0.125,
        "10^3bits" => 125.0,
        "10^6bits" => 125e3,
        "10^9bits" => 125e6,
        "Bytes" => 1.0,
        // netperf's `format_units`: powers of 1024.
        "KBytes" => 1024.0,
        "MBytes" => 1024.0 * 1024.0,
        "GBytes" => 1024.0 * 1024.0 * 1024.0,
        _ => return,
    };
    report.set("bytes_per_s", Some(rate * bytes));
}
