//! Autothrottle's tower (Wang et al., NSDI 2024, section 3.3): which throttle target is the best at
//! which load. As in the paper, a contextual bandit learns the cost of each target: with the
//! objective kept, the cost is what was allocated; with the objective broken, it is above every
//! kept one, and grows with the latency.
//!
//! Departures from the paper:
//!
//! - A table takes the place of the neural network: one cell for each step of the load and each
//!   target. A target that has no cell yet is tried from below, while there is slack.
//! - Exploration is every tenth window, and not one in ten by chance. So the same observations give
//!   the same decisions.
//! - A target that broke the objective is not explored for a time that doubles ([`crate::harm`]).

use std::collections::{BTreeMap, VecDeque};

use crate::harm::HarmMemory;
use crate::numbers::number;
use crate::tail::{Tail, TailVerdict};

/// The paper's targets (section 4).
const LADDER: [f64; RUNGS] = [0.0, 0.02, 0.04, 0.06, 0.10, 0.15, 0.20, 0.25, 0.30];
const RUNGS: usize = 9;
/// A target is tried for the first time with this much slack (Heracles, section 4.2).
const SLACK_TO_TRY: f64 = 0.1;
/// A target beside the best is tried again in one of so many windows: the paper explores in 10 %.
const EXPLORE_EVERY: u64 = 10;
/// A cell keeps so many windows. Their median counts, as in the authors' code.
const WINDOWS: usize = 5;
/// Steps of the load that are remembered: at a quarter a step, six orders of magnitude.
const LOADS_MAX: usize = 64;
/// The cost of a broken objective begins here; that of a kept one ends at 1 (the authors' code).
const COST_BROKEN: f64 = 2.0;

/// What came of a target in one window.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    is_broken: bool,
    latency_ms: f64,
    cores: f64,
}

/// One window of the service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<'a> {
    /// The step of its load.
    pub(crate) load_step: i64,
    pub(crate) tail: &'a Tail,
    pub(crate) objective_ms: f64,
    /// What the service was allowed to use.
    pub(crate) cores: f64,
}

type Cells = [VecDeque<Outcome>; RUNGS];

/// Learns the best target of one service.
#[derive(Debug, Default)]
pub(crate) struct Tower {
    rung: usize,
    table: BTreeMap<i64, Cells>,
    /// The step of the load since the target was set: another load's window says nothing of it.
    set_at: Option<i64>,
    windows: u64,
    harm: HarmMemory,
}

impl Tower {
    /// The share of quota periods in which the service is to be throttled.
    pub(crate) fn target(&self) -> f64 {
        LADDER[self.rung]
    }

    /// A window has passed.
    pub(crate) fn step(&mut self, window: Window<'_>, now_s: f64) {
        let step = window.load_step;
        let verdict = window.tail.verdict(window.objective_ms);
        let is_of_one_load = self.set_at.replace(step) == Some(step);
        if is_of_one_load && verdict != TailVerdict::Unclear {
            self.keep(window, verdict == TailVerdict::Violated);
        }
        self.windows += 1;
        self.rung = match verdict {
            TailVerdict::Violated => {
                // With the first target nothing is throttled: the service alone is too much.
                if self.rung > 0 {
                    let level = number(self.rung as u64);
                    self.harm.record("", step, level, now_s);
                }
                let lower = self.rung.saturating_sub(1);
                self.best(step).map_or(lower, |best| best.min(lower))
            }
            TailVerdict::Within if is_of_one_load => {
                let best = self.known(step, now_s);
                let has_slack = window.tail.slack(window.objective_ms) > SLACK_TO_TRY;
                self.beside(best, step, has_slack, now_s).unwrap_or(best)
            }
            _ => self.known(step, now_s),
        };
    }

    fn keep(&mut self, window: Window<'_>, is_broken: bool) {
        if !self.table.contains_key(&window.load_step) && self.table.len() >= LOADS_MAX {
            self.table.pop_first();
        }
        let cells = self.table.entry(window.load_step).or_default();
        let cell = &mut cells[self.rung];
        cell.push_back(Outcome {
            is_broken,
            latency_ms: window.tail.latency_ms,
            cores: window.cores,
        });
        if cell.len() > WINDOWS {
            cell.pop_front();
        }
    }

