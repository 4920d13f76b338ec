//! The controllers by name, and what each has in common: a step, and settings that are said once.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::autothrottle::Autothrottle;
use crate::cpu_suppress::CpuSuppress;
use crate::decision::{Decision, Reason, Setting, Subject};
use crate::fixed::{Fixed, FixedSettings};
use crate::heracles::Heracles;
use crate::observation::Observation;
use crate::parties::Parties;
use crate::pegasus::Pegasus;
use crate::slackline::Slackline;

/// A state machine that shares a machine.
pub trait Controller: Send {
    /// Looks once. `now_s` comes from a clock that never goes back. The result holds new settings
    /// only.
    fn step(&mut self, seen: &Observation, now_s: f64) -> Vec<Decision>;

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

/// The names of the controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// A fast loop on scheduler signals below a slow one on the measured tail, with a memory of
    /// what did harm.
    #[default]
    Slackline,
    /// Lo et al., ISCA 2015.
    Heracles,
    /// Lo et al., ISCA 2014: acts on power only.
    Pegasus,
    /// Chen et al., ASPLOS 2019.
    Parties,
    /// Wang et al., NSDI 2024: steers the service's own quota.
    Autothrottle,
    /// Koordinator's rule: best-effort work gets what 65 % of the machine leaves.
    CpuSuppress,
    /// Settings that are written once.
    Static,
    /// Nothing is done.
    None,
}

impl Policy {
    /// All names, for messages and benchmarks.
    pub const ALL: [Self; 8] = [
        Self::Slackline,
        Self::Heracles,
        Self::Pegasus,
        Self::Parties,
        Self::Autothrottle,
        Self::CpuSuppress,
        Self::Static,
        Self::None,
    ];

    /// The name as in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Slackline => "slackline",
            Self::Heracles => "heracles",
            Self::Pegasus => "pegasus",
            Self::Parties => "parties",
            Self::Autothrottle => "autothrottle",
            Self::CpuSuppress => "cpu-suppress",
            Self::Static => "static",
            Self::None => "none",
        }
    }
}

/// A controller and its settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicySettings {
    /// Which.
    pub policy: Policy,
    /// What `static` writes.
    pub fixed: FixedSettings,
    /// Share of the machine's CPU that `cpu-suppress` lets be used. Koordinator's default is 0.65.
    pub suppress_share: f64,
}

/// Koordinator's `cpuSuppressThresholdPercent` (slo-controller-config): 65.
const SUPPRESS_SHARE: f64 = 0.65;

impl PolicySettings {
    /// A policy with its default settings.
    #[must_use]
    pub fn named(policy: Policy) -> Self {
        Self {
            policy,
            fixed: FixedSettings::default(),
            suppress_share: SUPPRESS_SHARE,
        }
    }

    /// The controller alone, without the guard.
    pub(crate) fn controller(&self) -> Box<dyn Controller> {
        match self.policy {
            Policy::Slackline => Box::new(Slackline::default()),
            Policy::Heracles => Box::new(Heracles::default()),
            Policy::Pegasus => Box::new(Pegasus::default()),
            Policy::Parties => Box::new(Parties::default()),
            Policy::Autothrottle => Box::new(Autothrottle::default()),
            Policy::CpuSuppress => Box::new(CpuSuppress::new(self.suppress_share)),
            Policy::Static => Box::new(Fixed::new(self.fixed.clone())),
            Policy::None => Box::new(Fixed::new(FixedSettings::default())),
        }
    }
}

/// Remembers what was said to whom, so that a controller states its wishes in every step and only
/// changes go out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    sent: BTreeMap<(Subject, &'static str), Setting>,
    decisions: Vec<Decision>,
}

impl Outbox {
    /// A wish; it goes out if it differs from the last one.
    pub(crate) fn put(&mut self, subject: Subject, setting: Setting, reason: Reason) {
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

    /// The same wish for every group that runs. What was said to a group that does not run is
    /// forgotten.
    pub(crate) fn put_groups(&mut self, seen: &Observation, setting: Setting, reason: Reason) {
        for group in &seen.groups {
            let subject = Subject::Group(group.name.clone());
            if group.is_running {
                self.put(subject, setting, reason);
            } else {
                self.sent.retain(|(known, _), _| *known != subject);
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
