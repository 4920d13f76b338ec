//! Knobs that are valid only together. The kernel checks each write against what the other knobs
//! hold at that moment: a minimum against the maximum, a quota against the period and the parent's
//! share. So an order has to be found in which each step is valid, and another one for the way
//! back.

use super::Journal;
use crate::error::HostError;
use crate::knob::Knob;
use crate::roots::Roots;

impl Journal {
    /// Writes several knobs in whatever order the kernel accepts. A refused write is tried again
    /// after the others. If a quota and its period block each other (cgroup v1), the quota is
    /// lifted in between.
    ///
    /// # Errors
    ///
    /// As [`Journal::write`], of a knob that is refused although all others that are accepted are
    /// in force.
    pub fn write_together(
        &mut self,
        roots: &Roots,
        writes: &[(Knob, String)],
    ) -> Result<(), HostError> {
        let refused = self.write_in_turns(roots, writes, false)?;
        refused
            .into_iter()
            .next()
            .map_or(Ok(()), |(_, why)| Err(why))
    }

    /// As [`Journal::write_together`], but what is refused keeps nothing else from being written:
    /// returns those knobs, each with the reason.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`]: without a record nothing is written.
    pub fn write_as_many(
        &mut self,
        roots: &Roots,
        writes: &[(Knob, String)],
    ) -> Result<Vec<(Knob, HostError)>, HostError> {
        self.write_in_turns(roots, writes, true)
    }

    fn write_in_turns(
        &mut self,
        roots: &Roots,
        writes: &[(Knob, String)],
        goes_on: bool,
    ) -> Result<Vec<(Knob, HostError)>, HostError> {
        let mut left: Vec<&(Knob, String)> = writes.iter().collect();
        let mut given_up = Vec::new();
        let mut is_lifted = false;
        loop {
            let mut refused = Vec::new();
            for write in &left {
                match self.write(roots, &write.0, &write.1) {
                    Ok(()) => {}
                    Err(error) if may_depend_on_others(&error) => refused.push((*write, error)),
                    Err(error) if goes_on && !matches!(error, HostError::Journal { .. }) => {
                        given_up.push((write.0.clone(), error));
                    }
                    Err(error) => return Err(error),
                }
            }
            if refused.is_empty() {
                return Ok(given_up);
            }
            let again: Vec<&(Knob, String)> = refused.iter().map(|(write, _)| *write).collect();
            if refused.len() == left.len() {
                if is_lifted || !self.lift_blocked_quota(roots, &again) {
                    let refused = refused.into_iter();
                    given_up.extend(refused.map(|(write, why)| (write.0.clone(), why)));
                    return Ok(given_up);
                }
                is_lifted = true;
            }
            left = again;
        }
    }

    /// Lifts a quota that is refused beside its period; whether it was one.
    fn lift_blocked_quota(&mut self, roots: &Roots, refused: &[&(Knob, String)]) -> bool {
        let of_group = |wanted: &str| {
            refused.iter().find_map(|(knob, _)| match knob {
                Knob::Cgroup { group, file } if file == wanted => Some((group, knob)),
                _ => None,
            })
        };
        let (Some((group, quota)), Some((other, _))) =
            (of_group("cpu.cfs_quota_us"), of_group("cpu.cfs_period_us"))
        else {
            return false;
        };
        group == other && self.write(roots, quota, "-1").is_ok()
    }
}

