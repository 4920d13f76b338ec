//! Gaussian-process regression with known and fitted noise; hyper-parameters at the maximum of
//! their posterior, or drawn from it ([`crate::hyper`]).
//!
//! `y = f(x) + e`, `f ~ GP(m, Matérn)`, `Var eᵢ = (known varianceᵢ + fitted noise) / weightᵢ`. The
//! constant mean `m` has a normal prior and is solved for exactly, the others are found by
//! [`crate::lbfgs`] with analytic gradients, or drawn from their posterior by
//! [`crate::hyper_sampling`]. Where they are drawn, what coordinates have in common
//! ([`crate::trend`]) is added to the mean, and its uncertainty to the covariance.

use crate::coordinate::Coordinate;
use crate::data::{Data, NOISE_MAX};
use crate::hyper::{Basis, Hyper, Priors, bounds};
use crate::kernel::{Kernel, half_cosines_between};
use crate::lbfgs::minimise;
use crate::linalg::{Cholesky, add_scaled, dot, multiply};

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
        // Once they have the likenesses in them, covariances as within one experiment will do
        // everywhere else.
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
mod tests {
    use super::*;
    use crate::data::OFFSET;
    use crate::design::sobol;
    use crate::hyper::HALF_COSINE;
    use crate::trend::Shared;

    fn data(n: u32, noise: f64) -> Data {
        let mut points = Vec::new();
        let mut values = Vec::new();
        for index in 0..n {
            let mut x = sobol(index, 3, 5);
            x[2] = (x[2] * 3.0).floor();
            values.push(
                (5.0 * x[0]).sin() + x[1] * x[1] + 0.4 * x[2] + noise * sobol(index, 4, 6)[3],
            );
            points.extend(x);
        }
        let n = values.len();
        Data {
            points,
            values,
            variances: vec![1e-3; n],
            weights: vec![0.5; n],
            mean_prior: (0.0, 1.0),
            earlier: Vec::new(),
        }
    }

    const BOWL: Shared = Shared {
        quadratic: true,
        ..Shared::NOTHING
    };
    const SLOPE: Shared = Shared {
        linear: true,
        ..Shared::NOTHING
    };
    const COORDINATES: [Coordinate; 3] = [
        Coordinate::Ordered,
        Coordinate::Ordered,
        Coordinate::Categorical,
    ];

    #[test]
    fn the_gradient_is_the_difference_quotient() {
        let mut data = data(15, 0.1);
        // Its noise is at its most.
        data.weights[3] = 1e-13;
        let at = [-0.9, 0.3, 0.6, -3.0];
        for (basis, k) in [Basis::Variable, Basis::Logarithm]
            .into_iter()
            .flat_map(|basis| (0..4).map(move |k| (basis, k)))
        {
            let half_cosines =
                half_cosines_between(&COORDINATES, basis.half_cosine(), &data.points);
            let priors = Priors::fitted(3, basis);
            let mut gradient = [0.0; 4];
            negative_log_posterior(
                &data,
                &COORDINATES,
                &half_cosines,
                &priors,
                &at,
                &mut gradient,
            );
            let moved = |step: f64| {
                let mut at = at;
                at[k] += step;
                negative_log_posterior(
                    &data,
                    &COORDINATES,
                    &half_cosines,
                    &priors,
                    &at,
                    &mut [0.0; 4],
                )
            };
            let quotient = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!(
                (quotient - gradient[k]).abs() < 1e-5 * (1.0 + quotient.abs()),
                "{k}: {quotient} {}",
                gradient[k]
            );
        }
    }

    #[test]
    fn the_posterior_interpolates_without_noise() {
        let data = Data {
            variances: vec![0.0; 20],
            weights: vec![1.0; 20],
            ..data(20, 0.0)
        };
        let hyper = Hyper {
            ln_noise: f64::NEG_INFINITY,
            ..Hyper::prior_mode(3, Basis::Variable)
        };
        let gp = Gp::condition(&data, &COORDINATES, hyper).unwrap();
        for (point, value) in data.points.chunks(3).zip(&data.values) {
            let (mean, variance) = gp.posterior(point);
            assert!(
                (mean - value).abs() < 1e-6 && variance < 1e-6,
                "{mean} {value} {variance}"
            );
        }
    }

