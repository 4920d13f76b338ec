//! What an earlier experiment is worth: much where it was about the same thing, nothing worse than
//! a little where it misleads.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

use bayes_opt::{
    Configuration, Kind, Observation, ObservedOutcome, Optimizer, Parameter, Settings, Space, Value,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const SEEDS: u64 = 16;

fn float(name: &str) -> Parameter {
    let kind = Kind::Float {
        low: 0.0,
        high: 1.0,
        step: None,
        log: false,
    };
    let mut parameter = Parameter::new(name, kind);
    parameter.default = Some(Value::Float(0.5));
    parameter
}

fn space(names: &[&str]) -> Space {
    Space::new(names.iter().map(|name| float(name)).collect(), vec![]).unwrap()
}

fn at(configuration: &Configuration, name: &str) -> f64 {
    configuration
        .get(name)
        .and_then(Value::as_f64)
        .unwrap_or(0.5)
}

/// A crooked bowl of depth 1, whose best is at `best`.
fn bowl(configuration: &Configuration, best: [f64; 4]) -> f64 {
    let off = |k: usize| at(configuration, NAMES[k]) - best[k];
    let square: f64 = (0..4).map(|k| (4.0 - k as f64) * off(k).powi(2)).sum();
    1.0 - (-2.0 * (square + 1.5 * off(0) * off(1))).exp()
}

const BEST: [f64; 4] = [0.2, 0.7, 0.8, 0.3];

/// Forty noisy measurements of another function over random configurations.
fn earlier(
    seed: u64,
    names: &[&str],
    function: impl Fn(&Configuration) -> f64,
) -> Vec<Observation> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed + 500);
    let mut measured = || {
        let values = names
            .iter()
            .map(|name| ((*name).to_owned(), Value::Float(rng.random())));
        let configuration = Configuration(values.collect());
        let value = function(&configuration) + 0.03 * (rng.random::<f64>() - 0.5);
        Observation::now(configuration, ObservedOutcome::completed(value))
    };
    (0..40).map(|_| measured()).collect()
}

/// The mean regret of what is recommended after `evaluations`, over seeds.
fn regret(evaluations: usize, earlier: impl Fn(u64) -> Vec<Vec<Observation>>) -> f64 {
    let of = |seed| {
        let settings = Settings {
            seed,
            earlier: earlier(seed),
            ..Settings::default()
        };
        let mut optimizer = Optimizer::new(space(&NAMES), settings).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for _ in 0..evaluations {
            let configuration = optimizer.ask(1).unwrap().remove(0);
            let value = bowl(&configuration, BEST) + 0.1 * (rng.random::<f64>() - 0.5);
            optimizer
                .tell(Observation::now(
                    configuration,
                    ObservedOutcome::completed(value),
                ))
                .unwrap();
        }
        bowl(&optimizer.best().unwrap().configuration, BEST)
    };
    (0..SEEDS).map(of).sum::<f64>() / SEEDS as f64
}

#[test]
fn an_earlier_experiment_of_the_same_kind_saves_evaluations() {
    let cold = regret(8, |_| vec![]);
    // Five units on top, half as much again, and a best that has moved a little.
    let moved = [0.25, 0.65, 0.75, 0.3];
    let warm = regret(8, |seed| {
        vec![earlier(seed, &NAMES, |at| 5.0 + 1.5 * bowl(at, moved))]
    });
    assert!(warm < 0.5 * cold, "{warm} {cold}");
}

/// As `tune` does it: the control against itself is known before anything is asked.
#[test]
fn what_an_earlier_one_holds_best_is_asked_first_though_the_default_was_told() {
    for seed in 0..SEEDS {
        let earlier = earlier(seed, &NAMES, |at| bowl(at, BEST));
        let settings = Settings {
            seed,
            earlier: vec![earlier.clone()],
            ..Settings::default()
        };
        let mut optimizer = Optimizer::new(space(&NAMES), settings).unwrap();
        let default = optimizer.space().default_configuration();
        let value = bowl(&default, BEST);
        let observation = Observation::now(default, ObservedOutcome::completed(value));
        optimizer.tell(observation).unwrap();
        let first = optimizer.ask(1).unwrap().remove(0);
        let better = earlier
            .iter()
            .filter(|other| bowl(&other.configuration, BEST) < bowl(&first, BEST));
        assert!(better.count() < 5, "{first:?}");
        let is_its = |other: &Observation| other.configuration == first;
        assert!(earlier.iter().any(is_its), "{first:?}");
    }
}

