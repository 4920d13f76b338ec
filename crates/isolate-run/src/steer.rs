//! Decisions carried out: each setting through its actuator and the journal. What cannot be set,
//! what is refused, and what somebody else writes is remembered and said once.

use std::collections::{BTreeMap, BTreeSet};

use host::{
    Actuator, CpuQuotaLimit, Cpuset, Egress, EnergyPreference, Freezer, Frequency, HostError,
    Journal, PowerCap, Resctrl, Roots, Wanted, online_cpus,
};
use isolation::{ActuatorSetting, Decision, Subject};
use serde::{Deserialize, Serialize};

use crate::actuators::of_setting;
use crate::feasibility::{most_cores, too_many_cores};
use crate::policy_config::PolicyConfig;
use crate::subject::Place;

/// What became of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "why")]
pub enum DecisionOutcome {
    /// It is in force.
    Applied,
    /// It was only written down: `observe = true`.
    Observed,
    /// The host has no such actuator.
    Lacking(String),
    /// The kernel refused.
    Refused(String),
    /// Somebody else writes this setting: it is left to them until the configuration is read again.
    Yielded(String),
    /// The group or service has vanished.
    Vanished,
}

/// The devices that the configuration names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Devices {
    /// The network device whose egress is shared.
    link: Option<String>,
    /// The disk of I/O limits, by its name in `/sys/block`.
    disk: Option<String>,
}

impl Devices {
    pub(crate) fn of(policy: &PolicyConfig) -> Self {
        Self {
            link: policy.link_device.clone(),
            disk: policy.io_device.clone(),
        }
    }
}

/// Carries decisions out.
pub(crate) struct Steer {
    roots: Roots,
    /// Settings of others, by subject and actuator.
    yielded: BTreeMap<(Subject, &'static str), String>,
    /// Groups that are off by quota because they have no freezer, with the quota that is wanted
    /// when they are on.
    squeezed: BTreeMap<String, Option<f64>>,
    quotas: BTreeMap<String, Option<f64>>,
    devices: Devices,
}

impl Steer {
    pub(crate) fn new(roots: Roots, devices: Devices) -> Self {
        Self {
            roots,
            devices,
            yielded: BTreeMap::new(),
            squeezed: BTreeMap::new(),
            quotas: BTreeMap::new(),
        }
    }

    /// Settings that are left to others.
    pub(crate) fn yielded(&self) -> impl Iterator<Item = String> {
        self.yielded.values().cloned()
    }

    /// The configuration was read again: what was left to others is tried again.
    pub(crate) fn reload(&mut self, devices: Devices) {
        self.yielded.clear();
        self.devices = devices;
    }

    /// A group that vanished is a new one when it comes back.
    pub(crate) fn forget(&mut self, gone: &Subject) {
        if let Subject::Group(name) | Subject::Service(name) = gone {
            self.squeezed.remove(name);
            self.quotas.remove(name);
        }
        self.yielded.retain(|(subject, _), _| subject != gone);
    }

    /// Carries one decision out. `place` is where its subject runs; `services` are the places of
    /// all services.
    pub(crate) fn carry_out(
        &mut self,
        journal: &mut Journal,
        decision: &Decision,
        place: Option<&Place>,
        services: &[Place],
    ) -> DecisionOutcome {
        let key = (decision.subject.clone(), decision.setting.actuator());
        if let Some(why) = self.yielded.get(&key) {
            return DecisionOutcome::Yielded(why.clone());
        }
        match self.set(journal, decision, place, services) {
            Ok(()) => DecisionOutcome::Applied,
            Err(Trouble::Lacking(why)) => DecisionOutcome::Lacking(why),
            Err(Trouble::Host(error @ HostError::Disturbed { .. })) => {
                let why = error.to_string();
                self.yielded.insert(key, why.clone());
                DecisionOutcome::Yielded(why)
            }
            Err(Trouble::Host(HostError::Absent { .. })) => DecisionOutcome::Vanished,
            Err(Trouble::Host(error)) if matches!(error.errno(), Some(ENOENT | ENODEV)) => {
                DecisionOutcome::Vanished
            }
            Err(Trouble::Host(error)) => DecisionOutcome::Refused(error.to_string()),
        }
    }

