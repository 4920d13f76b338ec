//! Load for disks and for servers of NBD and NVMe/TCP, and what a disk does under it.
//!
//! | module | subject |
//! |---|---|
//! | [`generator`] | requests at a rate, or a number of requests under way; latencies |
//! | [`medium`] | what takes requests, and memory that does |
//! | [`disk`] | a file or block device, by io_uring |
//! | [`nbd`] | an NBD server |
//! | [`nvme`] | an NVMe/TCP server |
//! | [`calibrate`] | latency against rate at several shares of reads, for `qos` |
//! | [`picture`] | latency against rate, as SVG |

pub mod calibrate;
pub mod disk;
pub mod generator;
pub mod medium;
pub mod nbd;
pub mod nvme;
mod outgoing;
pub mod picture;

use std::net::SocketAddr;

/// Why a load cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The kernel lacks io_uring, or forbids its use.
    #[error("io_uring cannot be used: {0}")]
    NoUring(#[source] std::io::Error),
    /// The kernel refused a batch of requests.
    #[error("requests cannot be submitted: {0}")]
    Submit(#[source] std::io::Error),
    /// The area is shorter than one request.
    #[error("an area of {length_bytes} bytes has no room for requests of {request_bytes} bytes")]
    AreaTooSmall {
        /// Length of the area.
        length_bytes: u64,
        /// Length of a request.
        request_bytes: u32,
    },
    /// The load has writes, and no area to write to.
    #[error("the load has writes, but no area that may be overwritten is given")]
    NoWriteArea,
    /// The connection to a server failed.
    #[error("server {address}: {source}")]
    Connection {
        /// The server.
        address: SocketAddr,
        /// What happened.
        #[source]
        source: std::io::Error,
    },
    /// A server does not speak its protocol as it should.
    #[error("server {address}: {what}")]
    Protocol {
        /// The server.
        address: SocketAddr,
        /// What it did.
        what: String,
    },
}

impl LoadError {
    /// Whether a privilege or a kernel feature is missing (exit code 3).
    pub fn is_missing_privilege(&self) -> bool {
        matches!(self, Self::NoUring(_))
    }
}
