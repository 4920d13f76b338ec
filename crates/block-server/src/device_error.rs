//! Why a device cannot be used.

use std::path::Path;

use rustix::io::Errno;

/// A device that cannot be opened: why, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub(crate) String);

pub(crate) fn failed(path: &Path, what: &str, errno: Errno) -> DeviceError {
    DeviceError(format!(
        "{} cannot be {what}: {}",
        path.display(),
        std::io::Error::from(errno)
    ))
}
