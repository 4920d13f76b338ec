//! A space with parameters of all kinds. The bench of `ask` uses it too.

use bayes_opt::{Kind, Parameter, Space};

/// Parameters of all kinds, in turns.
pub(crate) fn mixed_space(parameters: usize) -> Space {
    let kind = |k: usize| match k % 4 {
        0 => Kind::Float {
            low: 0.0,
            high: 1.0,
            step: None,
            log: false,
        },
        1 => Kind::Int {
            low: 1,
            high: 4096,
            step: 1,
            log: true,
        },
        2 => Kind::Categorical {
            values: vec!["a".into(), "b".into(), "c".into()],
        },
        _ => Kind::Int {
            low: 0,
            high: 100,
            step: 5,
            log: false,
        },
    };
    let list = (0..parameters)
        .map(|k| Parameter::new(format!("p{k:02}"), kind(k)))
        .collect();
    Space::new(list, vec![]).unwrap()
}
