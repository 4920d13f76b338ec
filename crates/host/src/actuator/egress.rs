//! What a group may send on a network device.

use super::{Actuator, Wanted, required, unfit, wrong_kind};
use crate::egress;
use crate::error::HostError;
use crate::knob::Knob;
use crate::roots::Roots;

/// A limit for what a group of cgroup v2 sends on a network device, by HTB at the device's root.
/// What other groups send is not touched. A device whose queue discipline somebody has chosen is
/// left alone.
#[derive(Clone, Debug)]
pub struct Egress {
    /// The group.
    pub group: String,
    /// The device, for instance `eth0`.
    pub device: String,
}

impl Egress {
    fn knob(&self) -> Knob {
        Knob::Egress {
            device: self.device.clone(),
            group: self.group.clone(),
        }
    }
}

impl Actuator for Egress {
    fn name(&self) -> &'static str {
        "egress"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        egress::probe(roots, &self.device, &self.group)
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        required(roots, &self.knob())
    }

    fn writes(&self, _roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let value = match wanted {
            Wanted::Bytes(None) => egress::NO_LIMIT.to_owned(),
            Wanted::Bytes(Some(0)) => {
                return Err(unfit(self.name(), wanted, "a rate has to be above 0"));
            }
            Wanted::Bytes(Some(rate)) => rate.to_string(),
            _ => return Err(wrong_kind(self.name(), wanted)),
        };
        Ok(vec![(self.knob(), value)])
    }

    fn knobs(&self, _roots: &Roots) -> Vec<Knob> {
        vec![self.knob()]
    }

    fn neighbour(&self, _roots: &Roots) -> Result<Wanted, HostError> {
        // 80 Gbit/s: nothing is slowed down.
        Ok(Wanted::Bytes(Some(10_000_000_000)))
    }
}
