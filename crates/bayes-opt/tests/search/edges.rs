//! What is unusual: tight constraints, extreme numbers, configurations that crash now and then,
//! more asked than there is.

use std::collections::BTreeMap;

use bayes_opt::{
    Acquisition, Configuration, Error, Kind, LinearConstraint, MeasuredValue, Observation,
    ObservedOutcome, Optimizer, Parameter, Recommendation, Settings, Space, SpaceError, Strategy,
    Value,
};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::{float, normal, number, settings, tell};

fn ten() -> Space {
    let kind = Kind::Int {
        low: 1,
        high: 10,
        step: 1,
        log: false,
    };
    Space::new(vec![Parameter::new("x", kind)], vec![]).unwrap()
}

fn at(x: i64) -> Configuration {
    Configuration(BTreeMap::from([("x".to_owned(), Value::Int(x))]))
}

/// What came of `x`, with the excess over a limit of memory.
fn best_at_five(x: i64, excess: MeasuredValue) -> ObservedOutcome {
    ObservedOutcome::Completed {
        objective: ((x - 5) as f64).abs().into(),
        constraints: BTreeMap::from([("memory".to_owned(), excess)]),
    }
}

fn pair() -> Space {
    Space::new(vec![float("a", 0.0, 1.0), float("b", 0.0, 1.0)], vec![]).unwrap()
}

/// What is recommended after 14 evaluations of a quadratic over [`pair`], measured as `measured`
/// says.
fn best_of_pair(measured: impl Fn(usize, f64) -> MeasuredValue) -> Recommendation {
    let mut sobol = Optimizer::new(pair(), settings(1, Strategy::Sobol)).unwrap();
    let mut optimizer = Optimizer::new(pair(), Settings::default()).unwrap();
    for (index, configuration) in sobol.ask(14).unwrap().into_iter().enumerate() {
        let outcome = ObservedOutcome::completed(measured(index, quadratic(&configuration)));
        optimizer
            .tell(Observation::now(configuration, outcome))
            .unwrap();
    }
    optimizer.best().unwrap()
}

fn quadratic(configuration: &Configuration) -> f64 {
    let (a, b) = (number(configuration, "a"), number(configuration, "b"));
    (a - 0.3).powi(2) + (b - 0.7).powi(2)
}

#[test]
fn what_completed_once_and_crashed_often_is_not_recommended() {
    let mut optimizer = Optimizer::new(ten(), Settings::default()).unwrap();
    tell(&mut optimizer, at(5), 1.0);
    for _ in 0..20 {
        let crashed = Observation::now(at(5), ObservedOutcome::Crashed);
        optimizer.tell(crashed).unwrap();
    }
    for x in [1, 2, 3, 8, 9] {
        tell(&mut optimizer, at(x), 2.0);
    }
    assert_ne!(optimizer.best().unwrap().configuration, at(5));
    assert!(!optimizer.ask(5).unwrap().contains(&at(5)));
}

/// What was chosen for being expected low is measured low by luck more often than what the search
/// began with, or somebody told.
#[test]
fn what_was_chosen_takes_the_place_of_all_else_where_it_is_lower_with_three_to_one_odds() {
    let best = |strategy: Strategy, variance: f64, asked: bool| {
        let mut optimizer = Optimizer::new(ten(), settings(1, strategy)).unwrap();
        for (x, value) in [(1, 2.0), (4, 1.0), (6, 2.0), (9, 2.0), (3, 0.9)] {
            let measured = MeasuredValue {
                value,
                variance: Some(variance),
            };
            if asked {
                optimizer.hold(&at(x)).unwrap();
            }
            let observation = Observation::now(at(x), ObservedOutcome::completed(measured));
            optimizer.tell(observation).unwrap();
        }
        optimizer.best().unwrap().configuration
    };
    let bayesian = Strategy::Bayesian {
        acquisition: Acquisition::LogNoisyEi,
    };
    assert_eq!(best(bayesian, 0.1, true), at(4));
    assert_eq!(best(bayesian, 1e-6, true), at(3));
    // Nothing is chosen.
    assert_eq!(best(bayesian, 0.1, false), at(3));
    assert_eq!(best(Strategy::Random, 0.1, true), at(3));
}

