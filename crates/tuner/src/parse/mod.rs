//! What load generators print, as metrics with fixed names and units.
//!
//! [`parse`] reads the reports of well-known tools, [`parse_json`] and [`parse_regex`] any other.
//! Whatever the tool, the names are the same, each present where the tool gives it: `requests`
//! (completed), `duration_s`, `requests_per_s` (I/Os for fio, transactions for pgbench and
//! sysbench), `queries_per_s`, `latency_mean_us`, `latency_sd_us`, `latency_p50_us`,
//! `latency_p75_us`, `latency_p90_us`, `latency_p95_us`, `latency_p99_us`, `latency_p999_us`,
//! `latency_max_us`, `errors` (failed, non-2xx, socket errors, timeouts, due and not sent) and
//! `bytes_per_s`.
//!
//! One check holds for all tools (`consistency`): a report whose numbers contradict each other is
//! refused. A report that is cut short, or of a run that completed nothing, is an error and never a
//! set of zeros: the harness failed then, not the configuration.

use std::collections::BTreeMap;

mod ab;
mod consistency;
mod error;
mod fio;
mod ghz;
mod h2load;
mod hammerdb;
mod hey;
mod hyperfine;
mod iperf3;
mod jmh;
mod json;
mod k6;
mod memtier;
mod mysqlslap;
mod netperf;
mod oha;
mod pattern;
mod pgbench;
mod redis_benchmark;
mod report;
mod stress_ng;
mod sysbench;
mod vegeta;
mod wrk;
mod ycsb;

pub use error::ParseError;
pub use experiment_spec::{Format, check_json_path, check_regex};
pub use json::parse_json;
pub use pattern::parse_regex;

/// Reads the report of a known tool.
///
/// # Errors
/// [`ParseError::Missing`] for output that is not a complete report, [`ParseError::NoRequests`] if
/// nothing was completed, [`ParseError::GaveUp`] if the tool says that it failed,
/// [`ParseError::Several`] for more than one report, [`ParseError::Contradiction`] for one whose
/// numbers cannot all be true.
///
/// ```
/// let report = "  1000 requests in 2.00s, 1.00MB read\nRequests/sec:    500.00\nTransfer/sec:    512.00KB\n";
/// let metrics = tuner::parse::parse(&tuner::parse::Format::Wrk, report)?;
/// assert_eq!(metrics["requests_per_s"], 500.0);
/// assert_eq!(metrics["bytes_per_s"], 512.0 * 1024.0);
/// # Ok::<(), tuner::parse::ParseError>(())
/// ```
pub fn parse(format: &Format, text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    match format {
        Format::Wrk | Format::Wrk2 => wrk::parse(format.tool(), text),
        Format::Ab => ab::parse(text),
        Format::Hey => hey::parse(text),
        Format::Oha => oha::parse(text),
        Format::K6 => k6::parse(text),
        Format::Vegeta => vegeta::parse(text),
        Format::H2load => h2load::parse(text),
        Format::Ghz => ghz::parse(text),
        Format::Fio => fio::parse(text),
        Format::Sysbench => sysbench::parse(text),
        Format::Pgbench => pgbench::parse(text),
        Format::Mysqlslap => mysqlslap::parse(text),
        Format::Hammerdb => hammerdb::parse(text),
        Format::Ycsb => ycsb::parse(text),
        Format::RedisBenchmark => redis_benchmark::parse(text),
        Format::Memtier => memtier::parse(text),
        Format::Netperf => netperf::parse(text),
        Format::Iperf3 => iperf3::parse(text),
        Format::StressNg => stress_ng::parse(text),
        Format::Hyperfine => hyperfine::parse(text),
        Format::Jmh => jmh::parse(text),
    }
}

#[cfg(test)]
mod tests;
