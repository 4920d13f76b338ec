//! Services and best-effort groups on this host: from what the configuration says to a control
//! group and processes.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;

use host::{
    Hierarchies, HostError, Roots, group_of, group_of_path, processes_below, service_groups,
};

use crate::config::{BestEffort, Service};
use crate::error::IsolateError;

/// A shorter piece of a container's id could name two.
const CONTAINER_ID_LEAST: usize = 12;

/// The host, as it was when services and groups were last looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host<'a> {
    pub(crate) roots: &'a Roots,
    pub(crate) hierarchies: &'a Hierarchies,
}

impl Host<'_> {
    pub(crate) fn has_group(self, group: &str) -> bool {
        let top = self.hierarchies.controller("cpu");
        top.is_some_and(|(_, top)| top.join(group.trim_matches('/')).is_dir())
    }

    /// The number of a group's directory. A group that was removed and made again has another one.
    pub(crate) fn group_number(self, group: &str) -> Option<u64> {
        let (_, top) = self.hierarchies.controller("cpu")?;
        let metadata = std::fs::metadata(top.join(group.trim_matches('/'))).ok()?;
        Some(metadata.ino())
    }
}

/// Where something runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its control group; `None` for a process in the root group, which is not its own.
    pub(crate) group: Option<String>,
    /// The process that it was named by.
    pub(crate) pid: Option<u32>,
}

impl Place {
    /// Whether it has a process. Of a service that is named by a process this is that process.
    pub(crate) fn is_running(&self, host: Host<'_>) -> bool {
        match (&self.group, self.pid) {
            (Some(group), _) => host::has_process(host.hierarchies, group).unwrap_or(false),
            (None, Some(pid)) => host::start_time(host.roots, pid).is_ok(),
            (None, None) => false,
        }
    }

    /// Its processes. Of a process in the root group all processes of the host are looked through:
    /// not for every step.
    pub(crate) fn pids(&self, roots: &Roots) -> Vec<u32> {
        match (&self.group, self.pid) {
            (Some(group), _) => processes_below(roots, group).unwrap_or_default(),
            (None, Some(pid)) => host::family(roots, pid)
                .into_iter()
                .map(|(pid, _)| pid)
                .collect(),
            (None, None) => Vec::new(),
        }
    }
}

/// The group of a unit or a container: the one with that name, or with that id in its name.
fn group_named(roots: &Roots, is_it: impl Fn(&str) -> bool) -> Result<Option<String>, HostError> {
    let hierarchies = Hierarchies::of(roots);
    let name_of = |group: &str| {
        let base = group.rsplit('/').next().unwrap_or(group);
        is_it(base).then(|| base.to_owned())
    };
    let mut found = service_groups(&hierarchies, &name_of)?;
    Ok((!found.is_empty()).then(|| found.swap_remove(0).group))
}

fn not_there(subject: &str, why: impl Into<String>) -> IsolateError {
    IsolateError::NotThere {
        subject: subject.to_owned(),
        why: why.into(),
    }
}

fn by_unit(roots: &Roots, subject: &str, unit: &str) -> Result<String, IsolateError> {
    group_named(roots, |base| base == unit)?.ok_or_else(|| {
        not_there(
            subject,
            format!(
                "there is no control group {unit}: is the unit running? systemctl status {unit}"
            ),
        )
    })
}

fn by_container(roots: &Roots, subject: &str, id: &str) -> Result<String, IsolateError> {
    if id.len() < CONTAINER_ID_LEAST {
        return Err(not_there(
            subject,
            "give at least twelve digits of the container's id",
        ));
    }
    group_named(roots, |base| base.contains(id))?.ok_or_else(|| {
        not_there(
            subject,
            format!("no control group has {id} in its name: is the container running?"),
        )
    })
}

