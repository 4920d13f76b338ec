//! What load generators print, as metrics with fixed names and units.
//!
//! [`parse`] reads the reports of well-known tools, [`parse_json`] and [`parse_regex`] any other. Whatever the tool, the
//! names are the same, each present where the tool gives it: `requests` (completed), `duration_s`,
//! `requests_per_s` (I/Os for fio, transactions for pgbench and sysbench), `queries_per_s`, `latency_mean_us`,
//! `latency_sd_us`, `latency_p50_us`, `latency_p75_us`, `latency_p90_us`, `latency_p95_us`, `latency_p99_us`,
//! `latency_p999_us`, `latency_max_us`, `errors` (failed, non-2xx, socket errors, timeouts) and `bytes_per_s`.
//!
//! A report that is cut short, or of a run that completed nothing, is an error and never a set of zeros: the harness
//! failed then, not the configuration.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod ab;
mod fio;
mod hey;
mod json;
mod memtier;
mod oha;
mod pattern;
mod pgbench;
mod redis_benchmark;
mod report;
mod sysbench;
mod wrk;

pub use json::{check_json_path, parse_json};
pub use pattern::{check_regex, parse_regex};

/// A load generator whose report can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// `wrk` and `wrk2`; percentiles only with `--latency`.
    Wrk,
    /// ApacheBench. Percentiles and deviation have a resolution of 1 ms, the mean has not. Responses of another length
    /// than the first count as errors: give `ab -l` for dynamic pages.
    Ab,
    /// `hey`, its plain summary.
    Hey,
    /// `oha`, its JSON (`--output-format json`, earlier `--json`) or plain summary (`--no-tui`).
    Oha,
    /// `fio --output-format=json`. Percentiles and deviation are given when one job and one direction did all I/O (see
    /// `group_reporting`); latency is completion latency, or total with `lat_percentiles=1`.
    Fio,
    /// `sysbench`, any test.
    Sysbench,
    /// `pgbench`; the deviation needs `-P`, `-R`, `-L` or `--report-per-command`.
    Pgbench,
    /// `redis-benchmark`: plain, `-q` or `--csv`. Several tests are added up, without percentiles.
    RedisBenchmark,
    /// `memtier_benchmark`, the "Totals" row.
    Memtier,
}

impl Format {
    /// The command that prints it.
    #[must_use]
    pub fn tool(self) -> &'static str {
        match self {
            Self::Wrk => "wrk",
            Self::Ab => "ab",
            Self::Hey => "hey",
            Self::Oha => "oha",
            Self::Fio => "fio",
            Self::Sysbench => "sysbench",
            Self::Pgbench => "pgbench",
            Self::RedisBenchmark => "redis-benchmark",
            Self::Memtier => "memtier_benchmark",
        }
    }
}

/// The output of a workload does not say what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The report lacks something every complete report has.
    #[error(
        "this is not a complete report of {tool}: no {looked_for} in it (was it stopped early, or is `parse` another tool's?); it begins:\n{got}"
    )]
    Missing {
        /// The tool whose report was expected.
        tool: &'static str,
        /// What was looked for, as the tool prints it.
        looked_for: &'static str,
        /// The first lines of what came instead.
        got: String,
    },
    /// The tool ran, but nothing was completed.
    #[error(
        "{tool} completed no request: does the target answer at the address the workload uses? Its output begins:\n{got}"
    )]
    NoRequests {
        /// The tool.
        tool: &'static str,
        /// The first lines of its report.
        got: String,
    },
    /// The tool says itself that its run failed.
    #[error("{tool} gave up: {message}")]
    GaveUp {
        /// The tool.
        tool: &'static str,
        /// Its own words.
        message: String,
    },
    /// JSON was expected.
    #[error("the output is not JSON ({message}); it begins:\n{got}")]
    NotJson {
        /// What the JSON reader says.
        message: String,
        /// The first lines of what came instead.
        got: String,
    },
    /// A JSON path is malformed or leads nowhere.
    #[error("metric `{metric}`: JSON path `{path}`: {message}")]
    JsonPath {
        /// The metric it was for.
        metric: String,
        /// The path.
        path: String,
        /// Where it ends, or what is wrong with it.
        message: String,
    },
    /// A pattern is malformed.
    #[error("metric `{metric}`: pattern `{pattern}`: {message}")]
    Pattern {
        /// The metric it was for.
        metric: String,
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        message: String,
    },
    /// A pattern matches nothing.
    #[error(
        "metric `{metric}`: pattern `{pattern}` matches nothing in the output, which begins:\n{got}"
    )]
    NoMatch {
        /// The metric it was for.
        metric: String,
        /// The pattern.
        pattern: String,
        /// The first lines of the output.
        got: String,
    },
    /// Something was found where a number should be.
    #[error("metric `{metric}`: `{found}` is not a finite number")]
    NotANumber {
        /// The metric it was for.
        metric: String,
        /// What was found.
        found: String,
    },
}

/// Reads the report of a known tool.
///
/// # Errors
/// [`ParseError::Missing`] for output that is not a complete report, [`ParseError::NoRequests`] if nothing was completed,
/// [`ParseError::GaveUp`] if the tool says that it failed.
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
        Format::Wrk => wrk::parse(text),
        Format::Ab => ab::parse(text),
        Format::Hey => hey::parse(text),
        Format::Oha => oha::parse(text),
        Format::Fio => fio::parse(text),
        Format::Sysbench => sysbench::parse(text),
        Format::Pgbench => pgbench::parse(text),
        Format::RedisBenchmark => redis_benchmark::parse(text),
        Format::Memtier => memtier::parse(text),
    }
}

#[cfg(test)]
mod tests;
