//! Control groups of both versions: which hierarchy has a controller, the path of a group's file
//! there, and how a command enters a group. Reading counters is in [`crate::CgroupReader`], the CPU
//! quota in [`crate::CpuQuota`]; making and removing groups goes through [`crate::Journal`], so
//! that it is undone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::HostError;
use crate::roots::{Roots, check_relative, read_text};

/// Controllers of v1 (Documentation/admin-guide/cgroup-v1); other mount options of a v1 hierarchy
/// are no controllers.
const V1_CONTROLLERS: [&str; 12] = [
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "blkio",
    "pids",
    "freezer",
    "devices",
    "net_cls",
    "net_prio",
    "perf_event",
    "hugetlb",
];

/// The kernel's default CFS period (kernel/sched/core.c, `default_cfs_period`): 100 ms.
pub const DEFAULT_PERIOD_US: u64 = 100_000;

/// Which interface a controller has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupVersion {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// What a host has mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupLayout {
    /// No control groups.
    None,
    /// Only v1 hierarchies.
    V1,
    /// Only the unified hierarchy.
    V2,
    /// v1 hierarchies, and a unified one without their controllers.
    Hybrid,
}

impl fmt::Display for CgroupLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::V1 => "v1",
            Self::V2 => "v2",
            Self::Hybrid => "hybrid",
        })
    }
}

/// The mounted hierarchies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    v1: BTreeMap<String, PathBuf>,
    v2: Option<PathBuf>,
    v2_controllers: BTreeSet<String>,
}

impl Hierarchies {
    /// Finds them in `/proc/self/mountinfo`, and in a tree without that file by the usual names
    /// below `/sys/fs/cgroup`.
    #[must_use]
    pub fn of(roots: &Roots) -> Self {
        let mut found = match read_text(&roots.proc("self/mountinfo")) {
            Ok(Some(text)) => Self::from_mountinfo(roots, &text),
            _ => Self::from_names(roots),
        };
        if let Some(v2) = &found.v2 {
            let text = read_text(&v2.join("cgroup.controllers"))
                .ok()
                .flatten()
                .unwrap_or_default();
            found.v2_controllers = text.split_whitespace().map(str::to_owned).collect();
        }
        found
    }

