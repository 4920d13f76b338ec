//! What would be steered by what on this host, and what the host lacks. Nothing is changed.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use host::{Actuator, CgroupVersion, CpuQuotaLimit, Cpuset, Hierarchies, Roots};
use isolation::ActuatorSetting;
use serde::Serialize;
use wire_latency::{LatencySource, NoData};

use crate::actuators::{disk_number, first_disk, of_group, of_machine, of_setting};
use crate::best_effort::CONTROLLERS;
use crate::config::{BestEffort, IsolationConfig};
use crate::error::IsolateError;
use crate::feasibility::{Placed, lacking, notes};
use crate::form::on_one_line;
use crate::latency::surroundings;
use crate::program::{missing_program, missing_programs};
use crate::reserved::{Judge, refusals};
use crate::subject::{Place, group_of_work, own_group, place_of};
use crate::used::UsedActuators;

/// Groups that are looked at to find out what a group that does not exist yet will have.
const STAND_INS_MAX: usize = 32;

/// How long a source is tried. On the wire, a second without a packet shows that nobody listens.
const TRY: Duration = Duration::from_millis(1200);

/// One actuator of one group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckRow {
    /// Service or group.
    pub subject: String,
    /// The actuator.
    pub actuator: String,
    /// How it can be used.
    pub available: Option<String>,
    /// What is in force.
    pub now: Option<String>,
    /// Why it cannot be used.
    pub missing: Option<String>,
    /// Whether the policy may write it.
    pub is_used: bool,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Check {
    /// What is steered, in sentences.
    pub sentences: Vec<String>,
    /// Actuators.
    pub rows: Vec<CheckRow>,
    /// What would keep `run` from working, in sentences.
    pub problems: Vec<String>,
    /// What will have no effect, in sentences.
    pub notes: Vec<String>,
}

/// Of whom the rows are, and which of them the policy uses.
#[derive(Clone, Copy)]
struct Subject<'a> {
    name: &'a str,
    used: &'a BTreeSet<&'static str>,
}

fn row(of: Subject<'_>, actuator: &dyn Actuator, roots: &Roots) -> CheckRow {
    let subject = of.name;
    let probed = actuator.probe(roots);
    CheckRow {
        is_used: of.used.contains(actuator.name()),
        subject: subject.to_owned(),
        actuator: actuator.name().to_owned(),
        now: actuator.read(roots).ok().filter(|_| probed.is_ok()),
        available: probed.as_ref().ok().cloned(),
        missing: probed.err(),
    }
}

/// The service's own quota, which some policies lower.
fn quota_row(of: Subject<'_>, group: Option<&str>, roots: &Roots) -> CheckRow {
    if let Some(group) = group {
        let group = group.to_owned();
        return row(of, &CpuQuotaLimit { group }, roots);
    }
    CheckRow {
        is_used: of.used.contains("quota"),
        subject: of.name.to_owned(),
        actuator: "quota".to_owned(),
        available: None,
        now: None,
        missing: Some("the service has no control group of its own".to_owned()),
    }
}

/// What is set of a service beside its quota: its cores, where best-effort work gets some of its
/// own, and what `static` sets.
fn other_rows(
    of: Subject<'_>,
    config: &IsolationConfig,
    place: &Place,
    roots: &Roots,
) -> Vec<CheckRow> {
    let Some(group) = &place.group else {
        return Vec::new();
    };
    let cpuset = Cpuset {
        group: group.clone(),
    };
    let cores = of.used.contains("cpuset");
    let cores = cores.then(|| row(of, &cpuset, roots));
    let disk = config.policy.io_device.as_deref();
    let settings = config.policy.fixed.of_service().into_iter();
    settings
        .filter(|(_, setting)| !matches!(setting, ActuatorSetting::QuotaCores(_)))
        .filter_map(|(_, setting)| of_setting(roots, disk, group, setting).ok().flatten())
        .map(|(actuator, _)| row(of, actuator.as_ref(), roots))
        .chain(cores)
        .collect()
}

/// The actuators of a best-effort group, with the limit on what it sends where a device is named.
fn actuators_of(
    group: &str,
    config: &IsolationConfig,
    disk: Option<&str>,
) -> Vec<Box<dyn Actuator>> {
    let mut all = of_group(group, disk);
    if let Some(device) = config.policy.link_device.clone() {
        let group = group.to_owned();
        all.push(Box::new(host::Egress { group, device }));
    }
    all
}

