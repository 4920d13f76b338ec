//! Draws of the hyper-parameters of the objective's process, and which trends go with them: a slope of switches and what earlier
//! experiments say, each only where the data are the more probable with it, on average over the draws.
//!
//! An earlier experiment is a trend: some amount of what it expects, and beside it a process for what is different now (Kennedy &
//! O'Hagan 2000, "Predicting the output from a complex computer code when fast approximations are available", section 2.3; from
//! its posterior mean, as in Le Gratiet & Garnier 2014, "Recursive co-kriging model for design of computer experiments"). One
//! that misleads makes the data less probable, and is as good as absent then.

use std::sync::Arc;

use crate::gp::{Basis, Data, Gp, Hyper, NOISE_PRIOR, bounds, length_prior, log_likelihood};
use crate::kernel::{Coordinate, waves_between};
use crate::slice::Chain;
use crate::trend::{Shared, may_slope};

/// Along ranges whose differences matter, length scales are drawn around the mode of their prior's density, which is short:
/// most such functions bend along all of their ranges. The deviations of the logarithm, for real and for whole numbers: of
/// functions of real numbers nearly all parameters matter, of counted knobs not as many. Choices of this crate, as the next
/// (`docs/results/tuners-tried.md`).
const REAL_DEVIATION: f64 = 0.5;
const WHOLE_DEVIATION: f64 = 0.75;
/// Between levels they are drawn half of the way to that mode, with this deviation: some do much, many nothing. Where there is
/// an order or ratios matter few parameters do anything, and length scales are drawn from the prior itself.
const LEVEL_DEVIATION: f64 = 1.0;
/// Prior variances of what is different from earlier experiments, one of which is taken: from nothing like them to nearly the
/// same. Choices of this crate.
const DIFFERENCES: [f64; 4] = [1.0, 0.3, 0.1, 0.03];

/// Mean and standard deviation of what is drawn, in the order of [`Hyper::to_vec`].
fn drawn_prior(coordinates: &[Coordinate]) -> (Vec<f64>, Vec<f64>) {
    let (mean, sd) = length_prior(coordinates.len());
    let lengths = coordinates.iter().map(|coordinate| match coordinate {
        Coordinate::Level | Coordinate::Switch => (mean - 0.5 * sd * sd, LEVEL_DEVIATION),
        Coordinate::Place => (mean, sd),
        Coordinate::Whole => (mean - sd * sd, WHOLE_DEVIATION),
        Coordinate::Real => (mean - sd * sd, REAL_DEVIATION),
    });
    lengths.chain([NOISE_PRIOR]).unzip()
}

/// How many draws there are, and how far one is from the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    pub(crate) draws: usize,
    /// Of the chain, to each draw.
    pub(crate) steps: usize,
}

/// Draws of the hyper-parameters from their posterior, by a chain from `start` on, with the trends that it has; then with those
/// that the data speak for: a slope, and `earlier` experiments. They are drawn without these, so that somewhat more than even evidence is asked for.
pub(crate) fn draw(
    data: &Data,
    coordinates: &[Coordinate],
    start: &Hyper,
    earlier: &[Arc<Gp>],
    seed: u64,
    length: Length,
) -> Vec<Hyper> {
    let d = coordinates.len();
    let bounds = bounds(d);
    let (means, deviations) = drawn_prior(coordinates);
    let hyper = |standard: &[f64]| {
        let vector: Vec<f64> = (0..=d)
            .map(|k| (means[k] + deviations[k] * standard[k]).clamp(bounds[k].0, bounds[k].1))
            .collect();
        Hyper {
            shared: start.shared,
            ..Hyper::from_slice(&vector, Basis::Logarithm)
        }
    };
    let standard = (0..=d).zip(start.to_vec());
    let standard = standard.map(|(k, value)| (value - means[k]) / deviations[k]);
    let waves = waves_between(coordinates, start.wave, &data.points);
    let log = |hyper: &Hyper| log_likelihood(data, coordinates, &waves, hyper);
    let mut chain = Chain::new(standard.collect(), seed, |state| log(&hyper(state)));
    let draws = (0..length.draws).map(|_| {
        (0..length.steps).for_each(|_| chain.step());
        (hyper(chain.state()), chain.now())
    });
    let (drawn, logs): (Vec<Hyper>, Vec<f64>) = draws.unzip();
    let mut best = Trended {
        hypers: drawn,
        log: logs.iter().sum(),
    };
    if may_slope(coordinates) {
        let sloped = best.hypers.iter().cloned().map(|mut hyper| {
            hyper.shared.slope = true;
            hyper
        });
        best.or(Trended::of(data, coordinates, start.wave, sloped.collect()));
    }
    let plain = best.hypers.clone();
    for one in earlier {
        let believed = best.hypers.first().map(|hyper| hyper.earlier.clone());
        let mut believed = believed.unwrap_or_default();
        believed.push(one.clone());
        for difference in DIFFERENCES {
            let wave = start.wave * difference;
            let with = plain.iter().map(|hyper| Hyper {
                ln_scale: difference.ln(),
                wave,
                shared: Shared::NOTHING,
                earlier: believed.clone(),
                ..hyper.clone()
            });
            best.or(Trended::of(data, coordinates, wave, with.collect()));
        }
    }
    best.hypers
}

