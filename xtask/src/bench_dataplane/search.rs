//! The highest rate that holds an objective, found by loads of which some are disturbed.
//!
//! Halving believes every load. After one disturbed load it never looks at a higher rate again, and
//! ends far too low. This search is a probabilistic bisection (Horstein, "Sequential transmission
//! using noiseless feedback", IEEE Transactions on Information Theory 9(3), 1963; Waeber, Frazier
//! and Henderson, "Bisection search with noisy responses", SIAM Journal on Control and Optimization
//! 51(3), 2013). A load only moves the belief about where the highest rate lies. The next load runs
//! at the rate that splits the belief into halves, so a wrong answer is asked about again.
//!
//! Two rules, the same for all servers:
//!
//! 1. A load that missed the objective, and that something outside of the server disturbed, is
//!    discarded and repeated. At most [`DISCARDED_MAX`] loads are discarded; later ones count.
//! 2. The rate found is the median of the belief after [`LOADS`] loads.

/// Rates that the search tells apart: multiples of this part of the highest one.
const CELLS: usize = 64;
/// Loads that count. With 12, one wrong answer moves the result by one cell at most, whichever load
/// gave it; with 10 it may be two (all cases were tried: the tests below).
const LOADS: u32 = 12;
/// Loads that are discarded at most.
const DISCARDED_MAX: u32 = 12;
/// How often a rate below the highest is believed to miss, because nobody noticed a disturbance.
/// This and the next figure gave the smallest errors of those tried in a simulation where a tenth
/// of the loads was disturbed unnoticed.
const WRONG_MISS: f64 = 0.3;
/// How often a rate above the highest is believed to hold by luck.
const WRONG_HOLD: f64 = 0.1;

/// What a load showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The objective was held.
    pub(crate) is_held: bool,
    /// Something outside of the server disturbed the load.
    pub(crate) is_disturbed: bool,
}

/// The search, as a state machine: rates go out, what loads showed comes in.
#[derive(Debug, Clone)]
pub(crate) struct RateSearch {
    /// For each multiple of a cell, 0 among them, how far the highest rate is believed to be it.
    belief: [f64; CELLS + 1],
    loads: u32,
    discarded: u32,
}

impl RateSearch {
    /// Every rate is as likely as any other.
    pub(crate) fn new() -> Self {
        Self {
            belief: [1.0; CELLS + 1],
            loads: 0,
            discarded: 0,
        }
    }

    /// The rate for the next load, as a share of the highest one (0 to 1). `None`: the search has
    /// ended.
    pub(crate) fn next(&self) -> Option<f64> {
        (self.loads < LOADS).then(|| self.asked() as f64 / CELLS as f64)
    }

    /// The multiple for which "the highest rate is below it" is as likely as the opposite.
    fn asked(&self) -> usize {
        let half = self.belief.iter().sum::<f64>() / 2.0;
        let mut below = 0.0;
        let mut best = (f64::INFINITY, 1);
        for (at, weight) in (1..=CELLS).zip(&self.belief) {
            below += weight;
            let distance = (below - half).abs();
            if distance < best.0 {
                best = (distance, at);
            }
        }
        best.1
    }

    /// Takes what a load at the rate of [`RateSearch::next`] showed.
    pub(crate) fn take(&mut self, shown: Shown) {
        if shown.is_disturbed && !shown.is_held && self.discarded < DISCARDED_MAX {
            self.discarded += 1;
            return;
        }
        let asked = self.asked();
        let (below, above) = match shown.is_held {
            true => (WRONG_HOLD, 1.0 - WRONG_MISS),
            false => (1.0 - WRONG_HOLD, WRONG_MISS),
        };
        for (at, weight) in self.belief.iter_mut().enumerate() {
            *weight *= if at < asked { below } else { above };
        }
        self.loads += 1;
    }

    /// The rate found so far, as a share of the highest one. `None`: no rate seems to hold.
    pub(crate) fn found(&self) -> Option<f64> {
        let half = self.belief.iter().sum::<f64>() / 2.0;
        let mut up_to = 0.0;
        let median = self.belief.iter().position(|weight| {
            up_to += weight;
            up_to >= half
        })?;
        (median > 0).then(|| median as f64 / CELLS as f64)
    }

    /// Loads that counted.
    pub(crate) fn loads(&self) -> u32 {
        self.loads
    }

