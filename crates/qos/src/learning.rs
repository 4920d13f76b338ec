//! The curve goes on being learnt while the device serves, and a calibration that no longer holds
//! is noticed. Devices age and fill up; virtual ones move to another host.

use serde::{Deserialize, Serialize};

use crate::{Column, Grouped};

/// Weight of one second in the learnt curve: about a minute of the same sign moves a point fully.
const WEIGHT: f64 = 0.05;
/// Logarithm of the ratio of measured to calibrated latency that is taken for scatter and for the
/// difference between a client's and a device's latency: about 16 %.
const SLACK: f64 = 0.15;
/// The sum at which the calibration is said no longer to hold (a CUSUM; Page, 1954): 12 seconds at
/// 1.5 times the calibrated latency, a quarter of a minute more at 1.3 times.
const ALARM: f64 = 3.0;
/// A single second counts as at most this, so that one stall is no alarm.
const SECOND_MOST: f64 = 0.5;

/// A device differs from its calibration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationDrift {
    /// Tokens a second at which the difference was seen.
    pub tokens_per_s: f64,
    /// What the calibration expects there, in microseconds.
    pub calibrated_p95_us: f64,
    /// What was measured, in microseconds.
    pub measured_p95_us: f64,
}

impl std::fmt::Display for CalibrationDrift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let direction = match self.measured_p95_us > self.calibrated_p95_us {
            true => "slower",
            false => "faster",
        };
        write!(
            f,
            "it is {direction}, with a 95th percentile of {} µs at {} tokens/s, where {} µs were calibrated",
            Grouped::rounded(self.measured_p95_us),
            Grouped::rounded(self.tokens_per_s),
            Grouped::rounded(self.calibrated_p95_us)
        )
    }
}

/// What a second showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Finding {
    Nothing,
    Drifted(CalibrationDrift),
    Holds,
}

/// The learner of one column.
#[derive(Clone, Debug)]
pub(crate) struct Learner {
    calibrated: Column,
    /// Logarithms of the factors of each point's latency.
    corrections: Vec<f64>,
    slower: f64,
    faster: f64,
    drifted: bool,
}

impl Learner {
    pub(crate) fn new(calibrated: Column) -> Self {
        Self {
            corrections: vec![0.0; calibrated.points().len()],
            calibrated,
            slower: 0.0,
            faster: 0.0,
            drifted: false,
        }
    }

    /// The curve as learnt.
    pub(crate) fn learnt(&self) -> Column {
        let factors: Vec<f64> = self.corrections.iter().map(|log| log.exp()).collect();
        self.calibrated.scaled(&factors)
    }

    /// Takes the rate and the 95th percentile of a second.
    pub(crate) fn observe(&mut self, tokens_per_s: f64, p95_us: f64) -> Finding {
        if !(tokens_per_s > 0.0 && p95_us > 0.0 && p95_us.is_finite()) {
            return Finding::Nothing;
        }
        self.learn(tokens_per_s, p95_us);
        let calibrated_p95_us = self.calibrated.p95_us_at(tokens_per_s);
        let log = (p95_us / calibrated_p95_us)
            .ln()
            .clamp(-SECOND_MOST, SECOND_MOST);
        // Below the first point the calibration says nothing about how fast the device may be.
        let is_known = tokens_per_s >= self.calibrated.points()[0].tokens_per_s;
        let log_faster = if is_known { log } else { 0.0 };
        self.slower = (self.slower + log - SLACK).clamp(0.0, 2.0 * ALARM);
        self.faster = (self.faster - log_faster - SLACK).clamp(0.0, 2.0 * ALARM);
        let worst = self.slower.max(self.faster);
        if worst > ALARM && !self.drifted {
            self.drifted = true;
            return Finding::Drifted(CalibrationDrift {
                tokens_per_s,
                calibrated_p95_us,
                measured_p95_us: p95_us,
            });
        }
        if worst <= 0.0 && self.drifted {
            self.drifted = false;
            return Finding::Holds;
        }
        Finding::Nothing
    }

    /// Moves the points on both sides of the rate, the nearer one more.
    fn learn(&mut self, tokens_per_s: f64, p95_us: f64) {
        let expected = self.learnt().p95_us_at(tokens_per_s);
        let log = (p95_us / expected).ln().clamp(-SECOND_MOST, SECOND_MOST);
        let points = self.calibrated.points();
        let after = points.partition_point(|point| point.tokens_per_s <= tokens_per_s);
        let (before, next) = (after.saturating_sub(1), after.min(points.len() - 1));
        let width = points[next].tokens_per_s - points[before].tokens_per_s;
        let share = match width > 0.0 {
            true => (tokens_per_s - points[before].tokens_per_s) / width,
            false => 0.0,
        };
        self.corrections[before] += WEIGHT * (1.0 - share) * log;
        if next != before {
            self.corrections[next] += WEIGHT * share * log;
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::simulated::p3600_model;

    fn mixed() -> Column {
        p3600_model().curve.mixed.unwrap()
    }

    /// Seconds until the first alarm of a device whose latency is `factor` times the calibrated
    /// one.
    fn alarm_after(factor: f64, seconds: u32, seed: u64) -> Option<u32> {
        let mut learner = Learner::new(mixed());
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        (1..=seconds).find(|_| {
            let rate = random.random_range(10e6..45e6);
            let p95_us = mixed().p95_us_at(rate) * factor * random.random_range(0.9..1.1);
            matches!(learner.observe(rate, p95_us), Finding::Drifted(_))
        })
    }

    #[test]
    fn an_aged_device_is_noticed_within_a_minute_and_a_good_one_never() {
        for seed in 0..10 {
            let slow = alarm_after(1.5, 100, seed);
            assert!(slow.is_some_and(|second| second <= 20), "{slow:?}");
            let fast = alarm_after(0.6, 100, seed);
            assert!(fast.is_some_and(|second| second <= 20), "{fast:?}");
            assert!(alarm_after(1.3, 100, seed).is_some_and(|second| second <= 60));
            assert_eq!(alarm_after(1.0, 100_000, seed), None);
        }
    }

    #[test]
    fn the_learnt_curve_approaches_the_device_and_the_alarm_ends() {
        let mut learner = Learner::new(mixed());
        let mut findings = Vec::new();
        for factor in [1.6, 1.0] {
            for _ in 0..300 {
                findings.push(learner.observe(36e6, 500.0 * factor));
            }
            let learnt = learner.learnt().p95_us_at(36e6);
            assert!((learnt / (500.0 * factor) - 1.0).abs() < 0.05, "{learnt}");
        }
        findings.retain(|finding| *finding != Finding::Nothing);
        assert!(
            matches!(findings[..], [Finding::Drifted(_), Finding::Holds]),
            "{findings:?}"
        );
        let points = learner.learnt();
        assert!(Column::new(points.points().to_vec()).is_ok());
    }

    #[test]
    fn one_stall_is_no_alarm() {
        let mut learner = Learner::new(mixed());
        for second in 0..1000 {
            let p95_us = if second % 100 == 0 { 50_000.0 } else { 500.0 };
            assert_eq!(learner.observe(36e6, p95_us), Finding::Nothing);
        }
    }

    #[test]
    fn a_drift_says_in_which_direction() {
        let said = |measured_p95_us| {
            let drift = CalibrationDrift {
                tokens_per_s: 1000.0,
                calibrated_p95_us: 400.0,
                measured_p95_us,
            };
            drift.to_string()
        };
        assert!(said(700.0).starts_with("it is slower, with a 95th percentile of 700 µs"));
        assert!(said(70.0).starts_with("it is faster, with a 95th percentile of 70 µs"));
    }
}
