//! `mode = "continuous"`: what happens after a promotion, as a pure state machine. Time and
//! observations come in, actions go out; [`run`] is the loop that carries them out in a [`World`],
//! the real one or a simulated one.
//!
//! **The control** is always the configuration that the experiment began with, never the last
//! promotion: every gain is against it, over the whole life of the experiment.
//!
//! - A service that runs by itself (no `target.start`) is one system: it has the promoted
//!   configuration but for a share of the time, in which control and promoted configuration
//!   alternate in paired blocks (A B B A).
//! - Kernel knobs under services that Slackline starts (`target.start`): the knobs belong to the
//!   host, so it is again a share of the time; the two instances are started for each round and
//!   stopped after it.
//! - A service that Slackline starts, with parameters of its own, has nothing that could stay
//!   promoted: refused.
//!
//! **Drift** is looked for in each watched metric of the control (the workload) and in the gain, by
//! a [`paired_stats::DriftTest`] each. With k series, r rounds a day and f =
//! `false_alarms_per_day`, each alarms at k·r/f: all together raise at most f false alarms a day
//! where rounds of one season are exchangeable.
//!
//! **The rollback** needs no test of drift: `slo_rounds` rounds in a row whose mean excess over a
//! constraint is above 0 by [`VIOLATION_DEVIATIONS`](crate::evaluation::VIOLATION_DEVIATIONS)
//! standard errors. At the very limit that happens by chance in at most 0.1 of the rounds, so three
//! in a row in 0.001; a constraint that the control breaks by as much is not the configuration's
//! doing, and is only said. A round in which the control was measured, and the promoted
//! configuration could not be, counts as one that breaks a constraint; where the control could not
//! be, nothing is concluded.

mod alert;
mod rounds;
mod run;
pub mod simulation;
mod state;
mod task;
mod view;

use std::collections::BTreeMap;

use bayes_opt::Configuration;
use jiff::{SignedDuration, Timestamp};
use paired_stats::DriftTest;

pub use alert::{Alert, ask};
pub use experiment_spec::{ContinuousRules, Hours};
pub use run::{Flow, World, run, tune, watch};
use state::SEARCH_AGAIN_S;
pub use state::{
    Acting, AlertCheck, ContinuousPhase, ContinuousState, HistoryEntry, HostThen, Promoted, Round,
    RoundResult, Searching, Seen, VerifiedCandidate,
};
pub use task::{Applied, Task, Tuned};
pub use view::{ContinuousView, Evidence, TestValue};

use crate::figures::{counted, sentence};
use crate::live::Changed;
use crate::report::score_text;

/// How long the answer of an alert query counts, and how soon one that fired is asked again: but
/// until the next round at most.
const ALERT_FRESH_S: f64 = 30.0;

/// A drift adds at least so much doubt to what was measured before: 5 % of the objective.
const DRIFT_SD_MIN: f64 = 0.05;

/// How soon a rollback or promotion that was refused is tried again.
const AGAIN_S: i64 = 10;

/// As many rounds in a row after which not everything could be put back end the session.
const UNSETTLED_MAX: usize = 3;

/// A search that leaves nothing in force is repeated every eight days at the least.
const SEARCH_AGAIN_MAX_S: f64 = 8.0 * SEARCH_AGAIN_S;

/// The series of the gain, beside those of the workload's metrics.
pub const GAIN: &str = "gain";

/// What is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum ContinuousAction {
    /// Nothing, until then.
    Wait(Timestamp),
    /// One round: this configuration against the control.
    Watch(Configuration),
    /// Ask whether the alert fires.
    AskAlert,
    /// Search and verify, until the search is over or that moment has come.
    Tune(Task),
    /// Put this configuration in force.
    Promote(Configuration),
    /// Put the control's configuration in force.
    RollBack,
}

