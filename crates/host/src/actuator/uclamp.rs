//! Utilisation clamps: what the scheduler assumes of a group when it chooses frequencies and cores.

use super::cpu::{cpu_version, form};
use super::{Actuator, Wanted, cgroup_knob, probed, required, wrong_kind};
use crate::error::HostError;
use crate::knob::Knob;
use crate::roots::Roots;

/// From here on the kernel rounds to all of a CPU, which it prints as `max` (kernel/sched/core.c,
/// `cpu_uclamp_print`: in steps of 1/1024).
const WHOLE_SHARE: f64 = 0.9995;

/// Which of the two clamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UclampBound {
    /// The scheduler assumes at least so much: cores are fast at once.
    Min,
    /// The scheduler assumes at most so much: cores stay slow.
    Max,
}

/// The utilisation that the scheduler assumes of the group, as a share of the largest CPU at its
/// highest frequency.
#[derive(Clone, Debug)]
pub struct Uclamp {
    /// The group.
    pub group: String,
    /// Which clamp.
    pub bound: UclampBound,
}

impl Uclamp {
    fn knob(&self) -> Knob {
        let file = match self.bound {
            UclampBound::Min => "cpu.uclamp.min",
            UclampBound::Max => "cpu.uclamp.max",
        };
        cgroup_knob(&self.group, file)
    }
}

impl Actuator for Uclamp {
    fn name(&self) -> &'static str {
        match self.bound {
            UclampBound::Min => "uclamp.min",
            UclampBound::Max => "uclamp.max",
        }
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        let version = cpu_version(roots).map_err(|error| error.to_string())?;
        let why = "the kernel has no CONFIG_UCLAMP_TASK_GROUP";
        probed(roots, &self.knob(), form(version), why)
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        required(roots, &self.knob())
    }

    fn writes(&self, _roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        match wanted {
            Wanted::Share(share) if (0.0..=1.0).contains(share) => {
                // cgroup-v2.rst: percent with two decimals, or max.
                let value = if *share < WHOLE_SHARE {
                    format!("{:.2}", 100.0 * share)
                } else {
                    "max".to_owned()
                };
                Ok(vec![(self.knob(), value)])
            }
            _ => Err(wrong_kind(self.name(), wanted)),
        }
    }

    fn knobs(&self, _roots: &Roots) -> Vec<Knob> {
        vec![self.knob()]
    }

    fn neighbour(&self, _roots: &Roots) -> Result<Wanted, HostError> {
        Ok(Wanted::Share(match self.bound {
            UclampBound::Min => 0.01,
            UclampBound::Max => 0.99,
        }))
    }
}
