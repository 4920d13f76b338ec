//! Autothrottle (Wang et al., NSDI 2024): two levels. A captain for each service holds the
//! service's throttle ratio at a target by its CPU quota, every second. A tower sets the target by
//! the load, from what each target cost ([`crate::tower`]).

use std::collections::{BTreeMap, VecDeque};

use crate::controller::{ControllerMode, Every, IsolationController, NO_STEP_YET, Outbox};
use crate::decision::{ActuatorSetting, Decision, Reason, Subject};
use crate::harm::load_step_near;
use crate::numbers::number;
use crate::observation::{MachineObservation, ServiceSeen};
use crate::tower::{Tower, Window};

/// Ten quota periods of 100 ms (the paper's N).
const CAPTAIN_S: f64 = 1.0;
/// Seconds of CPU use that the captain remembers (the paper's M, 50 periods).
const HISTORY: usize = 50;
/// A throttle ratio beyond so many times the target is answered at once (α).
const ALPHA: f64 = 3.0;
/// A quota is lowered only below this share of the present one (β max), and to no less than β min
/// of it.
const BETA_MAX: f64 = 0.9;
const BETA_MIN: f64 = 0.5;
/// The kernel's least quota at a period of 100 ms is 0.01 cores.
pub(crate) const LEAST_CORES: f64 = 0.02;

/// Holds the throttle ratio of one service at a target.
#[derive(Debug, Default)]
pub(crate) struct Captain {
    quota_cores: Option<f64>,
    before_cut: Option<f64>,
    margin: f64,
    history: VecDeque<f64>,
}

impl Captain {
    /// One second has passed, in which the service used so many cores and was throttled in this
    /// share of its periods.
    fn step(&mut self, used_cores: f64, ratio: f64, cores: f64, target: f64) -> Option<Reason> {
        self.history.push_back(used_cores);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        let Some(quota) = self.quota_cores else {
            if self.history.len() < HISTORY / 5 {
                return None;
            }
            self.quota_cores = Some(self.proposal(cores));
            return Some(Reason::Start);
        };
        self.margin = (self.margin + ratio - target).max(0.0);
        if ratio > ALPHA * target {
            // Too far: back to what was there before the last cut, or more by the ratio.
            let more = quota * (1.0 + ratio - ALPHA * target);
            let quota = self
                .before_cut
                .take()
                .map_or(more, |before| before.max(more));
            self.quota_cores = Some(quota.min(cores));
            return Some(Reason::Throttled);
        }
        self.before_cut = None;
        let proposal = self.proposal(cores);
        if proposal <= BETA_MAX * quota {
            self.before_cut = Some(quota);
            self.quota_cores = Some(proposal.max(BETA_MIN * quota));
            return Some(Reason::NotThrottled);
        }
        None
    }

    /// The highest use of late, and a margin of its deviations.
    fn proposal(&self, cores: f64) -> f64 {
        let n = number(self.history.len().max(1) as u64);
        let mean = self.history.iter().sum::<f64>() / n;
        let variance = self
            .history
            .iter()
            .map(|use_| (use_ - mean).powi(2))
            .sum::<f64>()
            / n;
        let highest = self.history.iter().fold(0.0, |a: f64, b| a.max(*b));
        (highest + self.margin * variance.sqrt()).clamp(LEAST_CORES, cores)
    }
}

/// What was seen since the captain last acted: a step of the loop has two or three quota periods,
/// the captain's second has ten.
#[derive(Debug, Default)]
struct Second {
    cpu_cores: f64,
    throttled_share: f64,
    looks: u64,
}

impl Second {
    fn add(&mut self, service: &ServiceSeen) {
        self.cpu_cores += service.cpu_cores;
        self.throttled_share += service.throttled_share;
        self.looks += 1;
    }

    /// Means of the looks.
    fn take(&mut self) -> (f64, f64) {
        let looks = number(self.looks.max(1));
        let means = (self.cpu_cores / looks, self.throttled_share / looks);
        *self = Self::default();
        means
    }
}

#[derive(Debug)]
struct Steered {
    captain: Captain,
    second: Second,
    tower: Tower,
    every_window: Every,
    /// Sum and number of the quotas of this window.
    allocated: (f64, u64),
    step: Option<i64>,
    why: Reason,
}

impl Steered {
    /// The captain's second: the mean of the quotas is what the window cost.
    fn allocate(&mut self, used_cores: f64) {
        self.allocated.0 += self.captain.quota_cores.unwrap_or(used_cores);
        self.allocated.1 += 1;
    }

    /// A window of the service has passed.
    fn learn(&mut self, service: &ServiceSeen, load_step: i64, now_s: f64) {
        let Some(tail) = &service.window else {
            return;
        };
        let (sum, count) = std::mem::take(&mut self.allocated);
        let window = Window {
            load_step,
            tail,
            objective_ms: service.objective_ms,
            cores: sum / number(count.max(1)),
        };
        self.tower.step(window, now_s);
    }
}

#[derive(Debug)]
pub(crate) struct Autothrottle {
    mode: ControllerMode,
    services: BTreeMap<String, Steered>,
    every: Every,
    outbox: Outbox,
}

