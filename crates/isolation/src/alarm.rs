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
/// A threshold falls by this factor, down to what was usual meanwhile: as CPI² (Zhang et al.,
/// EuroSys 2013, section 3.1) forgets, which weights what it knew of a job by 0.9 a day.
const FALL: f64 = 0.9;
/// It falls after so much time without harm and without an alarm. An alarm doubles the time, up to
/// the longest, as with levels that did harm ([`crate::harm`]). One alarm raises by as much as two
/// and a half falls take away. So once the threshold has climbed to a signal that does no harm,
/// there is an alarm in two hours at most, and no limit cycle.
const WAIT_FIRST_S: f64 = 60.0;
const WAIT_MAX_S: f64 = 3600.0;
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

/// A threshold that rises with what is usual and with each alarm, and falls again when it was quiet
/// for long enough.
#[derive(Clone, Copy, Debug)]
struct Threshold {
    level: f64,
    /// The highest that was usual since it last fell or rose: it does not fall below that.
    usual: f64,
    /// Time without harm and without an alarm since it last fell or rose.
    quiet_s: f64,
    /// It falls after so much of it.
    wait_s: f64,
}

impl Threshold {
    fn first(usual: f64) -> Self {
        Self {
            level: usual,
            usual,
            quiet_s: 0.0,
            wait_s: WAIT_FIRST_S,
        }
    }

    /// A window without harm and without an alarm.
    fn learn(&mut self, usual: f64, quiet_s: f64) {
        self.usual = self.usual.max(usual);
        if usual > self.level {
            // A rise that has just begun is not usual yet.
            self.level = usual.min(RAISE * self.level);
            self.begin_wait(usual);
            return;
        }
        self.quiet_s += quiet_s;
        if self.quiet_s >= self.wait_s {
            self.level = (FALL * self.level).max(self.usual);
            self.begin_wait(usual);
        }
    }

    /// An alarm that may be false: the next one needs more, and the way back down takes longer.
    fn raise(&mut self) {
        self.level *= RAISE;
        self.wait_s = (2.0 * self.wait_s).min(WAIT_MAX_S);
        self.begin_wait(LEAST);
    }

    fn begin_wait(&mut self, usual: f64) {
        self.quiet_s = 0.0;
        self.usual = usual;
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alarm {
    /// `None` until a window without harm has shown what is usual.
    thresholds: [Option<Threshold>; SIGNALS],
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
            let level = self.thresholds[at].map(|threshold| threshold.level);
            let is_above = level.is_some_and(|level| now[at] > level);
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
            if let Some(threshold) = threshold
                && steps >= STEPS
            {
                threshold.raise();
            }
        }
        self.calm();
    }

    /// What was seen before does not count.
    pub(crate) fn calm(&mut self) {
        self.steps = [0; SIGNALS];
    }

    /// There was harm: the time without it begins anew.
    pub(crate) fn harmed(&mut self) {
        for threshold in self.thresholds.iter_mut().flatten() {
            threshold.begin_wait(threshold.usual);
        }
    }

    /// A window without harm shows what is usual. `quiet_s` is its length if best-effort work ran:
    /// only then it says that a lower threshold would do.
    pub(crate) fn learn(&mut self, worst: Signals, quiet_s: f64) {
        for (threshold, worst) in self.thresholds.iter_mut().zip(worst) {
            let usual = (FACTOR * worst).max(LEAST);
            match threshold {
                Some(threshold) => threshold.learn(usual, quiet_s),
                None => *threshold = Some(Threshold::first(usual)),
            }
        }
    }

    /// The threshold of a signal, for tests.
    #[cfg(test)]
    pub(crate) fn level(&self, at: usize) -> f64 {
        self.thresholds[at].map_or(f64::INFINITY, |threshold| threshold.level)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        alarm.learn([0.01, 0.2], 15.0);
        assert!(!alarm.is_raised(&seen(0.04, 0.5), true));
        // A wait for a CPU far below the usual wait for the disk.
        assert!(!alarm.is_raised(&seen(0.1, 0.0), true));
        assert!(alarm.is_raised(&seen(0.1, 0.0), true));
        alarm.take(2.0);
        assert_eq!(alarm.taken_from, Some(2.0));
        assert!((alarm.level(0) - RAISE * LEAST).abs() < 1e-9);
        assert!((alarm.level(1) - 0.6).abs() < 1e-9);
        alarm.taken_from = None;
        assert!(!alarm.is_raised(&seen(0.0, 0.7), true));
        assert!(alarm.is_raised(&seen(0.0, 0.7), true));
        assert!(!alarm.is_raised(&seen(0.0, 0.7), false));
    }

