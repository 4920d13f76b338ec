//! Decisions carried out: each setting through its actuator and the journal. What cannot be set,
//! what is refused, and what somebody else writes is remembered and said once.

use std::collections::{BTreeMap, BTreeSet};

use host::{
    Actuator, CpuQuotaLimit, Cpuset, Egress, EnergyPreference, Freezer, Frequency, Hierarchies,
    HostError, Journal, PowerCap, Resctrl, Roots, Wanted, online_cpus,
};
use isolation::{ActuatorSetting, Decision, Subject};
use serde::{Deserialize, Serialize};

use crate::actuators::of_setting;
use crate::feasibility::{most_cores, too_many_cores};
use crate::held::{Act, FREEZER, ForeignSetting, Held, SettingKey};
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
    /// What was carried out last.
    held: BTreeMap<SettingKey, Held>,
    /// Settings of others.
    yielded: BTreeMap<SettingKey, ForeignSetting>,
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
            held: BTreeMap::new(),
            yielded: BTreeMap::new(),
            squeezed: BTreeMap::new(),
            quotas: BTreeMap::new(),
        }
    }

    /// Settings that are left to others.
    pub(crate) fn yielded(&self) -> impl Iterator<Item = String> {
        self.yielded.values().map(|foreign| foreign.why.clone())
    }

    /// What others have set: whose it is, the actuator, and how it is now, in words.
    pub(crate) fn foreign(&self) -> impl Iterator<Item = (&Subject, &'static str, Option<&str>)> {
        self.yielded.iter().map(|((subject, actuator), foreign)| {
            let words = foreign.words.as_deref();
            (subject, *actuator, words)
        })
    }

    /// The actuators of one of them that others write.
    pub(crate) fn foreign_of(&self, subject: &Subject) -> Vec<&'static str> {
        self.foreign()
            .filter(|(of, ..)| *of == subject)
            .map(|(_, actuator, _)| actuator)
            .collect()
    }

    /// Reads again what was written. What somebody else has changed since is left to them. Returns
    /// what was not left to them before.
    pub(crate) fn look_again(
        &mut self,
        journal: &Journal,
        hierarchies: &Hierarchies,
    ) -> Vec<ForeignSetting> {
        let disturbed = journal.disturbed(&self.roots, hierarchies);
        let found = self.held.iter().filter_map(|((subject, _), held)| {
            let foreign = held.foreign(&self.roots, &disturbed)?;
            Some((subject.clone(), foreign))
        });
        let found: Vec<(Subject, ForeignSetting)> = found.collect();
        let mut news = Vec::new();
        for (subject, mut foreign) in found {
            if foreign.actuator == OFF {
                // What is in force of it is the quota, which is somebody else's, too.
                foreign.words = None;
            }
            let key = (subject, foreign.actuator);
            match self.yielded.get(&key) {
                Some(known) => foreign.decision = known.decision.clone(),
                None => news.push(foreign.clone()),
            }
            self.yielded.insert(key, foreign);
        }
        news
    }

    /// The configuration was read again: what was left to others is tried again. Returns what was
    /// wanted of it.
    pub(crate) fn reload(&mut self, devices: Devices) -> Vec<Decision> {
        self.devices = devices;
        let yielded = std::mem::take(&mut self.yielded).into_values();
        yielded.map(|foreign| foreign.decision).collect()
    }

    /// A group that vanished is a new one when it comes back. Returns what was wanted of it.
    pub(crate) fn forget(&mut self, gone: &Subject) -> Vec<Decision> {
        if let Subject::Group(name) | Subject::Service(name) = gone {
            self.squeezed.remove(name);
            self.quotas.remove(name);
        }
        let mut wanted = BTreeMap::new();
        self.held.retain(|(subject, actuator), held| {
            if subject == gone {
                wanted.insert(*actuator, held.decision.clone());
            }
            subject != gone
        });
        self.yielded.retain(|(subject, actuator), foreign| {
            // What is wanted of a freezer is among the others.
            if subject == gone && *actuator != FREEZER {
                wanted.insert(*actuator, foreign.decision.clone());
            }
            subject != gone
        });
        wanted.into_values().collect()
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
        if let Some(foreign) = self.yielded.get_mut(&key) {
            foreign.decision = decision.clone();
            return DecisionOutcome::Yielded(foreign.why.clone());
        }
        match self.set(journal, decision, place, services) {
            Ok(acts) => {
                let decision = decision.clone();
                self.held.insert(key, Held { decision, acts });
                DecisionOutcome::Applied
            }
            Err(Trouble::Lacking(why)) => DecisionOutcome::Lacking(why),
            Err(Trouble::Host(error @ HostError::Disturbed { .. })) => {
                let why = error.to_string();
                let held = self.held.get(&key).filter(|_| key.1 != OFF);
                let words = held.and_then(|held| held.in_words(&self.roots));
                self.leave(key, decision, why.clone(), words);
                DecisionOutcome::Yielded(why)
            }
            Err(Trouble::Host(HostError::Absent { .. })) => DecisionOutcome::Vanished,
            Err(Trouble::Host(error)) if matches!(error.errno(), Some(ENOENT | ENODEV)) => {
                DecisionOutcome::Vanished
            }
            Err(Trouble::Host(error)) => DecisionOutcome::Refused(error.to_string()),
        }
    }

    /// Leaves a setting to somebody else.
    fn leave(&mut self, key: SettingKey, decision: &Decision, why: String, words: Option<String>) {
        let foreign = ForeignSetting {
            decision: decision.clone(),
            actuator: key.1,
            why,
            words,
        };
        self.yielded.insert(key, foreign);
    }

    fn set(
        &mut self,
        journal: &mut Journal,
        decision: &Decision,
        place: Option<&Place>,
        services: &[Place],
    ) -> Result<Vec<Act>, Trouble> {
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
        let act = match decision.setting {
            ActuatorSetting::Off(off) => {
                return self.switch(journal, decision, (&name, &group), off);
            }
            ActuatorSetting::QuotaCores(cores) => {
                self.quotas.insert(name.clone(), cores);
                if let Some(wanted) = self.squeezed.get_mut(&name) {
                    *wanted = cores;
                    return Ok(Vec::new());
                }
                self.quota(journal, &group, cores)?
            }
            ActuatorSetting::Cores(cores) => return self.cores(journal, &group, cores, services),
            ActuatorSetting::LlcWays(ways) => {
                let resctrl = self.resctrl(journal, &name, place)?;
                let wanted = Wanted::Ways(u32::try_from(ways).unwrap_or(u32::MAX));
                resctrl.apply(journal, &roots, &wanted)?;
                Act::new(&roots, journal, Box::new(resctrl), wanted)
            }
            ActuatorSetting::MemoryBandwidthPercent(percent) => {
                let resctrl = self.resctrl(journal, &name, place)?;
                #[expect(clippy::cast_precision_loss, reason = "a percentage")]
                let wanted = Wanted::Share(percent as f64 / 100.0);
                resctrl.apply(journal, &roots, &wanted)?;
                Act::new(&roots, journal, Box::new(resctrl), wanted)
            }
            ActuatorSetting::Frequency(share) => {
                let cpuset = Cpuset { group };
                let cpus = host::parse_cpu_list(&cpuset.read(&roots)?)?;
                let frequency = Frequency { cpus };
                frequency.probe(&roots).map_err(Trouble::Lacking)?;
                frequency.apply(journal, &roots, &Wanted::Share(share))?;
                // The kernel lowers it while a CPU is hot (drivers/thermal/cpufreq_cooling.c).
                // So what it is later says nothing of others.
                return Ok(Vec::new());
            }
            ActuatorSetting::EgressMbit(rate) => self.egress(journal, group, rate)?,
            ActuatorSetting::EnergyPreference(preference) => {
                let is_service = matches!(decision.subject, Subject::Service(_));
                let cpus = self.cpus_of(&group, is_service)?;
                let wanted = Wanted::Word(preference.word().to_owned());
                self.put(journal, Box::new(EnergyPreference { cpus }), wanted)?
            }
            setting => {
                let disk = self.devices.disk.as_deref();
                let found = of_setting(&roots, disk, &group, setting).map_err(Trouble::Lacking)?;
                match found {
                    Some((actuator, Some(wanted))) => self.put(journal, actuator, wanted)?,
                    _ => return Ok(Vec::new()),
                }
            }
        };
        Ok(vec![act])
    }

    /// Sets an actuator that needs nothing else. A write that changes nothing is no act.
    fn put(
        &self,
        journal: &mut Journal,
        actuator: Box<dyn Actuator>,
        wanted: Wanted,
    ) -> Result<Act, Trouble> {
        actuator.probe(&self.roots).map_err(Trouble::Lacking)?;
        if !actuator.verify(&self.roots, &wanted)? {
            actuator.apply(journal, &self.roots, &wanted)?;
        }
        Ok(Act::new(&self.roots, journal, actuator, wanted))
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

    /// Freezes a group, or leaves it the kernel's least quota where it has no freezer, or somebody
    /// else uses its freezer.
    fn switch(
        &mut self,
        journal: &mut Journal,
        decision: &Decision,
        (name, group): (&str, &str),
        off: bool,
    ) -> Result<Vec<Act>, Trouble> {
        let freezer = Freezer {
            group: group.to_owned(),
        };
        let key = (decision.subject.clone(), FREEZER);
        if !self.yielded.contains_key(&key) && freezer.probe(&self.roots).is_ok() {
            let wanted = Wanted::On(off);
            let written = match freezer.verify(&self.roots, &wanted)? {
                true => Ok(()),
                false => freezer.apply(journal, &self.roots, &wanted),
            };
            let act = Act::new(&self.roots, journal, Box::new(freezer), wanted);
            if let Err(error @ HostError::Disturbed { .. }) = &written {
                let words = act.in_words(&self.roots);
                self.leave(key, decision, error.to_string(), words);
            } else {
                written?;
                // A group that runs and was never frozen is left alone.
                let is_ours = off || act.is_written();
                return Ok(is_ours.then_some(act).into_iter().collect());
            }
        }
        let quota = if off {
            self.squeezed
                .entry(name.to_owned())
                .or_insert(self.quotas.get(name).copied().flatten());
            Some(0.0)
        } else {
            match self.squeezed.remove(name) {
                Some(quota) => quota,
                None => return Ok(Vec::new()),
            }
        };
        Ok(vec![self.quota(journal, group, quota)?])
    }

    fn quota(
        &self,
        journal: &mut Journal,
        group: &str,
        cores: Option<f64>,
    ) -> Result<Act, Trouble> {
        let quota = CpuQuotaLimit {
            group: group.to_owned(),
        };
        let wanted = Wanted::Quota(quota.of_cores(&self.roots, cores)?);
        if !quota.verify(&self.roots, &wanted)? {
            quota.apply(journal, &self.roots, &wanted)?;
        }
        Ok(Act::new(&self.roots, journal, Box::new(quota), wanted))
    }

    /// Best-effort work gets the CPUs with the highest numbers, the services the others.
    fn cores(
        &self,
        journal: &mut Journal,
        group: &str,
        cores: u64,
        services: &[Place],
    ) -> Result<Vec<Act>, Trouble> {
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
        let mut acts = Vec::new();
        for (cpuset, cpus) in writes {
            let wanted = Wanted::Cpus(cpus);
            cpuset.apply(journal, &self.roots, &wanted)?;
            acts.push(Act::new(&self.roots, journal, Box::new(cpuset), wanted));
        }
        Ok(acts)
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

    fn egress(&self, journal: &mut Journal, group: String, mbit: f64) -> Result<Act, Trouble> {
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
        let wanted = Wanted::Bytes(Some(bytes_per_s));
        egress.apply(journal, &self.roots, &wanted)?;
        Ok(Act::new(&self.roots, journal, Box::new(egress), wanted))
    }

    fn power(&self, journal: &mut Journal, share: f64) -> Result<Vec<Act>, Trouble> {
        let zones = PowerCap::zones(&self.roots);
        if zones.is_empty() {
            return Err(Trouble::Lacking(
                "no RAPL zone: the CPU, or the hypervisor, offers none".to_owned(),
            ));
        }
        let mut acts = Vec::new();
        for zone in zones {
            let cap = PowerCap { zone };
            cap.probe(&self.roots).map_err(Trouble::Lacking)?;
            let wanted = Wanted::Share(share);
            cap.apply(journal, &self.roots, &wanted)?;
            acts.push(Act::new(&self.roots, journal, Box::new(cap), wanted));
        }
        Ok(acts)
    }
}

/// The actuator's name, as decisions have it.
const OFF: &str = "off";
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
mod foreign_tests;
#[cfg(test)]
mod tests;
