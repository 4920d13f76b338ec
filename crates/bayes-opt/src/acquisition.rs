//! What a point is worth: acquisition functions with gradients, on an objective process and
//! feasibility processes.
//!
//! Noisy expected improvement (Letham, Karrer, Ottoni, Bakshy 2019, "Constrained Bayesian
//! optimization with noisy experiments") draws the true values at the promising evaluated points
//! and at the pending ones, and averages the closed-form expected improvement over the draws; each
//! is taken and summed in logarithms (Ament et al. 2023). With B those points and D the data,
//! `f(x) | f(B), D` has a mean that is linear and a variance that is quadratic in `k(x, D ∪ B)`, so
//! all draws share one matrix. Without noise the draws agree, and what is left is expected
//! improvement.

use faer::MatRef;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::feasibility::Feasibility;
use crate::gp::{Gp, VARIANCE_MIN};
use crate::kernel::Kernel;
use crate::linalg::{Cholesky, add_scaled, dot, multiply};
use crate::local_penalty::Apart;
use crate::mixture::Mixture;
use crate::normal::{log_cdf, log_improvement, quantile};
use crate::settings::Acquisition;

/// Draws of the true values, of all processes together; stratified, so few are enough.
const DRAWS: usize = 64;
/// Pending points that are drawn too, the last ones: each ask takes as long as it is of so many
/// more observations. A choice of this crate.
const PENDING_MAX: usize = 128;
/// Evaluated points that may be the best: beyond so many, the least promising are left out.
const BASE_POINTS_MAX: usize = 24;
/// A point stays among them while its probability of beating the best mean is more than this many
/// deviations below ½.
const BASE_DEVIATIONS: f64 = 3.0;
/// Added to the covariance of the base points, relative to the prior variance, against rounding.
const BASE_JITTER: f64 = 1e-9;

/// Points that are evaluated at once: enough for matrix products, few enough for a processor's
/// cache.
const BATCH: usize = 128;

/// The logarithm of an improvement (in standard deviations of the objective) that is no reason to
/// risk a crash: 10⁻⁶. Below it the logarithm falls ever more slowly, so that the order of points
/// stays, but feasibility decides between them.
const NEGLIGIBLE: f64 = -13.8;

/// A linear mean and a quadratic variance in `k(x, points)`, for one draw or several.
#[derive(Clone, Debug)]
struct Conditional {
    kernel: Kernel,
    points: Vec<f64>,
    features: Vec<f64>,
    mean: f64,
    /// Row j: what the covariance with point j adds to the mean of each draw.
    weights: Vec<f64>,
    draws: usize,
    quadratic: Vec<f64>,
}

/// What an evaluation leaves to its gradient, and room for both.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    row: Vec<f64>,
    slopes: Vec<f64>,
    /// `quadratic · row`.
    product: Vec<f64>,
    means: Vec<f64>,
    logs: Vec<(f64, f64, f64)>,
    /// What each part says, then how the result follows it.
    of_parts: Vec<f64>,
    /// The gradient of what each part says, one after the other.
    gradients: Vec<f64>,
}

impl Conditional {
    fn of(gp: &Gp) -> Self {
        Conditional {
            kernel: gp.kernel.clone(),
            points: gp.points.clone(),
            features: gp.features.clone(),
            mean: gp.mean,
            weights: gp.alpha.clone(),
            draws: 1,
            quadratic: gp.inverse.clone(),
        }
    }

    /// Fills `scratch.means` and returns the variance.
    fn evaluate(&self, x: &[f64], scratch: &mut Scratch) -> f64 {
        (scratch.row, scratch.slopes) = self.kernel.row(x, &self.points, &self.features);
        scratch.means.clear();
        scratch
            .means
            .resize(self.draws, self.mean + self.kernel.expected(x));
        for (covariance, weights) in scratch
            .row
            .iter()
            .zip(self.weights.chunks_exact(self.draws))
        {
            add_scaled(&mut scratch.means, *covariance, weights);
        }
        scratch.product = multiply(&self.quadratic, &scratch.row);
        let explained = dot(&scratch.row, &scratch.product);
        (self.kernel.variance(x) - explained).max(VARIANCE_MIN)
    }

