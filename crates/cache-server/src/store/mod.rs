//! One partition of the cache: a bounded memory of items, found by key, evicted by segmented LRU.
//!
//! The store reads no clock: [`Store::set_clock`] says how many seconds have passed.
//!
//! | file | subject |
//! |---|---|
//! | `interface` | what a store is told, and what it answers |
//! | `index` | items found by key |
//! | `write` | items stored and counted |
//! | `eviction` | memory found for an item |
//! | `arena`, `lru` | pages and chunks, and the order in which items go |
//! | `stats` | figures |

mod arena;
mod eviction;
mod index;
mod interface;
mod lru;
mod stats;
mod write;

pub use self::index::{Item, Reserved, Store};
pub use self::interface::{
    Counted, Expiry, KEY_MAX_BYTES, Mode, StoreError, Stored, VALUE_MAX_BYTES,
};
pub use self::stats::{ClassStats, StoreStats};
pub(crate) use self::write::PENDING_FREE_BYTES;

#[cfg(test)]
mod tests;
