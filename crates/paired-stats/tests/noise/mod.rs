//! Seeded noise for the simulations: normal, heavy-tailed and autocorrelated.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// The shape of a random part, each of mean 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shape {
    /// Standard normal.
    Normal,
    /// Student t with 3 degrees of freedom: the heaviest integer tail that still has a variance.
    HeavyTailed,
    /// Shifted lognormal (log-sd 0.5): skewed to slow outliers, as latencies are.
    Skewed,
}

/// A standard normal number (Box and Muller 1958).
pub(crate) fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

/// One number of the given shape.
pub(crate) fn draw(shape: Shape, rng: &mut ChaCha8Rng) -> f64 {
    match shape {
        Shape::Normal => normal(rng),
        Shape::HeavyTailed => {
            let chi_squared: f64 = (0..3).map(|_| normal(rng).powi(2)).sum();
            normal(rng) / (chi_squared / 3.0).sqrt()
        }
        Shape::Skewed => (0.5 * normal(rng)).exp() - 0.125f64.exp(),
    }
}

/// A stationary AR(1) series of normal numbers with variance 1 and lag-one correlation `rho`.
#[allow(dead_code, reason = "not every simulation uses it")]
pub(crate) fn autocorrelated(rho: f64, n: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let mut last = normal(rng);
    (0..n)
        .map(|_| {
            let now = last;
            last = rho * last + (1.0 - rho * rho).sqrt() * normal(rng);
            now
        })
        .collect()
}
