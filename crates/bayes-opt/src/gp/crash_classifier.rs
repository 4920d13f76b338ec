//! Whether a configuration survives: a Gaussian process classifier with a probit likelihood.
//!
//! Labels are 1 (survived) and −1 (crashed). The Laplace approximation (Rasmussen & Williams 2006,
//! "Gaussian Processes for Machine Learning", algorithms 3.1 and 3.2) is the same as regression on
//! pseudo-observations `f̂ + W⁻¹ ∇ log p` of variance `W⁻¹`, so the result is an ordinary [`Gp`],
//! whose survival probability is `Φ(mean / √(1 + variance))`. A regression on the labels themselves
//! would need short length scales to follow a sharp border, and would forget it a few steps further
//! on.

use crate::gp::Gp;
use crate::gp::data::Data;
use crate::gp::hyper::{HALF_COSINE, Hyper, length_penalty};
use crate::gp::kernel::half_cosines_between;
use crate::gp::trend::Shared;
use crate::numeric::linalg::{Cholesky, add_scaled, dot, multiply};
use crate::numeric::normal::log_cdf;
use crate::space::coordinate::Coordinate;

/// Prior mean and deviation of the latent constant: three configurations in four survive before
/// anything is known. A choice of this crate.
const MEAN_PRIOR: (f64, f64) = (1.0, 1.0);
/// Newton's method is done when the log posterior moves by less than this.
const TOLERANCE: f64 = 1e-6;
const NEWTON_STEPS_MAX: usize = 30;
/// A curvature below this says nothing; it keeps the pseudo-variances finite.
const CURVATURE_MIN: f64 = 1e-6;
/// Length scales tried, relative to those that a regression on the labels takes, in logarithms.
const STRETCHES: [f64; 5] = [0.0, 0.8, 1.6, 2.4, 3.2];
/// Prior variances tried, in logarithms: latent deviations of 1, 4 and 10. Each goes with half
/// waves in proportion: what asks more of a resource than what crashed crashes as well.
const LN_SCALES: [f64; 3] = [0.0, 2.8, 4.6];

/// The mode of the latent values, and what it is worth.
struct Mode {
    latent: Vec<f64>,
    slopes: Vec<f64>,
    curvatures: Vec<f64>,
    log_evidence: f64,
}

/// The classifier with the most probable of the hyper-parameters near `start`, which come from a
/// regression on the labels (`data.values`, ±1). Of many labels, which take much time, the variance
/// first, and then length scales as long as they get better.
pub(crate) fn choose(
    data: &Data,
    coordinates: &[Coordinate],
    start: &Hyper,
    are_many: bool,
) -> Option<Gp> {
    let near = |stretch: f64, ln_scale: f64| Hyper {
        ln_lengths: start.ln_lengths.iter().map(|ln| ln + stretch).collect(),
        ln_noise: f64::NEG_INFINITY,
        ln_scale,
        half_cosine: HALF_COSINE * ln_scale.exp(),
        shared: Shared::NOTHING,
        earlier: Vec::new(),
    };
    let half_cosines = half_cosines_between(coordinates, HALF_COSINE, &data.points);
    let mut best: Option<(f64, Hyper, Mode)> = None;
    // The mode of one lies near that of the next.
    let mut latent = vec![MEAN_PRIOR.0; data.n()];
    // Whether one of them is the best so far, and the variance of the best.
    let mut compare = |stretch: f64, ln_scales: &[f64]| {
        let kernel = near(stretch, 0.0).kernel(coordinates);
        let unscaled = kernel.matrix(&data.points, &half_cosines, None);
        let mut is_better = false;
        for ln_scale in ln_scales {
            let scale = ln_scale.exp();
            let covariance = unscaled.iter().map(|value| scale * value).collect();
            let Some(mode) = mode(data, covariance, latent.clone()) else {
                continue;
            };
            latent.clone_from(&mode.latent);
            let hyper = near(stretch, *ln_scale);
            let worth = mode.log_evidence - length_penalty(&hyper.ln_lengths);
            if best.as_ref().is_none_or(|(most, ..)| worth > *most) {
                best = Some((worth, hyper, mode));
                is_better = true;
            }
        }
        let ln_scale = best.as_ref().map(|(_, hyper, _)| hyper.ln_scale);
        (is_better, ln_scale)
    };
    let (shorter, longer) = STRETCHES.split_at(STRETCHES.len() / 2);
    let (_, ln_scale) = compare(longer[0], &LN_SCALES);
    let ln_scales = if are_many {
        ln_scale.as_slice()
    } else {
        &LN_SCALES
    };
    let shorter: Vec<f64> = shorter.iter().rev().copied().collect();
    for side in [&shorter, &longer[1..]] {
        for stretch in side {
            let (is_better, _) = compare(*stretch, ln_scales);
            if are_many && !is_better {
                break;
            }
        }
    }
    let (_, hyper, mode) = best?;
    process(data, coordinates, hyper, &mode)
}

