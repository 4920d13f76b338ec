//! A one-sided t test that is looked at after every block of a planned number: the early abort of
//! an evaluation.

use crate::interval::t_above;
use crate::looks::confidence_of_each_look;
use crate::summary::Moments;

/// What the blocks so far say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequentialVerdict {
    /// Not shown: measure on.
    Continue,
    /// The mean log ratio is above the limit, at the error rate of the test. Final: later blocks do
    /// not undo it.
    Worse,
}

/// Is the mean log ratio above a limit? Asked after every block but the last, with one error rate
/// for all looks together.
///
/// The number of blocks is planned, so the error rate is shared by the looks that there will be,
/// and no more: each look is a one-sided t test at the nominal level of
/// [`confidence_of_each_look`]. That level is for equally spaced looks from the first block on. The
/// looks here begin later and lie closer together, which only lowers the rate of false alarms.
///
/// What it can do with n planned blocks at an error rate of 5 % and a first look after 3: in the
/// table, the least effect that it finds in four of five evaluations, in standard deviations of one
/// block's log ratio, and the median block at which it finds twice that effect
/// (`tests/sequential.rs`; 4 blocks have one look, after the third).
///
/// | planned blocks | looks | effect found in 4 of 5 | found at (twice that) |
/// |---|---|---|---|
/// | 4 | 1 | 2.3 | 3 |
/// | 6 | 3 | 1.7 | 3 |
/// | 8 | 5 | 1.3 | 3 |
/// | 12 | 9 | 1.0 | 4 |
///
/// Simulated without a difference at 5 %, with 4 to 12 planned blocks (`tests/sequential.rs`), it
/// raised a false alarm in at most 5 % of the series of normal, heavy-tailed and slow-skewed
/// blocks. Outliers of the control alone raise the rate to 10 %, and a lag-one autocorrelation of
/// 0.3 to 8 %: make blocks long enough to be nearly independent.
///
/// ```
/// use paired_stats::{SequentialTest, SequentialVerdict};
///
/// // Abort once it is shown (error rate 5 %) that the experiment costs more than the control: first look after 3 of 4 blocks.
/// let mut test = SequentialTest::new(0.0, 0.05, 3, 4);
/// let verdicts: Vec<SequentialVerdict> =
///     [1.11f64, 1.09, 1.12].map(|ratio| test.push(ratio.ln())).to_vec();
/// assert_eq!(verdicts, [SequentialVerdict::Continue, SequentialVerdict::Continue, SequentialVerdict::Worse]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SequentialTest {
    limit_log_ratio: f64,
    /// One-sided level of each look; 0 where there is none.
    level: f64,
    min_blocks: usize,
    blocks: usize,
    moments: Moments,
    worse: bool,
}

impl SequentialTest {
    /// A test of "the mean log ratio is above `limit_log_ratio`" with error rate `alpha` over all
    /// looks: one after each block from number `min_blocks` (at least 2) to the last but one of
    /// `blocks`.
    ///
    /// An `alpha` outside (0, 0.5) is no error rate: 0 and below or NaN never decide, 0.5 and above
    /// count as 0.5.
    #[must_use]
    pub fn new(limit_log_ratio: f64, alpha: f64, min_blocks: usize, blocks: usize) -> Self {
        let min_blocks = min_blocks.max(2);
        let looks = Self::looks(min_blocks, blocks);
        let level = if alpha > 0.0 && looks > 0 {
            let confidence = 1.0 - 2.0 * alpha.min(0.499);
            (1.0 - confidence_of_each_look(confidence, looks)) / 2.0
        } else {
            0.0
        };
        Self {
            limit_log_ratio,
            level,
            min_blocks,
            blocks,
            moments: Moments::default(),
            worse: false,
        }
    }

    /// How often a test of these numbers looks: 0 means that it can never decide.
    ///
    /// ```
    /// use paired_stats::SequentialTest;
    /// assert_eq!(SequentialTest::looks(3, 4), 1);
    /// assert_eq!(SequentialTest::looks(3, 3), 0);
    /// ```
    #[must_use]
    pub fn looks(min_blocks: usize, blocks: usize) -> usize {
        blocks.saturating_sub(min_blocks.max(2))
    }

    /// Takes the log ratio of one more block. A value that is not finite carries no information and
    /// is not counted.
    pub fn push(&mut self, log_ratio: f64) -> SequentialVerdict {
        let excess = log_ratio - self.limit_log_ratio;
        if excess.is_finite() {
            self.moments.push(excess);
            let n = self.moments.n;
            let is_look = n >= self.min_blocks && n < self.blocks && self.level > 0.0;
            self.worse |= is_look && self.p_value() <= self.level;
        }
        if self.worse {
            SequentialVerdict::Worse
        } else {
            SequentialVerdict::Continue
        }
    }

