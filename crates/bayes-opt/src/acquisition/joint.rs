//! True values drawn at points that are chosen, together, and the process given them.

use faer::MatRef;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::conditional::Conditional;
use crate::gp::Gp;
use crate::numeric::linalg::{Cholesky, add_scaled, dot, multiply};
use crate::numeric::normal::quantile;

/// Added to the covariance of the base points, relative to the prior variance, against rounding.
const BASE_JITTER: f64 = 1e-9;

/// The process given draws at the `chosen` points, and the values drawn, draw by draw.
pub(super) fn joint(
    gp: &Gp,
    chosen: &[&[f64]],
    draws: usize,
    seed: u32,
) -> (Conditional, Vec<Vec<f64>>) {
    let n = gp.n();
    let m = chosen.len();
    let mut points = gp.points.clone();
    chosen
        .iter()
        .for_each(|point| points.extend_from_slice(point));
    let features = gp.kernel.features(&points);
    let total = n + m;
    let (map, rows) = map_to(gp, chosen, &points, &features);
    let covariance = covariance_of(gp, &map, &rows);
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
    let whitened = whitened(map, &factor, m, total);
    let components = MatRef::from_row_major_slice(&whitened, m, total);
    let explained = components.transpose() * components;
    // Symmetric: its columns are its rows.
    for (row, explained) in quadratic.chunks_exact_mut(total).zip(explained.col_iter()) {
        let explained = row.iter_mut().zip(explained.iter());
        explained.for_each(|(value, explained)| *value += explained);
    }
    // A single draw is of the median of each: the mean.
    let mut normals = stratified(draws, m, seed);
    normals
        .iter_mut()
        .flatten()
        .for_each(|value| *value = quantile(*value));
    let prior: Vec<f64> = rows
        .iter()
        .zip(chosen)
        .map(|(row, point)| gp.mean_at(point, &row[..n]))
        .collect();
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

/// Row j: the map from `k(x, points)` to `cov(f(x), f(chosenⱼ) | D)`. The other value has
/// `k(chosenⱼ, points)` for each.
fn map_to(
    gp: &Gp,
    chosen: &[&[f64]],
    points: &[f64],
    features: &[f64],
) -> (Vec<f64>, Vec<Vec<f64>>) {
    let (n, m) = (gp.n(), chosen.len());
    let total = n + m;
    let mut map = vec![0.0; m * total];
    let mut rows = Vec::with_capacity(m);
    for (j, point) in chosen.iter().enumerate() {
        let (row, _) = gp.kernel.row(point, points, features);
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
    (map, rows)
}

/// The covariance of the chosen points, given the data.
fn covariance_of(gp: &Gp, map: &[f64], rows: &[Vec<f64>]) -> Vec<f64> {
    let m = rows.len();
    let total = gp.n() + m;
    let mut covariance = vec![0.0; m * m];
    for i in 0..m {
        for j in 0..=i {
            let value = dot(&rows[i], &map[j * total..(j + 1) * total]);
            covariance[i * m + j] = value;
            covariance[j * m + i] = value;
        }
        covariance[i * m + i] = covariance[i * m + i].max(0.0) + BASE_JITTER * gp.kernel.scale;
    }
    covariance
}

/// `L⁻¹ · map`: row j is the map to the j-th independent component.
fn whitened(map: Vec<f64>, factor: &Cholesky, m: usize, total: usize) -> Vec<f64> {
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
    whitened
}

/// For each component, `draws` numbers in (0, 1), one in each of as many equal parts, in an order
/// of its own: few draws are enough for a sum of components, and no two components move together,
/// as those of a short Sobol sequence do.
pub(super) fn stratified(draws: usize, components: usize, seed: u32) -> Vec<Vec<f64>> {
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
