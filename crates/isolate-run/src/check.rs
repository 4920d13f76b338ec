//! What would be steered by what on this host, and what the host lacks. Nothing is changed.

use std::path::Path;
use std::time::{Duration, Instant};

use host::{Actuator, CpuQuotaLimit, Roots};
use isolation::ActuatorSetting;
use serde::Serialize;
use wire_latency::{LatencySource, NoData};

use crate::actuators::{disk_number, first_disk, of_group, of_machine, of_setting};
use crate::config::{BestEffort, IsolationConfig, Service};
use crate::error::IsolateError;
use crate::feasibility::{Placed, idle_without_effect, lacking};
use crate::latency::surroundings;
use crate::subject::{Place, group_of_work, is_same_or_above, own_group, place_of};

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

fn row(subject: &str, actuator: &dyn Actuator, roots: &Roots) -> CheckRow {
    let probed = actuator.probe(roots);
    CheckRow {
        subject: subject.to_owned(),
        actuator: actuator.name().to_owned(),
        now: actuator.read(roots).ok().filter(|_| probed.is_ok()),
        available: probed.as_ref().ok().cloned(),
        missing: probed.err(),
    }
}

/// The service's own quota, which some policies lower.
fn quota_row(service: &str, group: Option<&str>, roots: &Roots) -> CheckRow {
    let subject = format!("service {service}");
    if let Some(group) = group {
        let group = group.to_owned();
        return row(&subject, &CpuQuotaLimit { group }, roots);
    }
    CheckRow {
        subject,
        actuator: "quota".to_owned(),
        available: None,
        now: None,
        missing: Some("the service has no control group of its own".to_owned()),
    }
}

/// What `static` sets of a service beside its quota.
fn fixed_rows(
    config: &IsolationConfig,
    service: &Service,
    place: &Place,
    roots: &Roots,
) -> Vec<CheckRow> {
    let Some(group) = &place.group else {
        return Vec::new();
    };
    let subject = format!("service {}", service.name);
    let disk = config.policy.io_device.as_deref();
    let settings = config.policy.fixed.of_service().into_iter();
    settings
        .filter(|(_, setting)| !matches!(setting, ActuatorSetting::QuotaCores(_)))
        .filter_map(|(_, setting)| of_setting(roots, disk, group, setting).ok().flatten())
        .map(|(actuator, _)| row(&subject, actuator.as_ref(), roots))
        .collect()
}

/// Where best-effort work is: in a group that exists, or in one that `run` makes.
fn described(work: &BestEffort, existing: Option<&str>) -> String {
    let own = own_group(work);
    match (existing, &work.command) {
        (Some(group), _) => format!("control group {group}, which exists"),
        (None, Some(words)) => {
            let command = words.join(" ");
            format!("control group {own}, in which `run` starts the command {command}")
        }
        (None, None) => {
            let pid = work.pid.unwrap_or_default();
            format!("control group {own}, into which `run` moves process {pid} and its children")
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
    roots: &Roots,
    check: &mut Check,
) -> Vec<(String, Place)> {
    let mut services = Vec::new();
    for (service, objective, source) in &config.services {
        let place = match place_of(roots, service) {
            Ok(place) => place,
            Err(error) => {
                check.problems.push(error.to_string());
                continue;
            }
        };
        let group = place.group.as_deref().unwrap_or("/");
        let pid = place.pid.or_else(|| place.pids(roots).first().copied());
        let surroundings = surroundings(pid, objective, config.services.len());
        let source = match wire_latency::open(source, &surroundings) {
            Ok(mut source) => {
                if let Some(why) = trouble(source.as_mut()) {
                    let problem = format!("service {}: no data: {why}", service.name);
                    check.problems.push(problem);
                }
                source.describe()
            }
            Err(error) => {
                let problem = format!("service {}: {error}", service.name);
                check.problems.push(problem);
                "a source that cannot be opened".to_owned()
            }
        };
        check.sentences.push(format!(
            "Service {} (control group {group}): over {} s, the p{} of the latency should be below {} ms. The latency is read from {source}.",
            service.name, objective.window_s, objective.percentile, objective.latency_ms
        ));
        let group = place.group.as_deref();
        check.rows.push(quota_row(&service.name, group, roots));
        check
            .rows
            .extend(fixed_rows(config, service, &place, roots));
        services.push((service.name.clone(), place));
    }
    services
}

/// Checks a configuration against itself and this host.
///
/// # Errors
///
/// The configuration is wrong.
pub fn check(path: &Path, roots: &Roots) -> Result<Check, IsolateError> {
    let config = IsolationConfig::read(path)?;
    let mut check = Check::default();
    let services = check_services(&config, roots, &mut check);
    let named = config.policy.io_device.as_deref();
    let disk = disk_number(roots, named).ok().or_else(|| first_disk(roots));
    let mut groups = Vec::new();
    for work in &config.best_effort {
        let group = match group_of_work(roots, work) {
            Ok(group) => group,
            Err(error) => {
                check.problems.push(error.to_string());
                continue;
            }
        };
        check.sentences.push(format!(
            "Best-effort group {}: {}.",
            work.name,
            described(work, group.as_deref())
        ));
        let Some(group) = group else {
            continue;
        };
        for (name, place) in &services {
            if let Some(theirs) = &place.group
                && (is_same_or_above(&group, theirs) || is_same_or_above(theirs, &group))
            {
                let overlap = IsolateError::Overlap {
                    group: work.name.clone(),
                    own: group.clone(),
                    service: name.clone(),
                    theirs: theirs.clone(),
                };
                check.problems.push(overlap.to_string());
            }
        }
        groups.push(Placed::work(&work.name, &group));
        let subject = format!("group {}", work.name);
        let mut rows = of_group(&group, disk.as_deref());
        if let Some(device) = config.policy.link_device.clone() {
            let group = group.clone();
            rows.push(Box::new(host::Egress { group, device }));
        }
        check.rows.extend(
            rows.iter()
                .map(|actuator| row(&subject, actuator.as_ref(), roots)),
        );
    }
    let machine = of_machine(roots, disk.as_deref());
    check.rows.extend(
        machine
            .iter()
            .map(|actuator| row("machine", actuator.as_ref(), roots)),
    );
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
    check
        .problems
        .extend(lacking(path, &config, &services, &groups, roots)?);
    check.notes = idle_without_effect(&config, &services, &groups);
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
