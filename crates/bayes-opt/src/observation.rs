//! What is told to the optimiser, and what it recommends.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, LARGEST};
use crate::space::value::Configuration;

/// A measured number and how sure of it the measurement is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredValue {
    /// The mean.
    pub value: f64,
    /// The variance *of that mean*, in the value's unit squared; `None` where it is not known, then
    /// it is fitted.
    pub variance: Option<f64>,
}

/// A mean that is so many of its standard errors above 0 has violated: 95 %, one-sided. Where no
/// error is known it has any way.
const VIOLATED_ERRORS: f64 = 1.645;

impl MeasuredValue {
    /// Whether this value of a constraint is plainly above 0.
    pub(crate) fn is_violated(self) -> bool {
        self.value > VIOLATED_ERRORS * self.variance.unwrap_or(0.0).sqrt()
    }
}

impl From<f64> for MeasuredValue {
    fn from(value: f64) -> Self {
        MeasuredValue {
            value,
            variance: None,
        }
    }
}

/// How an evaluation ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObservedOutcome {
    /// It ran to its end.
    Completed {
        /// The objective; smaller is better.
        objective: MeasuredValue,
        /// Each constraint by name; feasible when the value is at most 0.
        constraints: BTreeMap<String, MeasuredValue>,
    },
    /// The system did not survive the configuration.
    Crashed,
}

impl ObservedOutcome {
    /// A completed evaluation without constraints.
    pub fn completed(objective: impl Into<MeasuredValue>) -> Self {
        ObservedOutcome::Completed {
            objective: objective.into(),
            constraints: BTreeMap::new(),
        }
    }
}

/// One evaluation of one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// What was evaluated.
    pub configuration: Configuration,
    /// What came of it.
    pub outcome: ObservedOutcome,
    /// 1 for the system as it is now; less where it has drifted since. The variance is divided by
    /// it.
    pub weight: f64,
}

impl Observation {
    /// An observation of the system as it is now.
    pub fn now(configuration: Configuration, outcome: ObservedOutcome) -> Self {
        Observation {
            configuration,
            outcome,
            weight: 1.0,
        }
    }

    /// Whether all its numbers can be.
    ///
    /// # Errors
    /// [`Error::Unusable`], [`Error::Variance`], [`Error::Weight`].
    pub fn validate(&self) -> Result<(), Error> {
        if !(self.weight > 0.0 && self.weight <= 1.0) {
            return Err(Error::Weight {
                weight: self.weight,
            });
        }
        let ObservedOutcome::Completed {
            objective,
            constraints,
        } = &self.outcome
        else {
            return Ok(());
        };
        finite("objective", *objective)?;
        constraints
            .iter()
            .try_for_each(|(name, measured)| finite(name, *measured))
    }
}

fn finite(what: &str, measured: MeasuredValue) -> Result<(), Error> {
    if measured.value.is_nan() || measured.value.abs() > LARGEST {
        return Err(Error::Unusable {
            what: what.to_owned(),
            value: measured.value,
        });
    }
    match measured.variance {
        Some(variance) if !(0.0..=LARGEST.powi(2)).contains(&variance) => Err(Error::Variance {
            what: what.to_owned(),
            variance,
        }),
        _ => Ok(()),
    }
}

/// An observation with its place in the cube.
#[derive(Clone, Debug)]
pub(crate) struct EncodedObservation {
    pub(crate) observation: Observation,
    pub(crate) point: Vec<f64>,
}

/// The configuration to use, and what to expect of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// An evaluated configuration.
    pub configuration: Configuration,
    /// The model's expectation of the objective there, in the objective's unit.
    pub mean: f64,
    /// Its standard deviation: the model's, without the noise of one more measurement.
    pub sd: f64,
    /// How probable it is that the configuration survives and meets every constraint.
    pub probability_feasible: f64,
}
