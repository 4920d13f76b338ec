//! `static` and `none`: settings that are written once, and nothing. They are the controls of every
//! comparison.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::controller::{IsolationController, Outbox};
use crate::decision::{ActuatorSetting, Decision, Reason, Subject};
use crate::observation::MachineObservation;

/// The settings that the policy `static` writes. A setting that you leave out does not change.
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
}

/// Writes its settings once, and again to groups that come later.
#[derive(Debug)]
pub(crate) struct Fixed {
    settings: FixedSettings,
    outbox: Outbox,
}

impl Fixed {
    pub(crate) fn new(settings: FixedSettings) -> Self {
        Self {
            settings,
            outbox: Outbox::default(),
        }
    }
}

impl IsolationController for Fixed {
    fn step(&mut self, seen: &MachineObservation, _now_s: f64) -> Vec<Decision> {
        let settings = &self.settings;
        let groups = crate::numbers::number(seen.running_groups().count().max(1) as u64);
        let for_groups = [
            settings.weight.map(ActuatorSetting::Weight),
            settings.cpu_idle.map(ActuatorSetting::CpuIdle),
            settings
                .quota_cores
                .map(|cores| ActuatorSetting::QuotaCores(Some(cores / groups))),
            settings.cores.map(ActuatorSetting::Cores),
        ];
        for setting in for_groups.into_iter().flatten() {
            self.outbox.put_groups(seen, setting, Reason::Start);
        }
        let for_services = [
            settings.service_weight.map(ActuatorSetting::Weight),
            settings
                .service_quota_cores
                .map(|cores| ActuatorSetting::QuotaCores(Some(cores))),
        ];
        for service in seen.services.iter().filter(|service| service.is_running) {
            for setting in for_services.into_iter().flatten() {
                let subject = Subject::Service(service.name.clone());
                self.outbox.put(subject, setting, Reason::Start);
            }
        }
        self.outbox.take()
    }

    fn needs_latency(&self) -> bool {
        false
    }
}
