//! Gaussian-process regression with known and fitted noise; hyper-parameters at the maximum of
//! their posterior, or drawn from it ([`crate::gp::hyper`]).
//!
//! `y = f(x) + e`, `f ~ GP(m, Matérn)`, `Var eᵢ = (known varianceᵢ + fitted noise) / weightᵢ`. The
//! constant mean `m` has a normal prior and is solved for exactly, the others are found by
//! [`crate::optim::lbfgs`] with analytic gradients, or drawn from their posterior by
//! [`crate::gp::hyper_sampling`]. Where they are drawn, what coordinates have in common
//! ([`crate::gp::trend`]) is added to the mean, and its uncertainty to the covariance.
//!
//! [`kernel`] and [`trend`] are the parts of the covariance, [`data`] is what a process is fitted
//! to. [`hyper`] has the hyper-parameters, [`hyper_sampling`] draws them, [`mixture`] joins the
//! processes of these draws. [`crash_classifier`] is the process for labels in place of numbers.

pub(crate) mod crash_classifier;
pub(crate) mod data;
pub(crate) mod hyper;
pub(crate) mod hyper_sampling;
pub(crate) mod kernel;
pub(crate) mod mixture;
pub(crate) mod trend;

use crate::gp::data::{Data, NOISE_MAX};
use crate::gp::hyper::{Basis, Hyper, Priors, bounds};
use crate::gp::kernel::{Kernel, half_cosines_between};
use crate::numeric::linalg::{Cholesky, add_scaled, dot, multiply};
use crate::optim::lbfgs::minimise;
use crate::space::coordinate::Coordinate;

/// A fitted process.
#[derive(Clone, Debug)]
pub(crate) struct Gp {
    pub(crate) hyper: Hyper,
    pub(crate) kernel: Kernel,
    pub(crate) points: Vec<f64>,
    /// Of the points, as [`Kernel::features`] has them.
    pub(crate) features: Vec<f64>,
    pub(crate) mean: f64,
    /// `M⁻¹ (y − m)`, with `M` the covariance of the observations.
    pub(crate) alpha: Vec<f64>,
    /// `M⁻¹`.
    pub(crate) inverse: Vec<f64>,
    values: Vec<f64>,
    noise: Vec<f64>,
    own: usize,
    /// The mean of the known variances: what one more measurement may be expected to have.
    pub(crate) typical_variance: f64,
}

impl Gp {
    /// The process with given hyper-parameters. `None` only where the data are not finite.
    pub(crate) fn condition(data: &Data, coordinates: &[Coordinate], hyper: Hyper) -> Option<Gp> {
        let kernel = hyper.kernel(coordinates);
        let n = data.n();
        let noise = data.noise(&hyper);
        let features = kernel.features(&data.points);
        let half_cosines = half_cosines_between(coordinates, hyper.half_cosine, &data.points);
        let mut matrix = kernel.matrix(&data.points, &half_cosines, None);
        data.apply_task_covariance(&hyper, &mut matrix);
        (0..n).for_each(|i| matrix[i * n + i] += noise[i]);
        let factor = Cholesky::with_jitter(matrix, n)?;
        let (above, prior) = data.residuals(&kernel);
        let (mean, mut alpha) = mean_and_alpha(&factor, &above, (prior, data.mean_prior.1));
        let variances = data
            .variances
            .iter()
            .map(|variance| variance.min(NOISE_MAX));
        let typical_variance = variances.sum::<f64>() / n.max(1) as f64;
        let mut inverse = factor.into_inverse();
        // The weights are scaled by the task correlations here, so that later code can use the
        // kernel of a single task.
        if data.current_len() < n {
            let task_correlation = data.task_correlation(&hyper);
            for (row, alpha) in alpha.iter_mut().enumerate() {
                *alpha *= task_correlation[row];
                for (inverse, like) in inverse[row * n..(row + 1) * n]
                    .iter_mut()
                    .zip(&task_correlation)
                {
                    *inverse *= task_correlation[row] * like;
                }
            }
        }
        let (points, values) = (data.points.clone(), data.values.clone());
        Some(Gp {
            values,
            noise,
            hyper,
            features,
            kernel,
            points,
            mean,
            alpha,
            inverse,
            own: data.current_len(),
            typical_variance,
        })
    }

