//! What the caller should say to somebody.

use std::collections::VecDeque;

use crate::{CalibrationDrift, TenantId};

/// Notices that are kept until somebody takes them. Older ones go first.
pub(crate) const NOTICES_MAX: usize = 64;

/// Something that the operator of the device should know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeviceNotice {
    /// A latency-critical tenant asks for more than it reserved: its requests wait. Said once until
    /// the tenant is out of its deficit.
    Deficit {
        /// The tenant.
        tenant: TenantId,
        /// Tokens a second that the tenant reserved.
        reserved: u64,
        /// Requests that wait.
        queued: u32,
        /// Tokens of those requests.
        queued_tokens: u64,
    },
    /// The tenant's requests no longer wait for tokens.
    DeficitOver {
        /// The tenant.
        tenant: TenantId,
    },
    /// The device is slower or faster than its calibration says: calibrate it again.
    CalibrationNoLongerHolds(CalibrationDrift),
    /// The device is as its calibration says again.
    CalibrationHolds,
}

/// Notices in their order, at most [`NOTICES_MAX`].
#[derive(Debug)]
pub(crate) struct Notices(VecDeque<DeviceNotice>);

impl Notices {
    pub(crate) fn new() -> Self {
        Self(VecDeque::with_capacity(NOTICES_MAX))
    }

    pub(crate) fn push(&mut self, notice: DeviceNotice) {
        if self.0.len() == NOTICES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(notice);
    }

    pub(crate) fn pop(&mut self) -> Option<DeviceNotice> {
        self.0.pop_front()
    }
}
