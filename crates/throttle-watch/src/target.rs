//! Which control group is watched.

use std::path::Path;

use host::{Hierarchies, Roots, ServiceGroup};

use crate::container::container_id;
use crate::error::ThrottleError;

/// Whom to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceTarget {
    /// The control group of this process.
    Process(u32),
    /// A control group: the path below the root of the hierarchy, or the full path.
    Group(String),
    /// A systemd unit, such as `nginx.service` or `nginx`.
    Unit(String),
    /// A container's id, or its first digits.
    Container(String),
}

/// That no other group's limit is the one that counts for this one; what is done `to` a limit is
/// done to its own.
///
/// # Errors
/// [`ThrottleError::LimitedByAnother`], or the kernel's files cannot be read.
pub(crate) fn ensure_own_limit(
    roots: &Roots,
    group: &str,
    to: &'static str,
) -> Result<(), ThrottleError> {
    let tightest = host::tightest_quota(roots, group)?;
    match tightest.filter(|tightest| tightest.group != group) {
        None => Ok(()),
        Some(tightest) => Err(ThrottleError::LimitedByAnother {
            group: named(group).to_owned(),
            by: named(&tightest.group).to_owned(),
            by_path: tightest.group,
            cores: tightest.quota.cores(),
            to,
        }),
    }
}

/// A group's name for people.
#[must_use]
pub fn named(group: &str) -> &str {
    if group.is_empty() {
        "the root group"
    } else {
        group
    }
}

/// The control group that is meant, as it is now.
///
/// # Errors
/// There is none, or there are several.
pub fn group_of(roots: &Roots, target: &ServiceTarget) -> Result<String, ThrottleError> {
    match target {
        ServiceTarget::Process(pid) => Ok(host::group_of(roots, *pid)?),
        ServiceTarget::Unit(unit) => group_of_unit(roots, unit),
        ServiceTarget::Container(id) => group_of_container(roots, id),
        ServiceTarget::Group(path) => {
            host::group_of_path(roots, path).map_err(|error| match error {
                // Its path in another controller's hierarchy, most likely.
                host::HostError::Absent { path: at, .. }
                    if Path::new(path).starts_with(roots.sys("fs/cgroup"))
                        && at != Path::new(path) =>
                {
                    ThrottleError::OtherHierarchy { path: path.clone() }
                }
                host::HostError::Absent { path, .. } => ThrottleError::NoGroup { path },
                error => error.into(),
            })
        }
    }
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
fn group_of_unit(roots: &Roots, unit: &str) -> Result<String, ThrottleError> {
    let unit = &full_unit_name(unit);
    let name_of = |group: &str| {
        let name = group.rsplit('/').next()?;
        (name == unit).then(|| name.to_owned())
    };
    let pattern = match unit.contains(['*', '?', '[']) {
        true => " Patterns are not allowed: name one unit.",
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

fn group_of_container(roots: &Roots, id: &str) -> Result<String, ThrottleError> {
    let is_it = |short: &&str| short.starts_with(id) || id.starts_with(short);
    let name_of = |group: &str| {
        let short = container_id(group.rsplit('/').next()?).filter(is_it)?;
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
) -> Result<String, ThrottleError> {
    let found = host::service_groups(&Hierarchies::of(roots), name_of)?;
    match found.as_slice() {
        [one] => Ok(one.group.clone()),
        [] => Err(ThrottleError::NotOneGroup { reason: none }),
        [first, second, ..] => Err(ThrottleError::NotOneGroup {
            reason: several(first, second),
        }),
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

    /// As systemd.unit(5) escapes a dash in the name of a slice.
    #[test]
    fn a_unit_is_found_below_an_escaped_slice() {
        let dir = tempfile::tempdir().unwrap();
        let slice = "shadow.slice/shadow-rust\\x2dnew.slice";
        let service = format!("{slice}/shadow-rust@config.service");
        let root = dir.path().join("sys/fs/cgroup");
        std::fs::create_dir_all(root.join(&service)).unwrap();
        std::fs::write(root.join("cgroup.controllers"), "cpu\n").unwrap();
        let found = |unit: &str| {
            let group = group_of(
                &Roots::at(dir.path()),
                &ServiceTarget::Unit(unit.to_owned()),
            );
            group.map_err(|error| error.to_string())
        };
        for unit in ["shadow-rust@config.service", "shadow-rust@config"] {
            assert_eq!(found(unit).unwrap(), service);
        }
        assert_eq!(found("shadow-rust\\x2dnew.slice").unwrap(), slice);
        let none = found("shadow-rust@other").unwrap_err();
        assert!(none.contains("named shadow-rust@other.service"), "{none}");
        let pattern = found("shadow-rust@*.service").unwrap_err();
        assert!(pattern.contains("Patterns are not allowed"), "{pattern}");
    }
}
