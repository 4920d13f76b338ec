//! Draws of the hyper-parameters of the objective's process, and what goes with them where the data
//! are the more probable with it, on average over the draws: a slope of switches, and earlier
//! experiments.
//!
//! An earlier experiment is another output of the same process, correlated with the present one
//! (intrinsic coregionalisation; Swersky, Snoek, Adams 2013, "Multi-task Bayesian optimization"),
//! beside a constant of its own. It is believed where what was measured now is the more probable
//! given what was measured then: one that misleads is as good as absent.

use crate::gp::data::Data;
use crate::gp::hyper::{Basis, Hyper, NOISE_PRIOR, Priors, bounds, length_prior};
use crate::gp::kernel::half_cosines_between;
use crate::gp::log_likelihood;
use crate::gp::trend::may_be_linear;
use crate::sampling::slice_sampler::Chain;
use crate::space::coordinate::Coordinate;

/// Along ranges whose differences matter, length scales are drawn around the mode of their prior's
/// density, which is short: most such functions bend along all of their ranges. The deviations of
/// the logarithm, for real and for whole numbers: of functions of real numbers nearly all
/// parameters matter, of counted knobs not as many. Choices of this crate, as the next
/// (`docs/results/tuners-tried.md`).
const REAL_DEVIATION: f64 = 0.5;
const WHOLE_DEVIATION: f64 = 0.75;
/// Between levels they are drawn half of the way to that mode, with this deviation: some do much,
/// many nothing. Where there is an order or ratios matter few parameters do anything, and length
/// scales are drawn from the prior itself.
const LEVEL_DEVIATION: f64 = 1.0;
/// How much the objective may be like that of an earlier experiment, of which one is taken: their
/// correlation. Choices of this crate.
const TASK_CORRELATIONS: [f64; 4] = [0.6, 0.85, 0.95, 0.99];

/// The priors of what is drawn.
pub(crate) fn drawn_priors(coordinates: &[Coordinate]) -> Priors {
    let (mean, sd) = length_prior(coordinates.len());
    let lengths = coordinates.iter().map(|coordinate| match coordinate {
        Coordinate::Categorical | Coordinate::Binary => (mean - 0.5 * sd * sd, LEVEL_DEVIATION),
        Coordinate::Ordered => (mean, sd),
        Coordinate::Integer => (mean - sd * sd, WHOLE_DEVIATION),
        Coordinate::Continuous => (mean - sd * sd, REAL_DEVIATION),
    });
    Priors {
        basis: Basis::Logarithm,
        each: lengths.chain([NOISE_PRIOR]).collect(),
    }
}

/// How many draws there are, and how far one is from the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    pub(crate) draws: usize,
    /// Of the chain, to each draw.
    pub(crate) steps: usize,
}

/// Draws of the hyper-parameters from their posterior, by a chain from `start` on, with the trends
/// that it has; then with a slope and with `earlier` experiments where the data speak for them.
/// They are drawn without these, so that somewhat more than even evidence is asked for.
pub(crate) fn draw(
    data: &Data,
    coordinates: &[Coordinate],
    start: &Hyper,
    earlier: &[Data],
    seed: u64,
    length: Length,
) -> Vec<Hyper> {
    let d = coordinates.len();
    let bounds = bounds(d);
    let priors = drawn_priors(coordinates).each;
    let hyper = |standard: &[f64]| {
        let unbounded = priors
            .iter()
            .zip(standard)
            .map(|((mean, deviation), value)| mean + deviation * value);
        let vector: Vec<f64> = unbounded
            .zip(&bounds)
            .map(|(value, (low, high))| value.clamp(*low, *high))
            .collect();
        Hyper {
            shared: start.shared,
            ..Hyper::from_slice(&vector, Basis::Logarithm)
        }
    };
    let standard = start.to_vec().into_iter().zip(&priors);
    let standard = standard.map(|(value, (mean, deviation))| (value - mean) / deviation);
    let half_cosines = half_cosines_between(coordinates, start.half_cosine, &data.points);
    let log = |hyper: &Hyper| log_likelihood(data, coordinates, &half_cosines, hyper);
    let mut chain = Chain::new(standard.collect(), seed, |state| log(&hyper(state)));
    let draws = (0..length.draws).map(|_| {
        (0..length.steps).for_each(|_| chain.step());
        (hyper(chain.state()), chain.now())
    });
    let (hypers, logs): (Vec<Hyper>, Vec<f64>) = draws.unzip();
    let mut drawn = Drawn {
        log: logs.iter().sum(),
        hypers,
    };
    if may_be_linear(coordinates) {
        drawn.or(Drawn::with(
            &drawn.hypers,
            |hyper| hyper.shared.linear = true,
            log,
        ));
    }
    for index in 0..earlier.len() {
        let before = drawn.hypers.clone();
        // Half waves of all draws have the same variance.
        let related = |data: Data| {
            let half_cosines = half_cosines_between(coordinates, start.half_cosine, &data.points);
            move |hyper: &Hyper| log_likelihood(&data, coordinates, &half_cosines, hyper)
        };
        let believe =
            |hyper: &mut Hyper, task_correlation| hyper.earlier.push((index, task_correlation));
        let Some(mut believing) = before.first().cloned() else {
            break;
        };
        believe(&mut believing, 1.0);
        let all = related(data.joined(earlier, &believing));
        let then = related(data.empty_like().joined(earlier, &believing));
        for task_correlation in TASK_CORRELATIONS {
            drawn.or(Drawn::with(
                &before,
                |hyper| believe(hyper, task_correlation),
                // Of what was measured now, given what was then.
                |hyper| all(hyper) - then(hyper),
            ));
        }
    }
    drawn.hypers
}

