//! What would be steered by what on this host, and what the host lacks. Nothing is changed.

use std::path::Path;

use host::{
    Actuator, CpuIdle, CpuQuotaLimit, CpuWeight, Cpuset, Freezer, IoMax, IoWeight, MemoryHigh,
    MemoryLow, PowerCap, Resctrl, Roots, Uclamp,
};
use serde::Serialize;

use crate::config::{BestEffort, IsolationConfig};
use crate::error::IsolateError;
use crate::latency::surroundings;
use crate::subject::{group_of_work, is_same_or_above, own_group, place_of};

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
}

/// Every actuator of a group.
pub(crate) fn actuators(group: &str, device: Option<&str>) -> Vec<Box<dyn Actuator>> {
    let group = || group.to_owned();
    let mut all: Vec<Box<dyn Actuator>> = vec![
        Box::new(CpuIdle { group: group() }),
        Box::new(CpuWeight { group: group() }),
        Box::new(CpuQuotaLimit { group: group() }),
        Box::new(Cpuset { group: group() }),
        Box::new(Uclamp { group: group() }),
        Box::new(Freezer { group: group() }),
        Box::new(MemoryHigh { group: group() }),
        Box::new(MemoryLow { group: group() }),
        Box::new(IoWeight { group: group() }),
    ];
    if let Some(device) = device {
        all.push(Box::new(IoMax {
            group: group(),
            device: device.to_owned(),
        }));
    }
    all
}

/// The actuators that belong to the machine.
pub(crate) fn machine_actuators(roots: &Roots) -> Vec<Box<dyn Actuator>> {
    let cpus = host::online_cpus(roots).unwrap_or_default();
    let zone = PowerCap::zones(roots)
        .first()
        .cloned()
        .unwrap_or_else(|| "intel-rapl:0".to_owned());
    vec![
        Box::new(Resctrl {
            name: String::new(),
        }),
        Box::new(host::Frequency { cpus: cpus.clone() }),
        Box::new(host::EnergyPreference { cpus }),
        Box::new(PowerCap { zone }),
    ]
}

/// The first disk's number, `254:0`.
pub(crate) fn first_disk(roots: &Roots) -> Option<String> {
    let mut entries: Vec<_> = std::fs::read_dir(roots.sys("block"))
        .ok()?
        .flatten()
        .collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let is_disk = |name: &str| {
        !["loop", "ram", "zram"]
            .iter()
            .any(|other| name.starts_with(other))
    };
    entries
        .iter()
        .filter(|entry| entry.file_name().to_str().is_some_and(is_disk))
        .find_map(|entry| std::fs::read_to_string(entry.path().join("dev")).ok())
        .map(|text| text.trim().to_owned())
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

fn described(work: &BestEffort) -> String {
    match &work.command {
        Some(words) => format!("the command {}", words.join(" ")),
        None => "processes that run already".to_owned(),
    }
}

/// Checks a configuration against itself and this host.
///
/// # Errors
///
/// The configuration is wrong.
pub fn check(path: &Path, roots: &Roots) -> Result<Check, IsolateError> {
    let config = IsolationConfig::read(path)?;
    let mut check = Check::default();
    let mut services = Vec::new();
    for (service, objective, source) in &config.services {
        match place_of(roots, service) {
            Ok(place) => {
                let group = place
                    .group
                    .clone()
                    .unwrap_or_else(|| "the root group".to_owned());
                let pid = place.pid.or_else(|| place.pids(roots).first().copied());
                let surroundings = surroundings(pid, objective, config.services.len());
                let source = match wire_latency::open(source, &surroundings) {
                    Ok(source) => source.describe(),
                    Err(error) => {
                        check
                            .problems
                            .push(format!("service {}: {error}", service.name));
                        "a source that cannot be opened".to_owned()
                    }
                };
                check.sentences.push(format!(
                    "Service {} ({group}): p{} of the requests below {} ms over {} s, read from {source}.",
                    service.name, objective.percentile, objective.latency_ms, objective.window_s
                ));
                check
                    .rows
                    .push(quota_row(&service.name, place.group.as_deref(), roots));
                services.push((service.name.clone(), place));
            }
            Err(error) => check.problems.push(error.to_string()),
        }
    }
    let device = first_disk(roots);
    for work in &config.best_effort {
        let group = match group_of_work(roots, work) {
            Ok(group) => group,
            Err(error) => {
                check.problems.push(error.to_string());
                continue;
            }
        };
        check.sentences.push(format!(
            "Best-effort group {} ({}): {}.",
            work.name,
            group.clone().unwrap_or_else(|| own_group(work)),
            if group.is_some() {
                "a group that is there".to_owned()
            } else {
                described(work)
            }
        ));
        let Some(group) = group else {
            continue;
        };
        for (name, place) in &services {
            if let Some(theirs) = &place.group
                && (is_same_or_above(&group, theirs) || is_same_or_above(theirs, &group))
            {
                check.problems.push(format!(
                    "best-effort group {} and service {name} are in groups that hold each other: put them apart",
                    work.name
                ));
            }
        }
        let subject = format!("group {}", work.name);
        let mut rows = actuators(&group, device.as_deref());
        if let Some(device) = config.policy.link_device.clone() {
            let group = group.clone();
            rows.push(Box::new(host::Egress { group, device }));
        }
        check.rows.extend(
            rows.iter()
                .map(|actuator| row(&subject, actuator.as_ref(), roots)),
        );
    }
    let machine = machine_actuators(roots);
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
    Ok(check)
}

#[cfg(test)]
mod tests {
    use super::*;

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
