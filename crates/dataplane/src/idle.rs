//! How long an idle shard spins before it sleeps.
//!
//! Spinning costs CPU time; sleeping costs the latency of a wake-up. The shard counts how long its
//! idle gaps were, and chooses the spin time that would have cost least: a gap shorter than the spin
//! time costs its own length, a longer one costs the spin time and a wake-up (the ski-rental problem
//! with a known distribution).

use std::time::Duration;

/// What a wake-up is worth in CPU time. Measured in a virtual machine of this project: a halted
/// virtual CPU answers 15 µs to 50 µs later than a spinning one.
const WAKE_COST_NS: u64 = 30_000;
/// Spin times to choose from: 0, then doublings of 1 µs up to 0.5 ms.
const CHOICES: usize = 11;
/// Older gaps count half after so many new ones.
const HALF_LIFE_GAPS: u32 = 256;
/// The choice is made anew after so many gaps.
const REVIEW_GAPS: u32 = 32;

/// What a shard does when nothing is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Spins for a learnt time, then sleeps.
    Learn,
    /// Never sleeps: the lowest latency, for one CPU second each second.
    Spin,
    /// Sleeps at once.
    Sleep,
}

/// The learning part: gaps come in, a spin time goes out.
#[derive(Debug, Clone)]
pub struct IdleSpin {
    policy: IdlePolicy,
    /// Gaps no longer than choice i, but longer than choice i − 1; the last are longer than all.
    gaps: [f64; CHOICES + 1],
    /// Total length of the gaps of each class.
    lengths_ns: [f64; CHOICES + 1],
    seen: u32,
    spin_ns: u64,
}

fn choice_ns(choice: usize) -> u64 {
    if choice == 0 { 0 } else { 1000 << (choice - 1) }
}

impl IdleSpin {
    /// Begins with a spin time of one wake-up's cost, which is at most twice as dear as the best.
    pub fn new(policy: IdlePolicy) -> Self {
        Self {
            policy,
            gaps: [0.0; CHOICES + 1],
            lengths_ns: [0.0; CHOICES + 1],
            seen: 0,
            spin_ns: WAKE_COST_NS,
        }
    }

    /// How long to spin before sleeping; `None` for ever.
    pub fn spin(&self) -> Option<Duration> {
        match self.policy {
            IdlePolicy::Spin => None,
            IdlePolicy::Sleep => Some(Duration::ZERO),
            IdlePolicy::Learn => Some(Duration::from_nanos(self.spin_ns)),
        }
    }

    /// An idle gap ended after `gap_ns`.
    pub fn record(&mut self, gap_ns: u64) {
        let class = (0..CHOICES)
            .find(|&choice| gap_ns <= choice_ns(choice))
            .unwrap_or(CHOICES);
        self.gaps[class] += 1.0;
        self.lengths_ns[class] += gap_ns as f64;
        self.seen += 1;
        if self.seen.is_multiple_of(REVIEW_GAPS) {
            self.spin_ns = self.cheapest_ns();
        }
        if self.seen.is_multiple_of(HALF_LIFE_GAPS) {
            for value in self.gaps.iter_mut().chain(&mut self.lengths_ns) {
                *value *= 0.5;
            }
        }
    }

    fn cheapest_ns(&self) -> u64 {
        let cost = |choice: usize| {
            let spun: f64 = self.lengths_ns[..=choice].iter().sum();
            let slept: f64 = self.gaps[choice + 1..].iter().sum();
            spun + slept * (choice_ns(choice) + WAKE_COST_NS) as f64
        };
        (0..CHOICES)
            .min_by(|&a, &b| cost(a).total_cmp(&cost(b)))
            .map_or(WAKE_COST_NS, choice_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_gaps_are_spun_through_and_long_ones_slept() {
        let mut idle = IdleSpin::new(IdlePolicy::Learn);
        for _ in 0..500 {
            idle.record(5_000);
        }
        let spin = idle.spin().unwrap();
        assert!(
            spin >= Duration::from_micros(5) && spin < Duration::from_micros(32),
            "{spin:?}"
        );
        for _ in 0..3000 {
            idle.record(2_000_000);
        }
        assert_eq!(idle.spin(), Some(Duration::ZERO));
        for _ in 0..3000 {
            idle.record(20_000);
        }
        assert!(idle.spin().unwrap() >= Duration::from_micros(20));
    }

    #[test]
    fn the_other_policies_learn_nothing() {
        for (policy, spin) in [
            (IdlePolicy::Spin, None),
            (IdlePolicy::Sleep, Some(Duration::ZERO)),
        ] {
            let mut idle = IdleSpin::new(policy);
            for _ in 0..500 {
                idle.record(5_000);
            }
            assert_eq!(idle.spin(), spin);
        }
    }
}
