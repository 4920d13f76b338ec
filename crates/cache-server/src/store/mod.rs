//! One partition of the cache: a bounded memory of items, found by key, evicted by segmented LRU.
//!
//! The store reads no clock: [`Store::set_clock`] says how many seconds have passed.

mod arena;
mod lru;

use self::arena::{Arena, Chunk, Field, HEADER_BYTES};
use self::lru::{ACTIVE, FETCHED, Lru, Segment};

/// memcached's longest key.
pub const KEY_MAX_BYTES: usize = 250;
/// The largest value: memcached's default of 1 MiB.
pub const VALUE_MAX_BYTES: usize = 1 << 20;
/// Share of the memory that items being received may hold: a slow sender must not empty the cache.
const PENDING_PERCENT: usize = 25;
/// Values up to this size are received whole before memory is reserved: they have no share.
const PENDING_FREE_BYTES: usize = crate::connection::WHOLE_MAX_BYTES;
/// Memory for each bucket of the index: chains stay short for items of 100 bytes and more.
const BYTES_PER_BUCKET: usize = 256;
/// Evictions of a class between two looks at whether another class holds older items.
const BALANCE_EVICTIONS: u64 = 1024;
/// A meta command marked the item stale.
const STALE: u8 = 4;
/// Somebody was told to fetch the item anew.
const WIN_SENT: u8 = 8;

/// When an item expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    Never,
    /// At this second of the store's clock.
    At(u32),
    /// At once.
    Now,
}

impl Expiry {
    fn encode(self, now: u32) -> u32 {
        match self {
            Self::Never => 0,
            Self::At(second) => second.max(1),
            // The clock begins at 2, so that this lies in the past.
            Self::Now => now.min(1),
        }
    }
}

/// Why an item cannot be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreError {
    /// Larger than the largest chunk.
    TooLarge,
    /// All memory is held by items that are being received.
    OutOfMemory,
}

/// How [`Store::commit`] treats an item of the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Replaces it or stores a new one.
    Set,
    /// Only if there is none.
    Add,
    /// Only if there is one.
    Replace,
    /// Puts the value behind the present one.
    Append,
    /// Puts the value before the present one.
    Prepend,
}

/// What became of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// Done; the item's new CAS.
    Yes(u64),
    /// The mode's condition did not hold.
    NotStored,
    /// The item changed since its CAS was read.
    Exists,
    /// There is no item whose CAS could be compared.
    NotFound,
    /// No memory for the joined value.
    Failed(StoreError),
}

/// What became of `incr` or `decr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// The new number.
    Number(u64),
    /// The value is not a decimal number of 64 bits.
    NotANumber,
    /// No such item.
    NotFound,
    /// The item changed since its CAS was read.
    Exists,
    /// No memory for a longer number.
    Failed(StoreError),
}

/// A found item. Valid until the store changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item(Chunk);

/// Memory for an item whose value is being received. Must be committed or abandoned.
#[derive(Debug)]
#[must_use = "its memory is held until it is committed or abandoned"]
pub struct Reserved {
    chunk: Chunk,
    hash: u32,
}

/// Counters of a store.
#[derive(Debug, Default, Clone, Copy)]
pub struct StoreStats {
    /// Items now.
    pub items: u64,
    /// Bytes of headers, keys and values now.
    pub bytes: u64,
    /// Items ever stored.
    pub total_items: u64,
    /// Items evicted that had not expired.
    pub evictions: u64,
    /// Of these, items that nobody ever asked for.
    pub evicted_unfetched: u64,
    /// Items removed because they had expired.
    pub expired: u64,
    /// Of these, items that nobody ever asked for.
    pub expired_unfetched: u64,
    /// Pages that went from one class to another.
    pub pages_moved: u64,
}

impl StoreStats {
    /// Adds the counters of another partition.
    pub fn add(&mut self, other: &Self) {
        self.items += other.items;
        self.bytes += other.bytes;
        self.total_items += other.total_items;
        self.evictions += other.evictions;
        self.evicted_unfetched += other.evicted_unfetched;
        self.expired += other.expired;
        self.expired_unfetched += other.expired_unfetched;
        self.pages_moved += other.pages_moved;
    }
}

/// Figures of one class of chunks.
#[derive(Debug, Default, Clone, Copy)]
pub struct ClassStats {
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// Pages.
    pub pages: usize,
    /// Items in hot, warm and cold.
    pub items: [usize; 3],
}

