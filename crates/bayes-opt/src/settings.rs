//! How to search.

use serde::{Deserialize, Serialize};

use crate::observation::Observation;
use crate::space::value::Configuration;

/// How the next configuration is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// By a Gaussian process and an acquisition function.
    Bayesian {
        /// What makes a configuration worth trying.
        #[serde(default)]
        acquisition: Acquisition,
    },
    /// Uniformly at random.
    Random,
    /// Along a scrambled Sobol sequence.
    Sobol,
    /// In Latin hypercubes.
    LatinHypercube,
}

impl Default for Strategy {
    fn default() -> Self {
        Strategy::Bayesian {
            acquisition: Acquisition::default(),
        }
    }
}

/// What makes a configuration worth trying.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Acquisition {
    /// Noisy expected improvement, in log form (Letham et al. 2019; Ament et al. 2023): the one to
    /// use.
    #[default]
    LogNoisyEi,
    /// Expected improvement on the best posterior mean.
    Ei,
    /// Its logarithm (Ament et al. 2023). It is what is maximised for the former too, as a value
    /// that rounds to 0 has no slope to follow: both ask the same.
    LogEi,
    /// The lower confidence bound `mean − √beta·sd` (Srinivas et al. 2010).
    Ucb {
        /// The weight of uncertainty.
        beta: f64,
    },
    /// Probability of improvement on the best posterior mean.
    Poi,
}

/// The settings of an optimiser.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Same seed, same asks and tells: same proposals.
    pub seed: u64,
    /// How to choose.
    pub strategy: Strategy,
    /// Configurations to try first, in order; what is told already is not asked again, unless it is
    /// listed more often.
    pub initial: Vec<Configuration>,
    /// How many evaluations there are before the model is trusted; `None`: one more than there are
    /// parameters, but 4 to 6.
    pub initial_random: Option<usize>,
    /// What earlier experiments on the same or an overlapping space measured, in the same unit; a
    /// constant difference does not matter. What the first of them holds best is asked first, after
    /// `initial`, and each is believed while what is measured here is the more probable with it, so
    /// that a misleading one costs one question, and few of the next. More than
    /// [`Settings::EARLIER_MAX`] are left out.
    pub earlier: Vec<Vec<Observation>>,
}

impl Settings {
    /// Of more earlier experiments the first ones are taken: each costs time with every question. A
    /// choice of this crate.
    pub const EARLIER_MAX: usize = 12;
}
