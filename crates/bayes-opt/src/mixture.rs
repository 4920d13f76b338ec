//! What the objective may be: processes with different hyper-parameters, each with a share.
//!
//! Few observations seldom say which parameters matter, or whether length scales are short or long, and a choice, where it is
//! wrong, is wrong for many questions. With a share for each the search looks where any expects an improvement, and what is
//! recommended is good under all. Draws of hyper-parameters have equal shares; the shares of processes under their most probable
//! ones follow from how well each foresees the values that were left out ("pseudo-BMA"; Yao, Vehtari, Simpson, Gelman 2018, "Using
//! stacking to average Bayesian predictive distributions").

use crate::gp::{Gp, VARIANCE_MIN};

/// A process with less than this share is left out: it costs as much time as any other.
const SHARE_MIN: f64 = 0.02;

/// Processes and how probable each is; the shares add up to 1.
#[derive(Clone, Debug)]
pub(crate) struct Mixture {
    /// At least one, the greatest share first.
    members: Vec<Member>,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) share: f64,
    pub(crate) gp: Gp,
}

impl Mixture {
    /// A process alone.
    pub(crate) fn of(gp: Gp) -> Self {
        Mixture {
            members: vec![Member { share: 1.0, gp }],
        }
    }

    /// Draws of what the process may be, all as probable. `None` where there are none.
    pub(crate) fn of_draws(draws: Vec<Gp>) -> Option<Self> {
        Mixture::new(draws.into_iter().map(|gp| (0.0, gp)).collect())
    }

    /// Each process of the same observations, with the logarithm of how probable it is, up to a constant. `None` where there are none.
    pub(crate) fn new(mut processes: Vec<(f64, Gp)>) -> Option<Self> {
        processes.sort_by(|a, b| b.0.total_cmp(&a.0));
        let top = processes.first()?.0;
        let total: f64 = processes.iter().map(|(log, _)| (log - top).exp()).sum();
        processes.retain(|(log, _)| (log - top).exp() >= SHARE_MIN * total);
        let total: f64 = processes.iter().map(|(log, _)| (log - top).exp()).sum();
        let members = processes.into_iter().map(|(log, gp)| Member {
            share: (log - top).exp() / total,
            gp,
        });
        let members: Vec<Member> = members.collect();
        (!members.is_empty()).then_some(Mixture { members })
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// How many observations it is of.
    pub(crate) fn n(&self) -> usize {
        self.members.first().map_or(0, |member| member.gp.n())
    }

    /// Mean and variance at the `i`-th observation's point.
    pub(crate) fn posterior_at(&self, i: usize) -> (f64, f64) {
        self.moments(|gp| gp.posterior_at(i))
    }

    /// Mean and variance of what has these by each process.
    pub(crate) fn moments(&self, of: impl Fn(&Gp) -> (f64, f64)) -> (f64, f64) {
        let (mut mean, mut square) = (0.0, 0.0);
        for member in self.members() {
            let (own, variance) = of(&member.gp);
            mean += member.share * own;
            square += member.share * (variance + own * own);
        }
        (mean, (square - mean * mean).max(VARIANCE_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gp::{Basis, Data, Hyper};

    fn gp(basis: Basis) -> Gp {
        let points: Vec<f64> = (0..6).map(|i| f64::from(i) / 6.0).collect();
        let data = Data {
            values: points.iter().map(|x| (9.0 * x).sin()).collect(),
            variances: vec![0.1; points.len()],
            weights: vec![1.0; points.len()],
            points,
            mean_prior: (0.0, 1.0),
        };
        Gp::condition(&data, &[false], Hyper::prior_mode(1, basis)).unwrap()
    }

    #[test]
    fn shares_follow_the_evidence_and_moments_the_shares() {
        let (short, long) = (gp(Basis::Variable), gp(Basis::Logarithm));
        let mixture = Mixture::new(vec![(-1.0, short.clone()), (0.0, long.clone())]).unwrap();
        let shares: Vec<f64> = mixture.members().map(|member| member.share).collect();
        let odds = 1.0_f64.exp();
        assert!(
            (shares[0] - odds / (1.0 + odds)).abs() < 1e-12,
            "{shares:?}"
        );
        assert!((shares[0] + shares[1] - 1.0).abs() < 1e-12, "{shares:?}");
        for i in 0..6 {
            let [(a, va), (b, vb)] = [&long, &short].map(|gp| gp.posterior_at(i));
            let (mean, variance) = mixture.posterior_at(i);
            assert!((mean - shares[0] * a - shares[1] * b).abs() < 1e-12);
            // What the processes disagree about is uncertainty too.
            let within = shares[0] * va + shares[1] * vb;
            let between = shares[0] * shares[1] * (a - b).powi(2);
            assert!((variance - within - between).abs() < 1e-9);
        }
    }

    #[test]
    fn what_is_improbable_is_left_out() {
        let two = || vec![(0.0, gp(Basis::Variable)), (-5.0, gp(Basis::Logarithm))];
        let mixture = Mixture::new(two()).unwrap();
        assert_eq!(mixture.len(), 1);
        assert_eq!(
            mixture.posterior_at(2),
            Mixture::of(gp(Basis::Variable)).posterior_at(2)
        );
        assert!(Mixture::new(Vec::new()).is_none());
    }
}
