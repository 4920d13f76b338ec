//! Descriptive numbers of one list of values.

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
    fn nothing_has_no_quantiles() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[1.0], 1.5), None);
        assert_eq!(quantile(&[1.0], f64::NAN), None);
    }

    #[test]
    fn one_value_has_no_spread() {
        let moments = Moments::of([7.0]);
        assert_eq!((moments.n, moments.mean, moments.variance()), (1, 7.0, 0.0));
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
    }

    #[test]
    fn spread_survives_a_large_offset() {
        let moments = Moments::of([1e9 + 4.0, 1e9 + 7.0, 1e9 + 13.0, 1e9 + 16.0]);
        assert!((moments.variance() - 30.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn quantiles_lie_in_the_range_and_rise(
            values in prop::collection::vec(-1e6f64..1e6, 1..50), a in 0.0f64..=1.0, b in 0.0f64..=1.0,
        ) {
            let min = values.iter().copied().fold(f64::INFINITY, f64::min);
            let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let (low, high) = (quantile(&values, a.min(b)).unwrap(), quantile(&values, a.max(b)).unwrap());
            prop_assert!(min <= low + 1e-6 && low <= high + 1e-6 && high <= max + 1e-6);
            prop_assert_eq!(quantile(&values, 0.0), Some(min));
            prop_assert_eq!(quantile(&values, 1.0), Some(max));
        }

        #[test]
        fn order_does_not_matter(mut values in prop::collection::vec(-1e3f64..1e3, 1..50)) {
            let before = Moments::of(values.clone());
            values.reverse();
            let after = Moments::of(values);
            prop_assert!((before.mean - after.mean).abs() < 1e-9);
            prop_assert!((before.variance().sqrt() - after.variance().sqrt()).abs() < 1e-9);
        }
    }
}
