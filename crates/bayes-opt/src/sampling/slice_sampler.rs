//! Draws from a posterior whose prior is standard normal: elliptical slice sampling (Murray, Adams,
//! MacKay 2010, "Elliptical slice sampling", figure 2). It has nothing to set.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::numeric::normal::draw;

/// A bracket of angles as small as this holds nothing but the present state.
const ANGLE_MIN: f64 = 1e-6;

/// A Markov chain of such draws.
pub(crate) struct Chain<F> {
    state: Vec<f64>,
    log_likelihood: F,
    /// Of the present state.
    now: f64,
    rng: ChaCha8Rng,
}

impl<F: FnMut(&[f64]) -> f64> Chain<F> {
    pub(crate) fn new(state: Vec<f64>, seed: u64, mut log_likelihood: F) -> Self {
        let now = log_likelihood(&state);
        Chain {
            state,
            log_likelihood,
            now,
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    pub(crate) fn state(&self) -> &[f64] {
        &self.state
    }

    /// The logarithm of the present state's likelihood.
    pub(crate) fn now(&self) -> f64 {
        self.now
    }

    /// To some state on the ellipse through the present one and a draw of the prior, no less likely
    /// than a random share of what the present one is.
    pub(crate) fn step(&mut self) {
        let other: Vec<f64> = self.state.iter().map(|_| draw(&mut self.rng)).collect();
        let least = self.now + (1.0 - self.rng.random::<f64>()).ln();
        let full = std::f64::consts::TAU;
        let mut angle = full * self.rng.random::<f64>();
        let (mut low, mut high) = (angle - full, angle);
        while high - low > ANGLE_MIN {
            let (sine, cosine) = angle.sin_cos();
            let here = self.state.iter().zip(&other);
            let state: Vec<f64> = here.map(|(a, b)| a * cosine + b * sine).collect();
            let log = (self.log_likelihood)(&state);
            if log > least {
                (self.state, self.now) = (state, log);
                return;
            }
            if angle < 0.0 {
                low = angle;
            } else {
                high = angle;
            }
            angle = low + (high - low) * self.rng.random::<f64>();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_moments_of_the_posterior() {
        // Standard normal prior, a measurement of 1 with variance ¼: mean 0.8, variance 0.2. The
        // second coordinate is free.
        let mut chain = Chain::new(vec![-3.0, 3.0], 1, |x| -2.0 * (x[0] - 1.0).powi(2));
        (0..100).for_each(|_| chain.step());
        let draws: Vec<Vec<f64>> = (0..20_000)
            .map(|_| {
                chain.step();
                chain.state().to_vec()
            })
            .collect();
        for (k, mean, variance) in [(0, 0.8, 0.2), (1, 0.0, 1.0)] {
            let values: Vec<f64> = draws.iter().map(|draw| draw[k]).collect();
            let found = values.iter().sum::<f64>() / 20_000.0;
            let spread = values.iter().map(|x| (x - found).powi(2)).sum::<f64>() / 20_000.0;
            assert!((found - mean).abs() < 0.05, "{k}: {found}");
            assert!((spread - variance).abs() < 0.1 * variance, "{k}: {spread}");
        }
    }

    #[test]
    fn a_state_that_nothing_else_is_as_likely_as_stays() {
        let mut chain = Chain::new(vec![0.5], 1, |x| {
            if (x[0] - 0.5).abs() < 1e-12 {
                0.0
            } else {
                f64::NEG_INFINITY
            }
        });
        chain.step();
        assert!((chain.state()[0] - 0.5).abs() < 1e-9);
        let mut lost = Chain::new(vec![0.5], 1, |_| f64::NAN);
        lost.step();
        assert!(lost.state() == [0.5]);
    }
}
