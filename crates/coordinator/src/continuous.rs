//! `mode = "continuous"` on this host: the controller's world, with the store for its memory.

use std::time::{Duration, Instant};

use bayes_opt::Configuration;
use jiff::{SignedDuration, Timestamp};
use tuner::TunerError;
use tuner::continuous::{
    self, Acting, Alert, Applied, ContinuousController, ContinuousState as Known, Flow, HostThen,
    Round, Seen, Task, Tuned, World,
};
use tuner::ledger::LedgerEvent;
use tuner::live::{Changed, Changes, Live};
use tuner::process::Interrupt;
use tuner::report::Report;
use tuner::spec::{AlertSpec, CheckedSpec};

use crate::coordinator::{Coordinator, Progress};
use crate::error::Error;
use crate::run_session::RunSession;
use crate::store::{ExperimentRow, Moment, Promotion, State, UserRequest};

/// How soon a wish of its user is heeded while nothing is to be done.
const LOOK: Duration = Duration::from_millis(200);

/// A clock that is behind by more has been set back; one that is slewed (adjtimex(2)) never is.
const CLOCK_SLACK: SignedDuration = SignedDuration::from_secs(2);

impl Coordinator {
    /// The controller of a continuous experiment, as it was kept.
    pub(crate) fn controller(
        &self,
        id: i64,
        spec: &CheckedSpec,
    ) -> Result<ContinuousController, Error> {
        controller_of(&self.store.moment(id, 0)?, spec)
    }

    /// How a continuous experiment stood at a moment; `None` for any other.
    ///
    /// # Errors
    /// [`Error::Spec`], [`Error::Unavailable`].
    pub fn continuous(&self, moment: &Moment) -> Result<Option<continuous::ContinuousView>, Error> {
        let row = &moment.row;
        if row.spec.mode != tuner::spec::ExperimentMode::Continuous {
            return Ok(None);
        }
        let resting = (row.state != State::Running).then(|| row.state.name());
        let controller = controller_of(moment, &self.checked_to_explain(row)?)?;
        Ok(Some(controller.view(Timestamp::now(), resting)))
    }

    /// The evidence of a continuous experiment's drift tests after each of its rounds.
    ///
    /// # Errors
    /// [`Error::Conflict`] for any other experiment, [`Error::Spec`], [`Error::Unavailable`].
    pub fn evidence(&self, moment: &Moment) -> Result<Vec<continuous::Evidence>, Error> {
        let spec = self.checked_to_explain(&moment.row)?;
        let rules = rules(moment.row.id, &spec)?;
        let Some(state) = moment.state.clone() else {
            return Ok(Vec::new());
        };
        let control = spec.space.default_configuration();
        let evidence = ContinuousController::evidence(rules, control, state, &moment.rounds);
        Ok(evidence)
    }

    /// One session of a continuous experiment: until its user or the end of the coordinator.
    pub(crate) fn run_continuous(
        &self,
        id: i64,
        spec: &CheckedSpec,
        interrupt: &Interrupt,
        mut live: Live<'_>,
    ) -> Result<(), Error> {
        let mut controller = self.controller(id, spec)?;
        let row = self.store.experiment(id)?;
        let promoted = controller.state().promoted.as_ref();
        // A row that says that something was begun is of a change that has been undone since, or
        // will be finished.
        let in_force = promoted.map(|promoted| Promotion {
            is_complete: true,
            ..row.promotion.unwrap_or_else(|| Promotion {
                is_complete: true,
                done: Changes::default(),
                left: Vec::new(),
                at: promoted.since,
            })
        });
        live.set_baseline(promoted.map(|it| it.configuration.clone()));
        let mut host = LiveWorld {
            coordinator: self,
            id,
            spec,
            interrupt,
            live,
            in_force,
            is_promoted: promoted.is_some(),
            then: promoted.and_then(|promoted| promoted.host.clone()),
            is_applied: false,
            kept: None,
        };
        let ran = continuous::run(&mut controller, &mut host);
        let restored = host.live.restore();
        *self.current_run() = None;
        let restored = restored?;
        if let Err(error @ TunerError::Ledger(_)) = ran {
            return Err(Error::Unavailable(error.to_string()));
        }
        let row = self.store.experiment(id)?;
        let in_force = match controller.state().promoted {
            Some(_) => UNWATCHED,
            None => "",
        };
        let (state, message) = match (&ran, row.wish) {
            (Err(error), _) => (State::Failed, Some(format!("{error}{in_force}"))),
            (Ok(()), Some(UserRequest::Stop)) => {
                (State::Stopped, Some(format!("stopped{in_force}")))
            }
            (Ok(()), Some(UserRequest::Pause)) => {
                (State::Paused, Some(format!("paused{in_force}")))
            }
            (Ok(()), _) => (State::Queued, self.why_queued()),
        };
        self.store
            .session_ended(id, state, message.as_deref(), &row.report)?;
        if restored.is_complete() {
            return Ok(());
        }
        Err(Error::not_restored())
    }

