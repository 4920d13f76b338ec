//! The values of a constraint, as its process models them.

use crate::gp::data::Data;
use crate::observation::{EncodedObservation, MeasuredValue};

/// How far below 0 a constraint value of exactly 0 counts, in typical sizes: counts such as
/// "throttled periods" are never negative, and 0 is plainly feasible, not a toss-up.
const ZERO_MARGIN: f64 = 0.5;
/// The smallest typical size, of which ratios are still numbers. A choice of this crate.
const SIZE_MIN: f64 = 1e-100;

/// A constraint's values with 0 kept in its place: divided by their typical size, then by the
/// symmetric logarithm (Eriksson & Poloczek 2021, "Scalable constrained Bayesian optimization",
/// section 4), which draws the border apart and far violations together.
pub(super) fn constraint_data(measured: &[(&EncodedObservation, MeasuredValue)]) -> Data {
    let mut sizes: Vec<f64> = measured
        .iter()
        .map(|(_, measured)| measured.value.abs())
        .filter(|size| *size > 0.0)
        .collect();
    sizes.sort_by(f64::total_cmp);
    let typical = sizes
        .get(sizes.len() / 2)
        .map_or(1.0, |size| size.max(SIZE_MIN));
    let squeeze = |value: f64| {
        if value == 0.0 {
            -ZERO_MARGIN
        } else {
            (value / typical).signum() * (value / typical).abs().ln_1p()
        }
    };
    let values: Vec<f64> = measured
        .iter()
        .map(|(_, measured)| squeeze(measured.value))
        .collect();
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let deviation = (values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (n - 1.0).max(1.0))
    .sqrt();
    let scale = if deviation > 1e-9 { deviation } else { 1.0 };
    let variance = |measured: &MeasuredValue| {
        let slope = 1.0 / (typical * (1.0 + (measured.value / typical).abs()) * scale);
        measured.variance.unwrap_or(0.0) * slope * slope
    };
    Data {
        points: measured
            .iter()
            .flat_map(|(told, _)| told.point.iter().copied())
            .collect(),
        variances: measured
            .iter()
            .map(|(_, measured)| variance(measured))
            .collect(),
        weights: measured
            .iter()
            .map(|(told, _)| told.observation.weight)
            .collect(),
        values: values.iter().map(|value| value / scale).collect(),
        mean_prior: (mean / scale, 1.0),
        earlier: Vec::new(),
    }
}
