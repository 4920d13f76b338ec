//! What coordinates have in common: each alone would take evaluations of its own to learn, together
//! they take a few. How much of it there is is normal, so that data soon say if there is none, and
//! it goes along each coordinate by how much that matters.
//!
//! - A bowl over real numbers, lowest in the middle of the cube. Without it a process knows least
//!   at the border, where nothing was measured beyond, and a search asks there too often (Siivola,
//!   Vehtari, Vanhatalo, González, Andersen 2018, "Correcting boundary over-exploration
//!   deficiencies in Bayesian optimization with virtual derivative sign observations"). Who gives a
//!   range of real numbers expects the best inside. Knobs that are counted or ordered have half a
//!   wave in its place ([`Coordinate::has_half_cosine`]).
//! - A slope of all switches, up or down: what options mostly cost, or bring, when they are on.
//!   Only where the data are the more probable with it.
//!
//! Both are of the objective alone, not of constraints nor survival.

use crate::numeric::linalg::dot;
use crate::space::coordinate::{Coordinate, MIDDLE, UNIFORM_PRECISION};

/// Mean and deviation of how much lower the middle is than the average over the cube, in deviations
/// of the objective, where all coordinates are real numbers. Choices of this crate, as the next
/// (`docs/results/tuners-tried.md`).
const BOWL: (f64, f64) = (0.7, 0.7);
/// The deviation of the slope over all settings, where all coordinates are switches.
const SLOPE: f64 = 0.7;
/// One over the variance of a switch.
const SWITCH_PRECISION: f64 = 4.0;

#[derive(Clone, Debug)]
pub(crate) struct Trend {
    shape: Shape,
    /// Of each coordinate.
    weights: Vec<f64>,
    /// Over the cube, without which it would not be 0 there on average.
    average: f64,
    /// Of how much of it there is.
    mean: f64,
    deviation: f64,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// The squared distance from the middle.
    Quadratic,
    /// The distance from the middle.
    Linear,
}

/// Which trends coordinates have in common, where there are such coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    pub(crate) quadratic: bool,
    pub(crate) linear: bool,
}

impl Shared {
    pub(crate) const NOTHING: Self = Shared {
        quadratic: false,
        linear: false,
    };

    /// The trends of a space whose length scales have these logarithms.
    pub(crate) fn trends(self, coordinates: &[Coordinate], ln_lengths: &[f64]) -> Vec<Trend> {
        let quadratic = self.quadratic && count(coordinates, Coordinate::Continuous) > 0;
        let quadratic = quadratic.then(|| Trend::quadratic(coordinates, ln_lengths));
        let linear = self.linear && may_be_linear(coordinates);
        let linear = linear.then(|| Trend::linear(coordinates, ln_lengths));
        quadratic.into_iter().chain(linear).collect()
    }
}

/// Whether there are switches that may have a slope in common: one alone has nothing in common with
/// others.
pub(crate) fn may_be_linear(coordinates: &[Coordinate]) -> bool {
    count(coordinates, Coordinate::Binary) > 1
}

fn count(coordinates: &[Coordinate], kind: Coordinate) -> usize {
    coordinates.iter().filter(|other| **other == kind).count()
}

fn share(coordinates: &[Coordinate], kind: Coordinate) -> f64 {
    count(coordinates, kind) as f64 / coordinates.len() as f64
}

/// How much coordinates of this kind matter, `ℓ^-power`, and 0 of the others.
fn matter(
    coordinates: &[Coordinate],
    kind: Coordinate,
    ln_lengths: &[f64],
    power: f64,
) -> Vec<f64> {
    let matters = |(other, ln): (&Coordinate, &f64)| match *other == kind {
        true => (-power * ln).exp(),
        false => 0.0,
    };
    coordinates.iter().zip(ln_lengths).map(matters).collect()
}

fn scaled(each: f64, values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| each * value).collect()
}

