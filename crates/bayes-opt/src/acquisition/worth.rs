//! What a point is worth, given what a process says of it: in logarithms, with derivatives.

use crate::numeric::normal::{log_cdf, log_improvement};

/// The logarithm of an improvement (in standard deviations of the objective) that is no reason to
/// risk a crash: 10⁻⁶. Below it the logarithm falls ever more slowly, so that the order of points
/// stays, but feasibility decides between them.
const NEGLIGIBLE: f64 = -13.8;

#[derive(Clone, Debug)]
pub(super) enum Criterion {
    Improvement { bests: Vec<f64> },
    Probability { best: f64 },
    Confidence { root_beta: f64 },
}

/// The logarithm of what a point is worth, and its derivatives by each draw's mean and by the
/// deviation.
pub(super) struct Gain {
    pub(super) log: f64,
    pub(super) by_means: Vec<f64>,
    pub(super) by_deviation: f64,
}

impl Criterion {
    /// What [`Criterion::at`] is at the most, by the draw that the point is furthest ahead in.
    pub(super) fn at_most(&self, means: &[f64], variance: f64) -> f64 {
        let deviation = variance.sqrt();
        match self {
            Criterion::Improvement { bests } => {
                let ahead = bests.iter().zip(means).map(|(best, mean)| best - mean);
                let furthest = ahead.fold(f64::NEG_INFINITY, f64::max);
                let (log, _, _) = log_improvement(furthest / deviation);
                soft_floor(deviation.ln() + log).0
            }
            Criterion::Probability { best } => {
                soft_floor(log_cdf((best - means[0]) / deviation).0).0
            }
            Criterion::Confidence { root_beta } => root_beta * deviation - means[0],
        }
    }

    pub(super) fn at(
        &self,
        means: &[f64],
        variance: f64,
        logs: &mut Vec<(f64, f64, f64)>,
        slope: bool,
    ) -> Gain {
        let deviation = variance.sqrt();
        let mut gain = Gain {
            log: 0.0,
            by_means: Vec::new(),
            by_deviation: 0.0,
        };
        match self {
            Criterion::Improvement { bests } => {
                logs.clear();
                logs.extend(
                    bests
                        .iter()
                        .zip(means)
                        .map(|(best, mean)| log_improvement((best - mean) / deviation)),
                );
                let top = logs
                    .iter()
                    .map(|log| log.0)
                    .fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = logs.iter().map(|log| (log.0 - top).exp()).sum();
                gain.log = deviation.ln() + top + (sum / bests.len() as f64).ln();
                if slope {
                    for log in logs {
                        let share = (log.0 - top).exp() / sum;
                        gain.by_means.push(-share * log.1 / deviation);
                        gain.by_deviation += share * log.2 / deviation;
                    }
                }
            }
            Criterion::Probability { best } => {
                let z = (best - means[0]) / deviation;
                let (log, slope) = log_cdf(z);
                gain.log = log;
                gain.by_means.push(-slope / deviation);
                gain.by_deviation = -slope * z / deviation;
            }
            Criterion::Confidence { root_beta } => {
                gain.log = root_beta * deviation - means[0];
                gain.by_means.push(-1.0);
                gain.by_deviation = *root_beta;
                return gain;
            }
        }
        let (log, slope) = soft_floor(gain.log);
        gain.log = log;
        gain.by_means
            .iter_mut()
            .for_each(|by_mean| *by_mean *= slope);
        gain.by_deviation *= slope;
        gain
    }
}

/// A logarithm that falls ever more slowly where it is [`NEGLIGIBLE`], and how it then follows what
/// it was.
fn soft_floor(log: f64) -> (f64, f64) {
    if log >= NEGLIGIBLE {
        return (log, 1.0);
    }
    let slope = 1.0 / (1.0 + NEGLIGIBLE - log);
    (NEGLIGIBLE + slope.ln(), slope)
}
