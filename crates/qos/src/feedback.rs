//! Tokens follow the measured tail latency: a controller that holds the worst tenant just below
//! its objective (iso-latency; Lo et al., "Towards energy proportionality for large-scale
//! latency-critical workloads", ISCA'14).

/// The tail that the controller steers to, as a share of the objective: the least and the most. The
/// distance to the objective covers the scatter of the windows' 95th percentiles, which differs
/// from device to device, and is found by stochastic approximation (Robbins and Monro, 1951).
const AIM: (f64, f64) = (0.5, 0.9);
/// The share of steps that may find the objective in danger.
const ABOVE_SHARE: f64 = 0.02;
/// The objective is in danger once so many of the last second's reads were above it. At 0.05 it is
/// broken.
const LATE: f64 = 0.04;
/// Steps of a second.
const SECOND: usize = 10;
/// How far one window moves the aim, as a logarithm.
const AIM_STEP: f64 = 0.1;
/// Between these shares of the aim nothing changes.
const HOLD: (f64, f64) = (0.94, 1.04);
/// The smallest and the largest share of the calibrated rate that is given out. Above the
/// calibration the device is in a region that nobody measured at this latency.
const FACTOR: (f64, f64) = (0.1, 1.3);
/// A step up where nobody knows what the device bears: 2 % a second.
const UP: f64 = 0.002;
/// Steps without danger before the first such step, the least and the most. If the objective is in
/// danger again within twice that time, the time doubles: each such search costs a second, and on
/// most devices what was too much once stays too much for a while.
const WAIT: (u32, u32) = (10, 640);
/// The largest and the smallest step down.
const DOWN_MOST: f64 = 0.7;
const DOWN_LEAST: f64 = 0.98;
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
    aim: f64,
    /// Up to here the way up is quick.
    known: f64,
    /// Steps in a row that found the objective in danger, and the factor before the first of them.
    above: u32,
    before: f64,
    /// Steps since the objective was in danger, and how many of them the rate waits for before it
    /// rises above what is known.
    calm: u32,
    wait: u32,
    /// Share of a second's reads that were above the objective in each of the last steps, since the
    /// last one that found it in danger.
    late_s: [f64; SECOND],
}

/// What the windows that ended since the last step showed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// The worst ratio of measured 95th percentile to objective; `None`: nothing was measured.
    pub(crate) worst: Option<f64>,
    /// The most of a second's reads that were above the objective, as a share.
    pub(crate) late_s: f64,
}

impl Feedback {
    pub(crate) fn new() -> Self {
        Self {
            factor: 1.0,
            aim: AIM.1,
            known: 0.0,
            above: 0,
            before: 1.0,
            calm: 0,
            wait: WAIT.0,
            late_s: [0.0; SECOND],
        }
    }

    pub(crate) fn factor(&self) -> f64 {
        self.factor
    }

