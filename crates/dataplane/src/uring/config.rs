//! Where and how the backend serves.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::buffers;

/// Which groups this shard owns; a new connection of another group goes to its owner.
pub type OwnsGroup = Box<dyn Fn(u16) -> bool + Send>;

/// Where and how the backend serves.
pub struct UringConfig {
    /// Sockets to accept from, listening already; [`listen`](super::listen) makes one.
    pub listeners: Vec<OwnedFd>,
    /// Flows at most; a connection past them is closed at once.
    pub flows_max: usize,
    /// Bytes that an application may hold of a flow before its receiving stops. What is under way
    /// comes on top: two batches of 64 buffers of 8 KiB at most.
    pub receive_window_bytes: usize,
    /// Bytes that one flow may queue for sending.
    pub send_queue_bytes: usize,
    /// Bytes that all flows together may queue, beside 4 KiB for each.
    pub send_memory_bytes: usize,
    /// Sends of at least this many bytes are zero-copy. `None`: none are. On loopback and veth the
    /// kernel copies such data in the end. Whether it pays elsewhere has not been measured.
    pub zero_copy_from_bytes: Option<usize>,
    /// A kernel thread takes submissions, and goes to sleep after being idle for so long.
    pub submission_thread_idle: Option<Duration>,
    /// The CPU of that thread. `None`: any.
    pub submission_thread_cpu: Option<u32>,
    /// Connections are registered with the ring, so that the kernel does not look up and count a
    /// descriptor for each request. Each connection costs two system calls more.
    pub registers_sockets: bool,
    /// Buffers of 8 KiB that received bytes come in: a power of two from 32 to 16,384. Few stay in
    /// the processor's caches; with too few, receives are interrupted under load.
    pub receive_buffers: u16,
    /// Which groups this shard owns; `None`: all.
    pub owns_group: Option<OwnsGroup>,
}

impl Default for UringConfig {
    fn default() -> Self {
        Self {
            listeners: Vec::new(),
            flows_max: 16_384,
            receive_window_bytes: 64 * 1024,
            send_queue_bytes: 256 * 1024,
            send_memory_bytes: 256 * 1024 * 1024,
            zero_copy_from_bytes: None,
            submission_thread_idle: None,
            submission_thread_cpu: None,
            registers_sockets: false,
            receive_buffers: buffers::BUFFERS,
            owns_group: None,
        }
    }
}
