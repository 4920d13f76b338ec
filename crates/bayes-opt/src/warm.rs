//! Warm start: what earlier experiments measured, as further outputs of the same process.
//!
//! Every point has one more, categorical coordinate that tells the experiments apart (the intrinsic coregionalisation
//! model with one correlation; Swersky, Snoek, Adams 2013, "Multi-task Bayesian optimization"). Its length scale is
//! fitted like any other: an earlier experiment that misleads gets a short one, and is then as good as absent.

use crate::gp::{Basis, Data, Gp, Hyper};
use crate::model::is_violated;
use crate::observation::{Measured, Observation, Outcome};
use crate::space::Space;
use crate::transform::Transform;

/// More observations of one earlier experiment are thinned to so many, evenly over their values: they cost time with every
/// fit, and say less and less.
const KEPT_MAX: usize = 40;
/// Evaluations of one fit.
const FIT_EVALUATIONS: usize = 40;

/// One earlier experiment, on a scale of its own.
#[derive(Clone, Debug)]
pub(crate) struct Earlier {
    pub(crate) data: Data,
    /// For each of its rows, whether it broke a constraint.
    violated: Vec<bool>,
    gp: Gp,
    /// What one unit of its values is in the objective's unit (or its logarithm).
    pub(crate) scale: f64,
}

impl Earlier {
    /// The `task`-th earlier experiment, from 1; `None` where fewer than two of its evaluations completed. Its
    /// configurations are brought to the nearest ones of `space`: a parameter that it did not have counts as having had its
    /// default, one that is gone is forgotten.
    pub(crate) fn new(
        task: usize,
        observations: &[Observation],
        space: &Space,
        log: bool,
    ) -> Option<Self> {
        let mut completed: Vec<_> = observations
            .iter()
            .filter_map(|observation| match &observation.outcome {
                Outcome::Completed {
                    objective,
                    constraints,
                } => {
                    let mut constraints = constraints.values();
                    let violated = constraints.any(|measured| {
                        is_violated(measured.value, measured.variance.unwrap_or(0.0))
                    });
                    Some((observation, *objective, violated))
                }
                Outcome::Crashed => None,
            })
            .collect();
        if completed.len() < 2 {
            return None;
        }
        completed.sort_by(|a, b| a.1.value.total_cmp(&b.1.value));
        if completed.len() > KEPT_MAX {
            completed = (0..KEPT_MAX)
                .map(|i| completed[crate::value::cell(i as f64 / KEPT_MAX as f64, completed.len())])
                .collect();
        }
        let values: Vec<f64> = completed
            .iter()
            .map(|(_, measured, _)| measured.value)
            .collect();
        let transform = Transform::new(&values, log);
        let encoding = space.encoding();
        let mut points = Vec::new();
        for (observation, _, _) in &completed {
            let mut point = encoding.encode(&space.snap(&observation.configuration));
            if let Some(coordinate) = point.last_mut() {
                *coordinate = task as f64;
            }
            points.extend(point);
        }
        let objectives: Vec<Measured> =
            completed.iter().map(|(_, measured, _)| *measured).collect();
        let (modelled, variances) = transform.measured(&objectives);
        let data = Data {
            points,
            values: modelled,
            variances,
            weights: completed
                .iter()
                .map(|(observation, _, _)| observation.weight)
                .collect(),
            mean_prior: (0.0, 1.0),
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
            violated: completed.iter().map(|(_, _, violated)| *violated).collect(),
            gp,
            scale: transform.scale(),
        })
    }

    /// Its own expectation at a point of whichever experiment.
    pub(crate) fn mean(&self, point: &[f64]) -> f64 {
        let mut point = point.to_vec();
        if let (Some(here), Some(there)) = (point.last_mut(), self.data.points.last()) {
            *here = *there;
        }
        self.gp.posterior(&point).0
    }

    /// Where its expectation is best of its points that are allowed in `space`, first of those that broke no constraint.
    pub(crate) fn best(&self, space: &Space) -> Option<Vec<f64>> {
        let points = self.data.points.chunks_exact(space.encoding().dimension());
        let here = points.map(|point| {
            let mut point = point.to_vec();
            if let Some(coordinate) = point.last_mut() {
                *coordinate = 0.0;
            }
            point
        });
        here.enumerate()
            .filter(|(_, point)| space.allows(point))
            .map(|(row, point)| (self.violated[row], self.gp.posterior_at(row).0, point))
            .min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
            .map(|(_, _, point)| point)
    }
}
