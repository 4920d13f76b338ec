//! `slackline`, our own policy: `cpu.idle` first, then a budget of CPU for all best-effort groups
//! together.
//!
//! - The slow loop collects the service's requests since the last act. It acts only when the tail
//!   is beyond its sampling error: a clear violation takes budget away at once, a clear margin
//!   gives more.
//! - The fast loop ([`crate::alarm`]) watches how long the service's threads wait for a CPU, for
//!   memory or for a disk. A rise halves the budget before the tail can tell. If the tail then
//!   shows no harm, the budget comes back and the threshold rises, so false alarms die out. After a
//!   time without harm the threshold falls again.
//! - What did harm is remembered by load and groups, and not tried again for a time that doubles.
//!   Below a remembered level the search halves the distance, and stops close to it. So there is no
//!   limit cycle.
//!
//! One act a step. With no best-effort group it gives back the service's own reserved cores
//! ([`crate::reclaim`]).

use crate::alarm::{Alarm, Signals, highest, signals};
use crate::controller::{ControllerMode, IsolationController, Outbox};
use crate::decision::{ActuatorSetting, Decision, Reason};
use crate::evidence::Evidence;
use crate::harm::{HarmMemory, load_step_near};
use crate::network::batch_egress_mbit;
use crate::numbers::number;
use crate::observation::MachineObservation;
use crate::reclaim::Reclaim;
use crate::tail::TailVerdict;

/// After an act the service's queues drain: what is measured in this time counts for nobody.
const SETTLE_S: f64 = 0.5;
/// After a cut, slow requests of the setting before can be seen for so long: the setting after it
/// is not blamed for them.
const CLEAR_S: f64 = 2.0;
/// A growth needs evidence of at least this long: shorter windows miss what comes in bursts.
const GROW_AFTER_S: f64 = 2.0;
/// A growth needs this much slack (Heracles, section 4.2).
const SLACK_TO_GROW: f64 = 0.10;
/// With less slack over a whole window the budget shrinks (Heracles, section 4.2).
const SLACK_TO_SHRINK: f64 = 0.05;
/// The first budget, as a share of the cores.
const FIRST_SHARE: f64 = 0.1;
/// Below this budget for a group it is switched off: the kernel's least quota is 0.01 cores.
const LEAST_CORES: f64 = 0.05;
/// The search stops within this distance below a level that did harm.
const NEAR: f64 = 0.1;
/// One growth, and one where the tail is within half of its objective: then there is room for more
/// than one doubling.
const GROWTH: f64 = 2.0;
const GROWTH_FAR: f64 = 4.0;
const FAR_SLACK: f64 = 0.5;
/// One step of a growth near a level that did harm before.
const CAREFUL: f64 = 1.2;
/// Evidence that says nothing is collected for so many windows.
const EVIDENCE_WINDOWS: f64 = 4.0;
/// Peeking at every step makes false alarms likelier than one look at the end, so an early look
/// wants more.
const EARLY_Z: f64 = 3.0;
/// What best-effort work may send is thought over this often, and set anew where it changes by more
/// than this share.
const EGRESS_EVERY_S: f64 = 1.0;
const EGRESS_CHANGE: f64 = 0.05;
/// A share of the link.
const EGRESS_FALL: f64 = 0.006;
/// Beside a service that violated its objective alone, best-effort work waits for so many of the
/// objective's windows, and each further time twice as long, up to the longest wait.
const OVERLOAD_WAIT_WINDOWS: f64 = 2.0;
const OVERLOAD_WAIT_MAX_S: f64 = 300.0;
/// Where somebody else writes the flag, a budget does more harm than it did. Where somebody else
/// writes one of the others, a budget is no limit.
const FLAG: [&str; 1] = ["cpu_idle"];
const LIMITS: [&str; 2] = ["quota", "off"];
/// Programs that are neither a service nor best-effort work are named as a possible cause from
/// here on.
const OTHERS_CORES: f64 = 0.2;

