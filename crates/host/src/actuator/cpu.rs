//! CPU: `cpu.idle`, weight, quota, cpuset.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{
    Actuator, Wanted, cgroup_knob, cpu_list, probed, required, unfit, write_all, wrong_kind,
};
use crate::cgroup::{CgroupVersion, Hierarchies};
use crate::cgroup_tree::below;
use crate::cpu_quota::{CpuQuota, burst_file};
use crate::cpus::{online_cpus, parse_cpu_list};
use crate::error::HostError;
use crate::journal::Journal;
use crate::knob::Knob;
use crate::roots::Roots;

/// The kernel's least quota and period (kernel/sched/core.c, `min_cfs_quota_period`): 1 ms.
const QUOTA_LEAST_US: u64 = 1000;

/// The step of a self-test.
const QUOTA_STEP_CORES: f64 = 0.01;

pub(super) fn cpu_version(roots: &Roots) -> Result<CgroupVersion, HostError> {
    Ok(Hierarchies::of(roots).require("cpu")?.0)
}

fn weight_file(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V1 => "cpu.shares",
        CgroupVersion::V2 => "cpu.weight",
    }
}

/// The group runs only when no other group beside it wants the CPU. v1 has the file too, since
/// Linux 5.15.
///
/// The flag belongs to the group's own entity, which competes with the entities beside it
/// (kernel/sched/fair.c, `sched_group_set_idle` and `check_preempt_wakeup_fair`). So the group that
/// is named gets the flag, and with it all groups below. The flags of groups below only say how
/// these compete with each other: they are left as they are.
#[derive(Clone, Debug)]
pub struct CpuIdle {
    /// The group.
    pub group: String,
}

impl Actuator for CpuIdle {
    fn name(&self) -> &'static str {
        "cpu.idle"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        let version = cpu_version(roots).map_err(|error| error.to_string())?;
        let knob = cgroup_knob(&self.group, "cpu.idle");
        let why = "the group has no cpu.idle: it needs Linux 5.15, and a group below the root";
        probed(roots, &knob, form(version), why)
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        required(roots, &cgroup_knob(&self.group, "cpu.idle"))
    }

    /// Turning it off makes the kernel forget the group's weight (kernel/sched/fair.c,
    /// `sched_group_set_idle`). So the weight goes to the journal first, with the value that it
    /// has.
    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let Wanted::On(on) = wanted else {
            return Err(wrong_kind(self.name(), wanted));
        };
        let idle = cgroup_knob(&self.group, "cpu.idle");
        let weight = cgroup_knob(&self.group, weight_file(cpu_version(roots)?));
        let mut writes = Vec::new();
        if *on && required(roots, &idle)? == "0" {
            writes.extend(weight.read(roots)?.map(|value| (weight, value)));
        }
        writes.push((idle, if *on { "1" } else { "0" }.to_owned()));
        Ok(writes)
    }

    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        let wanted = if *wanted == Wanted::On(true) {
            "1"
        } else {
            "0"
        };
        Ok(self.read(roots)? == wanted)
    }

    fn knobs(&self, roots: &Roots) -> Vec<Knob> {
        let weight =
            cpu_version(roots).map(|version| cgroup_knob(&self.group, weight_file(version)));
        weight
            .into_iter()
            .chain([cgroup_knob(&self.group, "cpu.idle")])
            .collect()
    }

    fn neighbour(&self, roots: &Roots) -> Result<Wanted, HostError> {
        Ok(Wanted::On(self.read(roots)? == "0"))
    }
}

pub(super) fn form(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V1 => "v1",
        CgroupVersion::V2 => "v2",
    }
}

/// The group's share of the CPU where others want it too: `cpu.shares` or `cpu.weight`.
#[derive(Clone, Debug)]
pub struct CpuWeight {
    /// The group.
    pub group: String,
}

