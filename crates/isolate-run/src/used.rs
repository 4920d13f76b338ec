//! Which actuators the configured policy uses, by the names that they have in tables.

use std::collections::BTreeSet;

use isolation::PolicyWrites;

use crate::config::IsolationConfig;

/// Actuators of the processor. A group's cache ways and frequency go through them, so they are
/// listed with the machine.
const OF_MACHINE: [&str; 3] = ["resctrl", "frequency", "energy_preference"];

/// The actuators that the policy may write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsedActuators {
    /// Of each service.
    pub(crate) services: BTreeSet<&'static str>,
    /// Of each best-effort group.
    pub(crate) groups: BTreeSet<&'static str>,
    /// Of the machine.
    pub(crate) machine: BTreeSet<&'static str>,
}

impl UsedActuators {
    pub(crate) fn of(config: &IsolationConfig) -> Self {
        let has_groups = !config.best_effort.is_empty();
        let PolicyWrites {
            mut groups,
            services,
            machine,
        } = config.policy_settings().writes(has_groups);
        let has_link = config.policy.link_device.is_some();
        if !(has_link && config.policy.link_mbit_per_s.is_some()) {
            groups.remove("egress");
        }
        let groups = named(groups);
        let of_groups = groups.iter().copied();
        let machine = named(machine)
            .into_iter()
            .chain(of_groups.filter(|actuator| OF_MACHINE.contains(actuator)));
        Self {
            machine: machine.collect(),
            services: named(services),
            groups,
        }
    }
}

/// The names in tables ([`host::Actuator::name`]).
fn named(settings: BTreeSet<&'static str>) -> BTreeSet<&'static str> {
    let name = |setting| match setting {
        "off" => "freezer",
        "cpu_idle" => "cpu.idle",
        "llc_ways" | "memory_bandwidth" => "resctrl",
        "memory_high" => "memory.high",
        "memory_low" => "memory.low",
        "io_max_read" => "io.max rbps",
        "io_max_write" => "io.max wbps",
        "io_weight" => "io.weight",
        "io_cost" => "io.cost",
        "uclamp_max" => "uclamp.max",
        "uclamp_min" => "uclamp.min",
        "epp" => "energy_preference",
        // `weight`, `quota`, `cpuset`, `frequency`, `egress`, `power`.
        same => same,
    };
    settings.into_iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use host::Roots;
    use isolation::Policy;

    use super::*;
    use crate::actuators::{of_group, of_machine};

    fn read(policy: &str) -> IsolationConfig {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i.toml");
        let text = format!(
            "[service]\npid = 1\nlatency = {{ command = [\"x\"] }}\nobjective = {{ p99_ms = 5 }}\n\
             [[best_effort]]\ncgroup = \"batch\"\n[policy]\n{policy}"
        );
        std::fs::write(&path, text).unwrap();
        IsolationConfig::read(&path).unwrap()
    }

    #[test]
    fn every_setting_of_a_policy_has_an_actuator_in_the_tables() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::at(dir.path());
        let disk = Some("254:0");
        let names = |all: Vec<Box<dyn host::Actuator>>| -> BTreeSet<&str> {
            all.iter().map(|actuator| actuator.name()).collect()
        };
        let mut known = names(of_group("batch", disk));
        known.extend(names(of_machine(&roots, disk)));
        known.insert("egress");
        let every = "[policy.static]\ncpu_idle = true\nweight = 1\nquota_cores = 1\ncores = 1\n\
             service_quota_cores = 1\nservice_weight = 1\nmemory_high_mib = 1\n\
             service_memory_low_mib = 1\nio_max_read_mb_per_s = 1\nio_max_write_mb_per_s = 1\n\
             io_weight = 1\nservice_io_weight = 1\nio_cost = true\nuclamp_max_percent = 1\n\
             service_uclamp_min_percent = 1\nepp = \"power\"\nservice_epp = \"power\"\n";
        for policy in Policy::ALL {
            let more = match policy {
                Policy::Static => format!("io_device = \"vda\"\n{every}"),
                _ => String::new(),
            };
            let name = policy.name();
            let config = read(&format!(
                "name = \"{name}\"\nlink_device = \"eth0\"\nlink_mbit_per_s = 1000\n{more}"
            ));
            let used = UsedActuators::of(&config);
            let all = used.groups.iter().chain(&used.services);
            for actuator in all.chain(&used.machine) {
                assert!(known.contains(actuator), "{name}: {actuator}");
            }
            let is_empty = used == UsedActuators::default();
            assert_eq!(is_empty, policy == Policy::None, "{name}");
        }
    }

    #[test]
    fn the_cache_of_a_group_is_the_machine_s_and_a_link_has_to_be_named() {
        let used = UsedActuators::of(&read("name = \"heracles\"\n"));
        assert_eq!(used.machine, ["frequency", "resctrl"].into());
        assert!(!used.groups.contains("egress"));
        let used = UsedActuators::of(&read("name = \"slackline\"\n"));
        assert_eq!(used.groups, ["cpu.idle", "freezer", "quota"].into());
        assert_eq!(used.machine, BTreeSet::new());
    }
}
