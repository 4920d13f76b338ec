//! Iso-latency controllers: they decide how much of a machine best-effort work may have, from the
//! tail latency of the latency-critical services beside it.
//!
//! An [`IsolationController`] is a state machine. The caller gives it a [`MachineObservation`] and
//! the time, and gets [`Decision`]s: new settings for groups, services or the machine, each with
//! its reason. [`Policy`] names the controllers; [`guarded`] puts the rules around them that hold
//! for all: no data, a service that is gone, a clock that jumps.
//!
//! [`Plant`] is a modelled machine with the antagonists and power curves of the papers. Property
//! tests run every controller on plants with delay and noise, and exclude limit cycles.
//!
//! ```
//! use isolation::{GroupSeen, MachineObservation, Policy, PolicySettings, ServiceSeen, guarded};
//!
//! let mut controller = guarded(&PolicySettings::named(Policy::Slackline));
//! let seen = MachineObservation {
//!     services: vec![ServiceSeen::without_data("web", 5.0)],
//!     groups: vec![GroupSeen::running("batch", 1.0)],
//!     ..MachineObservation::of_cores(4.0)
//! };
//! // Nothing is known of the service's latency, so best-effort work is off.
//! let decisions = controller.step(&seen, 0.0);
//! assert_eq!(decisions[0].to_string(), "group batch: off (no_data)");
//! ```
//!
//! Architecture invariant: no clock, no file, no thread. Time and observations come in, decisions
//! go out.

#![forbid(unsafe_code)]

mod alarm;
mod autothrottle;
mod ceiling;
mod controller;
mod cpu_suppress;
mod decision;
mod energy_preference;
mod evidence;
mod fixed;
mod guard;
mod harm;
mod heracles;
mod network;
mod numbers;
mod observation;
mod parties;
mod pegasus;
mod plant;
mod policy;
mod policy_writes;
mod reclaim;
mod simulation;
mod slackline;
mod tail;
mod tower;

pub use ceiling::{Ceiling, ceiling};
pub use controller::IsolationController;
pub use decision::{ActuatorSetting, Decision, Reason, Subject};
pub use energy_preference::EnergyPreference;
pub use fixed::{FixedSettings, KeyedSetting};
pub use guard::{guarded, observing};
pub use observation::{GroupSeen, MachineObservation, MachineSeen, ServiceSeen};
pub use plant::{Antagonist, Plant, PlantModel, ServiceModel};
pub use policy::{Policy, PolicySettings};
pub use policy_writes::PolicyWrites;
pub use simulation::{Simulated, SimulatedRow, Simulation, simulate};
pub use tail::{Tail, TailVerdict};