    /// Calls `take` with the number of each point, its mean in every draw and its variance.
    fn evaluate_all(&self, points: &[Vec<f64>], mut take: impl FnMut(usize, &[f64], f64)) {
        let n = self.points.len() / self.kernel.dimension().max(1);
        let mut rows = self.kernel.rows(&self.points, &self.features);
        let quadratic = MatRef::from_row_major_slice(&self.quadratic, n, n);
        let weights = MatRef::from_column_major_slice(&self.weights, self.draws, n);
        let mut covariances = Vec::with_capacity(BATCH * n);
        let mut means = vec![0.0; self.draws];
        for (batch, first) in points.chunks(BATCH).zip((0..).step_by(BATCH)) {
            covariances.clear();
            for point in batch {
                rows.append(point, &mut covariances);
            }
            // A point a column.
            let columns = MatRef::from_column_major_slice(&covariances, n, batch.len());
            let (products, shifts) = (quadratic * columns, weights * columns);
            for (i, point) in batch.iter().enumerate() {
                let row = &covariances[i * n..(i + 1) * n];
                let explained = dot(row, products.col_as_slice(i));
                let prior = self.mean + self.kernel.expected(point);
                for (mean, shift) in means.iter_mut().zip(shifts.col_as_slice(i)) {
                    *mean = prior + shift;
                }
                let variance = (self.kernel.variance(point) - explained).max(VARIANCE_MIN);
                take(first + i, &means, variance);
            }
        }
    }

    /// Adds the gradient of a function of means and deviation, given its derivatives by each.
    fn pull_back(
        &self,
        x: &[f64],
        by_means: &[f64],
        by_deviation: f64,
        variance: f64,
        scratch: &Scratch,
        gradient: &mut [f64],
    ) {
        // The variance is cut off at its least value: no slope there.
        let by_variance = if variance > VARIANCE_MIN {
            by_deviation / (2.0 * variance.sqrt())
        } else {
            0.0
        };
        let mut factors = multiply(&self.weights, by_means);
        add_scaled(&mut factors, -2.0 * by_variance, &scratch.product);
        let (points, features, slopes) = (&self.points, &self.features, &scratch.slopes);
        self.kernel
            .gradient(x, points, features, slopes, &factors, gradient);
        self.kernel.variance_gradient(x, by_variance, gradient);
        self.kernel
            .expected_gradient(x, by_means.iter().sum(), gradient);
    }
}

#[derive(Clone, Debug)]
enum Criterion {
    Improvement { bests: Vec<f64> },
    Probability { best: f64 },
    Confidence { root_beta: f64 },
}

/// An acquisition function, to be maximised.
#[derive(Clone, Debug)]
pub(crate) struct AcquisitionFunction {
    /// One for each process of the objective.
    parts: Vec<Part>,
    feasibilities: Vec<(Feasibility, Conditional)>,
    /// From what is pending, where there is no objective.
    apart: Apart,
}

/// What one process of the objective says.
#[derive(Clone, Debug)]
struct Part {
    conditional: Conditional,
    worth: Criterion,
}

/// Evaluated points, with the probability that each is feasible, as an acquisition needs them.
pub(crate) struct Evaluated<'a> {
    /// Points, each once.
    pub(crate) points: &'a [Vec<f64>],
    /// The objective process's mean and variance at each.
    pub(crate) posteriors: &'a [(f64, f64)],
    pub(crate) feasible: &'a [f64],
    pub(crate) pending: &'a [Vec<f64>],
}