impl Trend {
    /// Less deep by the share of coordinates that are no real numbers, and by how much these
    /// matter.
    fn quadratic(coordinates: &[Coordinate], ln_lengths: &[f64]) -> Self {
        let kind = Coordinate::Continuous;
        let all: f64 = ln_lengths.iter().map(|ln| (-2.0 * ln).exp()).sum();
        let each = UNIFORM_PRECISION * share(coordinates, kind) / all;
        let weights = scaled(each, &matter(coordinates, kind, ln_lengths, 2.0));
        Trend {
            shape: Shape::Quadratic,
            average: weights.iter().sum::<f64>() / UNIFORM_PRECISION,
            weights,
            mean: BOWL.0,
            deviation: BOWL.1,
        }
    }

    /// Of less variance by the share of coordinates that are no switches.
    fn linear(coordinates: &[Coordinate], ln_lengths: &[f64]) -> Self {
        let kind = Coordinate::Binary;
        let matter = matter(coordinates, kind, ln_lengths, 1.0);
        let each = (SWITCH_PRECISION / dot(&matter, &matter)).sqrt();
        Trend {
            shape: Shape::Linear,
            weights: scaled(each, &matter),
            average: 0.0,
            mean: 0.0,
            deviation: SLOPE * share(coordinates, kind).sqrt(),
        }
    }

    /// What one unit of it adds to the value at `x`: 0 on average over the cube.
    fn height(&self, x: &[f64]) -> f64 {
        let along = |(x, weight): (&f64, &f64)| {
            let from_middle = x - MIDDLE;
            weight
                * match self.shape {
                    Shape::Quadratic => from_middle * from_middle,
                    Shape::Linear => from_middle,
                }
        };
        x.iter().zip(&self.weights).map(along).sum::<f64>() - self.average
    }

    /// Adds `factor` times the gradient of [`Trend::height`].
    fn height_gradient(&self, x: &[f64], factor: f64, gradient: &mut [f64]) {
        for ((gradient, weight), x) in gradient.iter_mut().zip(&self.weights).zip(x) {
            let slope = match self.shape {
                Shape::Quadratic => 2.0 * (x - MIDDLE),
                Shape::Linear => 1.0,
            };
            *gradient += factor * weight * slope;
        }
    }

    /// What is expected of it at `x`.
    pub(crate) fn mean(&self, x: &[f64]) -> f64 {
        self.mean * self.height(x)
    }

    /// Adds `factor` times the gradient of [`Trend::mean`].
    pub(crate) fn mean_gradient(&self, x: &[f64], factor: f64, gradient: &mut [f64]) {
        self.height_gradient(x, self.mean * factor, gradient);
    }

    /// The product of two points' features is the covariance that it adds.
    pub(crate) fn feature(&self, x: &[f64]) -> f64 {
        self.deviation * self.height(x)
    }

    /// Adds `factor` times the gradient of [`Trend::feature`].
    pub(crate) fn feature_gradient(&self, x: &[f64], factor: f64, gradient: &mut [f64]) {
        self.height_gradient(x, self.deviation * factor, gradient);
    }