#[derive(Debug, Default)]
pub(crate) struct Slackline {
    mode: ControllerMode,
    /// Whether the configuration has best-effort groups.
    has_groups: bool,
    /// CPU for all groups together. 0 is off; the machine's cores are no limit.
    budget: f64,
    /// The budget before the last growth.
    grown_from: Option<f64>,
    changed_s: Option<f64>,
    /// When the budget was last reduced because of harm.
    cut_s: Option<f64>,
    evidence: Vec<Evidence>,
    step: Option<i64>,
    mix: String,
    harm: HarmMemory,
    alarm: Alarm,
    overload_wait_s: f64,
    retry_s: f64,
    is_overloaded: bool,
    /// Seconds until best-effort work is tried again, and the cores that other programs use, while
    /// it waits beside an overloaded service.
    wait_s: f64,
    others_cores: f64,
    why: Reason,
    foreign: Foreign,
    egress: Option<Egress>,
    reclaim: Reclaim,
    outbox: Outbox,
}

/// What of the settings that the policy counts on somebody else writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Foreign {
    flag: bool,
    limits: bool,
}

/// What a group may send, and when that was last thought over.
#[derive(Clone, Copy, Debug)]
struct Egress {
    mbit: f64,
    at_s: f64,
}

impl Slackline {
    pub(crate) fn new(mode: ControllerMode) -> Self {
        Self {
            mode,
            harm: HarmMemory::of(mode),
            reclaim: Reclaim::new(mode),
            ..Self::default()
        }
    }

    /// The link is shared as Heracles does: neither latency nor CPU says in time that it is full.
    fn share_link(&mut self, seen: &MachineObservation, now_s: f64) {
        let is_due = |egress: &Egress| now_s - egress.at_s >= EGRESS_EVERY_S;
        if !self.egress.as_ref().is_none_or(is_due) {
            return;
        }
        let Some(mbit) = batch_egress_mbit(seen) else {
            return;
        };
        let known = self.egress.map(|egress| egress.mbit);
        // A small rise can wait. A fall may not: what batch work sends too much delays the service.
        let fall = EGRESS_FALL * seen.machine.link_mbit_per_s.unwrap_or_default();
        let is_near = |known: &f64| mbit <= known * (1.0 + EGRESS_CHANGE) && mbit >= known - fall;
        let mbit = known.filter(is_near).unwrap_or(mbit);
        self.egress = Some(Egress { mbit, at_s: now_s });
    }

    /// What was judged harmless was judged with all settings in force. Without `cpu.idle`, the
    /// search goes back to its first budget. Without the quota, only off is a limit.
    fn heed_others(&mut self, seen: &MachineObservation, now_s: f64) {
        let foreign = Foreign {
            flag: seen.is_foreign(&FLAG),
            limits: seen.is_foreign(&LIMITS),
        };
        if std::mem::replace(&mut self.foreign, foreign) == foreign || !self.has_foreign() {
            return;
        }
        let first = (FIRST_SHARE * seen.machine.cores).max(self.least(seen));
        let most = if foreign.limits { 0.0 } else { first };
        self.alarm.taken_from = None;
        if self.budget > most {
            self.set(most, Reason::NotInForce, now_s);
        }
    }

    /// Whether a setting that the policy counts on is not in force: then it gives nothing more.
    fn has_foreign(&self) -> bool {
        self.foreign != Foreign::default()
    }

    fn set(&mut self, budget: f64, why: Reason, now_s: f64) {
        self.grown_from = (budget > self.budget).then_some(self.budget);
        self.budget = budget;
        self.why = why;
        self.forget(now_s);
    }

    fn forget(&mut self, now_s: f64) {
        self.evidence.clear();
        self.changed_s = Some(now_s);
    }

    fn collect(&mut self, seen: &MachineObservation, age_s: f64) {
        self.evidence
            .resize(seen.services.len(), Evidence::default());
        if age_s < SETTLE_S {
            return;
        }
        for (evidence, service) in self.evidence.iter_mut().zip(&seen.services) {
            if let Some(tail) = &service.fresh {
                evidence.add(tail, signals(service));
            }
        }
    }

