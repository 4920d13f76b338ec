//! How well a layout fits what runs: the share of fresh samples that lie in code which the layout
//! treats as hot.
//!
//! A layout moves the blocks that its profile saw run, and leaves the rest where it was. So a fresh
//! sample is *covered* where the layout moved its block:
//!
//! ```text
//! cover = covered samples / samples
//! ```
//!
//! Counted are clock samples in user code that a layout could move, so each block weighs as much as
//! the CPU time that it takes. Two kinds are left out:
//!
//! - Functions with fewer than [`SAMPLES_MIN`] samples: chance decides which of them a profile has,
//!   an old one and a new one alike.
//! - Blocks that the layout's own profile has samples of and no count, and functions that were not
//!   entered while they were counted. A loop that runs for ever stays in old code under any
//!   profile.
//!
//! The interval is Wilson's, so few samples show little.
//!
//! What cover does not see: the order of the blocks, and moved code that no longer runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use paired_stats::{Interval, share_interval};
use serde::{Deserialize, Serialize};

/// Two-sided, as everywhere in Slackline.
const CONFIDENCE: f64 = 0.95;

/// A layout that is shown to cover less than this share of what runs does not fit. What it does not
/// cover runs as in the original code. So at nine tenths at most a tenth of the gain is lost, which
/// is less than a comparison can show (±4 % of MariaDB's work, where all of the gain is 5 to 25 %:
/// docs/results/relayout.md).
pub(crate) const COVER_MIN: f64 = 0.9;

/// Functions with fewer samples are left out. Where two looks at one workload have `m` samples in a
/// function, the earlier one has none of them with a probability of 2⁻ᵐ (each is in either, as
/// likely): 25 % of 2, 3 % of 5.
const SAMPLES_MIN: u64 = 5;

/// A function: the index of its object, and its start in that file.
pub(crate) type FunctionPlace = (usize, u64);

/// A block: its function, and its start in that file.
pub(crate) type BlockPlace = (FunctionPlace, u64);

/// Samples by block, in code that could be moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ran(BTreeMap<BlockPlace, u64>);

impl Ran {
    pub(crate) fn add(&mut self, block: BlockPlace, samples: u64) {
        let known = self.0.entry(block).or_default();
        *known = known.saturating_add(samples);
    }

    /// Those in functions that have enough.
    fn counted(&self) -> impl Iterator<Item = (&BlockPlace, u64)> {
        let mut by_function: BTreeMap<FunctionPlace, u64> = BTreeMap::new();
        for ((function, _), samples) in &self.0 {
            let known = by_function.entry(*function).or_default();
            *known = known.saturating_add(*samples);
        }
        let blocks = self.0.iter().map(|(block, samples)| (block, *samples));
        blocks.filter(move |((function, _), _)| by_function[function] >= SAMPLES_MIN)
    }
}

/// The blocks that a layout moves, and those that its profile saw run and could not have moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hot {
    moved: BTreeSet<BlockPlace>,
    stuck: BTreeSet<BlockPlace>,
    bytes: u64,
}

impl Hot {
    pub(crate) fn add(&mut self, block: BlockPlace, bytes: u64) {
        if self.moved.insert(block) {
            self.bytes += bytes;
        }
    }

    pub(crate) fn add_stuck(&mut self, block: BlockPlace) {
        self.stuck.insert(block);
    }

    /// How much code it is.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How well it fits what ran, and how much it is; `None` where no sample tells.
    pub(crate) fn candidate(&self, ran: &Ran) -> Option<LayoutCandidate> {
        let (mut covered, mut samples) = (0_u64, 0_u64);
        for (block, count) in ran.counted() {
            let is_covered = self.moved.contains(block);
            if is_covered {
                covered = covered.saturating_add(count);
            }
            if is_covered || !self.stuck.contains(block) {
                samples = samples.saturating_add(count);
            }
        }
        Some(LayoutCandidate {
            cover: Cover::new(covered, samples)?,
            hot_bytes: self.bytes,
        })
    }
}

/// How well a layout fits what runs: of so many samples so many lie in code that it moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cover {
    covered: u64,
    samples: u64,
}

impl Cover {
    /// `None` without a sample.
    #[must_use]
    pub fn new(covered: u64, samples: u64) -> Option<Self> {
        let covered = covered.min(samples);
        (samples > 0).then_some(Self { covered, samples })
    }

    /// How many samples it is of.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The share, 0 to 1, with its 95 % interval.
    #[must_use]
    pub fn share(&self) -> Interval {
        let all = Interval {
            low: 0.0,
            estimate: 0.0,
            high: 1.0,
            confidence: CONFIDENCE,
        };
        share_interval(self.covered, self.samples, CONFIDENCE).unwrap_or(all)
    }

