//! Control groups, undoably: making a group, enabling its controllers on v2, and moving running
//! processes into it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Journal;
use super::record::{Action, Record};
use crate::cgroup::{CgroupVersion, Hierarchies, check_group};
use crate::error::{HostError, is_absence};
use crate::process::{boot_id, start_time};
use crate::roots::{Roots, read_text, write_text};

/// What Slackline measures and sets by default: the quota, and CPU time.
const DEFAULT_CONTROLLERS: [&str; 2] = ["cpu", "cpuacct"];

/// The groups on the way to a group.
fn parts(group: &str) -> impl Iterator<Item = &str> {
    group.split('/').filter(|part| !part.is_empty())
}

impl Journal {
    /// Makes a group with the cpu controller, in every hierarchy that this takes. Undoing removes
    /// what was made. Groups that exist already are used as they are.
    ///
    /// # Errors
    ///
    /// [`HostError::NoController`], [`HostError::Journal`], [`HostError::Write`].
    pub fn make_cgroup(&mut self, roots: &Roots, group: &str) -> Result<(), HostError> {
        self.make_cgroup_with(roots, group, &DEFAULT_CONTROLLERS)
    }

    /// As [`Journal::make_cgroup`], with these controllers. A v1 cpuset gets the CPUs and memory
    /// nodes of its parent, without which no process could enter it.
    ///
    /// # Errors
    ///
    /// As [`Journal::make_cgroup`].
    pub fn make_cgroup_with(
        &mut self,
        roots: &Roots,
        group: &str,
        controllers: &[&str],
    ) -> Result<(), HostError> {
        check_group(group)?;
        let hierarchies = Hierarchies::of(roots);
        let mut unified = Vec::new();
        for controller in controllers {
            let (version, base) = hierarchies.require(controller)?;
            if version == CgroupVersion::V2 {
                // On v2, cpu time is counted without any controller, and cpuacct is not one.
                unified.push(match *controller {
                    "cpuacct" => "cpu",
                    other => other,
                });
                continue;
            }
            let mut directory = base.to_owned();
            for part in parts(group) {
                let parent = directory.clone();
                directory.push(part);
                self.make_directory(roots, &directory)?;
                if *controller == "cpuset" {
                    inherit_cpuset(&parent, &directory)?;
                }
            }
        }
        match unified.as_slice() {
            [] => Ok(()),
            unified => self.make_unified(roots, group, unified),
        }
    }

    /// Makes a group in the hierarchy of v2, without a controller, where the host has one: a
    /// packet's socket belongs to a group of v2. Undoing removes it.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`], [`HostError::Write`].
    pub fn make_unified_cgroup(&mut self, roots: &Roots, group: &str) -> Result<(), HostError> {
        check_group(group)?;
        self.make_unified(roots, group, &[])
    }

    fn make_unified(
        &mut self,
        roots: &Roots,
        group: &str,
        controllers: &[&str],
    ) -> Result<(), HostError> {
        let hierarchies = Hierarchies::of(roots);
        let Some(mut directory) = hierarchies.v2().map(Path::to_owned) else {
            return Ok(());
        };
        for part in parts(group) {
            // All of them before the group: undoing removes the group first, and then nobody uses a
            // controller any more.
            for controller in controllers {
                self.enable_controller(roots, &directory, controller)?;
            }
            directory.push(part);
            self.make_directory(roots, &directory)?;
        }
        Ok(())
    }

    /// Makes one directory that is a group of its file system, as of resctrl. Undoing removes it.
    pub(crate) fn make_group_directory(
        &mut self,
        roots: &Roots,
        directory: &Path,
    ) -> Result<(), HostError> {
        self.make_directory(roots, directory)
    }

    fn make_directory(&mut self, roots: &Roots, directory: &Path) -> Result<(), HostError> {
        if directory.is_dir() {
            return Ok(());
        }
        let seq = self.will(Action::Group {
            directory: on_host(roots, directory),
        })?;
        if let Err(error) = fs::create_dir(directory) {
            self.append(Record::Refused { of: seq })?;
            return Err(HostError::write(directory, "a new group", &error));
        }
        self.done(seq)
    }

    fn enable_controller(
        &mut self,
        roots: &Roots,
        directory: &Path,
        controller: &str,
    ) -> Result<(), HostError> {
        let file = directory.join("cgroup.subtree_control");
        if has_word(&file, controller)? {
            return Ok(());
        }
        let action = Action::Controller {
            directory: on_host(roots, directory),
            controller: controller.to_owned(),
        };
        let seq = self.will(action)?;
        let value = format!("+{controller}");
        if let Err(error) = write_text(&file, &value) {
            self.append(Record::Refused { of: seq })?;
            return Err(HostError::write(&file, &value, &error));
        }
        self.done(seq)
    }

    /// Records that the processes of a group which was made are Slackline's own. Undoing ends them
    /// all: also those that left their session, and those that nobody waits for.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`].
    pub fn own_members(&mut self, group: &str) -> Result<(), HostError> {
        let boot_id = boot_id(&Roots::default());
        let seq = self.will(Action::Members {
            group: group.to_owned(),
            boot_id,
        })?;
        self.done(seq)
    }