    /// Windows without harm in which the wait for a CPU was so high.
    fn quiet(alarm: &mut Alarm, waiting: f64, windows: usize) {
        for _ in 0..windows {
            alarm.learn([waiting, 0.0], 15.0);
        }
    }

    #[test]
    fn a_threshold_falls_again_after_a_time_without_harm_and_not_below_what_is_usual() {
        let mut alarm = Alarm::default();
        quiet(&mut alarm, 0.1, 1);
        assert!((alarm.level(0) - 0.3).abs() < 1e-9);
        // A minute of another usual: one fall. A window in which it was higher counts for the
        // next minute.
        quiet(&mut alarm, 0.02, 4);
        assert!((alarm.level(0) - 0.3).abs() < 1e-9, "{}", alarm.level(0));
        quiet(&mut alarm, 0.02, 4);
        assert!((alarm.level(0) - 0.27).abs() < 1e-9, "{}", alarm.level(0));
        // Harm begins the minute anew.
        quiet(&mut alarm, 0.02, 3);
        alarm.harmed();
        quiet(&mut alarm, 0.02, 3);
        assert!((alarm.level(0) - 0.27).abs() < 1e-9);
        // Without best-effort work a low wait says nothing.
        for _ in 0..1000 {
            alarm.learn([0.0, 0.0], 0.0);
        }
        assert!((alarm.level(0) - 0.27).abs() < 1e-9);
        quiet(&mut alarm, 0.02, 1000);
        assert!((alarm.level(0) - 0.06).abs() < 1e-9, "{}", alarm.level(0));
        quiet(&mut alarm, 0.0, 1000);
        assert!((alarm.level(0) - LEAST).abs() < 1e-9, "{}", alarm.level(0));
    }

    #[test]
    fn each_alarm_doubles_the_wait_up_to_an_hour() {
        let mut alarm = Alarm::default();
        quiet(&mut alarm, 0.0, 1);
        let mut level = LEAST;
        for wait_s in [120.0_f64, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0] {
            for _ in 0..STEPS {
                alarm.is_raised(&seen(1.0, 0.0), true);
            }
            alarm.take(1.0);
            alarm.taken_from = None;
            level *= RAISE;
            assert!((alarm.level(0) - level).abs() < 1e-9);
            let mut quiet_s = 0.0;
            while (alarm.level(0) - level).abs() < 1e-9 && quiet_s <= 2.0 * WAIT_MAX_S {
                quiet(&mut alarm, 0.0, 1);
                quiet_s += 15.0;
            }
            assert!((quiet_s - wait_s).abs() < 1e-9, "{quiet_s} {wait_s}");
            level = alarm.level(0);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A signal that rises now and then without any harm: false alarms die out to one in two
        /// hours, and what is learnt stays bounded. Between alarms that are less than two hours
        /// apart there is one fall at most. So the threshold climbs by 17 % with each, and has
        /// reached the highest burst here, 40 times the least threshold, within 24 of them.
        #[test]
        fn false_alarms_die_out(
            usual in 0.0f64..0.2,
            burst in 0.05f64..2.0,
            pause_windows in 1usize..400,
            long_bursts in any::<bool>(),
        ) {
            let mut alarm = Alarm::default();
            let (window_s, hours) = (15.0, 96.0);
            let mut times = Vec::new();
            let mut window = 0_usize;
            let mut now_s = 0.0;
            while now_s < 3600.0 * hours {
                now_s += window_s;
                window += 1;
                let has_burst = window.is_multiple_of(pause_windows);
                let steps = if has_burst && long_bursts { 4 } else { usize::from(has_burst) * 2 };
                let is_raised = (0..steps).any(|_| alarm.is_raised(&seen(burst, 0.0), true));
                if is_raised {
                    alarm.take(1.0);
                    times.push(now_s);
                    // The tail shows no harm.
                    alarm.taken_from = None;
                    alarm.calm();
                    continue;
                }
                alarm.calm();
                let worst = if has_burst { burst } else { usual };
                alarm.learn([worst, 0.0], window_s);
                prop_assert!(alarm.level(0) >= LEAST);
                let most = (FACTOR * burst.max(usual)).max(LEAST) * RAISE;
                prop_assert!(alarm.level(0) <= most + 1e-9, "{} {most}", alarm.level(0));
            }
            let late = times.iter().filter(|at| **at > 3600.0 * (hours - 24.0)).count();
            prop_assert!(late <= 13, "{late} alarms in the last day, {} in all", times.len());
            prop_assert!(times.len() <= 80, "{} alarms", times.len());
        }
    }

    #[test]
    fn throttled_periods_are_a_wait() {
        let mut throttled = seen(0.0, 0.0);
        throttled.services[0].throttled_share = 0.5;
        assert_eq!(signals(&throttled.services[0]), [0.5, 0.0]);
    }
}
