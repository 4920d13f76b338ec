//! A one-sided t test that may be looked at after every block: the early abort of an evaluation.

use crate::summary::Moments;

/// What the blocks so far say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not shown: measure on.
    Continue,
    /// The mean log ratio is above the limit, at the error rate of the test. Final: later blocks do not undo it.
    Worse,
}

/// Variance of the normal prior on the effect size δ = (mean − limit) / sd of a block.
///
/// 1 is the unit-information prior (Kass and Wasserman 1995; scale r = 1 in Rouder et al. 2009). Any value gives the
/// same error rate; it only decides which effect sizes are found fastest.
const EFFECT_SIZE_VARIANCE: f64 = 1.0;

/// Is the mean log ratio above a limit? Asked after every block, with one error rate for all looks together.
///
/// With blocks x₁…xₙ, their t statistic against the limit, ν = n − 1 and g the prior variance of the effect size,
///
/// Eₙ = (1 + n g)^(−1/2) · [(1 + t²/ν) / (1 + t²/(ν (1 + n g)))]^((ν + 1)/2)
///
/// is the Bayes factor of Rouder et al., "Bayesian t tests for accepting and rejecting the null hypothesis" (2009, eq. 1
/// with fixed g). Because it depends on the blocks only through ratios of them, and puts the same right-Haar
/// prior on σ on both sides, it is a nonnegative martingale of mean 1 when the mean *is* the limit, whatever σ (Lai, "On
/// confidence sequences", 1976; Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with
/// unknown variance", 2023). So, by Ville's inequality, P(Eₙ ≥ 1/α for any n) ≤ α. The verdict also
/// asks for t > 0; a mean below the limit only lowers every t, so the rate holds there too, and one-sidedness makes
/// it about α/2 in practice.
///
/// The proof is for independent normal blocks with one variance. Simulated without a difference at α = 5 %, looking after
/// each of 3 to 60 blocks (`tests/sequential.rs`), it raised a false alarm in 1.3 % of the series of normal blocks, 0.7 %
/// of heavy-tailed ones (Student t with 3 degrees of freedom), 0.1 % skewed to slow outliers; in 2.3 % with a lag-one
/// autocorrelation of 0.1, but in 6.4 % at 0.3 and 22 % at 0.6. Outliers of both sides alike gave 0.9 %, of the control alone 7.3 %. So
/// heavy tails do not break the promise; correlated blocks do, and a skew that only the control has.
/// Make blocks long enough to be nearly independent ([`lag_one_autocorrelation`](crate::lag_one_autocorrelation)).
/// An experiment 10 % slower is found after a median of 7 blocks if the log ratios have a deviation of 0.05, 13 at 0.10.
///
/// ```
/// use latency_stats::{SequentialTest, Verdict};
///
/// // Abort once it is shown (error rate 5 %) that the experiment costs more than the control.
/// let mut test = SequentialTest::new(0.0, 0.05, 4);
/// let verdicts: Vec<Verdict> =
///     [1.11f64, 1.09, 1.12, 1.10, 1.08].map(|ratio| test.push(ratio.ln())).to_vec();
/// assert_eq!(verdicts[0], Verdict::Continue);
/// assert_eq!(verdicts[4], Verdict::Worse);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SequentialTest {
    limit_log_ratio: f64,
    log_threshold: f64,
    min_blocks: usize,
    moments: Moments,
    worse: bool,
}

impl SequentialTest {
    /// A test of "the mean log ratio is above `limit_log_ratio`" with error rate `alpha` over all looks, silent for
    /// the first `min_blocks` − 1 blocks.
    ///
    /// An `alpha` outside (0, 1) is no error rate: 1 and above are taken as "decide on any evidence" (Eₙ ≥ 1), 0 and below
    /// or NaN as "never decide".
    #[must_use]
    pub fn new(limit_log_ratio: f64, alpha: f64, min_blocks: usize) -> Self {
        Self {
            limit_log_ratio,
            log_threshold: if alpha > 0.0 {
                -alpha.min(1.0).ln()
            } else {
                f64::INFINITY
            },
            // One block has no spread, and E₁ = 1 always.
            min_blocks: min_blocks.max(2),
            moments: Moments::default(),
            worse: false,
        }
    }

    /// Takes the log ratio of one more block. A value that is not finite carries no information and is not counted.
    pub fn push(&mut self, log_ratio: f64) -> Verdict {
        let excess = log_ratio - self.limit_log_ratio;
        if excess.is_finite() {
            self.moments.push(excess);
            self.worse |= self.moments.n >= self.min_blocks
                && self.moments.mean > 0.0
                && self.log_e_value() >= self.log_threshold;
        }
        if self.worse {
            Verdict::Worse
        } else {
            Verdict::Continue
        }
    }

    /// The evidence so far that the mean is above the limit: 1 is none, 20 is enough for an error rate of 5 %.
    /// Where the mean is not above the limit, at most 1. May be infinite.
    #[must_use]
    pub fn e_value(&self) -> f64 {
        let log_e = self.log_e_value();
        if self.moments.mean > 0.0 {
            log_e.exp()
        } else {
            log_e.min(0.0).exp()
        }
    }

    /// How many blocks were counted.
    #[must_use]
    pub fn n(&self) -> usize {
        self.moments.n
    }

