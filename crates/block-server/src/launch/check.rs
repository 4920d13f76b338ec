//! Whether a server would start with a configuration, or take it at SIGHUP.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use dataplane::uring::{Uring, UringConfig};

use super::error::BlockLaunchError;
use crate::audit::Audit;
use crate::calibration;
use crate::config::BlockConfig;
use crate::cores;
use crate::creation::to_make;
use crate::export;
use crate::holders::Holder;
use crate::memory;
use crate::tls::ServerTls;

/// What a server would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Where NBD would be served.
    pub addresses: Vec<SocketAddr>,
    /// Where NVMe/TCP would be served.
    pub nvme: Vec<SocketAddr>,
    /// Name and device of each export.
    pub exports: Vec<(String, String)>,
    /// Files that would be made, with their bytes.
    pub files: Vec<(PathBuf, u64)>,
    /// What is odd, and lets a server start all the same.
    pub warnings: Vec<String>,
    /// Whether a tenant has an objective.
    pub has_objectives: bool,
    /// Names of devices that other processes hold, and these processes, as far as they are known.
    /// A running server keeps its devices at a reload; another one would not start.
    pub held: Vec<(String, Vec<Holder>)>,
}

/// Reads a configuration and looks at its devices, to see whether a server would start, or take the
/// configuration at SIGHUP. Nothing is changed or locked: files that do not exist are not made.
///
/// # Errors
/// What [`serve`](super::serve) would say.
pub fn check(file: &Path) -> Result<Checked, BlockLaunchError> {
    let config = BlockConfig::read(file)?;
    cores::check(&config.cores)?;
    config.tls.as_ref().map(ServerTls::load).transpose()?;
    Audit::check(&config)?;
    memory::check(&config)?;
    // Without io_uring a server does not start.
    drop(Uring::new(UringConfig::default())?);
    let (exports, devices) = export::look(&config)?;
    let held = devices.iter().filter_map(|device| {
        let holders = device.held_by.clone()?;
        Some((device.name.clone(), holders))
    });
    let held = held.collect();
    let devices = config.devices.iter();
    let files = devices.filter_map(|spec| to_make(&spec.backing));
    Ok(Checked {
        exports: exports
            .iter()
            .map(|export| (export.name.clone(), export.device.name.clone()))
            .collect(),
        files: files
            .map(|(path, size_bytes)| (path.to_path_buf(), size_bytes))
            .collect(),
        held,
        warnings: calibration::warnings(&config),
        has_objectives: config
            .tenants
            .iter()
            .any(|tenant| tenant.objective.is_some()),
        nvme: config.nvme.map_or_else(Vec::new, |nvme| nvme.listen),
        addresses: config.listen,
    })
}
