//! The items of a store, found by key.

use super::arena::{Arena, Chunk, Field, HEADER_BYTES};
use super::interface::Expiry;
use super::lru::{ACTIVE, FETCHED, Lru, Segment};
use super::stats::{ClassStats, StoreStats};

/// Memory for each bucket of the index: chains stay short for items of 100 bytes and more.
const BYTES_PER_BUCKET: usize = 256;
/// A meta command marked the item stale.
const STALE: u8 = 4;
/// Somebody was told to fetch the item anew.
const WIN_SENT: u8 = 8;

/// A found item. Valid until the store changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item(pub(super) Chunk);

/// Memory for an item whose value is being received. Must be committed or abandoned.
#[derive(Debug)]
#[must_use = "its memory is held until it is committed or abandoned"]
pub struct Reserved {
    pub(super) chunk: Chunk,
    pub(super) hash: u32,
}

/// One partition.
pub struct Store {
    pub(super) arena: Arena,
    pub(super) buckets: Vec<u32>,
    pub(super) lrus: Vec<Lru>,
    pub(super) evictions_of: Vec<u64>,
    pub(super) hasher: ahash::RandomState,
    pub(super) now: u32,
    pub(super) next_cas: u64,
    /// Items up to this CAS are gone (`flush_all`).
    pub(super) flushed_cas: u64,
    /// When a delayed `flush_all` comes.
    pub(super) flush_at: Option<u32>,
    pub(super) pending_bytes: usize,
    pub(super) crawler: (usize, usize),
    /// Counters of the store.
    pub stats: StoreStats,
}

impl Store {
    /// A store with so much memory for items; the index takes 1.6 % besides.
    pub fn new(memory_bytes: usize, hasher: ahash::RandomState) -> Self {
        let arena = Arena::new(memory_bytes);
        let buckets = (arena.memory_bytes() / BYTES_PER_BUCKET).next_power_of_two();
        let classes = arena.classes();
        Self {
            arena,
            buckets: vec![0; buckets],
            lrus: vec![Lru::default(); classes],
            evictions_of: vec![0; classes],
            hasher,
            now: 2,
            next_cas: 1,
            flushed_cas: 0,
            flush_at: None,
            pending_bytes: 0,
            crawler: (0, 0),
            stats: StoreStats::default(),
        }
    }

    /// Sets the clock: seconds, at least 2, never going back.
    pub fn set_clock(&mut self, now: u32) {
        self.now = now.max(self.now);
        if self.flush_at.is_some_and(|at| at <= self.now) {
            self.flush_at = None;
            self.flushed_cas = self.next_cas - 1;
        }
    }

    /// Seconds of the clock.
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Forgets all items: now, or at a second of the clock.
    pub fn flush(&mut self, at: Option<u32>) {
        match at {
            Some(at) if at > self.now => self.flush_at = Some(at),
            _ => {
                self.flush_at = None;
                self.flushed_cas = self.next_cas - 1;
            }
        }
    }

    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u32 {
        // The lower half: partitions are chosen by the upper one.
        u32::try_from(self.hasher.hash_one(key) & 0xffff_ffff).unwrap_or(0)
    }

    #[inline]
    pub(super) fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    #[inline]
    pub(super) fn is_dead(&self, chunk: Chunk) -> bool {
        let expiry = self.arena.get(chunk, Field::Expiry);
        (expiry != 0 && expiry <= self.now) || self.arena.cas(chunk) <= self.flushed_cas
    }

    #[inline]
    pub(super) fn lookup(&self, key: &[u8], hash: u32) -> Option<Chunk> {
        let mut next = Chunk::from_link(self.buckets[self.bucket(hash)]);
        while let Some(chunk) = next {
            if self.arena.get(chunk, Field::Hash) == hash && self.arena.key(chunk) == key {
                return Some(chunk);
            }
            next = Chunk::from_link(self.arena.get(chunk, Field::Next));
        }
        None
    }

    /// The live item of a key, without counting as an access.
    pub fn peek(&mut self, key: &[u8]) -> Option<Item> {
        let chunk = self.lookup(key, self.hash(key))?;
        if self.is_dead(chunk) {
            self.expire(chunk);
            return None;
        }
        Some(Item(chunk))
    }

    /// The live item of a key, as an access.
    pub fn get(&mut self, key: &[u8]) -> Option<Item> {
        let item = self.peek(key)?;
        self.mark_fetched(item);
        Some(item)
    }

    /// Counts an access to a found item.
    pub fn mark_fetched(&mut self, item: Item) {
        let bits = self.arena.bits(item.0);
        if bits & (ACTIVE | FETCHED) != ACTIVE | FETCHED {
            self.arena.set_bits(item.0, bits | ACTIVE | FETCHED);
        }
        if self.arena.get(item.0, Field::Access) != self.now {
            self.arena.set(item.0, Field::Access, self.now);
        }
    }

    /// The value, followed by a line end.
    pub fn value_and_line_end(&self, item: Item) -> &[u8] {
        self.arena.value(item.0)
    }

