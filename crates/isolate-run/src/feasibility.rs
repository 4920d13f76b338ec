//! What of a configuration this host cannot do, and what has no effect: said before it is run.

use std::path::Path;

use experiment_spec::Source;
use host::{CgroupVersion, Hierarchies, HostError, Roots};
use isolation::{ActuatorSetting, Policy};

use crate::actuators::of_setting;
use crate::config::IsolationConfig;
use crate::error::IsolateError;
use crate::subject::is_same_or_above;

/// A service or a best-effort group, and its control group if it has one.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    /// As in messages, `service web`.
    subject: String,
    group: Option<String>,
}

impl Placed {
    pub(crate) fn service(name: &str, group: Option<&str>) -> Self {
        Self {
            subject: format!("service {name}"),
            group: group.map(str::to_owned),
        }
    }

    pub(crate) fn work(name: &str, group: &str) -> Self {
        Self {
            subject: format!("group {name}"),
            group: Some(group.to_owned()),
        }
    }
}

/// The settings of `static` that this host lacks or refuses: each once, with file, line and key.
///
/// # Errors
///
/// The file cannot be read any more.
pub(crate) fn lacking(
    path: &Path,
    config: &IsolationConfig,
    services: &[Placed],
    groups: &[Placed],
    roots: &Roots,
) -> Result<Vec<String>, IsolateError> {
    let fixed = &config.policy.fixed;
    let source = Source::read(path)?;
    let disk = config.policy.io_device.as_deref();
    let machine = [Placed {
        subject: "the machine".to_owned(),
        group: Some(String::new()),
    }];
    let mut said = Vec::new();
    for (settings, all) in [
        (fixed.of_machine(), &machine[..]),
        (fixed.of_group(1), groups),
        (fixed.of_service(), services),
    ] {
        for (key, setting) in settings {
            let wrong = all.iter().find_map(|placed| {
                let why = possible(roots, disk, placed.group.as_deref(), setting).err()?;
                Some(format!("{}: {why}", placed.subject))
            });
            let key = format!("policy.static.{key}");
            said.extend(wrong.map(|why| source.error(&key, why).to_string()));
        }
    }
    Ok(said)
}