    /// The least slack of the evidence; infinite where nobody asked.
    fn least_slack(&self, seen: &MachineObservation) -> f64 {
        let with_requests = self.evidence.iter().zip(&seen.services);
        let slacks = with_requests
            .filter(|(evidence, _)| !evidence.is_empty())
            .map(|(evidence, service)| evidence.tail(0.99).slack(service.objective_ms));
        slacks.fold(f64::INFINITY, f64::min)
    }

    /// The worst verdict of all services, and whether all have the slack to grow.
    fn judge(&self, seen: &MachineObservation, age_s: f64) -> (TailVerdict, bool) {
        let mut worst = TailVerdict::Within;
        let mut may_grow = age_s >= GROW_AFTER_S;
        for (evidence, service) in self.evidence.iter().zip(&seen.services) {
            let Some(window) = service.window else {
                return (TailVerdict::Unclear, false);
            };
            if window.requests == 0 && evidence.is_empty() {
                // Nobody asks: nobody is harmed.
                may_grow &= age_s >= service.window_s;
                continue;
            }
            let tail = evidence.tail(window.quantile);
            let mut verdict = tail.verdict(service.objective_ms);
            let is_early = age_s < service.window_s;
            if verdict == TailVerdict::Violated
                && is_early
                && !tail.is_violated(service.objective_ms, EARLY_Z)
            {
                verdict = TailVerdict::Unclear;
            }
            may_grow &= verdict == TailVerdict::Within
                && tail.slack(service.objective_ms) - tail.relative_error() > SLACK_TO_GROW;
            worst = worst.min(verdict);
        }
        (worst, may_grow)
    }

    fn violated(&mut self, seen: &MachineObservation, now_s: f64) {
        self.alarm.harmed();
        let least = self.least(seen);
        let step = self.step.unwrap_or(0);
        let is_of_before = self.cut_s.is_some_and(|cut_s| now_s - cut_s < CLEAR_S);
        if self.budget <= 0.0 && is_of_before {
            return;
        }
        let runs_all_the_same = !self.mode.is_acting() && seen.running_groups().next().is_some();
        if self.budget <= 0.0 && runs_all_the_same {
            // Only on paper it is off: the service is not alone.
            self.is_overloaded = false;
            self.set(0.0, Reason::Violation, now_s);
            return;
        }
        if self.budget <= 0.0 {
            // Nothing of ours runs, and the objective is violated: the service alone is too much.
            if !self.is_overloaded || now_s >= self.retry_s {
                let first = OVERLOAD_WAIT_WINDOWS * longest_window_s(seen);
                self.overload_wait_s = (2.0 * self.overload_wait_s)
                    .max(first)
                    .min(OVERLOAD_WAIT_MAX_S);
                self.retry_s = now_s + self.overload_wait_s;
                self.is_overloaded = true;
            }
            self.set(0.0, Reason::OverloadedByService, now_s);
            return;
        }
        // The budget that the fast alarm took away did the harm, not what is left of it.
        let level = self.alarm.taken_from.take().unwrap_or(self.budget);
        let mix = self.mix.clone();
        if !is_of_before {
            self.harm.record(&mix, step, level, now_s);
            self.cut_s = Some(now_s);
        }
        // A growth that was never in force did no harm.
        let is_in_force = self.mode.is_acting();
        match self.grown_from.take().filter(|_| is_in_force) {
            Some(before) => self.set(before, Reason::Revert, now_s),
            None if self.budget / 2.0 < least => self.set(0.0, Reason::Violation, now_s),
            None => self.set(self.budget / 2.0, Reason::Violation, now_s),
        }
        self.grown_from = None;
    }

