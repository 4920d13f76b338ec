//! What users do to experiments. Each is a committed row first; what it means for the host comes
//! after.

use std::path::{Path, PathBuf};

use bayes_opt::{Configuration, Observation};
use host::HostError;
use tuner::experiment;
use tuner::report::EvaluationRecord;
use tuner::spec::{
    BudgetSpec, CheckedSpec, EVALUATIONS_MAX, ExperimentMode, NAME_CHARS_MAX, SpecContext,
    as_written_here, check_dir, check_wall_time,
};

use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::promotion::bars_measuring;
use crate::store::{ExperimentRow, NewExperiment, Once, State, UserRequest, refused};

/// The most characters of a note: some pages.
pub(crate) const NOTE_CHARS_MAX: usize = 10_000;
/// The longest text of a specification: it is kept with its experiment, and each page of that shows
/// it.
pub(crate) const SOURCE_BYTES_MAX: usize = 1 << 20;
/// As many configurations may be enqueued.
const QUEUE_MAX: usize = 1000;

/// What becomes of an experiment's limit in minutes when its budget is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TimeLimit {
    /// It stays as it is, also where there is none.
    #[default]
    Keep,
    /// Another one, in minutes of measuring.
    Minutes(f64),
    /// There is none any more.
    Remove,
}

impl Coordinator {
    /// Checks a specification against itself and this host. `path` is where it would be: its ending
    /// says whether it is TOML or JSON, and relative paths count from its folder.
    ///
    /// # Errors
    /// [`Error::Spec`], with line and key.
    pub fn check(&self, text: &str, path: &Path) -> Result<CheckedSpec, Error> {
        check_dir(path)?;
        // A knob may be changed for an experiment that runs, or come to be while it is read: its
        // line in the journal is first.
        let mut originals = host::Journal::originals(&self.state_dir)?;
        loop {
            let context = SpecContext {
                originals: &originals,
                ..tuner::spec::context(&self.roots)
            };
            let spec = context.check(text.to_owned(), path)?;
            let now = host::Journal::originals(&self.state_dir)?;
            if now.keys().all(|knob| originals.contains_key(knob)) {
                return Ok(spec);
            }
            originals.extend(now);
        }
    }

    /// The experiment that a request has made or changed already: what it asks for is not checked
    /// again, because files may have changed since.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the key came with another request; [`Error::Gone`] where the
    /// experiment was deleted since; [`Error::Unavailable`].
    pub fn made(&self, once: Option<&Once>) -> Result<Option<i64>, Error> {
        self.store.made(once)
    }

    /// Makes an experiment of a specification and puts it in the queue.
    ///
    /// # Errors
    /// [`Error::Spec`]; [`Error::Unavailable`].
    pub fn create(&self, text: &str, path: &Path, once: Option<Once>) -> Result<i64, Error> {
        if let Some(id) = self.made(once.as_ref())? {
            return Ok(id);
        }
        let spec = self.check(text, path)?;
        self.make(text, &spec, Vec::new(), None, once)
    }

    /// Makes an experiment that starts from what another one has measured: with its specification,
    /// or with another one.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Spec`]; [`Error::Invalid`] where the objectives cannot be
    /// compared.
    pub fn fork(
        &self,
        id: i64,
        text: Option<(&str, PathBuf)>,
        once: Option<Once>,
    ) -> Result<i64, Error> {
        if let Some(made) = self.made(once.as_ref())? {
            return Ok(made);
        }
        let row = self.store.experiment(id)?;
        let (source, mut spec) = match text {
            Some((text, path)) => (text.to_owned(), self.check(text, &path)?),
            None => (row.source.clone(), self.checked(&row)?),
        };
        let theirs = self.checked(&row)?;
        if !theirs.objective().is_comparable_with(spec.objective()) {
            return Err(Error::Invalid(format!(
                "the objective of experiment {id} has another metric, scale or goal: the values cannot be compared"
            )));
        }
        if spec.name == row.name {
            spec.name = forked_name(&row.name, id);
        }
        let evaluations = self.store.evaluations(id, 1)?.into_iter();
        let prior = evaluations.filter_map(|row| {
            let measurement = row.record.measurement?;
            Some(Observation::now(
                row.record.configuration,
                measurement.observed(),
            ))
        });
        self.make(&source, &spec, prior.collect(), Some(id), once)
    }

