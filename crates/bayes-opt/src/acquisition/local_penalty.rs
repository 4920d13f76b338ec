//! Keeps what is asked at once apart where no objective is modelled: there nothing else tells a
//! pending point's surroundings from any other place, and a batch would be one point over and over.

use crate::numeric::linalg::add_scaled;

/// How far a pending point reaches, in shares of every range (the deviation of a normal density). A
/// choice of this crate.
const REACH: f64 = 0.1;
/// The least squared distance, in reaches: at the point itself the logarithm is −∞.
const DISTANCE_SQUARE_MIN: f64 = 1e-12;

/// The pending points: local penalties (González, Dai, Hennig, Lawrence 2016, "Batch Bayesian
/// optimization via local penalization", in its idea).
#[derive(Clone, Debug, Default)]
pub(crate) struct Apart {
    pending: Vec<Vec<f64>>,
}

impl Apart {
    pub(crate) fn from(pending: &[Vec<f64>]) -> Self {
        Apart {
            pending: pending.to_vec(),
        }
    }

    /// The logarithm of the share that is left of a point's worth; its gradient is added to
    /// `gradient` where one is given.
    pub(crate) fn log(&self, x: &[f64], mut gradient: Option<&mut [f64]>) -> f64 {
        let mut total = 0.0;
        for point in &self.pending {
            let away: Vec<f64> = x.iter().zip(point).map(|(x, p)| (x - p) / REACH).collect();
            let square: f64 = away.iter().map(|away| away * away).sum();
            let square = square.max(DISTANCE_SQUARE_MIN);
            let share = -(-0.5 * square).exp_m1();
            total += share.ln();
            if let Some(gradient) = gradient.as_deref_mut() {
                add_scaled(gradient, (1.0 - share) / share / REACH, &away);
            }
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_difference_quotients() {
        let apart = Apart::from(&[vec![0.3, 0.5], vec![0.45, 0.4]]);
        let at = [0.38, 0.42];
        let mut gradient = [0.0; 2];
        apart.log(&at, Some(&mut gradient));
        for k in 0..2 {
            let moved = |step: f64| {
                let mut x = at;
                x[k] += step;
                apart.log(&x, None)
            };
            let quotient = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            assert!((quotient - gradient[k]).abs() < 1e-6);
        }
        assert!(apart.log(&[0.3, 0.5], None) < -25.0 && apart.log(&[0.9, 0.9], None) > -1e-3);
        assert_eq!(Apart::default().log(&at, None), 0.0);
    }
}
