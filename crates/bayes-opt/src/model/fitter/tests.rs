//! Tests of how models are fitted.

use super::*;
use crate::observation::MeasuredValue;
use crate::sampling::design::sobol;

/// Measurements of which one of five coordinates decides most, and noise the rest.
fn data(n: u32, seed: u32) -> Data {
    let points: Vec<Vec<f64>> = (0..n).map(|i| sobol(i, 5, seed)).collect();
    let noise = |i: u32| sobol(i, 6, seed + 1)[5] - 0.5;
    // Of mean 0 and deviation 1.
    let value = |(i, x): (u32, &Vec<f64>)| 1.5 * (4.0 * (x[0] - 0.5).abs() - 1.0 + noise(i));
    Data {
        values: (0..n).zip(&points).map(value).collect(),
        variances: vec![0.0; n as usize],
        weights: vec![1.0; n as usize],
        points: points.into_iter().flatten().collect(),
        mean_prior: (0.0, 1.0),
        earlier: Vec::new(),
    }
}

fn fitter(memory: &Memory) -> Fitter<'_> {
    Fitter {
        coordinates: &[Coordinate::Ordered; 5],
        quadratic: true,
        memory,
        seed: 1,
        hypers: Memory::new(),
    }
}

#[test]
fn switches_have_a_slope_where_they_act_alike() {
    let sloped = |effects: [f64; 8]| {
        let points: Vec<Vec<f64>> = (0..16)
            .map(|i| sobol(i, 8, 4).iter().map(|x| x.round()).collect())
            .collect();
        let value = |x: &Vec<f64>| x.iter().zip(effects).map(|(x, by)| (x - 0.5) * by).sum();
        let data = Data {
            values: points.iter().map(value).collect(),
            points: points.into_iter().flatten().collect(),
            ..data(16, 1)
        };
        let memory = Memory::new();
        let mut fitter = Fitter {
            coordinates: &[Coordinate::Binary; 8],
            ..fitter(&memory)
        };
        fitter.draws(PLAIN, &data, &[]);
        let slopes: Vec<bool> = fitter
            .hypers
            .iter()
            .filter(|(name, _)| name.as_str() != PLAIN)
            .map(|(_, (hyper, _))| hyper.shared.linear)
            .collect();
        assert!(!slopes.is_empty() && slopes.iter().all(|slope| *slope == slopes[0]));
        slopes[0]
    };
    assert!(sloped([0.6; 8]) && sloped([-0.6; 8]));
    assert!(!sloped([1.0, -1.0, 1.0, -1.0, 0.5, -0.5, 0.1, -0.1]));
}

#[test]
fn ratios_are_modelled_where_values_span_orders_of_magnitude() {
    let measured = data(12, 1);
    // What the process is called, for a function of the data's values, moved and stretched.
    let called = |function: fn(f64) -> f64, scale: f64, offset: f64| {
        let values = measured.values.iter();
        let values: Vec<f64> = values.map(|y| scale * function(*y) + offset).collect();
        let objectives: Vec<MeasuredValue> = values
            .iter()
            .map(|value| MeasuredValue {
                value: *value,
                variance: None,
            })
            .collect();
        let (plain, ratios) = (Transform::new(&values), Transform::of_ratios(&values));
        let nothing = Memory::new();
        let scaled = fitter(&nothing).scale(values.len(), plain, ratios, |transform| {
            let (values, variances) = transform.measured(&objectives);
            Data {
                values,
                variances,
                ..measured.clone()
            }
        });
        scaled.0
    };
    for (scale, offset) in [(1.0, 0.0), (30.0, -1e3), (0.01, 5.0)] {
        assert_eq!(called(|y| y, scale, offset), PLAIN);
        assert_eq!(called(|y| (3.0 * y).exp(), scale, offset), RATIOS);
    }
}

#[test]
fn many_told_at_once_are_fitted_as_well() {
    let (nothing, many) = (Memory::new(), data(250, 1));
    let mut fitter = fitter(&nothing);
    let (coordinates, priors) = (fitter.coordinates, fitter.priors(250, Basis::Logarithm));
    let worth = |hyper: &Hyper| log_posterior(&many, coordinates, &priors, hyper);
    let mode = priors.mode();
    let found = worth(&fitter.likeliest(PLAIN, Basis::Logarithm, &many));
    let most = worth(&likeliest(
        &many,
        coordinates,
        &priors,
        std::slice::from_ref(&mode),
        100,
    ));
    assert!(
        found > most - 5.0 && most > worth(&mode) + 50.0,
        "{found} {most}"
    );
}

#[test]
fn along_ranges_shorter_length_scales_are_drawn() {
    let nothing = Memory::new();
    let mean = |coordinate: Coordinate| {
        let coordinates = [coordinate; 5];
        let mut fitter = Fitter {
            coordinates: &coordinates,
            ..fitter(&nothing)
        };
        let draws = fitter.draws(PLAIN, &data(2, 1), &[]).unwrap();
        let lengths = draws.iter().flat_map(|gp| &gp.hyper.ln_lengths);
        lengths.sum::<f64>() / (5 * draws.len()) as f64
    };
    let ordered = mean(Coordinate::Ordered);
    for short in [Coordinate::Integer, Coordinate::Continuous].map(mean) {
        assert!(short < ordered - 1.0, "{short} {ordered}");
    }
}

#[test]
fn hyper_parameters_are_drawn() {
    let nothing = Memory::new();
    let mut first = fitter(&nothing);
    let measured = data(40, 1);
    let drawn: Vec<Hyper> = hypers(first.draws(PLAIN, &measured, &[]));
    assert_eq!(drawn.len(), DRAWS.1);
    let lengths =
        |k: usize| -> Vec<f64> { drawn.iter().map(|hyper| hyper.ln_lengths[k]).collect() };
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let decides = lengths(0);
    assert!((1..5).all(|k| mean(&decides) < mean(&lengths(k))));
    assert!(decides.iter().any(|ln| (ln - decides[0]).abs() > 0.01));
    // As they were, until there are enough new data.
    let memory = first.hypers;
    let draws = |data: &Data| hypers(fitter(&memory).draws(PLAIN, data, &[]));
    assert_eq!(draws(&measured), drawn);
    assert_ne!(draws(&data(42, 1)), drawn);
}

fn hypers(draws: Option<Vec<Gp>>) -> Vec<Hyper> {
    draws.unwrap().into_iter().map(|gp| gp.hyper).collect()
}

#[test]
fn many_observations_have_few_draws() {
    let nothing = Memory::new();
    let draws = |n: u32| {
        fitter(&nothing)
            .draws(PLAIN, &data(n, 1), &[])
            .unwrap()
            .len()
    };
    assert_eq!((draws(1), draws(100), draws(300)), (8, 4, 2));
}