impl Default for Autothrottle {
    fn default() -> Self {
        Self {
            mode: ControllerMode::default(),
            services: BTreeMap::new(),
            every: Every::s(CAPTAIN_S),
            outbox: Outbox::default(),
        }
    }
}

impl Autothrottle {
    pub(crate) fn new(mode: ControllerMode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }
}

impl IsolationController for Autothrottle {
    fn step(&mut self, seen: &MachineObservation, now_s: f64) -> Vec<Decision> {
        let is_due = self.every.is_due(now_s);
        for service in &seen.services {
            let steered = self
                .services
                .entry(service.name.clone())
                .or_insert_with(|| Steered {
                    captain: Captain::default(),
                    second: Second::default(),
                    tower: Tower::default(),
                    every_window: Every::s(service.window_s),
                    allocated: (0.0, 0),
                    step: None,
                    why: Reason::Start,
                });
            steered.second.add(service);
            if !is_due {
                continue;
            }
            let (used_cores, ratio) = steered.second.take();
            let load = service
                .load
                .unwrap_or(used_cores / seen.machine.cores.max(1.0));
            let step = load_step_near(load, steered.step);
            steered.step = Some(step);
            steered.allocate(used_cores);
            // A target that is not in force has no outcome to learn from.
            if steered.every_window.is_due(now_s) && self.mode.is_acting() {
                steered.learn(service, step, now_s);
            }
            let target = steered.tower.target();
            let cores = seen.machine.cores;
            if let Some(why) = steered.captain.step(used_cores, ratio, cores, target) {
                steered.why = why;
            }
            if let Some(quota) = steered.captain.quota_cores {
                let subject = Subject::Service(service.name.clone());
                self.outbox.put(
                    subject,
                    ActuatorSetting::QuotaCores(Some(quota)),
                    steered.why,
                );
            }
        }
        self.outbox.take()
    }

    fn explain(&self) -> String {
        let of = |(name, steered): (&String, &Steered)| {
            format!(
                "the quota of {name} {} chosen so that {:.0} % of its periods are throttled",
                self.mode.is(),
                100.0 * steered.tower.target()
            )
        };
        let all: Vec<String> = self.services.iter().map(of).collect();
        match all.is_empty() {
            true => NO_STEP_YET.to_owned(),
            false => all.join("; "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_captain_cuts_to_what_was_used_and_goes_back_when_throttled() {
        let mut captain = Captain::default();
        for _ in 0..20 {
            captain.step(1.0, 0.0, 8.0, 0.04);
        }
        assert!((captain.quota_cores.unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(captain.step(1.0, 0.5, 8.0, 0.04), Some(Reason::Throttled));
        assert!((captain.quota_cores.unwrap() - 1.38).abs() < 1e-9);
        // The margin that was built up keeps the quota where it is.
        let before = captain.quota_cores;
        captain.step(1.3, 0.0, 8.0, 0.04);
        assert_eq!(captain.quota_cores, before);
    }

    #[test]
    fn the_captain_s_second_is_the_mean_of_its_steps() {
        let service = |cpu_cores, throttled_share| ServiceSeen {
            cpu_cores,
            throttled_share,
            ..ServiceSeen::without_data("web", 5.0)
        };
        let mut second = Second::default();
        assert_eq!(second.take(), (0.0, 0.0));
        for (cpu_cores, throttled_share) in [(2.0, 1.0), (1.0, 0.0), (1.0, 0.0), (4.0, 0.0)] {
            second.add(&service(cpu_cores, throttled_share));
        }
        assert_eq!(second.take(), (2.0, 0.25));
        let mut policy = Autothrottle::default();
        let mut step = |throttled_share, at_s: f64| {
            let seen = MachineObservation {
                services: vec![service(1.0, throttled_share)],
                ..MachineObservation::of_cores(8.0)
            };
            policy.step(&seen, at_s)
        };
        // Throttled in one of four steps of each second: the captain does not overlook it.
        let mut said = Vec::new();
        for quarter in 0..80 {
            let share = if quarter % 4 == 1 && quarter > 60 {
                1.0
            } else {
                0.0
            };
            said.extend(step(share, f64::from(quarter) * 0.25));
        }
        let reasons: Vec<Reason> = said.iter().map(|decision| decision.reason).collect();
        assert_eq!(reasons[0], Reason::Start);
        assert_eq!(reasons[1..], [Reason::Throttled; 4]);
    }

    #[test]
    fn a_cut_that_throttles_is_undone() {
        let mut captain = Captain::default();
        for _ in 0..12 {
            captain.step(4.0, 0.0, 8.0, 0.04);
        }
        for _ in 0..HISTORY {
            captain.step(1.0, 0.0, 8.0, 0.04);
        }
        let cut = captain.quota_cores.unwrap();
        assert!(cut <= 2.0 + 1e-9, "{cut}");
        captain.before_cut = Some(4.0);
        captain.step(1.0, 0.2, 8.0, 0.04);
        assert!((captain.quota_cores.unwrap() - 4.0).abs() < 1e-9);
    }
}
