//! Tests of the Gaussian process.

use super::*;
use crate::gp::data::OFFSET;
use crate::gp::hyper::HALF_COSINE;
use crate::gp::trend::Shared;
use crate::sampling::design::sobol;

fn data(n: u32, noise: f64) -> Data {
    let mut points = Vec::new();
    let mut values = Vec::new();
    for index in 0..n {
        let mut x = sobol(index, 3, 5);
        x[2] = (x[2] * 3.0).floor();
        values.push((5.0 * x[0]).sin() + x[1] * x[1] + 0.4 * x[2] + noise * sobol(index, 4, 6)[3]);
        points.extend(x);
    }
    let n = values.len();
    Data {
        points,
        values,
        variances: vec![1e-3; n],
        weights: vec![0.5; n],
        mean_prior: (0.0, 1.0),
        earlier: Vec::new(),
    }
}

const BOWL: Shared = Shared {
    quadratic: true,
    ..Shared::NOTHING
};
const SLOPE: Shared = Shared {
    linear: true,
    ..Shared::NOTHING
};
const COORDINATES: [Coordinate; 3] = [
    Coordinate::Ordered,
    Coordinate::Ordered,
    Coordinate::Categorical,
];

#[test]
fn the_gradient_is_the_difference_quotient() {
    let mut data = data(15, 0.1);
    // Its noise is at its most.
    data.weights[3] = 1e-13;
    let at = [-0.9, 0.3, 0.6, -3.0];
    for (basis, k) in [Basis::Variable, Basis::Logarithm]
        .into_iter()
        .flat_map(|basis| (0..4).map(move |k| (basis, k)))
    {
        let half_cosines = half_cosines_between(&COORDINATES, basis.half_cosine(), &data.points);
        let priors = Priors::fitted(3, basis);
        let mut gradient = [0.0; 4];
        negative_log_posterior(
            &data,
            &COORDINATES,
            &half_cosines,
            &priors,
            &at,
            &mut gradient,
        );
        let moved = |step: f64| {
            let mut at = at;
            at[k] += step;
            negative_log_posterior(
                &data,
                &COORDINATES,
                &half_cosines,
                &priors,
                &at,
                &mut [0.0; 4],
            )
        };
        let quotient = (moved(1e-5) - moved(-1e-5)) / 2e-5;
        assert!(
            (quotient - gradient[k]).abs() < 1e-5 * (1.0 + quotient.abs()),
            "{k}: {quotient} {}",
            gradient[k]
        );
    }
}

#[test]
fn the_posterior_interpolates_without_noise() {
    let data = Data {
        variances: vec![0.0; 20],
        weights: vec![1.0; 20],
        ..data(20, 0.0)
    };
    let hyper = Hyper {
        ln_noise: f64::NEG_INFINITY,
        ..Hyper::prior_mode(3, Basis::Variable)
    };
    let gp = Gp::condition(&data, &COORDINATES, hyper).unwrap();
    for (point, value) in data.points.chunks(3).zip(&data.values) {
        let (mean, variance) = gp.posterior(point);
        assert!(
            (mean - value).abs() < 1e-6 && variance < 1e-6,
            "{mean} {value} {variance}"
        );
    }
}

