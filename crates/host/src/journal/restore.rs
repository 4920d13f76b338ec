//! Undoing: newest first, each thing in one step to how it was at first. What somebody else changed
//! meanwhile is left alone and reported; what fails stays in the journal for the next attempt.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Journal;
use super::group::{ControllerUse, controller_use, disable_controller};
use super::record::{Action, Pending};
use crate::cgroup_tree::below;
use crate::error::{HostError, errno_of, is_absence};
use crate::files::{
    fnv, in_words, read_ordinary, replace, replace_or_write, sync_directory, target, temporary,
};
use crate::knob::{Knob, is_same_state, is_taken_as};
use crate::process::{End, end_process};
use crate::roots::{Roots, read_text, write_bytes, write_text};

/// How long a group is given to become empty: an ended process leaves it when it is reaped, which
/// its parent does within milliseconds.
const GROUP_EMPTY_WAIT: Duration = Duration::from_secs(2);

/// How long a process is given between SIGTERM and SIGKILL (as long as `docker stop` gives).
const PROCESS_GRACE: Duration = Duration::from_secs(10);

/// Some values can only be restored after others (`vm.dirty_bytes` refuses the 0 that writing
/// `vm.dirty_ratio` implies), so what failed is tried again after the rest: so often at least, and
/// as long as a pass restores anything.
const PASSES: usize = 3;

/// What became of one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoreOutcome {
    /// It is (in a dry run: would be) as at first.
    Restored,
    /// It was already as at first.
    AlreadyOriginal,
    /// Somebody else changed it since; it was left alone.
    ChangedByOther {
        /// What Slackline had left.
        expected: String,
        /// What is there.
        found: String,
    },
    /// It no longer exists.
    Vanished,
    /// It could not be undone, and stays in the journal.
    Failed {
        /// The kernel's error number.
        errno: i32,
    },
}

/// One thing, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestoredItem {
    /// The thing in a person's words: the knob's name, the file's path, `process 123`.
    pub subject: String,
    /// The knob, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knob: Option<Knob>,
    /// The first value, where it is a knob.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
    /// When Slackline first changed it.
    pub since: String,
    /// What became of it.
    pub outcome: RestoreOutcome,
    /// Where what it held at first is (in a dry run: would be) kept, of a file that somebody else
    /// changed or removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
}

impl RestoredItem {
    /// The subject, with where what it held at first is kept.
    #[must_use]
    pub fn named(&self) -> String {
        let kept = self.kept.as_ref().map_or_else(String::new, |kept| {
            format!(" (what it held at first is kept in {})", kept.display())
        });
        format!("{}{kept}", self.subject)
    }
}

/// Everything that was to be undone, in the order in which it was tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    /// One item for each thing.
    pub items: Vec<RestoredItem>,
}

