//! Statistics for comparing an experiment with its unchanged control.
//!
//! A measurement here is a list of [`Pair`]s: time blocks in which both sides were measured. What
//! is claimed about them is always the *ratio* experiment / control with an [`Interval`] around it,
//! and the early abort of an evaluation rests on a [`SequentialTest`] whose error rate holds
//! however often it is looked at. A [`DriftTest`] says when a series is no longer what it was, and
//! [`warmth`] whether it has stopped warming up. The crate is pure: no clock, no I/O, no random
//! numbers.
//!
//! ```
//! use paired_stats::{Pair, ratio_interval};
//!
//! let blocks = [
//!     Pair { control: 100.0, experiment: 91.0 },
//!     Pair { control: 104.0, experiment: 93.0 },
//!     Pair { control: 98.0, experiment: 89.0 },
//!     Pair { control: 101.0, experiment: 90.0 },
//! ];
//! let ratio = ratio_interval(&blocks, 0.95)?;
//! assert!(ratio.high < 1.0, "the experiment used less");
//! assert!(ratio.excludes(1.0));
//! # Ok::<(), paired_stats::StatsError>(())
//! ```
#![forbid(unsafe_code)]

mod drift;
mod interval;
mod looks;
mod order;
mod ratio;
mod sequential;
mod steady;
mod summary;

pub use drift::DriftTest;
pub use interval::{Interval, difference_interval, mean_interval, share_bound, share_interval};
pub use looks::confidence_of_each_look;
pub use order::abba;
pub use ratio::{Pair, ratio_interval, ratio_interval_of_runs};
pub use sequential::{SequentialTest, SequentialVerdict};
pub use steady::{Warmth, warmth};
pub use summary::quantile;

/// Why no interval can be given.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StatsError {
    /// A spread cannot be estimated from so few values.
    #[error("{got} {unit} are too few for an interval: at least {needed} are needed")]
    TooFew {
        /// What was counted: "values", "blocks", "runs" or "draws".
        unit: &'static str,
        /// The smallest number that works.
        needed: usize,
        /// How many there were.
        got: usize,
    },
    /// A ratio was asked of a value that is zero or negative.
    #[error(
        "block {block}: control {control} and experiment {experiment} have no log ratio: both must be above zero"
    )]
    NotPositive {
        /// Index of the block, from 0.
        block: usize,
        /// The control's value.
        control: f64,
        /// The experiment's value.
        experiment: f64,
    },
    /// A value is infinite or not a number.
    #[error("value {index} is not finite: {value}")]
    NotFinite {
        /// Index of the value or block, from 0.
        index: usize,
        /// The value.
        value: f64,
    },
    /// The confidence level is not strictly between 0 and 1.
    #[error("confidence {confidence} is not between 0 and 1 (0.95 is usual)")]
    Confidence {
        /// What was given.
        confidence: f64,
    },
    /// One of several runs is unusable.
    #[error("run {run}: {source}")]
    InRun {
        /// Index of the run, from 0.
        run: usize,
        /// What is wrong with it.
        source: Box<StatsError>,
    },
}
