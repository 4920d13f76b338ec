//! `mode = "continuous"`, simulated: the same controller, loop and search as in the real world, with a clock of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use host::Roots;
use tuner::continuous::simulation::{Epoch, SPEC, Scenario, Simulated};
use tuner::spec::{CheckedSpec, check};

fn spec() -> CheckedSpec {
    check(SPEC.into(), "simulated.toml".as_ref(), &Roots::default()).unwrap()
}

/// Sixteen days: a deploy that moves the best configuration on day 6, and one that breaks the constraint on day 11.
fn short() -> Scenario {
    let mut scenario = Scenario::quiet(16.0);
    let first = scenario.epochs[0];
    let second = Epoch {
        day: 6.4,
        threads: 14.0,
        buffer_kib: 48.0,
        ..first
    };
    let third = Epoch {
        day: 11.4,
        slow_above_kib: 24.0,
        ..second
    };
    scenario.epochs.extend([second, third]);
    scenario.outage = Some((13.4, 13.6));
    scenario
}

fn days_of(world: &Simulated<'_>, kind: &str, word: &str) -> Vec<f64> {
    let entries = world.entries.iter();
    entries
        .filter(|entry| entry.kind == kind && entry.text.contains(word))
        .map(|entry| {
            let since = entry
                .at
                .duration_since(tuner::continuous::simulation::BEGIN);
            since.as_secs_f64() / 86_400.0
        })
        .collect()
}

#[test]
fn it_follows_the_deploys_and_rolls_back() {
    let (spec, scenario) = (spec(), short());
    let mut world = Simulated::new(&spec, &scenario, 3);
    world.go_on().unwrap();
    let promoted = days_of(&world, "promoted", "");
    assert!(promoted[0] < 1.0, "{promoted:?}");
    let drifted = days_of(&world, "drift", "the gain");
    assert!(
        drifted.iter().any(|day| (6.4..7.4).contains(day)),
        "{:#?}",
        world.entries
    );
    assert!(
        promoted.iter().any(|day| (6.4..8.4).contains(day)),
        "{promoted:?}"
    );
    let back = days_of(&world, "rollback", "done");
    assert!(
        back.iter().any(|day| (11.4..11.5).contains(day)),
        "{:#?}",
        world.entries
    );
    // Nothing is concluded from the outage, and nothing is changed in it.
    let out = 13.4..13.6 + 1.0 / 24.0;
    assert_eq!(days_of(&world, "unmeasured", "").len(), 1);
    assert!(!promoted.iter().any(|day| out.contains(day)));
    assert!(!back.iter().any(|day| out.contains(day)));
    // Within the hours, and within the budget.
    for day in &promoted {
        let hour = day.fract() * 24.0;
        assert!((8.0..18.01).contains(&hour), "{hour}");
        let same = promoted.iter().filter(|other| other.floor() == day.floor());
        assert!(same.count() <= 2, "{promoted:?}");
    }
}

/// Killed whenever something is to be kept, it goes on: what is in force on the host is what the state says, as soon as what
/// was begun is finished.
#[test]
fn killed_at_any_step_it_goes_on() {
    let mut scenario = short();
    scenario.days = 1.0;
    let spec = spec();
    let mut world = Simulated::new(&spec, &scenario, 3);
    let mut kills = 0;
    for step in (0..12).cycle() {
        world.killed_after = Some(step);
        match world.go_on() {
            Ok(()) => break,
            Err(_) => kills += 1,
        }
        assert!(kills < 2000, "it does not get on");
    }
    world.killed_after = None;
    world.go_on().unwrap();
    let state = world.kept.clone().unwrap();
    assert!(kills > 10, "{kills}");
    assert!(state.acting.is_none());
    let promoted = state.promoted.as_ref().map(|it| &it.configuration);
    assert!(promoted.is_some(), "{:#?}", world.entries);
    assert_eq!(promoted, world.in_force());
    // No round is kept twice.
    let numbers: Vec<usize> = world.rounds.iter().map(|round| round.number).collect();
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>());
}