    #[test]
    fn earlier_experiments_count_by_how_much_they_are_like_this_one() {
        let own = data(6, 0.1);
        let mut joint = data(20, 0.1);
        joint.earlier = vec![10, 4];
        let hyper = |task_correlation: [f64; 2]| Hyper {
            earlier: vec![(0, task_correlation[0]), (1, task_correlation[1])],
            shared: BOWL,
            ..Hyper::prior_mode(3, Basis::Logarithm)
        };
        let at = [0.3, 0.8, 2.0];
        // Those that have nothing to do with it change nothing but the constant, by what they tell
        // of it.
        let gp = Gp::condition(&joint, &COORDINATES, hyper([0.0, 0.0])).unwrap();
        let alone = Gp::condition(&own, &COORDINATES, hyper([0.0, 0.0])).unwrap();
        assert!((gp.posterior(&at).1 - alone.posterior(&at).1).abs() < 1e-9);
        let above = |gp: &Gp| gp.posterior(&at).0 - gp.mean;
        assert!((above(&gp) - above(&alone)).abs() < 0.5);

        // Against the whole covariance, written out.
        let like = [0.9, 0.4];
        let gp = Gp::condition(&joint, &COORDINATES, hyper(like)).unwrap();
        let of = |i: usize| match i {
            0..6 => (0, 1.0),
            6..16 => (1, like[0]),
            _ => (2, like[1]),
        };
        let points: Vec<&[f64]> = joint.points().collect();
        let noise = joint.noise(&gp.hyper);
        let mut matrix = vec![0.0; 400];
        for (i, a) in points.iter().enumerate() {
            for (j, b) in points.iter().enumerate() {
                let ((one, like), (other, alike)) = (of(i), of(j));
                let k = gp.kernel.between(a, b);
                matrix[20 * i + j] = match one == other {
                    true => k + if one > 0 { OFFSET } else { 0.0 },
                    false => like * alike * k,
                };
            }
            matrix[21 * i] += noise[i];
        }
        let factor = Cholesky::new(matrix, 20).unwrap();
        let row: Vec<f64> = (0..20)
            .map(|i| of(i).1 * gp.kernel.between(points[i], &at))
            .collect();
        let mut residuals: Vec<f64> = (0..20)
            .map(|i| joint.values[i] - gp.mean - gp.kernel.expected(points[i]))
            .collect();
        factor.solve(&mut residuals);
        let mut solved = row.clone();
        factor.solve(&mut solved);
        let (mean, variance) = gp.posterior(&at);
        let expected = gp.mean + gp.kernel.expected(&at) + dot(&row, &residuals);
        assert!((mean - expected).abs() < 1e-9, "{mean} {expected}");
        let expected = gp.kernel.variance(&at) - dot(&row, &solved);
        assert!((variance - expected).abs() < 1e-9, "{variance} {expected}");
        // Measured now, not then.
        assert_eq!(gp.observation_at(points[2]).unwrap().0, 2);
        assert!(gp.observation_at(points[9]).is_none());
    }

