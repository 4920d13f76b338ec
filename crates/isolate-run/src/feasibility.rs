//! What of a configuration this host cannot do, and what has no effect: said before it is run.

use host::{Actuator as _, CgroupVersion, Egress, Hierarchies, HostError, Roots, online_cpus};
use isolation::{ActuatorSetting, Policy};

use crate::actuators::of_setting;
use crate::config::IsolationConfig;
use crate::policy_config::PolicyConfig;
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

/// What the policy's section asks of this host and the host lacks or refuses: each key once, with
/// file, line and key.
pub(crate) fn lacking(
    config: &IsolationConfig,
    services: &[Placed],
    groups: &[Placed],
    roots: &Roots,
) -> Vec<String> {
    let fixed = &config.policy.fixed;
    let origin = &config.origin;
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
            // Also where the group does not exist yet.
            let wrong = beyond_host(roots, setting).or_else(|| {
                all.iter().find_map(|placed| {
                    let why = possible(roots, disk, placed.group.as_deref(), setting).err()?;
                    Some(format!("{}: {why}", placed.subject))
                })
            });
            let key = format!("policy.static.{key}");
            said.extend(wrong.map(|why| origin.error(&key, why).to_string()));
        }
    }
    let link = link_device(config, groups, roots);
    said.extend(link.map(|why| origin.error("policy.link_device", why).to_string()));
    said
}

/// What has no effect, is not counted or is not started, in sentences: a list for each kind.
pub(crate) fn notes(
    config: &IsolationConfig,
    services: &[Placed],
    groups: &[Placed],
    hierarchies: &Hierarchies,
    observe: bool,
) -> [Vec<String>; 4] {
    let counted = services.iter().chain(groups);
    let uncounted = counted.filter_map(|placed| not_counted(hierarchies, placed));
    [
        keys_without_effect(config),
        idle_without_effect(config, services, groups),
        uncounted.collect(),
        not_started(config, observe),
    ]
}

/// Why best-effort traffic cannot be limited on the device that the policy names.
fn link_device(config: &IsolationConfig, groups: &[Placed], roots: &Roots) -> Option<String> {
    let device = config.policy.link_device.as_deref()?;
    if !limits_links(config) {
        return None;
    }
    // A group that `run` makes is below the root group.
    let root = [Placed::work("that run makes", "")];
    let groups = if groups.is_empty() { &root[..] } else { groups };
    groups.iter().find_map(|placed| {
        let egress = Egress {
            group: placed.group.clone()?,
            device: device.to_owned(),
        };
        let why = egress.probe(roots).err()?;
        Some(format!("{}: {why}", placed.subject))
    })
}

/// Whether the policy limits what best-effort work sends.
fn limits_links(config: &IsolationConfig) -> bool {
    let writes = config.policy_settings().writes(true);
    writes.groups.contains("egress")
}

/// What of a setting is more than this host has.
fn beyond_host(roots: &Roots, setting: ActuatorSetting) -> Option<String> {
    match setting {
        ActuatorSetting::Cores(cores) => {
            let all = online_cpus(roots).ok()?.len();
            let most = most_cores(all);
            (usize::try_from(cores).unwrap_or(usize::MAX) > most).then(|| too_many_cores(all))
        }
        ActuatorSetting::QuotaCores(Some(cores)) => {
            #[expect(clippy::cast_precision_loss, reason = "a number of CPUs")]
            let all = online_cpus(roots).ok()?.len() as f64;
            (cores > all).then(|| {
                format!("this host has {all} cores, and a quota above that limits nothing")
            })
        }
        ActuatorSetting::MemoryHighBytes(bytes) | ActuatorSetting::MemoryLowBytes(bytes) => {
            let all = host::Machine::describe(roots).memory_bytes;
            (all > 0 && bytes > all).then(|| {
                let mib = all / BYTES_PER_MIB;
                format!("this host has {mib} MiB of memory: set at most that")
            })
        }
        _ => None,
    }
}

const BYTES_PER_MIB: u64 = 1 << 20;

/// How many cores best-effort work can have for itself: the services need one.
pub(crate) fn most_cores(all: usize) -> usize {
    all.saturating_sub(1).max(1)
}