    /// The value.
    pub fn value(&self, item: Item) -> &[u8] {
        let value = self.arena.value(item.0);
        &value[..value.len() - 2]
    }

    /// The client's flags.
    pub fn flags(&self, item: Item) -> u32 {
        self.arena.get(item.0, Field::Flags)
    }

    /// The CAS.
    pub fn cas(&self, item: Item) -> u64 {
        self.arena.cas(item.0)
    }

    /// Seconds until the item expires; `None`: never.
    pub fn seconds_left(&self, item: Item) -> Option<u32> {
        match self.arena.get(item.0, Field::Expiry) {
            0 => None,
            expiry => Some(expiry.saturating_sub(self.now)),
        }
    }

    /// Seconds since the last access, and whether the item was ever asked for.
    pub fn last_access(&self, item: Item) -> (u32, bool) {
        let seconds = self
            .now
            .saturating_sub(self.arena.get(item.0, Field::Access));
        (seconds, self.arena.bits(item.0) & FETCHED != 0)
    }

    /// The class of the item's chunk.
    pub fn class(&self, item: Item) -> usize {
        self.arena.class_of(item.0)
    }

    /// Whether the item was marked stale, and whether somebody was told to fetch it anew.
    pub fn stale_and_won(&self, item: Item) -> (bool, bool) {
        let bits = self.arena.bits(item.0);
        (bits & STALE != 0, bits & WIN_SENT != 0)
    }

    /// Marks an item stale, with a new CAS.
    pub fn mark_stale(&mut self, item: Item) {
        let bits = self.arena.bits(item.0);
        self.arena.set_bits(item.0, (bits | STALE) & !WIN_SENT);
        let cas = self.take_cas();
        self.arena.set_cas(item.0, cas);
    }

    /// Notes that somebody was told to fetch the item anew.
    pub fn mark_won(&mut self, item: Item) {
        self.arena
            .set_bits(item.0, self.arena.bits(item.0) | WIN_SENT);
    }

    /// Changes when the item expires.
    pub fn touch(&mut self, item: Item, expiry: Expiry) {
        self.arena
            .set(item.0, Field::Expiry, expiry.encode(self.now));
    }

    /// Changes the CAS of an item to one that a client names.
    pub fn set_cas(&mut self, item: Item, cas: u64) {
        self.next_cas = self.next_cas.max(cas.saturating_add(1));
        self.arena.set_cas(item.0, cas);
    }

    #[inline]
    pub(super) fn take_cas(&mut self) -> u64 {
        let cas = self.next_cas;
        self.next_cas += 1;
        cas
    }

    /// Removes an item.
    pub fn delete(&mut self, item: Item) {
        self.remove(item.0);
    }

    /// Removes the value of an item, and keeps the item (`md … x`): empty, without flags.
    pub fn empty_value(&mut self, item: Item) {
        self.stats.bytes -= u64::from(self.arena.get(item.0, Field::ValueLen));
        self.arena.set(item.0, Field::ValueLen, 0);
        self.arena.set(item.0, Field::Flags, 0);
        self.arena.value_mut(item.0).copy_from_slice(b"\r\n");
    }

    /// Removes a dead item.
    pub(super) fn expire(&mut self, chunk: Chunk) {
        self.stats.expired += 1;
        if self.arena.bits(chunk) & FETCHED == 0 {
            self.stats.expired_unfetched += 1;
        }
        self.remove(chunk);
    }

    pub(super) fn remove(&mut self, chunk: Chunk) {
        let bucket = self.bucket(self.arena.get(chunk, Field::Hash));
        let after = self.arena.get(chunk, Field::Next);
        let mut next = Chunk::from_link(self.buckets[bucket]);
        if next == Some(chunk) {
            self.buckets[bucket] = after;
        } else {
            while let Some(other) = next {
                next = Chunk::from_link(self.arena.get(other, Field::Next));
                if next == Some(chunk) {
                    self.arena.set(other, Field::Next, after);
                    break;
                }
            }
        }
        self.stats.items -= 1;
        self.stats.bytes -= self.item_bytes(chunk);
        let class = self.arena.class_of(chunk);
        self.lrus[class].remove(&mut self.arena, chunk);
        self.arena.free(chunk);
    }

    #[inline]
    pub(super) fn item_bytes(&self, chunk: Chunk) -> u64 {
        (HEADER_BYTES + self.arena.key(chunk).len() + self.arena.value(chunk).len()) as u64
    }

    /// Figures of each class that has pages.
    pub fn classes(&self) -> impl Iterator<Item = (usize, ClassStats)> + '_ {
        (0..self.arena.classes())
            .filter(|&class| self.arena.pages_of(class) > 0)
            .map(|class| {
                let items = [Segment::Hot, Segment::Warm, Segment::Cold]
                    .map(|segment| self.lrus[class].items_of(segment));
                let stats = ClassStats {
                    chunk_bytes: self.arena.chunk_bytes(class),
                    pages: self.arena.pages_of(class),
                    items,
                };
                (class, stats)
            })
    }

    /// Bytes for items.
    pub fn memory_bytes(&self) -> usize {
        self.arena.memory_bytes()
    }
}