    fn grow(&mut self, seen: &MachineObservation, now_s: f64) {
        let cores = seen.machine.cores;
        let step = self.step.unwrap_or(0);
        let mix = self.mix.clone();
        self.harm.harmless(&mix, step, self.budget, now_s);
        if now_s < self.retry_s {
            return;
        }
        self.overload_wait_s = 0.0;
        self.is_overloaded = false;
        let least = self.least(seen);
        let first = match self.budget {
            budget if budget > 0.0 && self.least_slack(seen) > FAR_SLACK => GROWTH_FAR * budget,
            budget if budget > 0.0 => GROWTH * budget,
            _ => FIRST_SHARE * cores,
        };
        let next = first.max(least).min(cores);
        let next = match (self.harm.bound(&mix, step, now_s), self.harm.lowest(&mix)) {
            // Below a level that is not tried now, half of the distance; close to it, nothing.
            (Some(bound), _) => {
                let middle = f64::midpoint(self.budget, bound);
                if bound - self.budget <= NEAR * bound || middle < least {
                    return;
                }
                next.min(middle)
            }
            // Where harm began at another load, or a while ago, the way is taken in small steps.
            (None, Some(known)) if next >= known => {
                let close = (1.0 - NEAR) * known;
                next.min(close.max(CAREFUL * self.budget))
            }
            _ => next,
        };
        if next > self.budget {
            self.set(next, Reason::Slack, now_s);
        }
    }

    /// The smallest budget that is worth running for.
    fn least(&self, seen: &MachineObservation) -> f64 {
        LEAST_CORES * number(seen.running_groups().count().max(1) as u64)
    }

    /// A window without harm shows what is usual.
    fn learn_usual(&mut self, age_s: f64) {
        let worst = self.evidence.iter().map(|evidence| evidence.worst);
        let quiet_s = if self.budget > 0.0 { age_s } else { 0.0 };
        let worst = worst.fold(Signals::default(), highest);
        self.alarm.learn(worst, quiet_s);
    }

    /// Why best-effort work waits although none of it runs.
    fn overloaded(&self) -> String {
        let others = match self.others_cores {
            cores if cores >= OTHERS_CORES => format!("; other programs use {cores:.2} cores"),
            _ => String::new(),
        };
        let (when, waits) = match self.mode {
            ControllerMode::Acting => ("best-effort work was off", "waits"),
            ControllerMode::Observing => ("no best-effort work ran", "would wait"),
        };
        format!(
            "a service violated its objective while {when}: best-effort work {waits} {:.0} s{others}",
            self.wait_s
        )
    }

    fn decide(&mut self, seen: &MachineObservation, now_s: f64) {
        let age_s = now_s - self.changed_s.unwrap_or(now_s);
        self.collect(seen, age_s);
        let window_s = longest_window_s(seen);
        // What is remembered of this load comes first.
        let bound = self.harm.bound(&self.mix, self.step.unwrap_or(0), now_s);
        if let Some(bound) = bound.filter(|bound| self.budget >= *bound) {
            let budget = (1.0 - NEAR) * bound;
            let budget = if budget < self.least(seen) {
                0.0
            } else {
                budget
            };
            self.set(budget, Reason::Remembered, now_s);
            return;
        }
        if self.alarm.is_raised(seen, self.budget > 0.0) {
            self.alarm.take(self.budget);
            // What was measured until now still counts: it may show at once that there was harm.
            let budget = self.budget / 2.0;
            let (verdict, _) = self.judge(seen, age_s);
            if verdict != TailVerdict::Violated {
                self.set(budget, Reason::FastAlarm, now_s);
                return;
            }
        }
        let (verdict, may_grow) = self.judge(seen, age_s);
        if verdict == TailVerdict::Violated {
            self.violated(seen, now_s);
            return;
        }
        let is_whole = age_s >= window_s;
        if is_whole && self.budget > 0.0 && self.least_slack(seen) < SLACK_TO_SHRINK {
            // A load that rises slowly takes the slack away before a violation is clear.
            let (mix, step) = (self.mix.clone(), self.step.unwrap_or(0));
            self.harm.record(&mix, step, self.budget, now_s);
            let smaller = self.budget * (1.0 - NEAR);
            let budget = if smaller < self.least(seen) {
                0.0
            } else {
                smaller
            };
            self.set(budget, Reason::LittleSlack, now_s);
            return;
        }
        if verdict == TailVerdict::Within && is_whole {
            self.learn_usual(age_s);
            if let Some(budget) = self.alarm.taken_from.take() {
                self.set(budget, Reason::AlarmOver, now_s);
                self.grown_from = None;
                return;
            }
        }
        if may_grow && self.alarm.taken_from.is_none() && !self.has_foreign() {
            let before = self.changed_s;
            self.grow(seen, now_s);
            if self.changed_s != before {
                return;
            }
        }
        // A service with few requests needs several windows to say anything.
        if is_whole && (verdict == TailVerdict::Within || age_s >= EVIDENCE_WINDOWS * window_s) {
            self.grown_from = None;
            self.forget(now_s);
        }
    }
}