/// Groups that have what a new group at the top will have: on v1 the root group has the same files,
/// and on v2 the groups below it.
fn stand_ins(hierarchies: &Hierarchies) -> Vec<String> {
    let mut found = BTreeSet::new();
    for controller in CONTROLLERS {
        let Some((_, top)) = hierarchies.controller(controller) else {
            continue;
        };
        let entries = std::fs::read_dir(top).into_iter().flatten().flatten();
        let groups = entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok());
        found.extend(groups.take(STAND_INS_MAX));
    }
    std::iter::once(String::new()).chain(found).collect()
}

/// As [`row`], of each actuator of a group that `run` makes: what another group has, it will have.
fn rows_of_new_group(
    of: Subject<'_>,
    config: &IsolationConfig,
    disk: Option<&str>,
    roots: &Roots,
) -> Vec<CheckRow> {
    let hierarchies = Hierarchies::of(roots);
    let others: Vec<Vec<Box<dyn Actuator>>> = stand_ins(&hierarchies)
        .iter()
        .map(|group| actuators_of(group, config, disk))
        .collect();
    let own = actuators_of("", config, disk).into_iter().enumerate();
    own.map(|(index, actuator)| {
        let probed = others.iter().filter_map(|all| all.get(index));
        let mut probed = probed.map(|other| other.probe(roots));
        // Neither root group can be frozen, and every group below it can.
        let frozen = match hierarchies.controller("freezer") {
            Some((CgroupVersion::V1, _)) => Some("v1".to_owned()),
            _ => None,
        };
        let found = match frozen.filter(|_| actuator.name() == "freezer") {
            Some(form) => Ok(form),
            None => probed
                .find(Result::is_ok)
                .unwrap_or_else(|| actuator.probe(roots)),
        };
        let available = found.as_ref().ok();
        CheckRow {
            is_used: of.used.contains(actuator.name()),
            subject: of.name.to_owned(),
            actuator: actuator.name().to_owned(),
            available: available.map(|form| format!("{form}, once run has made the group")),
            now: None,
            missing: found.err(),
        }
    })
    .collect()
}

/// Where best-effort work is: in a group that exists, or in one that `run` makes unless it only
/// observes.
fn described(work: &BestEffort, existing: Option<&str>, observe: bool) -> String {
    if let Some(group) = existing {
        return format!("control group {group}, which exists");
    }
    let own = own_group(work);
    let pid = work.pid.unwrap_or_default();
    let command = work.command.as_ref();
    let command = command.map(|words| on_one_line(&words.join(" ")));
    match (command, observe) {
        (Some(command), false) => {
            format!("control group {own}, in which `run` starts the command {command}")
        }
        (Some(command), true) => {
            format!("the command {command}, which `run` does not start while it only observes")
        }
        (None, false) => {
            format!("control group {own}, into which `run` moves process {pid} and its children")
        }
        (None, true) => {
            format!(
                "process {pid} and its children, which `run` does not move while it only observes"
            )
        }
    }
}

/// Why a source gives no data, if it gives none. A service that nobody asks just now is fine.
fn trouble(source: &mut dyn LatencySource) -> Option<String> {
    match source.poll(Instant::now() + TRY) {
        Ok(_) | Err(NoData::Starting | NoData::Idle { .. }) => None,
        Err(no_data) => Some(no_data.to_string()),
    }
}

/// The services that are there, with their names.
fn check_services(
    config: &IsolationConfig,
    used: &UsedActuators,
    roots: &Roots,
    check: &mut Check,
) -> Vec<(String, Place)> {
    let mut services = Vec::new();
    for (index, (service, objective, source)) in config.services.iter().enumerate() {
        let place = match place_of(roots, service) {
            Ok(place) => place,
            Err(error) => {
                let problem = config.about_service(index, error);
                check.problems.push(problem.to_string());
                continue;
            }
        };
        let group = place.group.as_deref().unwrap_or("/");
        let pid = place.pid.or_else(|| place.pids(roots).first().copied());
        let surroundings = surroundings(pid, objective, config.services.len());
        // A missing program is said for itself.
        let can_run = missing_program(source).is_none();
        let source = match wire_latency::open(source, &surroundings) {
            Ok(mut source) => {
                if can_run && let Some(why) = trouble(source.as_mut()) {
                    let key = config.key_of_source(index, None);
                    let why = format!("service {}: no data: {why}", service.name);
                    let problem = config.origin.error(&key, why);
                    check.problems.push(problem.to_string());
                }
                source.describe()
            }
            Err(source) => {
                let service = service.name.clone();
                let error = IsolateError::Source { service, source };
                let problem = config.about_source(index, error);
                check.problems.push(problem.to_string());
                "a source that cannot be opened".to_owned()
            }
        };
        check.sentences.push(format!(
            "Service {} (control group {group}): over {} s, the p{} of the latency should be below {} ms. The latency is read from {source}.",
            service.name, objective.window_s, objective.percentile, objective.latency_ms
        ));
        let of = Subject {
            name: &format!("service {}", service.name),
            used: &used.services,
        };
        let group = place.group.as_deref();
        check.rows.push(quota_row(of, group, roots));
        check.rows.extend(other_rows(of, config, &place, roots));
        services.push((service.name.clone(), place));
    }
    services
}

