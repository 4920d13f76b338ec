//! Several looks at growing data, with one error rate for all of them together.

use crate::interval::normal_quantile;

/// Half of the points of the grid on which the density between two looks is kept, and of Simpson's
/// rule. With 40 the nominal levels agree with the printed ones to the fourth digit.
const HALF_GRID: usize = 40;

/// The confidence that each of `looks` equally spaced looks needs, so that all intervals together
/// cover the truth with `confidence`.
///
/// These are the repeated confidence intervals of Jennison and Turnbull ("Interim analyses: the
/// repeated confidence interval approach", JRSS B 1989) with Pocock's constant boundary ("Group
/// sequential methods in the design and analysis of clinical trials", Biometrika 1977): whoever
/// stops at any look, for any reason, may report the interval of that look. The boundary is
/// computed for normal data and applied to Student's t by its nominal level, as Jennison and
/// Turnbull advise ("Group Sequential Methods with Applications to Clinical Trials", 2000, §4.4).
///
/// A `confidence` outside (0, 1) is given back as it is.
///
/// ```
/// // Three looks at 95 %: Pocock's table has 0.0221 for each.
/// let each = paired_stats::confidence_of_each_look(0.95, 3);
/// assert!((each - (1.0 - 0.0221)).abs() < 2e-4, "{each}");
/// assert_eq!(paired_stats::confidence_of_each_look(0.95, 1), 0.95);
/// ```
#[must_use]
pub fn confidence_of_each_look(confidence: f64, looks: usize) -> f64 {
    if looks <= 1 || !(confidence > 0.0 && confidence < 1.0) {
        return confidence;
    }
    // One look's confidence is too little, and Bonferroni's is enough: the boundary lies between.
    let bonferroni = 1.0 - (1.0 - confidence) / looks as f64;
    let (mut low, mut high) = (normal_quantile(confidence), normal_quantile(bonferroni));
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if probability_within(middle, looks) < confidence {
            low = middle;
        } else {
            high = middle;
        }
    }
    crate::interval::normal_confidence(high)
}

/// The probability that a sum of standard normal steps stays within ±`boundary`·√k at every step k
/// = 1…`looks` (Armitage, McPherson and Rowe 1969), by Simpson's rule.
fn probability_within(boundary: f64, looks: usize) -> f64 {
    let density = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    let points = 2 * HALF_GRID + 1;
    let grid = |look: usize| {
        let edge = boundary * (look as f64).sqrt();
        let step = edge / HALF_GRID as f64;
        let at: Vec<f64> = (0..points).map(|i| i as f64 * step - edge).collect();
        let weights: Vec<f64> = (0..points)
            .map(|i| match i {
                0 => 1.0,
                i if i == points - 1 => 1.0,
                i if i % 2 == 1 => 4.0,
                _ => 2.0,
            })
            .map(|weight| weight * step / 3.0)
            .collect();
        (at, weights)
    };
    let (mut at, mut weights) = grid(1);
    let mut values: Vec<f64> = at.iter().map(|x| density(*x)).collect();
    for look in 2..=looks {
        let (next, next_weights) = grid(look);
        let known: Vec<(f64, f64)> = at
            .iter()
            .zip(values.iter().zip(&weights))
            .map(|(x, (value, weight))| (*x, value * weight))
            .collect();
        values = next
            .iter()
            .map(|y| known.iter().map(|(x, mass)| mass * density(y - x)).sum())
            .collect();
        (at, weights) = (next, next_weights);
    }
    values
        .iter()
        .zip(&weights)
        .map(|(value, weight)| value * weight)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_match_pococks_table() {
        // Jennison and Turnbull 2000, table 2.1: constants 2.178, 2.289, 2.413, 2.555 at 5 %;
        // 2.772, 2.873 at 1 %.
        for (confidence, looks, constant) in [
            (0.95, 2, 2.178),
            (0.95, 3, 2.289),
            (0.95, 5, 2.413),
            (0.95, 10, 2.555),
            (0.99, 2, 2.772),
            (0.99, 3, 2.873),
        ] {
            let got = normal_quantile(confidence_of_each_look(confidence, looks));
            assert!(
                (got - constant).abs() < 1.5e-3,
                "{confidence}, {looks}: {got}, not {constant}"
            );
        }
    }

    #[test]
    fn what_is_no_confidence_stays() {
        for confidence in [0.0, 1.0, 7.0] {
            assert_eq!(confidence_of_each_look(confidence, 4), confidence);
        }
    }
}