    fn from_mountinfo(roots: &Roots, text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            // proc_pid_mountinfo(5): "… root mount-point options … - type source super-options".
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let Some(mount_point) = left.split(' ').nth(4) else {
                continue;
            };
            let mount_point = roots.absolute(Path::new(&mount_point.replace("\\040", " ")));
            let mut right = right.split(' ');
            match (right.next(), right.nth(1)) {
                (Some("cgroup2"), _) if found.v2.is_none() => found.v2 = Some(mount_point),
                (Some("cgroup"), Some(options)) => {
                    for name in options
                        .split(',')
                        .filter(|name| V1_CONTROLLERS.contains(name))
                    {
                        found
                            .v1
                            .entry(name.to_owned())
                            .or_insert_with(|| mount_point.clone());
                    }
                }
                _ => {}
            }
        }
        found
    }

    fn from_names(roots: &Roots) -> Self {
        let base = roots.sys("fs/cgroup");
        let mut found = Self::default();
        if base.join("cgroup.controllers").exists() {
            found.v2 = Some(base);
            return found;
        }
        for name in V1_CONTROLLERS {
            if base.join(name).is_dir() {
                found.v1.insert(name.to_owned(), base.join(name));
            }
        }
        if base.join("unified/cgroup.controllers").exists() {
            found.v2 = Some(base.join("unified"));
        }
        found
    }

    /// Where a controller is: its version and its hierarchy's directory.
    #[must_use]
    pub fn controller(&self, name: &str) -> Option<(CgroupVersion, &Path)> {
        if let Some(directory) = self.v1.get(name) {
            return Some((CgroupVersion::V1, directory));
        }
        // v2 merged cpuacct into cpu.
        let name = if name == "cpuacct" { "cpu" } else { name };
        self.v2
            .as_deref()
            .filter(|_| self.v2_controllers.contains(name))
            .map(|directory| (CgroupVersion::V2, directory))
    }

    /// As [`Hierarchies::controller`], with an error that says what to do.
    ///
    /// # Errors
    ///
    /// [`HostError::NoController`].
    pub fn require(&self, name: &str) -> Result<(CgroupVersion, &Path), HostError> {
        self.controller(name)
            .ok_or_else(|| HostError::NoController {
                controller: name.to_owned(),
            })
    }

    /// What is mounted.
    #[must_use]
    pub fn layout(&self) -> CgroupLayout {
        match (self.v1.is_empty(), self.v2.is_some()) {
            (true, false) => CgroupLayout::None,
            (true, true) => CgroupLayout::V2,
            (false, false) => CgroupLayout::V1,
            (false, true) => CgroupLayout::Hybrid,
        }
    }

    /// The path of a group's file. The file's prefix names the controller; `cgroup.*` files, and
    /// those of unknown controllers, are looked for where the cpu controller is. `None` where
    /// nothing is mounted.
    pub(crate) fn file(&self, group: &str, file: &str) -> Option<PathBuf> {
        let controller = file.split('.').next().unwrap_or(file);
        let directory = self
            .controller(controller)
            .or_else(|| self.controller("cpu"))
            .map(|(_, directory)| directory)
            .or(self.v2.as_deref())?;
        Some(directory.join(group.trim_matches('/')).join(file))
    }

    pub(crate) fn v1(&self, controller: &str) -> Option<&Path> {
        self.v1.get(controller).map(PathBuf::as_path)
    }

    pub(crate) fn v2(&self) -> Option<&Path> {
        self.v2.as_deref()
    }

    /// The distinct directories in which a group can exist.
    pub(crate) fn directories(&self) -> BTreeSet<&Path> {
        self.v1
            .values()
            .map(PathBuf::as_path)
            .chain(self.v2.as_deref())
            .collect()
    }
}

/// As [`Hierarchies::file`], below the usual mount point where nothing is mounted.
pub(crate) fn file_path(roots: &Roots, group: &str, file: &str) -> PathBuf {
    Hierarchies::of(roots).file(group, file).unwrap_or_else(|| {
        let base = roots.sys("fs/cgroup");
        base.join(group.trim_matches('/')).join(file)
    })
}

/// A group's path may be empty or `/` (the root group), and may not leave the hierarchy.
pub(crate) fn check_group(group: &str) -> Result<(), HostError> {
    let trimmed = group.trim_matches('/');
    if trimmed.is_empty() {
        Ok(())
    } else {
        check_relative(group, Path::new(trimmed))
    }
}

/// A group's path without what means nothing in it: `/a//b/./c/` is the group `a/b/c`.
///
/// ```
/// assert_eq!(host::cgroup::plain_path("/a//b/./c/"), "a/b/c");
/// ```
#[must_use]
pub fn plain_path(group: &str) -> String {
    let parts = Path::new(group.trim_matches('/')).components();
    let parts: PathBuf = parts.filter(|part| *part != Component::CurDir).collect();
    parts.display().to_string()
}

/// The group's directories that exist, one per hierarchy.
pub(crate) fn existing_directories(roots: &Roots, group: &str) -> Vec<PathBuf> {
    let hierarchies = Hierarchies::of(roots);
    let directories = hierarchies.directories();
    directories
        .iter()
        .map(|directory| directory.join(group.trim_matches('/')))
        .filter(|path| path.is_dir())
        .collect()
}

/// The `cgroup.procs` files by which a process enters the group, one per hierarchy in which the
/// group exists.
///
/// # Errors
///
/// [`HostError::Absent`] where the group exists nowhere, [`HostError::InvalidName`].
pub fn procs_files(roots: &Roots, group: &str) -> Result<Vec<PathBuf>, HostError> {
    check_group(group)?;
    let files: Vec<PathBuf> = existing_directories(roots, group)
        .into_iter()
        .map(|directory| directory.join("cgroup.procs"))
        .collect();
    if files.is_empty() {
        let path = file_path(roots, group, "cgroup.procs");
        return Err(HostError::Absent {
            knob: format!("cgroup {group}"),
            path,
        });
    }
    Ok(files)
}

