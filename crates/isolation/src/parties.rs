//! PARTIES (Chen, Delimitrou, Martínez, ASPLOS 2019): one resource at a time, around a wheel. A
//! service whose slack is below 5 % gets more of a resource. When every service has more than 20 %
//! slack, best-effort work gets more. A step that did not help turns the wheel; a step that did
//! harm is undone at once.

use crate::controller::{BestEffortWork, ControllerMode, Every, IsolationController, Outbox};
use crate::decision::{ActuatorSetting, Decision, Reason};
use crate::numbers::whole;
use crate::observation::MachineObservation;

/// The paper's interval between adjustments is 500 ms for latencies of milliseconds.
const STEP_S: f64 = 0.5;
const SLACK_UPSIZE: f64 = 0.05;
const SLACK_DOWNSIZE: f64 = 0.20;
/// A resource whose downsizing did harm is not tried again for this long (the paper: 30 s).
const WAIT_S: f64 = 30.0;
/// What best-effort work keeps at least of the frequency.
const FREQUENCY_LEAST: f64 = 0.4;
const FREQUENCY_STEP: f64 = 0.1;
/// Where somebody else writes one of these, best-effort work gets nothing more.
const COUNTED_ON: [&str; 2] = ["off", "cpuset"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Cores,
    Ways,
    Frequency,
}

const WHEEL: [Resource; 3] = [Resource::Cores, Resource::Ways, Resource::Frequency];

#[derive(Debug)]
pub(crate) struct Parties {
    mode: ControllerMode,
    work: BestEffortWork,
    cores: u64,
    ways: u64,
    frequency: f64,
    is_off: bool,
    at: usize,
    /// The last growth of best-effort work, and the slack before it.
    grown: Option<(Resource, f64)>,
    blocked_until_s: [f64; WHEEL.len()],
    last_slack: f64,
    why: Reason,
    every: Every,
    outbox: Outbox,
    is_started: bool,
}

impl Default for Parties {
    fn default() -> Self {
        Self {
            mode: ControllerMode::default(),
            work: BestEffortWork::default(),
            cores: 1,
            ways: 0,
            frequency: 1.0,
            is_off: false,
            at: 0,
            grown: None,
            blocked_until_s: [f64::NEG_INFINITY; WHEEL.len()],
            last_slack: 0.0,
            why: Reason::Start,
            every: Every::s(STEP_S),
            outbox: Outbox::default(),
            is_started: false,
        }
    }
}