/// Draws with some trends.
struct Trended {
    hypers: Vec<Hyper>,
    /// The logarithm of the likelihood, summed over them.
    log: f64,
}

impl Trended {
    /// Half waves of all of them have the variance `wave`.
    fn of(data: &Data, coordinates: &[Coordinate], wave: f64, hypers: Vec<Hyper>) -> Self {
        let waves = waves_between(coordinates, wave, &data.points);
        let logs = hypers
            .iter()
            .map(|hyper| log_likelihood(data, coordinates, &waves, hyper));
        Trended {
            log: logs.sum(),
            hypers,
        }
    }

    /// The other one in its place, where the data are the more probable with it.
    fn or(&mut self, other: Self) {
        if other.log > self.log {
            *self = other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::design::sobol;

    const COORDINATES: [Coordinate; 4] = [
        Coordinate::Real,
        Coordinate::Whole,
        Coordinate::Switch,
        Coordinate::Switch,
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
        }
    }

    fn service(x: &[f64]) -> f64 {
        (x[0] - 0.7).powi(2) + 0.5 * (x[1] - 0.2).powi(2) + 0.2 * x[2] * x[0] - 0.1 * x[3]
    }

    #[test]
    fn an_earlier_experiment_is_believed_where_the_data_agree() {
        let earlier = |value: fn(&[f64]) -> f64| {
            let start = Hyper::prior_mode(4, Basis::Variable);
            let data = data(40, 0, value);
            Arc::new(Gp::fit(&data, &COORDINATES, Basis::Variable, &[start], 40).unwrap())
        };
        let same = earlier(service);
        let other = earlier(|x| (9.0 * x[0] + 5.0 * x[1] * (1.0 - x[2]) + 7.0 * x[3]).sin());
        let later = data(28, 100, |x| 3.0 * service(x) + 0.05 * x[1] + 7.0);
        let now = Data {
            points: later.points[..8 * COORDINATES.len()].to_vec(),
            values: later.values[..8].to_vec(),
            variances: vec![0.0; 8],
            weights: vec![1.0; 8],
            ..later
        };
        let start = Hyper::prior_mode(4, Basis::Logarithm);
        let length = Length { draws: 8, steps: 8 };
        let drawn = |earlier: &[Arc<Gp>]| draw(&now, &COORDINATES, &start, earlier, 1, length);
        // How wrong they are about what was not measured yet.
        let error = |hypers: &[Hyper]| -> f64 {
            let gps = hypers.iter().cloned();
            let gps = gps.map(|hyper| Gp::condition(&now, &COORDINATES, hyper).unwrap());
            let squares = gps.flat_map(|gp| {
                let unknown = later.points.chunks_exact(4).zip(&later.values).skip(8);
                unknown
                    .map(|(x, y)| (gp.posterior(x).0 - y).powi(2))
                    .collect::<Vec<_>>()
            });
            squares.sum()
        };

        let believed = drawn(std::slice::from_ref(&same));
        assert!(believed.iter().all(|hyper| hyper.earlier == [same.clone()]));
        assert!(error(&believed) < 0.1 * error(&drawn(&[])));
        // What misleads changes nothing, alone or beside another one.
        assert_eq!(drawn(std::slice::from_ref(&other)), drawn(&[]));
        assert_eq!(drawn(&[other, same]), believed);
    }
}