    fn make(
        &self,
        source: &str,
        spec: &CheckedSpec,
        prior: Vec<Observation>,
        parent: Option<i64>,
        once: Option<Once>,
    ) -> Result<i64, Error> {
        within_limits(&spec.written().budget)?;
        check_source(source)?;
        if spec.written().workers.is_some() && !self.workers.is_there() {
            return Err(Error::Invalid(
                "workers: this server has no workers: start it with --workers, or remove `workers` from the specification"
                    .into(),
            ));
        }
        let id = self.store.create(&NewExperiment {
            name: spec.name.clone(),
            dir: spec.dir.display().to_string(),
            source: source.to_owned(),
            spec: spec.pinned(),
            prior,
            parent,
            report: experiment::begin(spec),
            state: State::Queued,
            once,
        })?;
        self.nudge();
        Ok(id)
    }

    /// Writes down what a person says of an experiment, or of one of its evaluations. An empty text
    /// takes it away. A password in an address is masked, because whoever may look reads it.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] for a text that is too long or has control
    /// characters.
    pub fn note(&self, id: i64, evaluation: Option<usize>, text: &str) -> Result<(), Error> {
        let text = text.replace("\r\n", "\n");
        let text = text.trim_end();
        check_note("text", text)?;
        let note = (!text.is_empty()).then_some(text);
        match evaluation {
            Some(number) => self.store.note_evaluation(id, number, note),
            None => self.store.note(id, note),
        }
    }

    /// Lets an experiment wait: at once where it does not run yet, else after the present
    /// evaluation.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Conflict`].
    pub fn pause(&self, id: i64) -> Result<(), Error> {
        self.with_reserve(|| {
            self.store.transition(id, |row| match row.state {
                State::Queued => Ok((State::Paused, None, None)),
                State::Running => Ok((
                    State::Running,
                    Some(UserRequest::Pause),
                    row.message.clone(),
                )),
                state => Err(refused(
                    id,
                    state,
                    "only a queued or running experiment can be paused",
                )),
            })
        })
    }

    /// A command that ends what is measured works on a full disk, too: it may use the space that is
    /// kept for a rollback.
    fn with_reserve(&self, command: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
        match command() {
            Err(Error::Unavailable(_)) => self.lend_reserve(command),
            done => done,
        }
    }

    /// Puts an experiment back into the queue: it goes on where it was. One that was done searches
    /// on if its budget allows it, and is verified again.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Conflict`].
    pub fn resume(&self, id: i64) -> Result<(), Error> {
        self.queue_again(id, None)
    }

    /// Verifies what an experiment has found so far, without searching further; its next
    /// verification is measured anew.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Conflict`].
    pub fn verify(&self, id: i64) -> Result<(), Error> {
        let row = self.store.experiment(id)?;
        if row.spec.mode == ExperimentMode::Continuous {
            return Err(refused(
                id,
                row.state,
                "a continuous experiment verifies before each promotion. For a separate verification, fork it with a specification \
                 without mode = \"continuous\"",
            ));
        }
        if row.state != State::Running && !self.store.has_measured(id)? {
            let why = match row.state {
                State::Queued => "it has no evaluations yet: wait until it has run",
                _ => "there are no evaluations to verify: resume the experiment first",
            };
            return Err(refused(id, row.state, why));
        }
        self.may_be_measured(&row)?;
        if !matches!(row.state, State::Queued | State::Running) {
            self.store.new_verification(id)?;
        }
        self.queue_again(id, Some(UserRequest::Verify))
    }

    fn queue_again(&self, id: i64, wish: Option<UserRequest>) -> Result<(), Error> {
        let row = self.store.experiment(id)?;
        self.may_be_measured(&row)?;
        if wish.is_none() {
            let mut all = self.store.experiments()?.into_iter();
            let evaluations = all.find(|it| it.id == id).map_or(0, |it| it.evaluations);
            let measured_s = self.store.tally(id)?.measured_s;
            if let Some(why) = row.nothing_to_resume(evaluations, measured_s) {
                return Err(refused(id, row.state, &why));
            }
        }
        if row.state == State::Done {
            self.store.new_verification(id)?;
        }
        self.store.transition(id, |row| {
            // It may have been promoted since the check above.
            if let Some(why) = bars_measuring(row) {
                return Err(Error::Conflict(why));
            }
            match (row.state, wish) {
                (State::Running, Some(_)) | (State::Queued, Some(_)) => {
                    Ok((row.state, wish, row.message.clone()))
                }
                // A pause that has not happened yet is taken back.
                (State::Running, None) if row.wish == Some(UserRequest::Pause) => {
                    Ok((State::Running, None, row.message.clone()))
                }
                (State::Queued | State::Running, None) => {
                    Err(refused(id, row.state, "there is nothing to resume"))
                }
                _ => Ok((State::Queued, wish, None)),
            }
        })?;
        self.nudge();
        Ok(())
    }