/// The longest window of all objectives. A growth needs evidence of that length.
fn longest_window_s(seen: &MachineObservation) -> f64 {
    let windows = seen.services.iter().map(|service| service.window_s);
    windows.fold(GROW_AFTER_S, f64::max)
}

impl IsolationController for Slackline {
    fn step(&mut self, seen: &MachineObservation, now_s: f64) -> Vec<Decision> {
        self.has_groups = !seen.groups.is_empty();
        if !self.has_groups {
            return self.reclaim.step(seen, now_s);
        }
        let step = load_step_near(seen.demand(), self.step);
        self.step = Some(step);
        let names = seen.running_groups().map(|group| group.name.as_str());
        let mix = names.collect::<Vec<_>>().join(",");
        if mix != self.mix {
            self.mix = mix;
            self.forget(now_s);
        }
        self.changed_s.get_or_insert(now_s);
        self.share_link(seen, now_s);
        self.heed_others(seen, now_s);
        self.decide(seen, now_s);
        self.wait_s = (self.retry_s - now_s).max(0.0);
        let known = seen.service_cores() + seen.group_cores();
        self.others_cores = (seen.machine.busy_cores - known).max(0.0);
        let groups = number(seen.running_groups().count().max(1) as u64);
        let is_open = self.budget >= seen.machine.cores;
        let quota = (!is_open).then(|| (self.budget / groups).max(0.01));
        let outbox = &mut self.outbox;
        outbox.put_groups(seen, ActuatorSetting::CpuIdle(true), Reason::Start);
        if let Some(egress) = self.egress {
            outbox.put_groups(
                seen,
                ActuatorSetting::EgressMbit(egress.mbit),
                Reason::Network,
            );
        }
        if self.budget <= 0.0 {
            outbox.put_groups(seen, ActuatorSetting::Off(true), self.why);
        } else {
            // The limit is in force before the group runs again.
            outbox.put_groups(seen, ActuatorSetting::QuotaCores(quota), self.why);
            outbox.put_groups(seen, ActuatorSetting::Off(false), self.why);
        }
        outbox.take()
    }

    fn resume(&mut self, now_s: f64) {
        self.forget(now_s);
        self.alarm.calm();
        self.reclaim.resume(now_s);
    }

    fn explain(&self) -> String {
        let remembered = match self.harm.len(self.changed_s.unwrap_or(0.0)) {
            0 => String::new(),
            1 => "; 1 budget that was too large is not tried again yet".to_owned(),
            count => format!("; {count} budgets that were too large are not tried again yet"),
        };
        let now = match self.budget {
            _ if !self.has_groups => return self.reclaim.explain(),
            _ if self.is_overloaded => self.overloaded(),
            _ if self.mix.is_empty() => "no best-effort group runs".to_owned(),
            budget if budget <= 0.0 => format!(
                "best-effort work {} off ({})",
                self.mode.is(),
                self.why.name()
            ),
            budget => format!(
                "best-effort work {} {budget:.2} cores together ({})",
                self.mode.may_use(),
                self.why.name()
            ),
        };
        now + &remembered
    }
}

#[cfg(test)]
mod tests;
