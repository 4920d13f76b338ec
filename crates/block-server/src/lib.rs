//! Remote disks on the `dataplane` runtime: devices are exported over NBD and NVMe/TCP, and their
//! input and output runs on the same ring as the network.
//!
//! | module | subject |
//! |---|---|
//! | [`nbd`] | the protocol NBD, without I/O |
//! | [`nvme`] | the protocol NVMe/TCP |
//! | [`config`] | the configuration file |
//! | [`allow`] | who may use a tenant |
//! | [`certificate`] | the names in a client's certificate |
//! | [`cores`] | the CPUs that shards run on |
//! | [`device`] | block devices, files and memory |
//! | [`export`] | ranges of devices under names |
//! | [`holders`] | which processes hold a device |
//! | [`server`] | the application that each shard runs |
//! | [`launch`] | starts shards, waits for signals |
//! | [`plan`] | whether one more tenant would fit |
//! | [`tls`] | TLS, without I/O |
//! | [`metrics`] | figures for Prometheus and for people |
#![forbid(unsafe_code)]

pub mod allow;
pub mod certificate;
pub mod config;
pub mod cores;
pub mod counters;
pub mod device;
pub mod export;
pub mod holders;
pub mod launch;
pub mod memory;
pub mod metrics;
pub mod nbd;
pub mod nvme;
pub mod plan;
pub mod pool;
pub mod server;
pub mod tls;

mod addresses;
mod audit;
mod calibration;
mod connection;
mod creation;
mod device_error;
mod execute;
mod file;
mod lock;
mod negotiate;
mod number;
mod payload;
mod place;
mod rates;
mod reader;
mod shared;
mod tenants;
mod usage;
mod write_locks;
