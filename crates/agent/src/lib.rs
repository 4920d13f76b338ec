//! The throttling metrics of every service of a host, for Prometheus. [`run`] finds the services,
//! reads their counters when somebody asks, and answers.
//!
//! The scheduler's tracepoints, one set of buffers for all groups, are followed for a second now
//! and then; the pause between follows from what the agent itself costs. One thread does all of it.
//!
//! Architecture invariant: nothing here prints; the binary says what [`run`] has to tell. The
//! agent is a crate beside `throttle-watch`, because it shares only the tracepoints and the names
//! of containers with it. It needs none of loads, trials and recordings.

#![forbid(unsafe_code)]

mod error;
mod metrics;
mod names;
mod run;
mod server;
mod services;

pub use error::AgentError;
pub use run::{AgentOptions, run};
pub use server::answer_all;
