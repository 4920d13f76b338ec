//! The false-alarm rate of the drift test and its delay, by simulation under a seed.

mod noise;

use noise::{Shape, autocorrelated, draw};
use paired_stats::DriftTest;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Values between false alarms, as stated.
const RUN_LENGTH: f64 = 500.0;
/// Values looked at in each series.
const VALUES: usize = 250;
const REPETITIONS: u32 = 2000;

/// The share of unchanged series with an alarm, and the upper end of its 99.9 % interval (normal
/// approximation).
fn false_alarms(mut series: impl FnMut(&mut ChaCha8Rng) -> Vec<f64>, seasons: usize) -> (f64, f64) {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut alarms = 0;
    for seed in 0..REPETITIONS {
        let mut test = DriftTest::new(RUN_LENGTH, u64::from(seed));
        let values = series(&mut rng);
        alarms += u32::from(
            (0..VALUES).any(|i| test.push(i % seasons, values[i] + 10.0 * (i % seasons) as f64)),
        );
    }
    let n = f64::from(REPETITIONS);
    let share = f64::from(alarms) / n;
    (share, share + 3.29 * (share * (1.0 - share) / n).sqrt())
}

/// The stated rate is n / c = 250 / 500 within the series; whatever the distribution, and with a
/// time of day.
#[test]
fn false_alarms_stay_below_the_stated_rate() {
    let stated = VALUES as f64 / RUN_LENGTH;
    for shape in [Shape::Normal, Shape::HeavyTailed, Shape::Skewed] {
        for seasons in [1, 8] {
            let (share, high) = false_alarms(
                |rng| (0..VALUES).map(|_| draw(shape, rng)).collect(),
                seasons,
            );
            println!(
                "{shape:?}, {seasons} seasons: {share:.3} (at most {high:.3}), stated {stated}"
            );
            assert!(high <= stated, "{shape:?} {seasons}: {share} {high}");
        }
    }
}

/// What breaks the promise: values that resemble the one before them.
#[test]
fn autocorrelation_costs_error_rate() {
    let stated = VALUES as f64 / RUN_LENGTH;
    for (rho, is_kept) in [(0.2, true), (0.8, false)] {
        let (share, _) = false_alarms(|rng| autocorrelated(rho, VALUES, rng), 1);
        println!("AR(1) {rho}: {share:.3}, stated {stated}");
        assert_eq!(share <= stated, is_kept, "{rho}: {share}");
    }
}

/// Values after the change until the alarm: median of those found within 100, and the share found.
#[test]
fn changes_are_found() {
    let mut rng = ChaCha8Rng::seed_from_u64(12);
    for (shift_sd, before, power, at_most) in [
        (1.0, 100, 0.6, 80),
        (2.0, 100, 0.99, 16),
        (4.0, 100, 0.99, 9),
        (4.0, 30, 0.99, 12),
    ] {
        let mut delays = Vec::new();
        let repetitions = 200;
        for seed in 0..repetitions {
            let mut test = DriftTest::new(5000.0, seed);
            (0..before).for_each(|_| {
                test.push(0, draw(Shape::Normal, &mut rng));
            });
            let found = (1..=100).find(|_| test.push(0, shift_sd + draw(Shape::Normal, &mut rng)));
            delays.extend(found);
        }
        delays.sort_unstable();
        let share = delays.len() as f64 / repetitions as f64;
        let median = delays.get(delays.len() / 2).copied().unwrap_or(100);
        println!(
            "a shift of {shift_sd} sd after {before}: found {share:.2}, median after {median}"
        );
        assert!(share >= power, "{shift_sd}: {share}");
        assert!(median <= at_most, "{shift_sd}: {median}");
    }
}
