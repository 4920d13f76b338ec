//! Re-lays out the code of a running process: stops it, writes into it, measures, and rolls back.
//!
//! This is the only crate that writes into another process. What is written is decided by
//! `code-layout`; where a process is left in between is the subject here. Three promises hold at
//! every moment, also when Slackline is killed:
//!
//! - the process goes on and answers right: each single write leaves code that runs;
//! - every byte that was changed is on disk with what was there before (see [`manifest`]);
//! - nothing is unmapped that a thread may still return into (see `patch::scan`).
//!
//! [`Driver`] says what to do next with a process, [`drive()`] does it by a [`Session`]. `process`
//! looks at the process and stops it, `patch` writes into it. The unsafe code is in
//! `process::ptrace`. The code is that of x86-64: `machine` knows its registers and system calls,
//! and refuses any other machine.

mod comparison;
mod drive;
mod driver;
mod error;
mod machine;
mod patch;
mod process;
mod session;
mod status;

pub use code_layout::Footprint;
pub use comparison::{BlockRecord, Compared, ComparisonOptions, Gain, compare};
pub use drive::{Drive, drive};
pub use driver::{Driver, DriverAction, DriverEvent, DriverSettings, ProcessLoad, ProcessState};
pub use error::{Declined, RelayoutError};
pub use machine::{check_machine, probe};
pub use patch::manifest;
pub use patch::manifest::{AppliedPatch, Manifest, ManifestStore, RecordedProcess};
pub use patch::patched_process::{PatchedProcess, UnreleasedMemory};
pub use patch::patching::Switched;
pub use patch::region::HEADER_BYTES;
pub use patch::unwinder::Unwinder;
pub use process::maps;
pub use process::memory::ProcessMemory;
pub use process::sampling::{Samples, sample};
pub use process::stop::{Pause, STOP_LIMITS, Stopped, one_stopped, stopped};
pub use process::units::{UnitMeter, UnitReading, WorkUnit};
pub use process::{Object, Process};
pub use session::Session;
pub use session::cover::{Cover, LayoutCandidate};
pub use session::layout::{KeptProfile, LayoutSummary, ProfilingOptions, TopFunction};
pub use status::{Fit, PauseUs, RelayoutStatus};