    /// ln Eₙ, written with t²/ν = n m²/S (m the mean, S the sum of squared deviations), which is defined for S = 0 too:
    /// identical blocks off the limit give (1 + n g)^((n−1)/2), identical blocks on the limit give 1.
    fn log_e_value(&self) -> f64 {
        let n = self.moments.n as f64;
        let shift = n * self.moments.mean * self.moments.mean;
        let total = self.moments.squared_deviations + shift;
        // Zero, and what underflows or overflows when squared: no evidence can be computed from it.
        if !(total > 0.0 && total.is_finite()) {
            return 0.0;
        }
        let widening = 1.0 + n * EFFECT_SIZE_VARIANCE;
        let explained = shift / total;
        // (S + h) / (S + h/w) = 1 / (1 − (h/(S + h)) (1 − 1/w))
        let log_ratio = -(-explained * (1.0 - 1.0 / widening)).ln_1p();
        0.5 * (n * log_ratio - widening.ln())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn matches_the_formula_by_hand() {
        // x = 1, 2, 3: m = 2, s = 1, t = 2√3, t²/ν = 6, g = 1: E = 4^(−1/2) · (7 / 2.5)^(3/2)
        let mut test = SequentialTest::new(0.0, 0.05, 2);
        for x in [1.0, 2.0, 3.0] {
            test.push(x);
        }
        assert!((test.e_value() - 0.5 * 2.8f64.powf(1.5)).abs() < 1e-12);
        assert_eq!(test.n(), 3);
    }

    #[test]
    fn no_evidence_before_the_second_block() {
        let mut test = SequentialTest::new(0.0, 0.05, 1);
        assert_eq!(test.e_value(), 1.0);
        assert_eq!(test.push(100.0), Verdict::Continue);
        assert!((test.e_value() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn identical_blocks() {
        let mut same = SequentialTest::new(0.0, 0.05, 3);
        assert!((0..100).all(|_| same.push(0.0) == Verdict::Continue));
        assert_eq!(same.e_value(), 1.0);

        // (1 + n)^((n−1)/2) passes 20 at n = 5: 6² = 36, against 5^1.5 = 11.2 at n = 4.
        let mut off = SequentialTest::new(0.0, 0.05, 3);
        let first = (1..=9).find(|_| off.push(0.1) == Verdict::Worse);
        assert_eq!(first, Some(5));
    }

    #[test]
    fn better_is_never_worse_and_worse_is_final() {
        let mut better = SequentialTest::new(0.0, 0.05, 3);
        for i in 0..50 {
            assert_eq!(
                better.push(-0.1 - 0.001 * f64::from(i % 3)),
                Verdict::Continue
            );
        }
        assert!(better.e_value() <= 1.0);

        let mut worse = SequentialTest::new(0.0, 0.05, 3);
        for _ in 0..10 {
            worse.push(0.1);
        }
        assert_eq!(worse.push(-50.0), Verdict::Worse);
    }

    #[test]
    fn waits_for_the_minimum_and_skips_what_is_not_finite() {
        let mut test = SequentialTest::new(0.0, 0.05, 8);
        for x in [f64::NAN, f64::INFINITY] {
            assert_eq!(test.push(x), Verdict::Continue);
        }
        assert_eq!(test.n(), 0);
        let first = (1..=9).find(|_| test.push(0.1) == Verdict::Worse);
        assert_eq!(first, Some(8));
        let mut never = SequentialTest::new(0.0, 0.0, 2);
        assert!((0..50).all(|_| never.push(0.1) == Verdict::Continue));
    }

    proptest! {
        #[test]
        fn scale_does_not_matter(xs in prop::collection::vec(-1.0f64..1.0, 2..40), scale in 1e-6f64..1e6) {
            let (mut a, mut b) = (SequentialTest::new(0.0, 0.05, 3), SequentialTest::new(0.0, 0.05, 3));
            for x in xs {
                a.push(x);
                b.push(x * scale);
                prop_assert!((a.e_value().ln() - b.e_value().ln()).abs() < 1e-6);
            }
        }

        #[test]
        fn only_the_distance_to_the_limit_matters(
            xs in prop::collection::vec(-1.0f64..1.0, 2..40), limit in -1.0f64..1.0,
        ) {
            let (mut a, mut b) = (SequentialTest::new(0.0, 0.05, 3), SequentialTest::new(limit, 0.05, 3));
            for x in xs {
                a.push(x);
                b.push(x + limit);
            }
            prop_assert!((a.e_value().ln() - b.e_value().ln()).abs() < 1e-6);
        }

        #[test]
        fn evidence_does_not_depend_on_the_order(mut xs in prop::collection::vec(-1.0f64..1.0, 2..40)) {
            let e = |xs: &[f64]| {
                let mut test = SequentialTest::new(0.0, 0.05, 3);
                for &x in xs {
                    test.push(x);
                }
                test.e_value()
            };
            let before = e(&xs);
            xs.reverse();
            prop_assert!((before.ln() - e(&xs).ln()).abs() < 1e-6);
        }

        #[test]
        fn any_input_gives_a_number(xs in prop::collection::vec(any::<f64>(), 0..30), limit in any::<f64>()) {
            let mut test = SequentialTest::new(limit, 0.05, 3);
            for x in xs {
                test.push(x);
            }
            prop_assert!(test.e_value() >= 0.0);
        }
    }
}