    /// Adds `factor` times the gradient of the variance that it adds.
    pub(crate) fn variance_gradient(&self, x: &[f64], factor: f64, gradient: &mut [f64]) {
        self.feature_gradient(x, 2.0 * self.feature(x) * factor, gradient);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [f64; 3] = [0.0, 1.0, -0.5];

    #[test]
    fn coordinates_have_in_common_what_their_kinds_have() {
        use Coordinate::{Binary, Categorical, Continuous, Integer, Ordered};
        let heights = |coordinates: &[Coordinate], at: &[f64]| -> Vec<f64> {
            let lengths = vec![0.0; coordinates.len()];
            let all = Shared {
                quadratic: true,
                linear: true,
            };
            let trends = all.trends(coordinates, &lengths);
            let heights = trends.iter().map(|trend| trend.height(at));
            heights.map(|height| (1e9 * height).round() / 1e9).collect()
        };
        // In the middle.
        assert_eq!(heights(&[Continuous; 2], &[0.5; 2]), [-1.0]);
        assert_eq!(heights(&[Continuous, Integer], &[0.5; 2]), [-0.25]);
        // All on, half of them.
        assert_eq!(heights(&[Binary; 4], &[1.0; 4]), [2.0]);
        assert_eq!(heights(&[Binary; 4], &[1.0, 1.0, 0.0, 0.0]), [0.0]);
        assert_eq!(
            heights(&[Continuous, Binary, Binary], &[0.5, 0.0, 0.0]),
            [-0.111111111, (-1e9 * 2.0_f64.sqrt()).round() / 1e9]
        );
        for nothing in [Integer, Ordered, Binary, Categorical] {
            assert!(heights(&[nothing, Categorical], &[1.0; 2]).is_empty());
        }
    }

    #[test]
    fn heights_are_0_on_average_and_slopes_as_steep_as_they_are_to_be() {
        let quadratic = Trend::quadratic(&[Coordinate::Continuous; 3], &LENGTHS);
        let middle = quadratic.height(&[MIDDLE; 3]);
        let at = |k: usize, x: f64| {
            let mut at = [MIDDLE; 3];
            at[k] = x;
            quadratic.height(&at) - middle
        };
        // Coordinates add up; Simpson's rule is exact along each.
        let average = |k: usize| (at(k, 0.0) + 4.0 * at(k, MIDDLE) + at(k, 1.0)) / 6.0;
        let averages: f64 = (0..3).map(average).sum();
        assert!((middle + 1.0).abs() < 1e-12 && (averages - 1.0).abs() < 1e-12);
        // The shorter the length scale, the steeper.
        assert!(at(0, 0.0) > at(1, 0.0) && at(2, 0.0) > at(0, 0.0));
        let half = Trend::quadratic(
            &[Coordinate::Continuous, Coordinate::Integer],
            &LENGTHS[..2],
        );
        assert!(half.height(&[0.5, 0.0]) == half.height(&[0.5, 1.0]));

        use Coordinate::{Binary, Continuous};
        for (coordinates, share) in [
            ([Binary; 3], 1.0),
            ([Continuous, Binary, Binary], 2.0 / 3.0),
        ] {
            let slope = Trend::linear(&coordinates, &LENGTHS);
            let settings = (0..8).map(|bits| [0, 1, 2].map(|k| f64::from(bits >> k & 1)));
            let squares: f64 = settings.map(|x| slope.feature(&x).powi(2)).sum();
            assert!((squares / 8.0 - SLOPE * SLOPE * share).abs() < 1e-12);
            // As steep as they matter.
            let step = |k: usize| slope.height(&[0, 1, 2].map(|l| f64::from(u8::from(l == k))));
            let steps = [0, 1, 2].map(|k| step(k) - slope.height(&[0.0; 3]));
            assert!((steps[1] / steps[2] - (LENGTHS[2] - LENGTHS[1]).exp()).abs() < 1e-12);
        }
    }

    #[test]
    fn gradients_are_difference_quotients() {
        use Coordinate::{Binary, Categorical, Continuous};
        let at = [0.2, 0.9, 0.4];
        for trend in [
            Trend::quadratic(&[Continuous, Categorical, Continuous], &LENGTHS),
            Trend::linear(&[Binary, Binary, Categorical], &LENGTHS),
        ] {
            let variance = |x: &[f64]| trend.feature(x).powi(2);
            let function =
                |x: &[f64]| 0.3 * trend.mean(x) - 2.0 * trend.feature(x) + 0.7 * variance(x);
            let mut gradient = [0.0; 3];
            trend.mean_gradient(&at, 0.3, &mut gradient);
            trend.feature_gradient(&at, -2.0, &mut gradient);
            trend.variance_gradient(&at, 0.7, &mut gradient);
            for k in 0..3 {
                let moved = |step: f64| {
                    let mut x = at;
                    x[k] += step;
                    function(&x)
                };
                let quotient = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                assert!((quotient - gradient[k]).abs() < 1e-8, "{trend:?} {k}");
            }
        }
    }
}
