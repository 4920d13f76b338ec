//! Settings as they were carried out. Read again, they tell what somebody else has changed since.

use host::{Actuator, HostError, Journal, Knob, Roots, Wanted};
use isolation::{ActuatorSetting, Decision, Subject};

/// Whose setting it is, and of which actuator.
pub(crate) type SettingKey = (Subject, &'static str);

/// The actuator of a freezer that is left to somebody else. No decision names it: off is the least
/// quota then.
pub(crate) const FREEZER: &str = "freezer";

/// An actuator, and what it was set to.
pub(crate) struct Act {
    actuator: Box<dyn Actuator>,
    wanted: Wanted,
    knobs: Vec<Knob>,
    is_written: bool,
}

impl Act {
    pub(crate) fn new(
        roots: &Roots,
        journal: &Journal,
        actuator: Box<dyn Actuator>,
        wanted: Wanted,
    ) -> Self {
        let knobs = actuator.knobs(roots);
        Self {
            is_written: knobs.iter().any(|knob| journal.original(knob).is_some()),
            actuator,
            wanted,
            knobs,
        }
    }

    /// Whether anything was written, now or before. Otherwise it was as wanted.
    pub(crate) fn is_written(&self) -> bool {
        self.is_written
    }

    /// What somebody else has made of it, in a sentence; `None` where it is still as wanted.
    fn foreign(&self, roots: &Roots, disturbed: &[(Knob, HostError)]) -> Option<String> {
        let disturbance = disturbed
            .iter()
            .find(|(knob, _)| self.knobs.contains(knob))
            .map(|(_, error)| error.to_string());
        // What was written is read by the journal, for all settings at once.
        if self.is_written && disturbance.is_none() {
            return None;
        }
        // It may be another line of the same file. What is gone is nobody else's.
        if self.actuator.verify(roots, &self.wanted).unwrap_or(true) {
            return None;
        }
        let of_nobody = || {
            let error = HostError::Disturbed {
                knob: self.actuator.name().to_owned(),
                left: self.wanted.to_string(),
                found: self.actuator.read(roots).unwrap_or_default(),
            };
            error.to_string()
        };
        Some(disturbance.unwrap_or_else(of_nobody))
    }

    /// How it is now, in the words of a setting.
    pub(crate) fn in_words(&self, roots: &Roots) -> Option<String> {
        let text = self.actuator.read(roots).ok()?;
        Some(match (self.actuator.name(), text.as_str()) {
            ("cpu.idle", "0") => ActuatorSetting::CpuIdle(false).to_string(),
            ("cpu.idle", _) => ActuatorSetting::CpuIdle(true).to_string(),
            (FREEZER, "0" | "THAWED") => "not frozen".to_owned(),
            (FREEZER, _) => "frozen".to_owned(),
            ("quota", _) => ActuatorSetting::QuotaCores(cores(&text)).to_string(),
            (name, _) => format!("{name} {}", text.replace('\n', "; ")),
        })
    }
}

/// The cores of a quota as [`host::CpuQuotaLimit`] reads it, `33000 200000`; `None` for no limit.
fn cores(text: &str) -> Option<f64> {
    let (quota_us, period_us) = text.split_once(' ')?;
    let (quota_us, period_us): (f64, f64) = (quota_us.parse().ok()?, period_us.parse().ok()?);
    Some(quota_us / period_us)
}

/// A decision that was carried out.
pub(crate) struct Held {
    pub(crate) decision: Decision,
    pub(crate) acts: Vec<Act>,
}

impl Held {
    /// Whether and how somebody else has changed it.
    pub(crate) fn foreign(
        &self,
        roots: &Roots,
        disturbed: &[(Knob, HostError)],
    ) -> Option<ForeignSetting> {
        self.acts.iter().find_map(|act| {
            let is_freezer = act.actuator.name() == FREEZER;
            let actuator = match is_freezer {
                true => FREEZER,
                false => self.decision.setting.actuator(),
            };
            Some(ForeignSetting {
                why: act.foreign(roots, disturbed)?,
                decision: self.decision.clone(),
                words: act.in_words(roots),
                actuator,
            })
        })
    }

    /// How the setting is now, in words.
    pub(crate) fn in_words(&self, roots: &Roots) -> Option<String> {
        self.acts.first()?.in_words(roots)
    }
}

/// A setting that is left to somebody else.
#[derive(Clone, Debug)]
pub(crate) struct ForeignSetting {
    /// What was wanted last.
    pub(crate) decision: Decision,
    /// The actuator that is left to them.
    pub(crate) actuator: &'static str,
    /// What they have changed, in a sentence.
    pub(crate) why: String,
    /// How it is now, in words.
    pub(crate) words: Option<String>,
}
