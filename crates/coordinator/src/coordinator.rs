//! The thread that measures: it takes experiments from the store, one after the other.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use host::{HostError, Roots};
use serde::Serialize;
use tuner::TunerError;
use tuner::continuous::Entry;
use tuner::experiment;
use tuner::live::{Changed, Live};
use tuner::process::Interrupt;
use tuner::protocol::{Reply, Request};
use tuner::report::Report;
use tuner::spec::{CheckedSpec, Mode, Spec};

use crate::error::Error;
use crate::reserve::Reserve;
use crate::sitting::Sitting;
use crate::store::{ExperimentRow, State, Store, Wish};
use crate::workers::Workers;

/// How often an idle coordinator looks for work that nobody told it of.
const IDLE: Duration = Duration::from_secs(1);

/// How long after trouble with the store or the host it is tried again.
const TROUBLE_WAIT: Duration = Duration::from_secs(2);

/// What the signal that ends a process is (signal(7)).
const SIGTERM: i32 = 15;

/// Runs experiments, and changes them for their users.
pub struct Coordinator {
    pub(crate) store: Store,
    pub(crate) state_dir: PathBuf,
    pub(crate) reserve: Reserve,
    pub(crate) roots: Roots,
    present: Mutex<Option<Present>>,
    pub(crate) wake: Condvar,
    is_ending: AtomicBool,
    /// It has the store's lock, and has seen to what an earlier coordinator left.
    is_active: AtomicBool,
    trouble: Mutex<Option<String>>,
    pub(crate) workers: Workers,
    /// Rollbacks by hand under way: nothing is measured meanwhile.
    pub(crate) rollbacks: AtomicUsize,
    /// Rollbacks that the store could not be told of yet.
    pub(crate) untold: Mutex<Vec<UntoldRollback>>,
    /// One promotion at a time: the next one is decided when it is known what came of this one.
    pub(crate) promoting: Mutex<()>,
    /// Whoever is told of what continuous experiments promote and roll back by themselves.
    own_acts: OnceLock<OwnActs>,
}

/// Is told the experiment and what became of it.
type OwnActs = Box<dyn Fn(i64, &Entry) + Send + Sync>;

/// A rollback that has happened on the host while the store could not be written.
#[derive(Clone, Debug)]
pub(crate) struct UntoldRollback {
    pub(crate) experiment: i64,
    pub(crate) changed: Changed,
}

/// The experiment that is measured now.
pub(crate) struct Present {
    pub(crate) interrupt: Interrupt,
    pub(crate) progress: Progress,
}

/// How far the experiment is that is measured now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// The experiment.
    pub experiment: i64,
    /// The evaluation that is measured.
    pub evaluation: Option<usize>,
    /// Blocks of it, or of the verification's run, that are done.
    pub blocks: usize,
    /// Blocks planned.
    pub of_blocks: usize,
    /// The arm and the run of the verification.
    pub verifying: Option<String>,
}

impl Coordinator {
    /// A coordinator of that store, whose host's journal and lock are in `state_dir`. Nothing
    /// happens before [`run`](Self::run).
    pub fn new(store: Store, state_dir: &Path) -> Self {
        Self {
            store,
            state_dir: state_dir.to_owned(),
            reserve: Reserve::new(state_dir),
            roots: Roots::default(),
            present: Mutex::new(None),
            wake: Condvar::new(),
            is_ending: AtomicBool::new(false),
            is_active: AtomicBool::new(false),
            trouble: Mutex::new(None),
            workers: Workers::new(),
            rollbacks: AtomicUsize::new(0),
            untold: Mutex::default(),
            promoting: Mutex::default(),
            own_acts: OnceLock::new(),
        }
    }

    /// Tells `told` of each promotion and rollback by a continuous experiment itself, after it is
    /// in the store. Only the first call counts.
    pub fn tell_of_own_acts(&self, told: impl Fn(i64, &Entry) + Send + Sync + 'static) {
        let _ = self.own_acts.set(Box::new(told));
    }

    /// What a continuous experiment has just written down.
    pub(crate) fn acted(&self, id: i64, entries: &[Entry]) {
        if let Some(told) = self.own_acts.get() {
            for entry in entries.iter().filter(|it| it.is_own_act()) {
                told(id, entry);
            }
        }
    }

    /// Lets experiments be measured by workers on other hosts, of whom a silence of `lease` means
    /// that they are gone. The caller sees to it that [`run_workers`](Self::run_workers) runs and
    /// that [`answer`](Self::answer) is asked.
    #[must_use]
    pub fn with_workers(mut self, lease: Duration) -> Self {
        self.workers.set_lease(lease);
        self
    }

    /// The workers on other hosts.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Answers a worker.
    pub fn answer(&self, request: Request) -> Reply {
        if !self.is_active() {
            return Reply::Trouble("this server does not have the store yet".into());
        }
        self.workers.answer_and_wake(&self.store, request)
    }