/// The words to put before a command line so that it runs in the group from its first instruction:
/// a shell writes its own pid to the files of [`procs_files`] and then becomes the command (same
/// pid).
#[must_use]
pub fn enter_command(procs_files: &[PathBuf]) -> Vec<std::ffi::OsString> {
    let mut words: Vec<std::ffi::OsString> = vec![
        "/bin/sh".into(),
        "-c".into(),
        // $1 is the number of files; they follow, then the command.
        "n=$1; shift; while [ \"$n\" -gt 0 ]; do echo $$ > \"$1\" || exit 126; shift; n=$((n-1)); done; exec \"$@\"".into(),
        "slackline-enter".into(),
        procs_files.len().to_string().into(),
    ];
    words.extend(procs_files.iter().map(|file| file.clone().into_os_string()));
    words
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;

    /// A fake host: `files` as pairs of path and text.
    pub(crate) fn fake(files: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let file = dir.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let roots = Roots::at(dir.path());
        (dir, roots)
    }

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/my\\040memory rw,relatime - cgroup cgroup rw,memory\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_hybrid_host_has_cpu_on_v1_and_io_on_v2() {
        let (dir, roots) = fake(&[
            ("proc/self/mountinfo", HYBRID),
            ("sys/fs/cgroup/unified/cgroup.controllers", "io hugetlb\n"),
        ]);
        let found = Hierarchies::of(&roots);
        assert_eq!(found.layout(), CgroupLayout::Hybrid);
        assert_eq!(found.controller("cpu").unwrap().0, CgroupVersion::V1);
        assert_eq!(found.controller("io").unwrap().0, CgroupVersion::V2);
        assert!(matches!(
            found.require("pids"),
            Err(HostError::NoController { .. })
        ));
        let at = |file: &str| {
            file_path(&roots, "a/b", file)
                .strip_prefix(dir.path())
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            at("cpu.stat"),
            Path::new("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.stat")
        );
        assert_eq!(
            at("cpuacct.usage"),
            Path::new("sys/fs/cgroup/cpu,cpuacct/a/b/cpuacct.usage")
        );
        assert_eq!(
            at("memory.limit_in_bytes"),
            Path::new("sys/fs/cgroup/my memory/a/b/memory.limit_in_bytes")
        );
        assert_eq!(at("io.max"), Path::new("sys/fs/cgroup/unified/a/b/io.max"));
        assert_eq!(
            at("cgroup.procs"),
            Path::new("sys/fs/cgroup/cpu,cpuacct/a/b/cgroup.procs")
        );
    }

    #[test]
    fn trees_without_mountinfo_are_known_by_name() {
        let (_dir, roots) = fake(&[("sys/fs/cgroup/cgroup.controllers", "cpu io memory\n")]);
        assert_eq!(Hierarchies::of(&roots).layout(), CgroupLayout::V2);
        assert_eq!(
            file_path(&roots, "/g", "cpu.max"),
            roots.sys("fs/cgroup/g/cpu.max")
        );
        let (_dir, roots) = fake(&[("sys/fs/cgroup/cpu/cpu.shares", "1024\n")]);
        assert_eq!(Hierarchies::of(&roots).layout(), CgroupLayout::V1);
        assert_eq!(
            file_path(&roots, "g", "cpu.shares"),
            roots.sys("fs/cgroup/cpu/g/cpu.shares")
        );
        assert_eq!(
            Hierarchies::of(&Roots::at("/nonexistent")).layout(),
            CgroupLayout::None
        );
    }

    #[test]
    fn a_command_enters_before_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cgroup procs");
        let words = enter_command(std::slice::from_ref(&file));
        let output = std::process::Command::new(&words[0])
            .args(&words[1..])
            .args(["sh", "-c", "echo $$ \"$1\"", "x", "a b"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let pid = fs::read_to_string(&file).unwrap();
        assert_eq!(text, format!("{} a b\n", pid.trim()));
    }
}
