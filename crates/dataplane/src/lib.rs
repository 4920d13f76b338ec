//! A run-to-completion runtime for network servers, after IX (Belay et al., OSDI'14).
//!
//! One [`Shard`] runs on one core. While it serves a request it shares nothing with the others, save
//! the directory of connections on AF_XDP and what the application itself shares. Each turn of its
//! loop takes a bounded batch of events from a [`Backend`], runs the [`Application`] on each event
//! to completion, and sends all answers together. A batch is never waited for: it grows only while
//! requests queue.
//!
//! | module | subject |
//! |---|---|
//! | [`api`] | what an application sees: events, batched calls, timers |
//! | [`backend`] | what a network backend has to offer |
//! | [`shard`] | the loop, and the handle by which others control it |
//! | [`batch`] | the batch bound, chosen under a latency objective |
//! | [`idle`] | how long an idle shard spins before it sleeps |
//! | [`launch`] | shards on threads of their own, and the page of metrics |
//! | [`metrics`] | figures for Prometheus, and the thread that serves them |
//! | [`sandbox`] | what a server gives up after its start |
//! | [`groups`] | flow groups, and which shard owns each |
//! | [`elastic`] | when a shard is added or given back |
//! | [`mod@file`] | operations on files, on the same ring as the network |
//! | [`file_lock`] | locks that last as long as an operation on the file is under way |
//! | [`tcp`] | a TCP/IP stack of our own, without I/O |
//! | [`xdp`] | the backend on AF_XDP, with that stack |
//! | [`isolated`] | the application and that stack as two processes with shared rings |
//! | [`uring`] | the backend on io_uring |
//!
//! `examples/echo.rs` is a whole server in 50 lines.

pub mod api;
pub mod backend;
pub mod batch;
pub mod elastic;
pub mod error;
pub mod file;
pub mod file_lock;
pub mod groups;
pub mod histogram;
pub mod idle;
pub mod isolated;
pub mod launch;

mod lock;
mod mailbox;
mod mapping;
pub mod metrics;
pub mod sandbox;
pub mod shard;
pub mod tcp;
mod time;
pub mod timers;
pub mod uring;
pub mod xdp;

pub use api::{Application, Calls, Context, DeadReason, Event, FlowId, ListenerId, Time};
pub use backend::Backend;
pub use error::Error;
pub use shard::{Shard, ShardConfig};
