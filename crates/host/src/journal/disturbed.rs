//! What somebody else has changed since it was written.

use super::Journal;
use super::record::{Action, Pending};
use crate::cgroup::Hierarchies;
use crate::error::HostError;
use crate::knob::{Knob, is_same_state, normalise};
use crate::roots::{Roots, read_text};

impl Journal {
    /// The knobs that somebody else has changed since they were written, each with the error that
    /// its next write would end with. The kernel's rounding is no change: a knob is compared with
    /// what it read as after the write. A knob that cannot be read is left out.
    #[must_use]
    pub fn disturbed(&self, roots: &Roots, hierarchies: &Hierarchies) -> Vec<(Knob, HostError)> {
        let disturbed = |pending: &Pending| {
            let Action::Write { knob, .. } = &pending.action else {
                return None;
            };
            let found = read_in(roots, hierarchies, knob).ok()??;
            let error = self.disturbance(pending, knob, &found)?;
            Some((knob.clone(), error))
        };
        self.pendings.list.iter().filter_map(disturbed).collect()
    }

    /// [`HostError::Disturbed`] where a knob does not read as this journal left it.
    pub(super) fn disturbance(
        &self,
        pending: &Pending,
        knob: &Knob,
        found: &str,
    ) -> Option<HostError> {
        let left = pending.left.as_deref()?;
        let is_ours = is_same_state(left, found)
            || self.is_reset_by_kernel(knob)
            || is_reset_by_restart(pending, found);
        (!is_ours).then(|| HostError::Disturbed {
            knob: knob.to_string(),
            left: left.to_owned(),
            found: found.to_owned(),
        })
    }
}

/// As [`Knob::read`], without a search for the hierarchies: for one who reads many.
fn read_in(
    roots: &Roots,
    hierarchies: &Hierarchies,
    knob: &Knob,
) -> Result<Option<String>, HostError> {
    let path = match knob {
        Knob::Cgroup { group, file } => hierarchies.file(group, file),
        _ => None,
    };
    match path {
        Some(path) => Ok(read_text(&path)?.map(|text| normalise(&text))),
        None => knob.read(roots),
    }
}

/// The threads of a service that was started anew have their first value again.
fn is_reset_by_restart(pending: &Pending, found: &str) -> bool {
    matches!(
        &pending.action,
        Action::Write { knob: Knob::Sched { .. }, old, .. } if old == found
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::actuator::{CpuIdle, CpuQuotaLimit, CpuWeight, Freezer, Wanted};
    use crate::cgroup::tests::fake;

    #[test]
    fn what_somebody_else_changes_is_found_and_what_the_kernel_makes_of_it_is_not() {
        let (dir, roots) = fake(&[
            ("sys/fs/cgroup/cpu/batch/cpu.idle", "0\n"),
            ("sys/fs/cgroup/cpu/batch/cpu.shares", "1024\n"),
            ("sys/fs/cgroup/cpu/batch/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/batch/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/web/cpu.shares", "1024\n"),
            ("sys/fs/cgroup/freezer/batch/freezer.state", "THAWED\n"),
        ]);
        let file = |name: &str| dir.path().join("sys/fs/cgroup").join(name);
        let hierarchies = Hierarchies::of(&roots);
        let mut journal = Journal::open(&dir.path().join("state")).unwrap();
        let group = || "batch".to_owned();
        let quota = CpuQuotaLimit { group: group() };
        let half = Wanted::Quota(quota.of_cores(&roots, Some(0.5)).unwrap());
        let on = Wanted::On(true);
        let web = CpuWeight {
            group: "web".to_owned(),
        };
        let actuators: [(&dyn crate::actuator::Actuator, &Wanted); 4] = [
            (&CpuIdle { group: group() }, &on),
            (&quota, &half),
            (&Freezer { group: group() }, &on),
            (&web, &Wanted::Weight(50)),
        ];
        for (actuator, wanted) in actuators {
            actuator.apply(&mut journal, &roots, wanted).unwrap();
        }
        let found = |journal: &Journal| -> Vec<String> {
            let disturbed = journal.disturbed(&roots, &hierarchies);
            disturbed.iter().map(|(knob, _)| knob.to_string()).collect()
        };
        assert_eq!(found(&journal), [""; 0]);
        // An idle group has another weight, and a group freezes step by step.
        fs::write(file("cpu/batch/cpu.shares"), "3\n").unwrap();
        fs::write(file("freezer/batch/freezer.state"), "FREEZING\n").unwrap();
        assert_eq!(found(&journal), [""; 0]);
        fs::write(file("cpu/batch/cpu.idle"), "0\n").unwrap();
        fs::write(file("cpu/batch/cpu.cfs_quota_us"), "33000\n").unwrap();
        fs::write(file("freezer/batch/freezer.state"), "THAWED\n").unwrap();
        fs::write(file("cpu/web/cpu.shares"), "700\n").unwrap();
        let all = [
            "cgroup batch cpu.idle",
            "cgroup batch cpu.cfs_quota_us",
            "cgroup batch freezer.state",
            "cgroup web cpu.shares",
        ];
        assert_eq!(found(&journal), all);
        let (_, error) = journal.disturbed(&roots, &hierarchies).swap_remove(1);
        let said = "cgroup batch cpu.cfs_quota_us was changed by someone else, from 50000 to 33000, and is left as found";
        assert_eq!(error.to_string(), said);
        // A group that is gone has nobody else's settings.
        fs::remove_dir_all(file("cpu/batch")).unwrap();
        fs::remove_dir_all(file("freezer/batch")).unwrap();
        assert_eq!(found(&journal), ["cgroup web cpu.shares"]);
    }
}
