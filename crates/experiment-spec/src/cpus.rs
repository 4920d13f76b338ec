//! On which CPUs the sides and the workload run.

use host::Roots;

use super::locate::Source;
use super::{Pairing, Spec, TargetSpec, WorkloadSpec};
use crate::error::SpecError;

/// CPU lists, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Of the control's and the candidate's instance.
    pub sides: Option<[Vec<usize>; 2]>,
    /// Of the workload.
    pub workload: Option<Vec<usize>>,
}

pub(super) fn check_cpus(
    spec: &Spec,
    target: &TargetSpec,
    workload: &WorkloadSpec,
    source: &Source,
    roots: &Roots,
) -> Result<Pins, SpecError> {
    let online = host::online_cpus(roots).unwrap_or_default();
    let list = |key: &str, text: &str| {
        let cpus =
            host::parse_cpu_list(text).map_err(|error| source.error(key, error.to_string()))?;
        match cpus.iter().find(|cpu| !online.contains(cpu)) {
            Some(cpu) => Err(source.error(
                key,
                format!("CPU {cpu} is not online here (online: {online:?})"),
            )),
            None => Ok(cpus),
        }
    };
    let sides = match &target.cpus {
        None => None,
        Some([control, experiment]) => Some([
            list("target.cpus[0]", control)?,
            list("target.cpus[1]", experiment)?,
        ]),
    };
    if target.pairing == Pairing::Parallel
        && let Some([control, experiment]) = &sides
        && control.len() != experiment.len()
    {
        return Err(source.error(
            "target.cpus",
            "both sides need the same number of CPUs: they are swapped",
        ));
    }
    if let Some([control, experiment]) = &sides
        && control != experiment
    {
        // The sides exchange their CPUs: every second block side by side, every two blocks in turn.
        let round = if target.pairing == Pairing::Parallel {
            2
        } else {
            4
        };
        let lengths = [
            ("evaluation.blocks", Some(spec.evaluation.blocks)),
            ("verification.blocks", spec.verification.blocks),
        ];
        for (key, length) in lengths {
            if length.is_some_and(|length| length % round != 0) {
                return Err(source.error(
                    key,
                    format!("must be a multiple of {round}: the sides exchange their CPUs, and each is to have both as often"),
                ));
            }
        }
    }
    let workload = workload
        .cpus
        .as_ref()
        .map(|text| list("workload.cpus", text))
        .transpose()?;
    Ok(Pins { sides, workload })
}
