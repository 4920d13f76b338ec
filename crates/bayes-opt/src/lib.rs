//! Bayesian optimisation of noisy systems, as a pure ask/tell machine.
//!
//! A [`Space`] describes the parameters, an [`Optimizer`] proposes configurations
//! ([`Optimizer::ask`]) and learns from what was measured ([`Optimizer::tell`]). It always
//! minimises. It does no I/O of its own and reads no clock; the same seed, and the same asks and
//! tells in the same order, give the same proposals.
//!
//! ```
//! use bayes_opt::{Kind, MeasuredValue, Observation, Optimizer, ObservedOutcome, Parameter, Settings, Space, Value};
//!
//! # fn main() -> Result<(), bayes_opt::Error> {
//! let workers = Parameter::new("workers", Kind::Int { low: 1, high: 64, step: 1, log: true });
//! let mut optimizer = Optimizer::new(Space::new(vec![workers], vec![])?, Settings::default())?;
//! for _ in 0..12 {
//!     for configuration in optimizer.ask(1)? {
//!         let workers = configuration.get("workers").and_then(Value::as_f64).unwrap_or(1.0);
//!         let objective = MeasuredValue { value: (workers.ln() - 2.0).powi(2), variance: None };
//!         optimizer.tell(Observation::now(configuration, ObservedOutcome::completed(objective)))?;
//!     }
//! }
//! let best = optimizer.best().ok_or("nothing was told");
//! # assert!(best.is_ok());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod acquisition;
mod error;
mod explain;
mod gp;
mod model;
mod numeric;
mod observation;
mod optim;
mod optimizer;
mod sampling;
mod settings;
mod space;

pub use error::{Error, SpaceError};
pub use explain::Importance;
pub use observation::{MeasuredValue, Observation, ObservedOutcome, Recommendation};
pub use optimizer::Optimizer;
pub use settings::{Acquisition, Settings, Strategy};
pub use space::Space;
pub use space::constraint::LinearConstraint;
pub use space::parameter::{Kind, Parameter, PriorGuess};
pub use space::value::{Configuration, Value, readable};
