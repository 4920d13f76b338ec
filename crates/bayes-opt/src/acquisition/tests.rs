//! Tests of the acquisition functions and of what pending points do to them.

use super::*;
use crate::gp::data::Data;
use crate::gp::hyper::Hyper;
use crate::gp::trend::Shared;
use crate::model::feasibility::Demand;
use crate::sampling::design::sobol;
use crate::space::coordinate::Coordinate;

const D: usize = 4;
const COORDINATES: [Coordinate; D] = [
    Coordinate::Ordered,
    Coordinate::Continuous,
    Coordinate::Binary,
    Coordinate::Binary,
];

/// Two processes of the same observations, and their points.
fn objective(noise: f64) -> (Mixture, Vec<Vec<f64>>) {
    let points: Vec<Vec<f64>> = (0..12).map(|index| sobol(index, D, 3)).collect();
    let values: Vec<f64> = points
        .iter()
        .map(|x| (7.0 * x[0]).sin() + (x[1] - 0.3).powi(2) + 0.2 * (x[2] + x[3]))
        .collect();
    let data = Data {
        points: points.concat(),
        variances: vec![noise; values.len()],
        weights: vec![1.0; values.len()],
        values,
        mean_prior: (0.0, 1.0),
        earlier: Vec::new(),
    };
    let with = |half_cosine: f64, ln_length: f64| {
        let hyper = Hyper {
            ln_lengths: vec![ln_length; D],
            ln_noise: f64::NEG_INFINITY,
            ln_scale: 0.0,
            half_cosine,
            shared: Shared {
                quadratic: half_cosine > 0.0,
                linear: half_cosine > 0.0,
            },
            earlier: Vec::new(),
        };
        Gp::condition(&data, &COORDINATES, hyper).unwrap()
    };
    let mixture = Mixture::new(vec![with(0.5, -1.2), with(0.0, -0.4)]);
    (mixture.unwrap(), points)
}

fn surface(acquisition: Acquisition, noise: f64, pending: &[Vec<f64>]) -> AcquisitionFunction {
    let (objective, points) = objective(noise);
    let posteriors: Vec<(f64, f64)> = (0..points.len())
        .map(|i| objective.posterior_at(i))
        .collect();
    let viability = Feasibility {
        gp: objective.members()[0].clone(),
        demand: Demand::Survives,
    };
    let evaluated = Evaluated {
        points: &points,
        posteriors: &posteriors,
        feasible: &[0.9; 12],
        pending,
    };
    let evaluated = if noise == 0.0 {
        Evaluated {
            feasible: &[1.0; 12],
            ..evaluated
        }
    } else {
        evaluated
    };
    let feasibilities: &[Feasibility] = if noise == 0.0 { &[] } else { &[viability] };
    AcquisitionFunction::new(acquisition, Some(&objective), feasibilities, &evaluated, 9)
}

#[test]
fn noisy_improvement_is_improvement_without_noise() {
    let noisy = surface(Acquisition::LogNoisyEi, 0.0, &[]);
    let plain = surface(Acquisition::LogEi, 0.0, &[]);
    let mut scratch = Scratch::default();
    for index in 100..200 {
        let x = sobol(index, D, 4);
        let (a, b) = (
            noisy.evaluate(&x, &mut scratch, None),
            plain.evaluate(&x, &mut scratch, None),
        );
        assert!((a.exp() - b.exp()).abs() < 1e-6, "{a} {b}");
    }
}

#[test]
fn gradients_are_difference_quotients() {
    let all = [
        Acquisition::LogNoisyEi,
        Acquisition::Ei,
        Acquisition::LogEi,
        Acquisition::Poi,
        Acquisition::Ucb { beta: 2.0 },
    ];
    for acquisition in all {
        let surface = surface(acquisition, 0.01, &[vec![0.3, 0.6, 0.0, 1.0]]);
        let mut scratch = Scratch::default();
        // More points than are evaluated at once.
        let points: Vec<Vec<f64>> = (0..300).map(|index| sobol(index, D, 5)).collect();
        for (x, at_most) in points.iter().zip(surface.at_most(&points)) {
            let value = surface.evaluate(x, &mut scratch, None);
            let gap = at_most - value;
            // Its draws are half of all for each of two processes, and without draws there is
            // no luck.
            let widest = match acquisition {
                Acquisition::LogNoisyEi => (DRAWS as f64 / 2.0).ln(),
                _ => 0.0,
            };
            assert!(
                (-1e-9..widest + 1e-9).contains(&gap),
                "{acquisition:?} {value} {at_most}"
            );
        }
        for index in 50..60 {
            let x = sobol(index, D, 4);
            let mut gradient = vec![0.0; D];
            surface.evaluate(&x, &mut scratch, Some(&mut gradient));
            for k in 0..D {
                let mut moved = |step: f64| {
                    let mut x = x.clone();
                    x[k] += step;
                    surface.evaluate(&x, &mut scratch, None)
                };
                let quotient = (moved(1e-6) - moved(-1e-6)) / 2e-6;
                assert!(
                    (quotient - gradient[k]).abs() < 1e-3 * (1.0 + quotient.abs()),
                    "{acquisition:?} {quotient} {}",
                    gradient[k]
                );
            }
        }
    }
}

#[test]
fn a_pending_point_is_not_worth_asking_again() {
    let mut scratch = Scratch::default();
    let x = vec![0.68, 0.3, 0.0, 0.0];
    let free = surface(Acquisition::LogNoisyEi, 0.01, &[]).evaluate(&x, &mut scratch, None);
    let taken = surface(Acquisition::LogNoisyEi, 0.01, std::slice::from_ref(&x)).evaluate(
        &x,
        &mut scratch,
        None,
    );
    assert!(taken < free - 2.0, "{taken} {free}");
}
