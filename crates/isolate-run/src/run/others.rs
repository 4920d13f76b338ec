//! Other programs that write the same settings.

use isolation::ActuatorSetting;

use super::options::Watcher;
use super::session::Session;
use crate::held::FREEZER;

impl Session {
    /// Reads again what was written. What somebody else has changed is left to them, and said.
    pub(super) fn heed_others(&mut self, watcher: &mut dyn Watcher) {
        for decision in std::mem::take(&mut self.again) {
            if self.settings_of(&decision.subject).is_some() {
                self.act(&decision, watcher);
            }
        }
        let Some(journal) = &self.journal else {
            return;
        };
        for foreign in self.steer.look_again(journal, &self.hierarchies) {
            *self.troubles.entry("yielded".to_owned()).or_default() += 1;
            let text = format!("{}: no longer in force: {}", foreign.decision, foreign.why);
            self.note(watcher, &text);
            // Somebody else has thawed what is to stand still: the quota remains.
            let is_off = foreign.decision.setting == ActuatorSetting::Off(true);
            if is_off && foreign.actuator == FREEZER {
                self.act(&foreign.decision, watcher);
            }
        }
        self.show_foreign();
    }

    /// Where somebody else writes a setting, the status shows what it is now.
    pub(super) fn show_foreign(&mut self) {
        let foreign = self.steer.foreign().map(|(subject, actuator, words)| {
            let words = words.map(|words| format!("{words} (set by somebody else)"));
            (subject.clone(), actuator.to_owned(), words)
        });
        for (subject, actuator, words) in foreign.collect::<Vec<_>>() {
            let Some(settings) = self.settings_of(&subject) else {
                continue;
            };
            match words {
                Some(words) => settings.insert(actuator, words),
                None => settings.remove(&actuator),
            };
        }
    }
}