    /// Takes what was measured since the last step. Nothing measured changes nothing.
    pub(crate) fn step(&mut self, seen: Seen) {
        self.late_s.rotate_right(1);
        self.late_s[0] = seen.late_s;
        let Some(worst) = seen.worst.filter(|worst| worst.is_finite()) else {
            return;
        };
        self.calm = self.calm.saturating_add(1);
        let is_above = self.late_s.iter().sum::<f64>() > LATE;
        if is_above {
            // What was before the step down says nothing about what follows it.
            self.late_s = [0.0; SECOND];
        }
        self.above = if is_above { self.above + 1 } else { 0 };
        if self.above == 1 {
            self.before = self.factor;
            if worst > STALL {
                self.known = self.known.max(self.factor);
            } else {
                self.known = KNOWN * self.factor;
                let is_soon = self.calm < 2 * self.wait;
                self.wait = if is_soon {
                    (2 * self.wait).min(WAIT.1)
                } else {
                    WAIT.0
                };
            }
        } else if self.above > STALL_STEPS {
            self.known = self.known.min(KNOWN * self.before);
        }
        if is_above {
            self.calm = 0;
        }
        // A row counts once, because the rate is on its way down then. And a device that stands
        // still says nothing about the rate.
        if self.above <= 1 && worst <= STALL {
            let step = ABOVE_SHARE - f64::from(self.above);
            self.aim = (self.aim * (AIM_STEP * step).exp()).clamp(AIM.0, AIM.1);
        }
        let factor = if is_above {
            self.factor * (self.aim / worst).clamp(DOWN_MOST, DOWN_LEAST)
        } else if worst > HOLD.1 * self.aim {
            self.factor * DOWN_LEAST
        } else if worst < HOLD.0 * self.aim {
            let up = if self.calm >= self.wait { UP } else { 0.0 };
            self.factor + up.max(BACK * (self.known - self.factor))
        } else {
            self.factor
        };
        self.factor = factor.clamp(FACTOR.0, FACTOR.1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// A window of a tenth of a second with this ratio and exponential latencies.
    fn seen(ratio: f64) -> Seen {
        Seen {
            worst: Some(ratio),
            late_s: 0.1 * 0.05_f64.powf(1.0 / ratio),
        }
    }

    fn broken_seconds(late_s: &[f64]) -> usize {
        let seconds = late_s.chunks(SECOND);
        let broken = seconds.filter(|second| second.iter().sum::<f64>() > 0.05);
        broken.count()
    }

    proptest! {
        /// Whatever the device's tail is as a power of the rate, the controller settles below the
        /// objective and near it.
        #[test]
        fn it_settles_below_the_objective(scale in 0.7_f64..3.0, power in 0.5_f64..4.0) {
            let mut feedback = Feedback::new();
            let tail = |factor: f64| scale * factor.powf(power);
            for _ in 0..2000 {
                feedback.step(seen(tail(feedback.factor())));
            }
            for _ in 0..100 {
                feedback.step(seen(tail(feedback.factor())));
                let at = tail(feedback.factor());
                prop_assert!(at < 1.0 || feedback.factor() == FACTOR.0, "{at}");
                prop_assert!(at > 0.8 || feedback.factor() == FACTOR.1, "{at}");
            }
        }
    }

    #[test]
    fn a_stall_costs_less_than_a_second_and_a_slower_device_is_believed() {
        let mut feedback = Feedback::new();
        feedback.step(seen(30.0));
        feedback.step(seen(4.0));
        assert!(feedback.factor() < 0.5);
        for _ in 0..8 {
            feedback.step(seen(0.5));
        }
        assert!(feedback.factor() > 0.99, "{}", feedback.factor());
        // Above 0.6 the tail is beyond the objective, from now on.
        let mut late_s = Vec::new();
        for _ in 0..1000 {
            let window = seen(if feedback.factor() > 0.6 { 1.2 } else { 0.8 });
            feedback.step(window);
            late_s.push(window.late_s);
        }
        assert_eq!(broken_seconds(&late_s[100..]), 0);
        assert!(feedback.factor() > 0.5, "{}", feedback.factor());
    }

    /// The more the windows scatter, the further from the objective the rate stays.
    #[test]
    fn a_device_whose_tail_scatters_breaks_the_objective_seldom() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut factors = Vec::new();
        for scatter in [0.02, 0.2, 0.5] {
            let mut feedback = Feedback::new();
            let mut late_s = Vec::new();
            for _ in 0..20_000 {
                // Of two powers of e, each between minus and plus the scatter.
                let noise: f64 = (0..2).map(|_| random.random_range(-scatter..scatter)).sum();
                let window = seen(feedback.factor() * noise.exp());
                feedback.step(window);
                late_s.push(window.late_s);
            }
            let share = broken_seconds(&late_s[5000..]) as f64 / 1500.0;
            assert!(share <= 0.01, "{share} at {scatter}");
            factors.push(feedback.factor());
        }
        assert!(factors.is_sorted_by(|a, b| a > b), "{factors:?}");
    }

    /// Above a rate that nobody told it every tenth window stands above the objective, long enough
    /// to break a second. The search for that rate becomes rare.
    #[test]
    fn what_was_too_much_is_tried_again_more_and_more_seldom() {
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let mut feedback = Feedback::new();
        let mut late_s = Vec::new();
        let mut sum = 0.0;
        for step in 0..10_000 {
            let is_bad = feedback.factor() > 0.8 && random.random_bool(0.1);
            let window = seen(if is_bad { 2.9 } else { 0.2 });
            feedback.step(window);
            late_s.push(window.late_s);
            sum += if step < 2000 { 0.0 } else { feedback.factor() };
        }
        let broken = broken_seconds(&late_s[2000..]);
        assert!(broken <= 8, "{broken} of 800 seconds");
        let mean = sum / 8000.0;
        assert!((0.7..0.8).contains(&mean), "{mean}");
    }

    #[test]
    fn nothing_measured_changes_nothing() {
        let mut feedback = Feedback::new();
        feedback.step(Seen::default());
        feedback.step(Seen {
            worst: Some(f64::NAN),
            late_s: 0.0,
        });
        assert_eq!(feedback, Feedback::new());
    }
}
