//! `static` and `none`: settings that are written once, and nothing. They are the controls of every
//! comparison. Settings that have nothing to do with CPU time can be written beside every policy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::controller::{ControllerMode, IsolationController, Outbox};
use crate::decision::{ActuatorSetting, Decision, Reason, Subject};
use crate::energy_preference::EnergyPreference;
use crate::numbers::{number, whole};
use crate::observation::MachineObservation;

const BYTES_PER_MIB: u64 = 1 << 20;
const BYTES_PER_MB: f64 = 1e6;

/// The settings that the policy `static` writes. A setting that you leave out does not change. With
/// another policy, the settings of memory, disks and utilisation clamps may be here: they are
/// written beside the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FixedSettings {
    /// `true`: set `cpu.idle` of best-effort groups to 1, so that they run only when nothing else
    /// wants the CPU. `false`: set it to 0.
    pub cpu_idle: Option<bool>,
    /// CPU weight of best-effort groups, 1 to 10,000. In cgroup v1, `cpu.shares` is the weight
    /// times 10.24.
    pub weight: Option<u64>,
    /// CPU quota of all best-effort groups together, in cores.
    pub quota_cores: Option<f64>,
    /// Number of cores that only best-effort groups use.
    pub cores: Option<u64>,
    /// CPU quota of each service, in cores.
    pub service_quota_cores: Option<f64>,
    /// CPU weight of each service.
    pub service_weight: Option<u64>,
    /// `memory.high` of each best-effort group, in MiB. If a group uses more, the kernel reclaims
    /// its memory and slows it down. In cgroup v1, it is the soft limit, which the kernel heeds
    /// only if memory is short.
    pub memory_high_mib: Option<u64>,
    /// `memory.low` of each service, in MiB: memory that the kernel takes from the service only if
    /// nobody else has any. The groups above the service get at least as much. Needs cgroup v2.
    pub service_memory_low_mib: Option<u64>,
    /// `rbps` of `io.max`: what each best-effort group may read from `io_device`, in MB/s.
    pub io_max_read_mb_per_s: Option<f64>,
    /// `wbps` of `io.max`: what each best-effort group may write to `io_device`, in MB/s. In cgroup
    /// v1, writes through the page cache are not limited.
    pub io_max_write_mb_per_s: Option<f64>,
    /// I/O weight of best-effort groups, 1 to 10,000, or to 1,000 with the I/O scheduler BFQ.
    pub io_weight: Option<u64>,
    /// I/O weight of each service.
    pub service_io_weight: Option<u64>,
    /// `true`: switch on the cost model of `io_device` (`io.cost.qos`). Without BFQ, I/O weights
    /// have no effect if it is off. `false`: switch it off. Needs cgroup v2.
    pub io_cost: Option<bool>,
    /// `cpu.uclamp.max` of best-effort groups, in percent of a CPU: they do not raise the frequency
    /// of their cores beyond it.
    pub uclamp_max_percent: Option<f64>,
    /// `cpu.uclamp.min` of each service, in percent of a CPU: its cores have at least this
    /// frequency while it runs.
    pub service_uclamp_min_percent: Option<f64>,
    /// Energy preference (EPP) of the cores that only best-effort groups use. Needs `cores`.
    pub epp: Option<EnergyPreference>,
    /// Energy preference (EPP) of the cores that services may use.
    pub service_epp: Option<EnergyPreference>,
}

