//! The rules that hold for every policy: best-effort work is off while a service's latency is not
//! known or the service is gone, and what was measured before the clock jumped does not count.

use std::collections::BTreeMap;

use crate::controller::{ControllerMode, IsolationController, Outbox};
use crate::decision::{ActuatorSetting, Decision, Reason, Subject};
use crate::fixed::Fixed;
use crate::numbers::number;
use crate::observation::{MachineObservation, ServiceSeen};
use crate::policy::PolicySettings;

/// Between two steps less time passes, save when the machine stood still or the process was
/// stopped.
const GAP_S: f64 = 30.0;

/// A controller with the rules that hold for all policies.
#[must_use]
pub fn guarded(settings: &PolicySettings) -> Box<dyn IsolationController> {
    in_mode(settings, ControllerMode::Acting)
}

/// As [`guarded`], for one who carries none of the decisions out. Nothing that it decides is taken
/// to have done harm, and its sentence says what would be.
#[must_use]
pub fn observing(settings: &PolicySettings) -> Box<dyn IsolationController> {
    in_mode(settings, ControllerMode::Observing)
}

fn in_mode(settings: &PolicySettings, mode: ControllerMode) -> Box<dyn IsolationController> {
    Box::new(Guard {
        mode,
        inner: settings.controller(mode),
        beside: settings.beside(),
        off: BTreeMap::new(),
        outbox: Outbox::default(),
        holding: None,
        shortage: String::new(),
        foreign: String::new(),
        last_s: None,
    })
}

struct Guard {
    mode: ControllerMode,
    inner: Box<dyn IsolationController>,
    /// Settings that are in force whatever the policy decides.
    beside: Option<Fixed>,
    /// Groups that the policy itself has switched off or on.
    off: BTreeMap<String, bool>,
    outbox: Outbox,
    /// Why everything is off, if it is.
    holding: Option<Reason>,
    /// What a service lacks, while that is why everything is off, or that it is gone.
    shortage: String,
    /// What somebody else writes, so that no decision about it is in force.
    foreign: String,
    last_s: Option<f64>,
}

/// What is missing to judge a service's tail, in words; `None` where nothing is.
fn shortage(service: &ServiceSeen) -> Option<String> {
    let name = &service.name;
    let Some(tail) = service.window else {
        return Some(format!("the latency of service {name} is not known"));
    };
    // A few requests have no tail. Nobody asked: there is nothing to harm.
    let least = 1.0 / (1.0 - tail.quantile).max(1e-6);
    let has_tail = tail.requests == 0 || number(tail.requests) >= least;
    (!has_tail).then(|| {
        let percentile = (1e5 * tail.quantile).round() / 1e3;
        format!(
            "service {name} answered {} requests within {} s, and p{percentile} needs {least:.0}: set a longer window_s, or a \
             lower percentile",
            tail.requests, service.window_s
        )
    })
}

impl Guard {
    /// Why best-effort work has to be off, whatever the policy thinks.
    fn why_off(&mut self, seen: &MachineObservation) -> Option<Reason> {
        if !self.inner.needs_latency() {
            return None;
        }
        let mut services = seen.services.iter();
        if let Some(gone) = services.find(|service| !service.is_running) {
            self.shortage = format!("service {} does not run", gone.name);
            return Some(Reason::ServiceGone);
        }
        self.shortage = seen.services.iter().find_map(shortage)?;
        Some(Reason::NoData)
    }

