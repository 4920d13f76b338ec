//! What the shards of one server share: the items, the clock and the settings.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use dataplane::shard::ShardStats;

use crate::counters::{CacheCounters, Totals};
use crate::store::{Expiry, Store, StoreStats};

/// The memcached whose protocol is served, and which clients take this server for.
pub const VERSION: &str = concat!("1.6.18-slackline-", env!("CARGO_PKG_VERSION"));

/// Partitions when several shards serve the same items: enough that two shards seldom meet.
const PARTITIONS: usize = 64;
/// Smallest memory of a partition: it has to hold pages of several classes.
const PARTITION_MIN_BYTES: usize = 16 << 20;
/// memcached takes an expiry time above 30 days for a date.
const RELATIVE_MAX_S: i64 = 60 * 60 * 24 * 30;
/// The store's clock begins here.
const CLOCK_START: u32 = 2;

/// What all shards of one server share.
pub struct SharedCache {
    partitions: Vec<Mutex<Store>>,
    hasher: ahash::RandomState,
    started: Instant,
    started_unix: i64,
    now: AtomicU32,
    /// One set of counters a shard.
    pub counters: Vec<CacheCounters>,
    /// Figures of the runtime.
    pub shards: Arc<Vec<ShardStats>>,
    /// The level of `verbosity`.
    pub verbosity: AtomicU64,
    /// Seconds after which an idle connection is closed; 0: never.
    pub idle_timeout_s: AtomicU32,
    /// The limit of connections, for `stats`.
    pub connections_max: usize,
    pub(crate) is_draining: AtomicBool,
}

impl SharedCache {
    /// Memory for items, and counters for each shard.
    pub fn new(memory_bytes: usize, shards: Arc<Vec<ShardStats>>, connections_max: usize) -> Self {
        let most = (memory_bytes / PARTITION_MIN_BYTES).max(1);
        let partitions = if shards.len() == 1 {
            1
        } else {
            PARTITIONS.min(most)
        };
        let hasher = ahash::RandomState::new();
        let started_unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0));
        Self {
            partitions: (0..partitions)
                .map(|_| Mutex::new(Store::new(memory_bytes / partitions, hasher.clone())))
                .collect(),
            hasher,
            started: Instant::now(),
            started_unix,
            now: AtomicU32::new(CLOCK_START),
            counters: shards.iter().map(|_| CacheCounters::default()).collect(),
            shards,
            verbosity: AtomicU64::new(0),
            idle_timeout_s: AtomicU32::new(0),
            connections_max,
            is_draining: AtomicBool::new(false),
        }
    }

    /// Number of partitions.
    pub fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// The partition of a key.
    pub(crate) fn partition(&self, key: &[u8]) -> usize {
        if self.partitions.len() == 1 {
            return 0;
        }
        let hash = self.hasher.hash_one(key) >> 32;
        usize::try_from(hash).unwrap_or(0) % self.partitions.len()
    }

    /// One partition's items, for this thread alone.
    pub(crate) fn lock(&self, partition: usize) -> MutexGuard<'_, Store> {
        self.partitions[partition]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Seconds of the clock of the items.
    pub(crate) fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// Seconds since the start.
    pub fn uptime_s(&self) -> u32 {
        self.now() - CLOCK_START
    }

    /// Sets the items' clock from the monotonic one.
    pub(crate) fn tick(&self) {
        let seconds = u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX / 2);
        let now = CLOCK_START + seconds;
        if self.now.swap(now, Ordering::Relaxed) != now {
            for partition in 0..self.partitions.len() {
                self.lock(partition).set_clock(now);
            }
        }
    }

    /// A client's expiry time: 0 is never, below 0 now, up to 30 days from now, else a date.
    pub(crate) fn expiry(&self, time: i64) -> Expiry {
        let relative = match time {
            0 => return Expiry::Never,
            ..0 => return Expiry::Now,
            1..=RELATIVE_MAX_S => i64::from(self.now()) + time,
            date => date - self.started_unix + i64::from(CLOCK_START),
        };
        match u32::try_from(relative) {
            Ok(second) if second > self.now() => Expiry::At(second),
            Ok(_) => Expiry::Now,
            Err(_) if relative < 0 => Expiry::Now,
            // Past the year 2100.
            Err(_) => Expiry::Never,
        }
    }

    /// Sums over shards.
    pub fn totals(&self) -> Totals {
        Totals::of(&self.counters)
    }

    /// Sums over partitions.
    pub fn store_stats(&self) -> (StoreStats, usize) {
        let mut sum = StoreStats::default();
        let mut memory_bytes = 0;
        for partition in 0..self.partitions.len() {
            let store = self.lock(partition);
            sum.add(&store.stats);
            memory_bytes += store.memory_bytes();
        }
        (sum, memory_bytes)
    }

    /// Connections now.
    pub fn connections(&self) -> u64 {
        self.shards
            .iter()
            .map(|shard| shard.flows.load(Ordering::Relaxed))
            .sum()
    }

    /// The answer to `version`. Clients read the number to learn which commands there are: it names
    /// the memcached whose protocol is served.
    pub(crate) fn version_line(&self) -> String {
        format!("VERSION {}\r\n", VERSION)
    }
}
