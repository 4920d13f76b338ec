//! Kernel tracepoints, clock samples and branch records through `perf_event_open(2)`: one ring
//! buffer a CPU, read as records; and counts of one thread's tracepoints.
//!
//! Nothing of the host is changed. Where tracefs is not mounted, a mount that only this process
//! sees gives the formats.
//!
//! The unsafe code of this crate is in `ring` and `counter`: system calls, a mapping, and the reads
//! of the ring's indices.

mod counter;
mod error;
#[cfg(test)]
mod fixture;
mod format;
mod record;
mod ring;
mod tracefs;

pub use counter::Counter;
pub use error::Error;
pub use format::{Field, TracepointFormat};
pub use record::{Content, Record, SampledBranches, Tick, TracepointSample};
pub use ring::Ring;
pub use tracefs::Tracefs;
