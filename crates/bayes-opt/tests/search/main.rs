//! The optimiser from outside, against functions whose optimum is known.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

mod edges;
mod mixed_space;
mod pairs;
mod start;

use std::collections::BTreeMap;

use bayes_opt::{
    Acquisition, Configuration, Error, Kind, LinearConstraint, MeasuredValue, Observation,
    ObservedOutcome, Optimizer, Parameter, Settings, Space, Strategy, Value,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::mixed_space::mixed_space;

fn float(name: &str, low: f64, high: f64) -> Parameter {
    Parameter::new(
        name,
        Kind::Float {
            low,
            high,
            step: None,
            log: false,
        },
    )
}

fn number(configuration: &Configuration, name: &str) -> f64 {
    configuration.get(name).and_then(Value::as_f64).unwrap()
}

fn tell(optimizer: &mut Optimizer, configuration: Configuration, value: f64) {
    let told = Observation::now(configuration, ObservedOutcome::completed(value));
    optimizer.tell(told).unwrap();
}

fn normal(rng: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0
}

/// Branin's function (Dixon & Szegő 1978): minimum 0.397887.
fn branin(configuration: &Configuration) -> f64 {
    let (x, y) = (number(configuration, "x"), number(configuration, "y"));
    let pi = std::f64::consts::PI;
    (y - 5.1 / (4.0 * pi * pi) * x * x + 5.0 / pi * x - 6.0).powi(2)
        + 10.0 * (1.0 - 1.0 / (8.0 * pi)) * x.cos()
        + 10.0
}

fn branin_space() -> Space {
    Space::new(vec![float("x", -5.0, 10.0), float("y", 0.0, 15.0)], vec![]).unwrap()
}

/// Hartmann's function of six variables (Dixon & Szegő 1978): minimum −3.32237.
fn hartmann(configuration: &Configuration) -> f64 {
    const ALPHA: [f64; 4] = [1.0, 1.2, 3.0, 3.2];
    const A: [[f64; 6]; 4] = [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ];
    const P: [[f64; 6]; 4] = [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ];
    let x: Vec<f64> = (0..6)
        .map(|k| number(configuration, &format!("x{k}")))
        .collect();
    -(0..4)
        .map(|i| {
            ALPHA[i]
                * (-(0..6)
                    .map(|k| A[i][k] * (x[k] - P[i][k]).powi(2))
                    .sum::<f64>())
                .exp()
        })
        .sum::<f64>()
}

fn hartmann_space() -> Space {
    Space::new(
        (0..6).map(|k| float(&format!("x{k}"), 0.0, 1.0)).collect(),
        vec![],
    )
    .unwrap()
}

fn settings(seed: u64, strategy: Strategy) -> Settings {
    Settings {
        seed,
        strategy,
        ..Settings::default()
    }
}

/// The true value of what is recommended after `evaluations` noisy ones.
fn recommended(
    space: Space,
    settings: Settings,
    function: fn(&Configuration) -> f64,
    noise_sd: f64,
    evaluations: usize,
) -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(settings.seed + 1000);
    let mut optimizer = Optimizer::new(space, settings).unwrap();
    for _ in 0..evaluations {
        let configuration = optimizer.ask(1).unwrap().remove(0);
        let value = function(&configuration) + noise_sd * normal(&mut rng);
        tell(&mut optimizer, configuration, value);
    }
    function(&optimizer.best().unwrap().configuration)
}

fn mean_regret(
    strategy: Strategy,
    seeds: u64,
    space: fn() -> Space,
    function: fn(&Configuration) -> f64,
    noise_sd: f64,
    evaluations: usize,
    optimum: f64,
) -> f64 {
    let regret = |seed| {
        recommended(
            space(),
            settings(seed, strategy),
            function,
            noise_sd,
            evaluations,
        ) - optimum
    };
    (0..seeds).map(regret).sum::<f64>() / seeds as f64
}

#[test]
fn noisy_branin_is_beaten() {
    let regret = |strategy| mean_regret(strategy, 24, branin_space, branin, 2.0, 30, 0.397_887);
    let (model, random) = (regret(Strategy::default()), regret(Strategy::Random));
    assert!(model < 1.0 && model < random / 2.0, "{model} {random}");
}

#[test]
fn noisy_hartmann_is_beaten() {
    // The regret of one seed varies by its own size: a few seeds would be a matter of luck.
    let regret = |strategy| mean_regret(strategy, 16, hartmann_space, hartmann, 0.1, 50, -3.322_37);
    let (model, random) = (regret(Strategy::default()), regret(Strategy::Random));
    assert!(model < 0.6 && model < random / 2.0, "{model} {random}");
}

