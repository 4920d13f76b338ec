//! Experiments that outlive their process: a [`store`] that every change goes to before it is acted
//! on, and a [`Coordinator`] that measures what the store holds, one experiment at a time, and does
//! what its users ask for.
//!
//! The loop is [`tuner::experiment`]'s own; the store is its ledger. A pause, a `kill -9`, a full
//! disk and a database that went away are the same thing to it: the session ends, the host is
//! restored, and a later session goes on from what was committed.
//!
//! An experiment may be measured by workers on other hosts instead: each has a thread that asks,
//! gives out, and takes in what comes back. How orders and answers travel is behind [`Bus`] and
//! [`Coordinator::answer`].
//!
//! Architecture invariant: no HTTP here, no NATS, and nothing asynchronous. One thread measures;
//! the methods of [`Coordinator`] may be called from any other.

#![forbid(unsafe_code)]

mod actions;
mod continuous;
mod coordinator;
mod error;
mod exchange;
mod foreign;
mod lock;
mod promotion;
mod remote;
mod reserve;
mod rollback;
mod run;
mod run_session;
mod shared_service;
pub mod store;
mod table;
mod unknown;
mod workers;

pub use actions::{TimeLimit, check_source};
pub use coordinator::{Coordinator, Progress};
pub use error::Error;
pub use exchange::LastVerification;
pub use table::{evaluations_csv, evaluations_parquet};
pub use tuner::spec::EVALUATIONS_MAX;
pub use workers::{Bus, ClaimCounts, WorkerView, Workers};