    /// Ends an experiment now; the evaluation that is measured is killed. It can be resumed.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Conflict`].
    pub fn stop(&self, id: i64) -> Result<(), Error> {
        self.with_reserve(|| {
            self.store.transition(id, |row| match row.state {
                State::Queued | State::Paused => Ok((State::Stopped, None, None)),
                State::Running => {
                    Ok((State::Running, Some(UserRequest::Stop), row.message.clone()))
                }
                state => Err(refused(id, state, "it has ended already")),
            })
        })?;
        if let Some(current_run) = &*self.current_run()
            && current_run.progress.experiment == id
        {
            current_run
                .interrupt
                .raise(rustix::process::Signal::TERM.as_raw());
        }
        self.nudge();
        Ok(())
    }

    /// Ends one evaluation that is measured; its configuration is not asked for again, and the
    /// experiment goes on.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Conflict`] where it is not running.
    pub fn kill(&self, id: i64, number: usize) -> Result<(), Error> {
        if self.store.experiment(id)?.spec.workers.is_some() {
            self.store.withdraw(id, number)?;
            self.nudge();
            return Ok(());
        }
        self.store.is_to_be_killed(id, number)?;
        if let Some(current_run) = &*self.current_run()
            && current_run.progress.experiment == id
            && current_run.progress.evaluation == Some(number)
        {
            current_run.interrupt.kill_evaluation();
        }
        Ok(())
    }

    /// Puts a configuration in front of what the optimiser asks for; parameters left out take the
    /// control's values.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] for one outside the space.
    pub fn enqueue(
        &self,
        id: i64,
        given: &Configuration,
        once: Option<&Once>,
    ) -> Result<Configuration, Error> {
        let is_made = self.made(once)?.is_some();
        let row = self.store.experiment(id)?;
        let space = self.checked(&row)?.space;
        let mut configuration = space.default_configuration();
        for (name, value) in &given.0 {
            configuration.0.insert(name.clone(), value.clone());
        }
        let configuration = as_written_here(&space, configuration);
        space
            .check(&configuration)
            .map_err(|error| Error::Invalid(error.to_string()))?;
        if !is_made && self.store.queue(id)?.len() >= QUEUE_MAX {
            return Err(Error::Conflict(format!(
                "experiment {id} has {QUEUE_MAX} configurations enqueued already: let it measure some first"
            )));
        }
        self.store.enqueue(id, &configuration, once)?;
        Ok(configuration)
    }

    /// Changes how much an experiment may measure; one that runs heeds it before its next
    /// evaluation. One that is at rest searches on when it is resumed, even if its verification had
    /// begun.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`].
    pub fn set_budget(&self, id: i64, evaluations: usize, time: TimeLimit) -> Result<(), Error> {
        let budget = |minutes| BudgetSpec {
            evaluations,
            wall_time_min: minutes,
        };
        let given = match time {
            TimeLimit::Minutes(minutes) => Some(minutes),
            TimeLimit::Keep | TimeLimit::Remove => None,
        };
        within_limits(&budget(given))?;
        let mut all = self.store.experiments()?.into_iter();
        let measured = all.find(|it| it.id == id && !it.always_on);
        let measured = measured.map_or(0, |it| it.evaluations);
        if evaluations < measured {
            return Err(Error::Invalid(format!(
                "experiment {id} has {measured} evaluations already: give a number of evaluations above {measured}"
            )));
        }
        self.store.set_budget(id, |row| match time {
            TimeLimit::Keep => budget(row.budget().wall_time_min),
            TimeLimit::Minutes(_) | TimeLimit::Remove => budget(given),
        })?;
        if self.store.experiment(id)?.state != State::Running {
            self.store.new_verification(id)?;
        }
        Ok(())
    }

