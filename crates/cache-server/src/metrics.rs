//! `stats` of memcached, and `/metrics` for Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use dataplane::histogram::Snapshot;
use dataplane::shard::ShardStats;
use prometheus_text::{Exposition, MetricKind};

use crate::shared::SharedCache;
pub use crate::shared::VERSION;

fn merged(shards: &[ShardStats], pick: impl Fn(&ShardStats) -> Snapshot) -> Snapshot {
    let mut all = Snapshot::default();
    for shard in shards {
        all.merge(&pick(shard));
    }
    all
}

fn sum(shards: &[ShardStats], pick: impl Fn(&ShardStats) -> u64) -> u64 {
    shards.iter().map(pick).fold(0, u64::wrapping_add)
}

impl SharedCache {
    /// The answer to `stats` with an argument.
    pub(crate) fn stats_text(&self, argument: &[u8]) -> String {
        let mut text = String::new();
        match argument {
            b"" => self.general_stats(&mut text),
            b"settings" => self.settings_stats(&mut text),
            b"items" | b"slabs" => self.class_stats(&mut text, argument == b"items"),
            b"reset" => return "RESET\r\n".into(),
            b"sizes" => text.push_str("STAT sizes_status disabled\r\n"),
            // As memcached: figures that are not there are no empty list.
            _ => return "ERROR\r\n".into(),
        }
        text.push_str("END\r\n");
        text
    }

    fn general_stats(&self, text: &mut String) {
        let usage = rustix::process::getpid();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let (store, memory_bytes) = self.store_stats();
        let shards = &*self.shards;
        let mut stat = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(text, "STAT {name} {value}\r\n");
        };
        stat("pid", &usage.as_raw_nonzero());
        stat("uptime", &self.uptime_s());
        stat("time", &now.map_or(0, |now| now.as_secs()));
        stat("version", &VERSION);
        stat("pointer_size", &usize::BITS);
        stat("max_connections", &self.connections_max);
        stat("curr_connections", &self.connections());
        for (name, _, value) in self.totals().each() {
            stat(name, &value);
        }
        stat("get_expired", &store.expired);
        stat("limit_maxbytes", &memory_bytes);
        stat("threads", &shards.len());
        stat("bytes", &store.bytes);
        stat("curr_items", &store.items);
        stat("total_items", &store.total_items);
        stat("evictions", &store.evictions);
        stat("evicted_unfetched", &store.evicted_unfetched);
        stat("reclaimed", &store.expired);
        stat("expired_unfetched", &store.expired_unfetched);
        stat("slabs_moved", &store.pages_moved);
        stat("hash_bytes", &(memory_bytes / 64));
        let batch = merged(shards, |shard| shard.batch_events.snapshot());
        let service = merged(shards, |shard| shard.service_ns.snapshot());
        let sojourn = merged(shards, |shard| shard.sojourn_ns.snapshot());
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            stat(&format!("batch_events_{name}"), &batch.quantile(quantile));
            stat(&format!("service_ns_{name}"), &service.quantile(quantile));
            stat(&format!("sojourn_ns_{name}"), &sojourn.quantile(quantile));
        }
        stat(
            "batch_bound",
            &sum(shards, |shard| shard.bound.load(Ordering::Relaxed)),
        );
    }

    fn settings_stats(&self, text: &mut String) {
        let (_, memory_bytes) = self.store_stats();
        let idle_timeout_s = self.idle_timeout_s.load(Ordering::Relaxed);
        let verbosity = self.verbosity.load(Ordering::Relaxed);
        let settings: [(&str, &dyn std::fmt::Display); 14] = [
            ("maxbytes", &memory_bytes),
            ("maxconns", &self.connections_max),
            ("tcpport", &0),
            ("udpport", &0),
            ("verbosity", &verbosity),
            ("evictions", &"on"),
            ("chunk_size", &48),
            ("num_threads", &self.shards.len()),
            ("cas_enabled", &"yes"),
            ("auth_enabled_sasl", &"no"),
            ("item_size_max", &crate::store::VALUE_MAX_BYTES),
            ("flush_enabled", &"yes"),
            ("lru_segmented", &"yes"),
            ("idle_timeout", &idle_timeout_s),
        ];
        for (name, value) in settings {
            let _ = write!(text, "STAT {name} {value}\r\n");
        }
    }

    fn class_stats(&self, text: &mut String, wants_items: bool) {
        let mut classes = std::collections::BTreeMap::<usize, (usize, usize, [usize; 3])>::new();
        for partition in 0..self.partitions() {
            for (class, stats) in self.lock(partition).classes() {
                let sum = classes
                    .entry(class + 1)
                    .or_insert((stats.chunk_bytes, 0, [0; 3]));
                sum.1 += stats.pages;
                for (all, more) in sum.2.iter_mut().zip(stats.items) {
                    *all += more;
                }
            }
        }
        for (class, (chunk_bytes, pages, items)) in classes {
            let number: usize = items.iter().sum();
            let _ = if wants_items {
                let [hot, warm, cold] = items;
                write!(
                    text,
                    "STAT items:{class}:number {number}\r\nSTAT items:{class}:number_hot {hot}\r\n\
                     STAT items:{class}:number_warm {warm}\r\nSTAT items:{class}:number_cold {cold}\r\n"
                )
            } else {
                write!(
                    text,
                    "STAT {class}:chunk_size {chunk_bytes}\r\nSTAT {class}:total_pages {pages}\r\n\
                     STAT {class}:used_chunks {number}\r\n"
                )
            };
        }
    }

    /// The page of `/metrics`.
    pub fn metrics_page(&self) -> String {
        let mut page = Exposition::new();
        let (store, memory_bytes) = self.store_stats();
        let mut single = |name: &str, kind, help: &str, value: u64| {
            page.single(&format!("slackline_cache_{name}"), kind, help, value);
        };
        for (name, help, value) in self.totals().each() {
            single(&format!("{name}_total"), MetricKind::Counter, help, value);
        }
        single(
            "connections",
            MetricKind::Gauge,
            "Open connections.",
            self.connections(),
        );
        single(
            "items",
            MetricKind::Gauge,
            "Items in the cache.",
            store.items,
        );
        single(
            "item_bytes",
            MetricKind::Gauge,
            "Bytes that the items take.",
            store.bytes,
        );
        single(
            "memory_bytes",
            MetricKind::Gauge,
            "Largest number of bytes for items.",
            memory_bytes as u64,
        );
        single(
            "evictions_total",
            MetricKind::Counter,
            "Items removed because their memory was needed.",
            store.evictions,
        );
        single(
            "expired_total",
            MetricKind::Counter,
            "Items removed because their time was over.",
            store.expired,
        );
        single(
            "slab_pages_moved_total",
            MetricKind::Counter,
            "Memory pages moved from items of one size to items of another size.",
            store.pages_moved,
        );
        dataplane::metrics::shards(&mut page, &self.shards);
        page.into_text()
    }
}
