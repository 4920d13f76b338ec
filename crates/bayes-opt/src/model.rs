//! All processes that are fitted to what has been told: the objective, each constraint, and
//! viability.
//!
//! `fitter` fits each process. `constraint_data`, `transform` and [`warm_start`] prepare its data.
//! `viability` and [`feasibility`] say how probable it is that a configuration survives and holds
//! to the constraints.

mod constraint_data;
pub(crate) mod feasibility;
mod fitter;
mod transform;
mod viability;
pub(crate) mod warm_start;

use std::collections::BTreeMap;

use self::constraint_data::constraint_data;
use self::fitter::Fitter;
pub(crate) use self::fitter::Memory;
pub(crate) use self::viability::survival;
use crate::acquisition::Evaluated;
use crate::gp::data::Data;
use crate::gp::hyper::Basis;
use crate::gp::mixture::Mixture;
use crate::model::feasibility::{Demand, Feasibility};
use crate::model::transform::Transform;
use crate::model::warm_start::Earlier;
use crate::observation::{EncodedObservation, MeasuredValue, ObservedOutcome};
use crate::space::encode::{Encoding, same_point};

/// How probable it is at least that a configuration which completed, and never crashed, survives
/// again, and that one which violated a constraint does so again.
const SEEN: f64 = 0.9;

/// What a process chose was chosen for being expected low, so that of what is measured low by luck
/// most was chosen; what the search began with was not. A choice of this crate, measured:
/// `docs/results/tuners-tried.md`.
const CHOSEN_IS_LOWER: f64 = 0.75;

/// The fitted processes.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) objective: Mixture,
    pub(crate) transform: Transform,
    pub(crate) feasibilities: Vec<Feasibility>,
    /// Completed points, each once.
    pub(crate) points: Vec<Vec<f64>>,
    /// For each, the first observation of it.
    pub(crate) first: Vec<usize>,
    /// For each, the objective's posterior.
    pub(crate) posteriors: Vec<(f64, f64)>,
    /// For each, the probability of being feasible.
    pub(crate) feasible: Vec<f64>,
    pub(crate) hypers: Memory,
}

impl Model {
    /// Fits all processes; `None` while nothing completed.
    pub(crate) fn fit(
        told: &[EncodedObservation],
        earlier: &[Earlier],
        encoding: &Encoding,
        memory: &Memory,
        seed: u64,
    ) -> Option<Model> {
        let mut completed: Vec<(usize, &EncodedObservation, MeasuredValue)> = Vec::new();
        let mut crashed: Vec<&[f64]> = Vec::new();
        let mut constraints: BTreeMap<&str, Vec<(&EncodedObservation, MeasuredValue)>> =
            BTreeMap::new();
        for (index, told) in told.iter().enumerate() {
            let ObservedOutcome::Completed {
                objective,
                constraints: measured,
            } = &told.observation.outcome
            else {
                crashed.push(&told.point);
                continue;
            };
            completed.push((index, told, *objective));
            for (name, measured) in measured {
                constraints.entry(name).or_default().push((told, *measured));
            }
        }
        if completed.is_empty() {
            return None;
        }
        let mut fitter = Fitter {
            coordinates: encoding.coordinates(),
            quadratic: encoding.quadratic,
            memory,
            seed,
            hypers: Memory::new(),
        };

        let values: Vec<f64> = completed
            .iter()
            .map(|(_, _, objective)| objective.value)
            .collect();
        let objectives: Vec<MeasuredValue> = completed.iter().map(|(_, _, y)| *y).collect();
        let data = |transform: &Transform| {
            let (modelled, variances) = transform.measured(&objectives);
            let weights = completed.iter().map(|(_, told, _)| told.observation.weight);
            Data {
                points: completed
                    .iter()
                    .flat_map(|(_, told, _)| told.point.iter().copied())
                    .collect(),
                values: modelled,
                variances,
                weights: weights.collect(),
                mean_prior: (0.0, 1.0),
                earlier: Vec::new(),
            }
        };
        let plain = Transform::new(&values);
        let ratios = Transform::of_ratios(&values);
        let (name, transform, data) = fitter.scale(values.len(), plain, ratios, data);
        let scale = transform.scale();
        let earlier: Vec<Data> = earlier
            .iter()
            .map(|earlier| earlier.in_units(scale))
            .collect();
        let objective = Mixture::new(fitter.draws(name, &data, &earlier)?)?;

        let mut feasibilities = Vec::new();
        for (name, measured) in &constraints {
            let data = constraint_data(measured);
            let gp = fitter.fit(&format!("constraint {name}"), Basis::Variable, &data)?;
            feasibilities.push(Feasibility {
                gp,
                demand: Demand::Holds,
            });
        }
        if !crashed.is_empty() {
            feasibilities.push(fitter.viability(told)?);
        }

        let mut model = Model {
            objective,
            transform,
            feasibilities,
            points: Vec::new(),
            first: Vec::new(),
            posteriors: Vec::new(),
            feasible: Vec::new(),
            hypers: fitter.hypers,
        };
        model.look_back(&completed, &crashed, &constraints);
        Some(model)
    }