    fn set(
        &mut self,
        journal: &mut Journal,
        decision: &Decision,
        place: Option<&Place>,
        services: &[Place],
    ) -> Result<(), Trouble> {
        if let ActuatorSetting::Power(share) = decision.setting {
            return self.power(journal, share);
        }
        let group = match &decision.subject {
            // Files of the root group.
            Subject::Machine => Some(String::new()),
            _ => place.and_then(|place| place.group.clone()),
        };
        let group = group
            .ok_or_else(|| Trouble::Lacking("it has no control group of its own".to_owned()))?;
        let roots = self.roots.clone();
        let name = match &decision.subject {
            Subject::Group(name) | Subject::Service(name) => name.clone(),
            Subject::Machine => String::new(),
        };
        match decision.setting {
            ActuatorSetting::Off(off) => self.switch(journal, &name, &group, off)?,
            ActuatorSetting::QuotaCores(cores) => {
                self.quotas.insert(name.clone(), cores);
                if let Some(wanted) = self.squeezed.get_mut(&name) {
                    *wanted = cores;
                } else {
                    self.quota(journal, &group, cores)?;
                }
            }
            ActuatorSetting::Cores(cores) => self.cores(journal, &group, cores, services)?,
            ActuatorSetting::LlcWays(ways) => {
                let resctrl = self.resctrl(journal, &name, place)?;
                let ways = u32::try_from(ways).unwrap_or(u32::MAX);
                resctrl.apply(journal, &roots, &Wanted::Ways(ways))?;
            }
            ActuatorSetting::MemoryBandwidthPercent(percent) => {
                let resctrl = self.resctrl(journal, &name, place)?;
                #[expect(clippy::cast_precision_loss, reason = "a percentage")]
                let share = percent as f64 / 100.0;
                resctrl.apply(journal, &roots, &Wanted::Share(share))?;
            }
            ActuatorSetting::Frequency(share) => {
                let cpuset = Cpuset { group };
                let cpus = host::parse_cpu_list(&cpuset.read(&roots)?)?;
                let frequency = Frequency { cpus };
                frequency.probe(&roots).map_err(Trouble::Lacking)?;
                frequency.apply(journal, &roots, &Wanted::Share(share))?;
            }
            ActuatorSetting::EgressMbit(rate) => self.egress(journal, group, rate)?,
            ActuatorSetting::EnergyPreference(preference) => {
                let is_service = matches!(decision.subject, Subject::Service(_));
                let cpus = self.cpus_of(&group, is_service)?;
                let wanted = Wanted::Word(preference.word().to_owned());
                self.put(journal, &EnergyPreference { cpus }, &wanted)?;
            }
            setting => {
                let disk = self.devices.disk.as_deref();
                let found = of_setting(&roots, disk, &group, setting).map_err(Trouble::Lacking)?;
                if let Some((actuator, Some(wanted))) = found {
                    self.put(journal, actuator.as_ref(), &wanted)?;
                }
            }
        }
        Ok(())
    }

    /// Sets an actuator that needs nothing else. A write that changes nothing is no act.
    fn put(
        &self,
        journal: &mut Journal,
        actuator: &dyn Actuator,
        wanted: &Wanted,
    ) -> Result<(), Trouble> {
        actuator.probe(&self.roots).map_err(Trouble::Lacking)?;
        if !actuator.verify(&self.roots, wanted)? {
            actuator.apply(journal, &self.roots, wanted)?;
        }
        Ok(())
    }

    /// The cores that somebody may use. Best-effort work needs some of its own: what is set of a
    /// core is set for all who use it.
    fn cpus_of(&self, group: &str, is_service: bool) -> Result<Vec<usize>, Trouble> {
        let cpuset = Cpuset {
            group: group.to_owned(),
        };
        let all = online_cpus(&self.roots)?;
        let text = cpuset.read(&self.roots).unwrap_or_default();
        let own = host::parse_cpu_list(&text).unwrap_or_default();
        match own.len() {
            count if count > 0 && count < all.len() => Ok(own),
            _ if is_service => Ok(all),
            _ => Err(Trouble::Lacking("it has no cores of its own".to_owned())),
        }
    }

    /// Freezes a group, or leaves it the kernel's least quota where it has no freezer.
    fn switch(
        &mut self,
        journal: &mut Journal,
        name: &str,
        group: &str,
        off: bool,
    ) -> Result<(), Trouble> {
        let freezer = Freezer {
            group: group.to_owned(),
        };
        if freezer.probe(&self.roots).is_ok() {
            let wanted = Wanted::On(off);
            // A group that runs and was never frozen is left alone.
            if !freezer.verify(&self.roots, &wanted)? {
                freezer.apply(journal, &self.roots, &wanted)?;
            }
            return Ok(());
        }
        if off {
            self.squeezed
                .entry(name.to_owned())
                .or_insert(self.quotas.get(name).copied().flatten());
            self.quota(journal, group, Some(0.0))
        } else if let Some(quota) = self.squeezed.remove(name) {
            self.quota(journal, group, quota)
        } else {
            Ok(())
        }
    }