    /// The process with its [`likeliest`] hyper-parameters.
    pub(crate) fn fit(
        data: &Data,
        coordinates: &[Coordinate],
        basis: Basis,
        starts: &[Hyper],
        evaluations_max: usize,
    ) -> Option<Gp> {
        let priors = Priors::fitted(coordinates.len(), basis);
        let hyper = likeliest(data, coordinates, &priors, starts, evaluations_max);
        Gp::condition(data, coordinates, hyper)
    }

    pub(crate) fn n(&self) -> usize {
        self.alpha.len()
    }

    /// Mean and variance of `f` at the `i`-th observation's point, without the work of
    /// [`Gp::posterior`]: with N the noise, `K M⁻¹ (y − m) = (y − m) − N α` and
    /// `K − K M⁻¹ K = N − N M⁻¹ N`.
    pub(crate) fn posterior_at(&self, i: usize) -> (f64, f64) {
        let noise = self.noise[i];
        let variance = noise - noise * noise * self.inverse[i * self.n() + i];
        (
            self.values[i] - noise * self.alpha[i],
            variance.max(VARIANCE_MIN),
        )
    }

    /// The first observation of exactly this point, and its noise.
    pub(crate) fn observation_at(&self, point: &[f64]) -> Option<(usize, f64)> {
        let points = self.points.chunks_exact(self.kernel.dimension().max(1));
        let row = points.take(self.own).position(|other| other == point)?;
        Some((row, self.noise[row]))
    }

    /// Mean and variance of `f` at `x`, where something was measured there without the work of
    /// [`Gp::posterior`].
    pub(crate) fn posterior_of(&self, x: &[f64]) -> (f64, f64) {
        match self.observation_at(x) {
            Some((row, _)) => self.posterior_at(row),
            None => self.posterior(x),
        }
    }

    /// The covariances of the value at `x` with those at the observations.
    pub(crate) fn row(&self, x: &[f64]) -> Vec<f64> {
        self.kernel.row(x, &self.points, &self.features).0
    }

    /// The mean at `x`, whose covariances with the observations are `row`; without these,
    /// beforehand.
    pub(crate) fn mean_at(&self, x: &[f64], row: &[f64]) -> f64 {
        self.mean + self.kernel.expected(x) + dot(row, &self.alpha[..row.len()])
    }

    /// Mean and variance of `f` at `x`.
    pub(crate) fn posterior(&self, x: &[f64]) -> (f64, f64) {
        let row = self.row(x);
        let explained = dot(&row, &multiply(&self.inverse, &row));
        (
            self.mean_at(x, &row),
            (self.kernel.variance(x) - explained).max(VARIANCE_MIN),
        )
    }
}

/// The most probable hyper-parameters found from `starts`, each followed for `evaluations_max`
/// evaluations of the posterior.
pub(crate) fn likeliest(
    data: &Data,
    coordinates: &[Coordinate],
    priors: &Priors,
    starts: &[Hyper],
    evaluations_max: usize,
) -> Hyper {
    let fallback = || priors.mode();
    if data.n() < 2 {
        return fallback();
    }
    let half_cosines = half_cosines_between(coordinates, priors.basis.half_cosine(), &data.points);
    let function = |vector: &[f64], gradient: &mut [f64]| {
        negative_log_posterior(data, coordinates, &half_cosines, priors, vector, gradient)
    };
    let bounds = bounds(coordinates.len());
    let minima = starts
        .iter()
        .map(|start| minimise(&start.to_vec(), &bounds, 0.5, evaluations_max, function));
    let best = minima
        .filter(|minimum| minimum.value.is_finite())
        .min_by(|a, b| a.value.total_cmp(&b.value));
    best.map_or_else(fallback, |minimum| {
        Hyper::from_slice(&minimum.point, priors.basis)
    })
}

/// The logarithm of the likelihood of given hyper-parameters, between whose observations half waves
/// are as [`half_cosines_between`] has them; up to a constant.
pub(crate) fn log_likelihood(
    data: &Data,
    coordinates: &[Coordinate],
    half_cosines: &[f64],
    hyper: &Hyper,
) -> f64 {
    let likelihood = Likelihood::of(data, coordinates, half_cosines, hyper, None);
    likelihood.map_or(f64::NEG_INFINITY, |likelihood| -likelihood.negative_log)
}

/// The logarithm of likelihood × priors at given hyper-parameters, up to a constant.
pub(crate) fn log_posterior(
    data: &Data,
    coordinates: &[Coordinate],
    priors: &Priors,
    hyper: &Hyper,
) -> f64 {
    let half_cosines = half_cosines_between(coordinates, hyper.half_cosine, &data.points);
    let penalty = priors.penalty(&hyper.to_vec(), &mut vec![0.0; priors.each.len()]);
    log_likelihood(data, coordinates, &half_cosines, hyper) - penalty
}