#[test]
fn where_everything_was_tried_what_may_be_better_is_measured_again() {
    let arms = Kind::Categorical {
        values: ["a", "b", "c", "d"]
            .map(|name| Value::Text(name.to_owned()))
            .to_vec(),
    };
    let arm = |name: &str| {
        let value = Value::Text(name.to_owned());
        Configuration(BTreeMap::from([("arm".to_owned(), value)]))
    };
    let space = Space::new(vec![Parameter::new("arm", arms)], vec![]).unwrap();
    let mut optimizer = Optimizer::new(space, Settings::default()).unwrap();
    let mut told = vec![("a", 1.5), ("b", 1.02), ("c", 1.6)];
    told.resize(13, ("d", 1.0));
    for (name, value) in told {
        let measured = MeasuredValue {
            value,
            variance: Some(0.01),
        };
        let observation = Observation::now(arm(name), ObservedOutcome::completed(measured));
        optimizer.tell(observation).unwrap();
    }
    assert_eq!(optimizer.best().unwrap().configuration, arm("d"));
    assert_eq!(optimizer.ask(1).unwrap(), [arm("b")]);
}

#[test]
fn tight_constraints_leave_something_to_ask_for_every_strategy() {
    let strategies = [
        Strategy::default(),
        Strategy::Random,
        Strategy::Sobol,
        Strategy::LatinHypercube,
    ];
    let names: Vec<String> = (0..8).map(|k| format!("p{k}")).collect();
    let defaults = [Some(0.05), None];
    let all = strategies.map(|strategy| defaults.map(|default| (strategy, default)));
    for (strategy, default) in all.into_iter().flatten() {
        let parameters = names.iter().map(|name| Parameter {
            default: default.map(Value::Float),
            ..float(name, 0.0, 1.0)
        });
        let sum: LinearConstraint = format!("{} <= 1", names.join(" + ")).parse().unwrap();
        let space = Space::new(parameters.collect(), vec![sum]).unwrap();
        let mut optimizer = Optimizer::new(space.clone(), settings(1, strategy)).unwrap();
        for round in 0..3 {
            let asked = optimizer.ask(5).unwrap();
            assert_eq!(asked.len(), 5, "{strategy:?}");
            for configuration in asked {
                space.check(&configuration).unwrap();
                let value = number(&configuration, "p0") + f64::from(round);
                tell(&mut optimizer, configuration, value);
            }
        }
    }
}

#[test]
fn constraints_that_nothing_meets_are_said() {
    let sum: LinearConstraint = "a + b >= 3".parse().unwrap();
    let space = Space::new(pair().parameters().to_vec(), vec![sum]).unwrap();
    let mut optimizer = Optimizer::new(space, Settings::default()).unwrap();
    let error = optimizer.ask(1).unwrap_err();
    assert!(
        matches!(&error, Error::Space(SpaceError::Unsatisfiable { text }) if text == "a + b >= 3"),
        "{error}"
    );
}

#[test]
fn of_more_than_there_are_all_are_given() {
    let mut optimizer = Optimizer::new(ten(), Settings::default()).unwrap();
    let mut asked: Vec<String> = optimizer
        .ask(50)
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    asked.sort();
    asked.dedup();
    assert_eq!(asked.len(), 10);
    assert_eq!(optimizer.ask(1), Err(Error::Exhausted));
}

#[test]
fn an_initial_configuration_that_was_told_is_not_asked() {
    // Twice on purpose.
    let initial = vec![at(3), at(4), at(5), at(4)];
    let settings = Settings {
        initial,
        ..Settings::default()
    };
    let mut optimizer = Optimizer::new(ten(), settings).unwrap();
    tell(&mut optimizer, at(3), 1.0);
    assert_eq!(optimizer.ask(3).unwrap(), [at(4), at(5), at(4)]);
    assert!(![at(3), at(4), at(5)].contains(&optimizer.ask(1).unwrap()[0]));
}

#[test]
fn one_extreme_value_and_any_unit_leave_the_rest_as_it_is() {
    let plain = best_of_pair(|_, value| value.into());
    let place = quadratic(&plain.configuration);
    for scale in [1e-250, 1e-160, 1e-8, 1e8, 1e90] {
        let scaled = best_of_pair(|_, value| (scale * value).into());
        assert_eq!(scaled.configuration, plain.configuration, "{scale}");
        let ratio = scaled.mean / scale / plain.mean;
        assert!((ratio - 1.0).abs() < 0.2, "{scale} {ratio}");
    }
    // As a penalty for a failure would be.
    for penalty in [1e10, 1e100] {
        let best = best_of_pair(|index, value| if index == 3 { penalty } else { value }.into());
        assert!(quadratic(&best.configuration) <= place + 0.02);
        assert!((0.0..0.1).contains(&best.mean) && best.sd < 0.1, "{best:?}");
    }
}

