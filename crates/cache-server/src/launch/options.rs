//! How to serve.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use dataplane::idle::IdlePolicy;
use dataplane::xdp::SocketConfig;

use crate::settings::CacheSettings;
use crate::store::VALUE_MAX_BYTES;

/// A flow may queue two of the largest answers: one is always taken whole while the other is sent.
pub(super) const SEND_QUEUE_BYTES: usize = 2 * (VALUE_MAX_BYTES + 64 * 1024);

/// How to serve.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// The network that clients come by.
    pub network: Network,
    /// With [`Network::Xdp`]: the TCP stack in a process of its own.
    pub isolation: Option<Isolation>,
    /// Addresses to listen on, beside sockets that systemd passes.
    pub listen: Vec<SocketAddr>,
    /// Bytes for items.
    pub memory_bytes: usize,
    /// CPUs, one shard each. Empty: one shard, on any CPU.
    pub cores: Vec<usize>,
    /// Connections at most.
    pub connections_max: usize,
    /// Bytes for answers that clients do not read, beside 4 KiB for each connection.
    pub send_memory_bytes: usize,
    /// A batch bound that never changes.
    pub fixed_batch: Option<usize>,
    /// What an idle shard does.
    pub idle: IdlePolicy,
    /// Where `/metrics` is served.
    pub metrics: Option<SocketAddr>,
    /// How long connections may go on after SIGTERM.
    pub drain: Duration,
    /// Settings that may change.
    pub settings: CacheSettings,
    /// A file with more of them, read again after SIGHUP.
    pub settings_file: Option<PathBuf>,
    /// Zero-copy for answers of so many bytes.
    pub zero_copy_from_bytes: Option<usize>,
    /// A kernel thread for submissions.
    pub submission_thread_idle: Option<Duration>,
    /// With [`Network::Xdp`]: settings of its sockets, but for the queue.
    pub xdp_socket: SocketConfig,
    /// Whether capabilities and system calls are given up.
    pub is_sandboxed: bool,
}

/// The network that clients come by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// The kernel's, by io_uring.
    Kernel,
    /// An interface, by AF_XDP, with a TCP of our own. The kernel sees none of the frames of its
    /// queues meanwhile.
    Xdp {
        /// The interface.
        interface: String,
        /// One queue alone. `None`: all that there are.
        queue: Option<u32>,
    },
}

/// How the process of the TCP stack is started, and where it runs.
#[derive(Debug, Clone)]
pub struct Isolation {
    /// The program. It has to call [`serve_stack`](super::serve_stack) with the same options.
    pub program: PathBuf,
    /// The program's arguments.
    pub arguments: Vec<OsString>,
    /// CPUs of the stacks, one for each of [`CacheOptions::cores`]. Empty: any CPU.
    pub stack_cores: Vec<usize>,
}

/// Shards of a server.
pub(super) fn shards(options: &CacheOptions) -> u8 {
    u8::try_from(options.cores.len().max(1)).unwrap_or(u8::MAX)
}
