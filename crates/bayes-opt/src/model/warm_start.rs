//! Warm start: what earlier experiments measured, for [`crate::gp::hyper_sampling`] to believe or
//! not.

use crate::gp::Gp;
use crate::gp::data::Data;
use crate::gp::hyper::{Basis, Hyper};
use crate::model::transform::Transform;
use crate::observation::{MeasuredValue, Observation, ObservedOutcome};
use crate::space::Space;
use crate::space::encode::same_point;

/// More observations of one earlier experiment are thinned, evenly over their values, as they cost
/// time with every fit, and say less and less: to so many, and of all experiments together about to
/// so many.
const KEPT_MAX: usize = 40;
const KEPT_OF_ALL: usize = 120;
/// Evaluations of one fit.
const FIT_EVALUATIONS: usize = 40;

/// One earlier experiment.
#[derive(Clone, Debug)]
pub(crate) struct Earlier {
    pub(crate) data: Data,
    /// For each of its observations, whether that configuration ever crashed or broke a constraint.
    violated: Vec<bool>,
    gp: Gp,
    /// What one unit of its values is in the objective's unit (or its logarithm).
    pub(crate) scale: f64,
}

impl Earlier {
    /// One of `of_all`; `None` where fewer than two of its evaluations completed. Its
    /// configurations are brought to the nearest ones of `space`: a parameter that it did not have
    /// counts as having had its default, one that is gone is forgotten.
    pub(crate) fn new(observations: &[Observation], of_all: usize, space: &Space) -> Option<Self> {
        let encoding = space.encoding();
        let place =
            |observation: &Observation| encoding.encode(&space.snap(&observation.configuration));
        let broke = |observation: &&Observation| match &observation.outcome {
            ObservedOutcome::Completed { constraints, .. } => {
                constraints.values().any(|measured| measured.is_violated())
            }
            ObservedOutcome::Crashed => true,
        };
        let bad: Vec<Vec<f64>> = observations.iter().filter(broke).map(place).collect();
        let mut completed: Vec<_> = observations
            .iter()
            .filter_map(|observation| match &observation.outcome {
                ObservedOutcome::Completed { objective, .. } => {
                    let point = place(observation);
                    // However often it did well.
                    let violated = bad.iter().any(|other| same_point(other, &point));
                    Some((observation, *objective, violated, point))
                }
                ObservedOutcome::Crashed => None,
            })
            .collect();
        if completed.len() < 2 {
            return None;
        }
        completed.sort_by(|a, b| a.1.value.total_cmp(&b.1.value));
        let kept = (KEPT_OF_ALL / of_all.max(1)).min(KEPT_MAX);
        if completed.len() > kept {
            completed = (0..kept)
                .map(|i| {
                    completed[crate::space::value::cell(i as f64 / kept as f64, completed.len())]
                        .clone()
                })
                .collect();
        }
        let values: Vec<f64> = completed
            .iter()
            .map(|(_, measured, ..)| measured.value)
            .collect();
        let transform = Transform::new(&values);
        let points = completed.iter().flat_map(|(.., point)| point).copied();
        let points: Vec<f64> = points.collect();
        let objectives: Vec<MeasuredValue> = completed
            .iter()
            .map(|(_, measured, ..)| *measured)
            .collect();
        let (modelled, variances) = transform.measured(&objectives);
        let data = Data {
            points,
            values: modelled,
            variances,
            weights: completed
                .iter()
                .map(|(observation, ..)| observation.weight)
                .collect(),
            mean_prior: (0.0, 1.0),
            earlier: Vec::new(),
        };
        let start = Hyper::prior_mode(encoding.dimension(), Basis::Variable);
        let gp = Gp::fit(
            &data,
            encoding.coordinates(),
            Basis::Variable,
            &[start],
            FIT_EVALUATIONS,
        )?;
        Some(Earlier {
            data,
            violated: completed
                .iter()
                .map(|(_, _, violated, _)| *violated)
                .collect(),
            gp,
            scale: transform.scale(),
        })
    }

    /// Its data where one unit is `scale`, of the objective or, where that is modelled so, of its
    /// logarithm: of ratios where these are not, they are out of all proportion, and not believed.
    pub(crate) fn in_units(&self, scale: f64) -> Data {
        let ratio = self.scale / scale;
        let mut data = self.data.clone();
        data.values.iter_mut().for_each(|value| *value *= ratio);
        data.variances
            .iter_mut()
            .for_each(|variance| *variance *= ratio * ratio);
        data
    }

    /// Where its expectation is best of its points that are allowed in `space`, first of those that
    /// never crashed nor broke a constraint.
    pub(crate) fn best(&self, space: &Space) -> Option<Vec<f64>> {
        let points = self.data.points.chunks_exact(space.encoding().dimension());
        points
            .enumerate()
            .filter(|(_, point)| space.allows(point))
            .map(|(row, point)| (self.violated[row], self.gp.posterior_at(row).0, point))
            .min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
            .map(|(_, _, point)| point.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::parameter::{Kind, Parameter};
    use crate::space::value::{Configuration, Value};

    #[test]
    fn of_many_experiments_less_is_kept() {
        let kind = Kind::Int {
            low: 0,
            high: 99,
            step: 1,
            log: false,
        };
        let space = Space::new(vec![Parameter::new("n", kind)], Vec::new()).unwrap();
        let told = (0..100_i64).map(|n| {
            let at = Configuration([("n".to_owned(), Value::from(n))].into());
            Observation::now(at, ObservedOutcome::completed(100.0 - n as f64))
        });
        let told: Vec<Observation> = told.collect();
        let kept = |of_all: usize| {
            let earlier = Earlier::new(&told, of_all, &space).unwrap();
            // The best among them.
            assert_eq!(
                earlier.data.points[0],
                earlier.data.points.iter().copied().fold(0.0, f64::max)
            );
            earlier.data.values.len()
        };
        assert_eq!([1, 3, 4, 12].map(kept), [40, 40, 30, 10]);
    }
}