    /// The one-sided p value of the blocks so far: how likely so large a mean would be at the
    /// limit. 1 below two blocks.
    #[must_use]
    pub fn p_value(&self) -> f64 {
        let (n, mean) = (self.moments.n as f64, self.moments.mean);
        if self.moments.n < 2 {
            return 1.0;
        }
        let standard_error = (self.moments.variance() / n).sqrt();
        if standard_error > 0.0 {
            return t_above(n - 1.0, mean / standard_error);
        }
        // Identical blocks have no spread: they are off the limit, or on it.
        if mean > 0.0 { 0.0 } else { 1.0 }
    }

    /// How many blocks were counted.
    #[must_use]
    pub fn n(&self) -> usize {
        self.moments.n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    use proptest::prelude::*;

    #[test]
    fn matches_the_formula_by_hand() {
        // x = 1, 2, 3: t = 2√3 with 2 degrees of freedom: p = 0.5 − t / (2 √(2 + t²)).
        let mut test = SequentialTest::new(0.0, 0.05, 2, 9);
        for x in [1.0, 2.0, 3.0] {
            test.push(x);
        }
        let t = 2.0 * 3f64.sqrt();
        assert!((test.p_value() - (0.5 - t / (2.0 * (2.0 + t * t).sqrt()))).abs() < 1e-9);
        assert_eq!(test.n(), 3);
    }

    #[test]
    fn the_first_block_and_the_last_one_decide_nothing() {
        let mut test = SequentialTest::new(0.0, 0.05, 1, 3);
        assert_eq!(test.push(100.0), SequentialVerdict::Continue);
        // Two looks are planned: the one after the second block is the only one before the end.
        assert_eq!(test.push(100.0), SequentialVerdict::Worse);
        let mut none = SequentialTest::new(0.0, 0.05, 3, 3);
        assert!((0..3).all(|_| none.push(0.1) == SequentialVerdict::Continue));
    }

    #[test]
    fn identical_blocks() {
        let mut same = SequentialTest::new(0.0, 0.05, 3, 200);
        assert!((0..100).all(|_| same.push(0.0) == SequentialVerdict::Continue));
        let mut off = SequentialTest::new(0.0, 0.05, 3, 200);
        let first = (1..=9).find(|_| off.push(0.1) == SequentialVerdict::Worse);
        assert_eq!(first, Some(3));
    }

    #[test]
    fn better_is_never_worse_and_worse_is_final() {
        let mut better = SequentialTest::new(0.0, 0.05, 3, 60);
        for i in 0..50 {
            let x = -0.1 - 0.001 * f64::from(i % 3);
            assert_eq!(better.push(x), SequentialVerdict::Continue);
        }
        let mut worse = SequentialTest::new(0.0, 0.05, 3, 60);
        for _ in 0..10 {
            worse.push(0.1);
        }
        assert_eq!(worse.push(-50.0), SequentialVerdict::Worse);
    }

    #[test]
    fn waits_for_the_minimum_and_skips_what_is_not_finite() {
        let mut test = SequentialTest::new(0.0, 0.05, 8, 20);
        for x in [f64::NAN, f64::INFINITY] {
            assert_eq!(test.push(x), SequentialVerdict::Continue);
        }
        assert_eq!(test.n(), 0);
        let first = (1..=9).find(|_| test.push(0.1) == SequentialVerdict::Worse);
        assert_eq!(first, Some(8));
        let mut never = SequentialTest::new(0.0, 0.0, 2, 60);
        assert!((0..50).all(|_| never.push(0.1) == SequentialVerdict::Continue));
    }

    /// A test of 50 blocks at this limit. The level of each look is computed once: it takes a
    /// fifth of a second.
    fn of_50_blocks(limit_log_ratio: f64) -> SequentialTest {
        static AT_ZERO: LazyLock<SequentialTest> =
            LazyLock::new(|| SequentialTest::new(0.0, 0.05, 3, 50));
        SequentialTest {
            limit_log_ratio,
            ..AT_ZERO.clone()
        }
    }

    proptest! {
        #[test]
        fn scale_does_not_matter(xs in prop::collection::vec(-1.0f64..1.0, 2..40), scale in 1e-3f64..1e3) {
            let (mut a, mut b) = (of_50_blocks(0.0), of_50_blocks(0.0));
            for x in xs {
                a.push(x);
                b.push(x * scale);
                prop_assert!((a.p_value() - b.p_value()).abs() < 1e-6);
            }
        }

        #[test]
        fn only_the_distance_to_the_limit_matters(
            xs in prop::collection::vec(-1.0f64..1.0, 2..40), limit in -1.0f64..1.0,
        ) {
            let (mut a, mut b) = (of_50_blocks(0.0), of_50_blocks(limit));
            for x in xs {
                a.push(x);
                b.push(x + limit);
            }
            prop_assert!((a.p_value() - b.p_value()).abs() < 1e-6);
        }

        #[test]
        fn any_input_gives_a_number(xs in prop::collection::vec(any::<f64>(), 0..30), limit in any::<f64>()) {
            let mut test = of_50_blocks(limit);
            for x in xs {
                test.push(x);
            }
            let p = test.p_value();
            prop_assert!(p.is_nan() || (0.0..=1.0).contains(&p));
        }
    }
}
