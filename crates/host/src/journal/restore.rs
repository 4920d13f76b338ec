//! Undoing: newest first, each thing in one step to how it was at first. What somebody else changed
//! meanwhile is left alone and reported; what fails stays in the journal for the next attempt.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Journal;
use super::record::{Action, Pending};
use super::report::{RestoreOutcome, RestoreReport, RestoredItem};
use super::undo::{Ending, undo_attach, undo_controller, undo_group, undo_members, undo_process};
use crate::cgroup::plain_path;
use crate::error::HostError;
use crate::group_members::GroupMembers;
use crate::knob::Knob;
use crate::process::{END_GRACE, boot_id};
use crate::roots::Roots;

/// Some values can only be restored after others (`vm.dirty_bytes` refuses the 0 that writing
/// `vm.dirty_ratio` implies), so what failed is tried again after the rest: so often at least, and
/// as long as a pass restores anything.
const PASSES: usize = 3;

impl Journal {
    /// Undoes everything in the journal, newest first. A dry run changes nothing and reports what
    /// would be done.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`] where the outcome cannot be recorded; what could not be undone is an
    /// item of the report.
    pub fn restore(&mut self, roots: &Roots, dry_run: bool) -> Result<RestoreReport, HostError> {
        self.restore_where(roots, dry_run, |_| true)
    }

    /// Undoes what was written to these knobs; the rest stays.
    ///
    /// # Errors
    ///
    /// As [`Journal::restore`].
    pub fn restore_knobs(
        &mut self,
        roots: &Roots,
        knobs: &[Knob],
    ) -> Result<RestoreReport, HostError> {
        let is_meant =
            |action: &Action| matches!(action, Action::Write { knob, .. } if knobs.contains(knob));
        self.restore_where(roots, false, is_meant)
    }

    /// Undoes all that was done to one control group: its files, and the processes and directories
    /// of a group that was made.
    ///
    /// # Errors
    ///
    /// As [`Journal::restore`].
    pub fn restore_group(
        &mut self,
        roots: &Roots,
        group: &str,
    ) -> Result<RestoreReport, HostError> {
        let directories = crate::cgroup::existing_directories(roots, group);
        let is_ours = |path: &Path| directories.contains(&roots.absolute(path));
        let members = crate::cgroup_tree::processes_below(roots, group).unwrap_or_default();
        let is_meant = |action: &Action| match action {
            Action::Write {
                knob: Knob::Cgroup { group: other, .. },
                ..
            } => is_same_group(other, group),
            Action::Group { directory } => is_ours(directory),
            Action::Attach { from, .. } => from
                .iter()
                .any(|(new, _)| new.parent().is_some_and(is_ours)),
            Action::Process { pid, .. } => members.contains(pid),
            Action::Members { group: other, .. } => is_same_group(other, group),
            _ => false,
        };
        self.restore_where(roots, false, is_meant)
    }

    /// Undoes what was set of one control group. The group and its processes stay.
    ///
    /// # Errors
    ///
    /// As [`Journal::restore`].
    pub fn restore_settings(
        &mut self,
        roots: &Roots,
        group: &str,
    ) -> Result<RestoreReport, HostError> {
        let is_meant = |action: &Action| match action {
            Action::Write {
                knob: Knob::Cgroup { group: other, .. } | Knob::Egress { group: other, .. },
                ..
            } => is_same_group(other, group),
            _ => false,
        };
        self.restore_where(roots, false, is_meant)
    }