/// The probability of improvement asks for the least of improvements, close by: better than random
/// search is all it is.
#[test]
fn every_acquisition_finds_the_valley() {
    let regret = |strategy| mean_regret(strategy, 16, branin_space, branin, 0.0, 30, 0.397_887);
    let random = regret(Strategy::Random);
    for (acquisition, limit) in [
        (Acquisition::Ei, 0.1),
        (Acquisition::LogEi, 0.1),
        (Acquisition::Ucb { beta: 3.0 }, 0.1),
        (Acquisition::Poi, random),
    ] {
        let regret = regret(Strategy::Bayesian { acquisition });
        assert!(regret < limit, "{acquisition:?} {regret} {random}");
    }
}

/// An `ask` after a `tell`, on a mixed space: the time is printed, and held against the promise in
/// release builds.
#[test]
#[ignore = "times depend on the machine"]
fn ask_is_fast() {
    let mut met = true;
    let sizes = [(100, 16, 20.0), (300, 30, 100.0)];
    let all = sizes
        .iter()
        .flat_map(|size| [(*size, false), (*size, true)]);
    for ((observations, parameters, limit_ms), some_crash) in all {
        let mut optimizer = Optimizer::new(
            mixed_space(parameters),
            Settings {
                initial_random: Some(observations),
                ..Settings::default()
            },
        )
        .unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let value = |configuration: &Configuration, rng: &mut ChaCha8Rng| {
            let first = number(configuration, "p00") - 0.3;
            first * first + (number(configuration, "p01").ln() - 3.0).abs() + 0.1 * normal(rng)
        };
        let mut times_ms = Vec::new();
        for round in 0..observations + 10 {
            let started = std::time::Instant::now();
            let configuration = optimizer.ask(1).unwrap().remove(0);
            if round >= observations {
                times_ms.push(started.elapsed().as_secs_f64() * 1e3);
            }
            let value = value(&configuration, &mut rng);
            // One in twelve.
            let crashes =
                number(&configuration, "p04") > 0.8 && number(&configuration, "p03") > 55.0;
            let outcome = if some_crash && crashes {
                ObservedOutcome::Crashed
            } else {
                ObservedOutcome::completed(value)
            };
            optimizer
                .tell(Observation::now(configuration, outcome))
                .unwrap();
        }
        times_ms[1..].sort_by(f64::total_cmp);
        println!(
            "{observations} x {parameters}{}: first (with its fit) {:.1} ms, then median {:.1} ms, longest {:.1} ms",
            if some_crash { ", some crash" } else { "" },
            times_ms[0],
            times_ms[5],
            times_ms[9]
        );
        met &= times_ms.iter().all(|time_ms| *time_ms < limit_ms);
    }
    assert!(met || cfg!(debug_assertions));
}

fn sequence(
    space: Space,
    settings: Settings,
    evaluations: usize,
    scale: f64,
) -> Vec<Configuration> {
    let mut optimizer = Optimizer::new(space, settings).unwrap();
    let mut asked = Vec::new();
    for _ in 0..evaluations {
        let configuration = optimizer.ask(1).unwrap().remove(0);
        let value = scale * branin(&configuration) + (scale - 1.0) * 1000.0;
        tell(&mut optimizer, configuration.clone(), value);
        asked.push(configuration);
    }
    asked
}

fn close(a: &[Configuration], b: &[Configuration], factor: f64) -> bool {
    a.iter().zip(b).all(|(a, b)| {
        ["x", "y"]
            .iter()
            .all(|name| (number(a, name) * factor - number(b, name)).abs() < 0.05 * factor)
    })
}