#[test]
fn earlier_experiments_count_by_how_much_they_are_like_this_one() {
    let own = data(6, 0.1);
    let mut joint = data(20, 0.1);
    joint.earlier = vec![10, 4];
    let hyper = |task_correlation: [f64; 2]| Hyper {
        earlier: vec![(0, task_correlation[0]), (1, task_correlation[1])],
        shared: BOWL,
        ..Hyper::prior_mode(3, Basis::Logarithm)
    };
    let at = [0.3, 0.8, 2.0];
    // Those that have nothing to do with it change nothing but the constant, by what they tell
    // of it.
    let gp = Gp::condition(&joint, &COORDINATES, hyper([0.0, 0.0])).unwrap();
    let alone = Gp::condition(&own, &COORDINATES, hyper([0.0, 0.0])).unwrap();
    assert!((gp.posterior(&at).1 - alone.posterior(&at).1).abs() < 1e-9);
    let above = |gp: &Gp| gp.posterior(&at).0 - gp.mean;
    assert!((above(&gp) - above(&alone)).abs() < 0.5);

    // Against the whole covariance, written out.
    let like = [0.9, 0.4];
    let gp = Gp::condition(&joint, &COORDINATES, hyper(like)).unwrap();
    let of = |i: usize| match i {
        0..6 => (0, 1.0),
        6..16 => (1, like[0]),
        _ => (2, like[1]),
    };
    let points: Vec<&[f64]> = joint.points().collect();
    let noise = joint.noise(&gp.hyper);
    let mut matrix = vec![0.0; 400];
    for (i, a) in points.iter().enumerate() {
        for (j, b) in points.iter().enumerate() {
            let ((one, like), (other, alike)) = (of(i), of(j));
            let k = gp.kernel.between(a, b);
            matrix[20 * i + j] = match one == other {
                true => k + if one > 0 { OFFSET } else { 0.0 },
                false => like * alike * k,
            };
        }
        matrix[21 * i] += noise[i];
    }
    let factor = Cholesky::new(matrix, 20).unwrap();
    let row: Vec<f64> = (0..20)
        .map(|i| of(i).1 * gp.kernel.between(points[i], &at))
        .collect();
    let mut residuals: Vec<f64> = (0..20)
        .map(|i| joint.values[i] - gp.mean - gp.kernel.expected(points[i]))
        .collect();
    factor.solve(&mut residuals);
    let mut solved = row.clone();
    factor.solve(&mut solved);
    let (mean, variance) = gp.posterior(&at);
    let expected = gp.mean + gp.kernel.expected(&at) + dot(&row, &residuals);
    assert!((mean - expected).abs() < 1e-9, "{mean} {expected}");
    let expected = gp.kernel.variance(&at) - dot(&row, &solved);
    assert!((variance - expected).abs() < 1e-9, "{variance} {expected}");
    // Measured now, not then.
    assert_eq!(gp.observation_at(points[2]).unwrap().0, 2);
    assert!(gp.observation_at(points[9]).is_none());
}

#[test]
fn the_posterior_at_an_observation_is_the_posterior() {
    use Coordinate::{Binary, Categorical, Continuous, Ordered};
    let data = data(20, 0.3);
    for coordinates in [
        [Ordered, Continuous, Categorical],
        [Binary, Continuous, Binary],
    ] {
        let hyper = Hyper {
            shared: Shared {
                quadratic: true,
                linear: true,
            },
            ..Hyper::prior_mode(3, Basis::Logarithm)
        };
        let gp = Gp::condition(&data, &coordinates, hyper).unwrap();
        for i in 0..20 {
            let (mean, variance) = gp.posterior(&data.points[i * 3..(i + 1) * 3]);
            let (fast_mean, fast_variance) = gp.posterior_at(i);
            assert!((mean - fast_mean).abs() < 1e-9 && (variance - fast_variance).abs() < 1e-9);
        }
    }
}

#[test]
fn fitting_finds_what_matters() {
    let mut data = data(40, 0.0);
    for i in 0..40 {
        data.values[i] = (6.0 * data.points[i * 3]).sin();
    }
    let gp = Gp::fit(
        &data,
        &COORDINATES,
        Basis::Variable,
        &[Hyper::prior_mode(3, Basis::Variable)],
        60,
    )
    .unwrap();
    assert!(
        gp.hyper.ln_lengths[0] < 0.5 && gp.hyper.ln_lengths[1] > 1.0,
        "{:?}",
        gp.hyper
    );
    let (mean, _) = gp.posterior(&[0.3, 0.9, 2.0]);
    assert!((mean - 1.8_f64.sin()).abs() < 0.1);
}

#[test]
fn what_rises_goes_on_rising_along_half_a_wave() {
    // Measured over the lower half, how much higher the end is thought to be than the middle.
    let beyond = |half_cosine: f64, value: fn(f64) -> f64| {
        let points: Vec<f64> = (0..6).map(|i| f64::from(i) / 10.0).collect();
        let data = Data {
            values: points.iter().map(|x| value(*x)).collect(),
            variances: vec![1e-3; points.len()],
            weights: vec![1.0; points.len()],
            points,
            mean_prior: (0.0, 1.0),
            earlier: Vec::new(),
        };
        let hyper = Hyper {
            ln_lengths: vec![-1.0],
            half_cosine,
            ..Hyper::prior_mode(1, Basis::Logarithm)
        };
        let gp = Gp::condition(&data, &[Coordinate::Ordered], hyper).unwrap();
        gp.posterior(&[0.9]).0 - gp.posterior(&[0.5]).0
    };
    let rising = |x: f64| 2.0 * x - 0.5;
    assert!(Hyper::prior_mode(3, Basis::Logarithm).half_cosine == HALF_COSINE);
    let (with, without) = (beyond(HALF_COSINE, rising), beyond(0.0, rising));
    assert!(with > without + 0.1, "{with} {without}");
    // What has an optimum inside comes back.
    let optimum = |x: f64| (std::f64::consts::PI * x).sin();
    let (with, without) = (beyond(HALF_COSINE, optimum), beyond(0.0, optimum));
    assert!(with < without, "{with} {without}");
}

