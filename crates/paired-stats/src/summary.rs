//! Descriptive numbers of one list of values.

use serde::{Deserialize, Serialize};

/// Count, mean, spread and range of a list of values, in the unit of the values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many values.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation (divisor n − 1); 0 for a single value.
    pub sd: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

/// Summarises `values`; `None` if there are none, or one of them is infinite or not a number.
///
/// ```
/// let s = paired_stats::summary(&[1.0, 2.0, 3.0]).unwrap();
/// assert_eq!((s.n, s.mean, s.sd, s.min, s.max), (3, 2.0, 1.0, 1.0, 3.0));
/// ```
pub fn summary(values: &[f64]) -> Option<Summary> {
    if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let mut moments = Moments::default();
    let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
    for &value in values {
        moments.push(value);
        min = min.min(value);
        max = max.max(value);
    }
    Some(Summary {
        n: moments.n,
        mean: moments.mean,
        sd: moments.variance().sqrt(),
        min,
        max,
    })
}

/// The `q`-quantile (0 ≤ q ≤ 1) with linear interpolation between order statistics: definition 7 of
/// Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996), the default of R and NumPy.
/// `None` if there are no values, one is not finite, or `q` is outside 0..=1.
///
/// ```
/// assert_eq!(paired_stats::quantile(&[4.0, 1.0, 3.0, 2.0], 0.5), Some(2.5));
/// ```
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    if values.is_empty() || values.iter().any(|v| !v.is_finite()) || !(0.0..=1.0).contains(&q) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len() - 1;
    let position = q * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 <= position <= last, a usize"
    )]
    let below = (position.floor() as usize).min(last);
    let above = (below + 1).min(last);
    let weight = position - below as f64;
    Some(sorted[below] * (1.0 - weight) + sorted[above] * weight)
}

/// The correlation of each value with the next one, −1 to 1: near 0 for independent blocks.
///
/// Intervals and the sequential test take blocks as independent; a value above about 0.3 says that
/// blocks are too short and the intervals too narrow. Estimated as Σ(xᵢ−m)(xᵢ₊₁−m) / Σ(xᵢ−m)² (Box
/// and Jenkins, "Time Series Analysis", §2.1.5), which is biased by about −1/n. `None` for fewer
/// than three values, values that are not finite, or no spread.
///
/// ```
/// let r = paired_stats::lag_one_autocorrelation(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
/// assert!((r - 0.4).abs() < 1e-12);
/// ```
pub fn lag_one_autocorrelation(values: &[f64]) -> Option<f64> {
    let s = summary(values)?;
    if s.n < 3 || s.sd == 0.0 {
        return None;
    }
    let product: f64 = values
        .windows(2)
        .map(|w| (w[0] - s.mean) * (w[1] - s.mean))
        .sum();
    let square: f64 = values.iter().map(|v| (v - s.mean).powi(2)).sum();
    let r = product / square;
    r.is_finite().then_some(r)
}

/// Running mean and sum of squared deviations: Welford, "Note on a Method for Calculating Corrected
/// Sums of Squares and Products" (Technometrics 1962). Identical values give a deviation of exactly
/// 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moments {
    pub(crate) n: usize,
    pub(crate) mean: f64,
    pub(crate) squared_deviations: f64,
}

impl Moments {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut moments = Self::default();
        for value in values {
            moments.push(value);
        }
        moments
    }

    pub(crate) fn push(&mut self, value: f64) {
        self.n += 1;
        let delta = value - self.mean;
        self.mean += delta / self.n as f64;
        self.squared_deviations += delta * (value - self.mean);
    }

    /// Sample variance, 0 for fewer than two values.
    pub(crate) fn variance(&self) -> f64 {
        if self.n < 2 {
            0.0
        } else {
            self.squared_deviations / (self.n - 1) as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_to_summarise() {
        assert_eq!(summary(&[]), None);
        assert_eq!(summary(&[1.0, f64::NAN]), None);
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[1.0], 1.5), None);
        assert_eq!(quantile(&[1.0], f64::NAN), None);
        assert_eq!(lag_one_autocorrelation(&[2.0, 2.0, 2.0]), None);
    }

    #[test]
    fn one_value_has_no_spread() {
        let s = summary(&[7.0]).unwrap();
        assert_eq!((s.n, s.mean, s.sd), (1, 7.0, 0.0));
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
    }

    #[test]
    fn spread_survives_a_large_offset() {
        let s = summary(&[1e9 + 4.0, 1e9 + 7.0, 1e9 + 13.0, 1e9 + 16.0]).unwrap();
        assert!((s.sd.powi(2) - 30.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn quantiles_lie_in_the_range_and_rise(
            values in prop::collection::vec(-1e6f64..1e6, 1..50), a in 0.0f64..=1.0, b in 0.0f64..=1.0,
        ) {
            let s = summary(&values).unwrap();
            let (low, high) = (quantile(&values, a.min(b)).unwrap(), quantile(&values, a.max(b)).unwrap());
            prop_assert!(s.min <= low + 1e-6 && low <= high + 1e-6 && high <= s.max + 1e-6);
            prop_assert_eq!(quantile(&values, 0.0), Some(s.min));
            prop_assert_eq!(quantile(&values, 1.0), Some(s.max));
        }

        #[test]
        fn order_does_not_matter(mut values in prop::collection::vec(-1e3f64..1e3, 1..50)) {
            let before = summary(&values).unwrap();
            values.reverse();
            let after = summary(&values).unwrap();
            prop_assert!((before.mean - after.mean).abs() < 1e-9);
            prop_assert!((before.sd - after.sd).abs() < 1e-9);
        }
    }
}