/// Whether a refusal may be due to what another knob holds.
fn may_depend_on_others(error: &HostError) -> bool {
    match error {
        HostError::Write { errno, .. } => {
            matches!(*errno, libc::EINVAL | libc::ERANGE | libc::EBUSY)
        }
        HostError::NotTaken { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// A group with one core, below one with two, on the real kernel; it is removed at the end.
    struct Groups(PathBuf);

    impl Groups {
        fn new() -> Option<Self> {
            let above = PathBuf::from(format!(
                "/sys/fs/cgroup/cpu/slackline-together-{}",
                std::process::id()
            ));
            if fs::create_dir(&above).is_err() {
                eprintln!("SKIP: no cpu controller of cgroup v1, or no right to make a group");
                return None;
            }
            let groups = Self(above);
            fs::create_dir(groups.0.join("app")).unwrap();
            fs::write(groups.0.join("cpu.cfs_quota_us"), "200000").unwrap();
            fs::write(groups.0.join("app/cpu.cfs_quota_us"), "100000").unwrap();
            Some(groups)
        }

        fn knob(&self, file: &str) -> Knob {
            let above = self.0.file_name().unwrap().to_str().unwrap();
            Knob::Cgroup {
                group: format!("{above}/app"),
                file: format!("cpu.cfs_{file}_us"),
            }
        }
    }

    impl Drop for Groups {
        fn drop(&mut self) {
            let _ = fs::remove_dir(self.0.join("app"));
            let _ = fs::remove_dir(&self.0);
        }
    }

    #[test]
    fn a_quota_and_its_period_are_written_in_either_order_and_back() {
        let Some(groups) = Groups::new() else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::default();
        let mut journal = Journal::open(dir.path()).unwrap();
        let (quota, period) = (groups.knob("quota"), groups.knob("period"));
        let pair = |quota_us: &str, period_us: &str| {
            vec![
                (period.clone(), period_us.to_owned()),
                (quota.clone(), quota_us.to_owned()),
            ]
        };
        let read = || [&quota, &period].map(|knob| knob.read(&roots).unwrap().unwrap());
        for (quota_us, period_us) in [("10000", "10000"), ("100000", "100000"), ("2000", "1000")] {
            // Period first is refused here: with the old quota it would be ten cores.
            journal
                .write_together(&roots, &pair(quota_us, period_us))
                .unwrap();
            assert_eq!(read(), [quota_us, period_us]);
            let mut reversed = pair("100000", "100000");
            reversed.reverse();
            journal.write_together(&roots, &reversed).unwrap();
            assert_eq!(read(), ["100000", "100000"]);
        }
        // A child with a core of its own: the quota alone would be less, the period alone more than
        // the parent has.
        fs::create_dir(groups.0.join("app/child")).unwrap();
        fs::write(groups.0.join("app/child/cpu.cfs_quota_us"), "90000").unwrap();
        let blocked = journal.write_together(&roots, &pair("10000", "10000"));
        assert_eq!(read(), ["10000", "10000"], "{blocked:?}");
        fs::remove_dir(groups.0.join("app/child")).unwrap();
        // Three cores are more than the parent's two in any order.
        let refused = journal.write_together(&roots, &pair("300000", "100000"));
        assert!(
            matches!(refused, Err(HostError::Write { .. })),
            "{refused:?}"
        );
        assert!(journal.restore(&roots, false).unwrap().is_complete());
        assert_eq!(read(), ["100000", "100000"]);
    }

    /// A host with one sysctl.
    fn of_swappiness() -> (tempfile::TempDir, Roots, Journal) {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::at(dir.path());
        fs::create_dir_all(dir.path().join("proc/sys/vm")).unwrap();
        fs::write(dir.path().join("proc/sys/vm/swappiness"), "60\n").unwrap();
        let journal = Journal::open(&dir.path().join("state")).unwrap();
        (dir, roots, journal)
    }

    fn of(name: &str) -> (Knob, String) {
        (Knob::Sysctl(name.into()), "10".to_owned())
    }

    #[test]
    fn what_is_refused_keeps_nothing_else_from_being_written() {
        let (_dir, roots, mut journal) = of_swappiness();
        let writes = [of("vm.absent"), of("vm.swappiness")];
        let refused = journal.write_as_many(&roots, &writes).unwrap();
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].0, writes[0].0);
        let knob = &writes[1].0;
        assert_eq!(knob.read(&roots).unwrap().as_deref(), Some("10"));
        // It can be undone as anything else.
        assert!(journal.restore(&roots, false).unwrap().is_complete());
        assert_eq!(knob.read(&roots).unwrap().as_deref(), Some("60"));
    }

    #[test]
    fn what_no_order_helps_is_refused() {
        let (_dir, roots, mut journal) = of_swappiness();
        let writes = [of("vm.swappiness"), of("vm.absent")];
        let error = journal.write_together(&roots, &writes).unwrap_err();
        assert!(error.to_string().contains("vm/absent"), "{error}");
        journal.write_together(&roots, &writes[..1]).unwrap();
        let knob = &writes[0].0;
        assert_eq!(knob.read(&roots).unwrap().as_deref(), Some("10"));
    }
}
