//! Statistics: the interval of a verification, the sequential test, the drift test, the warm-up.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use paired_stats::{DriftTest, Pair, SequentialTest, ratio_interval_of_runs, warmth};

/// Noise without a generator of random numbers: the same in every run.
fn noise(i: usize) -> f64 {
    ((i * 7919) % 1009) as f64 / 1009.0 - 0.5
}

fn pairs(count: usize) -> Vec<Pair> {
    (0..count)
        .map(|i| Pair {
            control: 100.0 + noise(i),
            experiment: 95.0 + noise(i + 500),
        })
        .collect()
}

fn statistics(criterion: &mut Criterion) {
    let runs: Vec<Vec<Pair>> = (0..12).map(|_| pairs(40)).collect();
    criterion.bench_function("statistics/ratio_interval_of_runs/12x40", |bencher| {
        bencher.iter(|| ratio_interval_of_runs(black_box(&runs), 0.95).unwrap());
    });
    let logs: Vec<f64> = (0..12).map(|i| 0.05 + 0.02 * noise(i)).collect();
    criterion.bench_function("statistics/sequential_test/12", |bencher| {
        bencher.iter(|| {
            let mut test = SequentialTest::new(0.0, 0.05, 3, logs.len());
            for log in &logs {
                black_box(test.push(*log));
            }
        });
    });
    criterion.bench_function("statistics/drift_test/1000", |bencher| {
        bencher.iter(|| {
            let mut test = DriftTest::new(1000.0, 1);
            for i in 0..1000 {
                black_box(test.push(i % 4, noise(i)));
            }
        });
    });
    let slices: Vec<f64> = (0..120)
        .map(|i| 1.0 + 2.0 * (-(i as f64) / 10.0).exp() + 0.05 * noise(i))
        .collect();
    criterion.bench_function("statistics/warmth/120", |bencher| {
        bencher.iter(|| warmth(black_box(&slices)));
    });
}

criterion_group!(benches, statistics);
criterion_main!(benches);