/// A setting with its key.
pub type KeyedSetting = (&'static str, ActuatorSetting);

impl FixedSettings {
    /// What each of so many best-effort groups gets, by key, in the order of writing.
    #[must_use]
    pub fn of_group(&self, groups: u64) -> Vec<KeyedSetting> {
        let share = number(groups.max(1));
        let quota = self.quota_cores.map(|cores| Some(cores / share));
        let all = [
            ("weight", self.weight.map(ActuatorSetting::Weight)),
            ("cpu_idle", self.cpu_idle.map(ActuatorSetting::CpuIdle)),
            ("quota_cores", quota.map(ActuatorSetting::QuotaCores)),
            ("cores", self.cores.map(ActuatorSetting::Cores)),
            (
                "memory_high_mib",
                mebibytes(self.memory_high_mib).map(ActuatorSetting::MemoryHighBytes),
            ),
            (
                "io_max_read_mb_per_s",
                rate(self.io_max_read_mb_per_s).map(ActuatorSetting::IoReadBytesPerS),
            ),
            (
                "io_max_write_mb_per_s",
                rate(self.io_max_write_mb_per_s).map(ActuatorSetting::IoWriteBytesPerS),
            ),
            ("io_weight", self.io_weight.map(ActuatorSetting::IoWeight)),
            (
                "uclamp_max_percent",
                share_of(self.uclamp_max_percent).map(ActuatorSetting::UclampMax),
            ),
            ("epp", self.epp.map(ActuatorSetting::EnergyPreference)),
        ];
        given(all)
    }

    /// What each service gets, by key, in the order of writing.
    #[must_use]
    pub fn of_service(&self) -> Vec<KeyedSetting> {
        let quota = self.service_quota_cores.map(Some);
        let all = [
            (
                "service_weight",
                self.service_weight.map(ActuatorSetting::Weight),
            ),
            (
                "service_quota_cores",
                quota.map(ActuatorSetting::QuotaCores),
            ),
            (
                "service_memory_low_mib",
                mebibytes(self.service_memory_low_mib).map(ActuatorSetting::MemoryLowBytes),
            ),
            (
                "service_io_weight",
                self.service_io_weight.map(ActuatorSetting::IoWeight),
            ),
            (
                "service_uclamp_min_percent",
                share_of(self.service_uclamp_min_percent).map(ActuatorSetting::UclampMin),
            ),
            (
                "service_epp",
                self.service_epp.map(ActuatorSetting::EnergyPreference),
            ),
        ];
        given(all)
    }

    /// What the machine gets, by key.
    #[must_use]
    pub fn of_machine(&self) -> Vec<KeyedSetting> {
        given([("io_cost", self.io_cost.map(ActuatorSetting::IoCost))])
    }

    /// The first key that only the policy `static` may write: the other policies decide about CPU
    /// time and cores themselves.
    #[must_use]
    pub fn key_of_static(&self) -> Option<&'static str> {
        let all = self.of_group(1).into_iter().chain(self.of_service());
        all.filter(|(_, setting)| setting.is_of_cpu_time())
            .map(|(key, _)| key)
            .next()
    }
}

