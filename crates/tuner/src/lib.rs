//! Experiments: a specification, the search for a better configuration against an unchanged
//! control, and the verification of what was found.
//!
//! The way of an experiment: [`spec::context`] checks a file against itself and this host;
//! [`experiment::run`] asks the optimiser, measures through a [`bench::Bench`], tells the
//! optimiser, verifies, and returns a [`report::Report`]. [`live::Live`] is the bench of the real
//! world. A [`ledger::Ledger`] is told of everything, and an experiment goes on from what one has
//! kept.
//!
//! Architecture invariant: [`evaluation`] and [`experiment`] read no clock and touch nothing;
//! whatever does is behind the bench, so that the whole loop is tested by simulation under a seed.

#![forbid(unsafe_code)]

mod apply_steps;
mod arm;
pub mod assignment;
pub mod begun;
pub mod bench;
mod capacity;
mod client;
pub mod conclusion;
pub mod continuous;
mod control_files;
mod crash_region;
mod daemon;
mod descriptors;
pub mod error;
pub mod evaluation;
pub mod exchange;
pub mod experiment;
mod figures;
mod http;
mod knob_writes;
pub mod ledger;
pub mod live;
mod log_end;
pub mod parse;
pub mod process;
mod promoted_templates;
pub mod promotions;
pub mod protocol;
pub mod reapply;
mod remarks;
pub mod report;
mod sampler;
mod scratch;
mod secrets;
pub mod sentence;
mod shell_words;
mod side;
pub mod simulation;
pub mod spec;
mod stop;
pub mod tail;
mod target;
pub mod tell;
pub mod undo;
mod verdict;
pub mod verification;
mod warm_start;

pub use experiment_spec::{metrics, template};

pub use error::{Crash, CrashKind, Fault, SpecError, TunerError};
pub use knob_writes::knob_text;
pub use remarks::remarks;
