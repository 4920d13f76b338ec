//! Why a service fails at half its CPU, and what to set: the CFS bandwidth controller, simulated
//! and explained.
//!
//! Pure: observations come in, findings go out. No clock, no I/O.
#![forbid(unsafe_code)]

pub mod advice;
pub mod bandwidth;
pub mod capacity;
pub mod fleet;
mod groups;
mod histogram;
mod limited_service;
mod runtime;
mod schedule;
pub mod simulation;
mod verdict;

pub use bandwidth::Limit;
pub use groups::{Group, Groups, SHARE_BOUNDS, Shares};
pub use histogram::{BIN_CORES, Cores, WINDOW_NS};
pub use limited_service::{Demand, Job, JobQueue, LimitedHost, LimitedService, ThreadPool, Work};
pub use runtime::{RuntimePool, Sizing, ignores_quota, is_helper, thread_setting, worker_setting};
pub use schedule::{
    JOBS_MAX, NAMES_MAX, Observed, Recording, SchedEvent, SchedTrace, SwitchOut, ThreadNameStats,
    pool_name,
};
pub use simulation::{SimulationResult, simulate};
pub use verdict::{BandwidthCounters, Cause, Verdict, judge};

/// The nearest whole number; negative and NaN are 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and negative numbers are cut off before"
)]
pub(crate) fn rounded(value: f64) -> u64 {
    value.max(0.0).round() as u64
}
