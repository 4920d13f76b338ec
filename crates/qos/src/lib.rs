//! Who may submit what to a shared device, so that each tenant keeps its tail latency.
//!
//! The algorithm is the one of ReFlex (Klimovic, Litz, Kozyrakis: "ReFlex: Remote Flash ≈ Local
//! Flash", ASPLOS'17, section 3.2). A request costs tokens. A calibration says how many tokens a
//! second the device takes at a tail latency. A latency-critical tenant reserves tokens.
//! Best-effort tenants share what is left.
//!
//! The crate does no I/O and reads no clock: times are arguments, in nanoseconds since any moment
//! that all threads share.
//!
//! ```
//! use std::sync::Arc;
//! use qos::{SharedDevice, Objective, Operation, TenantRequest, Scheduler, TenantSpec};
//!
//! let device = Arc::new(SharedDevice::new(Some(qos::simulated::p3600_model())));
//! let mut scheduler = Scheduler::new(Arc::clone(&device)).unwrap();
//! let objective = Objective { p95_us: 500, iops: 20_000, read_share: 0.9 };
//! let tenant = scheduler.add_tenant(TenantSpec::latency_critical(objective)).unwrap();
//! let request = TenantRequest { operation: Operation::Read, len_bytes: 4096, token: "first" };
//! scheduler.enqueue(tenant, request, 1_000).unwrap();
//! let mut submitted = Vec::new();
//! scheduler.round(2_000, &mut |_, token| submitted.push(token));
//! assert_eq!(submitted, ["first"]);
//! ```
#![forbid(unsafe_code)]

mod account;
mod admission;
mod calibration;
mod cost;
mod curve;
mod device;
mod feedback;
mod grouped;
mod latency;
mod learning;
mod notice;
mod queue;
mod scheduler;
pub mod simulated;
mod tenant;
mod word;

pub use admission::{Admission, Headroom, Refused, TENANTS_MAX, TokenShares};
pub use calibration::{ASSUMED_WRITE_COST, CalibrationError, CalibrationPoint, fit};
pub use cost::{BLOCK_BYTES, Costs, Operation, READ_COST, WRITE_COST_MAX};
pub use curve::{Column, Curve, CurveError, CurvePoint, DeviceModel, POINTS_MAX};
pub use device::{DeviceFigures, SharedDevice, THREADS_MAX};
pub use grouped::Grouped;
pub use latency::LatencyWindow;
pub use learning::CalibrationDrift;
pub use notice::DeviceNotice;
pub use queue::QUEUE_ENTRIES_MAX;
pub use scheduler::{Full, Scheduler, TenantRequest, TooManyThreads};
pub use tenant::{IOPS_MAX, Objective, P95_US_MAX, TenantFigures, TenantId, TenantSpec};

/// Tokens are counted in millionths, so that a round of a microsecond adds what it should.
pub(crate) const MICRO: i64 = 1_000_000;

/// The nearest whole number; negative and NaN are 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and negative numbers are cut off before"
)]
pub(crate) fn rounded(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

/// Millionths of a token that a rate makes in a time.
pub(crate) fn tokens_of(rate_tokens_per_s: u64, time_ns: u64) -> i64 {
    // Divisions of 128 bits are slow, and seldom needed.
    let micro = match rate_tokens_per_s.checked_mul(time_ns) {
        Some(nano) => u128::from(nano / 1000),
        None => u128::from(rate_tokens_per_s) * u128::from(time_ns) / 1000,
    };
    i64::try_from(micro).unwrap_or(i64::MAX / 4)
}