    /// What the policy decides, where the rules let it.
    fn steered(&mut self, seen: &MachineObservation, now_s: f64) -> Vec<Decision> {
        let gap_s = self.last_s.map_or(0.0, |last_s| now_s - last_s);
        if !now_s.is_finite() || gap_s < 0.0 {
            self.last_s = now_s.is_finite().then_some(now_s);
            self.inner.resume(now_s);
            return Vec::new();
        }
        self.last_s = Some(now_s);
        let mut why = self.why_off(seen);
        if gap_s > GAP_S && self.inner.needs_latency() {
            self.inner.resume(now_s);
            why = why.or(Some(Reason::ClockJump));
        }
        if let Some(reason) = why {
            if self.holding.is_none() {
                self.outbox = Outbox::default();
            }
            self.holding = Some(reason);
            self.outbox
                .put_groups(seen, ActuatorSetting::Off(true), reason);
            return self.outbox.take();
        }
        let resumed = self.holding.take().is_some();
        if resumed {
            self.inner.resume(now_s);
        }
        let decisions = self.inner.step(seen, now_s);
        for decision in &decisions {
            if let (Subject::Group(name), ActuatorSetting::Off(off)) =
                (&decision.subject, decision.setting)
            {
                self.off.insert(name.clone(), off);
            }
        }
        if !resumed {
            return decisions;
        }
        // First what the policy says, then the groups that it wants on.
        let mut all = decisions;
        for group in seen.running_groups() {
            let is_off = self.off.get(&group.name).copied().unwrap_or(false);
            let subject = Subject::Group(group.name.clone());
            let is_said = all
                .iter()
                .any(|d| d.subject == subject && matches!(d.setting, ActuatorSetting::Off(_)));
            if !is_off && !is_said {
                all.push(Decision::group(
                    &group.name,
                    ActuatorSetting::Off(false),
                    Reason::CooldownOver,
                ));
            }
        }
        all
    }
}

impl IsolationController for Guard {
    fn step(&mut self, seen: &MachineObservation, now_s: f64) -> Vec<Decision> {
        self.foreign = seen.foreign_in_words();
        // First the policy: a lower memory.high takes as long as the kernel reclaims.
        let mut all = self.steered(seen, now_s);
        let beside = self.beside.iter_mut();
        all.extend(beside.flat_map(|fixed| fixed.step(seen, now_s)));
        all
    }

    fn needs_latency(&self) -> bool {
        self.inner.needs_latency()
    }

    fn resume(&mut self, now_s: f64) {
        self.inner.resume(now_s);
    }

