//! The thread that measures: it takes experiments from the store, one after the other.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use host::HostError;
use tuner::TunerError;
use tuner::experiment;
use tuner::live::Live;
use tuner::process::Interrupt;
use tuner::report::Report;
use tuner::spec::{CheckedSpec, ExperimentMode, Spec, SpecContext};

use crate::coordinator::{Coordinator, CurrentRun, Progress, SIGTERM};
use crate::error::Error;
use crate::run_session::RunSession;
use crate::store::{ExperimentRow, State, UserRequest};

/// How often an idle coordinator looks for work that nobody told it of.
const IDLE: Duration = Duration::from_secs(1);

/// How long after trouble with the store or the host it is tried again.
const TROUBLE_WAIT: Duration = Duration::from_secs(2);

impl Coordinator {
    /// Measures what waits, until [`end`](Self::end): takes the store's lock, which may mean to
    /// wait for another coordinator; undoes what a killed one left; then one experiment after the
    /// other. Trouble with the store or the host is reported and waited out.
    ///
    /// # Errors
    /// [`Error::Superseded`] when another coordinator has taken over, [`Error::Corrupt`] for a
    /// damaged store.
    pub fn run(&self, report: &dyn Fn(&str)) -> Result<(), Error> {
        let mut is_recovered = false;
        while !self.is_ending() {
            let worked = self.take_lock().and_then(|is_ours| {
                if !is_ours {
                    let pid = self.store.lock_holder();
                    let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
                    return Err(Error::Conflict(format!(
                        "another `slackline serve` uses the store {}{pid}: waiting for its end",
                        self.store.location()
                    )));
                }
                self.store.check_in_place()?;
                if self.is_rolling_back() {
                    return Ok(false);
                }
                if !is_recovered {
                    self.recover(report)?;
                    is_recovered = true;
                    self.is_active.store(true, Ordering::Relaxed);
                }
                self.tell_of_rollbacks()?;
                if self.own_trouble().is_some() {
                    report(match self.store.is_queue_paused()? {
                        true => "the trouble is over; queued experiments wait until the queue is resumed",
                        false => "the trouble is over: queued experiments go on",
                    });
                }
                self.set_trouble(None);
                self.work()
            });
            let wait = match worked {
                Ok(true) => continue,
                Ok(false) => IDLE,
                Err(error @ (Error::Superseded | Error::Corrupt(_))) => return Err(error),
                Err(error) => {
                    // What was written last may not be what was meant: read it again before going
                    // on.
                    is_recovered = false;
                    *self.current_run() = None;
                    let message = error.to_string();
                    if self.own_trouble().as_ref() != Some(&message) {
                        report(&message);
                    }
                    self.set_trouble(Some(message));
                    TROUBLE_WAIT
                }
            };
            let current_run = self.current_run();
            drop(self.wake.wait_timeout(current_run, wait));
        }
        Ok(())
    }

    fn take_lock(&self) -> Result<bool, Error> {
        self.store.try_lock()
    }

    /// The host first, then the store: no row says that all is well before it is.
    fn recover(&self, report: &dyn Fn(&str)) -> Result<(), Error> {
        let is_undone = Cell::new(false);
        self.undo(&|text| {
            is_undone.set(true);
            report(text);
        })?;
        self.settle_interrupted(is_undone.get(), report)?;
        for recovered in self.store.recover()? {
            report(&recovered);
        }
        if let Some(unknown) = self.unknown_promotion()? {
            report(&unknown);
        }
        self.reserve.keep();
        Ok(())
    }

    pub(crate) fn undo(&self, report: &dyn Fn(&str)) -> Result<(), Error> {
        match tuner::undo::undo(&self.state_dir, &self.roots, false) {
            Ok(undone) => {
                if let Some(sentence) = undone.sentence() {
                    report(&sentence);
                }
                if undone.is_complete() {
                    return Ok(());
                }
                if let (true, Some(why)) = (undone.report.is_complete(), &undone.reapply)
                    && self.fall_back(why)?
                {
                    return Ok(());
                }
                Err(Error::Conflict(
                    "not everything that an earlier run changed could be restored; `slackline restore` says what".into(),
                ))
            }
            Err(error @ HostError::Locked { .. }) => Err(Error::Conflict(waits(&error))),
            Err(error) => Err(error.into()),
        }
    }

