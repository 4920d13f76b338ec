//! An HTTP load generator that knows when it is the bottleneck.
//!
//! *Open loop*: arrivals follow a schedule, whether or not the service keeps up, and a request's
//! latency counts from its scheduled arrival: a service that stops for a second is charged with
//! every request that was due meanwhile, not with one ("coordinated omission"; Tene, "How not to
//! measure latency"). *Closed loop*: each connection sends its next request when it has the answer,
//! which shows the service's capacity. Requests are replayed in the order of a list, so that two
//! sides can be given the same.
//!
//! One loop a thread (`engine`) waits for answers and for arrivals. Of each request it keeps three
//! times: scheduled, sent, answered. It also knows when it had nothing to do (`pacer`), and so
//! which part of a request's latency is its own: it was late in sending although a connection was
//! free, or late in reading. Where that part is not small beside the latency,
//! [`LoadReport::bottleneck`] names the generator, and the numbers are not the service's. Where
//! every connection waited for an answer, it names the service.
//!
//! The kernel's counters are nested checks: how long a thread waited for a CPU, what the hypervisor
//! took. A second that they show to be disturbed (`second`) is set aside, and repeated at the end.
//!
//! On the machine of the service, a generator of normal priority is held back by the service itself
//! (beside a JVM whose 16 threads woke at once on two CPUs, arrivals were 14 to 29 ms late). With
//! [`LoadPlan::service`] it runs at real-time priority, as if it stood elsewhere, and finds its
//! [`Neighbours`] in the machine's CPU times instead.
#![forbid(unsafe_code)]

mod arrivals;
mod connection;
mod counts;
mod endpoint;
mod engine;
mod generator;
mod http1;
mod http2;
mod job;
mod machine;
mod network;
mod pacer;
mod plan;
mod report;
mod requests;
mod second;
mod service;
mod tls;
mod wire;

use std::path::{Path, PathBuf};

pub use arrivals::Arrivals;
pub use endpoint::Endpoint;
pub use generator::run;
pub use http_client::check_method;
pub use machine::{Neighbours, ServiceOnHost};
pub use plan::{LoadPlan, Pace};
pub use report::{Bottleneck, DisturbedSecond, Latency, LoadReport, Parts};
pub use requests::HttpRequest;
pub use second::Disturbance;

/// Why no load could be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A line of a file makes no sense.
    #[error("{path}:{line}: {reason}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The service's control group or the machine's CPU times cannot be read.
    #[error(transparent)]
    Host(#[from] host::HostError),
    /// Nobody knows the host.
    #[error("{host}: {source}")]
    Lookup {
        /// The host.
        host: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The kernel gives no epoll instance.
    #[error("connections cannot be waited for: {0}")]
    Network(std::io::Error),
    /// A number makes no sense.
    #[error("{what}: {reason}")]
    Number {
        /// The name of the number.
        what: &'static str,
        /// Why not.
        reason: String,
    },
}

impl Error {
    /// Whether a privilege or a feature of the kernel is missing.
    #[must_use]
    pub fn is_missing_privilege(&self) -> bool {
        matches!(self, Self::Host(error) if error.is_missing_privilege())
    }

    fn in_line(path: &Path, line: usize, reason: String) -> Self {
        Self::Line {
            path: path.to_owned(),
            line,
            reason,
        }
    }
}

/// A file's text.
fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}