/// One partition.
pub struct Store {
    arena: Arena,
    buckets: Vec<u32>,
    lrus: Vec<Lru>,
    evictions_of: Vec<u64>,
    hasher: ahash::RandomState,
    now: u32,
    next_cas: u64,
    /// Items up to this CAS are gone (`flush_all`).
    flushed_cas: u64,
    /// When a delayed `flush_all` comes.
    flush_at: Option<u32>,
    pending_bytes: usize,
    crawler: (usize, usize),
    /// Counters.
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

    fn hash(&self, key: &[u8]) -> u32 {
        // The lower half: partitions are chosen by the upper one.
        u32::try_from(self.hasher.hash_one(key) & 0xffff_ffff).unwrap_or(0)
    }

    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    fn is_dead(&self, chunk: Chunk) -> bool {
        let expiry = self.arena.get(chunk, Field::Expiry);
        (expiry != 0 && expiry <= self.now) || self.arena.cas(chunk) <= self.flushed_cas
    }

    fn lookup(&self, key: &[u8], hash: u32) -> Option<Chunk> {
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

    fn take_cas(&mut self) -> u64 {
        let cas = self.next_cas;
        self.next_cas += 1;
        cas
    }

    /// Reserves memory for an item, which nobody finds before it is committed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn reserve(
        &mut self,
        key: &[u8],
        flags: u32,
        expiry: Expiry,
        len_bytes: usize,
    ) -> Result<Reserved, StoreError> {
        let needed = HEADER_BYTES + key.len() + len_bytes + 2;
        let class = self.arena.class_for(needed).ok_or(StoreError::TooLarge)?;
        let chunk_bytes = self.arena.chunk_bytes(class);
        let pending_max = self.arena.memory_bytes() / 100 * PENDING_PERCENT;
        if len_bytes > VALUE_MAX_BYTES {
            return Err(StoreError::TooLarge);
        }
        let is_long = len_bytes > PENDING_FREE_BYTES;
        if is_long && self.pending_bytes + chunk_bytes > pending_max.max(chunk_bytes) {
            return Err(StoreError::OutOfMemory);
        }
        let chunk = self.allocate(class).ok_or(StoreError::OutOfMemory)?;
        self.pending_bytes += chunk_bytes;
        self.arena.set_pending(chunk, true);
        let hash = self.hash(key);
        self.arena.set_segment(chunk, 0);
        self.arena.set_bits(chunk, 0);
        self.arena.set(chunk, Field::Hash, hash);
        self.arena
            .set(chunk, Field::Expiry, expiry.encode(self.now));
        self.arena.set(chunk, Field::Access, self.now);
        self.arena.set(chunk, Field::Flags, flags);
        self.arena.set(
            chunk,
            Field::ValueLen,
            u32::try_from(len_bytes).unwrap_or(0),
        );
        self.arena.set_key(chunk, key);
        Ok(Reserved { chunk, hash })
    }

    /// The memory for the value and the line end behind it.
    pub fn reserved_mut(&mut self, reserved: &Reserved) -> &mut [u8] {
        self.arena.value_mut(reserved.chunk)
    }

    fn settle(&mut self, reserved: &Reserved) {
        let class = self.arena.class_of(reserved.chunk);
        self.pending_bytes -= self.arena.chunk_bytes(class);
        self.arena.set_pending(reserved.chunk, false);
    }

    /// Gives reserved memory back.
    pub fn abandon(&mut self, reserved: Reserved) {
        self.settle(&reserved);
        self.arena.free(reserved.chunk);
    }

    /// Makes a filled item the key's item, if `mode` and `compare` allow. `explicit` is the CAS
    /// that the item gets.
    pub fn commit(
        &mut self,
        reserved: Reserved,
        mode: Mode,
        compare: Option<u64>,
        explicit: Option<u64>,
    ) -> Stored {
        let key_len = self.arena.key(reserved.chunk).len();
        let mut key = [0; KEY_MAX_BYTES];
        key[..key_len].copy_from_slice(self.arena.key(reserved.chunk));
        let key = &key[..key_len];
        let present = self.lookup(key, reserved.hash).and_then(|chunk| {
            if self.is_dead(chunk) {
                self.expire(chunk);
                return None;
            }
            Some(chunk)
        });
        let refusal = match (compare, present, mode) {
            (Some(_), None, Mode::Set | Mode::Replace) => Some(Stored::NotFound),
            (Some(cas), Some(chunk), _) if self.arena.cas(chunk) != cas => Some(Stored::Exists),
            (_, Some(chunk), Mode::Add) => {
                // Adding what is there makes it recent, as memcached does.
                self.arena.set_bits(chunk, self.arena.bits(chunk) | ACTIVE);
                Some(Stored::NotStored)
            }
            (_, None, Mode::Replace | Mode::Append | Mode::Prepend) => Some(Stored::NotStored),
            _ => None,
        };
        if let Some(refusal) = refusal {
            self.abandon(reserved);
            return refusal;
        }
        let reserved = match (mode, present) {
            (Mode::Append | Mode::Prepend, Some(old)) => {
                match self.join(key, old, reserved, mode == Mode::Append) {
                    Ok(joined) => joined,
                    Err(error) => return Stored::Failed(error),
                }
            }
            _ => reserved,
        };
        // The present item may have been evicted for the joined one.
        if let Some(old) = self.lookup(key, reserved.hash) {
            self.remove(old);
        }
        self.settle(&reserved);
        Stored::Yes(self.link(reserved, explicit))
    }

