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
/// A step up where nobody knows what the device bears. It is small, so that the tail passes the
/// objective slowly and seldom.
const UP: f64 = 0.005;
/// The largest step down.
const DOWN_MOST: f64 = 0.7;
/// A tail that passes the objective by so much at once is that of a device that stood still: the
/// rate rises too slowly for that.
const STALL: f64 = 3.0;
/// A stall is over after so many steps. What lasts longer is a slower device.
const STALL_STEPS: u32 = 3;
/// After a stall the way leads back to where the factor was, otherwise to this share of it (as the
/// congestion control of TCP has it; Ha et al., "CUBIC", 2008). Each step takes the second share of
/// the way.
const KNOWN: f64 = 0.9;
const BACK: f64 = 0.5;

/// The share of the calibrated rate that is given out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Feedback {
    factor: f64,
    /// Up to here the way up is quick.
    known: f64,
    /// Steps in a row with a tail above the objective, and the factor before the first of them.
    above: u32,
    before: f64,
}

impl Feedback {
    pub(crate) fn new() -> Self {
        Self {
            factor: 1.0,
            known: 0.0,
            above: 0,
            before: 1.0,
        }
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
        let is_above = worst > 1.0;
        self.above = if is_above { self.above + 1 } else { 0 };
        if self.above == 1 {
            self.before = self.factor;
            self.known = match worst > STALL {
                true => self.known.max(self.factor),
                false => KNOWN * self.factor,
            };
        } else if self.above > STALL_STEPS {
            self.known = self.known.min(KNOWN * self.before);
        }
        let factor = if is_above {
            self.factor * (TARGET / worst).max(DOWN_MOST)
        } else if worst > HOLD.1 {
            self.factor * 0.98
        } else if worst < HOLD.0 {
            self.factor + UP.max(BACK * (self.known - self.factor))
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
    fn a_stall_costs_less_than_a_second_and_a_slower_device_is_believed() {
        let mut feedback = Feedback::new();
        feedback.step(Some(30.0));
        feedback.step(Some(4.0));
        assert!(feedback.factor() < 0.5);
        for _ in 0..8 {
            feedback.step(Some(0.5));
        }
        assert!(feedback.factor() > 0.99, "{}", feedback.factor());
        // Above 0.6 the tail is beyond the objective, from now on.
        let mut above = 0;
        for step in 0..1000 {
            let is_above = feedback.factor() > 0.6;
            feedback.step(Some(if is_above { 1.2 } else { 0.8 }));
            above += u32::from(is_above && step >= 100);
        }
        assert!(above <= 90, "{above}");
    }

    #[test]
    fn nothing_measured_changes_nothing() {
        let mut feedback = Feedback::new();
        feedback.step(None);
        feedback.step(Some(f64::NAN));
        assert_eq!(feedback, Feedback::new());
    }
}
