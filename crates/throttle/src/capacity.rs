//! The highest load under which a service keeps its objective: doubling until it fails, then
//! halving the distance.

use serde::{Deserialize, Serialize};

/// Rates are doubled and halved at most so often: a factor of a million either way.
const DOUBLINGS_MAX: u32 = 20;

/// Two runs out of three decide about a rate, so that one disturbance does not.
const AGREEING: usize = 2;

/// One run at one rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Requests a second.
    pub per_s: f64,
    /// Whether the objective was kept.
    pub held: bool,
}

/// A search for the capacity, run by run.
///
/// ```
/// use throttle::capacity::CapacitySearch;
///
/// let mut search = CapacitySearch::new(100.0, 0.05);
/// while let Some(per_s) = search.next() {
///     search.take(per_s < 730.0);
/// }
/// let capacity = search.capacity().unwrap();
/// assert!((695.0..767.0).contains(&capacity));
/// ```
#[derive(Clone, Debug)]
pub struct CapacitySearch {
    start_per_s: f64,
    tolerance: f64,
    held: Option<f64>,
    failed: Option<f64>,
    at: Vec<bool>,
    trials: Vec<Trial>,
    doublings: u32,
}

impl CapacitySearch {
    /// A search that starts at a rate, and ends once the lowest that failed is at most so much,
    /// relatively, above the highest that held; where start or tolerance is not above 0, at once.
    #[must_use]
    pub fn new(start_per_s: f64, tolerance: f64) -> Self {
        Self {
            start_per_s,
            tolerance,
            held: None,
            failed: None,
            at: Vec::new(),
            trials: Vec::new(),
            doublings: 0,
        }
    }

    /// The rate of the next run; `None` when the search is over.
    #[must_use]
    pub fn next(&self) -> Option<f64> {
        if !(self.start_per_s > 0.0 && self.tolerance > 0.0) || self.doublings > DOUBLINGS_MAX {
            return None;
        }
        match (self.held, self.failed) {
            (None, None) => Some(self.start_per_s),
            (Some(held), None) => Some(2.0 * held),
            (None, Some(failed)) => Some(failed / 2.0),
            (Some(held), Some(failed)) => {
                (failed / held > 1.0 + self.tolerance).then(|| (held * failed).sqrt())
            }
        }
    }

    /// Takes in how the run at [`CapacitySearch::next`] ended.
    pub fn take(&mut self, held: bool) {
        let Some(per_s) = self.next() else {
            return;
        };
        self.trials.push(Trial { per_s, held });
        self.at.push(held);
        let agree = self.at.iter().filter(|other| **other == held).count();
        if agree < AGREEING {
            return;
        }
        self.at.clear();
        if self.held.is_none() || self.failed.is_none() {
            self.doublings += 1;
        }
        if held {
            self.held = Some(per_s);
        } else {
            self.failed = Some(per_s);
        }
    }

    /// Every run so far.
    #[must_use]
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// The capacity, between the two rates that are left; `None` before both are known.
    #[must_use]
    pub fn capacity(&self) -> Option<f64> {
        Some((self.held? * self.failed?).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn it_goes_down_as_well_as_up() {
        for truth in [0.02, 3.0, 99.0, 101.0, 40_000.0] {
            let mut search = CapacitySearch::new(100.0, 0.02);
            while let Some(per_s) = search.next() {
                search.take(per_s < truth);
            }
            let capacity = search.capacity().unwrap();
            assert!((capacity / truth - 1.0).abs() < 0.02, "{truth}: {capacity}");
        }
    }

    #[test]
    fn what_never_fails_and_what_always_fails_have_no_capacity() {
        for always in [true, false] {
            let mut search = CapacitySearch::new(100.0, 0.05);
            while search.next().is_some() {
                search.take(always);
            }
            assert_eq!(search.capacity(), None);
            assert!(search.trials().len() < 50);
        }
    }

    #[test]
    fn a_disturbed_run_now_and_then_does_not_decide() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut near = 0;
        for _ in 0..200 {
            let mut search = CapacitySearch::new(50.0, 0.05);
            while let Some(per_s) = search.next() {
                // One run in twenty fails for reasons of its own.
                search.take(per_s < 800.0 && rng.random::<f64>() > 0.05);
            }
            near += u32::from((search.capacity().unwrap() / 800.0 - 1.0).abs() < 0.05);
        }
        // Two disturbed runs at one of about ten rates: 1 − (1 − 0.00725)^10, about 7 %.
        assert!(near > 170, "{near} of 200");
    }
}