/// What is said where best-effort work is to have more cores than [`most_cores`].
pub(crate) fn too_many_cores(all: usize) -> String {
    let most = most_cores(all);
    format!("the services need a core, and this host has {all}: set at most {most}")
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

/// The keys of the policy's section that have no effect: each with file, line and key.
fn keys_without_effect(config: &IsolationConfig) -> Vec<String> {
    let PolicyConfig {
        name,
        fixed,
        link_device,
        dram_peak_gb_per_s,
        ..
    } = &config.policy;
    let is_idle = fixed.cpu_idle == Some(true);
    let all = [
        (
            "static.weight",
            fixed.weight.is_some() && is_idle,
            "has no effect beside cpu_idle = true: the kernel gives an idle group the least weight",
        ),
        (
            "link_device",
            link_device.is_some() && !limits_links(config),
            "has no effect: only the policies slackline and heracles limit what best-effort work sends",
        ),
        (
            "dram_peak_gb_per_s",
            dram_peak_gb_per_s.is_some() && *name != Policy::Heracles,
            "has no effect: only the policy heracles looks at the memory traffic",
        ),
    ];
    let said = all.into_iter().filter(|(_, is_so, _)| *is_so);
    said.map(|(key, _, why)| {
        let error = config.origin.error(&format!("policy.{key}"), why);
        error.to_string()
    })
    .collect()
}

/// Where the policy's `cpu.idle` has no effect, in sentences.
fn idle_without_effect(
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
fn not_counted(hierarchies: &Hierarchies, placed: &Placed) -> Option<String> {
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
fn not_started(config: &IsolationConfig, observe: bool) -> Vec<String> {
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

    /// What is said of a policy, without the directory: what the host lacks, and what has no
    /// effect. The policy begins on line 8.
    fn said_of(policy: &str) -> (Vec<String>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = dir.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        write("sys/devices/system/cpu/online", "0-1\n");
        write("proc/meminfo", "MemTotal:        2048 kB\n");
        let text = "[service]\npid = 1\nobjective = { p99_ms = 5 }\nlatency = { command = [\"x\"] }\n\
             [[best_effort]]\ncgroup = \"batch\"\n[policy]\n";
        write("i.toml", &format!("{text}{policy}"));
        let path = dir.path().join("i.toml");
        let config = IsolationConfig::read(&path).unwrap();
        let lacking = lacking(&config, &[], &[], &Roots::at(dir.path()));
        let plain = |all: Vec<String>| -> Vec<String> {
            let directory = format!("{}/", dir.path().display());
            all.iter()
                .map(|text| text.replace(&directory, ""))
                .collect()
        };
        (plain(lacking), plain(keys_without_effect(&config)))
    }

    #[test]
    fn what_is_more_than_the_host_has_is_named_by_file_line_and_key() {
        let (lacking, without_effect) = said_of(
            "name = \"static\"\n[policy.static]\nquota_cores = 2.5\ncores = 2\nmemory_high_mib = 3\n\
             service_quota_cores = 2\nservice_memory_low_mib = 3\n",
        );
        assert_eq!(
            lacking,
            [
                "i.toml:10: policy.static.quota_cores: this host has 2 cores, and a quota above that limits nothing",
                "i.toml:11: policy.static.cores: the services need a core, and this host has 2: set at most 1",
                "i.toml:12: policy.static.memory_high_mib: this host has 2 MiB of memory: set at most that",
                "i.toml:14: policy.static.service_memory_low_mib: this host has 2 MiB of memory: set at most that",
            ]
        );
        assert!(without_effect.is_empty(), "{without_effect:?}");
        let fits =
            "name = \"static\"\nstatic = { quota_cores = 2, cores = 1, memory_high_mib = 2 }\n";
        assert_eq!(said_of(fits), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_device_is_looked_for_where_the_policy_limits_what_is_sent() {
        let link = "link_device = \"eth0\"\nlink_mbit_per_s = 1000\n";
        let (lacking, without_effect) = said_of(link);
        let said =
            "i.toml:8: policy.link_device: group that run makes: a tree of files has no network";
        assert_eq!(
            (lacking.as_slice(), without_effect.len()),
            (&[said.to_owned()][..], 0)
        );
        let (lacking, without_effect) = said_of(&format!("name = \"parties\"\n{link}"));
        assert!(lacking.is_empty(), "{lacking:?}");
        let said = "i.toml:9: policy.link_device: has no effect";
        assert!(without_effect[0].starts_with(said), "{without_effect:?}");
    }

    #[test]
    fn keys_without_effect_are_said() {
        for (policy, said) in [
            (
                "name = \"static\"\nstatic = { cpu_idle = true, weight = 500 }\n",
                Some("i.toml:9: policy.static.weight: has no effect beside cpu_idle = true"),
            ),
            (
                "name = \"static\"\nstatic = { cpu_idle = false, weight = 500 }\n",
                None,
            ),
            (
                "dram_peak_gb_per_s = 100\n",
                Some("i.toml:8: policy.dram_peak_gb_per_s: has no effect"),
            ),
            ("name = \"heracles\"\ndram_peak_gb_per_s = 100\n", None),
        ] {
            let (_, without_effect) = said_of(policy);
            let begins = |text: &String| said.is_some_and(|said| text.starts_with(said));
            assert!(without_effect.iter().all(begins), "{without_effect:?}");
            assert_eq!(without_effect.len(), usize::from(said.is_some()));
        }
    }

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
