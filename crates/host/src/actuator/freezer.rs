//! The freezer: a frozen group's processes do not run at all.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Actuator, Wanted, cgroup_knob, probed, required, write_all, wrong_kind};
use crate::cgroup::Hierarchies;
use crate::error::HostError;
use crate::journal::Journal;
use crate::knob::Knob;
use crate::roots::Roots;

/// On v1 a group is FREEZING until its last thread has stopped. One in an uninterruptible sleep
/// stops later.
const FREEZE_WAIT: Duration = Duration::from_millis(200);
const FREEZE_POLL: Duration = Duration::from_millis(2);

/// Freezes a group, on v1 where the group is in the freezer's hierarchy, else on v2.
#[derive(Clone, Debug)]
pub struct Freezer {
    /// The group.
    pub group: String,
}

impl Freezer {
    /// The knob, and its words for frozen and running.
    fn knob(&self, roots: &Roots) -> (Knob, &'static str, &'static str) {
        let v1 = cgroup_knob(&self.group, "freezer.state");
        if Hierarchies::of(roots).v1("freezer").is_some() {
            (v1, "FROZEN", "THAWED")
        } else {
            (cgroup_knob(&self.group, "cgroup.freeze"), "1", "0")
        }
    }
}

impl Actuator for Freezer {
    fn name(&self) -> &'static str {
        "freezer"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        let (knob, frozen, _) = self.knob(roots);
        let form = if frozen == "1" { "v2" } else { "v1" };
        let why = "the group is not in the freezer's hierarchy; the kernel's smallest quota is used instead";
        probed(roots, &knob, form, why)
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        required(roots, &self.knob(roots).0)
    }

    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let Wanted::On(on) = wanted else {
            return Err(wrong_kind(self.name(), wanted));
        };
        let (knob, frozen, thawed) = self.knob(roots);
        Ok(vec![(knob, if *on { frozen } else { thawed }.to_owned())])
    }

    /// Waits a moment until the group stands still.
    fn apply(
        &self,
        journal: &mut Journal,
        roots: &Roots,
        wanted: &Wanted,
    ) -> Result<(), HostError> {
        write_all(journal, roots, &self.writes(roots, wanted)?)?;
        let give_up = Instant::now() + FREEZE_WAIT;
        while self.read(roots)? == "FREEZING" && Instant::now() < give_up {
            sleep(FREEZE_POLL);
        }
        Ok(())
    }

    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        let is_frozen = matches!(self.read(roots)?.as_str(), "FROZEN" | "FREEZING" | "1");
        Ok(*wanted == Wanted::On(is_frozen))
    }

    fn knobs(&self, roots: &Roots) -> Vec<Knob> {
        vec![self.knob(roots).0]
    }

    fn neighbour(&self, roots: &Roots) -> Result<Wanted, HostError> {
        let now = self.read(roots)?;
        Ok(Wanted::On(matches!(now.as_str(), "THAWED" | "0")))
    }
}