    /// Takes up what the processes say of the points that were measured.
    fn look_back(
        &mut self,
        completed: &[(usize, &EncodedObservation, MeasuredValue)],
        crashed: &[&[f64]],
        constraints: &BTreeMap<&str, Vec<(&EncodedObservation, MeasuredValue)>>,
    ) {
        for (row, (index, told, _)) in completed.iter().enumerate() {
            if self
                .points
                .iter()
                .any(|point| same_point(point, &told.point))
            {
                continue;
            }
            self.points.push(told.point.clone());
            self.first.push(*index);
            self.posteriors.push(self.objective.posterior_at(row));
            let measured = constraints.values().map(Some).chain([None]);
            let has_crashed = crashed.iter().any(|crash| same_point(crash, &told.point));
            let feasible = self
                .feasibilities
                .iter()
                .zip(measured)
                .map(|(f, measured)| {
                    let probability = f.probability(f.gp.posterior_of(&told.point));
                    // What was seen of it counts, whatever the model says of its neighbourhood.
                    match measured {
                        None if !has_crashed => probability.max(SEEN),
                        Some(measured) if has_violated(measured, &told.point) => {
                            probability.min(1.0 - SEEN)
                        }
                        _ => probability,
                    }
                })
                .product();
            self.feasible.push(feasible);
        }
    }

    pub(crate) fn evaluated<'a>(&'a self, pending: &'a [Vec<f64>]) -> Evaluated<'a> {
        Evaluated {
            points: &self.points,
            posteriors: &self.posteriors,
            feasible: &self.feasible,
            pending,
        }
    }

    /// The point (by index) of the best mean among those that are probably feasible, else the most
    /// probably feasible one.
    pub(crate) fn lowest(&self) -> Option<usize> {
        self.lowest_of(|_| true).or_else(|| {
            (0..self.points.len()).max_by(|a, b| self.feasible[*a].total_cmp(&self.feasible[*b]))
        })
    }

    /// The point (by index) to recommend: the lowest, but none that a model chose (`is_chosen`)
    /// unless it is lower than all others with a probability of [`CHOSEN_IS_LOWER`].
    pub(crate) fn recommended(&self, is_chosen: impl Fn(&[f64]) -> bool) -> Option<usize> {
        let other = self.lowest_of(|i| !is_chosen(&self.points[i]));
        let chosen = self.lowest_of(|i| is_chosen(&self.points[i]));
        let (Some(other), Some(chosen)) = (other, chosen) else {
            return self.lowest();
        };
        let (lower, than) = (&self.points[chosen], &self.points[other]);
        Some(
            match self.objective.is_lower(lower, than) >= CHOSEN_IS_LOWER {
                true => chosen,
                false => other,
            },
        )
    }

    /// The best mean among those of `which` that are probably feasible.
    fn lowest_of(&self, which: impl Fn(usize) -> bool) -> Option<usize> {
        let likely = (0..self.points.len()).filter(|i| self.feasible[*i] >= 0.5);
        likely
            .filter(|i| which(*i))
            .min_by(|a, b| self.posteriors[*a].0.total_cmp(&self.posteriors[*b].0))
    }

    /// Whether some evaluated point is probably feasible.
    pub(crate) fn any_feasible(&self) -> bool {
        self.feasible.iter().any(|probability| *probability >= 0.5)
    }
}

/// Whether the measurements of a constraint at a point say that it is violated there.
fn has_violated(measured: &[(&EncodedObservation, MeasuredValue)], point: &[f64]) -> bool {
    let here = measured
        .iter()
        .filter(|(told, _)| same_point(&told.point, point));
    let (mut sum, mut variance) = (0.0, 0.0);
    for (told, measured) in here {
        let weight = told.observation.weight;
        sum += weight * measured.value;
        // A weight divides the variance.
        variance += weight * measured.variance.unwrap_or(0.0);
    }
    // Of the sum as of the mean: both are divided by the weights' sum.
    let sum = MeasuredValue {
        value: sum,
        variance: Some(variance),
    };
    sum.is_violated()
}
