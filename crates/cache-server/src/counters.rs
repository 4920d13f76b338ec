//! Counters of one shard, written by its thread alone, read by `stats` and `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident: $help:literal,)*) => {
        /// What one shard counts.
        #[derive(Debug, Default)]
        pub struct CacheCounters {
            $(#[doc = $help] pub $name: AtomicU64,)*
        }

        /// Sums over shards.
        #[derive(Debug, Default, Clone, Copy)]
        pub struct Totals {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl Totals {
            /// The sums now.
            pub fn of<'a>(all: impl IntoIterator<Item = &'a CacheCounters>) -> Self {
                let mut totals = Self::default();
                for counters in all {
                    $(totals.$name += counters.$name.load(Ordering::Relaxed);)*
                }
                totals
            }

            /// Each counter's name, help text and value.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), $help, self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    total_connections: "Connections accepted.",
    rejected_connections: "Connections refused because the server was draining.",
    cmd_get: "Keys asked for.",
    cmd_set: "Storage commands.",
    cmd_flush: "flush_all commands.",
    cmd_touch: "Keys to touch, there or not.",
    cmd_meta: "Meta commands.",
    get_hits: "Keys found.",
    get_misses: "Keys not found.",
    delete_hits: "Keys deleted by a command.",
    delete_misses: "Keys to delete that were not there.",
    incr_hits: "Numbers incremented.",
    incr_misses: "Numbers to increment that were not there.",
    decr_hits: "Numbers decremented.",
    decr_misses: "Numbers to decrement that were not there.",
    cas_hits: "Values stored because the CAS number of the key was the expected one.",
    cas_misses: "Commands with a CAS number whose key was not there.",
    cas_badval: "Values not stored because the CAS number of the key was another one.",
    touch_hits: "Keys touched.",
    touch_misses: "Keys to touch that were not there.",
    store_too_large: "Values above the limit.",
    store_no_memory: "Values refused for lack of memory.",
    bytes_read: "Bytes received.",
    bytes_written: "Bytes queued for sending.",
    malformed: "Lines that are not a valid command.",
    idle_kicks: "Connections closed because they were idle.",
}

/// Adds to a counter of the calling thread's own shard.
pub fn count(counter: &AtomicU64, amount: u64) {
    dataplane::histogram::add(counter, amount);
}

/// Counts a hit or a miss.
pub(crate) fn count_hit(is_hit: bool, hits: &AtomicU64, misses: &AtomicU64) {
    count(if is_hit { hits } else { misses }, 1);
}

impl CacheCounters {
    /// Counts an increment or a decrement by whether its key was there.
    pub(crate) fn count_arithmetic(&self, is_hit: bool, is_increment: bool) {
        if is_increment {
            count_hit(is_hit, &self.incr_hits, &self.incr_misses);
        } else {
            count_hit(is_hit, &self.decr_hits, &self.decr_misses);
        }
    }
}
