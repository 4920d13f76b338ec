//! Knobs in force: of the host for one side at a time, of an instance for as long as it lives.

use bayes_opt::Configuration;
use host::{HostError, Knob, Roots};

use super::Live;
use crate::error::Fault;
use crate::side::Side;
use crate::spec::CheckedSpec;
use crate::template::Variables;

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
        let message = error.to_string();
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

/// Those that belong to the host. An instance's threads have their values from whoever starts the
/// service.
pub(super) fn of_host(mut knobs: Vec<(Knob, String)>) -> Vec<(Knob, String)> {
    knobs.retain(|(knob, _)| !knob.is_of_instance());
    knobs
}

/// Writes the knobs of an instance that has just been started. They go with its process, so nothing
/// has to be undone.
pub(super) fn put_of_instance(
    knobs: &[(Knob, String)],
    pid: u32,
    roots: &Roots,
) -> Result<(), HostError> {
    for (knob, value) in knobs.iter().filter(|(knob, _)| knob.is_of_instance()) {
        let start_time = host::start_time(roots, pid)?;
        knob.of_instance(pid, start_time)
            .put_for_good(roots, value)?;
    }
    Ok(())
}

/// What is to be written to each knob for a configuration.
pub(super) fn knob_values(
    spec: &CheckedSpec,
    configuration: &Configuration,
    variables: &Variables,
) -> Result<Vec<(Knob, String)>, Fault> {
    crate::spec::knob_writes(&spec.knobs, configuration, variables)
        .map_err(|error| Fault::Harness(error.to_string()))
}
