//! What a tenant asks for, and how it fares.

use serde::{Deserialize, Serialize};

use crate::Costs;
use crate::cost::Operation;
use crate::rounded;

/// The longest 95th percentile of an objective, in microseconds: a minute.
pub const P95_US_MAX: u32 = 60_000_000;
/// The most requests of 4 KiB a second of an objective: 400 GB a second.
pub const IOPS_MAX: u32 = 100_000_000;

/// The objective of a latency-critical tenant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// 95th percentile of the latency of its reads, in microseconds, from
    /// [`crate::Scheduler::enqueue`] to completion; of its writes if it has no reads. From 1 to
    /// [`P95_US_MAX`].
    pub p95_us: u32,
    /// Requests of 4 KiB a second up to which the objective holds, from 1 to [`IOPS_MAX`].
    pub iops: u32,
    /// Share of reads among them, 0 to 1.
    pub read_share: f64,
}

impl Objective {
    /// Tokens a second that the objective reserves: IOPS × (r × read cost + (1 − r) × write cost),
    /// rounded up.
    pub fn tokens_per_s(&self, costs: Costs) -> u64 {
        let read = f64::from(costs.of_block(Operation::Read));
        let write = f64::from(costs.of_block(Operation::Write));
        let each = self.read_share * read + (1.0 - self.read_share) * write;
        rounded((f64::from(self.iops) * each).ceil())
    }

    /// Whether some requests of the tenant are writes.
    pub fn writes(&self) -> bool {
        self.read_share < 1.0
    }
}

/// A tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TenantSpec {
    /// `None`: best effort.
    pub objective: Option<Objective>,
    /// The caller refuses every write of the tenant. Only then does a best-effort tenant leave the
    /// device in its faster read-only mode.
    pub read_only: bool,
}

impl TenantSpec {
    /// A tenant that may read and write, without an objective.
    pub fn best_effort() -> Self {
        Self {
            objective: None,
            read_only: false,
        }
    }

    /// A tenant with an objective. The tenant may write if the objective counts writes.
    pub fn latency_critical(objective: Objective) -> Self {
        Self {
            objective: Some(objective),
            read_only: !objective.writes(),
        }
    }

    /// The requests whose 95th percentile counts: reads, as in ReFlex. Writes count where the
    /// objective is about writes only.
    pub fn percentile_of(&self) -> Operation {
        match self.objective {
            Some(objective) if objective.read_share == 0.0 => Operation::Write,
            _ => Operation::Read,
        }
    }

    /// Whether the tenant takes the device out of its read-only mode.
    pub(crate) fn is_writer(&self) -> bool {
        match self.objective {
            Some(objective) => objective.writes() || !self.read_only,
            None => !self.read_only,
        }
    }
}

/// A tenant of one scheduler. No other tenant of the scheduler ever has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId {
    index: u32,
    generation: u32,
}

impl TenantId {
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    /// A small number that tells apart the tenants that are there at one time.
    pub fn index(self) -> u32 {
        self.index
    }
}

/// How a tenant fares. Counters run since the tenant was added.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantFigures {
    /// The objective; `None`: best effort.
    pub objective: Option<Objective>,
    /// 95th percentile of the latency in the last full window, in microseconds, of the requests of
    /// [`TenantSpec::percentile_of`]. `None` before the first window is full, and after 5 s without
    /// such a request.
    pub p95_us: Option<f64>,
    /// Requests that wait.
    pub queued: u32,
    /// Tokens that those cost.
    pub queued_tokens: u64,
    /// Tokens in hand; negative: the tenant is in deficit.
    pub credit_tokens: i64,
    /// Reads that were completed.
    pub reads: u64,
    /// Writes that were completed.
    pub writes: u64,
    /// Other requests that were completed, such as flushes.
    pub others: u64,
    /// Tokens of all requests that were submitted.
    pub spent_tokens: u64,
    /// Reserved tokens that the tenant left to best-effort tenants.
    pub given_tokens: u64,
    /// Tokens beyond its own share that the tenant got from others.
    pub received_tokens: u64,
    /// Requests that were refused because the queue was full.
    pub refused: u64,
    /// Whether the tenant asks for more than it reserved, so that its requests wait.
    pub in_deficit: bool,
    /// Times that the tenant ran into its deficit limit.
    pub deficits: u64,
}

impl TenantFigures {
    /// Tokens of all requests that have arrived: of those that were submitted, and of those that
    /// wait.
    pub fn asked_tokens(&self) -> u64 {
        self.spent_tokens + self.queued_tokens
    }
}
