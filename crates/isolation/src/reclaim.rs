//! Giving back a service's reserved cores: its own CPU quota goes down while the tail keeps its
//! objective. Used by `slackline` on a machine without best-effort work, as on a rented VM that is
//! to become smaller.

use std::collections::BTreeMap;

use crate::alarm::signals;
use crate::autothrottle::LEAST_CORES;
use crate::controller::{ControllerMode, NO_STEP_YET, Outbox};
use crate::decision::{ActuatorSetting, Decision, Reason, Subject};
use crate::evidence::Evidence;
use crate::harm::{HarmMemory, load_step_near};
use crate::observation::{MachineObservation, ServiceSeen};
use crate::tail::TailVerdict;

/// After an act the queues drain.
const SETTLE_S: f64 = 0.5;
/// One cut.
const CUT: f64 = 0.9;
/// The first quota, above the highest use that was seen: a service that was never limited uses its
/// cores in bursts.
const FIRST: f64 = 1.5;
const SLACK_TO_CUT: f64 = 0.10;
/// A service that is throttled in more of its periods gets more at once, whatever its tail says.
const THROTTLED_MOST: f64 = 0.5;
const BOOST: f64 = 1.5;

#[derive(Debug, Default)]
struct Reserved {
    mode: ControllerMode,
    quota_cores: Option<f64>,
    good_cores: Option<f64>,
    highest_use: f64,
    evidence: Evidence,
    changed_s: Option<f64>,
    step: Option<i64>,
    load: f64,
    harm: HarmMemory,
    why: Reason,
}

impl Reserved {
    fn new(mode: ControllerMode) -> Self {
        Self {
            mode,
            harm: HarmMemory::of(mode),
            ..Self::default()
        }
    }

    fn set(&mut self, quota: f64, cores: f64, why: Reason, now_s: f64) {
        self.quota_cores = Some(quota.clamp(LEAST_CORES, cores));
        self.why = why;
        self.evidence = Evidence::default();
        self.changed_s = Some(now_s);
    }

    /// What did harm is remembered as the inverse of the quota, because less is worse.
    fn is_remembered(&self, quota: f64, now_s: f64) -> bool {
        let bound = self.harm.bound("", self.step.unwrap_or(0), now_s);
        bound.is_some_and(|bound| 1.0 / quota >= bound * 0.95)
    }

    fn follow_load(&mut self, service: &ServiceSeen, cores: f64, now_s: f64) -> bool {
        let load = service.load.unwrap_or(service.cpu_cores / cores.max(1.0));
        let last = self.step;
        let step = load_step_near(load, last);
        self.step = Some(step);
        let before = self.load;
        if last != Some(step) {
            self.load = load;
        }
        match (last, self.quota_cores) {
            (Some(last), Some(quota)) if step > last && before > 0.0 => {
                self.set(quota * load / before, cores, Reason::HighLoad, now_s);
                true
            }
            _ => false,
        }
    }

    fn step(&mut self, service: &ServiceSeen, cores: f64, now_s: f64) {
        self.highest_use = self.highest_use.max(service.cpu_cores);
        let changed_s = *self.changed_s.get_or_insert(now_s);
        if self.follow_load(service, cores, now_s) {
            return;
        }
        let age_s = now_s - changed_s;
        let (Some(window), Some(fresh)) = (service.window, service.fresh) else {
            return;
        };
        if age_s >= SETTLE_S {
            self.evidence.add(&fresh, signals(service));
        }
        let tail = self.evidence.tail(window.quantile);
        let is_whole = age_s >= service.window_s;
        let verdict = tail.verdict(service.objective_ms);
        let is_violated = verdict == TailVerdict::Violated
            && (is_whole || tail.is_violated(service.objective_ms, 3.0));
        match self.quota_cores {
            None => {
                // Without a known use, any quota would be a guess.
                let is_known = self.highest_use > 0.0;
                if is_whole && is_known && verdict == TailVerdict::Within {
                    self.set(FIRST * self.highest_use, cores, Reason::Start, now_s);
                }
            }
            Some(quota) if is_violated => {
                self.harm
                    .record("", self.step.unwrap_or(0), 1.0 / quota, now_s);
                let back = self
                    .good_cores
                    .take()
                    .unwrap_or(quota * BOOST)
                    .max(quota / CUT);
                let why = match self.mode {
                    ControllerMode::Acting => Reason::Revert,
                    // The quota was never in force.
                    ControllerMode::Observing => Reason::Violation,
                };
                self.set(back, cores, why, now_s);
            }
            Some(quota)
                if service.throttled_share > THROTTLED_MOST
                    && age_s >= SETTLE_S
                    && quota < cores =>
            {
                self.set(quota * BOOST, cores, Reason::Throttled, now_s);
            }
            Some(quota) if is_whole => {
                let has_slack = verdict == TailVerdict::Within
                    && tail.slack(service.objective_ms) - tail.relative_error() > SLACK_TO_CUT;
                if has_slack {
                    self.harm
                        .harmless("", self.step.unwrap_or(0), 1.0 / quota, now_s);
                    self.good_cores = Some(quota);
                    // What a cut does, only a quota in force can show.
                    let may_cut = self.mode.is_acting();
                    if may_cut && !self.is_remembered(quota * CUT, now_s) {
                        self.set(quota * CUT, cores, Reason::Slack, now_s);
                        return;
                    }
                }
                self.evidence = Evidence::default();
                self.changed_s = Some(now_s);
            }
            Some(_) => {}
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Reclaim {
    mode: ControllerMode,
    services: BTreeMap<String, Reserved>,
    outbox: Outbox,
}

impl Reclaim {
    pub(crate) fn new(mode: ControllerMode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    pub(crate) fn step(&mut self, seen: &MachineObservation, now_s: f64) -> Vec<Decision> {
        for service in &seen.services {
            let reserved = self.services.entry(service.name.clone());
            let reserved = reserved.or_insert_with(|| Reserved::new(self.mode));
            reserved.step(service, seen.machine.cores, now_s);
            if let Some(quota) = reserved.quota_cores {
                let subject = Subject::Service(service.name.clone());
                self.outbox.put(
                    subject,
                    ActuatorSetting::QuotaCores(Some(quota)),
                    reserved.why,
                );
            }
        }
        self.outbox.take()
    }

    pub(crate) fn resume(&mut self, now_s: f64) {
        for reserved in self.services.values_mut() {
            reserved.evidence = Evidence::default();
            reserved.changed_s = Some(now_s);
        }
    }

    pub(crate) fn explain(&self) -> String {
        if self.services.is_empty() {
            return NO_STEP_YET.to_owned();
        }
        let of = |(name, reserved): (&String, &Reserved)| match reserved.quota_cores {
            Some(quota) => format!(
                "the quota of {name} {} {quota:.2} cores ({})",
                self.mode.is(),
                reserved.why.name()
            ),
            None if self.mode.is_acting() => format!("the quota of {name} is not lowered yet"),
            None => format!("the quota of {name} would not be lowered yet"),
        };
        self.services.iter().map(of).collect::<Vec<_>>().join("; ")
    }
}