impl RestoreReport {
    /// Whether nothing is left in the journal. (Things changed by others are reported once and
    /// dropped.)
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self
            .items
            .iter()
            .any(|item| matches!(item.outcome, RestoreOutcome::Failed { .. }))
    }

    /// Takes in a later attempt: what had failed has its outcome.
    pub fn again(&mut self, later: Self) {
        self.items
            .retain(|item| !matches!(item.outcome, RestoreOutcome::Failed { .. }));
        self.items.extend(later.items);
    }

    /// The items that were changed by somebody else and left alone.
    pub fn changed_by_others(&self) -> impl Iterator<Item = &RestoredItem> {
        self.items
            .iter()
            .filter(|item| matches!(item.outcome, RestoreOutcome::ChangedByOther { .. }))
    }
}

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
            } => other.trim_matches('/') == group.trim_matches('/'),
            Action::Group { directory } => is_ours(directory),
            Action::Attach { from, .. } => from
                .iter()
                .any(|(new, _)| new.parent().is_some_and(is_ours)),
            Action::Process { pid, .. } => members.contains(pid),
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
        for pass in 0.. {
            if pass > 0 && !dry_run {
                self.lift_quotas(roots, &outcomes);
            }
            // A frozen process neither ends nor leaves its group.
            for thaws in [true, false] {
                let list = self.pendings.list.iter().zip(&mut outcomes).rev();
                let is_due = |action: &Action| is_meant(action) && is_freezer(action) == thaws;
                for (pending, outcome) in list.filter(|(pending, _)| is_due(&pending.action)) {
                    if matches!(outcome, None | Some(RestoreOutcome::Failed { .. })) {
                        *outcome = Some(self.undo(roots, pending, dry_run));
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

    fn undo(&self, roots: &Roots, pending: &Pending, dry_run: bool) -> RestoreOutcome {
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
            Action::Group { directory } => undo_group(&roots.absolute(directory), dry_run),
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
        };
        undone.unwrap_or_else(|errno| RestoreOutcome::Failed { errno })
    }

    fn undo_write(
        &self,
        roots: &Roots,
        pending: &Pending,
        (knob, old, backup): (&Knob, &str, Option<&str>),
        dry_run: bool,
    ) -> Result<RestoreOutcome, i32> {
        let Some(found) = knob.read(roots).map_err(errno)? else {
            return Ok(RestoreOutcome::Vanished);
        };
        let path = knob.reach(roots);
        let original = match backup {
            Some(name) => Some(self.saved(name)?),
            None => None,
        };
        let is_whole = || match &original {
            Some(original) => fs::read(&path).is_ok_and(|found| found == *original),
            // Threads may differ from the first one.
            None => knob.is_uniform(roots).unwrap_or(true),
        };
        if found == old && is_whole() {
            // An undo that was killed may have put it there and not on disk.
            if backup.is_some() && !dry_run {
                remove_temporary(&path);
                sync_ordinary(&path).map_err(|error| errno_of(&error))?;
            }
            return Ok(RestoreOutcome::AlreadyOriginal);
        }
        match &pending.left {
            // A write was under way: whatever is there (the new value, or what the kernel made of
            // it) is ours.
            None => {}
            // The value is back already, but not yet what stood around it.
            Some(_) if found == old => {}
            Some(left) if is_same_state(left, &found) || self.is_reset_by_kernel(knob) => {}
            // An undo that was killed between opening an ordinary file, which empties it, and
            // writing it in place.
            Some(left) if found.is_empty() && !left.is_empty() => {}
            Some(left) => {
                return Ok(RestoreOutcome::ChangedByOther {
                    expected: left.clone(),
                    found,
                });
            }
        }
        if dry_run {
            return Ok(RestoreOutcome::Restored);
        }
        let written = match &original {
            // The journal has no copy any more once it is undone.
            Some(original) if knob.is_ordinary(roots) => {
                remove_temporary(&path);
                match replace_or_write(&path, original) {
                    // A full disk has no room for a second file; the first one's room is enough.
                    Err(error) if is_full(&error) => write_ordinary(&path, original),
                    written => written,
                }
            }
            Some(original) => write_ordinary(&path, original),
            None => undo_lines(knob, old, &found)
                .iter()
                .try_for_each(|line| knob.put(roots, line)),
        };
        match written {
            Ok(()) => {}
            Err(error) if is_absence(&error) => return Ok(RestoreOutcome::Vanished),
            Err(error) => return Err(errno_of(&error)),
        }
        match knob.read(roots).map_err(errno)? {
            None => Ok(RestoreOutcome::Vanished),
            Some(found) if is_taken_as(old, &found) => Ok(RestoreOutcome::Restored),
            // Accepted and not taken over: the nearest the kernel has for it.
            Some(_) => Err(libc::EINVAL),
        }
    }

    /// Keeps what a file held at first that is not restored, as somebody else changed or removed
    /// it: the copy that the journal has of it goes with its entry.
    fn keep_first(
        &self,
        roots: &Roots,
        action: &Action,
        dry_run: bool,
    ) -> Result<Option<PathBuf>, i32> {
        let (path, backup) = match action {
            Action::File { path, backup, .. } => (path.clone(), backup),
            Action::Write { knob, backup, .. } => (knob.path(roots), backup),
            _ => return Ok(None),
        };
        let Some(backup) = backup else {
            return Ok(None);
        };
        let first = self.saved(backup)?;
        if dry_run {
            return Ok(Some(self.kept_path(&path, &first)));
        }
        let kept = self.keep(&path, &first).map_err(|error| errno_of(&error))?;
        Ok(Some(kept))
    }

    /// Whether the kernel itself may have written the knob, because another one was written.
    pub(super) fn is_reset_by_kernel(&self, knob: &Knob) -> bool {
        self.is_reset_by_scheduler(knob) || self.is_reset_by_idle(knob)
    }

    /// A group's weight is another one while `cpu.idle` is on, and the default after it
    /// (kernel/sched/fair.c, `sched_group_set_idle`).
    fn is_reset_by_idle(&self, knob: &Knob) -> bool {
        let Knob::Cgroup { group, file } = knob else {
            return false;
        };
        let is_idle = |action: &Action| matches!(action, Action::Write { knob: Knob::Cgroup { group: g, file: f }, .. } if g == group && f == "cpu.idle");
        matches!(file.as_str(), "cpu.shares" | "cpu.weight")
            && self
                .pendings
                .list
                .iter()
                .any(|pending| is_idle(&pending.action))
    }

    /// Changing the I/O scheduler of a device resets the files of its `iosched` directory
    /// (block/elevator.c), so what is found there after such a change is nobody else's doing.
    pub(super) fn is_reset_by_scheduler(&self, knob: &Knob) -> bool {
        let Knob::BlockQueue { device, file } = knob else {
            return false;
        };
        file.starts_with("iosched/")
            && self.pendings.list.iter().any(|pending| {
                matches!(&pending.action, Action::Write { knob: Knob::BlockQueue { device: d, file: f }, .. }
                    if d == device && f == "scheduler")
            })
    }

    /// The old contents of a file.
    pub(super) fn saved(&self, name: &str) -> Result<Vec<u8>, i32> {
        fs::read(self.state_dir.join("files").join(name)).map_err(|error| errno_of(&error))
    }

    fn undo_file(
        &self,
        path: &Path,
        backup: Option<&str>,
        ours_fnv: &[u64],
        dry_run: bool,
    ) -> Result<RestoreOutcome, i32> {
        if !dry_run {
            remove_temporary(path);
        }
        let found = match read_ordinary(path) {
            // A directory or a pipe in its place.
            Err(HostError::Irreplaceable { why, .. }) => {
                return Ok(RestoreOutcome::ChangedByOther {
                    expected: in_words(ours_fnv[0]),
                    found: format!("what cannot be replaced: {why}"),
                });
            }
            found => found.map_err(errno)?,
        };
        let original = match backup {
            Some(name) => Some(self.saved(name)?),
            None => None,
        };
        if found == original {
            return Ok(RestoreOutcome::AlreadyOriginal);
        }
        let Some(found) = found else {
            return Ok(RestoreOutcome::Vanished);
        };
        if !ours_fnv.contains(&fnv(&found)) {
            return Ok(RestoreOutcome::ChangedByOther {
                expected: in_words(ours_fnv[0]),
                found: in_words(fnv(&found)),
            });
        }
        if !dry_run {
            match original {
                Some(contents) => replace(path, &contents).map_err(errno)?,
                None => fs::remove_file(path)
                    .and_then(|()| path.parent().map_or(Ok(()), sync_directory))
                    .map_err(|error| errno_of(&error))?,
            }
        }
        Ok(RestoreOutcome::Restored)
    }
}

fn is_freezer(action: &Action) -> bool {
    matches!(action, Action::Write { knob: Knob::Cgroup { file, .. }, .. }
        if file == "freezer.state" || file == "cgroup.freeze")
}

/// The lines to write for a knob to be as it was. A file with a line for each device takes one
/// device at a time, and a device that had no limit is given none.
fn undo_lines(knob: &Knob, old: &str, found: &str) -> Vec<String> {
    let none = match knob {
        Knob::Cgroup { file, .. } if file.starts_with("blkio.throttle.") => "0",
        Knob::Cgroup { file, .. } if file == "io.max" => "rbps=max wbps=max riops=max wiops=max",
        Knob::Cgroup { file, .. } if file == "io.cost.qos" => "enable=0",
        // Cache and bandwidth, a line a resource.
        Knob::File(path) if path.ends_with("schemata") => {
            return old.lines().map(|line| line.trim().to_owned()).collect();
        }
        _ => return vec![old.to_owned()],
    };
    let device = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let mut lines: Vec<String> = found
        .lines()
        .filter(|line| !old.lines().any(|known| device(known) == device(line)))
        .map(|line| format!("{} {none}", device(line)))
        .collect();
    let is_changed = |line: &&str| !found.lines().any(|known| known == *line);
    lines.extend(old.lines().filter(is_changed).map(str::to_owned));
    lines
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// A kill in the middle of replacing a file leaves the copy beside it.
fn remove_temporary(path: &Path) {
    let _ = fs::remove_file(temporary(&target(path)));
}

fn write_ordinary(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_bytes(path, contents)?;
    // One of the kernel's that was empty at first as well takes a newline only.
    if contents.is_empty() && !fs::read(path)?.is_empty() {
        return write_text(path, "");
    }
    sync_ordinary(path)
}

/// On return what an ordinary file holds is on disk.
fn sync_ordinary(path: &Path) -> io::Result<()> {
    match fs::File::open(path)?.sync_all() {
        // fsync(2): the kernel's own files have no disk.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        synced => synced,
    }
}

fn errno(error: HostError) -> i32 {
    error.errno().unwrap_or(libc::EIO)
}

fn undo_group(directory: &Path, dry_run: bool) -> Result<RestoreOutcome, i32> {
    if !directory.is_dir() {
        return Ok(RestoreOutcome::Vanished);
    }
    let deadline = Instant::now() + GROUP_EMPTY_WAIT;
    if !dry_run {
        remove_below(directory);
    }
    loop {
        if dry_run {
            return Ok(RestoreOutcome::Restored);
        }
        match fs::remove_dir(directory) {
            Ok(()) => return Ok(RestoreOutcome::Restored),
            Err(error) if is_absence(&error) => return Ok(RestoreOutcome::Vanished),
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline =>
            {
                sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(errno_of(&error)),
        }
    }
}

/// Groups that a process in a group of ours made, container runtimes for instance, go with it. One
/// that is not empty stays, and then so does ours.
fn remove_below(directory: &Path) {
    for child in below(directory) {
        remove_below(&child);
        let _ = fs::remove_dir(child);
    }
}

fn undo_controller(
    directory: &Path,
    controller: &str,
    dry_run: bool,
) -> Result<RestoreOutcome, i32> {
    match controller_use(directory, controller).map_err(errno)? {
        ControllerUse::Vanished => Ok(RestoreOutcome::Vanished),
        ControllerUse::AlreadyOff => Ok(RestoreOutcome::AlreadyOriginal),
        ControllerUse::InUse(user) => Ok(RestoreOutcome::ChangedByOther {
            expected: "not used by any group".to_owned(),
            found: format!("used by {user}"),
        }),
        ControllerUse::Free if dry_run => Ok(RestoreOutcome::Restored),
        ControllerUse::Free => disable_controller(directory, controller)
            .map(|()| RestoreOutcome::Restored)
            .map_err(|error| errno_of(&error)),
    }
}

fn undo_attach(
    roots: &Roots,
    from: &[(PathBuf, PathBuf)],
    dry_run: bool,
) -> Result<RestoreOutcome, i32> {
    let mut outcome = RestoreOutcome::AlreadyOriginal;
    for (new, old) in from {
        let (new, old) = (roots.absolute(new), roots.absolute(old));
        // Processes that fork while they are moved are caught by the next pass.
        for _ in 0..8 {
            let Some(text) = read_text(&new).map_err(errno)? else {
                break;
            };
            let pids: Vec<&str> = text.split_whitespace().collect();
            if pids.is_empty() {
                break;
            }
            outcome = RestoreOutcome::Restored;
            if dry_run {
                break;
            }
            for pid in pids {
                match write_text(&old, pid) {
                    Ok(()) => {}
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        return Ok(RestoreOutcome::Vanished);
                    }
                    Err(error) => return Err(errno_of(&error)),
                }
            }
            if !roots.is_real() {
                break;
            }
        }
    }
    Ok(outcome)
}

fn undo_process(
    roots: &Roots,
    pid: u32,
    start_time: u64,
    boot_id: &str,
    dry_run: bool,
) -> Result<RestoreOutcome, i32> {
    let is_this_boot = crate::process::boot_id(&Roots::default()) == boot_id;
    if !is_this_boot || !crate::process::is_running(roots, pid, start_time) {
        return Ok(RestoreOutcome::Vanished);
    }
    if dry_run {
        return Ok(RestoreOutcome::Restored);
    }
    match end_process(pid, start_time, PROCESS_GRACE) {
        Ok(End::Ended) => Ok(RestoreOutcome::Restored),
        Ok(End::WasGone) => Ok(RestoreOutcome::Vanished),
        Err(errno) => Err(errno),
    }
}
