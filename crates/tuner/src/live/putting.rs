//! Knobs of the host are put in force for one side at a time.

use host::{HostError, Knob};

use super::Live;
use crate::error::Fault;
use crate::side::Side;
use crate::spec::refused_knob;

impl Live<'_> {
    /// Writes the knobs that do not have these values; whether there were any.
    pub(super) fn put(&mut self, knobs: &[(Knob, String)], to: Side) -> Result<bool, Fault> {
        let mut wanted = Vec::new();
        for (knob, value) in knobs.iter().filter(|(knob, _)| !knob.is_of_instance()) {
            let known = match knob {
                // New threads may have come without it.
                Knob::Sched { .. } if !knob.is_uniform(&self.roots).unwrap_or(false) => {
                    wanted.push((knob.clone(), value.clone()));
                    continue;
                }
                Knob::Sched { .. } => None,
                knob => self.in_force.get(knob),
            };
            let now = match known {
                Some(now) => Some(now.clone()),
                None => knob
                    .read(&self.roots)
                    .map_err(|error| Fault::Harness(error.to_string()))?,
            };
            if now.as_ref() != Some(value) {
                // Unknown until it is written.
                self.in_force.remove(knob);
                wanted.push((knob.clone(), value.clone()));
            }
        }
        if let Err(error) = self.journal.write_together(&self.roots, &wanted) {
            return Err(self.refused(error, to));
        }
        self.in_force.extend(knobs.iter().cloned());
        Ok(!wanted.is_empty())
    }

    /// Whose fault a refused knob is: the configuration's, unless no value would have been taken.
    pub(super) fn refused(&mut self, error: HostError, to: Side) -> Fault {
        let message = refused_knob(&error);
        if error.is_missing_privilege() || matches!(error, HostError::Journal { .. }) {
            self.fatal = Some(error);
            return Fault::Harness(message);
        }
        match error {
            HostError::Write { .. } | HostError::NotTaken { .. } => to.fault(message),
            _ => Fault::Harness(message),
        }
    }
}