    /// Deletes an experiment that does not run, with all that it measured.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Conflict`].
    pub fn delete(&self, id: i64) -> Result<(), Error> {
        self.store.delete(id)
    }

    /// An error while another coordinator has the store, perhaps that of another host.
    pub(crate) fn must_be_active(&self) -> Result<(), Error> {
        if self.is_active() {
            return Ok(());
        }
        let why = self.trouble();
        let why = why.unwrap_or_else(|| "it has only just started".into());
        Err(Error::Conflict(format!(
            "the server does not control the store yet and refuses changes: {why}"
        )))
    }

    /// Why nothing can be changed on the host now, and what to do about it.
    pub(crate) fn who_has_the_host(&self, error: &HostError) -> String {
        if let Some(progress) = self.progress() {
            let id = progress.experiment;
            return format!(
                "experiment {id} is being measured: pause it, or pause the queue, wait for the end of its evaluation, and try again"
            );
        }
        match error {
            HostError::Locked { pid, .. } if *pid == std::process::id() => {
                "this server is promoting something or rolling it back: try again in a few seconds"
                    .to_owned()
            }
            HostError::Locked { pid: 0, .. } => error.to_string(),
            HostError::Locked {
                pid,
                command,
                started,
                ..
            } => format!(
                "another Slackline command has the host: pid {pid} ({command}), since {started}; wait for its end, or end it"
            ),
            error => error.to_string(),
        }
    }

    /// Lets nothing new begin, on this host or on workers. What is measured comes to the end of its
    /// evaluation. What a continuous experiment has promoted is watched further, and rolled back
    /// where it has to be.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn pause_queue(&self) -> Result<(), Error> {
        self.with_reserve(|| self.store.set_queue_paused(true))?;
        self.nudge();
        Ok(())
    }

    /// Lets the queue go on.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn resume_queue(&self) -> Result<(), Error> {
        self.store.set_queue_paused(false)?;
        self.nudge();
        Ok(())
    }

    /// The optimiser as it is after these evaluations of an experiment, for explaining what it
    /// knows.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Spec`].
    pub fn surrogate(
        &self,
        row: &ExperimentRow,
        evaluations: &[EvaluationRecord],
    ) -> Result<bayes_opt::Optimizer, Error> {
        let spec = self.checked_to_explain(row)?;
        Ok(experiment::surrogate(&spec, evaluations)?)
    }
}

/// The text of a specification is kept with its experiment, and of bounded length.
///
/// # Errors
/// It is longer.
pub fn check_source(source: &str) -> Result<(), Error> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "spec: the text has {} bytes; the limit is {SOURCE_BYTES_MAX}",
            source.len()
        )));
    }
    Ok(())
}

/// A note is a text for people, of bounded length.
fn check_note(key: &str, text: &str) -> Result<(), Error> {
    if text.chars().count() > NOTE_CHARS_MAX {
        return Err(Error::Invalid(format!(
            "{key}: a note has at most {NOTE_CHARS_MAX} characters"
        )));
    }
    let is_odd =
        |it: char| it.is_control() && !matches!(it, '\n' | '\t') || tuner::spec::is_deceptive(it);
    if text.chars().any(is_odd) {
        return Err(Error::Invalid(format!(
            "{key}: a note has no control characters but line feeds and tabs, and none that turns the direction of writing"
        )));
    }
    Ok(())
}

/// The name of a fork, which says what it was made from; a fork of a fork says so once.
fn forked_name(name: &str, id: i64) -> String {
    let own = match name.rsplit_once(" (from ") {
        Some((own, number)) if number.trim_end_matches(')').parse::<i64>().is_ok() => own,
        _ => name,
    };
    let from = format!(" (from {id})");
    let kept = NAME_CHARS_MAX.saturating_sub(from.chars().count());
    own.chars().take(kept).chain(from.chars()).collect()
}

pub(crate) fn within_limits(budget: &BudgetSpec) -> Result<(), Error> {
    if budget.evaluations > EVALUATIONS_MAX {
        return Err(Error::Invalid(format!(
            "budget.evaluations is {}: the maximum is {EVALUATIONS_MAX}",
            budget.evaluations
        )));
    }
    let checked = budget.wall_time_min.map_or(Ok(()), check_wall_time);
    checked.map_err(|why| Error::Invalid(format!("budget.wall_time_min {why}")))
}

#[cfg(test)]
mod tests;
