//! Where a process is in the hierarchy of the cpu controller, and which threads are below a group.

use std::path::{Path, PathBuf};

use crate::cgroup::{CgroupVersion, Hierarchies, check_group, plain_path};
use crate::error::HostError;
use crate::roots::{Roots, read_text};

/// The group of a process, as seen by the cpu controller: a path such as
/// `system.slice/nginx.service`, empty for the root.
///
/// # Errors
///
/// [`HostError::NoSuchProcess`], [`HostError::NoController`], [`HostError::Parse`].
pub fn group_of(roots: &Roots, pid: u32) -> Result<String, HostError> {
    let version = Hierarchies::of(roots).require("cpu")?.0;
    let path = roots.proc(format!("{pid}/cgroup"));
    let text = read_text(&path)?.ok_or(HostError::NoSuchProcess { pid })?;
    // cgroups(7): "hierarchy-ID:controller-list:cgroup-path"; the unified hierarchy's is "0::path".
    let group = text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
        let is_ours = match version {
            CgroupVersion::V1 => controllers.split(',').any(|name| name == "cpu"),
            CgroupVersion::V2 => controllers.is_empty(),
        };
        is_ours.then(|| group.trim_matches('/').to_owned())
    });
    group.ok_or_else(|| HostError::parse(&path, &text, "it has no line of the cpu controller"))
}

/// The groups of a process in the hierarchies of these controllers of v1, and in that of v2: each
/// once, empty for a root group.
///
/// # Errors
///
/// [`HostError::NoSuchProcess`], [`HostError::Read`].
pub fn groups_of(roots: &Roots, pid: u32, controllers: &[&str]) -> Result<Vec<String>, HostError> {
    let path = roots.proc(format!("{pid}/cgroup"));
    let text = read_text(&path)?.ok_or(HostError::NoSuchProcess { pid })?;
    let mut groups: Vec<String> = Vec::new();
    for line in text.lines() {
        // cgroups(7): "hierarchy-ID:controllers:path"; the unified one has no controllers.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(of), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        let is_meant = of.is_empty() || of.split(',').any(|name| controllers.contains(&name));
        let group = group.trim_matches('/');
        if is_meant && !groups.iter().any(|known| known == group) {
            groups.push(group.to_owned());
        }
    }
    Ok(groups)
}

/// The group that a path names: below the hierarchy's root, or the whole path of its directory.
///
/// # Errors
///
/// [`HostError::NoController`], [`HostError::InvalidName`], [`HostError::Absent`] where it does not
/// exist.
pub fn group_of_path(roots: &Roots, path: &str) -> Result<String, HostError> {
    let hierarchies = Hierarchies::of(roots);
    let top = hierarchies.require("cpu")?.1;
    let group = Path::new(path).strip_prefix(top).map_or_else(
        |_| path.trim_matches('/').to_owned(),
        |below| below.display().to_string(),
    );
    check_group(&group)?;
    let group = plain_path(&group);
    let directory = top.join(&group);
    if directory.is_dir() {
        Ok(group)
    } else {
        Err(HostError::Absent {
            knob: format!("cgroup {group}"),
            path: directory,
        })
    }
}

/// The threads of a group and of all groups below it.
///
/// # Errors
///
/// [`HostError::Absent`] where the group does not exist, [`HostError::NoController`],
/// [`HostError::InvalidName`].
pub fn threads_below(roots: &Roots, group: &str) -> Result<Vec<u32>, HostError> {
    listed_below(roots, group, threads_file(&Hierarchies::of(roots))?)
}

fn threads_file(hierarchies: &Hierarchies) -> Result<&'static str, HostError> {
    Ok(match hierarchies.require("cpu")?.0 {
        CgroupVersion::V1 => "tasks",
        CgroupVersion::V2 => "cgroup.threads",
    })
}

/// The processes of a group and of all groups below it.
///
/// # Errors
///
/// As [`threads_below`].
pub fn processes_below(roots: &Roots, group: &str) -> Result<Vec<u32>, HostError> {
    listed_below(roots, group, "cgroup.procs")
}

/// Whether a group, or one below it, has a process: for one who asks many times a second. The
/// answer of a group that does not exist is `false`.
///
/// # Errors
///
/// [`HostError::NoController`], [`HostError::InvalidName`], [`HostError::Read`].
pub fn has_process(hierarchies: &Hierarchies, group: &str) -> Result<bool, HostError> {
    check_group(group)?;
    let (version, top) = hierarchies.require("cpu")?;
    let top = top.join(group.trim_matches('/'));
    if version == CgroupVersion::V2 {
        // Documentation/admin-guide/cgroup-v2.rst, "cgroup.events": of the group and all below it.
        // The root group has no such file.
        if let Some(events) = read_text(&top.join("cgroup.events"))? {
            return Ok(events.lines().any(|line| line == "populated 1"));
        }
    }
    let mut directories = vec![top];
    while let Some(directory) = directories.pop() {
        if !listed(&directory, "cgroup.procs")?.is_empty() {
            return Ok(true);
        }
        directories.extend(below(&directory));
    }
    Ok(false)
}

