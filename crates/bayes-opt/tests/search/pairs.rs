//! Parameters of two values.

use bayes_opt::{Kind, Optimizer, Parameter, Settings, Space, Value};

use crate::tell;

/// Which of the two values each of 14 parameters, more than are listed, has in 24 questions about what they cost and bring.
fn asked(kind: &Kind) -> Vec<Vec<bool>> {
    let parameters = (0..14).map(|k| Parameter::new(format!("p{k:02}"), kind.clone()));
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
    let switch = asked(&Kind::Bool);
    let values = || vec![Value::Int(2), Value::Int(3)];
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
    for kind in [
        Kind::Categorical { values: values() },
        Kind::Ordinal { values: values() },
        int(3, 1),
        int(12, 10),
        real(Some(0.5)),
    ] {
        assert_eq!(asked(&kind), switch, "{kind:?}");
    }
    for kind in [int(4, 1), real(None)] {
        assert_ne!(asked(&kind), switch, "{kind:?}");
    }
}