/// The classifier with given hyper-parameters.
pub(crate) fn condition(data: &Data, coordinates: &[Coordinate], hyper: Hyper) -> Option<Gp> {
    let mode = mode_of(data, coordinates, &hyper)?;
    process(data, coordinates, hyper, &mode)
}

/// The process of the latent value whose mode this is.
fn process(data: &Data, coordinates: &[Coordinate], hyper: Hyper, mode: &Mode) -> Option<Gp> {
    let pseudo = Data {
        points: data.points.clone(),
        values: mode
            .latent
            .iter()
            .zip(mode.slopes.iter().zip(&mode.curvatures))
            .map(|(latent, (slope, curvature))| latent + slope / curvature)
            .collect(),
        variances: mode
            .curvatures
            .iter()
            .map(|curvature| 1.0 / curvature)
            .collect(),
        weights: vec![1.0; mode.latent.len()],
        mean_prior: MEAN_PRIOR,
        earlier: Vec::new(),
    };
    Gp::condition(&pseudo, coordinates, hyper)
}

/// The mode under given hyper-parameters.
fn mode_of(data: &Data, coordinates: &[Coordinate], hyper: &Hyper) -> Option<Mode> {
    let half_cosines = half_cosines_between(coordinates, hyper.half_cosine, &data.points);
    let kernel = hyper.kernel(coordinates);
    let covariance = kernel.matrix(&data.points, &half_cosines, None);
    mode(data, covariance, vec![MEAN_PRIOR.0; data.n()])
}

