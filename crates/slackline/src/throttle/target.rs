//! Which control group a command is about.

use std::path::Path;

use anyhow::Context as _;
use host::{Hierarchies, Roots, ServiceGroup};

use crate::agent::names::container;

/// Whom to watch.
#[derive(clap::Args)]
#[group(multiple = false)]
pub(crate) struct Watched {
    /// The service, given by the id of one of its processes. The whole control group of the process
    /// counts.
    #[arg(long, value_parser = process_number)]
    pub(super) pid: Option<u32>,
    /// The service, given by its control group: the path below the root of the hierarchy, or the
    /// full path. `/` is the whole host.
    #[arg(long, value_name = "PATH", value_parser = not_empty)]
    cgroup: Option<String>,
    /// The service, given by its systemd unit, such as `nginx.service` or `nginx`.
    #[arg(long, value_parser = not_empty)]
    unit: Option<String>,
    /// The service, given by its container's id: the full id, or the first digits as `docker ps`
    /// prints them.
    #[arg(long, value_name = "ID", value_parser = not_empty)]
    container: Option<String>,
}

/// `--pid`. It is often `$(pidof NAME)`, which is empty where nothing runs, and several numbers
/// where several processes do.
pub(crate) fn process_number(text: &str) -> Result<u32, String> {
    let numbers = text.split_whitespace().count();
    match text.trim().parse() {
        Ok(pid) => Ok(pid),
        _ if numbers == 0 => {
            Err("the number of a process is missing: does the program run?".to_owned())
        }
        _ if numbers > 1 => Err(format!("give one process at a time: these are {numbers}")),
        _ => Err("the number of a process is meant, such as 4711".to_owned()),
    }
}

/// A variable of a script that is not set names nobody: it must not stand for the root group, which
/// is the whole host.
fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("it names nobody: is a variable not set?".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// That no other group's limit is the one that counts for this one; what is done `to` a limit is
/// done to its own.
pub(super) fn ensure_own_limit(roots: &Roots, group: &str, to: &str) -> anyhow::Result<()> {
    let tightest = host::tightest_quota(roots, group)?;
    match tightest.filter(|tightest| tightest.group != group) {
        None => Ok(()),
        Some(tightest) => anyhow::bail!(
            "what limits {} is {}, {:.2} cores: {to} that one, give --cgroup {}",
            named(group),
            named(&tightest.group),
            tightest.quota.cores(),
            tightest.group
        ),
    }
}

/// A group's name for people.
pub(super) fn named(group: &str) -> &str {
    if group.is_empty() {
        "the root group"
    } else {
        group
    }
}

pub(crate) fn group_of(roots: &Roots, target: &Watched) -> anyhow::Result<String> {
    if let Some(pid) = target.pid {
        return Ok(host::group_of(roots, pid)?);
    }
    if let Some(unit) = &target.unit {
        return group_of_unit(roots, unit);
    }
    if let Some(id) = &target.container {
        return group_of_container(roots, id);
    }
    let path = target
        .cgroup
        .as_deref()
        .context("give one of --pid, --cgroup, --unit and --container")?;
    host::group_of_path(roots, path).map_err(|error| match error {
        // Its path in another controller's hierarchy, most likely.
        host::HostError::Absent { path: at, .. }
            if Path::new(path).starts_with(roots.sys("fs/cgroup")) && at != Path::new(path) =>
        {
            anyhow::anyhow!(
                "{path} is not in the hierarchy of the cpu controller: name the group from the root of that on, such as \
                 --cgroup system.slice/nginx.service"
            )
        }
        host::HostError::Absent { path, .. } => anyhow::anyhow!(
            "there is no control group {}: is the service running, and in this hierarchy?",
            path.display()
        ),
        error => error.into(),
    })
}

/// A unit's name as systemctl(1) takes it: without an ending it is a service.
fn full_unit_name(unit: &str) -> String {
    // systemd.unit(5).
    const ENDINGS: [&str; 11] = [
        "service",
        "socket",
        "device",
        "mount",
        "automount",
        "swap",
        "target",
        "path",
        "timer",
        "slice",
        "scope",
    ];
    match unit.rsplit_once('.') {
        Some((_, ending)) if ENDINGS.contains(&ending) => unit.to_owned(),
        _ => format!("{unit}.service"),
    }
}

/// The group of a systemd unit: the directory of that name, wherever systemd has put its slice.
fn group_of_unit(roots: &Roots, unit: &str) -> anyhow::Result<String> {
    let unit = &full_unit_name(unit);
    let name_of = |group: &str| {
        let name = group.rsplit('/').next()?;
        (name == unit).then(|| name.to_owned())
    };
    let pattern = match unit.contains(['*', '?', '[']) {
        true => " Patterns are not taken: name one unit.",
        false => "",
    };
    let none = format!(
        "no control group is named {unit} in the hierarchy of the cpu controller: is the unit active?{pattern}"
    );
    // As where systemd runs in a container too, or of a user.
    only_group(roots, &name_of, none, |first, second| {
        format!(
            "several control groups are named {unit}, {} and {} among them: give --cgroup",
            first.group, second.group
        )
    })
}

fn group_of_container(roots: &Roots, id: &str) -> anyhow::Result<String> {
    let is_it = |short: &&str| short.starts_with(id) || id.starts_with(short);
    let name_of = |group: &str| {
        let short = container(group.rsplit('/').next()?).filter(is_it)?;
        Some(short.to_owned())
    };
    let none = format!("no control group is that of a container {id}: does it run on this host?");
    only_group(roots, &name_of, none, |first, second| {
        format!(
            "{id} is the beginning of several containers' ids, {} and {} among them: give more of it",
            first.service, second.service
        )
    })
}

/// The group that `name_of` has a name for; an error in these words where there is none, or another
/// one.
fn only_group(
    roots: &Roots,
    name_of: &dyn Fn(&str) -> Option<String>,
    none: String,
    several: impl FnOnce(&ServiceGroup, &ServiceGroup) -> String,
) -> anyhow::Result<String> {
    let found = host::service_groups(&Hierarchies::of(roots), name_of)?;
    match found.as_slice() {
        [one] => Ok(one.group.clone()),
        [] => anyhow::bail!(none),
        [first, second, ..] => anyhow::bail!(several(first, second)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_without_an_ending_is_a_service() {
        for (given, full) in [
            ("shadow-rust@config", "shadow-rust@config.service"),
            ("nginx", "nginx.service"),
            ("user@1000.service", "user@1000.service"),
            ("a.b", "a.b.service"),
            ("my\\x2dslice.slice", "my\\x2dslice.slice"),
            ("session-3.scope", "session-3.scope"),
        ] {
            assert_eq!(full_unit_name(given), full);
        }
    }
}