    fn link(&mut self, reserved: Reserved, explicit: Option<u64>) -> u64 {
        let chunk = reserved.chunk;
        let cas = explicit.unwrap_or_else(|| self.take_cas());
        self.next_cas = self.next_cas.max(cas.saturating_add(1));
        self.arena.set_cas(chunk, cas);
        let bucket = self.bucket(reserved.hash);
        self.arena.set(chunk, Field::Next, self.buckets[bucket]);
        self.buckets[bucket] = Chunk::link(Some(chunk));
        let class = self.arena.class_of(chunk);
        self.lrus[class].add(&mut self.arena, chunk);
        self.stats.items += 1;
        self.stats.total_items += 1;
        self.stats.bytes += self.item_bytes(chunk);
        cas
    }

    fn item_bytes(&self, chunk: Chunk) -> u64 {
        (HEADER_BYTES + self.arena.key(chunk).len() + self.arena.value(chunk).len()) as u64
    }

    /// The value of `old` and of `added` in one new item, with the flags and expiry of `old`.
    fn join(
        &mut self,
        key: &[u8],
        old: Chunk,
        added: Reserved,
        is_append: bool,
    ) -> Result<Reserved, StoreError> {
        let old_len = self.arena.get(old, Field::ValueLen) as usize;
        let added_len = self.arena.get(added.chunk, Field::ValueLen) as usize;
        let flags = self.arena.get(old, Field::Flags);
        let expiry = self.arena.get(old, Field::Expiry);
        // Not to be evicted while the new memory is found.
        self.arena.set_pending(old, true);
        let class = self.arena.class_of(old);
        let bits = self.arena.bits(old);
        self.lrus[class].remove(&mut self.arena, old);
        let joined = self.reserve(key, flags, Expiry::Never, old_len + added_len);
        self.lrus[class].add(&mut self.arena, old);
        self.arena.set_bits(old, bits);
        self.arena.set_pending(old, false);
        let joined = match joined {
            Ok(joined) => joined,
            Err(error) => {
                self.abandon(added);
                return Err(error);
            }
        };
        self.arena.set(joined.chunk, Field::Expiry, expiry);
        let (old_at, added_at) = if is_append {
            (0, old_len)
        } else {
            (added_len, 0)
        };
        self.arena.copy_value(old, joined.chunk, old_at);
        self.arena.copy_value(added.chunk, joined.chunk, added_at);
        let value = self.arena.value_mut(joined.chunk);
        value[old_len + added_len..].copy_from_slice(b"\r\n");
        self.abandon(added);
        Ok(joined)
    }

