//! What is expected along real numbers beforehand: a bowl, lowest in the middle of the cube.
//!
//! Without it a process knows least at the border, where nothing was measured beyond, and a search asks there too often
//! (Siivola, Vehtari, Vanhatalo, González, Andersen 2018, "Correcting boundary over-exploration deficiencies in Bayesian
//! optimization with virtual derivative sign observations"). Who gives a range of real numbers expects the best inside.
//! Its depth is normal, so that data soon say if there is none, and it bends along each coordinate by how much that
//! matters. Knobs that are counted or ordered have half a wave in its place ([`Coordinate::has_wave`]).

use crate::kernel::{Coordinate, MIDDLE, UNIFORM_PRECISION};
use crate::linalg::weighted_squares;

/// Mean and deviation of how much lower the middle is than the average over the cube, in deviations of the objective, where
/// all coordinates are real numbers. Choices of this crate (`docs/results/tuners-tried.md`).
const DEPTH: (f64, f64) = (0.7, 0.7);

/// The bend along each coordinate; empty where no bowl is expected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bowl {
    bends: Vec<f64>,
    /// The middle of the cube, and the average over it.
    middle: Vec<f64>,
    average: f64,
}

impl Bowl {
    /// The depth is divided by the coordinates' 1/ℓ², and is less by the share of those that are no real numbers.
    pub(crate) fn new(coordinates: &[Coordinate], ln_lengths: &[f64]) -> Self {
        let real = |coordinate: &&Coordinate| **coordinate == Coordinate::Real;
        let reals = coordinates.iter().filter(real).count();
        if reals == 0 {
            return Bowl::default();
        }
        let share = reals as f64 / coordinates.len() as f64;
        let matters = || ln_lengths.iter().map(|ln| (-2.0 * ln).exp());
        let each = UNIFORM_PRECISION * share / matters().sum::<f64>();
        let bends = coordinates
            .iter()
            .zip(matters())
            .map(|(coordinate, matters)| {
                if real(&coordinate) {
                    each * matters
                } else {
                    0.0
                }
            });
        let bends: Vec<f64> = bends.collect();
        Bowl {
            middle: vec![MIDDLE; bends.len()],
            average: bends.iter().sum::<f64>() / UNIFORM_PRECISION,
            bends,
        }
    }

    pub(crate) fn is_flat(&self) -> bool {
        self.bends.is_empty()
    }

    /// How high `x` lies in a bowl of depth 1: 0 on average, −1 in the middle where all coordinates are real numbers.
    pub(crate) fn height(&self, x: &[f64]) -> f64 {
        if self.is_flat() {
            return 0.0;
        }
        weighted_squares(x, &self.middle, &self.bends) - self.average
    }

    /// The mean of the values at `x` that the bowl adds.
    pub(crate) fn mean(&self, x: &[f64]) -> f64 {
        DEPTH.0 * self.height(x)
    }

    /// Adds `factor` times the gradient of [`Bowl::mean`].
    pub(crate) fn mean_gradient(&self, x: &[f64], factor: f64, gradient: &mut [f64]) {
        self.height_gradient(x, DEPTH.0 * factor, gradient);
    }

    /// What the bowl adds to the deviation of the value at a point of this height.
    pub(crate) fn deviation(height: f64) -> f64 {
        DEPTH.1 * height
    }

    /// Adds `factor` times the gradient of [`Bowl::height`].
    pub(crate) fn height_gradient(&self, x: &[f64], factor: f64, gradient: &mut [f64]) {
        for ((gradient, bend), x) in gradient.iter_mut().zip(&self.bends).zip(x) {
            *gradient += factor * bend * 2.0 * (x - MIDDLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bowl_is_0_on_average_and_as_deep_as_the_share_of_real_numbers() {
        let all = Bowl::new(&[Coordinate::Real; 2], &[0.0, 1.0]);
        let places: Vec<f64> = (0..100).map(|i| (f64::from(i) + 0.5) / 100.0).collect();
        let heights = places
            .iter()
            .flat_map(|x| places.iter().map(|y| all.height(&[*x, *y])));
        assert!((heights.sum::<f64>() / 1e4).abs() < 1e-3);
        assert!((all.height(&[0.5; 2]) + 1.0).abs() < 1e-12);
        // The shorter the length scale, the steeper.
        assert!(all.height(&[0.0, 0.5]) > all.height(&[0.5, 0.0]));
        let half = Bowl::new(&[Coordinate::Real, Coordinate::Whole], &[0.0; 2]);
        assert!((half.height(&[0.5, 0.0]) + 0.25).abs() < 1e-12);
        assert!(half.height(&[0.5, 0.0]) == half.height(&[0.5, 1.0]));
        assert!(Bowl::new(&[Coordinate::Whole, Coordinate::Level], &[0.0; 2]).is_flat());
    }
}