    /// One session of the experiment whose turn it is; whether there was one.
    fn work(&self) -> Result<bool, Error> {
        let next = match self.store.is_queue_paused()? {
            true => self.to_be_watched()?,
            false => self.store.next_in_queue()?,
        };
        let Some(id) = next else {
            return Ok(false);
        };
        let row = self.store.experiment(id)?;
        // Something may have been promoted while it waited.
        if row.spec.mode == ExperimentMode::Once
            && let Some(why) = self.bars_measuring(&row)?
        {
            self.store
                .session_ended(id, State::Paused, Some(&why), &row.report)?;
            return Ok(true);
        }
        let spec = match self.checked(&row) {
            Ok(spec) => spec,
            Err(error) => {
                self.store.session_ended(
                    id,
                    State::Failed,
                    Some(&error.to_string()),
                    &row.report,
                )?;
                return Ok(true);
            }
        };
        let interrupt = Interrupt::default();
        let live = match Live::new(&spec, &self.state_dir, interrupt.clone()) {
            Ok(live) => live,
            Err(TunerError::Host(error @ HostError::Locked { .. })) => {
                let message = waits(&error);
                if row.message.as_ref() != Some(&message) {
                    self.store.say(id, Some(&message))?;
                }
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        };
        if !live.left_over().is_empty() {
            drop(live);
            self.undo(&|_| ())?;
            return Ok(true);
        }
        self.sit(&row, &spec, interrupt, live)?;
        Ok(true)
    }

    /// The queued experiment whose rounds watch what it has promoted. A paused queue holds only its
    /// searches and promotions.
    fn to_be_watched(&self) -> Result<Option<i64>, Error> {
        let mut all = self.store.all_continuous()?.into_iter();
        let next = all.find(|it| it.experiment == State::Queued && it.state.promoted.is_some());
        Ok(next.map(|it| it.id))
    }

    /// The specification of an experiment, as this host sees it now. Earlier reports that are gone
    /// are missed only by an experiment that has measured nothing yet: a rollback needs none, and a
    /// search has its own by then. Nor do templates that are gone matter where something may have
    /// to be rolled back, or where it goes on by itself once they are there again.
    pub(crate) fn checked(&self, row: &ExperimentRow) -> Result<CheckedSpec, Error> {
        let may_miss_templates = match row.spec.mode {
            ExperimentMode::Once => row.promotion.is_some(),
            ExperimentMode::Continuous => self.store.continuous(row.id)?.is_some(),
        };
        self.checked_here(row, may_miss_templates)
    }

    /// The same of what is only looked at, such as a report from another host: files that are made
    /// for a run may be missing.
    pub(crate) fn checked_to_explain(&self, row: &ExperimentRow) -> Result<CheckedSpec, Error> {
        let mut row = row.clone();
        row.spec.search.warm_start.clear();
        self.checked_here(&row, true)
    }

    fn checked_here(
        &self,
        row: &ExperimentRow,
        may_miss_templates: bool,
    ) -> Result<CheckedSpec, Error> {
        let check = |spec: &Spec| {
            let text =
                serde_json::to_string(spec).map_err(|error| Error::Invalid(error.to_string()))?;
            let path = Path::new(&row.dir).join("experiment.json");
            if !may_miss_templates {
                tuner::spec::check_dir(&path)?;
            }
            let context = SpecContext {
                has_begun: may_miss_templates,
                ..tuner::spec::context(&self.roots)
            };
            Ok::<_, Error>(context.check(text, &path)?)
        };
        let mut written = row.spec.clone();
        if may_miss_templates {
            // What was there when it began is not left out in silence because it is gone now: a
            // rollback names it.
            let known = self.known_parameters(row)?;
            for parameter in &mut written.parameters {
                parameter.optional &= !known.contains(&parameter.name);
            }
        }
        let mut spec = match check(&written) {
            Err(Error::Spec(error)) if is_of_earlier(&error) && self.has_begun(row)? => {
                written.search.warm_start.clear();
                check(&written)?
            }
            checked => checked?,
        };
        if !row.prior.is_empty() {
            spec.settings.earlier.push(row.prior.clone());
        }
        Ok(spec)
    }

    /// The parameters that this host had when the experiment was made, verified or promoted.
    fn known_parameters(&self, row: &ExperimentRow) -> Result<BTreeSet<String>, Error> {
        let state = self.store.continuous(row.id)?;
        let promoted = state.and_then(|state| state.promoted);
        let promoted = promoted.map(|promoted| promoted.configuration);
        let winner = row.report.winner().map(|arm| arm.configuration.clone());
        let all = [Some(row.report.control.clone()), winner, promoted];
        let all = all.into_iter().flatten();
        Ok(all.flat_map(|it| it.0.into_keys()).collect())
    }

    fn has_begun(&self, row: &ExperimentRow) -> Result<bool, Error> {
        Ok(row.promotion.is_some() || self.store.has_measured(row.id)?)
    }

    /// Why an experiment whose session was cut off waits.
    pub(crate) fn why_queued(&self) -> Option<String> {
        self.is_ending()
            .then(|| "goes on after the server's next start".to_owned())
    }

    fn sit(
        &self,
        row: &ExperimentRow,
        spec: &CheckedSpec,
        interrupt: Interrupt,
        live: Live<'_>,
    ) -> Result<(), Error> {
        let id = row.id;
        let begun = self.store.transition(id, |row| match row.state {
            State::Queued => Ok((State::Running, row.wish, None)),
            _ => Err(Error::Conflict(String::new())),
        });
        match begun {
            // Its user was faster: it does not wait any more.
            Err(Error::Conflict(_) | Error::NotFound(_)) => return Ok(()),
            begun => begun?,
        }
        *self.current_run() = Some(CurrentRun {
            interrupt: interrupt.clone(),
            progress: Progress {
                experiment: id,
                ..Progress::default()
            },
        });
        // An end, a rollback or a stop that was asked for just before had nobody to tell.
        if self.is_ending()
            || self.is_rolling_back()
            || self.store.experiment(id)?.wish == Some(UserRequest::Stop)
        {
            interrupt.raise(SIGTERM);
        }
        if spec.continuous.is_some() {
            return self.run_continuous(id, spec, &interrupt, live);
        }
        let mut session = RunSession::new(self, id);
        let mut live = live.after(session.elapsed_s()?);
        let (report, error) = experiment::run_to_end(spec, &mut live, &mut session);
        let restored = live.restore();
        *self.current_run() = None;
        let restored = restored?;
        if let Some(error @ TunerError::Ledger(_)) = error {
            return Err(Error::Unavailable(error.to_string()));
        }
        let wish = self.store.experiment(id)?.wish;
        let is_stopped = wish == Some(UserRequest::Stop);
        let mut report = report.without_blocks();
        let (mut state, mut message) = end_of(&mut report, error.as_ref(), is_stopped);
        match state {
            State::Queued => message = self.why_queued(),
            // Its user has not paused it, but the queue.
            State::Paused if wish != Some(UserRequest::Pause) => state = State::Queued,
            _ => {}
        }
        report.keep_verified(&row.report);
        self.store
            .session_ended(id, state, message.as_deref(), &report)?;
        if restored.is_complete() {
            return Ok(());
        }
        Err(Error::not_restored())
    }
}

/// Whether an earlier experiment's report is all that is wrong.
fn is_of_earlier(error: &tuner::SpecError) -> bool {
    error.key.starts_with("search.warm_start")
}

/// What a coordinator says while another Slackline, a `tune` for instance, has the host.
fn waits(error: &HostError) -> String {
    if matches!(error, HostError::Locked { pid, .. } if *pid == std::process::id()) {
        return "waits until this server has ended a promotion or a rollback, then continues by itself"
            .to_owned();
    }
    format!(
        "waits until another Slackline command releases the host, then continues by itself: {error}"
    )
}

/// What a session leaves its experiment as.
pub(crate) fn end_of(
    report: &mut Report,
    error: Option<&TunerError>,
    is_stopped: bool,
) -> (State, Option<String>) {
    match (error, report.interrupted, report.paused) {
        (Some(error), ..) => (State::Failed, Some(error.to_string())),
        (None, Some(_), _) if is_stopped => {
            report.interrupted = None;
            report.sentence = "A user stopped the experiment. There is no result.".into();
            (State::Stopped, None)
        }
        (None, Some(_), _) => {
            report.interrupted = None;
            report.sentence.clear();
            (State::Queued, None)
        }
        (None, None, true) => {
            report.sentence.clear();
            (State::Paused, None)
        }
        (None, None, false) => (State::Done, None),
    }
}
