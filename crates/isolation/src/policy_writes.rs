//! Which settings a policy may write, and of whom: for who wants to know it beforehand.

use std::collections::BTreeSet;

use crate::policy::{Policy, PolicySettings};

/// The settings that a policy may write, by [`crate::ActuatorSetting::actuator`]. It writes some of
/// them only where the machine has them, or where their time has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyWrites {
    /// Of each best-effort group.
    pub groups: BTreeSet<&'static str>,
    /// Of each service.
    pub services: BTreeSet<&'static str>,
    /// Of the machine.
    pub machine: BTreeSet<&'static str>,
}

impl PolicySettings {
    /// The settings that the policy may write, and those that are written beside it. `has_groups`
    /// says whether the configuration has best-effort groups.
    #[must_use]
    pub fn writes(&self, has_groups: bool) -> PolicyWrites {
        let (groups, services, machine): (&[_], &[_], &[_]) = match self.policy {
            Policy::Slackline if has_groups => (&["off", "cpu_idle", "quota", "egress"], &[], &[]),
            Policy::Slackline | Policy::Autothrottle => (&[], &["quota"], &[]),
            // Best-effort work gets cores of its own, and the services the others.
            Policy::Heracles => (
                &["off", "cpuset", "llc_ways", "frequency", "egress"],
                &["cpuset"],
                &[],
            ),
            Policy::Parties => (
                &["off", "cpuset", "llc_ways", "frequency"],
                &["cpuset"],
                &[],
            ),
            Policy::Pegasus => (&[], &[], &["power"]),
            Policy::CpuSuppress => (&["quota"], &[], &[]),
            Policy::Static | Policy::None => (&[], &[], &[]),
        };
        let mut writes = PolicyWrites {
            groups: groups.iter().copied().collect(),
            services: services.iter().copied().collect(),
            machine: machine.iter().copied().collect(),
        };
        if self.policy != Policy::None {
            self.add_fixed(&mut writes);
        }
        if !has_groups {
            writes.groups.clear();
            writes.services.remove("cpuset");
        }
        writes
    }

    fn add_fixed(&self, writes: &mut PolicyWrites) {
        let fixed = &self.fixed;
        for (all, settings) in [
            (&mut writes.groups, fixed.of_group(1)),
            (&mut writes.services, fixed.of_service()),
            (&mut writes.machine, fixed.of_machine()),
        ] {
            all.extend(settings.iter().map(|(_, setting)| setting.actuator()));
        }
        if fixed.cores.is_some() {
            writes.services.insert("cpuset");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixed::FixedSettings;

    #[test]
    fn what_stands_beside_a_policy_is_written_too() {
        let mut settings = PolicySettings::named(Policy::Slackline);
        settings.fixed = FixedSettings {
            memory_high_mib: Some(64),
            service_memory_low_mib: Some(64),
            io_cost: Some(true),
            ..FixedSettings::default()
        };
        let with = settings.writes(true);
        let groups = ["cpu_idle", "egress", "memory_high", "off", "quota"];
        assert_eq!(with.groups, groups.into());
        assert_eq!(with.services, ["memory_low"].into());
        assert_eq!(with.machine, ["io_cost"].into());
        // Without best-effort work it lowers the service's own quota.
        let without = settings.writes(false);
        assert_eq!(without.groups, BTreeSet::new());
        assert_eq!(without.services, ["memory_low", "quota"].into());
        settings.policy = Policy::None;
        assert_eq!(settings.writes(true), PolicyWrites::default());
    }

    #[test]
    fn cores_of_best_effort_work_are_taken_from_the_services() {
        let mut settings = PolicySettings::named(Policy::Static);
        settings.fixed.cores = Some(1);
        assert_eq!(settings.writes(true).services, ["cpuset"].into());
        assert_eq!(settings.writes(false), PolicyWrites::default());
    }
}
