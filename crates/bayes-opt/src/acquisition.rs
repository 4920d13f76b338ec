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
//!
//! `worth` has the criteria, `conditional` and `joint` the process given true values at some
//! points. `local_penalty` serves where no objective is modelled. [`replication`] decides between a
//! new point and one that was measured already.

mod conditional;
mod joint;
mod local_penalty;
pub(crate) mod replication;
mod worth;

use self::conditional::Conditional;
pub(crate) use self::conditional::Scratch;
use self::joint::{joint, stratified};
use self::worth::Criterion;
use crate::acquisition::local_penalty::Apart;
use crate::gp::Gp;
use crate::gp::mixture::Mixture;
use crate::model::feasibility::Feasibility;
use crate::numeric::linalg::add_scaled;
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
        let chosen: Vec<&[f64]> = base
            .iter()
            .map(|i| evaluated.points[*i].as_slice())
            .chain(evaluated.pending.iter().map(Vec::as_slice))
            .collect();
        let draws = if noisy {
            DRAWS / objective.members().len()
        } else {
            1
        };
        let part = |gp: &Gp| {
            let (conditional, values) = joint(gp, &chosen, draws, seed);
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
mod tests;
