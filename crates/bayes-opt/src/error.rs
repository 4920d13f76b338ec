//! What can be wrong with a space, a configuration or an observation.

use crate::space::value::{Value, readable};

/// A space that makes no sense, or a configuration that is not inside it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// No parameter at all.
    #[error("the space has no parameter: give at least one")]
    Empty,
    /// Two parameters of one name.
    #[error("parameter `{parameter}` is given twice")]
    Duplicate {
        /// The name.
        parameter: String,
    },
    /// A key of a parameter is wrong.
    #[error("parameter `{parameter}`: `{key}` {reason}")]
    Invalid {
        /// The parameter's name.
        parameter: String,
        /// Which key of it: `low`, `high`, `step`, `values`, `default`, `prior.best_guess`,
        /// `prior.confidence`, `special`.
        key: &'static str,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A linear constraint cannot be read or used.
    #[error("constraint `{text}`: {reason}")]
    Constraint {
        /// The constraint as written.
        text: String,
        /// What is wrong.
        reason: String,
    },
    /// No configuration meets the linear constraints, as far as a search could find.
    #[error(
        "no configuration was found that meets {text}: if there is one, give it as the defaults or as an initial configuration"
    )]
    Unsatisfiable {
        /// The constraints as written.
        text: String,
    },
    /// A configuration names a parameter that the space has not.
    #[error("unknown parameter `{parameter}`: the parameters are {known}")]
    Unknown {
        /// The unknown name.
        parameter: String,
        /// The names there are.
        known: String,
    },
    /// A configuration lacks a parameter.
    #[error("the configuration has no value for parameter `{parameter}`")]
    Missing {
        /// The missing name.
        parameter: String,
    },
    /// A value outside the parameter's domain.
    #[error("parameter `{parameter}` cannot be {}: {reason}", value.quoted())]
    Outside {
        /// The parameter's name.
        parameter: String,
        /// The value given.
        value: Value,
        /// What it can be.
        reason: String,
    },
    /// A configuration that breaks a linear constraint.
    #[error("the configuration breaks the constraint `{text}`")]
    Broken {
        /// The constraint as written.
        text: String,
    },
}

/// The largest number that can be told: squares of it are numbers too.
pub(crate) const LARGEST: f64 = 1e100;

/// What can go wrong while asking and telling.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The space, or a configuration in it.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// A configuration of `initial` is not inside the space.
    #[error("initial configuration {position}: {source}")]
    Initial {
        /// Its place in the list, from 1.
        position: usize,
        /// What is wrong with it.
        source: SpaceError,
    },
    /// A number told is NaN, infinite or beyond 1e100.
    #[error(
        "{what} is {value:e}: tell a number from -{LARGEST:e} to {LARGEST:e}, or that it crashed where nothing could be measured"
    )]
    Unusable {
        /// `objective`, or the name of the constraint.
        what: String,
        /// The number.
        value: f64,
    },
    /// A variance that is negative, NaN, infinite or beyond 1e200.
    #[error("the variance of {what} is {variance:e}: it has to be from 0 to {:e}", LARGEST.powi(2))]
    Variance {
        /// `objective`, or the name of the constraint.
        what: String,
        /// The variance.
        variance: f64,
    },
    /// A weight outside (0, 1].
    #[error("the weight of an observation is {}: it has to be above 0 and at most 1", readable(*.weight))]
    Weight {
        /// The weight.
        weight: f64,
    },
    /// A setting of the acquisition that makes no sense.
    #[error("`beta` of the acquisition is {}: it has to be finite and not negative", readable(*.beta))]
    Beta {
        /// The value given.
        beta: f64,
    },
    /// Nothing is left to try.
    #[error(
        "nothing is left to try: every configuration that was found crashed or waits for its result"
    )]
    Exhausted,
}