    /// Its user has put the control's configuration in force. That is kept once, also where it is
    /// not known whether it was kept already.
    pub(crate) fn keep_rollback_by_hand(
        &self,
        row: &ExperimentRow,
        changed: &Changed,
    ) -> Result<(), Error> {
        let rest = Promotion::rest(Timestamp::now(), changed);
        let mut controller = self.controller(row.id, &self.checked(row)?)?;
        controller.rolled_back_by_hand(Timestamp::now(), changed);
        let entries = controller.take_entries();
        let state = controller.state();
        self.store
            .keep_continuous(row.id, state, None, &entries, Some(rest.as_ref()))?;
        self.say_rolled_back(row.id)
    }

    /// What an experiment at rest says must follow what is in force.
    fn say_rolled_back(&self, id: i64) -> Result<(), Error> {
        let row = self.store.experiment(id)?;
        let message = match (row.state, row.message.as_deref()) {
            (State::Paused, _) => ROLLED_BACK.to_owned(),
            (State::Stopped | State::Failed, Some(message)) => {
                let Some(why) = message.strip_suffix(UNWATCHED) else {
                    return Ok(());
                };
                format!(
                    "{why}; a user has rolled it back since: resume the experiment to search and promote again"
                )
            }
            _ => return Ok(()),
        };
        self.store.say(id, Some(&message))
    }

    /// The service cannot be told of its own configuration any more. Where that is what the running
    /// experiment has promoted, the control's goes into force in its place; whether it has.
    pub(crate) fn fall_back(&self, why: &str) -> Result<bool, Error> {
        let all = self.store.all_continuous()?.into_iter();
        for standing in all.filter(|it| it.state.promoted.is_some()) {
            let id = standing.id;
            let row = self.store.experiment(id)?;
            if row.state != State::Running {
                continue;
            }
            let spec = self.checked(&row)?;
            let mut live = Live::new(&spec, &self.state_dir, Interrupt::default())?;
            let changed = match live.roll_back(&[]) {
                Ok(changed) => changed,
                Err(error) => {
                    // What of it was applied is taken back; that the service cannot be told so is
                    // why we are here.
                    let _ = live.restore();
                    let message = format!("{why}; the rollback failed too: {error}");
                    self.store.say(id, Some(&message))?;
                    return Ok(false);
                }
            };
            let rest = Promotion::rest(Timestamp::now(), &changed);
            let mut controller = self.controller(id, &spec)?;
            controller.fell_back(Timestamp::now(), why.to_owned(), changed);
            let entries = controller.take_entries();
            let state = controller.state();
            self.store
                .keep_continuous(id, state, None, &entries, Some(rest.as_ref()))?;
            self.acted(id, &entries);
            self.store
                .say(id, Some(&format!("rolled back by itself: {why}")))?;
            return Ok(true);
        }
        Ok(false)
    }
}

fn rules(id: i64, spec: &CheckedSpec) -> Result<continuous::ContinuousRules, Error> {
    let rules = spec.continuous.clone();
    rules.ok_or_else(|| Error::Conflict(format!("experiment {id} is not in mode = \"continuous\"")))
}

fn controller_of(moment: &Moment, spec: &CheckedSpec) -> Result<ContinuousController, Error> {
    let rules = rules(moment.row.id, spec)?;
    let state = moment.state.clone();
    let state = state.unwrap_or_else(|| Known::new(Timestamp::now()));
    let control = spec.space.default_configuration();
    Ok(ContinuousController::resume(
        rules,
        control,
        state,
        &moment.rounds,
    ))
}

/// How the message of an experiment at rest ends while something of it is promoted.
const UNWATCHED: &str = "; what was promoted stays in force, and nothing watches it";
/// Why an experiment that is watched neither searches nor promotes.
const QUEUE_PAUSED: &str = "the queue is paused";
/// The message of an experiment that its user has rolled back.
pub(crate) const ROLLED_BACK: &str =
    "paused because a user rolled it back: resume the experiment to search and promote again";

/// A wait until a moment of the clock that comes to its end whatever somebody does to the clock:
/// the controller looks at the clock again then.
struct Waiting {
    until: Timestamp,
    began: (Timestamp, Instant),
}

impl Waiting {
    fn begin(until: Timestamp, now: Timestamp, monotonic: Instant) -> Self {
        Self {
            until,
            began: (now, monotonic),
        }
    }

