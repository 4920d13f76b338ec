//! What every controller is, and what controllers have in common: wishes of which only changes go
//! out, and periods.

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

    /// What it is at, in one sentence.
    fn explain(&self) -> String {
        String::new()
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
