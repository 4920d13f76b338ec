//! Where the end of a warm-up is found in recordings of real services, and how far from the truth
//! what is measured from there on is.
//!
//! `warmups/*.tsv` are HTTP services on OpenJDK 17, pinned to a CPU and loaded from their start on
//! by `wrk -t1 -c4` on the other one, in slices of a second: requests, CPU seconds of the process,
//! seconds of its compilers. Other programs were compiled on the same two CPUs meanwhile, so the
//! steady part has a noise of up to 25 %, much of it slow.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use paired_stats::{Warmth, warmth};
use rand::{Rng as _, SeedableRng as _};

/// Slices that are measured after the warm-up: an evaluation of six blocks of 5 s.
const MEASURED: usize = 30;
/// What is measured then is this close to what the end of the recording says.
const ERROR_MAX: f64 = 0.12;
/// And so many times closer than after two seconds, which is the default of a fixed warm-up.
const TIMES_CLOSER: f64 = 4.0;

const RECORDINGS: [(&str, &str); 3] = [
    // Builds, sorts and searches lists.
    ("json", include_str!("warmups/json.tsv")),
    // The same in a heap of 48 MiB with the serial collector.
    ("serial-gc", include_str!("warmups/serial-gc.tsv")),
    // The same, and keeps 60,000 answers.
    ("cache", include_str!("warmups/cache.tsv")),
];

/// CPU seconds per request, slice by slice.
fn series(recording: &str) -> Vec<f64> {
    let lines = recording.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut fields = line
                .split('\t')
                .skip(1)
                .map(|it| it.parse::<f64>().unwrap());
            let requests = fields.next().unwrap();
            fields.next().unwrap() / requests
        })
        .collect()
}

/// The first slice after the warm-up.
fn detected(series: &[f64]) -> Option<usize> {
    (1..=series.len()).find(|end| warmth(&series[..*end]).is_steady())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// How far a measurement that begins there is from the last third of the recording.
fn error(series: &[f64], begin: usize) -> f64 {
    let truth = mean(&series[series.len() * 2 / 3..]);
    let end = (begin + MEASURED).min(series.len());
    mean(&series[begin..end]) / truth - 1.0
}

#[test]
fn measuring_begins_where_recorded_services_are_steady() {
    for (name, recording) in RECORDINGS {
        let series = series(recording);
        let begin = detected(&series).unwrap();
        let (found, fixed) = (error(&series, begin), error(&series, 2));
        println!(
            "{name}: steady after {begin} s, error {:+.1} % (after 2 s {:+.1} %)",
            found * 100.0,
            fixed * 100.0
        );
        assert!(found.abs() < ERROR_MAX, "{name}: {found}");
        assert!(
            found.abs() * TIMES_CLOSER < fixed,
            "{name}: {found} {fixed}"
        );
    }
}

/// Each request looks through what all earlier ones left behind.
#[test]
fn a_recorded_service_that_grows_slower_is_never_steady() {
    let series = series(include_str!("warmups/leak.tsv"));
    assert_eq!(detected(&series), None);
}

/// A service that is steady from its start, with the noise of a busy machine, is found to be so in
/// time; one that grows slower with each second never is.
#[test]
fn steady_noise_is_steady_and_growth_is_not() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    let mut noise = |sd: f64| -> f64 {
        let sum: f64 = (0..12).map(|_| rng.random::<f64>()).sum();
        sd * (sum - 6.0)
    };
    let mut never = 0;
    let mut slices = 0;
    for _ in 0..200 {
        let flat: Vec<f64> = (0..90).map(|_| noise(0.05).exp()).collect();
        match detected(&flat) {
            Some(end) => slices += end,
            None => never += 1,
        }
        let growing: Vec<f64> = (0..60)
            .map(|slice| (0.03 * f64::from(slice) + noise(0.02)).exp())
            .collect();
        assert_eq!(detected(&growing), None);
        assert!(!matches!(warmth(&growing), Warmth::Steady { .. }));
    }
    let mean = slices as f64 / f64::from(200 - never);
    println!("steady noise of 5 %: found after {mean:.0} slices, {never} of 200 not within 90");
    assert!(never < 10 && mean < 35.0, "{never} {mean}");
}
