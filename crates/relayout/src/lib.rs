//! Re-lays out the code of a running process: stops it, writes into it, measures, and rolls back.
//!
//! This is the only crate that writes into another process. What is written is decided by
//! `code-layout`; where a process is left in between is the subject here. Three promises hold at
//! every moment, also when Slackline is killed:
//!
//! - the process goes on and answers right: each single write leaves code that runs;
//! - every byte that was changed is on disk with what was there before (see [`manifest`]);
//! - nothing is unmapped that anything may still return into (see `scan`).
//!
//! The unsafe code is in `ptrace`.

mod calls;
mod cave;
mod chain;
mod comparison;
mod cover;
mod drive;
mod driver;
mod error;
mod family;
mod handlers;
mod inject;
mod kept;
mod layout;
mod loaded;
pub mod manifest;
pub mod maps;
mod memory;
mod moved;
mod patched_process;
mod patching;
mod phases;
mod process;
mod ptrace;
mod reclaim;
mod region;
mod sampling;
mod scan;
mod session;
mod sharing;
mod status;
mod stop;
mod units;
mod unused;
mod unwinder;

pub use code_layout::Footprint;
pub use comparison::{BlockRecord, Compared, ComparisonOptions, Gain, compare};
pub use cover::{Cover, LayoutCandidate};
pub use drive::{Drive, drive};
pub use driver::{Driver, DriverAction, DriverEvent, DriverSettings, ProcessLoad, ProcessState};
pub use error::{Declined, RelayoutError};
pub use layout::{KeptProfile, LayoutSummary, ProfilingOptions, TopFunction};
pub use manifest::{AppliedPatch, Manifest, ManifestStore, RecordedProcess};
pub use memory::ProcessMemory;
pub use patched_process::{PatchedProcess, UnreleasedMemory};
pub use patching::Switched;
pub use process::{Object, Process};
pub use region::HEADER_BYTES;
pub use sampling::{Samples, sample};
pub use session::Session;
pub use status::{Fit, PauseUs, RelayoutStatus};
pub use stop::{Pause, STOP_LIMITS, Stopped, one_stopped, stopped};
pub use units::{UnitMeter, UnitReading, WorkUnit};
pub use unwinder::Unwinder;