    #[test]
    fn the_posterior_at_an_observation_is_the_posterior() {
        use Coordinate::{Binary, Categorical, Continuous, Ordered};
        let data = data(20, 0.3);
        for coordinates in [
            [Ordered, Continuous, Categorical],
            [Binary, Continuous, Binary],
        ] {
            let hyper = Hyper {
                shared: Shared {
                    quadratic: true,
                    linear: true,
                },
                ..Hyper::prior_mode(3, Basis::Logarithm)
            };
            let gp = Gp::condition(&data, &coordinates, hyper).unwrap();
            for i in 0..20 {
                let (mean, variance) = gp.posterior(&data.points[i * 3..(i + 1) * 3]);
                let (fast_mean, fast_variance) = gp.posterior_at(i);
                assert!((mean - fast_mean).abs() < 1e-9 && (variance - fast_variance).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn fitting_finds_what_matters() {
        let mut data = data(40, 0.0);
        for i in 0..40 {
            data.values[i] = (6.0 * data.points[i * 3]).sin();
        }
        let gp = Gp::fit(
            &data,
            &COORDINATES,
            Basis::Variable,
            &[Hyper::prior_mode(3, Basis::Variable)],
            60,
        )
        .unwrap();
        assert!(
            gp.hyper.ln_lengths[0] < 0.5 && gp.hyper.ln_lengths[1] > 1.0,
            "{:?}",
            gp.hyper
        );
        let (mean, _) = gp.posterior(&[0.3, 0.9, 2.0]);
        assert!((mean - 1.8_f64.sin()).abs() < 0.1);
    }

    #[test]
    fn what_rises_goes_on_rising_along_half_a_wave() {
        // Measured over the lower half, how much higher the end is thought to be than the middle.
        let beyond = |half_cosine: f64, value: fn(f64) -> f64| {
            let points: Vec<f64> = (0..6).map(|i| f64::from(i) / 10.0).collect();
            let data = Data {
                values: points.iter().map(|x| value(*x)).collect(),
                variances: vec![1e-3; points.len()],
                weights: vec![1.0; points.len()],
                points,
                mean_prior: (0.0, 1.0),
                earlier: Vec::new(),
            };
            let hyper = Hyper {
                ln_lengths: vec![-1.0],
                half_cosine,
                ..Hyper::prior_mode(1, Basis::Logarithm)
            };
            let gp = Gp::condition(&data, &[Coordinate::Ordered], hyper).unwrap();
            gp.posterior(&[0.9]).0 - gp.posterior(&[0.5]).0
        };
        let rising = |x: f64| 2.0 * x - 0.5;
        assert!(Hyper::prior_mode(3, Basis::Logarithm).half_cosine == HALF_COSINE);
        let (with, without) = (beyond(HALF_COSINE, rising), beyond(0.0, rising));
        assert!(with > without + 0.1, "{with} {without}");
        // What has an optimum inside comes back.
        let optimum = |x: f64| (std::f64::consts::PI * x).sin();
        let (with, without) = (beyond(HALF_COSINE, optimum), beyond(0.0, optimum));
        assert!(with < without, "{with} {without}");
    }

    #[test]
    fn what_some_switches_do_others_are_expected_to_do() {
        // Five of six switches were turned, what is thought of the sixth.
        let sixth = |shared: Shared, each: [f64; 5]| {
            let mut points = vec![0.0; 6 * 6];
            (0..5).for_each(|k| points[(k + 1) * 6 + k] = 1.0);
            let data = Data {
                values: [&[0.0], &each[..]].concat(),
                variances: vec![1e-3; 6],
                weights: vec![1.0; 6],
                points,
                mean_prior: (0.0, 1.0),
                earlier: Vec::new(),
            };
            let hyper = Hyper {
                shared,
                ..Hyper::prior_mode(6, Basis::Logarithm)
            };
            let gp = Gp::condition(&data, &[Coordinate::Binary; 6], hyper).unwrap();
            let turned = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
            gp.posterior(&turned).0 - gp.posterior(&[0.0; 6]).0
        };
        for up in [1.0, -1.0] {
            let alike = [0.4, 0.5, 0.6, 0.3, 0.5].map(|by| up * by);
            let (with, without) = (sixth(SLOPE, alike), sixth(Shared::NOTHING, alike));
            assert!(up * with > up * without + 0.1, "{with} {without}");
        }
        let mixed = [0.5, -0.5, 0.5, -0.5, 0.0];
        let (with, without) = (sixth(SLOPE, mixed), sixth(Shared::NOTHING, mixed));
        assert!((with - without).abs() < 0.05, "{with} {without}");
    }

    #[test]
    fn a_bowl_is_expected_until_data_say_otherwise() {
        let hyper = Hyper {
            shared: BOWL,
            ..Hyper::prior_mode(2, Basis::Logarithm)
        };
        // How much lower the middle is than the corners, given a process that is flat, or a hill.
        let depth = |n: u32, height: f64| {
            let points: Vec<Vec<f64>> = (0..n).map(|i| sobol(i, 2, 5)).collect();
            let hill = |x: &Vec<f64>| -height * x.iter().map(|x| (x - 0.5).powi(2)).sum::<f64>();
            let data = Data {
                values: points.iter().map(hill).collect(),
                variances: vec![1e-3; points.len()],
                weights: vec![1.0; points.len()],
                points: points.concat(),
                mean_prior: (0.0, 1.0),
                earlier: Vec::new(),
            };
            let gp = Gp::condition(&data, &[Coordinate::Continuous; 2], hyper.clone()).unwrap();
            gp.posterior(&[0.0; 2]).0 - gp.posterior(&[0.5; 2]).0
        };
        assert!(depth(1, 0.0) > 1.0, "{}", depth(1, 0.0));
        assert!(depth(20, 0.0).abs() < 0.1, "{}", depth(20, 0.0));
        assert!(depth(20, 4.0) < -1.0, "{}", depth(20, 4.0));
    }

    #[test]
    fn degenerate_data_are_survived() {
        for n in [0_u32, 1, 2] {
            assert!(
                Gp::fit(
                    &data(n, 0.1),
                    &COORDINATES,
                    Basis::Variable,
                    &[Hyper::prior_mode(3, Basis::Variable)],
                    30
                )
                .is_some()
            );
        }
        let mut twice = data(10, 0.0);
        twice.points.copy_within(0..15, 15);
        for k in 0..3 {
            twice.points[27 + k] = twice.points[k] + 1e-13;
        }
        assert!(
            Gp::fit(
                &twice,
                &COORDINATES,
                Basis::Variable,
                &[Hyper::prior_mode(3, Basis::Variable)],
                30
            )
            .is_some()
        );
        let hyper = Hyper {
            ln_noise: f64::NEG_INFINITY,
            ..Hyper::prior_mode(3, Basis::Variable)
        };
        twice.variances.fill(0.0);
        assert!(Gp::condition(&twice, &COORDINATES, hyper).is_some());
        let constant = Data {
            values: vec![2.0; 10],
            ..data(10, 0.0)
        };
        assert!(
            Gp::fit(
                &constant,
                &COORDINATES,
                Basis::Variable,
                &[Hyper::prior_mode(3, Basis::Variable)],
                30
            )
            .is_some()
        );
    }
}
