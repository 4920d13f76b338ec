//! One thing undone: a knob, a file, a group, a controller, moved processes, or a started process.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Journal;
use super::group::{ControllerUse, controller_use, disable_controller};
use super::record::{Action, Pending};
use super::report::RestoreOutcome;
use crate::cgroup_tree::below;
use crate::error::{HostError, errno_of, is_absence};
use crate::files::{
    fnv, in_words, read_ordinary, replace, replace_or_write, sync_directory, target, temporary,
};
use crate::group_members::GroupMembers;
use crate::knob::{Knob, is_same_state, is_taken_as};
use crate::process::{END_GRACE, End, end_process};
use crate::roots::{Roots, read_text, write_bytes, write_text};

/// How long a group is given to become empty: an ended process leaves it when it is reaped, which
/// its parent does within milliseconds.
const GROUP_EMPTY_WAIT: Duration = Duration::from_secs(2);

impl Journal {
    pub(super) fn undo_write(
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
            Some(found) if is_taken_as(&in_force(knob, old), &in_force(knob, &found)) => {
                Ok(RestoreOutcome::Restored)
            }
            // Accepted and not taken over: the nearest the kernel has for it.
            Some(_) => Err(libc::EINVAL),
        }
    }

    /// Keeps what a file held at first that is not restored, as somebody else changed or removed
    /// it: the copy that the journal has of it goes with its entry.
    pub(super) fn keep_first(
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

    /// The old contents of a file.
    pub(super) fn saved(&self, name: &str) -> Result<Vec<u8>, i32> {
        fs::read(self.state_dir.join("files").join(name)).map_err(|error| errno_of(&error))
    }

    pub(super) fn undo_file(
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

/// The part of a knob's text that decides something. A device whose cost model was switched off
/// keeps its line (block/blk-iocost.c, `ioc_qos_prfill`).
fn in_force(knob: &Knob, text: &str) -> String {
    let is_cost = matches!(knob, Knob::Cgroup { file, .. } if file == "io.cost.qos");
    let is_off = |line: &str| is_cost && line.split(' ').any(|word| word == "enable=0");
    let lines = text.lines().filter(|line| !is_off(line));
    lines.collect::<Vec<_>>().join("\n")
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

pub(super) fn undo_group(directory: &Path, dry_run: bool) -> Result<RestoreOutcome, i32> {
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

pub(super) fn undo_controller(
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

pub(super) fn undo_attach(
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

/// Processes that have been asked to end.
#[derive(Default)]
pub(super) struct Ending {
    /// The groups that had any.
    pub(super) asked: BTreeSet<String>,
    /// When they are killed; `None` for at once.
    pub(super) kill_at: Option<Instant>,
}

pub(super) fn undo_members(
    roots: &Roots,
    group: &str,
    boot_id: &str,
    ending: &Ending,
    dry_run: bool,
) -> Result<RestoreOutcome, i32> {
    let is_this_boot = crate::process::boot_id(&Roots::default()) == boot_id;
    let members = GroupMembers::of(roots, group);
    let is_empty = || members.pids().map(|pids| pids.is_empty()).map_err(errno);
    if !is_this_boot || (is_empty()? && !ending.asked.contains(group)) {
        return Ok(RestoreOutcome::Vanished);
    }
    if dry_run {
        return Ok(RestoreOutcome::Restored);
    }
    let kill_in = ending
        .kill_at
        .map(|at| at.saturating_duration_since(Instant::now()));
    members.kill_after(kill_in.unwrap_or_default())?;
    Ok(RestoreOutcome::Restored)
}

pub(super) fn undo_process(
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
    match end_process(pid, start_time, END_GRACE) {
        Ok(End::Ended) => Ok(RestoreOutcome::Restored),
        Ok(End::WasGone) => Ok(RestoreOutcome::Vanished),
        Err(errno) => Err(errno),
    }
}
