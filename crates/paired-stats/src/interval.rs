//! Confidence intervals, and the Student t interval of a mean that the others are built on.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

use crate::StatsError;
use crate::summary::Moments;

/// An estimate with its two-sided confidence interval, `low <= estimate <= high`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// The estimate.
    pub estimate: f64,
    /// Upper end.
    pub high: f64,
    /// Two-sided confidence, such as 0.95.
    pub confidence: f64,
}

impl Interval {
    /// Whether `x` is compatible with what was measured: the ends count as inside.
    #[must_use]
    pub fn contains(&self, x: f64) -> bool {
        self.low <= x && x <= self.high
    }

    /// Whether `x` is shown to be wrong: strictly outside the interval.
    #[must_use]
    pub fn excludes(&self, x: f64) -> bool {
        x < self.low || self.high < x
    }

    /// The difference from the estimate that this measurement would have shown in four cases of
    /// five: the smallest effect worth looking for with it. The interval is a t interval over `n`
    /// values; where it is of a ratio, take that of the logarithm. `None` below two values.
    ///
    /// It is (t(1 − α/2) + t(80 %)) standard errors, by the usual formula for the power of a t test
    /// (Cohen, "Statistical Power Analysis for the Behavioral Sciences", 1988, §2.4, with t for z).
    ///
    /// ```
    /// let interval = paired_stats::mean_interval(&[9.0, 10.0, 11.0, 10.0], 0.95)?;
    /// let detectable = interval.detectable(4, 0.95).unwrap();
    /// assert!(detectable > interval.high - interval.estimate);
    /// # Ok::<(), paired_stats::StatsError>(())
    /// ```
    #[must_use]
    pub fn detectable(&self, n: usize, nominal_confidence: f64) -> Option<f64> {
        let is_confidence = nominal_confidence > 0.0 && nominal_confidence < 1.0;
        if n < 2 || !is_confidence {
            return None;
        }
        let degrees_of_freedom = (n - 1) as f64;
        let quantile = t_quantile(degrees_of_freedom, nominal_confidence);
        let standard_error = (self.high - self.low) / 2.0 / quantile;
        // One-sided 80 % is two-sided 60 %.
        let power = t_quantile(degrees_of_freedom, 0.6);
        Some((quantile + power) * standard_error)
    }

    /// The interval of the logarithm of a positive quantity.
    #[must_use]
    pub fn ln(self) -> Self {
        Self {
            low: self.low.ln(),
            estimate: self.estimate.ln(),
            high: self.high.ln(),
            ..self
        }
    }

    /// The interval of a positive quantity, from that of its logarithm.
    #[must_use]
    pub fn exp(self) -> Self {
        Self {
            low: self.low.exp(),
            estimate: self.estimate.exp(),
            high: self.high.exp(),
            confidence: self.confidence,
        }
    }
}

/// The Student t interval of the mean: m ± t(n−1) · s/√n ("Student", "The Probable Error of a
/// Mean", 1908).
///
/// Exact for independent normal values, close for others from about ten values on. Identical values
/// give an interval of no width: the values themselves show no spread, and nothing else is known
/// about it.
///
/// # Errors
/// [`StatsError::TooFew`] below two values, [`StatsError::NotFinite`], [`StatsError::Confidence`].
///
/// ```
/// let interval = paired_stats::mean_interval(&[9.0, 10.0, 11.0], 0.95)?;
/// // t(2 degrees of freedom, 97.5 %) = 4.303, s/√3 = 0.577
/// assert!((interval.high - 12.484).abs() < 1e-3);
/// # Ok::<(), paired_stats::StatsError>(())
/// ```
pub fn mean_interval(values: &[f64], confidence: f64) -> Result<Interval, StatsError> {
    if let Some((index, &value)) = values.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        return Err(StatsError::NotFinite { index, value });
    }
    t_interval(values, confidence, "values")
}

/// The t interval of values already known to be finite; `unit` names them in the error.
pub(crate) fn t_interval(
    values: &[f64],
    confidence: f64,
    unit: &'static str,
) -> Result<Interval, StatsError> {
    if !(confidence > 0.0 && confidence < 1.0) {
        return Err(StatsError::Confidence { confidence });
    }
    if values.len() < 2 {
        return Err(StatsError::TooFew {
            unit,
            needed: 2,
            got: values.len(),
        });
    }
    let moments = Moments::of(values.iter().copied());
    let n = moments.n as f64;
    let half_width = t_quantile(n - 1.0, confidence) * (moments.variance() / n).sqrt();
    Ok(Interval {
        low: moments.mean - half_width,
        estimate: moments.mean,
        high: moments.mean + half_width,
        confidence,
    })
}

