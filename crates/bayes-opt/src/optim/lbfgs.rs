//! Minimising a smooth function in a box: limited-memory BFGS with projection, for length scales
//! and for the last steps of the acquisition (Nocedal & Wright 2006, algorithm 7.4; Armijo
//! backtracking, their equation 3.4).

use crate::numeric::linalg::{add_scaled, dot};

const MEMORY: usize = 8;
/// Sufficient decrease, as in Nocedal & Wright.
const ARMIJO: f64 = 1e-4;

/// The point reached and the value there.
#[derive(Clone, Debug)]
pub(crate) struct Minimum {
    pub(crate) point: Vec<f64>,
    pub(crate) value: f64,
}

/// Minimises `function`, which returns its value and writes its gradient, within `bounds`, in at
/// most `evaluations_max` calls. `first_step` is the length of the first step.
pub(crate) fn minimise(
    start: &[f64],
    bounds: &[(f64, f64)],
    first_step: f64,
    evaluations_max: usize,
    mut function: impl FnMut(&[f64], &mut [f64]) -> f64,
) -> Minimum {
    let n = start.len();
    let clamp = |point: &mut [f64]| {
        point
            .iter_mut()
            .zip(bounds)
            .for_each(|(x, (low, high))| *x = x.clamp(*low, *high));
    };
    let mut point = start.to_vec();
    clamp(&mut point);
    let mut gradient = vec![0.0; n];
    let mut value = function(&point, &mut gradient);
    let mut evaluations = 1;
    let mut pairs: Vec<(Vec<f64>, Vec<f64>, f64)> = Vec::new();
    let (mut next, mut next_gradient) = (vec![0.0; n], vec![0.0; n]);
    while evaluations < evaluations_max && value.is_finite() {
        // Coordinates pressed against their bound are held there.
        let free: Vec<bool> = (0..n)
            .map(|i| {
                let (low, high) = bounds[i];
                !((point[i] <= low && gradient[i] > 0.0) || (point[i] >= high && gradient[i] < 0.0))
            })
            .collect();
        let masked: Vec<f64> = gradient
            .iter()
            .zip(&free)
            .map(|(g, free)| if *free { *g } else { 0.0 })
            .collect();
        let norm = dot(&masked, &masked).sqrt();
        if norm < 1e-7 {
            break;
        }
        let mut direction = two_loop(&masked, &pairs);
        direction
            .iter_mut()
            .zip(&free)
            .for_each(|(d, free)| *d = if *free { -*d } else { 0.0 });
        let mut slope = dot(&direction, &masked);
        if pairs.is_empty() || slope > -1e-12 * norm {
            direction = masked.iter().map(|g| -g / norm * first_step).collect();
            slope = -norm * first_step;
            pairs.clear();
        }
        let mut length = 1.0;
        let mut accepted = false;
        while evaluations < evaluations_max && length > 1e-6 {
            next.copy_from_slice(&point);
            add_scaled(&mut next, length, &direction);
            clamp(&mut next);
            let next_value = function(&next, &mut next_gradient);
            evaluations += 1;
            if next_value.is_finite() && next_value <= value + ARMIJO * length * slope {
                let step: Vec<f64> = next.iter().zip(&point).map(|(a, b)| a - b).collect();
                let change: Vec<f64> = next_gradient
                    .iter()
                    .zip(&gradient)
                    .map(|(a, b)| a - b)
                    .collect();
                let curvature = dot(&step, &change);
                let decrease = value - next_value;
                if curvature > 1e-10 * dot(&change, &change).sqrt() * dot(&step, &step).sqrt() {
                    if pairs.len() == MEMORY {
                        pairs.remove(0);
                    }
                    pairs.push((step, change, curvature));
                }
                std::mem::swap(&mut point, &mut next);
                std::mem::swap(&mut gradient, &mut next_gradient);
                value = next_value;
                accepted = decrease > 1e-9 * (1.0 + value.abs());
                break;
            }
            length *= 0.35;
        }
        if !accepted {
            break;
        }
    }
    Minimum { point, value }
}

/// The inverse Hessian of `pairs` times `gradient`.
fn two_loop(gradient: &[f64], pairs: &[(Vec<f64>, Vec<f64>, f64)]) -> Vec<f64> {
    let mut direction = gradient.to_vec();
    let mut alphas = Vec::with_capacity(pairs.len());
    for (step, change, curvature) in pairs.iter().rev() {
        let alpha = dot(step, &direction) / curvature;
        add_scaled(&mut direction, -alpha, change);
        alphas.push(alpha);
    }
    if let Some((_, change, curvature)) = pairs.last() {
        let scale = curvature / dot(change, change);
        direction.iter_mut().for_each(|d| *d *= scale);
    }
    for ((step, change, curvature), alpha) in pairs.iter().zip(alphas.iter().rev()) {
        let beta = dot(change, &direction) / curvature;
        add_scaled(&mut direction, alpha - beta, step);
    }
    direction
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rosenbrock(x: &[f64], gradient: &mut [f64]) -> f64 {
        let (a, b) = (1.0 - x[0], x[1] - x[0] * x[0]);
        gradient[0] = -2.0 * a - 400.0 * x[0] * b;
        gradient[1] = 200.0 * b;
        a * a + 100.0 * b * b
    }

    #[test]
    fn the_valley_is_walked_to_its_end() {
        let minimum = minimise(&[-1.2, 1.0], &[(-5.0, 5.0); 2], 0.5, 200, rosenbrock);
        assert!(minimum.value < 1e-8, "{minimum:?}");
    }

    #[test]
    fn bounds_hold() {
        let minimum = minimise(
            &[-1.2, 0.2],
            &[(-5.0, 0.5), (-5.0, 5.0)],
            0.5,
            200,
            rosenbrock,
        );
        assert!(
            (minimum.point[0] - 0.5).abs() < 1e-6 && (minimum.point[1] - 0.25).abs() < 1e-3,
            "{minimum:?}"
        );
    }
}