    /// Loads that were discarded.
    pub(crate) fn discarded(&self) -> u32 {
        self.discarded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random: `SplitMix64` (Steele, Lea and Flood, OOPSLA'14).
    struct Random(u64);

    impl Random {
        fn share(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
            (mixed >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Highest rates of servers, as shares of what they do in a closed loop.
    fn servers() -> impl Iterator<Item = f64> + Clone {
        (10..=96).map(|percent| f64::from(percent) / 100.0)
    }

    /// Runs a search; `load` says whether the load of this number, at this share, holds.
    fn search(mut load: impl FnMut(u32, f64) -> Shown) -> RateSearch {
        let mut search = RateSearch::new();
        let mut number = 0;
        while let Some(share) = search.next() {
            search.take(load(number, share));
            number += 1;
        }
        search
    }

    fn shown(is_held: bool) -> Shown {
        Shown {
            is_held,
            is_disturbed: false,
        }
    }

    /// What halving finds in six loads.
    fn halving(mut load: impl FnMut(u32, f64) -> bool) -> f64 {
        let (mut low, mut high) = (0.0, 1.0);
        for number in 0..6 {
            let share = f64::midpoint(low, high);
            match load(number, share) {
                true => low = share,
                false => high = share,
            }
        }
        low
    }

    #[test]
    fn one_disturbed_load_does_not_spoil_the_search() {
        let (mut worst, mut worst_of_halving) = (0.0_f64, 0.0_f64);
        for highest in servers() {
            for disturbed in 0..=LOADS {
                let holds = |number, share| number != disturbed && share <= highest;
                let found = search(|number, share| shown(holds(number, share))).found();
                worst = worst.max((highest - found.unwrap_or(0.0)).abs());
                worst_of_halving = worst_of_halving.max(highest - halving(holds));
            }
        }
        assert!(worst <= 1.1 / CELLS as f64, "{worst}");
        // The method that this one replaces ends at half of the rate.
        assert!(worst_of_halving > 0.4, "{worst_of_halving}");
    }

    #[test]
    fn two_disturbed_loads_cost_little() {
        let mut worst = 0.0_f64;
        for highest in servers() {
            for (first, second) in
                (0..LOADS).flat_map(|first| (0..first).map(move |at| (first, at)))
            {
                let holds = |number, share| number != first && number != second && share <= highest;
                let found = search(|number, share| shown(holds(number, share))).found();
                worst = worst.max((highest - found.unwrap_or(0.0)).abs());
            }
        }
        assert!(worst <= 0.05, "{worst}");
    }

    /// A server whose tail is near the objective over a range of rates, on a machine that disturbs
    /// a tenth of the loads. Half of the disturbances are noticed.
    #[test]
    fn a_noisy_server_is_found_by_most_searches() {
        const NOISE: f64 = 0.1;
        let mut random = Random(1);
        let (mut errors, mut errors_of_halving) = (Vec::new(), Vec::new());
        for highest in servers().cycle().take(2000) {
            let mut load = |share: f64| {
                let holds = random.share() < 1.0 / (1.0 + ((share - highest) / 0.02).exp());
                let is_disturbed = random.share() < NOISE;
                Shown {
                    is_held: holds && !is_disturbed,
                    is_disturbed: is_disturbed && random.share() < 0.5,
                }
            };
            let found = search(|_, share| load(share)).found().unwrap_or(0.0);
            errors.push((found / highest - 1.0).abs());
            let halved = halving(|_, share| load(share).is_held);
            errors_of_halving.push((halved / highest - 1.0).abs());
        }
        for errors in [&mut errors, &mut errors_of_halving] {
            errors.sort_by(f64::total_cmp);
        }
        let [nine_of_ten, of_halving] = [&errors, &errors_of_halving].map(|errors| errors[1800]);
        assert!(nine_of_ten < 0.15, "{nine_of_ten}");
        assert!(of_halving > 2.0 * nine_of_ten, "{of_halving}");
    }

    #[test]
    fn a_disturbance_that_is_noticed_changes_nothing() {
        for highest in servers() {
            let quiet = search(|_, share| shown(share <= highest));
            let mut disturbances = 0;
            let noticed = search(|number, share| {
                let is_disturbed = number % 3 == 0;
                disturbances += u32::from(is_disturbed && share <= highest);
                Shown {
                    is_held: share <= highest && !is_disturbed,
                    is_disturbed,
                }
            });
            assert_eq!(noticed.found(), quiet.found(), "{highest}");
            assert_eq!(noticed.loads(), quiet.loads());
            assert!(noticed.discarded() >= disturbances);
        }
    }

    #[test]
    fn a_load_that_held_although_it_was_disturbed_counts() {
        let held = Shown {
            is_held: true,
            is_disturbed: true,
        };
        let search = search(|_, _| held);
        assert_eq!(search.discarded(), 0);
        assert_eq!(search.found(), Some(1.0));
    }

    #[test]
    fn a_search_that_is_always_disturbed_ends_and_finds_nothing() {
        let missed = Shown {
            is_held: false,
            is_disturbed: true,
        };
        let mut loads = 0;
        let search = search(|_, _| {
            loads += 1;
            missed
        });
        assert_eq!(loads, LOADS + DISCARDED_MAX);
        assert_eq!(search.found(), None);
    }
}