    fn restore_where(
        &mut self,
        roots: &Roots,
        dry_run: bool,
        is_meant: impl Fn(&Action) -> bool,
    ) -> Result<RestoreReport, HostError> {
        let mut outcomes: Vec<Option<RestoreOutcome>> = vec![None; self.pendings.list.len()];
        let mut failed_before = usize::MAX;
        let own = self.own_groups();
        for pass in 0.. {
            if pass > 0 && !dry_run {
                self.lift_quotas(roots, &outcomes);
            }
            let mut ending = Ending::default();
            for stage in Stage::ALL {
                if stage == Stage::Members && pass == 0 && !dry_run {
                    ending = self.ask_members_to_end(roots, &is_meant);
                }
                let list = self.pendings.list.iter().zip(&mut outcomes).rev();
                let is_due = |action: &Action| is_meant(action) && Stage::of(action, &own) == stage;
                for (pending, outcome) in list.filter(|(pending, _)| is_due(&pending.action)) {
                    if matches!(outcome, None | Some(RestoreOutcome::Failed { .. })) {
                        *outcome = Some(self.undo(roots, pending, &ending, dry_run));
                    }
                }
            }
            let has_failed = |outcome: &Option<RestoreOutcome>| {
                matches!(outcome, Some(RestoreOutcome::Failed { .. }))
            };
            let failed = outcomes
                .iter()
                .filter(|outcome| has_failed(outcome))
                .count();
            let is_stuck = pass + 1 >= PASSES && failed >= failed_before;
            if outcomes.len() < 2 || failed == 0 || is_stuck {
                break;
            }
            failed_before = failed;
        }
        let mut report = RestoreReport::default();
        let mut kept = self.pendings.clone();
        kept.list.clear();
        for (pending, outcome) in self.pendings.list.iter().zip(outcomes).rev() {
            if !is_meant(&pending.action) {
                kept.list.insert(0, pending.clone());
                continue;
            }
            let mut outcome = outcome.unwrap_or(RestoreOutcome::Failed { errno: libc::EIO });
            let aside = match &outcome {
                RestoreOutcome::ChangedByOther { .. } | RestoreOutcome::Vanished => {
                    self.keep_first(roots, &pending.action, dry_run)
                }
                _ => Ok(None),
            };
            let aside = aside.unwrap_or_else(|errno| {
                outcome = RestoreOutcome::Failed { errno };
                None
            });
            if matches!(outcome, RestoreOutcome::Failed { .. }) {
                kept.list.insert(0, pending.clone());
            }
            let (knob, original) = match &pending.action {
                Action::Write { knob, old, .. } => (Some(knob.clone()), Some(old.clone())),
                _ => (None, None),
            };
            let (subject, since) = (pending.action.subject(), pending.time.clone());
            report.items.push(RestoredItem {
                subject,
                knob,
                original,
                since,
                outcome,
                kept: aside,
            });
        }
        if !dry_run && !report.items.is_empty() {
            self.rewrite(kept)?;
        }
        Ok(report)
    }

    /// On v1 the kernel takes a period and a quota one after the other and refuses either (EINVAL)
    /// that with the other one, which is still the experiment's, exceeds the parent's share or
    /// falls below a child's (kernel/sched/core.c, `tg_cfs_schedulable_down`). Without a quota the
    /// period is free, as on the way there ([`CpuQuota::writes`](crate::CpuQuota::writes)).
    fn lift_quotas(&mut self, roots: &Roots, outcomes: &[Option<RestoreOutcome>]) {
        let refused = Some(RestoreOutcome::Failed {
            errno: libc::EINVAL,
        });
        let list = self.pendings.list.iter().zip(outcomes);
        let refused = list.filter(|(_, outcome)| **outcome == refused);
        let knobs: Vec<(String, String)> = refused
            .filter_map(|(pending, _)| match &pending.action {
                Action::Write {
                    knob: Knob::Cgroup { group, file },
                    ..
                } => Some((group.clone(), file.clone())),
                _ => None,
            })
            .collect();
        for (group, file) in &knobs {
            let period = (group.clone(), "cpu.cfs_period_us".to_owned());
            if file == "cpu.cfs_quota_us" && knobs.contains(&period) {
                let quota = Knob::Cgroup {
                    group: group.clone(),
                    file: file.clone(),
                };
                // Where this is refused as well, the next pass has no more success than the last
                // one.
                let _ = self.write(roots, &quota, "-1");
            }
        }
    }

