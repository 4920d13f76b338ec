//! Whether measuring a good point once more is worth more than a new point, and which is where
//! there is no new one.
//!
//! Noisy expected improvement never asks for an evaluated point: it cannot improve on itself. But
//! when noise hides which of the evaluated points is best, the recommendation gains by a repeat.
//! Both are compared by the knowledge gradient (Frazier, Powell, Dayanik 2009) over the evaluated
//! points and the new one: how much lower the least posterior mean is expected to be after one more
//! measurement.

use crate::gp::mixture::{Mixture, joint};
use crate::gp::{Gp, VARIANCE_MIN};
use crate::numeric::linalg::add_scaled;
use crate::numeric::normal::{log_improvement, quantile};
use crate::space::encode::is_among;

/// Points that compete to be repeated.
const RIVALS_MAX: usize = 8;
/// Pending points that are taken into account, the last ones. A choice of this crate.
const PENDING_MAX: usize = 32;
/// Equally probable outcomes of the measurement that are looked at.
const OUTCOMES: u32 = 64;
/// A repeat has to be worth so many times as much: the knowledge gradient looks one step ahead,
/// while a new point also teaches the model for later steps.
const PREFERENCE_FOR_NEW: f64 = 2.0;

/// The index of the rival worth repeating, if one is, in place of what is `new`; `rivals` are
/// points that are probably feasible, best mean first. What is `pending` will be known: it is not
/// repeated at once, and makes other measurements worth less.
pub(crate) fn worth_repeating(
    objective: &Mixture,
    rivals: &[&[f64]],
    new: Option<&[f64]>,
    pending: &[Vec<f64>],
) -> Option<usize> {
    let count = rivals.len().min(RIVALS_MAX);
    if count < 2 {
        return None;
    }
    let points: Vec<&[f64]> = rivals[..count].iter().copied().chain(new).collect();
    let mut gains = vec![0.0; points.len()];
    for gp in objective.members() {
        add_scaled(
            &mut gains,
            objective.share(),
            &knowledge_gradients(gp, &points, pending),
        );
    }
    let waits = |i: &usize| is_among(pending, rivals[*i]);
    let (best, worth) = (0..count)
        .filter(|i| !waits(i))
        .map(|i| (i, gains[i]))
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    let new_worth = gains.get(count).copied().unwrap_or(0.0).max(0.0);
    (worth > PREFERENCE_FOR_NEW * new_worth && worth > 1e-6).then_some(best)
}

/// The index of the rival to repeat where every point has been tried: the most worth one, or, where
/// one more measurement of none is worth anything, one of the two that are the hardest to tell
/// apart.
pub(crate) fn most_worth_repeating(
    objective: &Mixture,
    rivals: &[&[f64]],
    pending: &[Vec<f64>],
) -> Option<usize> {
    worth_repeating(objective, rivals, None, pending)
        .or_else(|| hard_to_tell_apart(objective, rivals, pending))
}

/// The best rival, or the one that is expected to be better by most, whichever says more about
/// which of these two it is (after the top-two expected improvement of Qin, Klein, Russo 2017).
fn hard_to_tell_apart(
    objective: &Mixture,
    rivals: &[&[f64]],
    pending: &[Vec<f64>],
) -> Option<usize> {
    let points = &rivals[..rivals.len().min(RIVALS_MAX)];
    // Nothing that was tried is probably feasible, or one point alone is.
    if points.len() < 2 {
        return None;
    }
    let processes = objective.members().iter();
    let known: Vec<Known> = processes
        .map(|gp| Known::beside(gp, points, pending))
        .collect();
    let better = |i: usize| {
        let by = |known: &Known| {
            let deviation = known.variance_between(0, i).sqrt();
            let gap = known.means[i] - known.means[0];
            deviation.ln() + log_improvement(-gap / deviation).0
        };
        let logs: Vec<f64> = known.iter().map(by).collect();
        let top = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        top + logs.iter().map(|log| (log - top).exp()).sum::<f64>().ln()
    };
    let waits = |i: &usize| is_among(pending, rivals[*i]);
    let challengers = (1..points.len()).filter(|i| !waits(i));
    let challenger = challengers.max_by(|a, b| better(*a).total_cmp(&better(*b)))?;
    let says = |i: usize| -> f64 {
        let of = known.iter();
        of.map(|known| (known.rows[i][0] - known.rows[i][challenger]).powi(2) / known.measured(i))
            .sum()
    };
    let best_says_more = !waits(&0) && says(0) > says(challenger);
    Some(if best_says_more { 0 } else { challenger })
}

/// How much lower the least posterior mean of `points` is expected to be after one more measurement
/// of each, beside those that are `pending`, whatever comes of them.
fn knowledge_gradients(gp: &Gp, points: &[&[f64]], pending: &[Vec<f64>]) -> Vec<f64> {
    let known = Known::beside(gp, points, pending);
    let now = known.means.iter().copied().fold(f64::INFINITY, f64::min);
    let outcomes = (0..OUTCOMES).map(|k| quantile((f64::from(k) + 0.5) / f64::from(OUTCOMES)));
    let outcomes: Vec<f64> = outcomes.collect();
    let gain = |(i, row): (usize, &Vec<f64>)| {
        let deviation = known.measured(i).sqrt();
        let lowest = |z: f64| {
            known
                .means
                .iter()
                .zip(row)
                .map(|(mean, c)| mean + c / deviation * z)
                .fold(f64::INFINITY, f64::min)
        };
        let expected: f64 = outcomes.iter().map(|z| lowest(*z)).sum();
        now - expected / f64::from(OUTCOMES)
    };
    known.rows.iter().enumerate().map(gain).collect()
}

/// What a process knows of a few points.
struct Known {
    means: Vec<f64>,
    /// Of the covariance matrix.
    rows: Vec<Vec<f64>>,
    noise: f64,
}

impl Known {
    /// Once the latest of those that are `pending` are known too, whatever comes of them.
    fn beside(gp: &Gp, points: &[&[f64]], pending: &[Vec<f64>]) -> Self {
        let noise = gp.hyper.ln_noise.exp() + gp.typical_variance;
        let latest = &pending[pending.len().saturating_sub(PENDING_MAX)..];
        let latest = latest.iter().map(Vec::as_slice);
        let all: Vec<&[f64]> = points.iter().copied().chain(latest).collect();
        let (mut means, covariance) = joint(gp, &all);
        let mut rows: Vec<Vec<f64>> = covariance
            .chunks_exact(all.len())
            .map(<[f64]>::to_vec)
            .collect();
        for known in points.len()..all.len() {
            let row = rows[known].clone();
            let variance = row[known].max(0.0) + noise;
            for (one, rest) in row.iter().zip(&mut rows) {
                add_scaled(rest, -one / variance, &row);
            }
        }
        means.truncate(points.len());
        rows.truncate(points.len());
        Known { means, rows, noise }
    }

    /// The variance of a measurement.
    fn measured(&self, i: usize) -> f64 {
        self.rows[i][i].max(0.0) + self.noise
    }

    /// The variance of the difference.
    fn variance_between(&self, a: usize, b: usize) -> f64 {
        (self.rows[a][a] + self.rows[b][b] - 2.0 * self.rows[a][b]).max(VARIANCE_MIN)
    }
}
