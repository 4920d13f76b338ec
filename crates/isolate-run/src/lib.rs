//! Isolation on a live host. [`IsolationConfig`] says which services and best-effort groups there
//! are, [`run`] steers them with a controller of `isolation`, and [`check`] and [`selftest`] say
//! beforehand what this host can do.
//!
//! In each step the loop reads latency and counters ([`isolation::MachineObservation`]), asks the
//! controller, and carries its decisions out through `host`'s actuators and the undo journal. A
//! watchdog in a session of its own restores everything when the loop dies.
//!
//! Architecture invariant: nothing here decides how much anybody gets, and nothing here prints. The
//! binary shows what [`Watcher`] is told.

#![forbid(unsafe_code)]

mod actuators;
mod best_effort;
mod check;
mod config;
mod counters;
mod distinct;
mod error;
mod feasibility;
mod form;
mod hardware;
mod held;
mod latency;
mod machine_lock;
mod origin;
mod policy_config;
mod processes;
mod program;
mod record;
mod reserved;
mod run;
mod selftest;
mod status;
mod steer;
mod subject;
mod threads;
mod used;
mod watchdog;

pub use check::{Check, CheckRow, check};
pub use config::{BestEffort, IsolationConfig, LatencyObjective, Service, schema};
pub use error::IsolateError;
pub use policy_config::PolicyConfig;
pub use record::{RecordLine, RecordedRun, read as read_record};
pub use run::{Finish, RunOptions, Watcher, run};
pub use selftest::{SelftestRow, selftest};
pub use status::{GroupStatus, IsolationStatus, ServiceStatus, read as read_status};
pub use steer::DecisionOutcome;
pub use watchdog::watchdog;
