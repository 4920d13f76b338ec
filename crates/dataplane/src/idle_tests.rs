//! The learning of spin times, simulated.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;

/// Wake-ups that all take as long.
fn wakes(late_ns: u64) -> Wakes {
    let mut wakes = Wakes::default();
    (0..WAKES).for_each(|_| wakes.record(late_ns));
    wakes
}

/// What a shard did in a simulated time.
#[derive(Debug, Default)]
struct Seen {
    gaps: u32,
    sleeps: u32,
    elapsed_ns: u64,
    spun_ns: u64,
}

impl Seen {
    fn spun_share(&self) -> f64 {
        self.spun_ns as f64 / self.elapsed_ns as f64
    }

    /// What all gaps cost.
    fn cost_ns(&self, wake_ns: u64) -> f64 {
        self.spun_ns as f64 + f64::from(self.sleeps) * (WAKE_WORTH * wake_ns) as f64
    }
}

/// A shard whose next event comes after `gap` and whose wake-ups take `wake_ns`. The learner sees
/// what a shard sees: the end of a gap that was slept through is late.
fn simulate(
    idle: &mut IdleSpin,
    fixed_ns: Option<u64>,
    wake_ns: u64,
    gaps: u32,
    mut gap: impl FnMut() -> u64,
) -> Seen {
    let mut seen = Seen::default();
    for _ in 0..gaps {
        let gap_ns = gap();
        let spin_ns = fixed_ns.unwrap_or_else(|| {
            let limit = idle.spin().unwrap_or(Duration::MAX);
            u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
        });
        let slept = gap_ns > spin_ns;
        let took_ns = gap_ns + if slept { wake_ns } else { 0 };
        seen.gaps += 1;
        seen.sleeps += u32::from(slept);
        seen.spun_ns += gap_ns.min(spin_ns);
        seen.elapsed_ns += took_ns;
        idle.record(took_ns, slept);
    }
    seen
}

fn exponential(random: &mut StdRng, mean_ns: f64) -> u64 {
    let gap = Duration::from_secs_f64(-(1.0 - random.random::<f64>()).ln() * mean_ns / 1e9);
    u64::try_from(gap.as_nanos()).unwrap()
}

#[test]
fn short_gaps_are_spun_through_and_long_ones_slept() {
    let mut idle = IdleSpin::new(IdlePolicy::Learn, wakes(30_000));
    for _ in 0..500 {
        idle.record(5_000, false);
    }
    let spin = idle.spin().unwrap();
    assert!(
        spin >= Duration::from_micros(5) && spin < Duration::from_micros(32),
        "{spin:?}"
    );
    for _ in 0..3000 {
        idle.record(2_000_000, true);
    }
    assert_eq!(idle.spin(), Some(Duration::ZERO));
    for _ in 0..3000 {
        idle.record(20_000, false);
    }
    assert!(idle.spin().unwrap() >= Duration::from_micros(20));
}

#[test]
fn a_shard_that_slept_finds_back_to_spinning() {
    // A client whose next request comes 40 µs after the answer, where a wake-up takes 100 µs.
    let mut idle = IdleSpin::new(IdlePolicy::Learn, wakes(100_000));
    for _ in 0..2000 {
        idle.record(5_000_000, true);
    }
    assert_eq!(idle.spin(), Some(Duration::ZERO));
    let seen = simulate(&mut idle, None, 100_000, 4000, || 40_000);
    assert!(idle.spin().unwrap() >= Duration::from_micros(40));
    assert!(seen.sleeps < 2000, "{seen:?}");
    let seen = simulate(&mut idle, None, 100_000, 4000, || 40_000);
    assert_eq!(seen.sleeps, 0);
}

#[test]
fn what_is_learnt_costs_little_more_than_the_best_fixed_spin_time() {
    let mut random = StdRng::seed_from_u64(3);
    for wake_ns in [5_000, 30_000, 100_000] {
        for mean_ns in [2e3, 20e3, 60e3, 150e3, 500e3, 5e6] {
            // Bursts: nine gaps of ten are a tenth as long.
            for is_burst in [false, true] {
                let gaps: Vec<u64> = (0..20_000)
                    .map(|index| {
                        let is_short = is_burst && index % 10 != 0;
                        exponential(&mut random, mean_ns * if is_short { 0.1 } else { 1.0 })
                    })
                    .collect();
                let run = |fixed_ns| {
                    let mut idle = IdleSpin::new(IdlePolicy::Learn, wakes(wake_ns));
                    let mut next = gaps.iter().copied();
                    let seen = simulate(&mut idle, fixed_ns, wake_ns, 20_000, || {
                        next.next().unwrap()
                    });
                    seen.cost_ns(wake_ns)
                };
                let fixed = (0..CHOICES).map(|choice| run(Some(choice_ns(choice))));
                let best = fixed.min_by(f64::total_cmp).unwrap();
                let learnt = run(None);
                assert!(
                    learnt <= 1.1 * best,
                    "{wake_ns} {mean_ns} {is_burst}: {learnt} {best}"
                );
            }
        }
    }
}

#[test]
fn an_idle_shard_uses_next_to_nothing() {
    let mut random = StdRng::seed_from_u64(5);
    for wake_ns in [5_000, 100_000, 250_000] {
        // 100 events a second, once a second, and once a second after a busy time.
        for (mean_ns, before_ns) in [(10e6, 10e6), (1e9, 1e9), (1e9, 5e3)] {
            let mut idle = IdleSpin::new(IdlePolicy::Learn, wakes(wake_ns));
            simulate(&mut idle, None, wake_ns, 1000, || {
                exponential(&mut random, before_ns)
            });
            let seen = simulate(&mut idle, None, wake_ns, 1000, || {
                exponential(&mut random, mean_ns)
            });
            assert!(seen.spun_share() < 0.005, "{wake_ns} {mean_ns}: {seen:?}");
        }
    }
}

#[test]
fn the_cost_of_a_wake_up_is_the_median_of_the_last_ones() {
    let mut idle = IdleSpin::new(IdlePolicy::Learn, Wakes::default());
    assert_eq!(idle.wake_ns(), WAKE_FIRST_NS);
    for late_ns in [60_000, u64::MAX, 50_000] {
        idle.woke(late_ns);
    }
    assert_eq!(idle.wake_ns(), 60_000);
    (0..WAKES).for_each(|_| idle.woke(8_000));
    assert_eq!(idle.wake_ns(), 8_000);
    (0..WAKES).for_each(|_| idle.woke(u64::MAX));
    assert_eq!(idle.wake_ns(), WAKE_MAX_NS);
    assert!(idle.spins_until(WAKE_MAX_NS - 1) && !idle.spins_until(WAKE_MAX_NS));
}

#[test]
fn the_other_policies_learn_nothing() {
    for (policy, spin) in [
        (IdlePolicy::Spin, None),
        (IdlePolicy::Sleep, Some(Duration::ZERO)),
    ] {
        let mut idle = IdleSpin::new(policy, Wakes::default());
        for _ in 0..500 {
            idle.record(5_000, false);
        }
        assert_eq!(idle.spin(), spin);
        assert_eq!(idle.spins_until(1), policy == IdlePolicy::Spin);
    }
}