/// The processes of the group with this directory and of all groups below it; none where it does
/// not exist.
///
/// # Errors
///
/// [`HostError::Read`].
pub fn processes_in(directory: &Path) -> Result<Vec<u32>, HostError> {
    listed_in(directory.to_owned(), "cgroup.procs")
}

/// A group that somebody calls a service, with all groups below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceGroup {
    /// Its name.
    pub service: String,
    /// The group's path.
    pub group: String,
    /// The directories of the group and of those below it.
    pub directories: Vec<PathBuf>,
}

impl ServiceGroup {
    /// Its threads; none of a group that has vanished.
    ///
    /// # Errors
    ///
    /// [`HostError::Read`].
    pub fn threads(&self, hierarchies: &Hierarchies) -> Result<Vec<u32>, HostError> {
        let file = threads_file(hierarchies)?;
        let mut threads = Vec::new();
        for directory in &self.directories {
            threads.extend(listed(directory, file)?);
        }
        Ok(threads)
    }
}

/// All groups for which `name_of`, asked with a group's path, has a name; groups below one of them
/// belong to it. In order of their paths.
///
/// # Errors
///
/// [`HostError::NoController`].
pub fn service_groups(
    hierarchies: &Hierarchies,
    name_of: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<ServiceGroup>, HostError> {
    let top = hierarchies.require("cpu")?.1;
    let mut services = Vec::new();
    let mut directories = vec![top.to_owned()];
    while let Some(directory) = directories.pop() {
        for child in below(&directory) {
            let group = child.strip_prefix(top).unwrap_or(&child).to_string_lossy();
            match name_of(&group) {
                Some(service) => services.push(ServiceGroup {
                    service,
                    group: group.into_owned(),
                    directories: tree(child),
                }),
                None => directories.push(child),
            }
        }
    }
    services.sort_by(|a, b| a.group.cmp(&b.group));
    Ok(services)
}

fn listed_below(roots: &Roots, group: &str, file: &str) -> Result<Vec<u32>, HostError> {
    check_group(group)?;
    let hierarchies = Hierarchies::of(roots);
    let directory = hierarchies.require("cpu")?.1;
    let top = directory.join(group.trim_matches('/'));
    if !top.is_dir() {
        return Err(HostError::Absent {
            knob: format!("cgroup {group}"),
            path: top,
        });
    }
    listed_in(top, file)
}

fn listed_in(top: PathBuf, file: &str) -> Result<Vec<u32>, HostError> {
    let mut all = Vec::new();
    for directory in tree(top) {
        all.extend(listed(&directory, file)?);
    }
    Ok(all)
}

fn listed(directory: &Path, file: &str) -> Result<Vec<u32>, HostError> {
    let text = match read_text(&directory.join(file)) {
        // Of a threaded group the one above lists the processes
        // (Documentation/admin-guide/cgroup-v2.rst, "Threads").
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => None,
        text => text?,
    };
    // A group that vanishes meanwhile has no members.
    let text = text.unwrap_or_default();
    let numbers = text.lines().filter_map(|line| line.trim().parse().ok());
    Ok(numbers.collect())
}

/// A group's directory and those of all groups below it.
fn tree(top: PathBuf) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![top];
    while let Some(directory) = directories.pop() {
        directories.extend(below(&directory));
        found.push(directory);
    }
    found
}

