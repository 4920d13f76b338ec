//! Remote disks on the `dataplane` runtime: devices are exported over NBD, and their input and output
//! runs on the same ring as the network.
//!
//! | module | subject |
//! |---|---|
//! | [`nbd`] | the protocol, without I/O |
//! | [`config`] | the configuration file |
//! | [`device`] | block devices, files and memory |
//! | [`export`] | ranges of devices under names |
//! | [`server`] | the application that each shard runs |
//! | [`launch`] | starts shards, waits for signals |
//! | [`metrics`] | figures for Prometheus and for people |
#![forbid(unsafe_code)]

pub mod config;
pub mod counters;
pub mod device;
pub mod export;
pub mod launch;
pub mod memory;
pub mod metrics;
pub mod nbd;
pub mod pool;
pub mod server;

mod audit;
mod connection;
mod execute;
mod tenants;
mod usage;
