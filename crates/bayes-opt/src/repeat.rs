//! Whether measuring a good point once more is worth more than a new point.
//!
//! Noisy expected improvement never asks for an evaluated point: it cannot improve on itself. But when noise hides which
//! of the evaluated points is best, the recommendation gains by a repeat. Both are compared by the knowledge gradient
//! (Frazier, Powell, Dayanik 2009) over the evaluated points and the new one: how much lower the least posterior mean is
//! expected to be after one more measurement.

use crate::encode::same_point;
use crate::gp::Gp;
use crate::linalg::add_scaled;
use crate::mixture::{Mixture, joint};
use crate::normal::quantile;

/// Points that compete to be repeated.
const RIVALS_MAX: usize = 8;
/// Pending points that are taken into account, the last ones. A choice of this crate.
const PENDING_MAX: usize = 32;
/// Equally probable outcomes of the measurement that are looked at.
const OUTCOMES: u32 = 64;
/// A repeat has to be worth so many times as much: the knowledge gradient looks one step ahead, while a new point also
/// teaches the model for later steps.
const PREFERENCE_FOR_NEW: f64 = 2.0;

/// The index of the rival worth repeating, if one is; `rivals` are points that are probably feasible, best mean first. What is
/// `pending` will be known: it is not repeated at once, and makes other measurements worth less.
pub(crate) fn worth_repeating(
    objective: &Mixture,
    rivals: &[&[f64]],
    new: &[f64],
    pending: &[Vec<f64>],
) -> Option<usize> {
    let count = rivals.len().min(RIVALS_MAX);
    if count < 2 {
        return None;
    }
    let points: Vec<&[f64]> = rivals[..count].iter().copied().chain([new]).collect();
    let latest = &pending[pending.len().saturating_sub(PENDING_MAX)..];
    let mut gains = vec![0.0; points.len()];
    for gp in objective.members() {
        add_scaled(
            &mut gains,
            objective.share(),
            &knowledge_gradients(gp, &points, latest),
        );
    }
    let waits = |i: &usize| pending.iter().any(|other| same_point(other, rivals[*i]));
    let (best, worth) = (0..count)
        .filter(|i| !waits(i))
        .map(|i| (i, gains[i]))
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    (worth > PREFERENCE_FOR_NEW * gains[count].max(0.0) && worth > 1e-6).then_some(best)
}

/// How much lower the least posterior mean of `points` is expected to be after one more measurement of each, beside those
/// that are `pending`, whatever comes of them.
fn knowledge_gradients(gp: &Gp, points: &[&[f64]], pending: &[Vec<f64>]) -> Vec<f64> {
    let noise = gp.hyper.ln_noise.exp() + gp.typical_variance;
    let all = points
        .iter()
        .copied()
        .chain(pending.iter().map(Vec::as_slice));
    let all: Vec<&[f64]> = all.collect();
    let (mut means, mut covariance) = joint(gp, &all);
    for known in points.len()..all.len() {
        let row = covariance[known * all.len()..][..all.len()].to_vec();
        let variance = row[known].max(0.0) + noise;
        for (one, rest) in row.iter().zip(covariance.chunks_exact_mut(all.len())) {
            add_scaled(rest, -one / variance, &row);
        }
    }
    means.truncate(points.len());
    let now = means.iter().copied().fold(f64::INFINITY, f64::min);
    let outcomes = (0..OUTCOMES).map(|k| quantile((f64::from(k) + 0.5) / f64::from(OUTCOMES)));
    let outcomes: Vec<f64> = outcomes.collect();
    let gain = |row: &[f64], i: usize| {
        let deviation = (row[i].max(0.0) + noise).sqrt();
        let lowest = |z: f64| {
            means
                .iter()
                .zip(row)
                .map(|(mean, c)| mean + c / deviation * z)
                .fold(f64::INFINITY, f64::min)
        };
        let expected: f64 = outcomes.iter().map(|z| lowest(*z)).sum();
        now - expected / f64::from(OUTCOMES)
    };
    covariance
        .chunks_exact(all.len())
        .take(points.len())
        .enumerate()
        .map(|(i, row)| gain(row, i))
        .collect()
}