    /// Whether the layout is shown to cover at least this share.
    #[must_use]
    pub fn fits(&self, least: f64) -> bool {
        self.share().low >= least
    }

    /// Whether the layout is shown to cover less.
    #[must_use]
    pub fn is_below(&self, least: f64) -> bool {
        self.share().high < least
    }
}

impl fmt::Display for Cover {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Interval {
            low,
            estimate,
            high,
            ..
        } = self.share();
        let percent = |share: f64| share * 100.0;
        let (low, high) = (percent(low), percent(high));
        write!(out, "{:.1} % [{low:.1}, {high:.1}]", percent(estimate))
    }
}

/// A layout that could be put in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutCandidate {
    /// How well it fits what runs.
    pub cover: Cover,
    /// The blocks that it moves, in bytes.
    pub hot_bytes: u64,
}

impl LayoutCandidate {
    /// Which candidate fits what runs best, if any is shown to cover at least `least` of it. Of
    /// those that the samples cannot tell from the best, it is the one with the least code: the
    /// others move code for other workloads as well.
    #[must_use]
    pub fn best(candidates: &[Self], least: f64) -> Option<usize> {
        let fits = |candidate: &&Self| candidate.cover.fits(least);
        let lows = candidates.iter().filter(fits);
        let low = lows
            .map(|candidate| candidate.cover.share().low)
            .max_by(f64::total_cmp)?;
        let all = candidates.iter().enumerate();
        let level =
            all.filter(|(_, candidate)| fits(candidate) && candidate.cover.share().high >= low);
        level
            .min_by_key(|(_, candidate)| candidate.hot_bytes)
            .map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::distr::Distribution as _;
    use rand::distr::weighted::WeightedIndex;
    use rand::{RngCore, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const LEAST: f64 = COVER_MIN;

    fn block(function: u64, offset: u64) -> BlockPlace {
        ((0, function), function + offset)
    }

    fn ran(samples: &[(BlockPlace, u64)]) -> Ran {
        let mut ran = Ran::default();
        samples
            .iter()
            .for_each(|(place, count)| ran.add(*place, *count));
        ran
    }

    fn hot(blocks: impl IntoIterator<Item = BlockPlace>) -> Hot {
        let mut hot = Hot::default();
        blocks.into_iter().for_each(|place| hot.add(place, 16));
        hot
    }

    fn candidate(covered: u64, samples: u64, hot_bytes: u64) -> LayoutCandidate {
        let cover = Cover::new(covered, samples).unwrap();
        LayoutCandidate { cover, hot_bytes }
    }

    #[test]
    fn samples_count_by_the_block_that_they_are_in_and_chance_ones_do_not() {
        let hot = hot([block(100, 0), block(100, 8), block(200, 0)]);
        // A block of a hot function that was cold, one of a cold function, and what is too little.
        let ran = ran(&[
            (block(100, 0), 60),
            (block(100, 24), 20),
            (block(300, 0), 20),
            (block(400, 0), 4),
            (block(200, 0), 2),
            (block(200, 8), 2),
        ]);
        let candidate = hot.candidate(&ran).unwrap();
        assert_eq!(candidate.cover, Cover::new(60, 100).unwrap());
        assert_eq!(candidate.hot_bytes, 48);
        assert_eq!(candidate.cover.to_string(), "60.0 % [50.2, 69.1]");
        // What no profile could have moved does not count.
        let mut stuck = hot.clone();
        stuck.add_stuck(block(300, 0));
        assert_eq!(
            stuck.candidate(&ran).unwrap().cover,
            Cover::new(60, 80).unwrap()
        );
        // Blocks of another object at the same address are others.
        let mut other = Ran::default();
        other.add(((1, 100), 100), 9);
        assert_eq!(hot.candidate(&other).unwrap().cover.share().estimate, 0.0);
    }

    #[test]
    fn without_samples_nothing_is_said() {
        assert_eq!(hot([block(1, 0)]).candidate(&Ran::default()), None);
        assert_eq!(hot([]).candidate(&ran(&[(block(1, 0), 4)])), None);
    }

    #[test]
    fn few_samples_show_neither_that_it_fits_nor_that_it_does_not() {
        let cover = |covered, samples| Cover::new(covered, samples).unwrap();
        for (cover, fits, is_below) in [
            (cover(10, 10), false, false),
            (cover(8, 10), false, false),
            (cover(60, 60), true, false),
            (cover(930, 1000), true, false),
            (cover(910, 1000), false, false),
            (cover(870, 1000), false, true),
            (cover(2, 10), false, true),
        ] {
            let found = (cover.fits(LEAST), cover.is_below(LEAST));
            assert_eq!(found, (fits, is_below), "{cover}");
        }
    }

    #[test]
    fn the_best_is_the_smallest_of_those_that_the_samples_cannot_tell_apart() {
        let best = |candidates: &[LayoutCandidate]| LayoutCandidate::best(candidates, LEAST);
        assert_eq!(best(&[]), None);
        assert_eq!(best(&[candidate(500, 1000, 10)]), None);
        let (broad, own) = (candidate(4900, 5000, 900), candidate(4890, 5000, 300));
        let loose = candidate(4600, 5000, 100);
        assert_eq!(best(&[broad, own, loose]), Some(1));
        assert_eq!(best(&[loose, broad]), Some(1));
        assert_eq!(best(&[candidate(10, 5000, 1), loose]), Some(1));
    }

    /// So many samples of a program whose functions take time as 1, 1/2, 1/3, … (Zipf), of which
    /// the hottest ones are `new`.
    fn drawn(random: &mut impl RngCore, samples: usize, new: usize) -> Ran {
        let weights = (1..=400).map(|rank| 1.0 / f64::from(rank));
        let ranks = WeightedIndex::new(weights).unwrap();
        let mut ran = Ran::default();
        for _ in 0..samples {
            let rank = ranks.sample(random);
            let place = if rank < new { rank + 1000 } else { rank };
            ran.add(block(place as u64 * 100, 0), 1);
        }
        ran
    }

    fn all_of(ran: &Ran) -> Hot {
        hot(ran.0.keys().copied())
    }

    /// In a hundred pairs of samples: how often the second is shown to be covered by the first, and
    /// how often it is shown not to be.
    fn shown(samples: usize, new: usize) -> (usize, usize) {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut counts = (0, 0);
        for _ in 0..100 {
            let kept = all_of(&drawn(&mut random, samples, 0));
            let fresh = drawn(&mut random, samples, new);
            let cover = kept.candidate(&fresh).unwrap().cover;
            counts.0 += usize::from(cover.fits(LEAST));
            counts.1 += usize::from(cover.is_below(LEAST));
        }
        counts
    }

    #[test]
    fn the_same_workload_is_known_again_and_another_one_is_not() {
        for (samples, known_min) in [(200, 0), (1000, 99), (5000, 100)] {
            let (known, refused) = shown(samples, 0);
            assert!(known >= known_min, "{known} of 100 by {samples} samples");
            assert!(refused <= 1, "{refused} of 100 by {samples} samples");
            // Another one: its ten hottest functions, with 45 % of its time, are new.
            let (known, refused) = shown(samples, 10);
            assert!(
                known == 0 && refused >= 95,
                "{known}, {refused} by {samples}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_cover_is_a_share_within_its_interval_that_narrows_with_samples(
            covered in 0_u64..10_000, more in 0_u64..10_000, times in 2_u64..100,
        ) {
            prop_assume!(covered + more > 0);
            let cover = Cover::new(covered, covered + more).unwrap();
            let share = cover.share();
            prop_assert!(0.0 <= share.low && share.low <= share.estimate);
            prop_assert!(share.estimate <= share.high && share.high <= 1.0);
            prop_assert!(!(cover.fits(LEAST) && cover.is_below(LEAST)));
            let sharper = Cover::new(covered * times, (covered + more) * times).unwrap().share();
            prop_assert!(sharper.high - sharper.low < share.high - share.low);
        }

        #[test]
        fn a_layout_covers_all_of_its_own_samples_and_more_code_never_less(
            samples in prop::collection::btree_map((0_u64..20, 0_u64..4), 1_u64..50, 1..40),
            moved in prop::collection::btree_set((0_u64..20, 0_u64..4), 0..40),
            added in prop::collection::btree_set((0_u64..20, 0_u64..4), 0..10),
        ) {
            let place = |(function, offset): (u64, u64)| block(function * 100, offset * 8);
            let counts: Vec<_> = samples.into_iter().map(|(at, count)| (place(at), count)).collect();
            let ran = ran(&counts);
            let Some(own) = all_of(&ran).candidate(&ran) else { return Ok(()) };
            prop_assert_eq!(own.cover.share().estimate, 1.0);
            let few = hot(moved.iter().copied().map(place));
            let many = hot(moved.union(&added).copied().map(place));
            let share = |hot: &Hot| hot.candidate(&ran).unwrap().cover.share().estimate;
            prop_assert!(share(&few) <= share(&many));
        }
    }
}
