//! What the model has learned: how much each parameter matters, and how the objective follows it.
//!
//! Partial dependence (Friedman 2001, section 8.2) is the objective with some parameters held and
//! the others averaged over the space. Under each process of the objective that average is itself
//! normal, with mean and covariance from averaged kernels, so its uncertainty is exact and not one
//! of the averaging alone. Importance is the variance of a parameter's partial dependence as a
//! share of all parameters' (the main effects of a functional analysis of variance; Hutter, Hoos,
//! Leyton-Brown 2014); interactions are not in it.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::gp::Gp;
use crate::model::Model;
use crate::numeric::linalg::{Cholesky, add_scaled, dot, multiply};
use crate::numeric::normal::draw as normal_draw;
use crate::sampling::design::sobol;
use crate::space::Space;
use crate::space::encode::Column;
use crate::space::value::{Value, cell};

/// Points over which the other parameters are averaged.
const BACKGROUND: u32 = 32;
/// Values of a parameter between which its effect varies.
const LEVELS: usize = 8;
/// Draws behind the intervals, of all processes together.
const DRAWS: usize = 200;

/// How much of the objective's variation over the space one parameter alone explains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Importance {
    /// The parameter's name.
    pub parameter: String,
    /// Its share of all main effects, 0 to 1: the median over what the model holds possible.
    pub share: f64,
    /// The 2.5 % quantile of the share.
    pub low: f64,
    /// The 97.5 % quantile of the share.
    pub high: f64,
}

/// Points all over the space.
fn background(space: &Space) -> Vec<Vec<f64>> {
    let encoding = space.encoding();
    (0..BACKGROUND)
        .map(|index| encoding.place(&sobol(index, encoding.columns().len(), 1)))
        .collect()
}

/// `points` with some parameters set to these values.
fn with(points: &[Vec<f64>], held: &[(&Column, Value)]) -> Vec<Vec<f64>> {
    let mut points = points.to_vec();
    for point in &mut points {
        held.iter()
            .for_each(|(column, value)| column.write(value, point));
    }
    points
}

/// Means and covariance of the averages over each of `sets` of points.
fn averages(gp: &Gp, sets: &[Vec<Vec<f64>>]) -> (Vec<f64>, Vec<f64>) {
    let (n, count) = (gp.n(), f64::from(BACKGROUND));
    let (mut rows, mut means) = (Vec::new(), Vec::new());
    for points in sets {
        let mut mean_row = vec![0.0; n];
        for point in points {
            add_scaled(&mut mean_row, 1.0 / count, &gp.row(point));
        }
        let heights = points.iter().map(|x| gp.mean_at(x, &[])).sum::<f64>();
        means.push(heights / count + dot(&mean_row, &gp.alpha));
        rows.push(mean_row);
    }
    let m = sets.len();
    let mut covariance = vec![0.0; m * m];
    for a in 0..m {
        let solved = multiply(&gp.inverse, &rows[a]);
        for b in 0..=a {
            let pairs = sets[a]
                .iter()
                .map(|x| sets[b].iter().map(|y| gp.kernel.between(x, y)).sum::<f64>());
            let value = pairs.sum::<f64>() / (count * count) - dot(&solved, &rows[b]);
            covariance[a * m + b] = value;
            covariance[b * m + a] = value;
        }
    }
    (means, covariance)
}

/// `points` values of a parameter spread over its range (all levels of a categorical one), special
/// values included.
fn levels(column: &Column, dimension: usize, points: usize) -> Vec<Value> {
    let mut values: Vec<Value> = Vec::new();
    let mut point = vec![0.0; dimension];
    let specials = column.specials() as u64;
    let listed = column
        .states()
        .filter(|states| !column.is_ordered() || *states <= points as u64 + specials);
    for state in 0..listed.unwrap_or(specials) {
        column.write_state(state, &mut point);
        values.push(column.read(&point));
    }
    if listed.is_none() {
        if let Some(axis) = column.special_axis {
            point[axis] = 0.0;
        }
        for k in 0..points.max(2) {
            point[column.axis] = k as f64 / (points.max(2) - 1) as f64;
            let value = column.read(&point);
            if values.last() != Some(&value) {
                values.push(value);
            }
        }
    }
    values
}

