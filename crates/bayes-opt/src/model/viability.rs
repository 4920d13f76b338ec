//! Which points crash: the labels, the regression that begins, and the classifier.

use super::fitter::{Fitter, Memory};
use crate::gp::crash_classifier;
use crate::gp::data::Data;
use crate::gp::hyper::Basis;
use crate::model::feasibility::{Demand, Feasibility};
use crate::observation::{EncodedObservation, ObservedOutcome};
use crate::space::encode::Encoding;

/// Prior mean and deviation of the labels of viability, where 1 survives and −1 crashes, for the
/// regression that finds which parameters matter to it. A choice of this crate.
const VIABILITY_PRIOR: (f64, f64) = (0.6, 0.5);

/// Where the classifier's hyper-parameters are kept, beside those of the regression that they start
/// from.
const CLASSIFIER: &str = "viability classifier";

impl Fitter<'_> {
    pub(super) fn viability(&mut self, told: &[EncodedObservation]) -> Option<Feasibility> {
        let labels = viability_data(told);
        let rough = self.hyper("viability", Basis::Variable, &standard(&labels));
        let fitted_to = self
            .hypers
            .get("viability")
            .map_or(0, |(_, fitted_to)| *fitted_to);
        // A classifier is chosen anew whenever the regression was.
        let gp = match self.memory.get(CLASSIFIER) {
            Some((hyper, chosen_at)) if *chosen_at == fitted_to => {
                crash_classifier::condition(&labels, self.coordinates, hyper.clone())
            }
            _ => {
                let many = self.are_many(told.len());
                crash_classifier::choose(&labels, self.coordinates, &rough, many)
            }
        }?;
        self.hypers
            .insert(CLASSIFIER.to_owned(), (gp.hyper.clone(), fitted_to));
        Some(Feasibility {
            gp,
            demand: Demand::Survives,
        })
    }
}

fn viability_data(told: &[EncodedObservation]) -> Data {
    let label = |told: &EncodedObservation| {
        if matches!(told.observation.outcome, ObservedOutcome::Crashed) {
            -1.0
        } else {
            1.0
        }
    };
    Data {
        points: told
            .iter()
            .flat_map(|told| told.point.iter().copied())
            .collect(),
        values: told.iter().map(label).collect(),
        variances: vec![0.0; told.len()],
        weights: told.iter().map(|told| told.observation.weight).collect(),
        mean_prior: VIABILITY_PRIOR,
        earlier: Vec::new(),
    }
}

/// Labels with deviation 1, as the priors of a regression expect.
fn standard(labels: &Data) -> Data {
    let n = labels.values.len() as f64;
    let mean = labels.values.iter().sum::<f64>() / n;
    let deviation = (1.0 - mean * mean).max(1.0 / n).sqrt();
    let mut data = labels.clone();
    data.values.iter_mut().for_each(|value| *value /= deviation);
    data.mean_prior = (VIABILITY_PRIOR.0 / deviation, VIABILITY_PRIOR.1 / deviation);
    data
}

/// Viability alone, for when nothing completed yet.
pub(crate) fn survival(told: &[EncodedObservation], encoding: &Encoding) -> Option<Feasibility> {
    let mut fitter = Fitter {
        coordinates: encoding.coordinates(),
        quadratic: encoding.quadratic,
        memory: &Memory::new(),
        seed: 0,
        hypers: Memory::new(),
    };
    fitter.viability(told)
}