/// The best-effort groups that are there.
fn check_groups(
    config: &IsolationConfig,
    used: &UsedActuators,
    roots: &Roots,
    check: &mut Check,
) -> Vec<Placed> {
    let named = config.policy.io_device.as_deref();
    let disk = disk_number(roots, named).ok().or_else(|| first_disk(roots));
    let disk = disk.as_deref();
    let mut groups = Vec::new();
    for (index, work) in config.best_effort.iter().enumerate() {
        let group = match group_of_work(roots, work) {
            Ok(group) => group,
            Err(error) => {
                let problem = config.about_work(index, error);
                check.problems.push(problem.to_string());
                continue;
            }
        };
        check.sentences.push(format!(
            "Best-effort group {}: {}.",
            work.name,
            described(work, group.as_deref(), config.policy.observe)
        ));
        let of = Subject {
            name: &format!("group {}", work.name),
            used: &used.groups,
        };
        let Some(group) = group else {
            let rows = rows_of_new_group(of, config, disk, roots);
            check.rows.extend(rows);
            continue;
        };
        groups.push(Placed::work(&work.name, &group));
        let rows = actuators_of(&group, config, disk);
        let rows = rows
            .iter()
            .map(|actuator| row(of, actuator.as_ref(), roots));
        check.rows.extend(rows);
    }
    let of = Subject {
        name: "machine",
        used: &used.machine,
    };
    let machine = of_machine(roots, disk);
    let rows = machine.iter();
    let rows = rows.map(|actuator| row(of, actuator.as_ref(), roots));
    check.rows.extend(rows);
    groups
}

