//! Koordinator's CPU suppression (koordlet, qosmanager/plugins/cpusuppress): best-effort work gets
//! what 65 % of the machine's CPU leaves over the use of services and system. It never looks at a
//! latency.

use crate::controller::{BestEffortWork, ControllerMode, Every, IsolationController, Outbox};
use crate::decision::{ActuatorSetting, Decision, Reason};
use crate::observation::MachineObservation;

/// koordlet's `CPUSuppressIntervalSeconds`.
const INTERVAL_S: f64 = 1.0;
/// koordlet's `beMinQuota`: 2,000 of 100,000 µs.
const LEAST_CORES: f64 = 0.02;
/// koordlet's `beMaxIncreaseCPUPercent`: growth by at most this share of all cores a step.
const GROWTH_SHARE: f64 = 0.1;
/// koordlet's `suppressBypassQuotaDeltaRatio`: smaller changes, as a share of all cores, are left
/// out.
const BYPASS_SHARE: f64 = 0.01;

#[derive(Debug)]
pub(crate) struct CpuSuppress {
    mode: ControllerMode,
    work: BestEffortWork,
    share: f64,
    quota_cores: Option<f64>,
    every: Every,
    outbox: Outbox,
}

impl CpuSuppress {
    pub(crate) fn new(share: f64, mode: ControllerMode) -> Self {
        Self {
            mode,
            work: BestEffortWork::default(),
            share,
            quota_cores: None,
            every: Every::s(INTERVAL_S),
            outbox: Outbox::default(),
        }
    }
}

impl IsolationController for CpuSuppress {
    fn step(&mut self, seen: &MachineObservation, now_s: f64) -> Vec<Decision> {
        self.work = BestEffortWork::of(seen);
        if self.every.is_due(now_s) {
            let cores = seen.machine.cores;
            let others = (seen.machine.busy_cores - seen.group_cores()).max(seen.service_cores());
            let mut quota = (cores * self.share - others).max(LEAST_CORES);
            if let Some(last) = self.quota_cores {
                quota = quota.min(last + GROWTH_SHARE * cores);
                let is_small = (quota - last).abs() < BYPASS_SHARE * cores;
                if is_small && quota > LEAST_CORES {
                    quota = last;
                }
            }
            self.quota_cores = Some(quota);
        }
        if let Some(quota) = self.quota_cores {
            let groups = crate::numbers::number(seen.running_groups().count().max(1) as u64);
            let setting = ActuatorSetting::QuotaCores(Some(quota / groups));
            self.outbox.put_groups(seen, setting, Reason::CpuUse);
        }
        self.outbox.take()
    }

    fn needs_latency(&self) -> bool {
        false
    }

    fn explain(&self) -> String {
        self.work.absence().unwrap_or_else(|| {
            let quota = self.quota_cores.unwrap_or_default();
            let may_use = self.mode.may_use();
            format!("best-effort work {may_use} {quota:.2} cores together")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{GroupSeen, ServiceSeen};

    fn quota(suppress: &mut CpuSuppress, service_cores: f64, now_s: f64) -> Option<f64> {
        let mut seen = MachineObservation {
            services: vec![ServiceSeen {
                cpu_cores: service_cores,
                ..ServiceSeen::without_data("web", 5.0)
            }],
            groups: vec![GroupSeen::running("batch", 10.0)],
            ..MachineObservation::of_cores(80.0)
        };
        seen.machine.busy_cores = service_cores + 10.0;
        let decisions = suppress.step(&seen, now_s);
        decisions.first().map(|decision| match decision.setting {
            ActuatorSetting::QuotaCores(Some(cores)) => cores,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_quota_is_what_65_percent_leave_and_grows_slowly() {
        let mut suppress = CpuSuppress::new(0.65, ControllerMode::Acting);
        let close = |found: Option<f64>, wanted: f64| {
            assert!((found.unwrap() - wanted).abs() < 1e-9, "{found:?} {wanted}");
        };
        close(quota(&mut suppress, 40.0, 0.0), 12.0);
        assert_eq!(
            suppress.explain(),
            "best-effort work may use 12.00 cores together"
        );
        // 42 cores are free now; growth is 10 % of 80 cores a step.
        close(quota(&mut suppress, 10.0, 1.0), 20.0);
        // Down at once.
        close(quota(&mut suppress, 50.0, 2.0), 2.0);
        // Less than 1 % of 80 cores: left as it is.
        assert_eq!(quota(&mut suppress, 50.5, 3.0), None);
        close(quota(&mut suppress, 79.0, 4.0), LEAST_CORES);
        // Not before a second has passed.
        assert_eq!(quota(&mut suppress, 10.0, 4.5), None);
    }
}
