//! How probable it is that a constraint holds, or that a configuration survives.

use crate::gp::Gp;
use crate::normal::log_cdf;

/// Below this probability of survival the odds count so many times. What is asked crashes more often than it is expected to:
/// of all points the search picks those of which too much good is expected. A crash costs more than the evaluation, too: a
/// restart, and on a live service its users. Choices of this crate (`docs/results/tuners-tried.md`).
const CAUTION: f64 = 15.0;
const CAUTIOUS_BELOW: f64 = 0.7;

/// Feasibility of one kind: the process is at most `threshold`, or, for viability, at least.
#[derive(Clone, Debug)]
pub(crate) struct Feasibility {
    pub(crate) gp: Gp,
    pub(crate) threshold: f64,
    pub(crate) below: bool,
    /// Variance of the outcome around the process: 1 for a probit classifier, 0 where the process is the quantity itself.
    pub(crate) outcome_variance: f64,
}

impl Feasibility {
    fn z(&self, mean: f64, deviation: f64) -> f64 {
        let margin = if self.below {
            self.threshold - mean
        } else {
            mean - self.threshold
        };
        margin / deviation
    }

    /// The logarithm of the probability of being feasible, with caution where it concerns crashes, and its derivatives by mean
    /// and deviation.
    pub(crate) fn log_odds(&self, mean: f64, variance: f64) -> (f64, f64, f64) {
        let total_variance = variance + self.outcome_variance;
        let deviation = total_variance.sqrt();
        let z = self.z(mean, deviation);
        let (mut log, mut slope) = log_cdf(z);
        let cautious_below = CAUTIOUS_BELOW.ln();
        if log < cautious_below && !self.below {
            log = CAUTION * log - (CAUTION - 1.0) * cautious_below;
            slope *= CAUTION;
        }
        let sign = if self.below { -1.0 } else { 1.0 };
        let by_deviation = -slope * z * variance.sqrt() / total_variance;
        (log, sign * slope / deviation, by_deviation)
    }

    /// The probability of being feasible where the process has this mean and variance.
    pub(crate) fn probability(&self, (mean, variance): (f64, f64)) -> f64 {
        log_cdf(self.z(mean, (variance + self.outcome_variance).sqrt()))
            .0
            .exp()
    }
}