#[test]
fn measurements_of_much_noise_say_nothing() {
    let sd = |variance: f64| {
        let best = best_of_pair(|_, value| MeasuredValue {
            value,
            variance: Some(variance),
        });
        best.sd
    };
    let noisy = [1e6, 1e12, 1e50, 1e200].map(sd);
    assert!(sd(1e-4) < 0.1 * noisy[0], "{}", sd(1e-4));
    for sd in noisy {
        assert!((sd / noisy[0] - 1.0).abs() < 0.01, "{noisy:?}");
    }
}

#[test]
fn constraint_values_of_any_size_are_told_apart() {
    for (broken, held) in [(1e100, -1.0), (1e-310, -1e-310), (1e50, -1e-50)] {
        let mut optimizer = Optimizer::new(ten(), Settings::default()).unwrap();
        for x in [1, 2, 3, 5, 8, 9] {
            let excess = if x == 5 { broken } else { held };
            let outcome = best_at_five(x, excess.into());
            optimizer.tell(Observation::now(at(x), outcome)).unwrap();
        }
        let best = optimizer.best().unwrap().configuration;
        assert_ne!(best, at(5), "{broken} {held}");
    }
}

#[test]
fn an_old_violation_counts_as_little_as_its_weight() {
    // Beside two that held since, and alone where all its neighbours hold.
    for since in [2, 0] {
        let mut optimizer = Optimizer::new(ten(), Settings::default()).unwrap();
        let mut measured = |x: i64, excess: f64, weight: f64| {
            let excess = MeasuredValue {
                value: excess,
                variance: Some(0.01),
            };
            let told = Observation {
                weight,
                ..Observation::now(at(x), best_at_five(x, excess))
            };
            optimizer.tell(told).unwrap();
        };
        measured(5, 1.0, 0.01);
        for _ in 0..since {
            measured(5, -0.4, 1.0);
        }
        for x in [1, 2, 3, 4, 6, 7, 8, 9] {
            measured(x, -1.0, 1.0);
        }
        assert_eq!(optimizer.best().unwrap().configuration, at(5), "{since}");
    }
}

#[test]
fn a_batch_repeats_little_while_its_results_are_out() {
    for seed in 1..4 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut sobol = Optimizer::new(pair(), settings(seed, Strategy::Sobol)).unwrap();
        let mut optimizer = Optimizer::new(pair(), settings(seed, Strategy::default())).unwrap();
        let told = sobol.ask(25).unwrap();
        for configuration in &told {
            let value = quadratic(configuration) + 0.02 * normal(&mut rng);
            tell(&mut optimizer, configuration.clone(), value);
        }
        let asked = optimizer.ask(20).unwrap();
        let again = asked.iter().filter(|asked| told.contains(asked)).count();
        assert!(again <= 6, "{again} of 20 again");
    }
}

#[test]
fn what_is_measured_again_is_what_was_told() {
    let kind = || Kind::Int {
        low: 0,
        high: 10,
        step: 5,
        log: false,
    };
    for (limit, crashed) in [("x <= 10", 10), ("x <= 9", 0)] {
        let constraints = vec![limit.parse().unwrap()];
        let space = Space::new(vec![Parameter::new("x", kind())], constraints).unwrap();
        let mut optimizer = Optimizer::new(space, Settings::default()).unwrap();
        // The best is between steps, as a control may be.
        for (x, value) in [(8, 1.0), (0, 5.0), (5, 4.0)] {
            tell(&mut optimizer, at(x), value);
        }
        let crash = Observation::now(at(crashed), ObservedOutcome::Crashed);
        optimizer.tell(crash).unwrap();
        for _ in 0..3 {
            let asked = optimizer.ask(1).unwrap().remove(0);
            assert!(asked == at(8) || asked == at(5), "{limit}: {asked:?}");
            tell(&mut optimizer, asked, 1.0);
        }
    }
}

