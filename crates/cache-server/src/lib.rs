//! A memcached on the `dataplane` runtime: text and meta protocol, bounded memory, segmented LRU.
//!
//! [`protocol`] parses, [`store`] keeps items, [`server`] is the application that a shard runs,
//! [`launch`] starts shards. The protocol and the store do no I/O and read no clock.
#![forbid(unsafe_code)]

pub mod answer;
pub mod counters;
pub mod launch;
pub mod metrics;
pub mod protocol;
pub mod server;
pub mod settings;
pub mod store;

mod connection;
mod execute;
mod meta_command;
mod shared;
