//! What is written to knobs, of the host and of an instance.

use bayes_opt::Configuration;
use host::{HostError, Knob, Roots};

use crate::error::Fault;
use crate::knob_writes::knob_writes;
use crate::spec::CheckedSpec;
use crate::template::Variables;

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
    knob_writes(&spec.knobs, configuration, variables)
        .map_err(|error| Fault::Harness(error.to_string()))
}