impl AcquisitionFunction {
    /// The worth of points under `acquisition`; without an objective process, feasibility alone.
    pub(crate) fn new(
        acquisition: Acquisition,
        objective: Option<&Mixture>,
        feasibilities: &[Feasibility],
        evaluated: &Evaluated<'_>,
        seed: u32,
    ) -> AcquisitionFunction {
        let feasibilities = feasibilities
            .iter()
            .map(|f| (f.clone(), Conditional::of(&f.gp)))
            .collect();
        let Some(objective) = objective else {
            return AcquisitionFunction {
                parts: Vec::new(),
                feasibilities,
                apart: Apart::from(evaluated.pending),
            };
        };
        let latest = evaluated.pending.len().saturating_sub(PENDING_MAX);
        let evaluated = &Evaluated {
            pending: &evaluated.pending[latest..],
            ..*evaluated
        };
        let means: Vec<f64> = evaluated.posteriors.iter().map(|(mean, _)| *mean).collect();
        let worst = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let likely = means
            .iter()
            .zip(evaluated.feasible)
            .filter(|(_, p)| **p >= 0.5)
            .map(|(mean, _)| *mean);
        let best = likely.fold(f64::INFINITY, f64::min);
        let best = if best.is_finite() { best } else { worst };
        let noisy = acquisition == Acquisition::LogNoisyEi;
        let base = if noisy {
            base_points(evaluated, &means, best)
        } else {
            Vec::new()
        };
        let draws = if noisy {
            DRAWS / objective.members().len()
        } else {
            1
        };
        let part = |gp: &Gp| {
            let (conditional, values) = joint(gp, &base, evaluated, draws, seed);
            let worth = match acquisition {
                Acquisition::LogNoisyEi => Criterion::Improvement {
                    bests: best_of_draws(&values, &base, evaluated, worst.max(best), seed),
                },
                Acquisition::Ei | Acquisition::LogEi => {
                    Criterion::Improvement { bests: vec![best] }
                }
                Acquisition::Poi => Criterion::Probability { best },
                Acquisition::Ucb { beta } => Criterion::Confidence {
                    root_beta: beta.sqrt(),
                },
            };
            Part { conditional, worth }
        };
        AcquisitionFunction {
            parts: objective.members().iter().map(part).collect(),
            feasibilities,
            apart: Apart::default(),
        }
    }

    /// How many processes of the objective are evaluated for a point; at least 1.
    pub(crate) fn parts(&self) -> f64 {
        self.parts.len().max(1) as f64
    }

    /// How many are in all, with those of feasibility; at least 1.
    pub(crate) fn processes(&self) -> f64 {
        (self.parts.len() + self.feasibilities.len()).max(1) as f64
    }

    /// The acquisition at `x`, in logarithms (but for the confidence bound); its gradient is added
    /// to `gradient` where one is given.
    pub(crate) fn evaluate(
        &self,
        x: &[f64],
        scratch: &mut Scratch,
        mut gradient: Option<&mut [f64]>,
    ) -> f64 {
        scratch.of_parts.clear();
        scratch.gradients.clear();
        for part in &self.parts {
            let variance = part.conditional.evaluate(x, scratch);
            let means = std::mem::take(&mut scratch.means);
            let gain = part
                .worth
                .at(&means, variance, &mut scratch.logs, gradient.is_some());
            scratch.means = means;
            scratch.of_parts.push(gain.log);
            if gradient.is_some() {
                let mut gradients = std::mem::take(&mut scratch.gradients);
                let first = gradients.len();
                gradients.resize(first + x.len(), 0.0);
                let own = &mut gradients[first..];
                let (by_means, by_deviation) = (&gain.by_means, gain.by_deviation);
                part.conditional
                    .pull_back(x, by_means, by_deviation, variance, scratch, own);
                scratch.gradients = gradients;
            }
        }
        let mut total = self.mixed(&mut scratch.of_parts);
        if let Some(gradient) = gradient.as_deref_mut() {
            let gradients = scratch.gradients.chunks_exact(x.len().max(1));
            for (own, factor) in gradients.zip(&scratch.of_parts) {
                add_scaled(gradient, *factor, own);
            }
        }
        for (feasibility, conditional) in &self.feasibilities {
            let variance = conditional.evaluate(x, scratch);
            let (log, by_mean, by_deviation) = feasibility.log_odds(scratch.means[0], variance);
            total += log;
            if let Some(gradient) = gradient.as_deref_mut() {
                conditional.pull_back(x, &[by_mean], by_deviation, variance, scratch, gradient);
            }
        }
        total + self.apart.log(x, gradient)
    }