impl Actuator for CpuWeight {
    fn name(&self) -> &'static str {
        "weight"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        let version = cpu_version(roots).map_err(|error| error.to_string())?;
        let knob = cgroup_knob(&self.group, weight_file(version));
        probed(
            roots,
            &knob,
            form(version),
            "the group has no CPU weight of its own",
        )
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        required(
            roots,
            &cgroup_knob(&self.group, weight_file(cpu_version(roots)?)),
        )
    }

    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let Wanted::Weight(weight) = wanted else {
            return Err(wrong_kind(self.name(), wanted));
        };
        if !(1..=10_000).contains(weight) {
            return Err(unfit(
                self.name(),
                wanted,
                "a weight is between 1 and 10000",
            ));
        }
        let version = cpu_version(roots)?;
        let value = match version {
            CgroupVersion::V2 => *weight,
            // Weight 100 is 1,024 shares (kernel/sched/core.c, sched_weight_from_cgroup); the
            // kernel takes 2 to 262,144.
            CgroupVersion::V1 => (weight * 1024 / 100).max(2),
        };
        let knob = cgroup_knob(&self.group, weight_file(version));
        Ok(vec![(knob, value.to_string())])
    }

    fn knobs(&self, roots: &Roots) -> Vec<Knob> {
        let version = cpu_version(roots).unwrap_or(CgroupVersion::V2);
        vec![cgroup_knob(&self.group, weight_file(version))]
    }

    fn neighbour(&self, roots: &Roots) -> Result<Wanted, HostError> {
        let now: u64 = self.read(roots)?.parse().unwrap_or(100);
        let now = match cpu_version(roots)? {
            CgroupVersion::V1 => now * 100 / 1024,
            CgroupVersion::V2 => now,
        };
        Ok(Wanted::Weight((now + 1).clamp(1, 10_000)))
    }
}

/// The group's CPU quota.
#[derive(Clone, Debug)]
pub struct CpuQuotaLimit {
    /// The group.
    pub group: String,
}

impl CpuQuotaLimit {
    /// A quota of so many cores with the period that is in force; no more than the kernel's least
    /// where it is less. The burst follows: it is never above the quota.
    ///
    /// # Errors
    ///
    /// As [`CpuQuota::read`].
    pub fn of_cores(&self, roots: &Roots, cores: Option<f64>) -> Result<CpuQuota, HostError> {
        let now = CpuQuota::read(roots, &self.group)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`as` saturates; the product is a small positive number"
        )]
        let quota_us = |cores: f64| {
            ((cores * now.period_us as f64).max(0.0).round() as u64).max(QUOTA_LEAST_US)
        };
        let quota_us = cores.map(quota_us);
        Ok(CpuQuota {
            quota_us,
            burst_us: None,
            ..now
        })
    }

    fn burst(&self, roots: &Roots) -> Result<Knob, HostError> {
        Ok(cgroup_knob(&self.group, burst_file(cpu_version(roots)?)))
    }

    /// The quota, in one write where the kernel allows it: then no moment has no limit.
    fn quota_writes(
        &self,
        roots: &Roots,
        quota: &CpuQuota,
        now: &CpuQuota,
    ) -> Result<Vec<(Knob, String)>, HostError> {
        if quota.period_us == now.period_us && cpu_version(roots)? == CgroupVersion::V1 {
            let value = quota
                .quota_us
                .map_or("-1".to_owned(), |quota_us| quota_us.to_string());
            return Ok(vec![(cgroup_knob(&self.group, "cpu.cfs_quota_us"), value)]);
        }
        let alone = CpuQuota {
            burst_us: None,
            ..*quota
        };
        alone.writes(roots, &self.group)
    }
}

/// The kernel refuses a burst above the quota (kernel/sched/core.c, `tg_set_cfs_bandwidth`).
fn fitting(burst_us: u64, quota_us: Option<u64>) -> u64 {
    quota_us.map_or(burst_us, |quota_us| burst_us.min(quota_us))
}