fn by_path(roots: &Roots, subject: &str, path: &str) -> Result<String, IsolateError> {
    match group_of_path(roots, path) {
        Ok(group) if group.is_empty() => Err(not_there(
            subject,
            "the root group is everybody's: name a group below it",
        )),
        Ok(group) => Ok(group),
        Err(HostError::Absent { path, .. }) => Err(not_there(
            subject,
            format!("{} does not exist", path.display()),
        )),
        Err(error) => Err(error.into()),
    }
}

/// Where a service runs.
pub(crate) fn place_of(roots: &Roots, service: &Service) -> Result<Place, IsolateError> {
    let subject = format!("service {}", service.name);
    let group = match (
        &service.unit,
        &service.cgroup,
        &service.container,
        service.pid,
    ) {
        (Some(unit), ..) => by_unit(roots, &subject, unit)?,
        (_, Some(path), ..) => by_path(roots, &subject, path)?,
        (_, _, Some(id), _) => by_container(roots, &subject, id)?,
        (.., Some(pid)) => {
            let group = match group_of(roots, pid) {
                Err(HostError::NoSuchProcess { pid }) => {
                    return Err(not_there(
                        &subject,
                        format!("process {pid} does not exist (any more)"),
                    ));
                }
                group => group?,
            };
            return Ok(Place {
                group: (!group.is_empty()).then_some(group),
                pid: Some(pid),
            });
        }
        _ => return Err(not_there(&subject, "nothing says which it is")),
    };
    Ok(Place {
        group: Some(group),
        pid: None,
    })
}

/// As [`place_of`], of a service that was there before. A group that was found by its name and
/// still exists is not searched for again: the search goes through all groups of the host.
pub(crate) fn place_again(
    host: Host<'_>,
    service: &Service,
    known: Option<&Place>,
) -> Result<Place, IsolateError> {
    let is_by_name = service.unit.is_some() || service.container.is_some();
    match known {
        Some(place) if is_by_name && is_still_there(host, place) => Ok(place.clone()),
        _ => place_of(host.roots, service),
    }
}

fn is_still_there(host: Host<'_>, place: &Place) -> bool {
    let group = place.group.as_deref();
    group.is_some_and(|group| host.has_group(group))
}

/// As [`group_of_work`], of work that was there before.
pub(crate) fn group_again(
    host: Host<'_>,
    work: &BestEffort,
    known: Option<&Place>,
) -> Result<Option<String>, IsolateError> {
    match known {
        Some(place) if is_still_there(host, place) => Ok(place.group.clone()),
        _ => group_of_work(host.roots, work),
    }
}

/// The group of best-effort work that exists already; `None` where Slackline makes it.
pub(crate) fn group_of_work(
    roots: &Roots,
    work: &BestEffort,
) -> Result<Option<String>, IsolateError> {
    let subject = format!("best-effort group {}", work.name);
    match (&work.unit, &work.cgroup, &work.container) {
        (Some(unit), ..) => by_unit(roots, &subject, unit).map(Some),
        (_, Some(path), _) => by_path(roots, &subject, path).map(Some),
        (_, _, Some(id)) => by_container(roots, &subject, id).map(Some),
        _ => Ok(None),
    }
}

/// A longer name is cut: a directory's name has at most 255 bytes (include/uapi/linux/limits.h,
/// `NAME_MAX`).
const OWN_NAME_MAX_CHARS: usize = 64;

/// The name of the group that Slackline makes for best-effort work. Other names have other groups.
pub(crate) fn own_group(work: &BestEffort) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name = work.name.trim_start_matches('.').chars();
    let name: String = name
        .map(|c| if is_plain(c) { c } else { '-' })
        .take(OWN_NAME_MAX_CHARS)
        .collect();
    if name == work.name {
        return format!("slackline-isolate-{name}");
    }
    let mut hasher = DefaultHasher::new();
    work.name.hash(&mut hasher);
    format!(
        "slackline-isolate-{name}-{:08x}",
        hasher.finish() & 0xffff_ffff
    )
}

