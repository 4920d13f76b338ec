//! The report of pgbench, of PostgreSQL 9.6 to 17. Its progress lines (`-P`) and per-script results
//! are passed over.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, after, leading_number, number, time_us};

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("pgbench", text);
    report.only_one("number of transactions actually processed:")?;
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
    let count = |label| after(text, label).and_then(leading_number);
    // With --rate and --latency-limit, a transaction that is due and already too late is not sent:
    // it was not done either.
    let failed = count("number of failed transactions:");
    let skipped = count("number of transactions skipped:");
    if failed.is_some() || skipped.is_some() {
        let errors = failed.unwrap_or(0.0) + skipped.unwrap_or(0.0);
        report.set("errors", Some(errors));
    }
    set_late(&mut report, text);
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

/// "number of transactions above the 50.0 ms latency limit: 120/2000 (6.000%)", before version 11
/// "120 (6.000 %)".
fn set_late(report: &mut Report<'_>, text: &str) {
    let Some(rest) = after(text, "number of transactions above the") else {
        return;
    };
    let Some((limit, late)) = rest.split_once("latency limit:") else {
        return;
    };
    report.set("latency_limit_us", time_us(limit));
    let late = late.trim().split(['/', ' ']).next().and_then(number);
    report.set("late", late);
}