pub(crate) fn importance(model: &Model, space: &Space) -> Vec<Importance> {
    let encoding = space.encoding();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let background = background(space);
    let effects: Vec<Vec<f64>> = encoding
        .columns()
        .iter()
        .map(|column| {
            let values = levels(column, encoding.dimension(), LEVELS);
            let sets: Vec<_> = values
                .into_iter()
                .map(|value| with(&background, &[(column, value)]))
                .collect();
            let of_members = model.objective.members().iter().flat_map(|gp| {
                let (means, covariance) = averages(gp, &sets);
                let draws = cell(model.objective.share(), DRAWS + 1);
                variances_of_draws(&means, covariance, draws, &mut rng)
            });
            of_members.collect()
        })
        .collect();
    let draws = effects.first().map_or(0, Vec::len);
    let totals: Vec<f64> = (0..draws)
        .map(|draw| effects.iter().map(|effect| effect[draw]).sum())
        .collect();
    let mut list: Vec<Importance> = encoding
        .columns()
        .iter()
        .zip(&effects)
        .map(|(column, effect)| {
            let mut shares: Vec<f64> = effect
                .iter()
                .zip(&totals)
                .map(|(part, total)| part / total.max(f64::MIN_POSITIVE))
                .collect();
            shares.sort_by(f64::total_cmp);
            let at = |share: f64| shares[cell(share, draws)];
            Importance {
                parameter: column.name.clone(),
                share: at(0.5),
                low: at(0.025),
                high: at(0.975),
            }
        })
        .collect();
    list.sort_by(|a, b| b.share.total_cmp(&a.share));
    list
}

/// For each draw of the effect, its variance over the levels.
fn variances_of_draws(
    means: &[f64],
    covariance: Vec<f64>,
    draws: usize,
    rng: &mut ChaCha8Rng,
) -> Vec<f64> {
    let m = means.len();
    let factor = Cholesky::with_jitter(covariance, m);
    let variance = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / m as f64;
        values
            .iter()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>()
            / m as f64
    };
    (0..draws)
        .map(|_| {
            let normal: Vec<f64> = (0..m).map(|_| normal_draw(rng)).collect();
            let draw = |i: usize| {
                means[i]
                    + factor
                        .as_ref()
                        .map_or(0.0, |factor| dot(factor.row(i), &normal[..=i]))
            };
            variance(&(0..m).map(draw).collect::<Vec<f64>>())
        })
        .collect()
}

/// Every combination of about `points` values of each of some parameters; none for an unknown name.
fn combinations<'a>(
    space: &'a Space,
    names: &[&str],
    points: usize,
) -> Vec<Vec<(&'a Column, Value)>> {
    let encoding = space.encoding();
    let mut held: Vec<Vec<(&Column, Value)>> = vec![Vec::new()];
    for name in names {
        let Some(column) = encoding
            .columns()
            .iter()
            .find(|column| column.name == *name)
        else {
            return Vec::new();
        };
        let values = levels(column, encoding.dimension(), points);
        held = held
            .iter()
            .flat_map(|before| {
                values
                    .iter()
                    .map(move |value| [before.clone(), vec![(column, value.clone())]].concat())
            })
            .collect();
    }
    held
}

/// The probability of being feasible for the combinations of [`dependence`], the other parameters
/// averaged.
pub(crate) fn feasibility(model: &Model, space: &Space, names: &[&str], points: usize) -> Vec<f64> {
    let background = background(space);
    let held = combinations(space, names, points).into_iter();
    let each = held.map(|changes| {
        let points = with(&background, &changes);
        let probabilities = points.iter().map(|point| {
            let each = model.feasibilities.iter();
            let each = each.map(|it| it.probability(it.gp.posterior_of(point)));
            each.product::<f64>()
        });
        probabilities.sum::<f64>() / points.len() as f64
    });
    each.collect()
}

/// The objective over the values of some parameters: a row of values, mean and standard deviation
/// for each combination.
pub(crate) fn dependence(
    model: &Model,
    space: &Space,
    names: &[&str],
    points: usize,
) -> Vec<(Vec<Value>, f64, f64)> {
    let background = background(space);
    let held = combinations(space, names, points);
    let rows = held.into_iter().map(|changes| {
        let points = with(&background, &changes);
        let (mean, variance) = model.objective.moments(|gp| {
            let (means, covariance) = averages(gp, std::slice::from_ref(&points));
            (means[0], covariance[0])
        });
        (
            changes.into_iter().map(|(_, value)| value).collect(),
            model.transform.inverse(mean),
            variance.sqrt() * model.transform.inverse_slope(mean),
        )
    });
    rows.collect()
}
