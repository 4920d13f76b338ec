//! What keeps orders from travelling, or a worker from starting.

use std::path::PathBuf;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of configuration, or a key, cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A file of configuration is wrong.
    #[error(transparent)]
    Config(#[from] tuner::SpecError),
    /// A signing key is none.
    #[error("{path}: it is no Ed25519 key in PKCS #8: {reason}")]
    Key {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// NATS refuses, for good: credentials, certificates, a server without JetStream.
    #[error("NATS at {url}: {message}")]
    Nats {
        /// The server.
        url: String,
        /// What it says.
        message: String,
    },
    /// The host could not be restored, or another Slackline uses it.
    #[error(transparent)]
    Host(#[from] host::HostError),
    /// Something that an earlier run changed could not be put back.
    #[error("not everything could be restored; `slackline restore` says what")]
    NotRestored,
    /// The runtime could not be started.
    #[error("the runtime cannot be started: {0}")]
    Runtime(std::io::Error),
}