    /// For each of `points` what the acquisition is at the most: as it would be if all draws were
    /// the luckiest one. Takes far less time than the acquisition itself, point by point.
    pub(crate) fn at_most(&self, points: &[Vec<f64>]) -> Vec<f64> {
        let mut of_parts = vec![0.0; points.len() * self.parts.len()];
        for (index, part) in self.parts.iter().enumerate() {
            part.conditional.evaluate_all(points, |i, means, variance| {
                of_parts[i * self.parts.len() + index] = part.worth.at_most(means, variance);
            });
        }
        let mut totals = vec![0.0; points.len()];
        let of_parts = of_parts.chunks_exact_mut(self.parts.len().max(1));
        for (total, of_point) in totals.iter_mut().zip(of_parts) {
            *total = self.mixed(of_point);
        }
        for (feasibility, conditional) in &self.feasibilities {
            conditional.evaluate_all(points, |i, means, variance| {
                totals[i] += feasibility.log_odds(means[0], variance).0;
            });
        }
        for (total, point) in totals.iter_mut().zip(points) {
            *total += self.apart.log(point, None);
        }
        totals
    }

    /// What all parts say together, given what each says: the logarithm of the mean worth, or the
    /// mean bound. Leaves in each part's place how the result follows it.
    fn mixed(&self, of_parts: &mut [f64]) -> f64 {
        let share = 1.0 / self.parts();
        if self
            .parts
            .iter()
            .any(|part| matches!(part.worth, Criterion::Confidence { .. }))
        {
            let mean = share * of_parts.iter().sum::<f64>();
            of_parts.fill(share);
            return mean;
        }
        if of_parts.is_empty() {
            return 0.0;
        }
        let top = of_parts.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weight = |log: &mut f64| *log = share * (*log - top).exp();
        of_parts.iter_mut().for_each(weight);
        let sum: f64 = of_parts.iter().sum();
        of_parts.iter_mut().for_each(|part| *part /= sum);
        top + sum.ln()
    }
}

/// The logarithm of what a point is worth, and its derivatives by each draw's mean and by the
/// deviation.
struct Gain {
    log: f64,
    by_means: Vec<f64>,
    by_deviation: f64,
}

