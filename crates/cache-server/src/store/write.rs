//! Items are stored: reserved and filled, then committed or abandoned. Numbers are counted.

use super::arena::{Chunk, Field, HEADER_BYTES};
use super::index::{Reserved, Store};
use super::interface::{Counted, Expiry, KEY_MAX_BYTES, Mode, StoreError, Stored, VALUE_MAX_BYTES};
use super::lru::ACTIVE;

/// Share of the memory that items being received may hold: a slow sender must not empty the cache.
const PENDING_PERCENT: usize = 25;
/// Values up to this size are received whole before memory is reserved: they have no share.
pub(crate) const PENDING_FREE_BYTES: usize = 16 * 1024;

impl Store {
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
}