    fn explain(&self) -> String {
        let is = self.mode.is();
        let explained = match self.holding {
            Some(Reason::NoData | Reason::ServiceGone) => {
                format!("best-effort work {is} off: {}", self.shortage)
            }
            Some(Reason::ClockJump) => format!(
                "best-effort work {is} off: the machine stood still, and earlier measurements do not count"
            ),
            _ => self.inner.explain(),
        };
        match self.foreign.as_str() {
            "" => explained,
            foreign => format!("{explained}; somebody else writes {foreign}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::GroupSeen;
    use crate::policy::Policy;
    use crate::tail::Tail;

    fn seen(requests: Option<u64>) -> MachineObservation {
        let tail = requests.map(|requests| Tail {
            quantile: 0.99,
            latency_ms: 1.0,
            requests,
            above: Some(0),
        });
        MachineObservation {
            services: vec![ServiceSeen {
                fresh: tail,
                window: tail,
                load: Some(0.3),
                ..ServiceSeen::without_data("web", 5.0)
            }],
            groups: vec![GroupSeen::running("batch", 1.0)],
            ..MachineObservation::of_cores(4.0)
        }
    }

    fn said(decisions: &[Decision]) -> Vec<String> {
        decisions.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn best_effort_work_goes_off_without_data_and_comes_back() {
        let mut guard = guarded(&PolicySettings::named(Policy::Heracles));
        let first = said(&guard.step(&seen(Some(1000)), 0.0));
        assert!(
            first.contains(&"group batch: on (load_fell)".to_owned()),
            "{first:?}"
        );
        assert_eq!(
            said(&guard.step(&seen(None), 1.0)),
            ["group batch: off (no_data)"]
        );
        assert_eq!(said(&guard.step(&seen(None), 2.0)), [""; 0]);
        let why = "best-effort work is off: the latency of service web is not known";
        assert_eq!(guard.explain(), why);
        // Twenty requests have no p99.
        assert_eq!(said(&guard.step(&seen(Some(20)), 3.0)), [""; 0]);
        let why = "best-effort work is off: service web answered 20 requests within 15 s, and p99 needs 100: set a \
                   longer window_s, or a lower percentile";
        assert_eq!(guard.explain(), why);
        let back = said(&guard.step(&seen(Some(1000)), 4.0));
        assert!(
            back.iter().any(|line| line.starts_with("group batch: on")),
            "{back:?}"
        );
        let mut gone = seen(Some(1000));
        gone.services[0].is_running = false;
        assert_eq!(
            said(&guard.step(&gone, 5.0)),
            ["group batch: off (service_gone)"]
        );
        let why = "best-effort work is off: service web does not run";
        assert_eq!(guard.explain(), why);
    }

    #[test]
    fn a_clock_that_jumps_stops_best_effort_work_for_a_step() {
        let mut guard = guarded(&PolicySettings::named(Policy::Heracles));
        guard.step(&seen(Some(1000)), 0.0);
        assert_eq!(said(&guard.step(&seen(Some(1000)), -5.0)), [""; 0]);
        assert_eq!(said(&guard.step(&seen(Some(1000)), f64::NAN)), [""; 0]);
        guard.step(&seen(Some(1000)), 0.0);
        assert_eq!(
            said(&guard.step(&seen(Some(1000)), 1e6)),
            ["group batch: off (clock_jump)"]
        );
        let back = said(&guard.step(&seen(Some(1000)), 1e6 + 0.25));
        assert!(
            back.iter().any(|line| line.starts_with("group batch: on")),
            "{back:?}"
        );
    }

    #[test]
    fn settings_beside_a_policy_are_in_force_whatever_it_decides() {
        let mut settings = PolicySettings::named(Policy::Heracles);
        settings.fixed.memory_high_mib = Some(64);
        settings.fixed.service_memory_low_mib = Some(128);
        let mut guard = guarded(&settings);
        let first = said(&guard.step(&seen(None), 0.0));
        assert_eq!(
            first,
            [
                "group batch: off (no_data)",
                "group batch: memory.high 64 MiB (start)",
                "service web: memory.low 128 MiB (start)"
            ]
        );
        assert_eq!(said(&guard.step(&seen(None), 1.0)), [""; 0]);
        // `none` does nothing, and `static` has them itself.
        settings.policy = Policy::None;
        assert_eq!(said(&guarded(&settings).step(&seen(None), 0.0)), [""; 0]);
        settings.policy = Policy::Static;
        assert_eq!(guarded(&settings).step(&seen(None), 0.0).len(), 2);
    }

    #[test]
    fn what_somebody_else_writes_is_said_whatever_the_policy() {
        for policy in Policy::ALL {
            let mut guard = guarded(&PolicySettings::named(policy));
            let mut foreign = seen(Some(1000));
            foreign.groups[0].foreign = vec!["cpu_idle", "quota"];
            foreign.services[0].foreign = vec!["quota"];
            guard.step(&foreign, 0.0);
            let said = guard.explain();
            let wanted = "; somebody else writes cpu_idle of group batch, quota of group batch, quota of service web";
            assert!(said.ends_with(wanted), "{}: {said}", policy.name());
            // A group that does not run has no settings.
            foreign.groups[0].is_running = false;
            foreign.services[0].foreign.clear();
            guard.step(&foreign, 1.0);
            let said = guard.explain();
            assert!(!said.contains("somebody"), "{}: {said}", policy.name());
        }
    }

    #[test]
    fn a_policy_that_does_not_ask_for_latency_goes_on_without() {
        let mut guard = guarded(&PolicySettings::named(Policy::CpuSuppress));
        let said = said(&guard.step(&seen(None), 0.0));
        assert!(said[0].starts_with("group batch: quota"), "{said:?}");
    }
}
