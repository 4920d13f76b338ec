//! The report of pgbench, of PostgreSQL 9.6 to 17. Its progress lines (`-P`) and per-script results are passed over.

use std::collections::BTreeMap;

use super::ParseError;
use super::report::{Report, after, leading_number, number, time_us};

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("pgbench", text);
    if text.contains("Run was aborted") {
        let message = after(text, "pgbench: error:").unwrap_or("Run was aborted");
        return Err(ParseError::GaveUp {
            tool: "pgbench",
            message: message.to_owned(),
        });
    }
    // "100/100" when -t gave the number of transactions
    let processed = after(text, "number of transactions actually processed:")
        .and_then(|count| number(count.split('/').next()?))
        .ok_or_else(|| report.missing("line `number of transactions actually processed:`"))?;
    if processed <= 0.0 {
        return Err(report.no_requests());
    }
    report.set("requests", Some(processed));
    // Version 14 has one line; earlier ones two, and what excludes connecting is comparable.
    let rates: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("tps = "))
        .collect();
    let rate = rates
        .iter()
        .find(|rate| rate.contains("excluding") || rate.contains("without"))
        .or(rates.first())
        .and_then(|rate| leading_number(rate));
    report.set("requests_per_s", rate);
    report.set("duration_s", rate.map(|rate| processed / rate));
    let failed = after(text, "number of failed transactions:").and_then(leading_number);
    report.set("errors", failed);
    report.set(
        "latency_mean_us",
        after(text, "latency average =").and_then(time_us),
    );
    report.set(
        "latency_sd_us",
        after(text, "latency stddev =").and_then(time_us),
    );
    report.finish("line `tps =`")
}