#[test]
fn what_some_switches_do_others_are_expected_to_do() {
    // Five of six switches were turned, what is thought of the sixth.
    let sixth = |shared: Shared, each: [f64; 5]| {
        let mut points = vec![0.0; 6 * 6];
        (0..5).for_each(|k| points[(k + 1) * 6 + k] = 1.0);
        let data = Data {
            values: [&[0.0], &each[..]].concat(),
            variances: vec![1e-3; 6],
            weights: vec![1.0; 6],
            points,
            mean_prior: (0.0, 1.0),
            earlier: Vec::new(),
        };
        let hyper = Hyper {
            shared,
            ..Hyper::prior_mode(6, Basis::Logarithm)
        };
        let gp = Gp::condition(&data, &[Coordinate::Binary; 6], hyper).unwrap();
        let turned = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
        gp.posterior(&turned).0 - gp.posterior(&[0.0; 6]).0
    };
    for up in [1.0, -1.0] {
        let alike = [0.4, 0.5, 0.6, 0.3, 0.5].map(|by| up * by);
        let (with, without) = (sixth(SLOPE, alike), sixth(Shared::NOTHING, alike));
        assert!(up * with > up * without + 0.1, "{with} {without}");
    }
    let mixed = [0.5, -0.5, 0.5, -0.5, 0.0];
    let (with, without) = (sixth(SLOPE, mixed), sixth(Shared::NOTHING, mixed));
    assert!((with - without).abs() < 0.05, "{with} {without}");
}

#[test]
fn a_bowl_is_expected_until_data_say_otherwise() {
    let hyper = Hyper {
        shared: BOWL,
        ..Hyper::prior_mode(2, Basis::Logarithm)
    };
    // How much lower the middle is than the corners, given a process that is flat, or a hill.
    let depth = |n: u32, height: f64| {
        let points: Vec<Vec<f64>> = (0..n).map(|i| sobol(i, 2, 5)).collect();
        let hill = |x: &Vec<f64>| -height * x.iter().map(|x| (x - 0.5).powi(2)).sum::<f64>();
        let data = Data {
            values: points.iter().map(hill).collect(),
            variances: vec![1e-3; points.len()],
            weights: vec![1.0; points.len()],
            points: points.concat(),
            mean_prior: (0.0, 1.0),
            earlier: Vec::new(),
        };
        let gp = Gp::condition(&data, &[Coordinate::Continuous; 2], hyper.clone()).unwrap();
        gp.posterior(&[0.0; 2]).0 - gp.posterior(&[0.5; 2]).0
    };
    assert!(depth(1, 0.0) > 1.0, "{}", depth(1, 0.0));
    assert!(depth(20, 0.0).abs() < 0.1, "{}", depth(20, 0.0));
    assert!(depth(20, 4.0) < -1.0, "{}", depth(20, 4.0));
}

#[test]
fn degenerate_data_are_survived() {
    for n in [0_u32, 1, 2] {
        assert!(
            Gp::fit(
                &data(n, 0.1),
                &COORDINATES,
                Basis::Variable,
                &[Hyper::prior_mode(3, Basis::Variable)],
                30
            )
            .is_some()
        );
    }
    let mut twice = data(10, 0.0);
    twice.points.copy_within(0..15, 15);
    for k in 0..3 {
        twice.points[27 + k] = twice.points[k] + 1e-13;
    }
    assert!(
        Gp::fit(
            &twice,
            &COORDINATES,
            Basis::Variable,
            &[Hyper::prior_mode(3, Basis::Variable)],
            30
        )
        .is_some()
    );
    let hyper = Hyper {
        ln_noise: f64::NEG_INFINITY,
        ..Hyper::prior_mode(3, Basis::Variable)
    };
    twice.variances.fill(0.0);
    assert!(Gp::condition(&twice, &COORDINATES, hyper).is_some());
    let constant = Data {
        values: vec![2.0; 10],
        ..data(10, 0.0)
    };
    assert!(
        Gp::fit(
            &constant,
            &COORDINATES,
            Basis::Variable,
            &[Hyper::prior_mode(3, Basis::Variable)],
            30
        )
        .is_some()
    );
}
