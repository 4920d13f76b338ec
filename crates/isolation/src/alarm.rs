//! The fast loop of `slackline`: what the kernel counts rises before the tail can tell. Each signal
//! has a threshold of its own, so that a service that always waits for its disk hides no wait for a
//! CPU.

use crate::observation::{MachineObservation, ServiceSeen};

/// The threshold: so many times the highest share seen in a window without harm.
const FACTOR: f64 = 3.0;
/// The threshold is never below this share.
pub(crate) const LEAST: f64 = 0.05;
/// A false alarm raises the threshold by this factor.
const RAISE: f64 = 1.3;
/// Steps in a row above the threshold.
const STEPS: u32 = 2;

const SIGNALS: usize = 2;

/// Of a service: the wait for a CPU (or the share of throttled periods), and the share of the time
/// for which it stood still for memory or a disk.
pub(crate) type Signals = [f64; SIGNALS];

pub(crate) fn signals(service: &ServiceSeen) -> Signals {
    let waiting = service.waiting_share.unwrap_or(0.0);
    [
        waiting.max(service.throttled_share),
        service.stalled_share.unwrap_or(0.0),
    ]
}

/// The higher of each.
pub(crate) fn highest(one: Signals, other: Signals) -> Signals {
    std::array::from_fn(|at| one[at].max(other[at]))
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alarm {
    /// `None` until a window without harm has shown what is usual.
    pub(crate) thresholds: [Option<f64>; SIGNALS],
    steps: [u32; SIGNALS],
    /// The budget that an alarm took away.
    pub(crate) taken_from: Option<f64>,
}

impl Alarm {
    /// Whether a signal has been above its threshold for some steps. Without a budget there is
    /// nothing to take away.
    pub(crate) fn is_raised(&mut self, seen: &MachineObservation, has_budget: bool) -> bool {
        let now = seen.services.iter().map(signals);
        let now = now.fold(Signals::default(), highest);
        for (at, steps) in self.steps.iter_mut().enumerate() {
            let is_above = self.thresholds[at].is_some_and(|threshold| now[at] > threshold);
            *steps = if is_above && has_budget {
                *steps + 1
            } else {
                0
            };
        }
        self.steps.iter().any(|steps| *steps >= STEPS) && self.taken_from.is_none()
    }

    /// The budget is taken away. It may have been a false alarm: the next one needs more.
    pub(crate) fn take(&mut self, budget: f64) {
        self.taken_from = Some(budget);
        for (threshold, steps) in self.thresholds.iter_mut().zip(self.steps) {
            if steps >= STEPS {
                *threshold = threshold.map(|known| known * RAISE);
            }
        }
        self.calm();
    }

    /// What was seen before does not count.
    pub(crate) fn calm(&mut self) {
        self.steps = [0; SIGNALS];
    }

    /// A window without harm shows what is usual.
    pub(crate) fn learn(&mut self, worst: Signals) {
        for (threshold, worst) in self.thresholds.iter_mut().zip(worst) {
            let usual = (FACTOR * worst).max(LEAST);
            // A rise that has just begun is not usual yet.
            let raised = |known: f64| usual.clamp(known, RAISE * known);
            *threshold = Some(threshold.map_or(usual, raised));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(waiting: f64, stalled: f64) -> MachineObservation {
        MachineObservation {
            services: vec![ServiceSeen {
                waiting_share: Some(waiting),
                stalled_share: Some(stalled),
                ..ServiceSeen::without_data("web", 5.0)
            }],
            ..MachineObservation::of_cores(4.0)
        }
    }

    #[test]
    fn each_signal_has_its_own_threshold_and_needs_two_steps() {
        let mut alarm = Alarm::default();
        // Nothing is usual yet.
        assert!(!alarm.is_raised(&seen(1.0, 1.0), true));
        alarm.learn([0.01, 0.2]);
        assert!(!alarm.is_raised(&seen(0.04, 0.5), true));
        // A wait for a CPU far below the usual wait for the disk.
        assert!(!alarm.is_raised(&seen(0.1, 0.0), true));
        assert!(alarm.is_raised(&seen(0.1, 0.0), true));
        alarm.take(2.0);
        assert_eq!(alarm.taken_from, Some(2.0));
        assert!((alarm.thresholds[0].unwrap() - RAISE * LEAST).abs() < 1e-9);
        assert!((alarm.thresholds[1].unwrap() - 0.6).abs() < 1e-9);
        alarm.taken_from = None;
        assert!(!alarm.is_raised(&seen(0.0, 0.7), true));
        assert!(alarm.is_raised(&seen(0.0, 0.7), true));
        assert!(!alarm.is_raised(&seen(0.0, 0.7), false));
    }

    #[test]
    fn throttled_periods_are_a_wait() {
        let mut throttled = seen(0.0, 0.0);
        throttled.services[0].throttled_share = 0.5;
        assert_eq!(signals(&throttled.services[0]), [0.5, 0.0]);
    }
}