    /// Adds to or subtracts from a decimal number. Below 0 it stays at 0, past 2⁶⁴ it wraps.
    pub fn count(
        &mut self,
        key: &[u8],
        delta: u64,
        is_increment: bool,
        compare: Option<u64>,
        explicit: Option<u64>,
    ) -> Counted {
        let Some(item) = self.peek(key) else {
            return Counted::NotFound;
        };
        if compare.is_some_and(|cas| cas != self.cas(item)) {
            return Counted::Exists;
        }
        let Some(old) = crate::protocol::number(self.value(item).trim_ascii_end()) else {
            return Counted::NotANumber;
        };
        let number = if is_increment {
            old.wrapping_add(delta)
        } else {
            old.saturating_sub(delta)
        };
        let mut digits = crate::protocol::Digits::new();
        let digits = digits.write(number);
        let chunk = item.0;
        let old_len = self.arena.get(chunk, Field::ValueLen) as usize;
        if digits.len() <= old_len {
            // In place, filled with blanks as memcached does.
            let value = self.arena.value_mut(chunk);
            value[..old_len].fill(b' ');
            value[..digits.len()].copy_from_slice(digits);
            let cas = explicit.unwrap_or_else(|| self.take_cas());
            self.set_cas(item, cas);
            self.mark_fetched(item);
            return Counted::Number(number);
        }
        let flags = self.flags(item);
        let expiry = self.arena.get(chunk, Field::Expiry);
        let reserved = match self.reserve(key, flags, Expiry::Never, digits.len()) {
            Ok(reserved) => reserved,
            Err(error) => return Counted::Failed(error),
        };
        self.arena.set(reserved.chunk, Field::Expiry, expiry);
        let value = self.reserved_mut(&reserved);
        value[..digits.len()].copy_from_slice(digits);
        value[digits.len()..].copy_from_slice(b"\r\n");
        self.commit(reserved, Mode::Set, None, explicit);
        Counted::Number(number)
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

    /// Removes a dead item.
    fn expire(&mut self, chunk: Chunk) {
        self.stats.expired += 1;
        if self.arena.bits(chunk) & FETCHED == 0 {
            self.stats.expired_unfetched += 1;
        }
        self.remove(chunk);
    }

    fn remove(&mut self, chunk: Chunk) {
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

    fn evict(&mut self, chunk: Chunk) {
        if self.is_dead(chunk) {
            self.expire(chunk);
            return;
        }
        self.stats.evictions += 1;
        if self.arena.bits(chunk) & FETCHED == 0 {
            self.stats.evicted_unfetched += 1;
        }
        self.remove(chunk);
    }

    /// A free chunk: from the class, by taking a page from a class with older items, or by
    /// eviction.
    fn allocate(&mut self, class: usize) -> Option<Chunk> {
        if let Some(chunk) = self.arena.allocate(class) {
            return Some(chunk);
        }
        self.evictions_of[class] += 1;
        let wants_balance = self.evictions_of[class].is_multiple_of(BALANCE_EVICTIONS);
        if self.lrus[class].items() == 0 || wants_balance {
            self.take_page_for(class, self.lrus[class].items() == 0);
            if let Some(chunk) = self.arena.allocate(class) {
                return Some(chunk);
            }
        }
        let victim = self.lrus[class].victim(&mut self.arena)?;
        self.evict(victim);
        self.arena.allocate(class)
    }

    /// Takes a page from the class whose next victim is oldest: always if `is_forced`, else only if
    /// that one is older than twice the age of this class's own.
    fn take_page_for(&mut self, class: usize, is_forced: bool) {
        let age = |store: &Self, class: usize| {
            let tail = store.lrus[class].tail()?;
            Some(
                store
                    .now
                    .saturating_sub(store.arena.get(tail, Field::Access)),
            )
        };
        let own = age(self, class).unwrap_or(0);
        let candidates = (0..self.arena.classes()).filter(|&other| {
            let spare = if is_forced { 1 } else { 2 };
            other != class
                && self.arena.pages_of(other) >= spare
                && self.arena.page_to_take(other).is_some()
        });
        // A class without items has its memory for nothing: the oldest of all.
        let oldest = candidates.max_by_key(|&other| {
            (
                age(self, other).unwrap_or(u32::MAX),
                self.arena.pages_of(other),
            )
        });
        let Some(giver) = oldest else { return };
        if !is_forced && age(self, giver).is_some_and(|age| age < 2 * own + 60) {
            return;
        }
        let Some(page) = self.arena.page_to_take(giver) else {
            return;
        };
        for chunk in self.arena.chunks_of_page(page) {
            if self.arena.segment(chunk) != 0 {
                self.evict(chunk);
            }
        }
        self.arena.take_page(page);
        self.stats.pages_moved += 1;
    }

    /// Looks at up to `chunks` chunks, and removes expired items among them.
    pub fn crawl(&mut self, chunks: usize) {
        let mut left = chunks;
        // At most once round all pages.
        for _ in 0..=self.arena.pages() {
            if left == 0 {
                return;
            }
            let (page, position) = self.crawler;
            let mut seen = 0;
            for chunk in self.arena.chunks_of_page(page).skip(position).take(left) {
                seen += 1;
                if self.arena.segment(chunk) != 0 && self.is_dead(chunk) {
                    self.expire(chunk);
                }
            }
            if seen < left {
                // A page without chunks costs a look as well.
                left -= seen.max(1).min(left);
                self.crawler = ((page + 1) % self.arena.pages(), 0);
            } else {
                left = 0;
                self.crawler = (page, position + seen);
            }
        }
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

#[cfg(test)]
mod tests;