/// What came of an action.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, and it is taken apart at once"
)]
pub enum ActionResult {
    /// Of [`ContinuousAction::Watch`].
    Watched(Seen),
    /// Of [`ContinuousAction::AskAlert`].
    Alert(Alert),
    /// Of [`ContinuousAction::Tune`].
    Tuned(Tuned),
    /// Of [`ContinuousAction::Promote`] and [`ContinuousAction::RollBack`]: what was changed, or
    /// why nothing was.
    Applied(Applied),
}

/// The state machine.
#[derive(Debug)]
pub struct ContinuousController {
    rules: ContinuousRules,
    control: Configuration,
    state: ContinuousState,
    tests: BTreeMap<String, DriftTest>,
    /// Gains of the configuration in force, since its test began.
    gains: Vec<f64>,
    entries: Vec<HistoryEntry>,
    /// Why its world allows no change at present.
    barred: Option<String>,
}

impl ContinuousController {
    /// A controller that begins with a search.
    #[must_use]
    pub fn new(rules: ContinuousRules, control: Configuration, now: Timestamp) -> Self {
        Self::resume(rules, control, ContinuousState::new(now), &[])
    }

    /// A controller that goes on from what was kept: the state, and every round.
    #[must_use]
    pub fn resume(
        rules: ContinuousRules,
        control: Configuration,
        state: ContinuousState,
        rounds: &[Round],
    ) -> Self {
        let mut controller = Self {
            tests: BTreeMap::new(),
            gains: Vec::new(),
            entries: Vec::new(),
            barred: None,
            rules,
            control,
            state,
        };
        // Whoever has it go on has seen to it, or wants it tried again.
        controller.state.unsettled = 0;
        let names = controller.rules.metrics.clone();
        for (index, name) in names.into_iter().chain([GAIN.to_owned()]).enumerate() {
            let test = DriftTest::new(controller.rules.run_length, index as u64);
            controller.tests.insert(name, test);
        }
        for round in rounds {
            controller.count(round);
        }
        controller
    }