fn given<const N: usize>(all: [(&'static str, Option<ActuatorSetting>); N]) -> Vec<KeyedSetting> {
    let given = all.into_iter();
    given
        .filter_map(|(key, setting)| Some((key, setting?)))
        .collect()
}

fn mebibytes(mib: Option<u64>) -> Option<u64> {
    mib.map(|mib| mib.saturating_mul(BYTES_PER_MIB))
}

fn rate(mb_per_s: Option<f64>) -> Option<u64> {
    mb_per_s.map(|rate| whole(rate * BYTES_PER_MB).max(1))
}

fn share_of(percent: Option<f64>) -> Option<f64> {
    percent.map(|percent| percent / 100.0)
}

/// Writes its settings once, and again to groups and services that come later.
#[derive(Debug)]
pub(crate) struct Fixed {
    settings: FixedSettings,
    mode: ControllerMode,
    outbox: Outbox,
}

impl Fixed {
    pub(crate) fn new(settings: FixedSettings, mode: ControllerMode) -> Self {
        Self {
            settings,
            mode,
            outbox: Outbox::default(),
        }
    }
}

impl IsolationController for Fixed {
    fn step(&mut self, seen: &MachineObservation, _now_s: f64) -> Vec<Decision> {
        // Weights of a disk need its cost model.
        for (_, setting) in self.settings.of_machine() {
            self.outbox.put(Subject::Machine, setting, Reason::Start);
        }
        let running = seen.running_groups().count() as u64;
        let is_last =
            |setting: &ActuatorSetting| matches!(setting, ActuatorSetting::EnergyPreference(_));
        let (last, first): (Vec<_>, Vec<_>) = self
            .settings
            .of_group(running)
            .into_iter()
            .partition(|(_, setting)| is_last(setting));
        for (_, setting) in first {
            self.outbox.put_groups(seen, setting, Reason::Start);
        }
        for service in &seen.services {
            let subject = Subject::Service(service.name.clone());
            if !service.is_running {
                self.outbox.forget(&subject);
                continue;
            }
            for (_, setting) in self.settings.of_service() {
                self.outbox.put(subject.clone(), setting, Reason::Start);
            }
        }
        // A service without cores of its own has all of them: those of best-effort work are taken
        // out again.
        for (_, setting) in last {
            self.outbox.put_groups(seen, setting, Reason::Start);
        }
        self.outbox.take()
    }

    fn needs_latency(&self) -> bool {
        false
    }

    fn explain(&self) -> String {
        let is_empty = self.settings == FixedSettings::default();
        let said = match (is_empty, self.mode) {
            (true, _) => "nothing is changed",
            (false, ControllerMode::Acting) => "the settings of policy.static are written once",
            (false, ControllerMode::Observing) => {
                "the settings of policy.static would be written once"
            }
        };
        said.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{GroupSeen, ServiceSeen};

    fn seen() -> MachineObservation {
        MachineObservation {
            services: vec![ServiceSeen::without_data("web", 5.0)],
            groups: vec![GroupSeen::running("batch", 1.0)],
            ..MachineObservation::of_cores(4.0)
        }
    }

    /// One of each, in its own unit.
    fn every() -> FixedSettings {
        let text = r#"{ "cpu_idle": true, "weight": 1, "quota_cores": 1.5, "cores": 1,
            "service_quota_cores": 2, "service_weight": 500, "memory_high_mib": 512,
            "service_memory_low_mib": 1024, "io_max_read_mb_per_s": 20,
            "io_max_write_mb_per_s": 0.5, "io_weight": 10, "service_io_weight": 1000,
            "io_cost": true, "uclamp_max_percent": 40, "service_uclamp_min_percent": 60,
            "epp": "power", "service_epp": "performance" }"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn every_setting_is_said_once_in_the_order_that_it_needs() {
        let mut fixed = Fixed::new(every(), ControllerMode::Acting);
        let said: Vec<String> = fixed
            .step(&seen(), 0.0)
            .iter()
            .map(ToString::to_string)
            .collect();
        let wanted = [
            "machine: io.cost on",
            "group batch: weight 1",
            "group batch: cpu.idle",
            "group batch: quota 1.50 cores",
            "group batch: 1 core",
            "group batch: memory.high 512 MiB",
            "group batch: reads 20.0 MB/s",
            "group batch: writes 0.5 MB/s",
            "group batch: I/O weight 10",
            "group batch: uclamp.max 40 %",
            "service web: weight 500",
            "service web: quota 2.00 cores",
            "service web: memory.low 1024 MiB",
            "service web: I/O weight 1000",
            "service web: uclamp.min 60 %",
            "service web: EPP performance",
            "group batch: EPP power",
        ];
        assert_eq!(said, wanted.map(|line| format!("{line} (start)")));
        assert_eq!(fixed.step(&seen(), 1.0), []);
    }

    #[test]
    fn a_service_that_comes_back_gets_its_settings_again() {
        let settings = FixedSettings {
            service_memory_low_mib: Some(1),
            ..FixedSettings::default()
        };
        let mut fixed = Fixed::new(settings, ControllerMode::Acting);
        assert_eq!(fixed.step(&seen(), 0.0).len(), 1);
        let mut gone = seen();
        gone.services[0].is_running = false;
        assert_eq!(fixed.step(&gone, 1.0), []);
        assert_eq!(fixed.step(&seen(), 2.0).len(), 1);
    }

    #[test]
    fn keys_of_cpu_time_and_cores_are_those_of_static_alone() {
        let mut settings = every();
        assert_eq!(settings.key_of_static(), Some("weight"));
        settings.weight = None;
        settings.cpu_idle = None;
        settings.quota_cores = None;
        assert_eq!(settings.key_of_static(), Some("cores"));
        settings.cores = None;
        assert_eq!(settings.key_of_static(), Some("epp"));
        settings.epp = None;
        assert_eq!(settings.key_of_static(), Some("service_weight"));
        settings.service_weight = None;
        assert_eq!(settings.key_of_static(), Some("service_quota_cores"));
        settings.service_quota_cores = None;
        assert_eq!(settings.key_of_static(), Some("service_epp"));
        settings.service_epp = None;
        assert_eq!(settings.key_of_static(), None);
    }
}
