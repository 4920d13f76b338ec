//! What the server says while it runs.

use std::net::SocketAddr;

use dataplane::launch::AddressInUse;
use qos::Grouped;

use crate::config::Place;

/// What to do where a calibration no longer holds.
pub const CALIBRATE_AGAIN: &str =
    "Calibrate the device again. `calibrate` opens it exclusively, so stop this server before";
/// What a failed flush means, and what to do.
pub const LOST_WRITES: &str = "a flush failed, so writes that were answered may be lost. All flushes of the device fail until \
                               this server is restarted. Check the device before";
/// What to do where a tenant asks for more than it reserved.
pub const RESERVE_MORE: &str = "Give the tenant a larger `iops` if `slackline serve-block admit` says that this fits, \
                                or let its clients ask for less";

/// What the server says while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockNotice {
    /// Another process has an address, and where the configuration names the address. The default
    /// has no place.
    AddressInUse(AddressInUse, Option<Place>),
    /// Clients can connect to these addresses.
    Ready {
        /// Where NBD is served.
        addresses: Vec<SocketAddr>,
        /// Where NVMe/TCP is served.
        nvme: Vec<SocketAddr>,
        /// Where `/metrics` and `/status` are served.
        metrics: Option<SocketAddr>,
        /// Names of the exports.
        exports: Vec<String>,
    },
    /// The configuration was read again.
    Reloaded {
        /// Names of the exports that are served now.
        exports: Vec<String>,
        /// Exports that are new or have changed, and how.
        changed: Vec<String>,
        /// Exports whose NBD connections end, and why: the export is gone, has another range, or is
        /// read-only now.
        ended: Vec<String>,
        /// Why a restart would refuse the configuration.
        restart_refuses: Option<String>,
        /// Keys with another value that a restart is needed for.
        after_restart: Vec<&'static str>,
    },
    /// The configuration is wrong; the old one stays.
    NotReloaded(String),
    /// Something about a tenant or a device.
    Tenant(String),
    /// Something odd about the configuration or its files, which lets the server go on.
    Warning(String),
    /// Lines of the audit log are lost.
    AuditLog(String),
    /// A signal came: no new connections, and those that are idle are closed.
    Draining,
    /// The server ends. All requests were answered, unless the time for that was over.
    Drained {
        /// Whether the time was over.
        is_cut_off: bool,
    },
}

/// What to say of a tenant or a device.
pub(crate) fn text(name: &str, about: qos::DeviceNotice) -> String {
    match about {
        qos::DeviceNotice::Deficit {
            reserved,
            queued,
            queued_tokens,
            ..
        } => format!(
            "{name} asks for more than its objective reserved, {} tokens/s. Requests that wait: {}, of {} tokens. \
             {RESERVE_MORE}",
            Grouped(reserved),
            Grouped(queued.into()),
            Grouped(queued_tokens)
        ),
        qos::DeviceNotice::DeficitOver { .. } => {
            format!("{name} has stayed within its reservation for 10 s")
        }
        qos::DeviceNotice::CalibrationNoLongerHolds(drift) => {
            format!("{name} no longer behaves as calibrated: {drift}. {CALIBRATE_AGAIN}")
        }
        qos::DeviceNotice::CalibrationHolds => format!("{name} behaves as calibrated again"),
    }
}
