//! What can go wrong.

use std::net::SocketAddr;

/// Why the agent cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The host refuses.
    #[error(transparent)]
    Host(#[from] host::HostError),
    /// The tracepoints cannot be turned on or off.
    #[error(transparent)]
    Tracepoints(#[from] perf_events::Error),
    /// A pattern has a name without letters.
    #[error("--service {text}: the name is empty")]
    NameIsEmpty {
        /// The pattern.
        text: String,
    },
    /// A pattern matches nothing.
    #[error("--service {text:?}: the glob is empty")]
    GlobIsEmpty {
        /// The pattern.
        text: String,
    },
    /// A pattern is a path of the file system.
    #[error(
        "--service {text}: a glob begins below the hierarchy of the cpu controller, such as system.slice/x*.service"
    )]
    GlobOfAPath {
        /// The pattern.
        text: String,
    },
    /// A pattern is no glob.
    #[error("--service {text}: {source}")]
    Glob {
        /// The pattern.
        text: String,
        /// Why not.
        source: globset::Error,
    },
    /// Nobody can be answered.
    #[error(
        "cannot listen on {address}; is another agent running, or the address not of this host? choose one with --listen"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
    /// The listener refuses to be asked.
    #[error(transparent)]
    Listener(std::io::Error),
    /// Nobody can be waited for.
    #[error("poll: {0}")]
    Poll(#[source] rustix::io::Errno),
}

impl AgentError {
    /// Whether a privilege or a kernel feature is missing (exit code 3).
    #[must_use]
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::Host(error) => error.is_missing_privilege(),
            Self::Tracepoints(_) => true,
            _ => false,
        }
    }
}