    /// How long still; nothing once it is over.
    fn left(&self, now: Timestamp, monotonic: Instant) -> Option<Duration> {
        let (began, began_monotonic) = self.began;
        let gone = monotonic.saturating_duration_since(began_monotonic);
        let by_clock = SignedDuration::try_from(gone)
            .ok()
            .and_then(|gone| began.checked_add(gone).ok());
        let was_set_back =
            by_clock.is_some_and(|by_clock| by_clock.duration_since(now) > CLOCK_SLACK);
        if now >= self.until || was_set_back {
            return None;
        }
        let planned = Duration::try_from(self.until.duration_since(began)).ok()?;
        planned.checked_sub(gone).filter(|left| !left.is_zero())
    }
}

/// This host.
struct LiveWorld<'a> {
    coordinator: &'a Coordinator,
    id: i64,
    spec: &'a CheckedSpec,
    interrupt: &'a Interrupt,
    live: Live<'a>,
    /// What is in force, as its row says it.
    in_force: Option<Promotion>,
    /// Something is promoted, or a promotion has begun: its rounds go on while the queue is paused.
    is_promoted: bool,
    /// What this host was like when that came into force.
    then: Option<HostThen>,
    /// A promotion or rollback has just ended: to be kept with the state that says so.
    is_applied: bool,
    /// What was kept last: a wait that changes nothing writes nothing.
    kept: Option<Known>,
}

impl LiveWorld<'_> {
    fn wishes_an_end(&self, is_queue_paused: bool) -> bool {
        let wish = self
            .coordinator
            .store
            .experiment(self.id)
            .map(|row| row.wish);
        self.interrupt.signal().is_some()
            || matches!(wish, Ok(Some(UserRequest::Pause | UserRequest::Stop)))
            || is_queue_paused && !self.is_promoted
    }

    fn is_queue_paused(&self) -> bool {
        self.coordinator.store.is_queue_paused().unwrap_or(false)
    }

    fn progress(&self, doing: Option<String>) {
        if let Some(current_run) = &mut *self.coordinator.current_run() {
            current_run.progress = Progress {
                experiment: self.id,
                verifying: doing,
                ..Progress::default()
            };
        }
        self.coordinator.store.touch();
    }

    fn keep_report(&self, report: &Report) -> Result<(), Error> {
        let mut report = report.clone().without_blocks();
        let store = &self.coordinator.store;
        report.keep_origin(&store.experiment(self.id)?.report);
        store.set_report(self.id, &report)
    }
}

