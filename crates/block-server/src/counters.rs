//! What one shard counts of its connections. Only its thread writes.

use std::sync::atomic::AtomicU64;

/// Counters of one shard.
#[derive(Debug, Default)]
pub struct BlockCounters {
    /// Connections accepted.
    pub connections: AtomicU64,
    /// Connections that got an export.
    pub sessions: AtomicU64,
    /// Connections refused because the server was draining.
    pub rejected: AtomicU64,
    /// Connections closed because they sent bytes that are no request.
    pub malformed: AtomicU64,
    /// Connections ended because they held memory that others waited for, or never chose an export.
    pub stalled: AtomicU64,
    /// Requests under way now, from their header to the end of their answer.
    pub requests: AtomicU64,
}
