//! What a better objective must not be paid with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A metric that every verification compares with the control.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Guard {
    /// Requests or queries in a second.
    Throughput,
    /// The 99th percentile of latency.
    LatencyP99,
    /// Errors per request.
    Errors,
    /// Memory of the service's processes.
    Memory,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Throughput,
        Self::LatencyP99,
        Self::Errors,
        Self::Memory,
    ];

    /// Metrics that tell of it, the first one that there is counting.
    #[must_use]
    pub fn metrics(self) -> &'static [&'static str] {
        match self {
            Self::Throughput => &["requests_per_s", "queries_per_s"],
            Self::LatencyP99 => &["latency_p99_us"],
            Self::Errors => &["errors_per_request", "errors"],
            Self::Memory => &["memory_bytes"],
        }
    }

    /// Its name in sentences.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::LatencyP99 => "p99 latency",
            Self::Errors => "errors",
            Self::Memory => "memory",
        }
    }
}