    /// Groups that are Slackline's own with all that is in them.
    fn own_groups(&self) -> BTreeSet<String> {
        let pendings = self.pendings.list.iter();
        let groups = pendings.filter_map(|pending| match &pending.action {
            Action::Members { group, .. } => Some(plain_path(group)),
            _ => None,
        });
        groups.collect()
    }

    /// Asks the processes of all own groups to end: then they have the time for it together.
    fn ask_members_to_end(&self, roots: &Roots, is_meant: &dyn Fn(&Action) -> bool) -> Ending {
        let mut asked = BTreeSet::new();
        let pendings = self.pendings.list.iter().map(|pending| &pending.action);
        for action in pendings.filter(|action| is_meant(action)) {
            let Action::Members {
                group,
                boot_id: then,
            } = action
            else {
                continue;
            };
            let members = GroupMembers::of(roots, group);
            let is_filled = members.pids().is_ok_and(|pids| !pids.is_empty());
            if is_filled && boot_id(&Roots::default()) == *then {
                // Where it is refused, ending them says so.
                let _ = members.terminate();
                asked.insert(group.clone());
            }
        }
        Ending {
            asked,
            kill_at: Some(Instant::now() + END_GRACE),
        }
    }

    fn undo(
        &self,
        roots: &Roots,
        pending: &Pending,
        ending: &Ending,
        dry_run: bool,
    ) -> RestoreOutcome {
        let undone = match &pending.action {
            Action::Write {
                knob, old, backup, ..
            } => self.undo_write(roots, pending, (knob, old, backup.as_deref()), dry_run),
            Action::File {
                path,
                backup,
                new_fnv,
            } => self.undo_file(
                path,
                backup.as_deref(),
                &pending.may_hold(*new_fnv),
                dry_run,
            ),
            Action::Group { directory } => {
                let directory = roots.absolute(directory);
                // A command that was just being started may have come in meanwhile.
                let own = self.own_groups();
                if let Some(group) = own.iter().find(|group| directory.ends_with(group))
                    && !dry_run
                {
                    let _ = GroupMembers::of(roots, group).end(Duration::ZERO);
                }
                undo_group(&directory, dry_run)
            }
            Action::Controller {
                directory,
                controller,
            } => undo_controller(&roots.absolute(directory), controller, dry_run),
            Action::Attach { from, .. } => undo_attach(roots, from, dry_run),
            Action::Process {
                pid,
                start_time,
                boot_id,
            } => undo_process(roots, *pid, *start_time, boot_id, dry_run),
            Action::Members { group, boot_id } => {
                undo_members(roots, group, boot_id, ending, dry_run)
            }
        };
        undone.unwrap_or_else(|errno| RestoreOutcome::Failed { errno })
    }
}

/// What comes first. Within a stage the newest is undone first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A frozen process neither ends nor leaves its group.
    Thaw,
    /// Settings of groups whose processes are to be ended: to end takes CPU time.
    OwnSettings,
    Members,
    Rest,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Thaw, Self::OwnSettings, Self::Members, Self::Rest];

    /// `own` are the groups whose processes are to be ended.
    fn of(action: &Action, own: &BTreeSet<String>) -> Self {
        match action {
            action if is_freezer(action) => Self::Thaw,
            Action::Write {
                knob: Knob::Cgroup { group, .. },
                ..
            } if own.contains(group.trim_matches('/')) => Self::OwnSettings,
            Action::Members { .. } => Self::Members,
            _ => Self::Rest,
        }
    }
}

fn is_same_group(one: &str, other: &str) -> bool {
    one.trim_matches('/') == other.trim_matches('/')
}

fn is_freezer(action: &Action) -> bool {
    matches!(action, Action::Write { knob: Knob::Cgroup { file, .. }, .. }
        if file == "freezer.state" || file == "cgroup.freeze")
}