/// The difference of two means, `b` − `a`, of independent values that need not vary alike (Welch,
/// "The generalization of Student's problem when several different population variances are
/// involved", Biometrika 1947).
///
/// # Errors
/// [`StatsError::TooFew`] below two values on either side, [`StatsError::NotFinite`],
/// [`StatsError::Confidence`].
///
/// ```
/// let interval = paired_stats::difference_interval(&[1.0, 1.2, 0.8], &[2.0, 2.1, 1.9], 0.95)?;
/// assert!(interval.contains(1.0) && interval.excludes(0.0));
/// # Ok::<(), paired_stats::StatsError>(())
/// ```
pub fn difference_interval(a: &[f64], b: &[f64], confidence: f64) -> Result<Interval, StatsError> {
    // Checks both sides.
    for side in [a, b] {
        mean_interval(side, confidence)?;
    }
    let [a, b] = [a, b].map(|side| Moments::of(side.iter().copied()));
    let [of_a, of_b] = [a, b].map(|it| it.variance() / it.n as f64);
    let variance = of_a + of_b;
    let estimate = b.mean - a.mean;
    let half_width = if variance > 0.0 {
        let shares = of_a * of_a / (a.n - 1) as f64 + of_b * of_b / (b.n - 1) as f64;
        t_quantile(variance * variance / shares, confidence) * variance.sqrt()
    } else {
        0.0
    };
    Ok(Interval {
        low: estimate - half_width,
        estimate,
        high: estimate + half_width,
        confidence,
    })
}

/// The interval of a share: `count` of `n` independent draws had what was asked for. It is Wilson's
/// ("Probable inference, the law of succession, and statistical inference", Journal of the American
/// Statistical Association 1927), which stays between 0 and 1. It holds for few draws and for
/// shares near either end (Brown, Cai and DasGupta, "Interval estimation for a binomial
/// proportion", Statistical Science 2001).
///
/// # Errors
/// [`StatsError::TooFew`] without a draw, [`StatsError::Confidence`]. A `count` above `n` is taken
/// for `n`.
///
/// ```
/// let interval = paired_stats::share_interval(9, 10, 0.95)?;
/// assert!((interval.low - 0.596).abs() < 1e-3 && (interval.high - 0.982).abs() < 1e-3);
/// # Ok::<(), paired_stats::StatsError>(())
/// ```
pub fn share_interval(count: u64, n: u64, confidence: f64) -> Result<Interval, StatsError> {
    if !(confidence > 0.0 && confidence < 1.0) {
        return Err(StatsError::Confidence { confidence });
    }
    if n == 0 {
        return Err(StatsError::TooFew {
            unit: "draws",
            needed: 1,
            got: 0,
        });
    }
    let z = normal_quantile(confidence);
    Ok(Interval {
        low: share_bound(count, n, -z),
        estimate: count.min(n) as f64 / n as f64,
        high: share_bound(count, n, z),
        confidence,
    })
}

/// One end of [`share_interval`], `z` standard deviations of a normal distribution away: the upper
/// end for a positive `z`, the lower end for a negative one. `n` must not be 0.
#[must_use]
pub fn share_bound(count: u64, n: u64, z: f64) -> f64 {
    let estimate = count.min(n) as f64 / n as f64;
    let n = n as f64;
    let middle = estimate + z * z / (2.0 * n);
    let half = z * (estimate * (1.0 - estimate) / n + z * z / (4.0 * n * n)).sqrt();
    let bound = (middle + half) / (1.0 + z * z / n);
    // Rounding may leave an end beside an estimate of 0 or 1.
    match z < 0.0 {
        true => bound.clamp(0.0, estimate),
        false => bound.clamp(estimate, 1.0),
    }
}

/// The half-width factor of a two-sided t interval.
fn t_quantile(degrees_of_freedom: f64, confidence: f64) -> f64 {
    students_t(degrees_of_freedom).inverse_cdf(0.5 + confidence / 2.0)
}

/// The probability that Student's t is above `t`.
pub(crate) fn t_above(degrees_of_freedom: f64, t: f64) -> f64 {
    students_t(degrees_of_freedom).sf(t)
}

