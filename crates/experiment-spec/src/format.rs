//! Load generators whose reports can be read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A load generator whose report can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// `wrk`; percentiles only with `--latency`.
    Wrk,
    /// `wrk2`; percentiles only with `--latency`.
    Wrk2,
    /// ApacheBench. Percentiles and deviation have a resolution of 1 ms, the mean has not.
    /// Responses of another length than the first count as errors: give `ab -l` for dynamic pages.
    Ab,
    /// `hey`, its plain summary. hey keeps a million results: of longer runs only the rate, the
    /// mean and the bytes are given.
    Hey,
    /// `oha`, its JSON (`--output-format json`, earlier `--json`) or plain summary (`--no-tui`).
    Oha,
    /// `k6`, its summary as JSON (`k6 run --quiet --summary-export=/dev/stdout`, or what
    /// `handleSummary` gets). With `--no-summary`, k6 prints nothing. Dropped iterations count as
    /// errors. If requests failed, the latencies are those of the others. For p99, add
    /// `--summary-trend-stats=avg,med,max,p(90),p(95),p(99)`.
    K6,
    /// `vegeta report`, JSON (`-type=json`) or text.
    Vegeta,
    /// `h2load`. Percentiles since nghttp2 1.69.
    H2load,
    /// `ghz`, its JSON (`-O json`) or plain summary.
    Ghz,
    /// `fio --output-format=json`. Percentiles and deviation are given when one job and one
    /// direction did all I/O (see `group_reporting`); latency is completion latency, or total with
    /// `lat_percentiles=1`. Groups that run one after the other (`stonewall`) are taken together.
    Fio,
    /// `sysbench`, any test. With `--report-checkpoints` all parts are taken together, without
    /// percentiles.
    Sysbench,
    /// `pgbench`; the deviation needs `-P`, `-R`, `-L` or `--report-per-command`. Skipped
    /// transactions (`-R` with `-L`) count as errors. There are no percentiles; `late` counts
    /// transactions above `latency_limit_us` (`-L`).
    Pgbench,
    /// `mysqlslap` or `mariadb-slap`, plain or `--csv`: the rate alone.
    Mysqlslap,
    /// HammerDB's TPROC-C: `requests_per_s` are new orders, `queries_per_s` are transactions of the
    /// database.
    Hammerdb,
    /// YCSB. Return codes other than OK count as errors. Latencies are those of the operations that
    /// succeeded. Percentiles are given if there is one kind of operation.
    Ycsb,
    /// `redis-benchmark`: plain, `-q` or `--csv`. Several tests are added up, without percentiles.
    RedisBenchmark,
    /// `memtier_benchmark`, the "Totals" row.
    Memtier,
    /// `netperf`: the tables of stream and request/response tests, or `-- -k all`.
    Netperf,
    /// `iperf3 -J`. TCP gives bytes, UDP datagrams as requests.
    Iperf3,
    /// `stress-ng --metrics-brief` (to standard output: `--stdout`), or its `--yaml` file, of one
    /// stressor: bogo operations.
    StressNg,
    /// `hyperfine --export-json /dev/stdout --style none` of one command: a request is a run.
    Hyperfine,
    /// JMH's JSON (`-rf json`) of one benchmark. Percentiles in sample mode.
    Jmh,
}

impl Format {
    /// All of them, in the order in which a person looks for one.
    pub const ALL: [Self; 22] = [
        Self::Wrk,
        Self::Wrk2,
        Self::Ab,
        Self::Hey,
        Self::Oha,
        Self::K6,
        Self::Vegeta,
        Self::H2load,
        Self::Ghz,
        Self::Fio,
        Self::Sysbench,
        Self::Pgbench,
        Self::Mysqlslap,
        Self::Hammerdb,
        Self::Ycsb,
        Self::RedisBenchmark,
        Self::Memtier,
        Self::Netperf,
        Self::Iperf3,
        Self::StressNg,
        Self::Hyperfine,
        Self::Jmh,
    ];

    /// The command that prints it.
    #[must_use]
    pub fn tool(self) -> &'static str {
        match self {
            Self::Wrk => "wrk",
            Self::Wrk2 => "wrk2",
            Self::Ab => "ab",
            Self::Hey => "hey",
            Self::Oha => "oha",
            Self::K6 => "k6",
            Self::Vegeta => "vegeta",
            Self::H2load => "h2load",
            Self::Ghz => "ghz",
            Self::Fio => "fio",
            Self::Sysbench => "sysbench",
            Self::Pgbench => "pgbench",
            Self::Mysqlslap => "mysqlslap",
            Self::Hammerdb => "hammerdb",
            Self::Ycsb => "ycsb",
            Self::RedisBenchmark => "redis-benchmark",
            Self::Memtier => "memtier_benchmark",
            Self::Netperf => "netperf",
            Self::Iperf3 => "iperf3",
            Self::StressNg => "stress-ng",
            Self::Hyperfine => "hyperfine",
            Self::Jmh => "jmh",
        }
    }

    /// Its name in a specification and on the command line: `redis-benchmark`, `memtier`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memtier => "memtier",
            format => format.tool(),
        }
    }

    /// How a 99th percentile of latency at a given rate is had from the tool; `None` if the tool
    /// cannot hold a rate, or does not measure the latency of requests.
    #[must_use]
    pub fn p99_advice(self) -> Option<&'static str> {
        match self {
            Self::Sysbench => Some("sysbench prints it with --percentile=99"),
            Self::Pgbench => Some(
                "pgbench prints no percentiles: give it -L with the objective in milliseconds, and its count of late transactions decides",
            ),
            Self::Wrk2 => Some("wrk2 prints it with --latency"),
            Self::K6 => {
                Some("k6 has it with --summary-trend-stats='avg,med,max,p(90),p(95),p(99)'")
            }
            Self::H2load => Some("h2load prints it since nghttp2 1.69"),
            Self::Fio => {
                Some("fio has it if one job and one direction do all I/O (group_reporting)")
            }
            Self::Ycsb => Some("YCSB has it if there is one kind of operation"),
            Self::Hey | Self::Ghz => {
                Some("it keeps the results of a million requests: make the run shorter")
            }
            Self::Oha | Self::Vegeta | Self::Memtier => Some("its report has it"),
            _ => None,
        }
    }
}