#[test]
fn while_nothing_is_feasible_a_batch_is_spread() {
    let names = ["a", "b", "c", "d", "e"];
    let five = || names.map(|name| float(name, 0.0, 1.0)).to_vec();
    let five = || Space::new(five(), vec![]).unwrap();
    let at = |configuration: &Configuration| names.map(|name| number(configuration, name));
    for all_crash in [false, true] {
        let mut sobol = Optimizer::new(five(), settings(3, Strategy::Sobol)).unwrap();
        let mut optimizer = Optimizer::new(five(), Settings::default()).unwrap();
        for configuration in sobol.ask(20).unwrap() {
            let away = at(&configuration).map(|x| (x - 0.4).powi(2));
            let excess = 0.2 + away.iter().sum::<f64>();
            let outcome = match all_crash {
                true => ObservedOutcome::Crashed,
                false => ObservedOutcome::Completed {
                    objective: 1.0.into(),
                    constraints: [("limit".to_owned(), excess.into())].into(),
                },
            };
            optimizer
                .tell(Observation::now(configuration, outcome))
                .unwrap();
        }
        let asked: Vec<[f64; 5]> = optimizer.ask(5).unwrap().iter().map(at).collect();
        for (index, one) in asked.iter().enumerate() {
            for other in &asked[..index] {
                let along = one.iter().zip(other).map(|(a, b)| (a - b).abs());
                let apart = along.fold(0.0, f64::max);
                assert!(apart > 0.01, "{all_crash}: {asked:?}");
            }
        }
    }
}

#[test]
fn defaults_inside_of_constraints_are_found_however_little_these_leave() {
    let switches = (0..20).map(|k| Parameter::new(format!("b{k}"), Kind::Bool));
    let names: Vec<String> = (0..20).map(|k| format!("b{k}")).collect();
    let few: LinearConstraint = format!("{} <= 2", names.join(" + ")).parse().unwrap();
    let whole = |name: &str| {
        let kind = Kind::Int {
            low: 1,
            high: 1000,
            step: 1,
            log: false,
        };
        Parameter::new(name, kind)
    };
    let sum: LinearConstraint = "2 * a + 3 * b + 4 * c <= 10".parse().unwrap();
    for (parameters, constraint) in [
        (switches.collect::<Vec<_>>(), few),
        (vec![whole("a"), whole("b"), whole("c")], sum),
    ] {
        let space = Space::new(parameters, vec![constraint.clone()]).unwrap();
        let mut optimizer = Optimizer::new(space, Settings::default()).unwrap();
        let asked = optimizer.ask(1).unwrap().remove(0);
        assert_eq!(constraint.holds(&asked), Some(true), "{asked:?}");
    }
}

#[test]
fn where_nearly_everything_crashes_the_search_stays_beside_what_survived() {
    let names: Vec<String> = (0..18).map(|k| format!("b{k}")).collect();
    let switches = names.iter().map(|name| {
        let mut switch = Parameter::new(name, Kind::Bool);
        let is_first = ["b0", "b6"].contains(&name.as_str());
        switch.default = Some(Value::Bool(is_first));
        switch
    });
    let space = Space::new(switches.collect(), vec![]).unwrap();
    let is_on = |at: &Configuration, k: usize| at.get(&names[k]) == Some(&Value::Bool(true));
    // One of the first six, one of the next six: one configuration in 114. The rest decides how
    // good it is.
    let survives = |at: &Configuration| {
        [0..6, 6..12].map(|group| group.filter(|k| is_on(at, *k)).count()) == [1, 1]
    };
    for seed in 1..4 {
        let settings = Settings {
            seed,
            initial: vec![space.default_configuration()],
            ..Settings::default()
        };
        let mut optimizer = Optimizer::new(space.clone(), settings).unwrap();
        let mut survived = 0;
        for _ in 0..40 {
            let asked = optimizer.ask(1).unwrap().remove(0);
            let value = (12..18).filter(|k| !is_on(&asked, *k)).count() as f64;
            let outcome = match survives(&asked) {
                true => ObservedOutcome::completed(value),
                false => ObservedOutcome::Crashed,
            };
            survived += usize::from(outcome != ObservedOutcome::Crashed);
            optimizer.tell(Observation::now(asked, outcome)).unwrap();
        }
        assert!(survived >= 8, "{seed}: {survived} of 40");
    }
}