    /// Moves a running process into a group. Undoing moves it, and everything else then in the
    /// group, to where it was.
    ///
    /// # Errors
    ///
    /// [`HostError::NoSuchProcess`], [`HostError::Absent`] where the group does not exist,
    /// [`HostError::Journal`], [`HostError::Write`].
    pub fn attach(&mut self, roots: &Roots, group: &str, pid: u32) -> Result<(), HostError> {
        let start_time = start_time(roots, pid)?;
        let new_files = crate::cgroup::procs_files(roots, group)?;
        let text = read_text(&roots.proc(format!("{pid}/cgroup")))?
            .ok_or(HostError::NoSuchProcess { pid })?;
        let hierarchies = Hierarchies::of(roots);
        let from: Vec<(PathBuf, PathBuf)> = new_files
            .into_iter()
            .filter_map(|new| {
                let old = old_procs_file(&hierarchies, &text, &new)?;
                (old != new).then(|| (on_host(roots, &new), on_host(roots, &old)))
            })
            .collect();
        let seq = self.will(Action::Attach {
            pid,
            start_time,
            from: from.clone(),
        })?;
        for (new, _) in &from {
            let file = roots.absolute(new);
            // Where one hierarchy refuses, the entry stays: others may have accepted.
            write_text(&file, &pid.to_string())
                .map_err(|error| HostError::write(&file, &pid.to_string(), &error))?;
        }
        self.done(seq)
    }
}

/// A path as the host names it, so that the journal does not depend on where a tree is seen.
fn on_host(roots: &Roots, path: &Path) -> PathBuf {
    path.strip_prefix(&roots.root)
        .map_or_else(|_| path.to_owned(), |below| Path::new("/").join(below))
}

/// The `cgroup.procs` of the group in which `/proc/PID/cgroup` says the process is, in the
/// hierarchy of `new`.
fn old_procs_file(hierarchies: &Hierarchies, proc_cgroup: &str, new: &Path) -> Option<PathBuf> {
    for line in proc_cgroup.lines() {
        // cgroups(7): "hierarchy-ID:controllers:path"; the unified one has ID 0 and no controllers.
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let base = match controllers.split(',').find_map(|name| hierarchies.v1(name)) {
            Some(base) => base,
            None if controllers.is_empty() => hierarchies.v2()?,
            None => continue,
        };
        if new.starts_with(base) {
            return Some(base.join(path.trim_matches('/')).join("cgroup.procs"));
        }
    }
    None
}

fn inherit_cpuset(parent: &Path, group: &Path) -> Result<(), HostError> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let file = group.join(name);
        if read_text(&file)?.is_some_and(|text| text.trim().is_empty()) {
            let value = read_text(&parent.join(name))?.unwrap_or_default();
            let value = value.trim();
            write_text(&file, value).map_err(|error| HostError::write(&file, value, &error))?;
        }
    }
    Ok(())
}

fn has_word(file: &Path, word: &str) -> Result<bool, HostError> {
    let text = read_text(file)?.unwrap_or_default();
    Ok(text
        .split_whitespace()
        .any(|found| found.trim_start_matches('+') == word))
}

/// A child of the group that needs the controller: it passes it on, or has a limit of its own.
fn user_of(directory: &Path, controller: &str) -> io::Result<Option<String>> {
    for entry in fs::read_dir(directory)? {
        let child = entry?.path();
        if !child.is_dir() {
            continue;
        }
        let text = |name: &str| read_text(&child.join(name)).ok().flatten();
        let passes_on = has_word(&child.join("cgroup.subtree_control"), controller).unwrap_or(true);
        // Without limits a group reads "max 100000" and weight 100
        // (Documentation/admin-guide/cgroup-v2.rst).
        let has_limit = match controller {
            "cpu" => {
                text("cpu.max").is_some_and(|text| !text.starts_with("max"))
                    || text("cpu.weight").is_some_and(|text| text.trim() != "100")
            }
            _ => true,
        };
        if passes_on || has_limit {
            return Ok(Some(
                child
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
            ));
        }
    }
    Ok(None)
}

/// What undoing a controller finds.
pub(super) enum ControllerUse {
    Vanished,
    AlreadyOff,
    InUse(String),
    Free,
}

pub(super) fn controller_use(
    directory: &Path,
    controller: &str,
) -> Result<ControllerUse, HostError> {
    let file = directory.join("cgroup.subtree_control");
    if !file.exists() {
        return Ok(ControllerUse::Vanished);
    }
    if !has_word(&file, controller)? {
        return Ok(ControllerUse::AlreadyOff);
    }
    match user_of(directory, controller) {
        Ok(Some(user)) => Ok(ControllerUse::InUse(user)),
        Ok(None) => Ok(ControllerUse::Free),
        Err(error) if is_absence(&error) => Ok(ControllerUse::Vanished),
        Err(error) => Err(HostError::read(directory, &error)),
    }
}

pub(super) fn disable_controller(directory: &Path, controller: &str) -> io::Result<()> {
    write_text(
        &directory.join("cgroup.subtree_control"),
        &format!("-{controller}"),
    )
}
