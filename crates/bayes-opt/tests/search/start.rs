//! What is asked before there is a model.

use std::collections::BTreeSet;

use bayes_opt::{
    Configuration, Kind, Observation, ObservedOutcome, Optimizer, Parameter, Settings, Space,
};

use crate::{float, number};

fn list(name: &str) -> Parameter {
    let values = vec!["a".into(), "b".into(), "c".into()];
    let mut list = Parameter::new(name, Kind::Categorical { values });
    list.default = Some("b".into());
    list
}

#[test]
fn a_search_begins_in_the_middle_of_its_ranges() {
    let log = Kind::Float {
        low: 0.01,
        high: 100.0,
        step: None,
        log: true,
    };
    let asked = |parameters: Vec<Parameter>, seed| {
        let space = Space::new(parameters, vec![]).unwrap();
        let first = space.default_configuration();
        let settings = Settings {
            seed,
            initial: vec![first],
            ..Settings::default()
        };
        let mut optimizer = Optimizer::new(space, settings).unwrap();
        optimizer.ask(4).unwrap()
    };
    let mut x = float("x", 0.0, 8.0);
    x.default = Some(1.0.into());
    let y = Parameter::new("y", log);
    // Its middle is not what it is decoded to, by the last digit.
    let rough = Kind::Float {
        low: 0.0001,
        high: 2.0,
        step: None,
        log: true,
    };
    let z = Parameter::new("z", rough);
    let are_in_the_middle = |configuration: &Configuration| {
        let [x, y, z] = ["x", "y", "z"].map(|name| number(configuration, name));
        (x - 4.0).abs() < 1e-9 && (y - 1.0).abs() < 1e-9 && (z - 0.0002_f64.sqrt()).abs() < 1e-9
    };
    let parameters = || vec![x.clone(), y.clone(), z.clone(), list("k"), list("l")];
    let drawn: Vec<Configuration> = (0..8).flat_map(|seed| asked(parameters(), seed)).collect();
    // Once, after the default.
    for asked in drawn.chunks(4) {
        let at = asked.iter().position(are_in_the_middle);
        assert_eq!(at, Some(1), "{asked:?}");
        assert_eq!(
            asked
                .iter()
                .filter(|asked| are_in_the_middle(asked))
                .count(),
            1
        );
    }
    // Lists have no middle: there they are drawn.
    let lists = drawn.iter().filter(|asked| are_in_the_middle(asked));
    let lists: BTreeSet<String> = lists.map(|asked| asked.0["k"].to_string()).collect();
    assert!(lists.len() > 1, "{lists:?}");
    // Where most are lists, a point of the sequence says more.
    let asked = asked(vec![x, list("k"), list("l")], 0);
    assert!((number(&asked[1], "x") - 4.0).abs() > 1e-9);
}

/// How many questions do not depend on what the objective was, where the first `crashes` of them
/// crash.
fn length_of_start(parameters: &[Parameter], crashes: usize) -> usize {
    let mut searches = [1.0, -1.0].map(|sign| {
        let space = Space::new(parameters.to_vec(), vec![]).unwrap();
        (Optimizer::new(space, Settings::default()).unwrap(), sign)
    });
    let alike = (0..40).take_while(|round| {
        let [one, other] = searches.each_mut().map(|(optimizer, sign)| {
            let asked = optimizer.ask(1).unwrap().remove(0);
            let outcome = if *round < crashes {
                ObservedOutcome::Crashed
            } else {
                ObservedOutcome::completed(*sign * (number(&asked, "x") + 0.1))
            };
            let told = Observation::now(asked.clone(), outcome);
            optimizer.tell(told).unwrap();
            asked
        });
        one == other
    });
    alike.count()
}

#[test]
fn a_start_is_four_to_six_questions_long_whatever_crashes() {
    let length = |ranges: usize, lists: usize, crashes: usize| {
        let mut parameters = vec![float("x", 0.0, 1.0)];
        parameters.extend((1..ranges).map(|i| float(&format!("y{i}"), 0.0, 1.0)));
        parameters.extend((0..lists).map(|i| list(&format!("z{i}"))));
        length_of_start(&parameters, crashes)
    };
    assert_eq!(
        [1, 2, 3, 4, 8].map(|lists| length(1, lists, 0)),
        [4, 4, 5, 6, 6]
    );
    assert_eq!([1, 2, 4].map(|crashes| length(1, 8, crashes)), [6; 3]);
    assert_eq!([1, 2, 4].map(|crashes| length(5, 4, crashes)), [6; 3]);
}
