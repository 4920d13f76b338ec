//! Tokens follow the measured tail latency: a controller that holds the worst tenant just below
//! its objective (iso-latency; Lo et al., "Towards energy proportionality for large-scale
//! latency-critical workloads", ISCA'14).

/// The tail that the controller steers to, as a share of the objective. The distance covers the
/// scatter of a second's 95th percentile.
const TARGET: f64 = 0.9;
/// Between these nothing changes.
const HOLD: (f64, f64) = (0.85, 0.94);
/// The smallest and the largest share of the calibrated rate that is given out. Above the
/// calibration the device is in a region that nobody measured at this latency.
const FACTOR: (f64, f64) = (0.1, 1.3);
/// A step up. It is small, so that the tail passes the objective slowly and seldom.
const UP: f64 = 0.005;
/// The largest step down.
const DOWN_MOST: f64 = 0.7;

/// The share of the calibrated rate that is given out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Feedback {
    factor: f64,
}

impl Feedback {
    pub(crate) fn new() -> Self {
        Self { factor: 1.0 }
    }

    pub(crate) fn factor(&self) -> f64 {
        self.factor
    }

    /// Takes the worst ratio of measured 95th percentile to objective since the last step; `None`:
    /// nothing was measured, which changes nothing.
    pub(crate) fn step(&mut self, worst: Option<f64>) {
        let Some(worst) = worst.filter(|worst| worst.is_finite()) else {
            return;
        };
        let factor = if worst > 1.0 {
            self.factor * (TARGET / worst).max(DOWN_MOST)
        } else if worst > HOLD.1 {
            self.factor * 0.98
        } else if worst < HOLD.0 {
            self.factor + UP
        } else {
            self.factor
        };
        self.factor = factor.clamp(FACTOR.0, FACTOR.1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the device's tail is as a power of the rate, the controller settles below the
        /// objective and near it.
        #[test]
        fn it_settles_below_the_objective(scale in 0.7_f64..3.0, power in 0.5_f64..4.0) {
            let mut feedback = Feedback::new();
            let tail = |factor: f64| scale * factor.powf(power);
            for _ in 0..400 {
                feedback.step(Some(tail(feedback.factor())));
            }
            for _ in 0..100 {
                feedback.step(Some(tail(feedback.factor())));
                let at = tail(feedback.factor());
                prop_assert!(at < 1.0 || feedback.factor() == FACTOR.0, "{at}");
                prop_assert!(at > 0.8 || feedback.factor() == FACTOR.1, "{at}");
            }
        }
    }

    #[test]
    fn nothing_measured_changes_nothing() {
        let mut feedback = Feedback::new();
        feedback.step(None);
        feedback.step(Some(f64::NAN));
        assert_eq!(feedback, Feedback::new());
    }
}
