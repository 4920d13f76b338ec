//! Evaluations on many hosts: NATS JetStream carries orders from a coordinator's
//! [`CoordinatorEndpoint`] to [`worker`]s, which measure them by the very function that measures on
//! the coordinator's own host, [`tuner::assignment::measure`].
//!
//! The queue delivers an order at least once: it is acknowledged when its result has been taken,
//! heartbeats keep it from being delivered again meanwhile, and it is delivered again when a worker
//! dies or is cut off. That its result is taken at most once is the store's part: a worker claims
//! an attempt before it measures, and the result of any other attempt is refused.
//!
//! Architecture invariant: NATS is here and nowhere else; no database is.

#![forbid(unsafe_code)]

mod allowed;
mod config;
mod connection;
mod coordinator_endpoint;
mod error;
mod signing;
pub mod worker;

pub use config::{Allow, Nats, ServerConfig, WorkerConfig};
pub use coordinator_endpoint::CoordinatorEndpoint;
pub use error::Error;