/// The mode of latent values of this covariance, found from `latent`.
fn mode(data: &Data, mut covariance: Vec<f64>, latent: Vec<f64>) -> Option<Mode> {
    let n = data.n();
    // The constant mean is integrated out: its variance is every pair's covariance.
    let of_mean = MEAN_PRIOR.1.powi(2);
    covariance.iter_mut().for_each(|value| *value += of_mean);
    let mut mode = Mode {
        latent,
        slopes: vec![0.0; n],
        curvatures: vec![0.0; n],
        log_evidence: f64::NEG_INFINITY,
    };
    let mut weights = vec![0.0; n];
    for _ in 0..NEWTON_STEPS_MAX {
        let mut log_likelihood = 0.0;
        for i in 0..n {
            let (label, weight) = (data.values[i].signum(), data.weights[i]);
            let z = label * mode.latent[i];
            let (log, slope) = log_cdf(z);
            log_likelihood += weight * log;
            mode.slopes[i] = weight * label * slope;
            mode.curvatures[i] = (weight * slope * (slope + z)).max(CURVATURE_MIN);
        }
        let roots: Vec<f64> = mode
            .curvatures
            .iter()
            .map(|curvature| curvature.sqrt())
            .collect();
        let mut matrix = covariance.clone();
        for (i, row) in matrix.chunks_exact_mut(n.max(1)).enumerate() {
            for (value, root) in row.iter_mut().zip(&roots) {
                *value = root * *value * roots[i];
            }
            row[i] += 1.0;
        }
        let factor = Cholesky::new(matrix, n)?;
        let centred: Vec<f64> = mode
            .latent
            .iter()
            .map(|latent| latent - MEAN_PRIOR.0)
            .collect();
        let log_evidence =
            log_likelihood - 0.5 * dot(&weights, &centred) - 0.5 * factor.log_determinant();
        let moved = (log_evidence - mode.log_evidence).abs();
        mode.log_evidence = log_evidence;
        if moved < TOLERANCE {
            break;
        }
        let step: Vec<f64> = (0..n)
            .map(|i| mode.curvatures[i] * centred[i] + mode.slopes[i])
            .collect();
        let mut inner: Vec<f64> = multiply(&covariance, &step)
            .iter()
            .zip(&roots)
            .map(|(value, root)| value * root)
            .collect();
        factor.solve(&mut inner);
        weights.clone_from(&step);
        let back: Vec<f64> = inner
            .iter()
            .zip(&roots)
            .map(|(value, root)| value * root)
            .collect();
        add_scaled(&mut weights, -1.0, &back);
        mode.latent = multiply(&covariance, &weights)
            .iter()
            .map(|value| MEAN_PRIOR.0 + value)
            .collect();
    }
    mode.log_evidence.is_finite().then_some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gp::hyper::Basis;
    use crate::numeric::normal::cdf;

    fn survival(gp: &Gp, x: f64) -> f64 {
        let (mean, variance) = gp.posterior(&[x]);
        cdf(mean / (1.0 + variance).sqrt())
    }

    fn border(points: &[f64], at: f64, are_many: bool) -> Gp {
        let data = Data {
            points: points.to_vec(),
            values: points
                .iter()
                .map(|x| if *x > at { -1.0 } else { 1.0 })
                .collect(),
            variances: vec![0.0; points.len()],
            weights: vec![1.0; points.len()],
            mean_prior: (0.0, 1.0),
            earlier: Vec::new(),
        };
        let start = Hyper {
            ln_lengths: vec![-1.5],
            ..Hyper::prior_mode(1, Basis::Variable)
        };
        choose(&data, &[Coordinate::Ordered], &start, are_many).unwrap()
    }

    #[test]
    fn a_border_is_remembered_beyond_the_last_crash() {
        for are_many in [false, true] {
            let points = [0.05, 0.15, 0.2, 0.3, 0.35, 0.45, 0.55, 0.6];
            let gp = border(&points, 0.4, are_many);
            assert!(survival(&gp, 0.1) > 0.8, "{}", survival(&gp, 0.1));
            for beyond in [0.55, 0.7, 0.8] {
                // A crash is more likely than not, though the prior alone would say one in four.
                let survives = survival(&gp, beyond);
                assert!(survives < 0.5, "{beyond}: {survives}");
            }
        }
    }

    #[test]
    fn one_crash_does_not_condemn_the_space() {
        let gp = border(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.9], 0.8, false);
        assert!(survival(&gp, 0.3) > 0.8);
        assert!(survival(&gp, 0.9) < 0.5);
    }

    #[test]
    fn the_mode_is_where_the_gradient_vanishes() {
        let points: Vec<f64> = (0..8).map(|i| f64::from(i) / 8.0).collect();
        let data = Data {
            values: points
                .iter()
                .map(|x| if *x > 0.5 { -1.0 } else { 1.0 })
                .collect(),
            points,
            variances: vec![0.0; 8],
            weights: vec![1.0; 8],
            mean_prior: (0.0, 1.0),
            earlier: Vec::new(),
        };
        let hyper = Hyper {
            ln_lengths: vec![-1.0],
            ln_noise: f64::NEG_INFINITY,
            ln_scale: 1.0,
            half_cosine: 0.0,
            shared: Shared::NOTHING,
            earlier: Vec::new(),
        };
        let mode = mode_of(&data, &[Coordinate::Ordered], &hyper).unwrap();
        let gp = condition(&data, &[Coordinate::Ordered], hyper).unwrap();
        // The process through the pseudo-observations has its mean at the mode.
        for (point, latent) in data.points.iter().zip(&mode.latent) {
            assert!((gp.posterior(&[*point]).0 - latent).abs() < 1e-4);
        }
    }
}