impl Actuator for CpuQuotaLimit {
    fn name(&self) -> &'static str {
        "quota"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        let version = cpu_version(roots).map_err(|error| error.to_string())?;
        match CpuQuota::read(roots, &self.group) {
            Ok(_) => Ok(form(version).to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        let quota = CpuQuota::read(roots, &self.group)?;
        Ok(match quota.quota_us {
            Some(quota_us) => format!("{quota_us} {}", quota.period_us),
            None => format!("max {}", quota.period_us),
        })
    }

    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let Wanted::Quota(quota) = wanted else {
            return Err(wrong_kind(self.name(), wanted));
        };
        if quota
            .quota_us
            .is_some_and(|quota_us| quota_us < QUOTA_LEAST_US)
        {
            return Err(unfit(
                self.name(),
                wanted,
                "the kernel's least quota is 1000 µs",
            ));
        }
        if !(QUOTA_LEAST_US..=1_000_000).contains(&quota.period_us) {
            return Err(unfit(
                self.name(),
                wanted,
                "a period is between 1 ms and 1 s",
            ));
        }
        if let (Some(quota_us), Some(burst_us)) = (quota.quota_us, quota.burst_us)
            && burst_us > quota_us
        {
            return Err(unfit(
                self.name(),
                wanted,
                "the burst may not be above the quota",
            ));
        }
        let now = CpuQuota::read(roots, &self.group)?;
        let burst_now = now.burst_us.unwrap_or(0);
        let burst_us = quota.burst_us.unwrap_or(burst_now);
        let burst_us = fitting(burst_us, quota.quota_us);
        let mut writes = self.quota_writes(roots, quota, &now)?;
        // In this order the burst is never above the quota.
        let burst = (self.burst(roots)?, burst_us.to_string());
        match burst_us.cmp(&burst_now) {
            Ordering::Less => writes.insert(0, burst),
            Ordering::Greater => writes.push(burst),
            Ordering::Equal => {}
        }
        Ok(writes)
    }

    /// A burst that had to become smaller gets back what the new quota allows.
    fn apply(
        &self,
        journal: &mut Journal,
        roots: &Roots,
        wanted: &Wanted,
    ) -> Result<(), HostError> {
        let first = journal.original(&self.burst(roots)?);
        let first_us: Option<u64> = first.and_then(|text| text.parse().ok());
        let wanted = match (wanted, first_us) {
            (Wanted::Quota(quota), Some(first_us)) if quota.burst_us.is_none() => {
                Wanted::Quota(CpuQuota {
                    burst_us: Some(fitting(first_us, quota.quota_us)),
                    ..*quota
                })
            }
            _ => wanted.clone(),
        };
        write_all(journal, roots, &self.writes(roots, &wanted)?)
    }

    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        let Wanted::Quota(quota) = wanted else {
            return Err(wrong_kind(self.name(), wanted));
        };
        let now = CpuQuota::read(roots, &self.group)?;
        Ok((now.quota_us, now.period_us) == (quota.quota_us, quota.period_us))
    }

    fn knobs(&self, _roots: &Roots) -> Vec<Knob> {
        let files = [
            "cpu.cfs_quota_us",
            "cpu.cfs_period_us",
            "cpu.cfs_burst_us",
            "cpu.max",
            "cpu.max.burst",
        ];
        files.map(|file| cgroup_knob(&self.group, file)).to_vec()
    }

    fn neighbour(&self, roots: &Roots) -> Result<Wanted, HostError> {
        let now = CpuQuota::read(roots, &self.group)?;
        let cores = match now.quota_us {
            Some(_) => now.cores() + QUOTA_STEP_CORES,
            // No quota is as much as all CPUs.
            None => online_cpus(roots)?.len() as f64 - QUOTA_STEP_CORES,
        };
        Ok(Wanted::Quota(self.of_cores(roots, Some(cores))?))
    }
}

/// The CPUs that the group may use.
#[derive(Clone, Debug)]
pub struct Cpuset {
    /// The group.
    pub group: String,
}

impl Cpuset {
    fn version(roots: &Roots) -> Result<(CgroupVersion, PathBuf), HostError> {
        let hierarchies = Hierarchies::of(roots);
        let (version, top) = hierarchies.require("cpuset")?;
        Ok((version, top.to_owned()))
    }

    /// The groups below, deepest first, by their paths.
    fn children(&self, roots: &Roots) -> Result<Vec<String>, HostError> {
        let (_, top) = Self::version(roots)?;
        let mut found = Vec::new();
        let mut directories = vec![top.join(self.group.trim_matches('/'))];
        while let Some(directory) = directories.pop() {
            for child in below(&directory) {
                let group = child.strip_prefix(&top).unwrap_or(&child);
                found.push(group.to_string_lossy().into_owned());
                directories.push(child);
            }
        }
        found.sort_by_key(|group| std::cmp::Reverse(group.matches('/').count()));
        Ok(found)
    }

