//! Parameters of two values.

use bayes_opt::{Kind, Optimizer, Parameter, PriorGuess, Settings, Space, Value};

use crate::tell;

/// Which of the two values each of 14 parameters, more than are listed, has in 24 questions about
/// what they cost and bring, where some are believed to be best on.
fn asked(kind: &Kind, [off, on]: [Value; 2]) -> Vec<Vec<bool>> {
    let parameters = (0..14).map(|k| {
        let mut parameter = Parameter::new(format!("p{k:02}"), kind.clone());
        parameter.default = Some(off.clone());
        parameter.prior = (k < 3).then(|| PriorGuess {
            best_guess: on.clone(),
            confidence: 0.5,
        });
        parameter
    });
    let space = Space::new(parameters.collect(), vec![]).unwrap();
    let settings = Settings {
        seed: 3,
        ..Settings::default()
    };
    let mut optimizer = Optimizer::new(space, settings).unwrap();
    (0..24)
        .map(|_| {
            let configuration = optimizer.ask(1).unwrap().remove(0);
            let is_on = |value: &Value| match value {
                Value::Bool(on) => *on,
                number => number.as_f64().unwrap() > 2.0,
            };
            let on: Vec<bool> = configuration.0.values().map(is_on).collect();
            let cost = |(k, on): (usize, &bool)| f64::from(u8::from(*on)) * (k as f64 - 9.0);
            let value = 50.0 + on.iter().enumerate().map(cost).sum::<f64>();
            tell(&mut optimizer, configuration, value);
            on
        })
        .collect()
}

#[test]
fn two_values_are_a_switch_however_they_are_written() {
    let switch = asked(&Kind::Bool, [Value::Bool(false), Value::Bool(true)]);
    let whole = |high| [2, high].map(Value::Int);
    let values = || whole(3).to_vec();
    let int = |high, step| Kind::Int {
        low: 2,
        high,
        step,
        log: false,
    };
    let real = |step| Kind::Float {
        low: 2.0,
        high: 2.5,
        step,
        log: false,
    };
    for (kind, ends) in [
        (Kind::Categorical { values: values() }, whole(3)),
        (Kind::Ordinal { values: values() }, whole(3)),
        (int(3, 1), whole(3)),
        (int(12, 10), whole(12)),
        (real(Some(0.5)), [2.0, 2.5].map(Value::Float)),
    ] {
        assert_eq!(asked(&kind, ends), switch, "{kind:?}");
    }
    for (kind, ends) in [
        (int(4, 1), whole(4)),
        (real(None), [2.0, 2.5].map(Value::Float)),
    ] {
        assert_ne!(asked(&kind, ends), switch, "{kind:?}");
    }
}