/// Draws, and what the data say of them.
struct Drawn {
    hypers: Vec<Hyper>,
    /// The logarithm of the likelihood, summed over them.
    log: f64,
}

impl Drawn {
    /// What the data say of these draws with something more.
    fn with(hypers: &[Hyper], more: impl Fn(&mut Hyper), log: impl Fn(&Hyper) -> f64) -> Self {
        let mut hypers = hypers.to_vec();
        hypers.iter_mut().for_each(more);
        Drawn {
            log: hypers.iter().map(log).sum(),
            hypers,
        }
    }

    /// The others in their place, where the data are the more probable with those.
    fn or(&mut self, others: Self) {
        if others.log > self.log {
            *self = others;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gp::Gp;
    use crate::sampling::design::sobol;

    const COORDINATES: [Coordinate; 4] = [
        Coordinate::Continuous,
        Coordinate::Integer,
        Coordinate::Binary,
        Coordinate::Binary,
    ];

    fn data(n: u32, from: u32, value: impl Fn(&[f64]) -> f64) -> Data {
        let points = (from..from + n).map(|index| {
            let mut x = sobol(index, 4, 8);
            x[2] = x[2].round();
            x[3] = x[3].round();
            x
        });
        let points: Vec<Vec<f64>> = points.collect();
        let values: Vec<f64> = points.iter().map(|x| value(x)).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / n;
        Data {
            values: values
                .iter()
                .map(|y| (y - mean) / variance.sqrt())
                .collect(),
            points: points.concat(),
            variances: vec![0.0; points.len()],
            weights: vec![1.0; points.len()],
            mean_prior: (0.0, 1.0),
            earlier: Vec::new(),
        }
    }

    fn service(x: &[f64]) -> f64 {
        (x[0] - 0.7).powi(2) + 0.5 * (x[1] - 0.2).powi(2) + 0.2 * x[2] * x[0] - 0.1 * x[3]
    }

    #[test]
    fn an_earlier_experiment_is_believed_where_the_data_agree() {
        let same = data(40, 0, service);
        let other = data(40, 0, |x| {
            (9.0 * x[0] + 5.0 * x[1] * (1.0 - x[2]) + 7.0 * x[3]).sin()
        });
        let later = data(28, 100, |x| 3.0 * service(x) + 0.05 * x[1] + 7.0);
        let now = Data {
            points: later.points[..8 * COORDINATES.len()].to_vec(),
            values: later.values[..8].to_vec(),
            variances: vec![0.0; 8],
            weights: vec![1.0; 8],
            earlier: Vec::new(),
            ..later
        };
        let start = Hyper::prior_mode(4, Basis::Logarithm);
        let length = Length { draws: 8, steps: 8 };
        let drawn = |earlier: &[&Data]| {
            let earlier: Vec<Data> = earlier.iter().map(|data| (*data).clone()).collect();
            let hypers = draw(&now, &COORDINATES, &start, &earlier, 1, length);
            // How wrong they are about what was not measured yet.
            let mut error = 0.0;
            for hyper in &hypers {
                let data = now.joined(&earlier, hyper);
                let gp = Gp::condition(&data, &COORDINATES, hyper.clone()).unwrap();
                let unknown = later.points.chunks_exact(4).zip(&later.values).skip(8);
                let squares = unknown.map(|(x, y)| (gp.posterior(x).0 - y).powi(2));
                error += squares.sum::<f64>();
            }
            (hypers, error)
        };
        let (alone, error) = drawn(&[]);
        assert!(alone.iter().all(|hyper| hyper.earlier.is_empty()));

        let (believing, less) = drawn(&[&same]);
        assert!(believing.iter().all(|hyper| hyper.earlier == [(0, 0.99)]));
        assert!(less < 0.1 * error, "{less} {error}");
        // What misleads changes nothing, alone or beside another one.
        assert_eq!(drawn(&[&other]).0, alone);
        let (beside, as_much) = drawn(&[&other, &same]);
        assert!(beside.iter().all(|hyper| hyper.earlier == [(1, 0.99)]));
        assert_eq!(as_much, less);
    }
}
