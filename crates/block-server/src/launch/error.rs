//! What can go wrong.

use std::net::SocketAddr;

use dataplane::launch;
use dataplane::sandbox::SandboxError;

use crate::config::{ConfigError, Place};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum BlockLaunchError {
    /// The shards, or what they stand on.
    #[error(transparent)]
    Launch(#[from] launch::LaunchError),
    /// The configuration file, or a device that it names.
    #[error(transparent)]
    BlockConfig(#[from] ConfigError),
    /// An address of the configuration that the server cannot listen on.
    #[error("{}{source}{hint}", address_place(place.as_ref()))]
    Address {
        /// Where the address stands; `None`: it is the default.
        place: Option<Place>,
        /// Why not.
        source: Box<launch::LaunchError>,
        /// What to do.
        hint: &'static str,
    },
    /// A socket of systemd that the server may not serve at.
    #[error("the socket {address} that systemd opened {reason}")]
    SystemdSocket {
        /// The socket's address.
        address: SocketAddr,
        /// Why, and what to do.
        reason: String,
    },
}

impl From<dataplane::Error> for BlockLaunchError {
    fn from(error: dataplane::Error) -> Self {
        Self::Launch(error.into())
    }
}

impl From<SandboxError> for BlockLaunchError {
    fn from(error: SandboxError) -> Self {
        Self::Launch(error.into())
    }
}

impl BlockLaunchError {
    pub(super) fn start(step: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| launch::LaunchError::Start(step, error).into()
    }

    /// Whether a privilege or a kernel feature is missing (exit code 3).
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::Launch(error) => error.is_missing_privilege(),
            Self::Address { source, .. } => source.is_missing_privilege(),
            Self::BlockConfig(_) | Self::SystemdSocket { .. } => false,
        }
    }
}

/// Where an address comes from, as the beginning of a message about it. `None`: the file does not
/// name it, so it is the default.
pub fn address_place(place: Option<&Place>) -> String {
    match place {
        Some(place) => place.error("").to_string(),
        None => "listen (the default): ".to_owned(),
    }
}
