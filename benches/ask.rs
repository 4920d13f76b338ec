//! `ask` of the optimiser: the proposal after one more result, on a mixed space.

use std::hint::black_box;

use bayes_opt::{
    Configuration, MeasuredValue, Observation, ObservedOutcome, Optimizer, Settings, Value,
};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

use self::mixed_space::mixed_space;

#[path = "../crates/bayes-opt/tests/search/mixed_space.rs"]
mod mixed_space;

/// The objective: its optimum is inside the range of the first two parameters.
fn measure(configuration: &Configuration) -> MeasuredValue {
    let number = |name: &str| configuration.get(name).and_then(Value::as_f64).unwrap();
    let first = number("p00") - 0.3;
    MeasuredValue {
        value: first * first + (number("p01").ln() - 3.0).abs(),
        variance: None,
    }
}

fn tell(optimizer: &mut Optimizer, configuration: Configuration) {
    let outcome = ObservedOutcome::completed(measure(&configuration));
    optimizer
        .tell(Observation::now(configuration, outcome))
        .unwrap();
}

/// An optimiser that knows so many results and has fitted its model to them.
fn optimizer(observations: usize, parameters: usize) -> Optimizer {
    let settings = Settings {
        initial_random: Some(observations),
        ..Settings::default()
    };
    let mut optimizer = Optimizer::new(mixed_space(parameters), settings).unwrap();
    for _ in 0..=observations {
        let configuration = optimizer.ask(1).unwrap().remove(0);
        tell(&mut optimizer, configuration);
    }
    optimizer
}

fn ask(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ask");
    group.sample_size(10);
    for (observations, parameters) in [(30, 8), (100, 16), (300, 30)] {
        let ready = optimizer(observations, parameters);
        group.bench_function(format!("{observations}x{parameters}"), |bencher| {
            bencher.iter_batched(
                || ready.clone(),
                |mut optimizer| black_box(optimizer.ask(1).unwrap()),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, ask);
criterion_main!(benches);
