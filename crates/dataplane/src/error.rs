//! Errors of the runtime.

use std::net::SocketAddr;

/// What can go wrong before or while a shard runs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel lacks io_uring or a feature of it, or forbids it.
    #[error(
        "io_uring cannot be used ({source}): Linux 6.1 or later is needed, and \
         kernel.io_uring_disabled must be 0 (or 1 with CAP_SYS_ADMIN)"
    )]
    NoUring {
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The process may have no more open files.
    #[error(
        "the limit of open descriptors (`ulimit -n`) is {limit}, and all are in use: raise the limit"
    )]
    NoDescriptors {
        /// The limit.
        limit: u64,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A system call failed that should not.
    #[error("{call}: {source}")]
    Os {
        /// The system call.
        call: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The shard's thread cannot be bound to its core.
    #[error("cannot run on CPU {cpu}: {source}")]
    Cpu {
        /// The CPU.
        cpu: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// AF_XDP cannot be used.
    #[error(transparent)]
    Xdp(crate::xdp::XdpError),
    /// The other process of an isolated stack did what it may not.
    #[error("the process of {side} broke the rules of the shared rings: {violation}")]
    Rings {
        /// Whose process.
        side: crate::isolated::Side,
        /// What it did.
        violation: crate::isolated::Violation,
    },
    /// A backend's own error.
    #[error("{0}")]
    Backend(String),
}

impl Error {
    /// Why io_uring cannot be set up.
    pub(crate) fn no_uring(source: std::io::Error) -> Self {
        if source.raw_os_error() != Some(libc::EMFILE) {
            return Self::NoUring { source };
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Self::NoDescriptors {
            limit: limit.current.unwrap_or(u64::MAX),
        }
    }

    /// An error of `call`, with `errno` as it is now.
    pub fn last_os(call: &'static str) -> Self {
        Self::Os {
            call,
            source: std::io::Error::last_os_error(),
        }
    }

    /// Whether a privilege or a kernel feature is missing (exit code 3).
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::NoUring { .. } => true,
            Self::Listen { source, .. } | Self::Os { source, .. } => {
                source.kind() == std::io::ErrorKind::PermissionDenied
            }
            Self::Xdp(error) => error.is_missing_privilege(),
            Self::NoDescriptors { .. }
            | Self::Cpu { .. }
            | Self::Rings { .. }
            | Self::Backend(_) => false,
        }
    }
}
