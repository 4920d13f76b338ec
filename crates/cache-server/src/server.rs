//! The application that each shard runs, and what the shards share: the items and the settings.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dataplane::shard::ShardStats;
use dataplane::{Application, Calls, Context, DeadReason, Event, FlowId};

use crate::answer::Answers;
use crate::connection::{Connection, Phase};
use crate::counters::{CacheCounters, Totals, count};
use crate::execute;
use crate::store::{Expiry, Store, StoreStats};

/// Partitions when several shards serve the same items: enough that two shards seldom meet.
const PARTITIONS: usize = 64;
/// Smallest memory of a partition: it has to hold pages of several classes.
const PARTITION_MIN_BYTES: usize = 16 << 20;
/// memcached takes an expiry time above 30 days for a date.
const RELATIVE_MAX_S: i64 = 60 * 60 * 24 * 30;
/// The store's clock begins here.
const CLOCK_START: u32 = 2;
/// How often a shard looks for idle connections and expired items.
const TICK: Duration = Duration::from_millis(100);
/// Chunks that the crawler looks at each tick, at about 20 ns each: 40 µs, a tenth of a usual
/// objective.
const CRAWL_CHUNKS: usize = 2_000;
const TICK_TOKEN: u64 = 1;

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
    is_draining: AtomicBool,
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
    fn tick(&self) {
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
        format!("VERSION {}\r\n", crate::metrics::VERSION)
    }
}

/// The cache on one shard.
pub struct Cache {
    shared: Arc<SharedCache>,
    shard: usize,
    connections: Vec<Option<Connection>>,
    is_ticking: bool,
}

impl Cache {
    /// The application of one shard.
    pub fn new(shared: Arc<SharedCache>, shard: usize) -> Self {
        Self {
            shared,
            shard,
            connections: Vec::new(),
            is_ticking: false,
        }
    }

    fn place(&mut self, connection: Connection) {
        let index = connection.flow.index as usize;
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
    }

    /// Runs what `data` and earlier bytes hold.
    fn receive<C: Calls>(&mut self, flow: FlowId, data: &[u8], calls: &mut C) {
        let shared = &*self.shared;
        let slot = self
            .connections
            .get_mut(flow.index as usize)
            .and_then(Option::as_mut);
        let Some(connection) = slot.filter(|connection| connection.flow == flow) else {
            return;
        };
        let counters = &shared.counters[self.shard];
        count(&counters.bytes_read, data.len() as u64);
        let mut answers = Answers {
            calls,
            flow,
            counters,
        };
        let done = if connection.carry.is_empty() {
            let done = execute::run(shared, connection, &mut answers, data);
            connection.carry.extend_from_slice(&data[done..]);
            done
        } else {
            let mut carry = std::mem::take(&mut connection.carry);
            carry.extend_from_slice(data);
            let done = execute::run(shared, connection, &mut answers, &carry);
            carry.drain(..done);
            connection.carry = carry;
            done
        };
        if connection.carry.is_empty() && connection.carry.capacity() > 0 {
            // An idle connection holds no memory.
            connection.carry = Vec::new();
        }
        calls.recv_done(flow, done);
        let is_draining = shared.is_draining.load(Ordering::Relaxed);
        let ends = connection.is_closing
            || (is_draining && connection.is_idle())
            || (connection.has_finished && !connection.is_blocked);
        if ends {
            calls.close(flow);
        }
    }

    fn look_around<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        context.set_timer(TICK_TOKEN, TICK);
        let shared = Arc::clone(&self.shared);
        shared.tick();
        if self.shard == 0 {
            for partition in 0..shared.partitions() {
                shared
                    .lock(partition)
                    .crawl((CRAWL_CHUNKS / shared.partitions()).max(1));
            }
        }
        let timeout = shared.idle_timeout_s.load(Ordering::Relaxed);
        if timeout == 0 {
            return;
        }
        let now = shared.now();
        for connection in self.connections.iter().flatten() {
            if now.saturating_sub(connection.active_at) > timeout {
                count(&shared.counters[self.shard].idle_kicks, 1);
                context.calls.close(connection.flow);
            }
        }
    }
}

impl Application for Cache {
    type FlowState = Connection;

    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>) {
        match event {
            Event::Recv { flow, data } => self.receive(flow, data, context.calls),
            Event::Sent { flow } => self.receive(flow, &[], context.calls),
            Event::Knock { flow, .. } => {
                let counters = &self.shared.counters[self.shard];
                if self.shared.is_draining.load(Ordering::Relaxed) {
                    count(&counters.rejected_connections, 1);
                    context.calls.reject(flow);
                    return;
                }
                count(&counters.total_connections, 1);
                context.calls.accept(flow);
                self.place(Connection::new(flow, self.shared.now()));
            }
            Event::PeerFinished { flow } => {
                let slot = self
                    .connections
                    .get_mut(flow.index as usize)
                    .and_then(Option::as_mut);
                if let Some(connection) = slot.filter(|connection| connection.flow == flow) {
                    connection.has_finished = true;
                    if !connection.is_blocked {
                        context.calls.close(flow);
                    }
                }
            }
            Event::Dead { flow, reason } => {
                let slot = self.connections.get_mut(flow.index as usize);
                let Some(slot) = slot else { return };
                if slot
                    .as_ref()
                    .is_none_or(|connection| connection.flow != flow)
                {
                    return;
                }
                if let Some(Connection {
                    phase:
                        Phase::Value {
                            partition,
                            reserved,
                            ..
                        },
                    ..
                }) = slot.take()
                {
                    self.shared.lock(partition).abandon(reserved);
                }
                debug_assert!(reason != DeadReason::Os(libc::EBADF), "closed twice");
            }
            Event::Timer { .. } => self.look_around(context),
            Event::Connected { .. } | Event::Filled { .. } | Event::File { .. } => {}
        }
    }

    fn on_batch_end<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        if !self.is_ticking {
            self.is_ticking = true;
            self.look_around(context);
        }
    }

    fn on_drain<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        self.shared.is_draining.store(true, Ordering::Relaxed);
        for connection in self.connections.iter().flatten() {
            if connection.is_idle() {
                context.calls.close(connection.flow);
            }
        }
    }

    fn detach(&mut self, flow: FlowId) -> Connection {
        let now = self.shared.now();
        self.connections
            .get_mut(flow.index as usize)
            .and_then(Option::take)
            .unwrap_or_else(|| Connection::new(flow, now))
    }

    fn attach<C: Calls>(
        &mut self,
        flow: FlowId,
        mut state: Connection,
        context: &mut Context<'_, C>,
    ) {
        state.flow = flow;
        // It may have been on its way when the shard was told to drain.
        let is_draining = self.shared.is_draining.load(Ordering::Relaxed);
        if (state.has_finished && !state.is_blocked) || (is_draining && state.is_idle()) {
            context.calls.close(flow);
        }
        self.place(state);
    }
}