/// Whether the host has the actuator, and the kernel takes the value.
fn possible(
    roots: &Roots,
    disk: Option<&str>,
    group: Option<&str>,
    setting: ActuatorSetting,
) -> Result<(), String> {
    let group = group.ok_or("it has no control group of its own")?;
    let Some((actuator, wanted)) = of_setting(roots, disk, group, setting)? else {
        return Ok(());
    };
    actuator.probe(roots)?;
    let Some(wanted) = wanted else {
        return Ok(());
    };
    match actuator.writes(roots, &wanted) {
        Err(error @ HostError::Unfit { .. }) => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// Where the policy's `cpu.idle` has no effect, in sentences.
pub(crate) fn idle_without_effect(
    config: &IsolationConfig,
    services: &[Placed],
    groups: &[Placed],
) -> Vec<String> {
    let sets_idle = match config.policy.name {
        Policy::Slackline => true,
        Policy::Static => config.policy.fixed.cpu_idle == Some(true),
        _ => false,
    };
    let mut said = Vec::new();
    for work in groups.iter().filter(|_| sets_idle) {
        let Some(group) = work.group.as_deref() else {
            continue;
        };
        for service in services {
            let theirs = service.group.as_deref().unwrap_or_default();
            let Some(top) = competitor(group, theirs) else {
                continue;
            };
            said.push(format!(
                "cpu.idle of {} does not put it behind {}: the kernel compares {top} with the service, not {group}. \
                 If {top} holds best-effort work alone, name {top} instead.",
                work.subject, service.subject
            ));
        }
    }
    said
}

/// Where the kernel does not count the CPU time of a group, in a sentence: on v1 a group can be in
/// the hierarchy of cpu and not in that of cpuacct.
pub(crate) fn not_counted(hierarchies: &Hierarchies, placed: &Placed) -> Option<String> {
    let group = placed.group.as_deref()?.trim_matches('/');
    let (CgroupVersion::V1, _) = hierarchies.controller("cpu")? else {
        return None;
    };
    let subject = &placed.subject;
    let Some((_, top)) = hierarchies.controller("cpuacct") else {
        return Some(format!(
            "The hierarchy cpuacct is not mounted, so the CPU time of {subject} is counted by its processes, without \
             short-lived ones: mount it (mount -t cgroup -o cpuacct cpuacct /sys/fs/cgroup/cpuacct)."
        ));
    };
    let directory = top.join(group);
    (!directory.is_dir()).then(|| {
        format!(
            "{subject} is missing in the hierarchy cpuacct, so its CPU time is counted by its processes, without \
             short-lived ones: mkdir {} and move its processes there, too, or name a unit.",
            directory.display()
        )
    })
}

/// The commands that are not started while only observing, in a sentence each.
pub(crate) fn not_started(config: &IsolationConfig, observe: bool) -> Vec<String> {
    let commands = config
        .best_effort
        .iter()
        .filter(|work| observe && work.command.is_some());
    let said = commands.map(|work| {
        format!(
            "The command of group {} is not started while isolate only observes: start the work yourself and name its \
             cgroup or pid instead, or remove observe.",
            work.name
        )
    });
    said.collect()
}

/// The group above `group` that competes with `other` for the CPU; `None` where `group` itself
/// does. The kernel compares what stands beside each other below the nearest group that holds both
/// (kernel/sched/fair.c, `find_matching_se`).
fn competitor<'a>(group: &'a str, other: &str) -> Option<&'a str> {
    let group = group.trim_matches('/');
    let mut own = group;
    // The root group holds everybody.
    while let Some((parent, _)) = own.rsplit_once('/') {
        if is_same_or_above(parent, other) {
            break;
        }
        own = parent;
    }
    (own != group).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_only_the_cpu_hierarchy_has_is_not_counted() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("sys/fs/cgroup");
        let make = |path: &str| std::fs::create_dir_all(top.join(path)).unwrap();
        let roots = Roots::at(dir.path());
        let placed = Placed::work("batch", "/jobs/batch");
        let said = || not_counted(&Hierarchies::of(&roots), &placed);
        assert_eq!(said(), None);
        make("cpu/jobs/batch");
        assert!(said().unwrap().contains("is not mounted"));
        make("cpuacct/jobs");
        let text = said().unwrap();
        let begin =
            "group batch is missing in the hierarchy cpuacct, so its CPU time is counted by";
        assert!(text.starts_with(begin), "{text}");
        let mkdir = format!("mkdir {} and", top.join("cpuacct/jobs/batch").display());
        assert!(text.contains(&mkdir), "{text}");
        make("cpuacct/jobs/batch");
        assert_eq!(said(), None);
        // Who has no group of its own is counted by its threads anyway.
        let placed = Placed::service("web", None);
        assert_eq!(not_counted(&Hierarchies::of(&roots), &placed), None);
    }

    #[test]
    fn a_group_competes_with_what_stands_beside_it() {
        for (group, other, wanted) in [
            ("batch", "web", None),
            ("batch", "a/web", None),
            ("/a/batch/", "a/web", None),
            ("a/batch", "a", None),
            ("a/batch", "a/b/web", None),
            ("a/batch", "web", Some("a")),
            ("a/batch", "ab/web", Some("a")),
            ("a/b/batch", "a/c/web", Some("a/b")),
            ("a/b/batch", "c/web", Some("a")),
            // Processes of the root group stand beside the groups below it.
            ("batch", "", None),
            ("a/batch", "", Some("a")),
        ] {
            assert_eq!(competitor(group, other), wanted, "{group} {other}");
        }
    }
}