impl Criterion {
    /// What [`Criterion::at`] is at the most, by the draw that the point is furthest ahead in.
    fn at_most(&self, means: &[f64], variance: f64) -> f64 {
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

    fn at(
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

/// The evaluated points (by index) that may be the best, most promising first.
fn base_points(evaluated: &Evaluated<'_>, means: &[f64], best: f64) -> Vec<usize> {
    let mut scored: Vec<(f64, usize)> = (0..means.len())
        .filter(|i| evaluated.feasible[*i] > 0.01)
        .map(|i| ((means[i] - best) / evaluated.posteriors[i].1.sqrt(), i))
        .collect();
    scored.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    // The deviation of the difference to the best is at most √2 of the larger one: be generous.
    let keep = |(position, (score, _)): &(usize, (f64, usize))| {
        *position == 0 || (*position < BASE_POINTS_MAX && *score < BASE_DEVIATIONS)
    };
    scored
        .into_iter()
        .enumerate()
        .filter(keep)
        .map(|(_, (_, index))| index)
        .collect()
}

/// The process given draws at the base points and the pending ones, and the values drawn, draw by
/// draw.
fn joint(
    gp: &Gp,
    base: &[usize],
    evaluated: &Evaluated<'_>,
    draws: usize,
    seed: u32,
) -> (Conditional, Vec<Vec<f64>>) {
    let n = gp.n();
    let chosen: Vec<&[f64]> = base
        .iter()
        .map(|i| evaluated.points[*i].as_slice())
        .chain(evaluated.pending.iter().map(Vec::as_slice))
        .collect();
    let m = chosen.len();
    let mut points = gp.points.clone();
    chosen
        .iter()
        .for_each(|point| points.extend_from_slice(point));
    let features = gp.kernel.features(&points);
    let total = n + m;
    // Column j of the map from k(x, points) to cov(f(x), f(chosenⱼ) | D), kept as row j.
    let mut map = vec![0.0; m * total];
    let mut rows = Vec::with_capacity(m);
    for (j, point) in chosen.iter().enumerate() {
        let (row, _) = gp.kernel.row(point, &points, &features);
        if let Some((measured, noise)) = gp.observation_at(point) {
            // The same, by M⁻¹ k(D, point) = (1 − noise · M⁻¹) of its unit vector: without noise
            // there is nothing left to draw, and no rounding that would say otherwise.
            for i in 0..n {
                map[j * total + i] = noise * gp.inverse[measured * n + i];
            }
        } else {
            let solved = multiply(&gp.inverse, &row[..n]);
            (0..n).for_each(|i| map[j * total + i] = -solved[i]);
            map[j * total + n + j] = 1.0;
        }
        rows.push(row);
    }
    let mut covariance = vec![0.0; m * m];
    for i in 0..m {
        for j in 0..=i {
            let value = dot(&rows[i], &map[j * total..(j + 1) * total]);
            covariance[i * m + j] = value;
            covariance[j * m + i] = value;
        }
        covariance[i * m + i] = covariance[i * m + i].max(0.0) + BASE_JITTER * gp.kernel.scale;
    }
    let mut quadratic = vec![0.0; total * total];
    for i in 0..n {
        quadratic[i * total..i * total + n].copy_from_slice(&gp.inverse[i * n..(i + 1) * n]);
    }
    let mut weights = vec![0.0; total * draws];
    for i in 0..n {
        weights[i * draws..(i + 1) * draws].fill(gp.alpha[i]);
    }
    let mut values = vec![Vec::new(); draws];
    let conditional = |weights, quadratic| Conditional {
        kernel: gp.kernel.clone(),
        points,
        features,
        mean: gp.mean,
        weights,
        draws,
        quadratic,
    };
    let Some(factor) = Cholesky::with_jitter(covariance, m) else {
        return (conditional(weights, quadratic), values);
    };
    // whitened = L⁻¹ · map: row j is the map to the j-th independent component.
    let mut whitened = map;
    for j in 0..m {
        let (done, rest) = whitened.split_at_mut(j * total);
        let current = &mut rest[..total];
        let lower = factor.row(j);
        for k in 0..j {
            add_scaled(current, -lower[k], &done[k * total..(k + 1) * total]);
        }
        current.iter_mut().for_each(|value| *value /= lower[j]);
    }
    let components = MatRef::from_row_major_slice(&whitened, m, total);
    let explained = components.transpose() * components;
    // Symmetric: its columns are its rows.
    for (row, explained) in quadratic.chunks_exact_mut(total).zip(explained.col_iter()) {
        let explained = row.iter_mut().zip(explained.iter());
        explained.for_each(|(value, explained)| *value += explained);
    }
    let prior: Vec<f64> = rows
        .iter()
        .zip(&chosen)
        .map(|(row, point)| gp.mean_at(point, &row[..n]))
        .collect();
    // A single draw is of the median of each: the mean.
    let mut normals = stratified(draws, m, seed);
    normals
        .iter_mut()
        .flatten()
        .for_each(|value| *value = quantile(*value));
    for (draw, value) in values.iter_mut().enumerate() {
        let normal: Vec<f64> = normals.iter().map(|component| component[draw]).collect();
        *value = (0..m)
            .map(|j| prior[j] + dot(factor.row(j), &normal[..=j]))
            .collect();
    }
    for (component, normals) in whitened.chunks_exact(total).zip(&normals) {
        for (weights, component) in weights.chunks_exact_mut(draws).zip(component) {
            add_scaled(weights, *component, normals);
        }
    }
    (conditional(weights, quadratic), values)
}

/// For each component, `draws` numbers in (0, 1), one in each of as many equal parts, in an order
/// of its own: few draws are enough for a sum of components, and no two components move together,
/// as those of a short Sobol sequence do.
fn stratified(draws: usize, components: usize, seed: u32) -> Vec<Vec<f64>> {
    let mut rng = ChaCha8Rng::seed_from_u64(u64::from(seed));
    let mut component = || {
        let mut values: Vec<f64> = (0..draws)
            .map(|k| (k as f64 + 0.5) / draws as f64)
            .collect();
        values.shuffle(&mut rng);
        values
    };
    (0..components).map(|_| component()).collect()
}

/// The best feasible value of each draw. Feasibility is drawn too, point by point; where no point
/// is feasible, anything better than the worst is an improvement.
fn best_of_draws(
    values: &[Vec<f64>],
    base: &[usize],
    evaluated: &Evaluated<'_>,
    worst: f64,
    seed: u32,
) -> Vec<f64> {
    let components = values.first().map_or(0, Vec::len);
    let chances = stratified(values.len(), components, seed ^ 0x5eed);
    let draw = |(index, values): (usize, &Vec<f64>)| {
        let feasible = values
            .iter()
            .zip(&chances)
            .enumerate()
            .filter(|(j, (_, chance))| {
                // Of a pending point nothing is known but the models; its value counts as if it
                // were feasible.
                base.get(*j)
                    .is_none_or(|i| chance[index] < evaluated.feasible[*i])
            });
        let best = feasible
            .map(|(_, (value, _))| *value)
            .fold(f64::INFINITY, f64::min);
        if best.is_finite() { best } else { worst }
    };
    values.iter().enumerate().map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinate::Coordinate;
    use crate::data::Data;
    use crate::design::sobol;
    use crate::feasibility::Demand;
    use crate::hyper::Hyper;
    use crate::trend::Shared;

    const D: usize = 4;
    const COORDINATES: [Coordinate; D] = [
        Coordinate::Ordered,
        Coordinate::Continuous,
        Coordinate::Binary,
        Coordinate::Binary,
    ];

    /// Two processes of the same observations, and their points.
    fn objective(noise: f64) -> (Mixture, Vec<Vec<f64>>) {
        let points: Vec<Vec<f64>> = (0..12).map(|index| sobol(index, D, 3)).collect();
        let values: Vec<f64> = points
            .iter()
            .map(|x| (7.0 * x[0]).sin() + (x[1] - 0.3).powi(2) + 0.2 * (x[2] + x[3]))
            .collect();
        let data = Data {
            points: points.concat(),
            variances: vec![noise; values.len()],
            weights: vec![1.0; values.len()],
            values,
            mean_prior: (0.0, 1.0),
            earlier: Vec::new(),
        };
        let with = |half_cosine: f64, ln_length: f64| {
            let hyper = Hyper {
                ln_lengths: vec![ln_length; D],
                ln_noise: f64::NEG_INFINITY,
                ln_scale: 0.0,
                half_cosine,
                shared: Shared {
                    quadratic: half_cosine > 0.0,
                    linear: half_cosine > 0.0,
                },
                earlier: Vec::new(),
            };
            Gp::condition(&data, &COORDINATES, hyper).unwrap()
        };
        let mixture = Mixture::new(vec![with(0.5, -1.2), with(0.0, -0.4)]);
        (mixture.unwrap(), points)
    }

    fn surface(acquisition: Acquisition, noise: f64, pending: &[Vec<f64>]) -> AcquisitionFunction {
        let (objective, points) = objective(noise);
        let posteriors: Vec<(f64, f64)> = (0..points.len())
            .map(|i| objective.posterior_at(i))
            .collect();
        let viability = Feasibility {
            gp: objective.members()[0].clone(),
            demand: Demand::Survives,
        };
        let evaluated = Evaluated {
            points: &points,
            posteriors: &posteriors,
            feasible: &[0.9; 12],
            pending,
        };
        let evaluated = if noise == 0.0 {
            Evaluated {
                feasible: &[1.0; 12],
                ..evaluated
            }
        } else {
            evaluated
        };
        let feasibilities: &[Feasibility] = if noise == 0.0 { &[] } else { &[viability] };
        AcquisitionFunction::new(acquisition, Some(&objective), feasibilities, &evaluated, 9)
    }

    #[test]
    fn noisy_improvement_is_improvement_without_noise() {
        let noisy = surface(Acquisition::LogNoisyEi, 0.0, &[]);
        let plain = surface(Acquisition::LogEi, 0.0, &[]);
        let mut scratch = Scratch::default();
        for index in 100..200 {
            let x = sobol(index, D, 4);
            let (a, b) = (
                noisy.evaluate(&x, &mut scratch, None),
                plain.evaluate(&x, &mut scratch, None),
            );
            assert!((a.exp() - b.exp()).abs() < 1e-6, "{a} {b}");
        }
    }

    #[test]
    fn gradients_are_difference_quotients() {
        let all = [
            Acquisition::LogNoisyEi,
            Acquisition::Ei,
            Acquisition::LogEi,
            Acquisition::Poi,
            Acquisition::Ucb { beta: 2.0 },
        ];
        for acquisition in all {
            let surface = surface(acquisition, 0.01, &[vec![0.3, 0.6, 0.0, 1.0]]);
            let mut scratch = Scratch::default();
            // More points than are evaluated at once.
            let points: Vec<Vec<f64>> = (0..300).map(|index| sobol(index, D, 5)).collect();
            for (x, at_most) in points.iter().zip(surface.at_most(&points)) {
                let value = surface.evaluate(x, &mut scratch, None);
                let gap = at_most - value;
                // Its draws are half of all for each of two processes, and without draws there is
                // no luck.
                let widest = match acquisition {
                    Acquisition::LogNoisyEi => (DRAWS as f64 / 2.0).ln(),
                    _ => 0.0,
                };
                assert!(
                    (-1e-9..widest + 1e-9).contains(&gap),
                    "{acquisition:?} {value} {at_most}"
                );
            }
            for index in 50..60 {
                let x = sobol(index, D, 4);
                let mut gradient = vec![0.0; D];
                surface.evaluate(&x, &mut scratch, Some(&mut gradient));
                for k in 0..D {
                    let mut moved = |step: f64| {
                        let mut x = x.clone();
                        x[k] += step;
                        surface.evaluate(&x, &mut scratch, None)
                    };
                    let quotient = (moved(1e-6) - moved(-1e-6)) / 2e-6;
                    assert!(
                        (quotient - gradient[k]).abs() < 1e-3 * (1.0 + quotient.abs()),
                        "{acquisition:?} {quotient} {}",
                        gradient[k]
                    );
                }
            }
        }
    }

    #[test]
    fn a_pending_point_is_not_worth_asking_again() {
        let mut scratch = Scratch::default();
        let x = vec![0.68, 0.3, 0.0, 0.0];
        let free = surface(Acquisition::LogNoisyEi, 0.01, &[]).evaluate(&x, &mut scratch, None);
        let taken = surface(Acquisition::LogNoisyEi, 0.01, std::slice::from_ref(&x)).evaluate(
            &x,
            &mut scratch,
            None,
        );
        assert!(taken < free - 2.0, "{taken} {free}");
    }
}
