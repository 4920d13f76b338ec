//! How long an idle shard spins before it sleeps.
//!
//! Spinning costs CPU time; sleeping costs a wake-up. The shard measures what a wake-up costs,
//! counts how long its idle gaps were, and chooses the spin time that would have cost least: a gap
//! shorter than the spin time costs its own length, a longer one costs the spin time and a wake-up
//! (the ski-rental problem with a known distribution; Karlin et al., "Competitive randomized
//! algorithms for non-uniform problems", SODA'90).
//!
//! A gap that was slept through ends late, by the wake-up. Counted as it is, such a gap would look
//! too long to spin through, and a shard that sleeps once would sleep for ever. So the wake-up is
//! taken off.

use std::time::Duration;

/// What a wake-up costs before any was measured.
const WAKE_FIRST_NS: u64 = 30_000;
/// Measured wake-ups whose median counts. A timer of a shared machine is late by chance as well.
const WAKES: usize = 15;
/// A wake-up takes longer than this only if the machine did something else meanwhile.
const WAKE_MAX_NS: u64 = 250_000;
/// A wake-up costs so many times its length: the shard is late, and the one who waits for it goes
/// to sleep as well and is late in turn.
const WAKE_WORTH: u64 = 2;
/// Spin times to choose from: 0, then doublings of 1 µs up to 0.5 ms.
const CHOICES: usize = 11;
/// Older gaps count half after so many new ones.
const HALF_LIFE_GAPS: u32 = 256;
/// The choice is made anew after so many gaps.
const REVIEW_GAPS: u32 = 32;
/// Wake-ups that a shard times when it starts, and how long it sleeps for each.
pub(crate) const TRIALS: usize = WAKES;
/// Long enough for the processor to go to sleep as in an idle time. A hypervisor waits up to 0.2 ms
/// before it takes the processor away (`halt_poll_ns` of kvm).
pub(crate) const TRIAL: Duration = Duration::from_micros(500);

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

/// What the last wake-ups took.
#[derive(Debug, Clone, Default)]
pub struct Wakes {
    late_ns: [u64; WAKES],
    seen: usize,
}

impl Wakes {
    /// A sleep ended so long after what it waited for.
    pub fn record(&mut self, late_ns: u64) {
        self.late_ns[self.seen % WAKES] = late_ns.min(WAKE_MAX_NS);
        self.seen += 1;
    }

    /// The median.
    pub fn median_ns(&self) -> u64 {
        let mut known = self.late_ns;
        let known = &mut known[..self.seen.min(WAKES)];
        known.sort_unstable();
        known.get(known.len() / 2).copied().unwrap_or(WAKE_FIRST_NS)
    }
}

/// The learning part: gaps come in, a spin time goes out.
#[derive(Debug, Clone)]
pub struct IdleSpin {
    policy: IdlePolicy,
    wakes: Wakes,
    /// What a wake-up takes.
    wake_ns: u64,
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
    pub fn new(policy: IdlePolicy, wakes: Wakes) -> Self {
        let wake_ns = wakes.median_ns();
        Self {
            policy,
            wakes,
            wake_ns,
            gaps: [0.0; CHOICES + 1],
            lengths_ns: [0.0; CHOICES + 1],
            seen: 0,
            spin_ns: WAKE_WORTH * wake_ns,
        }
    }

    /// The same with another policy.
    pub fn with_policy(self, policy: IdlePolicy) -> Self {
        Self::new(policy, self.wakes)
    }

    /// How long to spin before sleeping; `None` for ever.
    pub fn spin(&self) -> Option<Duration> {
        match self.policy {
            IdlePolicy::Spin => None,
            IdlePolicy::Sleep => Some(Duration::ZERO),
            IdlePolicy::Learn => Some(Duration::from_nanos(self.spin_ns)),
        }
    }

    /// Whether a timer that is due in `wait_ns` is better spun for than slept for.
    pub fn spins_until(&self, wait_ns: u64) -> bool {
        self.policy != IdlePolicy::Sleep && wait_ns < self.wake_ns
    }

    /// What a wake-up takes, in nanoseconds.
    pub fn wake_ns(&self) -> u64 {
        self.wake_ns
    }

    /// A sleep ended so long after the moment that it was to end at.
    pub fn woke(&mut self, late_ns: u64) {
        self.wakes.record(late_ns);
        self.wake_ns = self.wakes.median_ns();
    }

    /// An idle gap ended after `gap_ns`. `slept`: its end was noticed by a wake-up.
    pub fn record(&mut self, gap_ns: u64, slept: bool) {
        let gap_ns = match slept {
            true => gap_ns.saturating_sub(self.wake_ns),
            false => gap_ns,
        };
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
        let wake_ns = WAKE_WORTH * self.wake_ns;
        let cost = |choice: usize| {
            let spun: f64 = self.lengths_ns[..=choice].iter().sum();
            let slept: f64 = self.gaps[choice + 1..].iter().sum();
            spun + slept * (choice_ns(choice) + wake_ns) as f64
        };
        (0..CHOICES)
            .min_by(|&a, &b| cost(a).total_cmp(&cost(b)))
            .map_or(wake_ns, choice_ns)
    }
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod tests;
