//! What can go wrong.

use dataplane::isolated::ProcessError;
use dataplane::launch;
use dataplane::sandbox::SandboxError;

use crate::settings::SettingsError;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum CacheLaunchError {
    /// The shards, or what they stand on.
    #[error(transparent)]
    Launch(#[from] launch::LaunchError),
    /// The settings file.
    #[error(transparent)]
    CacheSettings(#[from] SettingsError),
    /// The process of the TCP stack.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// There is no TCP stack to isolate.
    #[error(
        "--isolate-stack puts the TCP stack of --net xdp:INTERFACE into a process of its own; with \
         --net kernel the kernel has it: leave --isolate-stack out, or name an interface"
    )]
    NothingToIsolate,
    /// Each shard has one TCP stack.
    #[error(
        "--stack-cores names {stacks} CPUs, and {shards} are needed: one for each CPU in --cores"
    )]
    StackCores {
        /// CPUs of stacks.
        stacks: usize,
        /// Shards.
        shards: usize,
    },
    /// Nothing to listen on.
    #[error("no address: give --listen, or start it by a systemd socket")]
    NoAddress,
    /// A queue of an interface has one shard.
    #[error(
        "--net xdp:{interface}:{queue} is one queue, which one CPU serves: name one CPU in --cores, \
         or write --net xdp:{interface} for all queues"
    )]
    ManyShards {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
}

impl From<dataplane::Error> for CacheLaunchError {
    fn from(error: dataplane::Error) -> Self {
        Self::Launch(error.into())
    }
}

impl From<SandboxError> for CacheLaunchError {
    fn from(error: SandboxError) -> Self {
        Self::Launch(error.into())
    }
}

impl CacheLaunchError {
    /// Whether a privilege or a kernel feature is missing (exit code 3).
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::Launch(error) => error.is_missing_privilege(),
            Self::Process(error) => error.is_missing_privilege(),
            Self::CacheSettings(_)
            | Self::NothingToIsolate
            | Self::StackCores { .. }
            | Self::NoAddress
            | Self::ManyShards { .. } => false,
        }
    }
}
