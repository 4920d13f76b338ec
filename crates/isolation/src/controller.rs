//! What every controller is, and what controllers have in common: wishes of which only changes go
//! out, periods, and what a controller says of itself while its decisions are only observed.

use std::collections::BTreeMap;

use crate::decision::{ActuatorSetting, Decision, Reason, Subject};
use crate::observation::MachineObservation;

/// A state machine that shares a machine.
pub trait IsolationController: Send {
    /// Looks once. `now_s` comes from a clock that never goes back. The result holds new settings
    /// only.
    fn step(&mut self, seen: &MachineObservation, now_s: f64) -> Vec<Decision>;

    /// Whether it steers by latency. One that does is stopped where no latency is known.
    fn needs_latency(&self) -> bool {
        true
    }

    /// What was measured before `now_s` does not count any more: the source of the latency was
    /// away, or time was.
    fn resume(&mut self, now_s: f64) {
        let _ = now_s;
    }

    /// What it is at, in one sentence without its full stop. Never empty.
    fn explain(&self) -> String;
}

/// Whether anybody carries the decisions out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ControllerMode {
    /// What was decided is in force.
    #[default]
    Acting,
    /// Nothing that was decided is ever in force. So nothing of it can have done harm, and
    /// sentences about it are in the conditional.
    Observing,
}

impl ControllerMode {
    /// Whether what was decided is in force.
    pub(crate) fn is_acting(self) -> bool {
        self == Self::Acting
    }

    /// The verb of a sentence about a decision.
    pub(crate) fn is(self) -> &'static str {
        match self {
            Self::Acting => "is",
            Self::Observing => "would be",
        }
    }

    /// The verbs of a sentence about a budget.
    pub(crate) fn may_use(self) -> &'static str {
        match self {
            Self::Acting => "may use",
            Self::Observing => "would have",
        }
    }

    /// The verb of a sentence about a decision.
    pub(crate) fn has(self) -> &'static str {
        match self {
            Self::Acting => "has",
            Self::Observing => "would have",
        }
    }
}

/// What a controller says before its first step.
pub(crate) const NO_STEP_YET: &str = "its first step is still to come";

/// Whether there is best-effort work, for what a controller says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BestEffortWork {
    /// The controller has not looked yet.
    #[default]
    Unknown,
    /// No group is configured.
    NotConfigured,
    /// No configured group runs.
    NotRunning,
    /// A group runs.
    Running,
}

impl BestEffortWork {
    pub(crate) fn of(seen: &MachineObservation) -> Self {
        if seen.groups.is_empty() {
            Self::NotConfigured
        } else if seen.running_groups().next().is_none() {
            Self::NotRunning
        } else {
            Self::Running
        }
    }

    /// What a controller of best-effort work says where there is none.
    pub(crate) fn absence(self) -> Option<String> {
        let said = match self {
            Self::Unknown => NO_STEP_YET,
            Self::NotConfigured => "there is no best-effort group to steer",
            Self::NotRunning => "no best-effort group runs",
            Self::Running => return None,
        };
        Some(said.to_owned())
    }
}

/// Remembers what was said to whom, so that a controller states its wishes in every step and only
/// changes go out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    sent: BTreeMap<(Subject, &'static str), ActuatorSetting>,
    decisions: Vec<Decision>,
}

impl Outbox {
    /// A wish; it goes out if it differs from the last one.
    pub(crate) fn put(&mut self, subject: Subject, setting: ActuatorSetting, reason: Reason) {
        let key = (subject.clone(), setting.actuator());
        if self.sent.get(&key) != Some(&setting) {
            self.sent.insert(key, setting);
            self.decisions.push(Decision {
                subject,
                setting,
                reason,
            });
        }
    }

    /// Somebody is gone: what was said to it is said again when it comes back.
    pub(crate) fn forget(&mut self, gone: &Subject) {
        self.sent.retain(|(known, _), _| known != gone);
    }

    /// The same wish for every group that runs. What was said to a group that does not run is
    /// forgotten.
    pub(crate) fn put_groups(
        &mut self,
        seen: &MachineObservation,
        setting: ActuatorSetting,
        reason: Reason,
    ) {
        for group in &seen.groups {
            let subject = Subject::Group(group.name.clone());
            if group.is_running {
                self.put(subject, setting, reason);
            } else {
                self.forget(&subject);
            }
        }
    }

    /// What is to be done now.
    pub(crate) fn take(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }
}

/// Tells when a period has passed. The first call always does.
#[derive(Debug)]
pub(crate) struct Every {
    period_s: f64,
    next_s: f64,
}

impl Every {
    pub(crate) fn s(period_s: f64) -> Self {
        Self {
            period_s,
            next_s: f64::NEG_INFINITY,
        }
    }

    pub(crate) fn is_due(&mut self, now_s: f64) -> bool {
        // Steps come a little early or late.
        if now_s + 0.01 < self.next_s {
            return false;
        }
        self.next_s = now_s + self.period_s;
        true
    }
}
