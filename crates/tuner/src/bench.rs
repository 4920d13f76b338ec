//! What an experiment needs of the world: start both sides, measure a block, end.
//!
//! [`crate::live::Live`] is the real one; [`crate::simulation`] has one without a service.

use std::collections::BTreeMap;

pub use crate::arm::Arm;
use crate::begun::Begun;
use crate::error::Fault;
use crate::evaluation::Block;

/// The world of an experiment.
pub trait Bench {
    /// Starts `arm`, and the control unless it runs on from an earlier evaluation, and warms both
    /// up.
    ///
    /// # Errors
    /// Whose fault it was; `end` is called all the same.
    fn begin(&mut self, arm: &Arm) -> Result<(), Fault>;

    /// Measures block number `index`, from 0.
    ///
    /// # Errors
    /// Whose fault it was; `end` is called all the same.
    fn block(&mut self, index: usize) -> Result<Block, Fault>;

    /// Ends both sides, but for a control that runs on, and puts every knob back.
    ///
    /// # Errors
    /// A knob could not be put back.
    fn end(&mut self) -> Result<(), crate::error::TunerError>;

    /// The last lines that the service of an evaluation printed, once: of the side that made it
    /// fail, else of the experiment.
    fn take_output(&mut self) -> Option<String> {
        None
    }

    /// How the last evaluation began, once.
    fn take_begun(&mut self) -> Option<Begun> {
        None
    }

    /// The fingerprint of each template as it is now.
    fn templates(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Seconds since the experiment began.
    fn elapsed_s(&self) -> f64;

    /// CPU seconds that Slackline itself used so far.
    fn own_cpu_s(&self) -> f64;
}
