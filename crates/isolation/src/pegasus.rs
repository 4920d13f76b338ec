//! Pegasus (Lo et al., ISCA 2014, section 4): the power cap follows the latency. It acts only while
//! best-effort work is off or absent, because Heracles' power loop would fight with it.

use crate::controller::{ControllerMode, Every, IsolationController, Outbox};
use crate::decision::{ActuatorSetting, Decision, Reason, Subject};
use crate::observation::MachineObservation;

/// How often it acts. The paper polls latency every second.
const STEP_S: f64 = 1.0;
/// The mean over 30 s decides about the hold at maximum power.
const MEAN_S: f64 = 30.0;
/// After a violation of the mean: maximum power for 5 minutes.
const HOLD_S: f64 = 300.0;
/// The lowest cap. RAPL refuses values below about a quarter of the thermal design power.
const LEAST: f64 = 0.25;

#[derive(Debug)]
pub(crate) struct Pegasus {
    mode: ControllerMode,
    power: f64,
    hold_until_s: f64,
    recent: Vec<(f64, f64)>,
    every: Every,
    outbox: Outbox,
}

impl Default for Pegasus {
    fn default() -> Self {
        Self {
            mode: ControllerMode::default(),
            power: 1.0,
            hold_until_s: f64::NEG_INFINITY,
            recent: Vec::new(),
            every: Every::s(STEP_S),
            outbox: Outbox::default(),
        }
    }
}

impl Pegasus {
    pub(crate) fn new(mode: ControllerMode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    /// Table 2 of the paper: latency as a share of the target gives the change of the cap.
    fn decide(&mut self, share: f64, now_s: f64) -> Option<Reason> {
        self.recent.push((now_s, share));
        self.recent.retain(|(at_s, _)| *at_s > now_s - MEAN_S);
        let mean = self.recent.iter().map(|(_, share)| share).sum::<f64>()
            / crate::numbers::number(self.recent.len() as u64);
        let is_whole = self
            .recent
            .first()
            .is_some_and(|(at_s, _)| now_s - at_s > MEAN_S - 2.0 * STEP_S);
        // A cap that is not in force leaves the power where it was.
        let now = match self.mode {
            ControllerMode::Acting => self.power,
            ControllerMode::Observing => 1.0,
        };
        let (power, reason) = if is_whole && mean > 1.0 {
            self.hold_until_s = now_s + HOLD_S;
            (1.0, Reason::Violation)
        } else if now_s < self.hold_until_s {
            return None;
        } else if share > 1.35 {
            (1.0, Reason::Violation)
        } else if share > 1.0 {
            (now * 1.07, Reason::Violation)
        } else if share >= 0.85 {
            return None;
        } else if share >= 0.60 {
            (now * 0.99, Reason::Slack)
        } else {
            (now * 0.97, Reason::Slack)
        };
        self.power = power.clamp(LEAST, 1.0);
        Some(reason)
    }
}

impl IsolationController for Pegasus {
    fn step(&mut self, seen: &MachineObservation, now_s: f64) -> Vec<Decision> {
        // It has nothing to say to best-effort work, and does not act beside it.
        if seen.group_cores() > 0.01 * seen.machine.cores || !self.every.is_due(now_s) {
            return Vec::new();
        }
        let shares = seen.services.iter().filter_map(|service| {
            let tail = service.fresh.or(service.window)?;
            Some(tail.latency_ms / service.objective_ms)
        });
        if let Some(share) = shares.reduce(f64::max)
            && let Some(reason) = self.decide(share, now_s)
        {
            self.outbox
                .put(Subject::Machine, ActuatorSetting::Power(self.power), reason);
        }
        self.outbox.take()
    }

    fn resume(&mut self, _now_s: f64) {
        self.recent.clear();
    }

    fn explain(&self) -> String {
        format!(
            "the power limit {} at {:.0} % of the highest",
            self.mode.is(),
            100.0 * self.power
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_that_is_only_observed_does_not_sink_on_and_on() {
        let mut pegasus = Pegasus::new(ControllerMode::Observing);
        for second in 0..60 {
            pegasus.decide(0.5, f64::from(second));
        }
        assert_eq!(
            pegasus.explain(),
            "the power limit would be at 97 % of the highest"
        );
    }

    #[test]
    fn the_table_of_the_paper() {
        let mut pegasus = Pegasus::default();
        assert_eq!(pegasus.decide(0.5, 0.0), Some(Reason::Slack));
        assert!((pegasus.power - 0.97).abs() < 1e-12);
        pegasus.decide(0.7, 1.0);
        assert!((pegasus.power - 0.97 * 0.99).abs() < 1e-12);
        assert_eq!(pegasus.decide(0.9, 2.0), None);
        pegasus.decide(1.1, 3.0);
        assert!((pegasus.power - 1.0).abs() < 1e-12);
        pegasus.decide(0.5, 4.0);
        pegasus.decide(1.4, 5.0);
        assert!((pegasus.power - 1.0).abs() < 1e-12);
        // A mean above the target holds the maximum for 5 minutes.
        for second in 6..60 {
            pegasus.decide(1.01, f64::from(second));
        }
        pegasus.recent.clear();
        assert_eq!(pegasus.decide(0.1, 100.0), None);
        pegasus.recent.clear();
        assert_eq!(pegasus.decide(0.1, 400.0), Some(Reason::Slack));
    }
}