    /// The state, to be kept.
    #[must_use]
    pub fn state(&self) -> &ContinuousState {
        &self.state
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &ContinuousRules {
        &self.rules
    }

    /// After how many rounds in a row not everything could be put back, where that is enough.
    #[must_use]
    pub fn gives_up(&self) -> Option<usize> {
        (self.state.unsettled >= UNSETTLED_MAX).then_some(self.state.unsettled)
    }

    /// What has happened since this was last asked, to be kept with the state.
    pub fn take_entries(&mut self) -> Vec<HistoryEntry> {
        std::mem::take(&mut self.entries)
    }

    /// Somebody has put the control's configuration in force by hand.
    pub fn rolled_back_by_hand(&mut self, now: Timestamp, changed: &Changed) {
        if self.state.promoted.is_none() {
            // What an earlier rollback could not restore.
            self.say_rolled_back(now, state::REST_BY_HAND, changed);
            return;
        }
        self.rolled_back(now, state::BY_HAND, changed);
        self.state.pending_change = None;
        self.state.breaks = 0;
        self.restart(GAIN);
        self.search_later(now);
    }

    /// Its user has given up what a rollback could not restore: it stays as it is.
    pub fn forgot_rest(&mut self, now: Timestamp) {
        let left = std::mem::take(&mut self.state.left);
        if !left.is_empty() {
            let text = format!("{}: {}", state::FORGOTTEN, left.join(", "));
            self.say(now, "forgotten", text);
        }
    }

    fn rolled_back(&mut self, now: Timestamp, how: &str, changed: &Changed) {
        self.say_rolled_back(now, how, changed);
        self.state.rollbacks += 1;
        self.state.promoted = None;
        self.state.externally_modified = None;
    }

    fn say_rolled_back(&mut self, now: Timestamp, how: &str, changed: &Changed) {
        let mut text = how.to_owned();
        if !changed.done.is_empty() {
            text += &format!(". Done: {}", changed.done.texts().join("; "));
        }
        self.state.left = changed.left.iter().map(ToString::to_string).collect();
        if !self.state.left.is_empty() {
            text += &format!(". NOT RESTORED: {}", self.state.left.join(", "));
        }
        self.say(now, "rollback", text);
    }

    /// What the host is like with what was promoted; later ones are compared with the first.
    pub fn settled(&mut self, host: impl FnOnce(&Configuration) -> HostThen) {
        let (Some(promoted), None) = (&mut self.state.promoted, &self.state.pending_change) else {
            return;
        };
        if promoted.host.is_none() {
            promoted.host = Some(host(&promoted.configuration));
        }
    }

    /// The control's configuration has been put in force, as the service could not be told of what
    /// is promoted any more.
    pub fn fell_back(&mut self, now: Timestamp, reason: String, changed: Changed) {
        self.doubt(DRIFT_SD_MIN);
        self.roll_back(now, reason);
        self.applied(now, Ok(changed));
    }

    /// What is to be done now. The state is to be kept before it is done: it says what was begun.
    pub fn next(&mut self, now: Timestamp) -> ContinuousAction {
        self.heed_clock(now);
        if let Some(pending_change) = &self.state.pending_change {
            if now < self.state.not_before {
                return ContinuousAction::Wait(self.state.not_before);
            }
            return match pending_change {
                Acting::Promote(candidate) => {
                    ContinuousAction::Promote(candidate.configuration.clone())
                }
                Acting::RollBack(_) => ContinuousAction::RollBack,
            };
        }
        if now >= self.state.next_round {
            let promoted = self.state.promoted.as_ref();
            let configuration = promoted.map_or(&self.control, |promoted| &promoted.configuration);
            return ContinuousAction::Watch(configuration.clone());
        }
        if self.state.externally_modified.is_some() {
            // A search would measure, and a promotion overwrite, what somebody else has put there.
            return ContinuousAction::Wait(self.state.next_round);
        }
        if self.state.search_again.is_some_and(|at| now >= at) {
            self.state.search_again = None;
            self.state
                .search_reason
                .get_or_insert_with(|| "no configuration is promoted; search again".into());
        }
        if self.state.search_reason.is_none() && self.state.candidate.is_none() {
            return ContinuousAction::Wait(self.state.next_round);
        }
        if now < self.state.not_before {
            return ContinuousAction::Wait(self.state.not_before.min(self.state.next_round));
        }
        let (until, why) = match self.gate(now) {
            Gate::Ask => return ContinuousAction::AskAlert,
            Gate::Shut(until, why) => (until, why),
            Gate::Open => {
                self.hold(now, None);
                if let Some(candidate) = self.state.candidate.take() {
                    let configuration = candidate.configuration.clone();
                    self.state.changes.push(now);
                    self.state.pending_change = Some(Acting::Promote(candidate));
                    return ContinuousAction::Promote(configuration);
                }
                return ContinuousAction::Tune(self.begin_search(now));
            }
        };
        self.hold(now, Some(why));
        ContinuousAction::Wait(until.min(self.state.next_round))
    }

    /// A clock that was ahead and has been set right makes nothing wait longer than it ever has to.
    fn heed_clock(&mut self, now: Timestamp) {
        let (state, every_s) = (&mut self.state, self.rules.round_every_s);
        state.next_round = state.next_round.min(after(now, every_s));
        let again_s = every_s.max(AGAIN_S as f64);
        state.not_before = state.not_before.min(after(now, again_s));
        let latest = after(now, state.search_again_after_s);
        state.search_again = state.search_again.map(|at| at.min(latest));
        state.alert_check.take_if(|asked| asked.at > now);
        // They were made, and count for the budget of the day on which that is found.
        for at in &mut state.changes {
            *at = now.min(*at);
        }
    }

    /// Takes what came of the last action.
    pub fn observe(&mut self, now: Timestamp, observation: ActionResult) -> Option<Round> {
        match observation {
            ActionResult::Watched(seen) => return Some(self.watched(now, seen)),
            ActionResult::Alert(alert) => {
                self.state.alert_check = Some(AlertCheck { at: now, alert })
            }
            ActionResult::Tuned(tuned) => self.tuned(now, tuned),
            ActionResult::Applied(applied) => self.applied(now, applied),
        }
        None
    }

    fn say(&mut self, at: Timestamp, kind: &str, text: impl Into<String>) {
        self.entries.push(HistoryEntry {
            at,
            kind: kind.to_owned(),
            text: sentence(&text.into()),
        });
    }

    /// Says once why a change waits, and once that it does not any more.
    fn hold(&mut self, now: Timestamp, why: Option<String>) {
        if self.state.blocked_by != why {
            if let Some(why) = &why {
                self.say(now, "held", state::held(why));
            }
            self.state.blocked_by = why;
        }
    }

    fn changes_today(&self, now: Timestamp) -> usize {
        self.state.changes_today(now, &self.rules.time_zone)
    }

    /// Says why nothing may be searched or promoted at present, whatever the rules say. Rounds and
    /// rollbacks go on.
    pub fn bar(&mut self, why: Option<String>) {
        self.barred = why;
    }

    /// From when on the hours and the budget allow a change.
    fn next_window(&self, now: Timestamp) -> Timestamp {
        if self.changes_today(now) < self.rules.changes_per_day {
            self.rules.opens(now)
        } else {
            self.rules.opens(self.rules.next_day(now))
        }
    }

    /// Whether something may be changed now.
    fn gate(&self, now: Timestamp) -> Gate {
        if let Some(why) = &self.barred {
            return Gate::Shut(self.state.next_round, why.clone());
        }
        let window = self.next_window(now);
        if window > now {
            let why = if self.changes_today(now) < self.rules.changes_per_day {
                "outside the hours in which something may be changed".to_owned()
            } else {
                format!(
                    "{} are made today, and no more are allowed",
                    counted(self.rules.changes_per_day, "promotion")
                )
            };
            return Gate::Shut(window, why);
        }
        if self.rules.alert.is_none() {
            return Gate::Open;
        }
        let fresh_s = ALERT_FRESH_S.min(self.rules.round_every_s);
        match &self.state.alert_check {
            Some(asked) if now < after(asked.at, fresh_s) => match &asked.alert {
                Alert::Quiet => Gate::Open,
                alert => Gate::Shut(after(asked.at, fresh_s), alert.to_string()),
            },
            _ => Gate::Ask,
        }
    }

    fn begin_search(&mut self, now: Timestamp) -> Task {
        if self.state.searching.is_none() {
            let reason = self.state.search_reason.clone().unwrap_or_default();
            self.say(now, "search", format!("a search begins: {reason}"));
            self.state.searching = Some(Searching {
                since: now,
                from: self.state.evaluated,
                is_begun: false,
            });
        }
        let searching = self.state.searching.as_ref();
        let closes = self.rules.closes(now);
        Task {
            from: searching.map_or(0, |searching| searching.from),
            is_new: searching.is_some_and(|searching| !searching.is_begun),
            until: closes.map_or(self.state.next_round, |closes| {
                closes.min(self.state.next_round)
            }),
            drifts: self.state.drifts.clone(),
            in_force: self
                .state
                .promoted
                .as_ref()
                .map(|it| it.configuration.clone()),
            alert: self.rules.alert.clone(),
        }
    }

    /// Nothing is in force, and nothing better is known.
    fn search_later(&mut self, now: Timestamp) {
        self.state.search_again = Some(after(now, self.state.search_again_after_s));
        let longer_s = 2.0 * self.state.search_again_after_s;
        self.state.search_again_after_s = longer_s.min(SEARCH_AGAIN_MAX_S);
    }

    fn roll_back(&mut self, now: Timestamp, reason: String) {
        self.say(now, "rollback", format!("{}{reason}", state::BEGINS));
        self.state.candidate = None;
        self.state.searching = None;
        self.state.breaks = 0;
        self.state.not_before = now;
        self.state.pending_change = Some(Acting::RollBack(reason));
    }

    fn tuned(&mut self, now: Timestamp, tuned: Tuned) {
        match tuned {
            Tuned::Paused { evaluated } => {
                self.state.evaluated = evaluated;
                if let Some(searching) = &mut self.state.searching {
                    searching.is_begun = true;
                }
            }
            Tuned::Failed {
                evaluated,
                reason,
                is_unsettled,
            } => {
                self.state.evaluated = evaluated;
                self.state.searching = None;
                self.say(
                    now,
                    "search",
                    format!("the search failed: {reason}. Slackline tries again later"),
                );
                self.state.not_before = after(now, self.rules.round_every_s);
                if is_unsettled {
                    // The service may be without what is promoted: a round puts that right.
                    self.state.next_round = now;
                }
            }
            Tuned::Ended {
                evaluated,
                winner,
                sentence,
                is_conclusive,
            } => {
                self.state.evaluated = evaluated;
                self.state.searching = None;
                self.state.search_reason = None;
                self.say(now, "search", sentence);
                let in_force = self.state.promoted.as_ref().map(|it| &it.configuration);
                match winner {
                    Some(winner) if Some(&winner.configuration) == in_force => {
                        self.say(now, "search", "what is in force is still the best");
                    }
                    Some(winner) => self.state.candidate = Some(winner),
                    None if in_force.is_some() && is_conclusive => {
                        self.roll_back(now, "its gain could not be shown again".into());
                        self.state.is_search_wanted_after_rollback = false;
                    }
                    None => {}
                }
                if self.state.promoted.is_none() && self.state.candidate.is_none() {
                    self.search_later(now);
                }
            }
        }
    }

    fn applied(&mut self, now: Timestamp, applied: Applied) {
        let Some(pending_change) = self.state.pending_change.take() else {
            return;
        };
        match (pending_change, applied) {
            (Acting::Promote(candidate), Ok(changed)) => {
                let gain = score_text(candidate.gain, &self.rules.objective);
                let done = changed.done.sentences().join(" ");
                let text = format!("{done} The gain was {gain} when verified");
                self.say(now, "promoted", text);
                self.state.left.clear();
                self.state.promotions += 1;
                self.state.search_again = None;
                self.state.search_again_after_s = SEARCH_AGAIN_S;
                self.state.promoted = Some(Promoted {
                    configuration: candidate.configuration,
                    gain: candidate.gain,
                    since: now,
                    host: None,
                });
                self.state.is_search_wanted_after_rollback = true;
            }
            (Acting::RollBack(reason), Ok(changed)) => {
                let how = "the control's configuration is in force again";
                self.rolled_back(now, how, &changed);
                if std::mem::replace(&mut self.state.is_search_wanted_after_rollback, true) {
                    self.state
                        .search_reason
                        .get_or_insert(format!("rolled back: {reason}"));
                } else {
                    self.search_later(now);
                }
            }
            (Acting::Promote(_), Err(reason)) => {
                let text = format!("the promotion was refused: {reason}");
                self.say(now, "refused", text);
                self.state.next_round = now;
                if self.state.promoted.is_none() {
                    self.search_later(now);
                }
                return;
            }
            (pending_change @ Acting::RollBack(_), Err(reason)) => {
                self.say(
                    now,
                    "refused",
                    format!("the rollback was refused: {reason}. Slackline tries again"),
                );
                self.state.pending_change = Some(pending_change);
                self.state.not_before = after(now, AGAIN_S as f64);
                return;
            }
        }
        let day = self.rules.day_start(now);
        self.state.changes.retain(|at| *at >= day);
        self.restart(GAIN);
        self.state.next_round = now;
    }
}

enum Gate {
    Open,
    Ask,
    Shut(Timestamp, String),
}

fn after(from: Timestamp, seconds: f64) -> Timestamp {
    from.checked_add(SignedDuration::from_secs_f64(seconds))
        .unwrap_or(from)
}