fn students_t(degrees_of_freedom: f64) -> StudentsT {
    #[expect(
        clippy::expect_used,
        reason = "scale 1 and at least one degree of freedom are always accepted"
    )]
    StudentsT::new(0.0, 1.0, degrees_of_freedom).expect("n >= 2")
}

/// The half-width factor of a two-sided normal interval.
pub(crate) fn normal_quantile(confidence: f64) -> f64 {
    Normal::standard().inverse_cdf(0.5 + confidence / 2.0)
}

/// The confidence of a two-sided normal interval of this half-width factor.
pub(crate) fn normal_confidence(half_width: f64) -> f64 {
    1.0 - 2.0 * Normal::standard().sf(half_width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn t_quantiles_match_the_printed_table() {
        // NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
        for (df, confidence, expected) in [
            (1.0, 0.95, 12.706),
            (2.0, 0.95, 4.303),
            (5.0, 0.99, 4.032),
            (10.0, 0.90, 1.812),
            (30.0, 0.95, 2.042),
            (100.0, 0.99, 2.626),
        ] {
            let got = t_quantile(df, confidence);
            assert!(
                (got - expected).abs() < 6e-4,
                "t({df}, {confidence}) = {got}, not {expected}"
            );
        }
    }

    #[test]
    fn ends_are_inside() {
        let interval = Interval {
            low: 0.9,
            estimate: 0.95,
            high: 1.0,
            confidence: 0.95,
        };
        assert!(interval.contains(1.0) && !interval.excludes(1.0));
        assert!(interval.excludes(1.01) && !interval.contains(1.01));
        assert!(!interval.excludes(f64::NAN) && !interval.contains(f64::NAN));
    }

    #[test]
    fn a_share_has_wilsons_interval_also_at_its_ends() {
        // Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in
        // Medicine 1998, table I, method 3.
        for (count, n, low, high) in [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
            (20, 20, 0.8389, 1.0),
        ] {
            let share = share_interval(count, n, 0.95).unwrap();
            let is_near = |one: f64, other: f64| (one - other).abs() < 5e-5;
            assert!(
                is_near(share.low, low) && is_near(share.high, high),
                "{share:?}"
            );
        }
        let none = share_interval(0, 0, 0.95).unwrap_err();
        assert_eq!(
            none.to_string(),
            "0 draws are too few for an interval: at least 1 are needed"
        );
        assert!(share_interval(1, 2, 1.0).is_err());
    }

    #[test]
    fn identical_values_have_no_width() {
        let interval = mean_interval(&[3.3; 7], 0.95).unwrap();
        assert_eq!((interval.low, interval.high), (3.3, 3.3));
    }

    #[test]
    fn bad_input_is_named() {
        let few = mean_interval(&[1.0], 0.95).unwrap_err();
        assert_eq!(
            few.to_string(),
            "1 values are too few for an interval: at least 2 are needed"
        );
        let nan = mean_interval(&[1.0, f64::NAN, 2.0], 0.95).unwrap_err();
        assert_eq!(nan.to_string(), "value 1 is not finite: NaN");
        for confidence in [0.0, 1.0, 95.0, f64::NAN] {
            assert!(matches!(
                mean_interval(&[1.0, 2.0], confidence),
                Err(StatsError::Confidence { .. })
            ));
        }
    }

    proptest! {
        #[test]
        fn more_confidence_is_wider(
            values in prop::collection::vec(-1e3f64..1e3, 2..40), a in 0.5f64..0.99, b in 0.5f64..0.99,
        ) {
            let narrow = mean_interval(&values, a.min(b)).unwrap();
            let wide = mean_interval(&values, a.max(b)).unwrap();
            prop_assert!(wide.low <= narrow.low + 1e-9 && narrow.high <= wide.high + 1e-9);
            prop_assert!(narrow.contains(narrow.estimate));
        }

        #[test]
        fn shifting_and_scaling_carry_over(
            values in prop::collection::vec(-10f64..10.0, 2..20), shift in -100f64..100.0, scale in 0.1f64..10.0,
        ) {
            let plain = mean_interval(&values, 0.9).unwrap();
            let moved: Vec<f64> = values.iter().map(|v| v * scale + shift).collect();
            let moved = mean_interval(&moved, 0.9).unwrap();
            prop_assert!((moved.low - (plain.low * scale + shift)).abs() < 1e-8);
            prop_assert!((moved.high - (plain.high * scale + shift)).abs() < 1e-8);
        }
    }
}