    fn cpus(roots: &Roots, group: &str) -> Result<BTreeSet<usize>, HostError> {
        let text = required(roots, &cgroup_knob(group, "cpuset.cpus"))?;
        Ok(parse_cpu_list(&text)?.into_iter().collect())
    }
}

impl Actuator for Cpuset {
    fn name(&self) -> &'static str {
        "cpuset"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        let (version, _) = Self::version(roots).map_err(|error| error.to_string())?;
        let knob = cgroup_knob(&self.group, "cpuset.cpus");
        probed(
            roots,
            &knob,
            form(version),
            "the group is not in the cpuset hierarchy",
        )
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        required(roots, &cgroup_knob(&self.group, "cpuset.cpus"))
    }

    /// On v1 a group's CPUs have to be among its parent's, always (kernel/cgroup/cpuset-v1.c,
    /// `validate_change_legacy`). So the group gets the old and the new CPUs, then the groups below
    /// it get the new ones, then the group does.
    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let Wanted::Cpus(cpus) = wanted else {
            return Err(wrong_kind(self.name(), wanted));
        };
        if cpus.is_empty() {
            return Err(unfit(self.name(), wanted, "a group needs at least one CPU"));
        }
        let knob = cgroup_knob(&self.group, "cpuset.cpus");
        let (version, _) = Self::version(roots)?;
        if version == CgroupVersion::V2 {
            return Ok(vec![(knob, cpu_list(cpus))]);
        }
        let now = Self::cpus(roots, &self.group)?;
        let mut children = Vec::new();
        for child in self.children(roots)? {
            let theirs = Self::cpus(roots, &child)?;
            if !theirs.is_subset(cpus) {
                let common: BTreeSet<usize> = theirs.intersection(cpus).copied().collect();
                let next = if common.is_empty() {
                    cpus.clone()
                } else {
                    common
                };
                children.push((cgroup_knob(&child, "cpuset.cpus"), cpu_list(&next)));
            }
        }
        let mut writes = Vec::new();
        if !children.is_empty() && !cpus.is_subset(&now) {
            let both: BTreeSet<usize> = now.union(cpus).copied().collect();
            writes.push((knob.clone(), cpu_list(&both)));
        }
        writes.extend(children);
        writes.push((knob, cpu_list(cpus)));
        Ok(writes)
    }

    /// Groups below that were made smaller get back what the new CPUs allow.
    fn apply(
        &self,
        journal: &mut Journal,
        roots: &Roots,
        wanted: &Wanted,
    ) -> Result<(), HostError> {
        write_all(journal, roots, &self.writes(roots, wanted)?)?;
        let Wanted::Cpus(cpus) = wanted else {
            return Ok(());
        };
        let mut children = self.children(roots)?;
        children.reverse();
        for child in children {
            let knob = cgroup_knob(&child, "cpuset.cpus");
            let Some(original) = journal.original(&knob) else {
                continue;
            };
            let original: BTreeSet<usize> = parse_cpu_list(original)?.into_iter().collect();
            let next: BTreeSet<usize> = original.intersection(cpus).copied().collect();
            if !next.is_empty() && next != Self::cpus(roots, &child)? {
                journal.write(roots, &knob, &cpu_list(&next))?;
            }
        }
        Ok(())
    }

    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        match wanted {
            Wanted::Cpus(cpus) => Ok(Self::cpus(roots, &self.group)? == *cpus),
            _ => Err(wrong_kind(self.name(), wanted)),
        }
    }

    fn knobs(&self, roots: &Roots) -> Vec<Knob> {
        let children = self.children(roots).unwrap_or_default();
        let groups = children.into_iter().chain([self.group.clone()]);
        groups
            .map(|group| cgroup_knob(&group, "cpuset.cpus"))
            .collect()
    }

    fn neighbour(&self, roots: &Roots) -> Result<Wanted, HostError> {
        let mut cpus = Self::cpus(roots, &self.group)?;
        if cpus.is_empty() {
            // On v2 an empty list means the parent's.
            cpus = online_cpus(roots)?.into_iter().collect();
        }
        if cpus.len() > 1 {
            cpus.pop_last();
        }
        Ok(Wanted::Cpus(cpus))
    }
}