    fn quota(&self, journal: &mut Journal, group: &str, cores: Option<f64>) -> Result<(), Trouble> {
        let quota = CpuQuotaLimit {
            group: group.to_owned(),
        };
        let wanted = Wanted::Quota(quota.of_cores(&self.roots, cores)?);
        if !quota.verify(&self.roots, &wanted)? {
            quota.apply(journal, &self.roots, &wanted)?;
        }
        Ok(())
    }

    /// Best-effort work gets the CPUs with the highest numbers, the services the others.
    fn cores(
        &self,
        journal: &mut Journal,
        group: &str,
        cores: u64,
        services: &[Place],
    ) -> Result<(), Trouble> {
        let cpuset = Cpuset {
            group: group.to_owned(),
        };
        cpuset.probe(&self.roots).map_err(Trouble::Lacking)?;
        let all: Vec<usize> = online_cpus(&self.roots)?;
        let count = usize::try_from(cores).unwrap_or(usize::MAX).max(1);
        if count > most_cores(all.len()) {
            return Err(Trouble::Lacking(too_many_cores(all.len())));
        }
        let (theirs, own) = all.split_at(all.len() - count);
        let own: BTreeSet<usize> = own.iter().copied().collect();
        let theirs: BTreeSet<usize> = theirs.iter().copied().collect();
        // First who gets smaller, so that the two never share a core.
        let mut writes = vec![(cpuset, own)];
        for place in services.iter().filter_map(|place| place.group.clone()) {
            let cpuset = Cpuset { group: place };
            if !theirs.is_empty() && cpuset.probe(&self.roots).is_ok() {
                writes.push((cpuset, theirs.clone()));
            }
        }
        let grows = |(cpuset, cpus): &(Cpuset, BTreeSet<usize>)| {
            let now = cpuset.read(&self.roots).ok();
            let now = now
                .and_then(|text| host::parse_cpu_list(&text).ok())
                .unwrap_or_default();
            !now.is_empty() && cpus.iter().any(|cpu| !now.contains(cpu))
        };
        writes.sort_by_key(grows);
        for (cpuset, cpus) in writes {
            cpuset.apply(journal, &self.roots, &Wanted::Cpus(cpus))?;
        }
        Ok(())
    }

    fn resctrl(
        &self,
        journal: &mut Journal,
        name: &str,
        place: Option<&Place>,
    ) -> Result<Resctrl, Trouble> {
        let resctrl = Resctrl {
            name: format!("slackline-{name}"),
        };
        resctrl.probe(&self.roots).map_err(Trouble::Lacking)?;
        let pids = place
            .map(|place| place.pids(&self.roots))
            .unwrap_or_default();
        let threads = pids
            .iter()
            .flat_map(|pid| host::thread_ids(&self.roots, *pid).unwrap_or_default());
        resctrl.make(journal, &self.roots, &threads.collect::<Vec<_>>())?;
        Ok(resctrl)
    }

    fn egress(&self, journal: &mut Journal, group: String, mbit: f64) -> Result<(), Trouble> {
        let device = self.devices.link.clone().ok_or_else(|| {
            Trouble::Lacking("the configuration names no policy.link_device".to_owned())
        })?;
        let egress = Egress { group, device };
        egress.probe(&self.roots).map_err(Trouble::Lacking)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate: positive, and far below 2^63"
        )]
        let bytes_per_s = (mbit * BYTES_PER_MBIT).max(1.0) as u64;
        Ok(egress.apply(journal, &self.roots, &Wanted::Bytes(Some(bytes_per_s)))?)
    }

    fn power(&self, journal: &mut Journal, share: f64) -> Result<(), Trouble> {
        let zones = PowerCap::zones(&self.roots);
        if zones.is_empty() {
            return Err(Trouble::Lacking(
                "no RAPL zone: the CPU, or the hypervisor, offers none".to_owned(),
            ));
        }
        for zone in zones {
            let cap = PowerCap { zone };
            cap.probe(&self.roots).map_err(Trouble::Lacking)?;
            cap.apply(journal, &self.roots, &Wanted::Share(share))?;
        }
        Ok(())
    }
}

/// Bytes in a million bits.
const BYTES_PER_MBIT: f64 = 125_000.0;
/// errno(3).
const ENOENT: i32 = 2;
const ENODEV: i32 = 19;

enum Trouble {
    Lacking(String),
    Host(HostError),
}

impl From<HostError> for Trouble {
    fn from(error: HostError) -> Self {
        Self::Host(error)
    }
}

#[cfg(test)]
mod tests;
