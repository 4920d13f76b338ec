//! What the objective may be: processes under draws of their hyper-parameters, of equal shares.
//!
//! Few observations seldom say which parameters matter, or whether length scales are short or long,
//! and a choice, where it is wrong, is wrong for many questions. Under draws the search looks where
//! any expects an improvement, and what is recommended is good under all.

use crate::gp::{Gp, VARIANCE_MIN};
use crate::numeric::linalg::{dot, multiply};
use crate::numeric::normal::cdf;

/// At least one process, all of the same observations.
#[derive(Clone, Debug)]
pub(crate) struct Mixture {
    members: Vec<Gp>,
}

impl Mixture {
    /// `None` where there are none.
    pub(crate) fn new(members: Vec<Gp>) -> Option<Self> {
        (!members.is_empty()).then_some(Mixture { members })
    }

    pub(crate) fn members(&self) -> &[Gp] {
        &self.members
    }

    /// How probable each is.
    pub(crate) fn share(&self) -> f64 {
        1.0 / self.members.len() as f64
    }

    /// How many observations it is of.
    pub(crate) fn n(&self) -> usize {
        self.members.first().map_or(0, Gp::n)
    }

    /// Mean and variance at the `i`-th observation's point.
    pub(crate) fn posterior_at(&self, i: usize) -> (f64, f64) {
        self.moments(|gp| gp.posterior_at(i))
    }

    /// Mean and variance of what has these by each process.
    pub(crate) fn moments(&self, of: impl Fn(&Gp) -> (f64, f64)) -> (f64, f64) {
        let (mut mean, mut square) = (0.0, 0.0);
        for gp in &self.members {
            let (own, variance) = of(gp);
            mean += self.share() * own;
            square += self.share() * (variance + own * own);
        }
        (mean, (square - mean * mean).max(VARIANCE_MIN))
    }

    /// The probability that it is lower at `a` than at `b`.
    pub(crate) fn is_lower(&self, a: &[f64], b: &[f64]) -> f64 {
        let by = |gp: &Gp| {
            let (means, covariance) = joint(gp, &[a, b]);
            let variance = covariance[0] + covariance[3] - 2.0 * covariance[1];
            cdf((means[1] - means[0]) / variance.max(VARIANCE_MIN).sqrt())
        };
        self.members.iter().map(by).sum::<f64>() * self.share()
    }
}

/// Posterior means and covariances of a few points.
pub(crate) fn joint(gp: &Gp, points: &[&[f64]]) -> (Vec<f64>, Vec<f64>) {
    let m = points.len();
    let (mut rows, mut solved) = (Vec::new(), Vec::new());
    for point in points {
        let row = gp.row(point);
        solved.push(multiply(&gp.inverse, &row));
        rows.push(row);
    }
    let means = rows
        .iter()
        .zip(points)
        .map(|(row, point)| gp.mean_at(point, row))
        .collect();
    let mut covariance = Vec::with_capacity(m * m);
    for i in 0..m {
        covariance.extend(
            (0..m).map(|j| gp.kernel.between(points[i], points[j]) - dot(&rows[i], &solved[j])),
        );
    }
    (means, covariance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gp::data::Data;
    use crate::gp::hyper::{Basis, Hyper};
    use crate::space::coordinate::Coordinate;

    fn gp(basis: Basis) -> Gp {
        let points: Vec<f64> = (0..6).map(|i| f64::from(i) / 6.0).collect();
        let data = Data {
            values: points.iter().map(|x| (9.0 * x).sin()).collect(),
            variances: vec![0.1; points.len()],
            weights: vec![1.0; points.len()],
            points,
            mean_prior: (0.0, 1.0),
            earlier: Vec::new(),
        };
        Gp::condition(&data, &[Coordinate::Ordered], Hyper::prior_mode(1, basis)).unwrap()
    }

    #[test]
    fn what_processes_disagree_about_is_uncertain_too() {
        let (short, long) = (gp(Basis::Variable), gp(Basis::Logarithm));
        let mixture = Mixture::new(vec![short.clone(), long.clone()]).unwrap();
        for i in 0..6 {
            let [(a, va), (b, vb)] = [&short, &long].map(|gp| gp.posterior_at(i));
            let (mean, variance) = mixture.posterior_at(i);
            assert!((mean - 0.5 * (a + b)).abs() < 1e-12);
            let (within, between) = (0.5 * (va + vb), 0.25 * (a - b).powi(2));
            assert!((variance - within - between).abs() < 1e-9);
        }
        assert!(Mixture::new(Vec::new()).is_none());
    }
}