    /// Whether it has the store's lock, and has seen to what an earlier coordinator left.
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where the host's journal is.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// What is measured now.
    pub fn progress(&self) -> Option<Progress> {
        self.present()
            .as_ref()
            .map(|present| present.progress.clone())
    }

    /// What keeps the coordinator from its work, or will keep a user's command from it: a database
    /// that was moved away, a disk that is full, or what is in force without its experiment. The
    /// space that a rollback needs is taken again as soon as there is some.
    pub fn trouble(&self) -> Option<String> {
        let in_place = || self.store.check_in_place().err().map(|it| it.to_string());
        let own = self.own_trouble().or_else(in_place);
        let own = own.or_else(|| self.reserve.keep());
        own.or_else(|| self.unknown_promotion().ok().flatten())
    }

    fn own_trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock();
        trouble.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the store answers; for a watchdog.
    pub fn is_alive(&self) -> bool {
        self.store.next_in_queue().is_ok()
    }

    pub(crate) fn present(&self) -> MutexGuard<'_, Option<Present>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There may be something to do.
    pub(crate) fn nudge(&self) {
        self.wake.notify_all();
        self.workers.wake_all();
    }

    /// Asks [`run`](Self::run) to return; the evaluation that is measured will be repeated after
    /// the next start.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        if let Some(present) = &*self.present() {
            present.interrupt.raise(SIGTERM);
        }
        self.nudge();
    }

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
                    *self.present() = None;
                    let message = error.to_string();
                    if self.own_trouble().as_ref() != Some(&message) {
                        report(&message);
                    }
                    self.set_trouble(Some(message));
                    TROUBLE_WAIT
                }
            };
            let present = self.present();
            drop(self.wake.wait_timeout(present, wait));
        }
        Ok(())
    }

    /// Does something with the disk space that is kept for rollbacks.
    pub fn lend_reserve<T>(&self, work: impl FnOnce() -> T) -> T {
        let _lent = self.reserve.lend();
        work()
    }

    /// Whether it has been asked to [`end`](Self::end).
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    fn set_trouble(&self, message: Option<String>) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *trouble != message {
            *trouble = message;
            self.store.touch();
        }
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

    /// One sitting of the experiment whose turn it is; whether there was one.
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
        if row.spec.mode == Mode::Once
            && let Some(why) = self.bars_measuring(&row)?
        {
            self.store.sat(id, State::Paused, Some(&why), &row.report)?;
            return Ok(true);
        }
        let spec = match self.checked(&row) {
            Ok(spec) => spec,
            Err(error) => {
                self.store
                    .sat(id, State::Failed, Some(&error.to_string()), &row.report)?;
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
            Mode::Once => row.promotion.is_some(),
            Mode::Continuous => self.store.continuous(row.id)?.is_some(),
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
            let checked = if may_miss_templates {
                tuner::spec::check_begun(text, &path, &self.roots)
            } else {
                tuner::spec::check(text, &path, &self.roots)
            };
            Ok::<_, Error>(checked?)
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

    /// Why an experiment whose sitting was cut off waits.
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
        *self.present() = Some(Present {
            interrupt: interrupt.clone(),
            progress: Progress {
                experiment: id,
                ..Progress::default()
            },
        });
        // An end, a rollback or a stop that was asked for just before had nobody to tell.
        if self.is_ending()
            || self.is_rolling_back()
            || self.store.experiment(id)?.wish == Some(Wish::Stop)
        {
            interrupt.raise(SIGTERM);
        }
        if spec.continuous.is_some() {
            return self.sit_continuous(id, spec, &interrupt, live);
        }
        let mut sitting = Sitting::new(self, id);
        let mut live = live.after(sitting.elapsed_s()?);
        let (mut report, error) = experiment::run_to_end(spec, &mut live, &mut sitting);
        let restored = live.restore();
        *self.present() = None;
        let restored = restored?;
        if let Some(error @ TunerError::Ledger(_)) = error {
            return Err(Error::Unavailable(error.to_string()));
        }
        let wish = self.store.experiment(id)?.wish;
        let is_stopped = wish == Some(Wish::Stop);
        report.evaluations.clear();
        for arm in &mut report.verification {
            arm.runs_blocks.clear();
        }
        let (mut state, mut message) = end_of(&mut report, error.as_ref(), is_stopped);
        match state {
            State::Queued => message = self.why_queued(),
            // Its user has not paused it, but the queue.
            State::Paused if wish != Some(Wish::Pause) => state = State::Queued,
            _ => {}
        }
        report.keep_verified(&row.report);
        self.store.sat(id, state, message.as_deref(), &report)?;
        if restored.is_complete() {
            return Ok(());
        }
        Err(Error::Conflict(
            "not every knob could be restored: run `slackline restore`; it restores what it can and names the rest".into(),
        ))
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

/// What a sitting leaves its experiment as.
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
