//! What a store is told, and what it answers.

/// memcached's longest key.
pub const KEY_MAX_BYTES: usize = 250;
/// The largest value: memcached's default of 1 MiB.
pub const VALUE_MAX_BYTES: usize = 1 << 20;

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
    pub(super) fn encode(self, now: u32) -> u32 {
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

/// How [`Store::commit`](super::Store::commit) treats an item of the same key.
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
