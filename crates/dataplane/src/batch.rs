//! The batch bound, chosen under a latency objective (iso-latency).
//!
//! A larger bound costs fewer instructions a request, because a turn's fixed cost is shared. The
//! price is that the first request of a batch waits until the last one has run. So the bound grows
//! while the tail has slack, and shrinks when a turn itself takes too much of the objective. When
//! the tail is long because requests queue, a smaller bound would only lengthen the queue: then the
//! bound grows.

use std::time::Duration;

/// IX's bound (OSDI'14, section 4.1): past 64 the gain is small, and batches would fall out of the
/// first-level cache.
pub const BOUND_MAX: usize = 64;

/// The part of the objective that two turns may take: a request that arrives just after a poll
/// waits for one turn, and ends with the next.
const TURNS_SHARE: f64 = 0.5;
/// Below this share of the objective the tail has slack.
const SLACK_SHARE: f64 = 0.8;

/// How the bound is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchPolicy {
    /// Always the same.
    Fixed(usize),
    /// Between 1 and [`BOUND_MAX`], so that the 99th percentile stays below the objective.
    Objective(Duration),
}

/// What happened since the last step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchObservation {
    /// 99th percentile of the time from arrival to answer.
    pub tail_ns: u64,
    /// 99th percentile of a turn's length.
    pub turn_ns: u64,
    /// Share of the turns (0 to 1) that reached the bound.
    pub full_share: f64,
}

/// The controller. It reads no clock: observations come in, a bound goes out.
#[derive(Debug, Clone)]
pub struct BatchController {
    policy: BatchPolicy,
    bound: usize,
}

impl BatchController {
    /// A controller that begins with the largest bound.
    pub fn new(policy: BatchPolicy) -> Self {
        let bound = match policy {
            BatchPolicy::Fixed(bound) => bound.clamp(1, BOUND_MAX),
            BatchPolicy::Objective(_) => BOUND_MAX,
        };
        Self { policy, bound }
    }

    /// The bound now.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// Changes the policy, for a reload.
    pub fn set_policy(&mut self, policy: BatchPolicy) {
        *self = Self::new(policy);
    }

    /// Takes an observation and gives the next bound.
    pub fn step(&mut self, observation: BatchObservation) -> usize {
        let BatchPolicy::Objective(objective) = self.policy else {
            return self.bound;
        };
        let objective_ns = objective.as_nanos() as f64;
        let turns_ns = 2.0 * observation.turn_ns as f64;
        let tail_ns = observation.tail_ns as f64;
        let is_full = observation.full_share > 0.01;
        if turns_ns > TURNS_SHARE * objective_ns {
            // Halving answers within few steps; what a turn takes is at most proportional to the
            // bound.
            self.bound = (self.bound / 2).max(1);
        } else if is_full && (tail_ns < SLACK_SHARE * objective_ns || tail_ns > objective_ns) {
            // One eighth a step, if the turn would still fit afterwards.
            let next = (self.bound + (self.bound / 8).max(1)).min(BOUND_MAX);
            if turns_ns * next as f64 <= TURNS_SHARE * objective_ns * self.bound as f64 {
                self.bound = next;
            }
        }
        self.bound
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    /// A server whose turn takes `fixed_ns` and `request_ns` for each request of the batch, under
    /// Poisson arrivals. Gives the 99th percentile and the work per request, after warming up.
    fn simulate(
        policy: BatchPolicy,
        rate: f64,
        fixed_ns: f64,
        request_ns: f64,
    ) -> (f64, f64, usize) {
        let mut random = StdRng::seed_from_u64(7);
        let mut controller = BatchController::new(policy);
        let mut gap = move || -(1.0 - random.random::<f64>()).ln() / rate * 1e9;
        let (mut now, mut next_arrival) = (0.0_f64, 0.0_f64);
        let mut queue = std::collections::VecDeque::new();
        let (mut window, mut turns, mut full) = (Vec::new(), Vec::new(), 0);
        let (mut all, mut work) = (Vec::new(), 0.0);
        for step in 0..120_000 {
            while next_arrival <= now {
                if queue.len() < 2000 {
                    queue.push_back(next_arrival);
                }
                next_arrival += gap();
            }
            let batch = queue.len().min(controller.bound());
            if batch == 0 {
                now = next_arrival;
                continue;
            }
            let turn = fixed_ns + request_ns * batch as f64;
            now += turn;
            full += usize::from(batch == controller.bound());
            turns.push(turn);
            for arrival in queue.drain(..batch) {
                window.push(now - arrival);
                if step > 60_000 {
                    all.push(now - arrival);
                    work += turn / batch as f64;
                }
            }
            if turns.len() >= 256 {
                let p99 = |values: &mut Vec<f64>| {
                    values.sort_by(f64::total_cmp);
                    let tail = Duration::from_secs_f64(values[values.len() * 99 / 100] / 1e9);
                    u64::try_from(tail.as_nanos()).unwrap()
                };
                controller.step(BatchObservation {
                    tail_ns: p99(&mut window),
                    turn_ns: p99(&mut turns),
                    full_share: full as f64 / turns.len() as f64,
                });
                (window, turns, full) = (Vec::new(), Vec::new(), 0);
            }
        }
        all.sort_by(f64::total_cmp);
        (
            all[all.len() * 99 / 100],
            work / all.len() as f64,
            controller.bound(),
        )
    }

    const OBJECTIVE: BatchPolicy = BatchPolicy::Objective(Duration::from_micros(500));

    #[test]
    fn adaptive_is_never_worse_than_a_bound_of_1_or_64() {
        for rate in [100e3, 300e3, 500e3, 700e3, 900e3] {
            let (adaptive, adaptive_work, _) = simulate(OBJECTIVE, rate, 1000.0, 1000.0);
            for bound in [1, 64] {
                let (fixed, work, _) = simulate(BatchPolicy::Fixed(bound), rate, 1000.0, 1000.0);
                assert!(
                    adaptive <= fixed * 1.05,
                    "{rate}: {adaptive} {bound}: {fixed}"
                );
                assert!(
                    adaptive_work <= work * 1.05,
                    "{rate}: {adaptive_work} {work}"
                );
            }
        }
    }

    #[test]
    fn requests_too_slow_for_a_full_batch_get_a_smaller_one() {
        // 64 requests of 10 µs would take 640 µs.
        let (adaptive, _, bound) = simulate(OBJECTIVE, 85e3, 1000.0, 10_000.0);
        let (fixed, ..) = simulate(BatchPolicy::Fixed(64), 85e3, 1000.0, 10_000.0);
        assert!(bound <= 25, "{bound}");
        assert!(adaptive <= fixed, "{adaptive} {fixed}");
        assert!(adaptive < 500e3, "{adaptive}");
    }

    #[test]
    fn a_fixed_bound_stays_and_the_bound_never_leaves_its_range() {
        let worst = BatchObservation {
            tail_ns: u64::MAX,
            turn_ns: u64::MAX,
            full_share: 1.0,
        };
        let best = BatchObservation {
            tail_ns: 0,
            turn_ns: 0,
            full_share: 1.0,
        };
        let mut fixed = BatchController::new(BatchPolicy::Fixed(1000));
        assert_eq!(fixed.step(worst), BOUND_MAX);
        let mut adaptive = BatchController::new(OBJECTIVE);
        for _ in 0..20 {
            adaptive.step(worst);
        }
        assert_eq!(adaptive.bound(), 1);
        for _ in 0..100 {
            adaptive.step(best);
        }
        assert_eq!(adaptive.bound(), BOUND_MAX);
    }
}