/// The least posterior variance: below it rounding decides.
pub(crate) const VARIANCE_MIN: f64 = 1e-12;

/// The constant mean of `values`, at its most probable, and what they say beside it.
fn mean_and_alpha(factor: &Cholesky, values: &[f64], prior: (f64, f64)) -> (f64, Vec<f64>) {
    let (prior_mean, prior_sd) = prior;
    let mut ones = vec![1.0; factor.n()];
    factor.solve(&mut ones);
    let mut alpha = values.to_vec();
    factor.solve(&mut alpha);
    let precision = prior_sd.powi(-2);
    let mean = (precision * prior_mean + alpha.iter().sum::<f64>())
        / (precision + ones.iter().sum::<f64>());
    add_scaled(&mut alpha, -mean, &ones);
    (mean, alpha)
}

/// What the data say of hyper-parameters, with the constant mean at its most probable.
struct Likelihood {
    factor: Cholesky,
    alpha: Vec<f64>,
    kernel: Kernel,
    noise: Vec<f64>,
    /// The negative logarithm, with the prior of the mean, up to a constant.
    negative_log: f64,
}

impl Likelihood {
    /// `None` where the covariance is not positive definite; `slopes` as [`Kernel::matrix`] has
    /// them.
    fn of(
        data: &Data,
        coordinates: &[Coordinate],
        half_cosines: &[f64],
        hyper: &Hyper,
        slopes: Option<&mut Vec<f64>>,
    ) -> Option<Self> {
        let n = data.n();
        let kernel = hyper.kernel(coordinates);
        let mut matrix = kernel.matrix(&data.points, half_cosines, slopes);
        let noise = data.noise(hyper);
        data.apply_task_covariance(hyper, &mut matrix);
        (0..n).for_each(|i| matrix[i * n + i] += noise[i]);
        let factor = Cholesky::new(matrix, n)?;
        let (above, prior) = data.residuals(&kernel);
        let (mean, alpha) = mean_and_alpha(&factor, &above, (prior, data.mean_prior.1));
        let fit: f64 = above
            .iter()
            .zip(&alpha)
            .map(|(y, alpha)| (y - mean) * alpha)
            .sum();
        let pull = (mean - prior) / data.mean_prior.1;
        let negative_log = 0.5 * (fit + factor.log_determinant() + pull * pull);
        Some(Likelihood {
            factor,
            alpha,
            kernel,
            noise,
            negative_log,
        })
    }
}

/// The negative logarithm of likelihood × priors, up to a constant, and its gradient.
fn negative_log_posterior(
    data: &Data,
    coordinates: &[Coordinate],
    half_cosines: &[f64],
    priors: &Priors,
    vector: &[f64],
    gradient: &mut [f64],
) -> f64 {
    let n = data.n();
    let d = vector.len() - 1;
    let hyper = Hyper::from_slice(vector, priors.basis);
    let mut factors = Vec::with_capacity(n * (n + 1) / 2);
    let slopes = Some(&mut factors);
    let Some(likelihood) = Likelihood::of(data, coordinates, half_cosines, &hyper, slopes) else {
        return f64::INFINITY;
    };
    let Likelihood {
        factor,
        alpha,
        kernel,
        noise,
        negative_log: value,
    } = likelihood;
    let inverse = factor.into_inverse();

    gradient.fill(0.0);
    let mut by_noise = 0.0;
    let fitted = hyper.ln_noise.exp();
    let mut pairs = factors.iter_mut();
    for i in 0..n {
        let row = &inverse[i * n..i * n + i + 1];
        for ((inverse, alpha_j), factor) in row.iter().zip(&alpha).zip(&mut pairs) {
            // Both triangles: ½ · 2 · weight · slope · (−2 Δ²/ℓ²), negated.
            *factor *= 2.0 * (alpha[i] * alpha_j - inverse);
        }
        // At its most it follows nothing.
        if noise[i] < NOISE_MAX {
            by_noise += (alpha[i] * alpha[i] - row[i]) * fitted / data.weights[i];
        }
    }
    gradient[..d].copy_from_slice(&kernel.by_lengths(&data.points, &factors));
    gradient[d] = -0.5 * by_noise;
    value + priors.penalty(vector, gradient)
}

#[cfg(test)]
mod tests;