/// Whether one group is the other, or above it: then the two cannot be told apart.
pub(crate) fn is_same_or_above(a: &str, b: &str) -> bool {
    let (a, b) = (a.trim_matches('/'), b.trim_matches('/'));
    a == b || b.strip_prefix(a).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_hold_each_other_are_found() {
        assert!(is_same_or_above("a", "/a/"));
        assert!(is_same_or_above("a", "a/b"));
        assert!(!is_same_or_above("a/b", "a"));
        assert!(!is_same_or_above("a", "ab"));
    }

    #[test]
    fn each_name_has_a_group_of_its_own() {
        let group = |name: &str| {
            let work = serde_json::json!({ "name": name, "command": ["x"] });
            own_group(&serde_json::from_value(work).unwrap())
        };
        assert_eq!(group("batch_1.x"), "slackline-isolate-batch_1.x");
        let long = "x".repeat(300);
        let names = [
            "a b",
            "a/b",
            "a-b",
            "a b ",
            "pid 7",
            "pid-7",
            ".a",
            "a",
            "..",
            "",
            "ä",
            "ö",
            &long,
            &long[1..],
        ];
        let groups: std::collections::BTreeSet<String> = names.map(group).into();
        assert_eq!(groups.len(), names.len(), "{groups:?}");
        for group in groups {
            assert!(
                group.starts_with("slackline-isolate-") && group.len() < 100,
                "{group}"
            );
            assert!(group.is_ascii() && !group.contains(['/', ' ']), "{group}");
        }
    }

    #[test]
    fn a_unit_is_found_by_its_name_wherever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir
            .path()
            .join("sys/fs/cgroup/cpu/system.slice/web.service");
        std::fs::create_dir_all(&group).unwrap();
        let id = "0123456789abcdef";
        std::fs::create_dir_all(
            dir.path()
                .join(format!("sys/fs/cgroup/cpu/docker-{id}.scope")),
        )
        .unwrap();
        let roots = Roots::at(dir.path());
        let found = "system.slice/web.service";
        assert_eq!(
            by_unit(&roots, "service web", "web.service").unwrap(),
            found
        );
        assert_eq!(
            by_container(&roots, "service c", &id[..12]).unwrap(),
            format!("docker-{id}.scope")
        );
        let error = by_unit(&roots, "service db", "db.service")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("service db is not there"), "{error}");
        assert!(by_container(&roots, "service c", "0123").is_err());
        assert!(by_path(&roots, "service r", "/").is_err());
    }

    #[test]
    fn a_unit_that_is_still_there_is_not_searched_for_again() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("sys/fs/cgroup/cpu");
        let make = |group: &str| std::fs::create_dir_all(top.join(group)).unwrap();
        make("b.slice/web.service");
        let roots = Roots::at(dir.path());
        let hierarchies = Hierarchies::of(&roots);
        let host = Host {
            roots: &roots,
            hierarchies: &hierarchies,
        };
        let text = r#"{ "unit": "web.service", "objective": { "p99_ms": 5 } }"#;
        let service: Service = serde_json::from_str(text).unwrap();
        let work: BestEffort = serde_json::from_str(r#"{ "unit": "web.service" }"#).unwrap();
        let known = place_of(&roots, &service).unwrap();
        // Another one of that name would be found first.
        make("a.slice/web.service");
        let again = place_again(host, &service, Some(&known)).unwrap();
        assert_eq!(again.group.as_deref(), Some("b.slice/web.service"));
        let group = || group_again(host, &work, Some(&known)).unwrap();
        assert_eq!(group().as_deref(), Some("b.slice/web.service"));
        std::fs::remove_dir_all(top.join("b.slice")).unwrap();
        let again = place_again(host, &service, Some(&known)).unwrap();
        assert_eq!(again.group.as_deref(), Some("a.slice/web.service"));
        assert_eq!(group().as_deref(), Some("a.slice/web.service"));
    }
}