    /// The target with the lowest cost at this load; of equals the one that throttles less.
    fn best(&self, step: i64) -> Option<usize> {
        let cells = self.table.get(&step)?;
        let all = || cells.iter().flatten();
        let kept = range(all().filter(|it| !it.is_broken).map(|it| it.cores));
        let broken = range(all().filter(|it| it.is_broken).map(|it| it.latency_ms));
        let cost = |outcome: &Outcome| match outcome.is_broken {
            false => share_of(outcome.cores, kept),
            true => COST_BROKEN + share_of(outcome.latency_ms, broken),
        };
        let costs = cells.iter().enumerate().filter_map(|(rung, cell)| {
            let costs: Vec<f64> = cell.iter().map(cost).collect();
            Some((rung, median(costs)?))
        });
        costs
            .reduce(|best, next| if next.1 < best.1 { next } else { best })
            .map(|(rung, _)| rung)
    }

    /// The best target at this load, below what is not tried now. At an unknown load it stays.
    fn known(&self, step: i64, now_s: f64) -> usize {
        (0..=self.best(step).unwrap_or(self.rung))
            .rev()
            .find(|rung| self.may_be(*rung, step, now_s))
            .unwrap_or(0)
    }

    fn may_be(&self, rung: usize, step: i64, now_s: f64) -> bool {
        let bound = self.harm.bound("", step, now_s);
        bound.is_none_or(|bound| number(rung as u64) < bound)
    }

    /// A target beside the best: one that is not known yet, or now and then a known one.
    fn beside(&self, best: usize, step: i64, has_slack: bool, now_s: f64) -> Option<usize> {
        let is_known = |rung: usize| {
            let cells = self.table.get(&step);
            cells.is_some_and(|cells| !cells[rung].is_empty())
        };
        let above = Some(best + 1)
            .filter(|rung| *rung < RUNGS && has_slack && self.may_be(*rung, step, now_s));
        if let Some(above) = above.filter(|rung| !is_known(*rung)) {
            return Some(above);
        }
        if !self.windows.is_multiple_of(EXPLORE_EVERY) {
            return None;
        }
        let below = best.checked_sub(1);
        // Up and down in turns.
        match (self.windows / EXPLORE_EVERY) % 2 {
            0 => above.or(below),
            _ => below.or(above),
        }
    }
}