impl World for LiveWorld<'_> {
    fn now(&mut self) -> Timestamp {
        Timestamp::now()
    }

    fn wait(&mut self, until: Timestamp) -> Flow {
        let waiting = Waiting::begin(until, Timestamp::now(), Instant::now());
        let was_paused = self.is_queue_paused();
        loop {
            let is_paused = self.is_queue_paused();
            if self.wishes_an_end(is_paused) {
                return Flow::End;
            }
            if is_paused != was_paused {
                return Flow::On;
            }
            let Some(left) = waiting.left(Timestamp::now(), Instant::now()) else {
                return Flow::On;
            };
            let current_run = self.coordinator.current_run();
            drop(
                self.coordinator
                    .wake
                    .wait_timeout(current_run, left.min(LOOK)),
            );
        }
    }

    fn keep(
        &mut self,
        controller: &mut ContinuousController,
        round: Option<&Round>,
    ) -> Result<(), TunerError> {
        controller.settled(|promoted| self.live.host(promoted));
        let entries = controller.take_entries();
        let state = controller.state();
        let promoted = state.promoted.as_ref();
        self.is_promoted = promoted.is_some() || state.pending_change.is_some();
        self.then = promoted.and_then(|promoted| promoted.host.clone());
        if self.kept.as_ref() == Some(state) && entries.is_empty() && round.is_none() {
            return Ok(());
        }
        // Begun, and not known yet how far it comes.
        let begun = state.pending_change.is_some().then(|| Promotion {
            is_complete: false,
            // So that what a refusal leaves in force is known after a kill as well.
            done: self
                .in_force
                .as_ref()
                .map_or_else(Changes::default, |promotion| promotion.done.clone()),
            left: Vec::new(),
            at: Timestamp::now(),
        });
        let promotion = match (std::mem::take(&mut self.is_applied), &begun) {
            (true, _) => Some(self.in_force.as_ref()),
            (false, Some(begun)) => Some(Some(begun)),
            (false, None) => None,
        };
        let store = &self.coordinator.store;
        store.keep_continuous(self.id, state, round, &entries, promotion)?;
        self.coordinator.acted(self.id, &entries);
        self.live
            .set_baseline(state.promoted.as_ref().map(|it| it.configuration.clone()));
        self.kept = Some(state.clone());
        self.progress(
            state
                .pending_change
                .as_ref()
                .map(|pending_change| match pending_change {
                    Acting::Promote(_) => "promoting".into(),
                    Acting::RollBack(_) => "rolling back".into(),
                }),
        );
        Ok(())
    }

    fn watch(&mut self, configuration: &Configuration) -> Result<Option<Seen>, TunerError> {
        let now = self.live.host(configuration);
        let then = self.then.as_ref();
        if let Some((then, what)) = then.and_then(|it| Some((it, it.changed_to(&now)?))) {
            // Knobs do not outlive a boot; whoever else changes one, or a file, has reasons.
            if !then.is_reset_by_boot(&now) {
                return Ok(Some(Seen::ExternallyModified(what)));
            }
            return Ok(self
                .apply(Some(configuration))?
                .map(|applied| match applied {
                    Ok(_) => Seen::PutBack(what),
                    Err(why) => Seen::ExternallyModified(format!(
                        "{what}: a restart of the host reset it, and restoring the promoted value failed: {why}"
                    )),
                }));
        }
        self.progress(Some(match self.is_promoted {
            true => "a round: the control against what is promoted".into(),
            false => "a round: the control against itself".into(),
        }));
        let seen = continuous::watch(
            self.spec,
            configuration,
            &mut self.live,
            &mut |_: &LedgerEvent<'_>| {},
        );
        self.progress(None);
        let seen = seen?;
        // An edit that everything went on with: of a template, or of a file before it was written.
        let after = self.live.host(configuration);
        if let (Some(Seen::Measured(_)), Some(what)) = (&seen, now.changed_in_round(&after)) {
            let why = format!("changed outside Slackline during the round: {what}");
            return Ok(Some(Seen::Unmeasured(why)));
        }
        Ok(seen)
    }

    fn tune(&mut self, task: &Task) -> Result<Option<Tuned>, TunerError> {
        if task.is_new {
            self.coordinator
                .store
                .new_verification(self.id)
                .map_err(TunerError::from)?;
        }
        let mut session = RunSession::of_task(self.coordinator, self.id, task.clone());
        let (tuned, report) = continuous::tune(
            self.spec,
            task.in_force.as_ref(),
            &mut self.live,
            &mut session,
        )?;
        match &tuned {
            Some(Tuned::Ended { .. }) => self.keep_report(&report),
            Some(Tuned::Failed { reason, .. }) => self.coordinator.store.lose(self.id, reason),
            _ => Ok(()),
        }
        .map_err(TunerError::from)?;
        self.progress(None);
        Ok(tuned)
    }

    fn alert(&mut self, alert: &AlertSpec) -> Alert {
        continuous::ask(alert)
    }

    fn bars_change(&mut self) -> Result<Option<String>, TunerError> {
        let is_paused = self.coordinator.store.is_queue_paused();
        let is_paused = is_paused.map_err(TunerError::from)?;
        Ok(is_paused.then(|| QUEUE_PAUSED.to_owned()))
    }

    fn bars_promotion(&mut self) -> Result<Option<String>, TunerError> {
        let barred = self.coordinator.bars_promotion(self.id);
        barred.map_err(TunerError::from)
    }

    fn apply(
        &mut self,
        configuration: Option<&Configuration>,
    ) -> Result<Option<Applied>, TunerError> {
        let row = self.coordinator.store.experiment(self.id);
        let row = row.map_err(TunerError::from)?;
        if configuration.is_some()
            && let Some(why) = row.report.changed_template(self.spec)
        {
            self.is_applied = true;
            return Ok(Some(Err(why)));
        }
        let promoted = match configuration {
            Some(configuration) => self.live.promote(configuration, &row.served()),
            None => self.live.roll_back(&[]),
        };
        // After a refusal, what was applied so far is taken back; else there is nothing to take
        // back.
        let promoted = match (promoted, self.live.restore()) {
            // There is no configuration that it takes now: it is tried again, as long as it is
            // wanted.
            (Err(error), Err(unrestored @ TunerError::Reapply(_))) => {
                Err(format!("{error}; {unrestored}"))
            }
            (promoted, restored) => {
                restored?;
                promoted.map_err(|error| error.to_string())
            }
        };
        // Whoever looks at the experiment while it is tried again and again is to see why.
        let trouble = promoted.as_ref().err().map(String::as_str);
        let store = &self.coordinator.store;
        store.say(self.id, trouble).map_err(TunerError::from)?;
        Ok(match promoted {
            Ok(changed) => {
                let at = Timestamp::now();
                self.in_force = match configuration {
                    Some(_) => Some(Promotion {
                        is_complete: true,
                        done: changed.done.clone(),
                        left: Vec::new(),
                        at,
                    }),
                    None => Promotion::rest(at, &changed),
                };
                self.is_applied = true;
                Some(Ok(changed))
            }
            // It is in the store that it was begun.
            Err(_) if self.interrupt.signal().is_some() => None,
            Err(error) => {
                self.is_applied = true;
                Some(Err(error))
            }
        })
    }
}

#[cfg(test)]
mod file_tests;

#[cfg(test)]
mod tests;