/// Checks a configuration against itself and this host.
///
/// # Errors
///
/// The configuration is wrong.
pub fn check(path: &Path, roots: &Roots) -> Result<Check, IsolateError> {
    let config = IsolationConfig::read(path)?;
    let mut check = Check::default();
    let used = UsedActuators::of(&config);
    let services = check_services(&config, &used, roots, &mut check);
    let groups = check_groups(&config, &used, roots, &mut check);
    let observe = if config.policy.observe {
        ", which only observes"
    } else {
        ""
    };
    check
        .sentences
        .push(format!("Policy: {}{observe}.", config.policy.name.name()));
    let services: Vec<Placed> = services
        .iter()
        .map(|(name, place)| Placed::service(name, place.group.as_deref()))
        .collect();
    let refused = refusals(&config, roots, Judge::default());
    let refused = refused.iter().map(ToString::to_string);
    check.problems.extend(refused);
    check
        .problems
        .extend(lacking(&config, &services, &groups, roots));
    let missing = missing_programs(&config, config.policy.observe);
    let missing = missing.iter().map(ToString::to_string);
    check.problems.extend(missing);
    let hierarchies = Hierarchies::of(roots);
    let notes = notes(
        &config,
        &services,
        &groups,
        &hierarchies,
        config.policy.observe,
    );
    check.notes = notes.into_iter().flatten().collect();
    Ok(check)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host of v2 with a nested service and nested batch work.
    fn v2(policy: &str) -> (tempfile::TempDir, Check) {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = dir.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        let cgroup = |file: &str, text: &str| write(&format!("sys/fs/cgroup/{file}"), text);
        cgroup("cgroup.controllers", "cpu io memory\n");
        for group in ["pods/web", "jobs/batch"] {
            cgroup(&format!("{group}/cpu.max"), "max 100000\n");
            cgroup(&format!("{group}/cpu.idle"), "0\n");
            cgroup(&format!("{group}/cpu.weight"), "100\n");
            cgroup(&format!("{group}/memory.low"), "0\n");
            cgroup(&format!("{group}/memory.high"), "max\n");
            cgroup(&format!("{group}/io.max"), "\n");
            cgroup(&format!("{group}/io.bfq.weight"), "default 100\n");
        }
        write("sys/block/vda/dev", "254:0\n");
        write("sys/block/vdb/dev", "254:16\n");
        let text = "[service]\nname = \"web\"\ncgroup = \"pods/web\"\nobjective = { p99_ms = 5 }\n\
             latency = { command = [\"true\"] }\n[[best_effort]]\ncgroup = \"jobs/batch\"\n[policy]\n";
        write("i.toml", &format!("{text}{policy}"));
        let mut check = check(&dir.path().join("i.toml"), &Roots::at(dir.path())).unwrap();
        for problem in &mut check.problems {
            *problem = problem.replace(&format!("{}/", dir.path().display()), "");
        }
        (dir, check)
    }

    #[test]
    fn what_static_sets_and_this_host_lacks_is_named_by_file_line_and_key() {
        let policy = "name = \"static\"\nio_device = \"vdb\"\n[policy.static]\n\
             memory_high_mib = 64\nio_max_read_mb_per_s = 1\nio_weight = 5000\n\
             uclamp_max_percent = 50\nservice_memory_low_mib = 64\n\
             service_uclamp_min_percent = 10\nio_cost = true\n";
        let (_dir, found) = v2(policy);
        let wanted = [
            "i.toml:18: policy.static.io_cost: the machine: no io.cost.qos",
            "i.toml:14: policy.static.io_weight: group batch: io.weight cannot be set to weight 5000",
            "i.toml:15: policy.static.uclamp_max_percent: group batch: the kernel has no CONFIG_UCLAMP",
            "i.toml:17: policy.static.service_uclamp_min_percent: service web: the kernel has no",
        ];
        assert_eq!(found.problems.len(), wanted.len(), "{:#?}", found.problems);
        for (problem, said) in found.problems.iter().zip(wanted) {
            assert!(problem.starts_with(said), "{problem}\n{said}");
        }
        let has = |subject: &str, actuator: &str| {
            let mut rows = found.rows.iter();
            let is_it = |row: &&CheckRow| row.subject == subject && row.actuator == actuator;
            rows.find(is_it).is_some_and(|row| row.available.is_some())
        };
        assert!(has("service web", "memory.low"));
        assert!(has("group batch", "memory.high"));
        assert!(has("group batch", "io.max rbps"));
        assert!(!has("service web", "uclamp.min"));
        assert!(!has("machine", "io.cost"));
        let policy =
            "name = \"static\"\nio_device = \"sdz\"\nstatic = { io_max_write_mb_per_s = 1 }\n";
        let (_dir, found) = v2(policy);
        assert_eq!(
            found.problems,
            [
                "i.toml:11: policy.static.io_max_write_mb_per_s: group batch: there is no disk sdz in /sys/block: \
             lsblk -d shows the names"
            ]
        );
    }

    #[test]
    fn a_cpu_idle_that_does_not_count_against_a_service_is_said() {
        for (policy, is_said) in [
            ("name = \"slackline\"\n", true),
            ("name = \"static\"\nstatic = { cpu_idle = true }\n", true),
            ("name = \"static\"\nstatic = { weight = 1 }\n", false),
            ("name = \"parties\"\n", false),
        ] {
            let (_dir, found) = v2(policy);
            assert!(found.problems.is_empty(), "{:?}", found.problems);
            assert_eq!(found.notes.len(), usize::from(is_said), "{policy}");
            if is_said {
                assert_eq!(
                    found.notes[0],
                    "cpu.idle of group batch does not put it behind service web: the kernel compares jobs with the \
                     service, not jobs/batch. If jobs holds best-effort work alone, name jobs instead."
                );
            }
        }
    }

    fn used(check: &Check) -> Vec<(&str, &str)> {
        let used = check.rows.iter().filter(|row| row.is_used);
        used.map(|row| (row.subject.as_str(), row.actuator.as_str()))
            .collect()
    }

    #[test]
    fn what_the_policy_may_write_is_told_from_what_the_host_has() {
        let (_dir, found) = v2("name = \"slackline\"\n");
        let batch = ["cpu.idle", "quota", "freezer"].map(|actuator| ("group batch", actuator));
        assert_eq!(used(&found), batch);
        assert!(found.rows.len() > batch.len());
        let (_dir, found) = v2("name = \"parties\"\nstatic = { memory_high_mib = 64 }\n");
        let wanted = [
            ("service web", "cpuset"),
            ("group batch", "cpuset"),
            ("group batch", "freezer"),
            ("group batch", "memory.high"),
            ("machine", "resctrl"),
            ("machine", "frequency"),
        ];
        assert_eq!(used(&found), wanted);
        let (_dir, found) = v2("name = \"none\"\n");
        assert!(used(&found).is_empty(), "{:?}", found.rows);
    }

    /// On v1 the root group shows it, on v2 any group below it.
    #[test]
    fn a_group_that_run_makes_has_what_other_groups_have() {
        let v1 = [
            ("cpu/cpu.idle", "0\n"),
            ("cpu/cpu.cfs_quota_us", "-1\n"),
            ("cpu/cpu.cfs_period_us", "100000\n"),
            ("freezer/cgroup.procs", ""),
        ];
        let v2 = [
            ("cgroup.controllers", "cpu\n"),
            ("system.slice/cpu.idle", "0\n"),
            ("system.slice/cpu.max", "max 100000\n"),
            ("system.slice/cgroup.freeze", "0\n"),
        ];
        for (form, files, group) in [("v1", v1, "4:cpu:/\n"), ("v2", v2, "0::/\n")] {
            let dir = tempfile::tempdir().unwrap();
            let write = |file: &str, text: &str| {
                let file = dir.path().join(file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            };
            for (file, text) in files {
                write(&format!("sys/fs/cgroup/{file}"), text);
            }
            write("proc/7/cgroup", group);
            let text = "[service]\npid = 7\nobjective = { p99_ms = 5 }\nlatency = { command = [\"true\"] }\n\
                 [[best_effort]]\ncommand = [\"make\"]\n[policy]\nobserve = true\n";
            write("i.toml", text);
            let found = check(&dir.path().join("i.toml"), &Roots::at(dir.path())).unwrap();
            let make = ["cpu.idle", "quota", "freezer"].map(|actuator| ("group make", actuator));
            assert_eq!(used(&found), make);
            let available = format!("{form}, once run has made the group");
            let rows = found.rows.iter().filter(|row| row.is_used);
            for row in rows {
                assert_eq!(row.available.as_ref(), Some(&available), "{row:?}");
            }
            let weight = |row: &&CheckRow| row.actuator == "weight";
            let weight = found.rows.iter().find(weight).unwrap();
            assert!(weight.missing.is_some(), "{weight:?}");
            // While only observing, the command is not started.
            assert!(found.sentences[1].contains("does not start"), "{found:?}");
            let notes = found.notes.iter();
            let not_started = notes.filter(|note| note.contains("is not started"));
            assert_eq!(not_started.count(), 1, "{:?}", found.notes);
        }
    }

    #[test]
    fn a_service_s_quota_can_be_set_where_it_has_a_group() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = dir.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        write("sys/fs/cgroup/cpu/web/cpu.cfs_quota_us", "-1\n");
        write("sys/fs/cgroup/cpu/web/cpu.cfs_period_us", "100000\n");
        write("proc/7/cgroup", "4:cpu,cpuacct:/\n");
        let service = |name: &str, by: &str| {
            format!(
                "[[service]]\nname = \"{name}\"\n{by}\nobjective = {{ p99_ms = 5 }}\nlatency = {{ command = [\"true\"] }}\n"
            )
        };
        let text = service("web", "cgroup = \"web\"") + &service("bare", "pid = 7");
        write("isolate.toml", &text);
        let check = check(&dir.path().join("isolate.toml"), &Roots::at(dir.path())).unwrap();
        assert!(check.problems.is_empty(), "{:?}", check.problems);
        let rows = check.rows.iter().filter(|row| row.actuator == "quota");
        let rows: Vec<(&str, bool, Option<&str>)> = rows
            .map(|row| {
                (
                    row.subject.as_str(),
                    row.missing.is_some(),
                    row.now.as_deref(),
                )
            })
            .collect();
        let wanted = [
            ("service web", false, Some("max 100000")),
            ("service bare", true, None),
        ];
        assert_eq!(rows, wanted);
    }
}