#[test]
fn what_broke_a_constraint_there_is_not_asked_first() {
    let broken = |at: &Configuration| at.get("a").and_then(Value::as_f64).unwrap() - 0.5;
    for seed in 0..SEEDS {
        let mut earlier = earlier(seed, &NAMES, |at| bowl(at, [0.9, 0.7, 0.8, 0.3]));
        for observation in &mut earlier {
            let excess = broken(&observation.configuration);
            if let ObservedOutcome::Completed { constraints, .. } = &mut observation.outcome {
                constraints.insert("excess".into(), excess.into());
            }
        }
        let settings = Settings {
            seed,
            earlier: vec![earlier],
            ..Settings::default()
        };
        let mut optimizer = Optimizer::new(space(&NAMES), settings).unwrap();
        let first = optimizer.ask(1).unwrap().remove(0);
        assert!(broken(&first) <= 0.0, "{first:?}");
    }
}

#[test]
fn what_crashed_is_not_asked_again() {
    for seed in 0..SEEDS {
        let settings = Settings {
            seed,
            earlier: vec![earlier(seed, &NAMES, |at| bowl(at, BEST))],
            ..Settings::default()
        };
        let mut optimizer = Optimizer::new(space(&NAMES), settings).unwrap();
        let mut crashed: Vec<Configuration> = Vec::new();
        for _ in 0..10 {
            let asked = optimizer.ask(2).unwrap();
            assert_ne!(asked[0], asked[1]);
            for configuration in asked {
                assert!(!crashed.contains(&configuration), "{configuration:?}");
                crashed.push(configuration.clone());
                optimizer
                    .tell(Observation::now(configuration, ObservedOutcome::Crashed))
                    .unwrap();
            }
        }
    }
}

#[test]
fn an_overlapping_space_helps_too() {
    let cold = regret(8, |_| vec![]);
    // It had no `d`, and an `e` that is gone.
    let warm = regret(8, |seed| {
        vec![earlier(seed, &["a", "b", "c", "e"], |at| bowl(at, BEST))]
    });
    assert!(warm < 0.75 * cold, "{warm} {cold}");
}

#[test]
fn a_misleading_one_costs_a_few_questions() {
    for (evaluations, more) in [(10, 2), (16, 4)] {
        let cold = regret(evaluations, |_| vec![]);
        let late = evaluations + more;
        let upside_down = regret(late, |seed| {
            vec![earlier(seed, &NAMES, |at| -bowl(at, BEST))]
        });
        let elsewhere = regret(late, |seed| {
            vec![earlier(seed, &NAMES, |at| bowl(at, [0.9, 0.1, 0.1, 0.9]))]
        });
        assert!(
            upside_down < cold && elsewhere < cold,
            "{evaluations}: {upside_down} {elsewhere} {cold}"
        );
    }
}

#[test]
fn what_crashed_there_is_not_asked_first() {
    let mut told = earlier(1, &NAMES, |at| bowl(at, BEST));
    let best = Configuration(
        NAMES
            .iter()
            .map(|name| ((*name).to_owned(), Value::Float(0.9)))
            .collect(),
    );
    // It did very well once, and crashed since.
    told.push(Observation::now(
        best.clone(),
        ObservedOutcome::completed(-3.0),
    ));
    told.push(Observation::now(best.clone(), ObservedOutcome::Crashed));
    let settings = Settings {
        earlier: vec![told],
        ..Settings::default()
    };
    let mut optimizer = Optimizer::new(space(&NAMES), settings).unwrap();
    assert_ne!(optimizer.ask(1).unwrap()[0], best);
}
