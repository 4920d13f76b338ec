//! An open-loop HTTP load generator.
//!
//! Arrivals follow a schedule, whether or not the service keeps up, and a request's latency counts from its scheduled
//! arrival: a service that stops for a second is charged with every request that was due meanwhile, not with one
//! ("coordinated omission"; Tene, "How not to measure latency"). One thread for each connection; requests are replayed in
//! the order of a list, so that two sides can be given the same.
//!
//! The generator measures itself: how late its idle connections woke for an arrival. Where that is not small beside what it
//! measured of the service, [`Report::bottleneck`] says so, and the numbers are not to be believed. On the machine of the
//! service, a generator of normal priority is held back by the service itself (beside a JVM whose 16 threads woke at once on two
//! CPUs, arrivals were 14 to 29 ms late): with [`Plan::service_group`] it runs at real-time priority, as if it stood elsewhere,
//! and finds its [`Neighbours`] in the machine's CPU times instead.
#![forbid(unsafe_code)]

mod arrivals;
mod generator;
mod neighbours;
mod report;
mod requests;

use std::path::{Path, PathBuf};

pub use arrivals::Arrivals;
pub use generator::{Plan, run};
pub use neighbours::Neighbours;
pub use report::{Bottleneck, Latency, Report};
pub use requests::Request;

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
    /// A number makes no sense.
    #[error("{what}: {reason}")]
    Number {
        /// Which.
        what: &'static str,
        /// Why not.
        reason: String,
    },
}

impl Error {
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
