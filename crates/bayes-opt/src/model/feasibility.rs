//! How probable it is that a constraint holds, or that a configuration survives.

use crate::gp::Gp;
use crate::numeric::normal::log_cdf;

/// Below this probability of survival the odds count so many times. What is asked crashes more
/// often than it is expected to: of all points the search picks those of which too much good is
/// expected. A crash costs more than the evaluation, too: a restart, and on a live service its
/// users. Choices of this crate (`docs/results/tuners-tried.md`).
const CAUTION: f64 = 15.0;
const CAUTIOUS_BELOW: f64 = 0.7;

/// What has to be, of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// A constraint's value is at most 0.
    Holds,
    /// A probit classifier's outcome, which has a variance of 1 around the process, is above 0.
    Survives,
}

/// The process of one demand.
#[derive(Clone, Debug)]
pub(crate) struct Feasibility {
    pub(crate) gp: Gp,
    pub(crate) demand: Demand,
}

impl Feasibility {
    /// How far the mean is on the right side, in deviations of the outcome, and its variance.
    fn z(&self, mean: f64, variance: f64) -> (f64, f64) {
        let (margin, variance) = match self.demand {
            Demand::Holds => (-mean, variance),
            Demand::Survives => (mean, variance + 1.0),
        };
        (margin / variance.sqrt(), variance)
    }

    /// The logarithm of the probability of being feasible, with caution where it concerns crashes,
    /// and its derivatives by mean and deviation.
    pub(crate) fn log_odds(&self, mean: f64, variance: f64) -> (f64, f64, f64) {
        let (z, total_variance) = self.z(mean, variance);
        let (mut log, mut slope) = log_cdf(z);
        let cautious_below = CAUTIOUS_BELOW.ln();
        let survives = self.demand == Demand::Survives;
        if log < cautious_below && survives {
            log = CAUTION * log - (CAUTION - 1.0) * cautious_below;
            slope *= CAUTION;
        }
        let sign = if survives { 1.0 } else { -1.0 };
        let by_deviation = -slope * z * variance.sqrt() / total_variance;
        (log, sign * slope / total_variance.sqrt(), by_deviation)
    }

    /// The probability of being feasible where the process has this mean and variance.
    pub(crate) fn probability(&self, (mean, variance): (f64, f64)) -> f64 {
        log_cdf(self.z(mean, variance).0).0.exp()
    }
}