/// The groups directly below a group, by their directories.
pub(crate) fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::fake;

    const V2: &str = "sys/fs/cgroup/cgroup.controllers";

    #[test]
    fn services_are_found_by_name_with_all_that_is_below_them() {
        let (_dir, roots) = fake(&[
            (V2, "cpu\n"),
            (
                "sys/fs/cgroup/system.slice/b.service/cgroup.threads",
                "1\n2\n",
            ),
            (
                "sys/fs/cgroup/system.slice/b.service/own/cgroup.threads",
                "3\n",
            ),
            ("sys/fs/cgroup/system.slice/a.service/cgroup.threads", ""),
            ("sys/fs/cgroup/other/cgroup.threads", "4\n"),
        ]);
        let hierarchies = Hierarchies::of(&roots);
        let name_of = |group: &str| {
            let name = group.rsplit('/').next()?;
            name.ends_with(".service").then(|| name.to_owned())
        };
        let services = service_groups(&hierarchies, &name_of).unwrap();
        let groups: Vec<&str> = services.iter().map(|found| found.group.as_str()).collect();
        assert_eq!(groups, ["system.slice/a.service", "system.slice/b.service"]);
        let mut threads = services[1].threads(&hierarchies).unwrap();
        threads.sort_unstable();
        assert_eq!(threads, [1, 2, 3]);
        std::fs::remove_dir_all(roots.sys("fs/cgroup/system.slice")).unwrap();
        assert!(services[1].threads(&hierarchies).unwrap().is_empty());
        let nothing = Hierarchies::of(&Roots::at("/nonexistent"));
        assert!(matches!(
            service_groups(&nothing, &name_of),
            Err(HostError::NoController { .. })
        ));
    }

    #[test]
    fn a_group_has_the_processes_of_those_below_it() {
        let (_dir, roots) = fake(&[
            ("sys/fs/cgroup/cpu/a/cgroup.procs", ""),
            ("sys/fs/cgroup/cpu/a/b/cgroup.procs", "7\n"),
            ("sys/fs/cgroup/cpu/c/cgroup.procs", ""),
        ]);
        let v1 = Hierarchies::of(&roots);
        let answers = ["a", "a/b", "c", "gone"].map(|group| has_process(&v1, group).unwrap());
        assert_eq!(answers, [true, true, false, false]);
        assert!(has_process(&v1, "a/../..").is_err());
        let (_dir, roots) = fake(&[
            (V2, "cpu\n"),
            ("sys/fs/cgroup/a/cgroup.events", "populated 1\nfrozen 0\n"),
            ("sys/fs/cgroup/b/cgroup.events", "populated 0\nfrozen 0\n"),
        ]);
        let v2 = Hierarchies::of(&roots);
        let answers = ["a", "b", "gone"].map(|group| has_process(&v2, group).unwrap());
        assert_eq!(answers, [true, false, false]);
        let nothing = Hierarchies::of(&Roots::at("/nonexistent"));
        assert!(has_process(&nothing, "a").is_err());
    }

    #[test]
    fn a_process_has_a_group_in_each_hierarchy_that_is_asked_for() {
        let text =
            "12:pids:/p\n5:memory:/m/n\n4:cpu,cpuacct:/a\n3:freezer:/a\n1:name=systemd:/s\n0::/\n";
        let (_dir, roots) = fake(&[("proc/7/cgroup", text)]);
        let of = |pid| groups_of(&roots, pid, &["cpu", "memory", "freezer"]);
        assert_eq!(of(7).unwrap(), ["m/n", "a", ""]);
        assert!(matches!(of(8), Err(HostError::NoSuchProcess { pid: 8 })));
    }

    #[test]
    fn a_path_names_the_same_group_however_it_is_written() {
        let (_dir, roots) = fake(&[("sys/fs/cgroup/cpu/a/b/tasks", "")]);
        let top = roots.sys("fs/cgroup/cpu/a/b/").display().to_string();
        for path in ["a/b", "/a/b/", "a//b", "/a/./b/", &top] {
            assert_eq!(group_of_path(&roots, path).unwrap(), "a/b", "{path}");
        }
        assert!(matches!(
            group_of_path(&roots, "a/../a/b"),
            Err(HostError::InvalidName { .. })
        ));
    }

    #[test]
    fn a_process_is_found_in_the_hierarchy_of_the_cpu_controller() {
        let text = "5:memory:/m\n4:cpu,cpuacct:/a/b\n0::/init.scope\n";
        let (_dir, roots) = fake(&[
            ("proc/7/cgroup", text),
            ("sys/fs/cgroup/cpu/a/tasks", "7\n8\n"),
            ("sys/fs/cgroup/cpu/a/b/tasks", "9\n"),
        ]);
        assert_eq!(group_of(&roots, 7).unwrap(), "a/b");
        assert!(matches!(
            group_of(&roots, 8),
            Err(HostError::NoSuchProcess { pid: 8 })
        ));
        let mut threads = threads_below(&roots, "a").unwrap();
        threads.sort_unstable();
        assert_eq!(threads, [7, 8, 9]);
        assert!(matches!(
            threads_below(&roots, "c"),
            Err(HostError::Absent { .. })
        ));
        let (_dir, roots) = fake(&[("proc/7/cgroup", "0::/x.slice/y.scope\n"), (V2, "cpu\n")]);
        assert_eq!(group_of(&roots, 7).unwrap(), "x.slice/y.scope");
        let (_dir, roots) = fake(&[("proc/7/cgroup", "5:memory:/m\n"), (V2, "cpu\n")]);
        assert!(matches!(group_of(&roots, 7), Err(HostError::Parse { .. })));
    }
}