/// The lowest and the highest.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// Where a value lies in a range; in the middle of one without length.
fn share_of(value: f64, (low, high): (f64, f64)) -> f64 {
    if high > low {
        (value - low) / (high - low)
    } else {
        0.5
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let high = *values.get(middle)?;
    match values.len() % 2 {
        0 => Some(f64::midpoint(values[middle - 1], high)),
        _ => Some(high),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OBJECTIVE_MS: f64 = 10.0;

    /// A service for which each target up to `most` keeps the objective, and costs a tenth of a
    /// core less than the one below it. `cheapest` has the lowest allocation: beyond it, retries
    /// make it rise again.
    #[derive(Clone, Copy)]
    struct Service {
        most: usize,
        cheapest: usize,
    }

    impl Service {
        fn window(self, rung: usize) -> (Tail, f64) {
            let is_kept = rung <= self.most;
            let tail = Tail {
                quantile: 0.99,
                latency_ms: if is_kept {
                    6.0
                } else {
                    14.0 + number(rung as u64)
                },
                requests: 10_000,
                above: Some(if is_kept { 0 } else { 1000 }),
            };
            let away = rung.abs_diff(self.cheapest);
            (tail, 1.0 + 0.1 * number(away as u64))
        }
    }

    /// So many windows at one load, and the rungs that were in force.
    fn run(
        tower: &mut Tower,
        service: Service,
        load_step: i64,
        now_s: &mut f64,
        windows: usize,
    ) -> Vec<usize> {
        let mut rungs = Vec::new();
        for _ in 0..windows {
            *now_s += 60.0;
            let (tail, cores) = service.window(tower.rung);
            let window = Window {
                load_step,
                tail: &tail,
                objective_ms: OBJECTIVE_MS,
                cores,
            };
            tower.step(window, *now_s);
            rungs.push(tower.rung);
        }
        rungs
    }

    fn share_at(rungs: &[usize], rung: usize) -> f64 {
        let count = rungs.iter().filter(|at| **at == rung).count();
        number(count as u64) / number(rungs.len() as u64)
    }

    #[test]
    fn it_finds_the_cheapest_target_that_keeps_the_objective_at_each_load() {
        let mut tower = Tower::default();
        let mut now_s = 0.0;
        let (night, day) = (
            Service {
                most: 8,
                cheapest: 6,
            },
            Service {
                most: 2,
                cheapest: 8,
            },
        );
        run(&mut tower, night, -3, &mut now_s, 40);
        let late = run(&mut tower, night, -3, &mut now_s, 100);
        assert!(share_at(&late, 6) >= 0.85, "{late:?}");
        run(&mut tower, day, 4, &mut now_s, 40);
        let late = run(&mut tower, day, 4, &mut now_s, 100);
        assert!(share_at(&late, 2) >= 0.85, "{late:?}");
        // What is known of a load is in force in the first window of its return.
        let again = run(&mut tower, night, -3, &mut now_s, 2);
        assert_eq!(again[0], 6, "{again:?}");
        assert!((tower.target() - 0.20).abs() < 1e-9);
        let again = run(&mut tower, day, 4, &mut now_s, 2);
        assert_eq!(again[0], 2, "{again:?}");
    }

    #[test]
    fn a_broken_objective_costs_more_than_any_allocation_and_the_wait_doubles() {
        let mut tower = Tower::default();
        let service = Service {
            most: 3,
            cheapest: 8,
        };
        let mut now_s = 0.0;
        let rungs = run(&mut tower, service, 0, &mut now_s, 1000);
        let broken = |rungs: &[usize]| rungs.iter().filter(|rung| **rung > 3).count();
        assert!(broken(&rungs) > 0);
        assert!(broken(&rungs[500..]) <= 10, "{:?}", &rungs[500..]);
        assert!(share_at(&rungs[500..], 3) >= 0.85);
    }

    #[test]
    fn an_overload_of_the_service_alone_is_not_remembered() {
        let mut tower = Tower::default();
        let mut now_s = 0.0;
        let tail = Tail {
            quantile: 0.99,
            latency_ms: 50.0,
            requests: 10_000,
            above: Some(5000),
        };
        for _ in 0..20 {
            now_s += 60.0;
            let window = Window {
                load_step: 0,
                tail: &tail,
                objective_ms: OBJECTIVE_MS,
                cores: 1.0,
            };
            tower.step(window, now_s);
        }
        let service = Service {
            most: 8,
            cheapest: 4,
        };
        let rungs = run(&mut tower, service, 0, &mut now_s, 60);
        assert!(share_at(&rungs[30..], 4) >= 0.8, "{rungs:?}");
    }

    #[test]
    fn few_requests_and_windows_of_two_loads_say_nothing() {
        let mut tower = Tower::default();
        let tail = Tail {
            quantile: 0.99,
            latency_ms: 1.0,
            requests: 3,
            above: Some(0),
        };
        let window = |load_step| Window {
            load_step,
            tail: &tail,
            objective_ms: OBJECTIVE_MS,
            cores: 1.0,
        };
        for second in 0..100 {
            tower.step(
                window(second % 7),
                f64::from(i32::try_from(second).unwrap()),
            );
        }
        assert_eq!((tower.rung, tower.table.len()), (0, 0));
        let many = Tail {
            requests: 10_000,
            ..tail
        };
        for step in 0..100 {
            let window = Window {
                tail: &many,
                ..window(step)
            };
            tower.step(window, 0.0);
        }
        // Each window began at another load.
        assert_eq!((tower.rung, tower.table.len()), (0, 0));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut tower = Tower::default();
        let service = Service {
            most: 0,
            cheapest: 0,
        };
        let mut now_s = 0.0;
        for step in 0..200 {
            run(&mut tower, service, step, &mut now_s, 20);
        }
        assert!(tower.table.len() <= LOADS_MAX);
        let cells = tower.table.values().flatten();
        assert!(cells.clone().all(|cell| cell.len() <= WINDOWS));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever a service is like: the target leaves the best one only to explore, and what
        /// breaks the objective is tried ever more rarely.
        #[test]
        fn there_is_no_limit_cycle(most in 0usize..9, cheapest in 0usize..9, load_step in -20i64..20) {
            let mut tower = Tower::default();
            let service = Service { most, cheapest };
            let mut now_s = 0.0;
            let rungs = run(&mut tower, service, load_step, &mut now_s, 2000);
            let late = &rungs[1000..];
            let best = cheapest.min(most);
            prop_assert!(share_at(late, best) >= 0.8, "best {best}: {late:?}");
            let broken = late.iter().filter(|rung| **rung > most).count();
            prop_assert!(broken <= 20, "{broken}");
        }
    }
}