impl Parties {
    pub(crate) fn new(mode: ControllerMode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    fn turn(&mut self) {
        self.at = (self.at + 1) % WHEEL.len();
    }

    /// Moves a resource by one step; false where it is at its end, or not there.
    fn shift(&mut self, resource: Resource, more: bool, seen: &MachineObservation) -> bool {
        match resource {
            Resource::Cores => {
                let most = whole(seen.machine.cores).saturating_sub(1).max(1);
                match more {
                    true if self.is_off => self.is_off = false,
                    true if self.cores < most => self.cores += 1,
                    false if self.cores > 1 => self.cores -= 1,
                    false if !self.is_off => self.is_off = true,
                    _ => return false,
                }
            }
            Resource::Ways => {
                let Some(ways) = seen.machine.llc_ways else {
                    return false;
                };
                match more {
                    true if self.ways + 1 < ways => self.ways += 1,
                    false if self.ways > 1 => self.ways -= 1,
                    _ => return false,
                }
            }
            Resource::Frequency => {
                if seen.machine.frequency_mhz.is_none() {
                    return false;
                }
                match more {
                    true if self.frequency < 1.0 => {
                        self.frequency = (self.frequency + FREQUENCY_STEP).min(1.0)
                    }
                    false if self.frequency > FREQUENCY_LEAST => self.frequency -= FREQUENCY_STEP,
                    _ => return false,
                }
            }
        }
        true
    }

    fn upsize_service(&mut self, seen: &MachineObservation, slack: f64, now_s: f64) {
        self.why = Reason::LittleSlack;
        if let Some((resource, _)) = self.grown.take() {
            // What best-effort work was just given did the harm.
            let index = WHEEL
                .iter()
                .position(|known| *known == resource)
                .unwrap_or(0);
            self.blocked_until_s[index] = now_s + WAIT_S;
            self.why = Reason::Revert;
            self.shift(resource, false, seen);
            return;
        }
        // What was taken away last did not help: try the next resource.
        if slack <= self.last_slack {
            self.turn();
        }
        for _ in 0..WHEEL.len() {
            if self.shift(WHEEL[self.at], false, seen) {
                return;
            }
            self.turn();
        }
    }

    fn downsize_service(&mut self, seen: &MachineObservation, slack: f64, now_s: f64) {
        for _ in 0..WHEEL.len() {
            let resource = WHEEL[self.at];
            if now_s >= self.blocked_until_s[self.at] && self.shift(resource, true, seen) {
                self.why = Reason::Slack;
                // A growth that is not in force can do no harm.
                self.grown = self.mode.is_acting().then_some((resource, slack));
                return;
            }
            self.turn();
        }
    }
}

impl IsolationController for Parties {
    fn step(&mut self, seen: &MachineObservation, now_s: f64) -> Vec<Decision> {
        self.work = BestEffortWork::of(seen);
        let fresh: Option<Vec<f64>> = seen
            .services
            .iter()
            .map(|service| {
                Some(
                    service
                        .fresh
                        .or(service.window)?
                        .slack(service.objective_ms),
                )
            })
            .collect();
        let slack = fresh.and_then(|slacks| slacks.into_iter().reduce(f64::min));
        if let Some(slack) = slack
            && self.every.is_due(now_s)
        {
            if !self.is_started {
                self.is_started = true;
                self.ways = seen.machine.llc_ways.map_or(0, |ways| (ways / 10).max(1));
            } else if slack < SLACK_UPSIZE {
                self.upsize_service(seen, slack, now_s);
            } else if slack > SLACK_DOWNSIZE && !seen.is_foreign(&COUNTED_ON) {
                self.downsize_service(seen, slack, now_s);
            } else {
                self.grown = None;
            }
            self.last_slack = slack;
        }
        if self.is_started {
            let outbox = &mut self.outbox;
            outbox.put_groups(seen, ActuatorSetting::Off(self.is_off), self.why);
            outbox.put_groups(seen, ActuatorSetting::Cores(self.cores), self.why);
            if self.ways > 0 {
                outbox.put_groups(seen, ActuatorSetting::LlcWays(self.ways), self.why);
            }
            if seen.machine.frequency_mhz.is_some() {
                outbox.put_groups(seen, ActuatorSetting::Frequency(self.frequency), self.why);
            }
        }
        self.outbox.take()
    }

    fn resume(&mut self, _now_s: f64) {
        self.grown = None;
    }

    fn explain(&self) -> String {
        self.work.absence().unwrap_or_else(|| match self.is_off {
            true => format!("best-effort work {} off", self.mode.is()),
            false => format!("best-effort work {} {} cores", self.mode.has(), self.cores),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{GroupSeen, ServiceSeen};
    use crate::tail::Tail;

    fn seen(slack: f64) -> MachineObservation {
        let tail = Some(Tail {
            quantile: 0.99,
            latency_ms: 10.0 * (1.0 - slack),
            requests: 10_000,
            above: None,
        });
        MachineObservation {
            services: vec![ServiceSeen {
                fresh: tail,
                window: tail,
                ..ServiceSeen::without_data("web", 10.0)
            }],
            groups: vec![GroupSeen::running("batch", 1.0)],
            ..MachineObservation::of_cores(8.0)
        }
    }

    #[test]
    fn slack_gives_cores_harm_takes_the_last_one_back_and_waits() {
        let mut parties = Parties::default();
        for half in 0..4 {
            parties.step(&seen(0.5), f64::from(half) * 0.5);
        }
        assert_eq!(parties.cores, 4);
        parties.step(&seen(0.01), 2.0);
        assert_eq!((parties.cores, parties.why), (3, Reason::Revert));
        parties.step(&seen(0.5), 2.5);
        assert_eq!(parties.cores, 3);
        parties.step(&seen(0.5), 33.0);
        assert_eq!(parties.cores, 4);
        // Between the two limits nothing moves.
        parties.step(&seen(0.1), 34.0);
        assert_eq!(parties.cores, 4);
        // Nor with cores that somebody else writes.
        let mut foreign = seen(0.5);
        foreign.groups[0].foreign = vec!["cpuset"];
        parties.step(&foreign, 35.0);
        assert_eq!(parties.cores, 4);
        // Without slack, core by core, and off in the end.
        for half in 0..10 {
            parties.step(&seen(-1.0), 40.0 + f64::from(half) * 0.5);
        }
        assert!(parties.is_off);
        assert!(parties.explain().contains("off"));
    }
}