#[test]
fn the_same_seed_asks_the_same() {
    let run = |seed| sequence(branin_space(), settings(seed, Strategy::default()), 14, 1.0);
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn the_order_of_parameters_changes_nothing() {
    let turned = Space::new(vec![float("y", 0.0, 15.0), float("x", -5.0, 10.0)], vec![]).unwrap();
    let strategy = settings(3, Strategy::default());
    assert_eq!(
        sequence(branin_space(), strategy.clone(), 14, 1.0),
        sequence(turned, strategy, 14, 1.0)
    );
}

#[test]
fn units_of_the_objective_change_nothing() {
    let run = |scale| sequence(branin_space(), settings(3, Strategy::default()), 12, scale);
    assert!(close(&run(1.0), &run(1e-6), 1.0) && close(&run(1.0), &run(1e4), 1.0));
}

#[test]
fn units_of_parameters_change_nothing() {
    let run = |unit: f64| {
        let list = vec![
            float("x", -5.0 * unit, 10.0 * unit),
            float("y", 0.0, 15.0 * unit),
        ];
        let space = Space::new(list, vec![]).unwrap();
        let mut optimizer = Optimizer::new(space, settings(5, Strategy::default())).unwrap();
        let mut asked = Vec::new();
        for _ in 0..12 {
            let configuration = optimizer.ask(1).unwrap().remove(0);
            let (x, y) = (
                number(&configuration, "x") / unit,
                number(&configuration, "y") / unit,
            );
            let value = (x - 2.0).powi(2) + (y - 3.0).abs();
            tell(&mut optimizer, configuration.clone(), value);
            asked.push(configuration);
        }
        asked
    };
    assert!(close(&run(1.0), &run(1000.0), 1000.0));
}

#[test]
fn crashes_are_learned_and_never_repeated() {
    const SEEDS: u64 = 16;
    const EVALUATIONS: usize = 24;
    let list = vec![
        Parameter::new(
            "memory",
            Kind::Int {
                low: 1,
                high: 100,
                step: 1,
                log: false,
            },
        ),
        Parameter::new(
            "mode",
            Kind::Categorical {
                values: vec!["a".into(), "b".into()],
            },
        ),
    ];
    let space = Space::new(list, vec![]).unwrap();
    let mut all_crashed = 0;
    for seed in 0..SEEDS {
        let settings = Settings {
            seed,
            ..Settings::default()
        };
        let mut optimizer = Optimizer::new(space.clone(), settings).unwrap();
        let mut crashed: Vec<Configuration> = Vec::new();
        for round in 0..EVALUATIONS {
            let configuration = optimizer.ask(1).unwrap().remove(0);
            assert!(
                !crashed.contains(&configuration),
                "seed {seed}, {round}: {configuration}"
            );
            let memory = number(&configuration, "memory");
            let outcome = if memory > 60.0 {
                crashed.push(configuration.clone());
                ObservedOutcome::Crashed
            } else {
                ObservedOutcome::completed(100.0 - memory)
            };
            optimizer
                .tell(Observation::now(configuration, outcome))
                .unwrap();
        }
        let best = optimizer.best().unwrap();
        let memory = number(&best.configuration, "memory");
        assert!(memory >= 58.0, "seed {seed}: {best:?}");
        all_crashed += crashed.len();
    }
    // Fewer than at random, though the best lies at the border.
    let at_random = 0.4 * (SEEDS * EVALUATIONS as u64) as f64;
    assert!((all_crashed as f64) < at_random, "{all_crashed}");
}

#[test]
fn a_measured_violation_is_not_recommended() {
    // x = 0.501 is better than 0.5 and misses the limit by a thousandth of what is seen elsewhere.
    let best = |variance| {
        let space = Space::new(vec![float("x", 0.0, 1.0)], vec![]).unwrap();
        let mut optimizer = Optimizer::new(space, Settings::default()).unwrap();
        for (x, excess) in [
            (0.0, -5.0),
            (0.2, -3.0),
            (0.5, -0.5),
            (0.501, 0.001),
            (0.9, 4.0),
        ] {
            let excess = MeasuredValue {
                value: excess,
                variance,
            };
            let outcome = ObservedOutcome::Completed {
                objective: MeasuredValue {
                    value: 10.0 - x,
                    variance: Some(1e-9),
                },
                constraints: BTreeMap::from([("limit".to_owned(), excess)]),
            };
            let configuration = Configuration(BTreeMap::from([("x".to_owned(), x.into())]));
            optimizer
                .tell(Observation::now(configuration, outcome))
                .unwrap();
        }
        number(&optimizer.best().unwrap().configuration, "x")
    };
    assert_eq!(best(None), 0.5);
    // A measurement that may as well lie on the other side does not exclude.
    assert_eq!(best(Some(1.0)), 0.501);
}

#[test]
fn constraints_bound_the_search() {
    for strict in [false, true] {
        let mut optimizer =
            Optimizer::new(branin_space(), settings(2, Strategy::default())).unwrap();
        let mut violations = 0;
        for _ in 0..35 {
            let configuration = optimizer.ask(1).unwrap().remove(0);
            // Minimise x + y while (x - 2)² + (y - 7)² <= 9: the optimum is 9 − 3√2 ≈ 4.757.
            let (x, y) = (number(&configuration, "x"), number(&configuration, "y"));
            let mut excess = (x - 2.0).powi(2) + (y - 7.0).powi(2) - 9.0;
            if strict {
                // Like a count that is never negative.
                excess = excess.max(0.0);
            }
            violations += u32::from(excess > 0.0);
            let outcome = ObservedOutcome::Completed {
                objective: MeasuredValue {
                    value: x + y,
                    variance: Some(1e-6),
                },
                constraints: BTreeMap::from([("ring".to_owned(), MeasuredValue::from(excess))]),
            };
            optimizer
                .tell(Observation::now(configuration, outcome))
                .unwrap();
        }
        let best = optimizer.best().unwrap();
        let (x, y) = (
            number(&best.configuration, "x"),
            number(&best.configuration, "y"),
        );
        assert!(
            (x - 2.0).powi(2) + (y - 7.0).powi(2) < 9.5,
            "{strict} {best:?}"
        );
        assert!(
            best.mean < 5.8 && best.probability_feasible >= 0.5,
            "{strict} {best:?}"
        );
        assert!(violations < 30, "{violations}");
    }
}

#[test]
fn a_batch_spreads_and_linear_constraints_hold() {
    let list = vec![float("x", -5.0, 10.0), float("y", 0.0, 15.0)];
    let constraint = LinearConstraint::parse("x + y <= 8").unwrap();
    let mut optimizer = Optimizer::new(
        Space::new(list, vec![constraint]).unwrap(),
        Settings::default(),
    )
    .unwrap();
    for _ in 0..6 {
        let batch = optimizer.ask(4).unwrap();
        for (position, configuration) in batch.iter().enumerate() {
            assert!(number(configuration, "x") + number(configuration, "y") <= 8.0 + 1e-9);
            assert!(!batch[..position].contains(configuration));
        }
        for configuration in batch {
            let value = branin(&configuration);
            tell(&mut optimizer, configuration, value);
        }
    }
    assert!(branin(&optimizer.best().unwrap().configuration) < 3.0);
}

/// Of the cube 2.5e-5 of 1 % holds: what is drawn at random never does, what is near a point that
/// does may.
#[test]
fn constraints_that_nothing_drawn_holds_to_are_explored_from_within() {
    let names: Vec<String> = (0..10).map(|k| format!("share{k}")).collect();
    let share = |name: &String| Parameter {
        default: Some(Value::Float(0.05)),
        ..float(name, 0.0, 1.0)
    };
    let list = names.iter().map(share).collect();
    let constraint = LinearConstraint::parse(&format!("{} <= 1", names.join(" + "))).unwrap();
    let space = Space::new(list, vec![constraint]).unwrap();
    let default = space.default_configuration();
    let missed = |at: &Configuration| {
        (number(at, "share0") - 0.4).powi(2) + (number(at, "share1") - 0.3).powi(2)
    };
    let settings = Settings {
        initial: vec![default.clone()],
        ..Settings::default()
    };
    let mut optimizer = Optimizer::new(space, settings).unwrap();
    let mut asked: Vec<Configuration> = Vec::new();
    for _ in 0..20 {
        let configuration = optimizer.ask(1).unwrap().remove(0);
        let sum: f64 = names.iter().map(|name| number(&configuration, name)).sum();
        assert!(sum <= 1.0 + 1e-9, "{configuration}");
        let outcome = ObservedOutcome::completed(missed(&configuration));
        optimizer
            .tell(Observation::now(configuration.clone(), outcome))
            .unwrap();
        if !asked.contains(&configuration) {
            asked.push(configuration);
        }
    }
    assert!(asked.len() > 10, "{}", asked.len());
    let best = optimizer.best().unwrap().configuration;
    assert!(missed(&best) < 0.3 * missed(&default), "{best}");
}

#[test]
fn a_small_space_is_exhausted_without_failing() {
    let list = vec![
        Parameter::new("b", Kind::Bool),
        Parameter::new("c", Kind::Bool),
    ];
    let mut optimizer =
        Optimizer::new(Space::new(list, vec![]).unwrap(), Settings::default()).unwrap();
    for _ in 0..12 {
        let configuration = optimizer.ask(1).unwrap().remove(0);
        let value = number(&configuration, "b") + 2.0 * number(&configuration, "c");
        tell(&mut optimizer, configuration, value);
    }
    assert_eq!(number(&optimizer.best().unwrap().configuration, "c"), 0.0);
}

#[test]
fn when_all_crashed_nothing_is_left() {
    let space = Space::new(vec![Parameter::new("b", Kind::Bool)], vec![]).unwrap();
    let mut optimizer = Optimizer::new(space, Settings::default()).unwrap();
    for _ in 0..2 {
        let configuration = optimizer.ask(1).unwrap().remove(0);
        optimizer
            .tell(Observation::now(configuration, ObservedOutcome::Crashed))
            .unwrap();
    }
    assert_eq!(optimizer.ask(1), Err(Error::Exhausted));
    assert_eq!(optimizer.best(), None);
}

#[test]
fn what_matters_is_explained() {
    let list = vec![
        float("strong", 0.0, 1.0),
        float("idle", 0.0, 1.0),
        Parameter::new(
            "mode",
            Kind::Categorical {
                values: vec!["a".into(), "b".into()],
            },
        ),
    ];
    let mut optimizer = Optimizer::new(
        Space::new(list, vec![]).unwrap(),
        settings(1, Strategy::Sobol),
    )
    .unwrap();
    assert!(optimizer.importance().is_empty());
    for _ in 0..40 {
        let configuration = optimizer.ask(1).unwrap().remove(0);
        let mode = if configuration.get("mode") == Some(&"a".into()) {
            0.0
        } else {
            0.5
        };
        let value = 10.0 + 3.0 * number(&configuration, "strong") + mode;
        tell(&mut optimizer, configuration, value);
    }
    let importance = optimizer.importance();
    assert_eq!(importance[0].parameter, "strong");
    assert!(
        importance[0].share > 0.7 && importance[0].low <= importance[0].share,
        "{importance:?}"
    );
    assert!(
        importance[2].parameter == "idle" && importance[2].high < 0.1,
        "{importance:?}"
    );
    let rows = optimizer.partial_dependence("strong", 5);
    assert_eq!(rows.len(), 5);
    for (value, mean, sd) in rows {
        let expected = 10.25 + 3.0 * value.as_f64().unwrap();
        assert!(
            (mean - expected).abs() < 0.15 && sd < 0.2,
            "{value} {mean} {sd}"
        );
    }
    assert_eq!(
        optimizer
            .partial_dependence_pair(["strong", "mode"], 3)
            .len(),
        6
    );
    assert!(optimizer.partial_dependence("nobody", 5).is_empty());
}

#[test]
fn wrong_tells_are_refused_and_change_nothing() {
    let mut optimizer = Optimizer::new(branin_space(), Settings::default()).unwrap();
    let configuration = branin_space().default_configuration();
    let tell = |optimizer: &mut Optimizer, value: f64, variance, weight| {
        let outcome = ObservedOutcome::completed(MeasuredValue { value, variance });
        optimizer.tell(Observation {
            configuration: configuration.clone(),
            outcome,
            weight,
        })
    };
    assert!(matches!(
        tell(&mut optimizer, f64::NAN, None, 1.0),
        Err(Error::Unusable { .. })
    ));
    assert!(matches!(
        tell(&mut optimizer, f64::INFINITY, None, 1.0),
        Err(Error::Unusable { .. })
    ));
    assert!(matches!(
        tell(&mut optimizer, 1.0, Some(-1.0), 1.0),
        Err(Error::Variance { .. })
    ));
    assert!(matches!(
        tell(&mut optimizer, 1.0, None, 0.0),
        Err(Error::Weight { .. })
    ));
    let outside = Observation::now(Configuration::default(), ObservedOutcome::Crashed);
    assert!(matches!(optimizer.tell(outside), Err(Error::Space(_))));
    assert_eq!(optimizer.best(), None);
    tell(&mut optimizer, 1.0, Some(0.1), 0.5).unwrap();
    assert!((optimizer.best().unwrap().mean - 1.0).abs() < 1e-9);
}

#[test]
fn a_large_space_of_lists_is_searched_on_after_many_observations() {
    let values: Vec<Value> = (0..9).map(Value::Int).collect();
    let lists = (0..16).map(|k| {
        let values = values.clone();
        Parameter::new(format!("x{k:02}"), Kind::Ordinal { values })
    });
    let space = Space::new(lists.collect(), vec![]).unwrap();
    let mut optimizer = Optimizer::new(space.clone(), Settings::default()).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut told = Vec::new();
    for _ in 0..60 {
        let mut configuration = space.default_configuration();
        for k in 0..16 {
            let value = Value::Int(rng.random_range(0..9));
            configuration.0.insert(format!("x{k:02}"), value);
        }
        let value = number(&configuration, "x03") - number(&configuration, "x07");
        told.push(configuration.clone());
        tell(&mut optimizer, configuration.clone(), value);
        // What crashes is no observation of the objective, but costs as much to look at.
        configuration.0.insert("x00".to_owned(), Value::Int(8));
        configuration.0.insert("x01".to_owned(), Value::Int(8));
        let crashed = Observation::now(configuration, ObservedOutcome::Crashed);
        optimizer.tell(crashed).unwrap();
    }
    let asked = optimizer.ask(1).unwrap().remove(0);
    assert!(!told.contains(&asked), "{asked:?}");
}
