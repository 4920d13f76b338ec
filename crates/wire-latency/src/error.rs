//! What can go wrong when a source is opened.

use crate::source::Wrong;

/// What can go wrong when a source is opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No thread can be started.
    #[error("no thread can be started: {0}")]
    Thread(#[source] std::io::Error),
    /// No socket can be opened for timers.
    #[error("timers cannot be received at {of}: {source}")]
    Listen {
        /// The address or path.
        of: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The specification cannot be meant.
    #[error(transparent)]
    Spec(#[from] Wrong),
    /// No packet socket can be opened.
    #[error("packets cannot be read: {0}{hint}", hint = hint(.0, "CAP_NET_RAW"))]
    Packets(#[source] std::io::Error),
    /// The network namespace of a process cannot be entered.
    #[error("{path}: {source}{hint}", path = .path.display(), hint = hint(.source, "CAP_SYS_ADMIN"))]
    Namespace {
        /// The namespace's file.
        path: std::path::PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}

fn hint(error: &std::io::Error, capability: &str) -> String {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => format!(": run as root, or with {capability}"),
        std::io::ErrorKind::NotFound => ": is the process gone?".to_owned(),
        // EAFNOSUPPORT of socket(2).
        _ if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            ": the kernel lacks CONFIG_PACKET".to_owned()
        }
        _ => String::new(),
    }
}

impl Error {
    /// Whether a privilege or a kernel feature is missing (exit code 3).
    #[must_use]
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::Packets(source) | Self::Namespace { source, .. } => {
                source.kind() == std::io::ErrorKind::PermissionDenied
                    || source.raw_os_error() == Some(libc::EAFNOSUPPORT)
            }
            _ => false,
        }
    }
}
