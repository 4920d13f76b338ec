//! A rollback by hand, which always works: it interrupts what is measured, by this server or by a
//! command, waits in no queue, and needs no more disk than is reserved for it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use host::{GivesWay, HostError, Lock};
use tuner::TunerError;
use tuner::live::{Changed, Live};
use tuner::process::Interrupt;
use tuner::spec::{CheckedSpec, ExperimentMode};

use crate::continuous::ROLLED_BACK;
use crate::coordinator::{Coordinator, UntoldRollback};
use crate::error::Error;
use crate::lock::lock;
use crate::reserve::Lent;
use crate::store::{ExperimentRow, Promotion, State, UserRequest};

/// How long what is measured may take to end: both services are stopped, with their grace, and the
/// host is put back.
const INTERRUPT_MAX: Duration = Duration::from_secs(120);
/// How long any other command may take to end: `apply` and `restore` are over soon.
const OTHER_MAX: Duration = Duration::from_secs(10);
/// How soon the host's lock is tried again.
const LOOK: Duration = Duration::from_millis(20);

/// Keeps everything else from being measured for as long as it lives.
struct UnderWay<'a> {
    coordinator: &'a Coordinator,
    _lent: Lent<'a>,
}

impl<'a> UnderWay<'a> {
    fn begin(coordinator: &'a Coordinator) -> Self {
        coordinator.rollbacks.fetch_add(1, Ordering::SeqCst);
        if let Some(current_run) = &*coordinator.current_run() {
            current_run
                .interrupt
                .raise(rustix::process::Signal::TERM.as_raw());
        }
        coordinator.nudge();
        Self {
            coordinator,
            _lent: coordinator.reserve.lend(),
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.coordinator.rollbacks.fetch_sub(1, Ordering::SeqCst);
        self.coordinator.nudge();
    }
}

impl Coordinator {
    pub(crate) fn is_rolling_back(&self) -> bool {
        self.rollbacks.load(Ordering::SeqCst) > 0
    }

    /// Puts back what the experiment's promotion has changed: files as they were before it, and the
    /// values that knobs had when the experiment was made. What is measured is interrupted, and
    /// goes on afterwards. A command that measures is ended. A continuous experiment that is rolled
    /// back is paused. What cannot be restored keeps nothing else from being restored; it stays on
    /// record, and rolling back again tries it alone.
    ///
    /// # Errors
    /// [`Error::Conflict`] where nothing was promoted, or another command has the host that cannot
    /// be interrupted.
    pub fn roll_back(&self, id: i64) -> Result<Changed, Error> {
        self.to_be_rolled_back(id)?;
        self.must_be_active()?;
        let row = self.store.experiment(id)?;
        if row.spec.mode == ExperimentMode::Continuous {
            // So that its session ends as paused. On a full disk that fails, and is repeated when
            // the rollback is written down.
            let _ = self.pause_rolled_back(id);
        }
        let under_way = UnderWay::begin(self);
        let spec = self.checked(&row)?;
        let mut ended = BTreeMap::new();
        let mut live = self.host_for_rollback(&spec, &mut ended)?;
        // Somebody else, or the experiment itself, may have rolled it back until the host was free.
        let row = self.to_be_rolled_back(id)?;
        let rest = row.promotion.iter().flat_map(|it| it.left.clone());
        let rolled_back = live.roll_back_by_hand(&rest.collect::<Vec<_>>());
        // After a refusal, what was applied so far is taken back; else there is nothing to take
        // back.
        let restored = live.restore();
        let mut changed = match rolled_back {
            Ok(changed) => changed,
            Err(error) => {
                restored?;
                return Err(Error::Conflict(error.to_string()));
            }
        };
        restored?;
        changed.done.steps.extend(ended.into_values());
        // Until the store is told, nothing else begins, and nobody else rolls back.
        match self.tell_of(&row, &changed) {
            Err(Error::Unavailable(_)) => self.untold().push(UntoldRollback {
                experiment: id,
                changed: changed.clone(),
            }),
            told => told?,
        }
        drop(live);
        drop(under_way);
        Ok(changed)
    }

    /// The continuous experiments in the queue, which may promote as soon as nothing of this
    /// experiment is in force any more: none while the queue is paused.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn would_promote(&self, id: i64) -> Result<Vec<i64>, Error> {
        if self.store.is_queue_paused()? {
            return Ok(Vec::new());
        }
        let others = self.store.experiments()?.into_iter();
        let others = others.filter(|it| it.id != id && it.always_on);
        let others =
            others.filter(|it| !matches!(it.wish, Some(UserRequest::Pause | UserRequest::Stop)));
        let active = others.filter(|it| matches!(it.state, State::Queued | State::Running));
        Ok(active.map(|it| it.id).collect())
    }

    /// The experiment, if something of it is to be rolled back.
    fn to_be_rolled_back(&self, id: i64) -> Result<ExperimentRow, Error> {
        let row = self.store.experiment(id)?;
        match self.is_to_be_rolled_back(&row)? && !self.is_rollback_untold(id) {
            true => Ok(row),
            false => Err(Error::Conflict(format!(
                "nothing of experiment {id} is in force: there is nothing to roll back"
            ))),
        }
    }

    pub(crate) fn is_to_be_rolled_back(&self, row: &ExperimentRow) -> Result<bool, Error> {
        let state = self.store.continuous(row.id)?;
        Ok(row.promotion.is_some() || state.is_some_and(|state| state.promoted.is_some()))
    }

    /// Whether a rollback of this experiment has happened that the store does not know yet.
    pub fn is_rollback_untold(&self, id: i64) -> bool {
        self.untold().iter().any(|untold| untold.experiment == id)
    }

    fn untold(&self) -> std::sync::MutexGuard<'_, Vec<UntoldRollback>> {
        lock(&self.untold)
    }

    /// Writes down the rollbacks that could not be written when they happened.
    pub(crate) fn tell_of_rollbacks(&self) -> Result<(), Error> {
        loop {
            let Some(untold) = self.untold().first().cloned() else {
                return Ok(());
            };
            let row = self.store.experiment(untold.experiment)?;
            self.tell_of(&row, &untold.changed)?;
            self.untold().remove(0);
        }
    }

    /// Writes a rollback down, and pauses a continuous experiment, which would promote again. One
    /// whose row was committed although the store did not say so is not written down twice.
    pub(crate) fn tell_of(&self, row: &ExperimentRow, changed: &Changed) -> Result<(), Error> {
        match row.spec.mode {
            ExperimentMode::Once => {
                let rest = Promotion::rest(jiff::Timestamp::now(), changed);
                self.store.set_promotion(row.id, rest.as_ref())
            }
            ExperimentMode::Continuous => {
                self.pause_rolled_back(row.id)?;
                match self.is_to_be_rolled_back(&self.store.experiment(row.id)?)? {
                    true => self.keep_rollback_by_hand(row, changed),
                    false => Ok(()),
                }
            }
        }
    }

    fn pause_rolled_back(&self, id: i64) -> Result<(), Error> {
        self.store.transition(id, |row| {
            Ok(match row.state {
                State::Queued => (State::Paused, None, Some(ROLLED_BACK.into())),
                State::Running => (row.state, Some(UserRequest::Pause), row.message.clone()),
                state => (state, row.wish, row.message.clone()),
            })
        })
    }

    /// The host, as soon as what was measured has let go of it, with nothing left to undo. Commands
    /// that were ended for it go into `ended`, by their process ids.
    fn host_for_rollback<'a>(
        &self,
        spec: &'a CheckedSpec,
        ended: &mut BTreeMap<u32, String>,
    ) -> Result<Live<'a>, Error> {
        let begun = Instant::now();
        loop {
            match Live::new(spec, &self.state_dir, Interrupt::default()) {
                Ok(live) if live.left_over().is_empty() => return Ok(live),
                // Of a run that was killed. A rollback forgets what there is to undo, so that has
                // to be undone before.
                Ok(live) => {
                    drop(live);
                    if let Err(error) = self.undo(&|_| ()) {
                        let mut live = Live::new(spec, &self.state_dir, Interrupt::default())?;
                        // The rollback tells the service itself.
                        return match live.forget_to_tell() {
                            true => Ok(live),
                            false => Err(error),
                        };
                    }
                }
                Err(TunerError::Host(error @ HostError::Locked { .. })) => {
                    let is_ours = matches!(&error, HostError::Locked { pid, .. } if *pid == std::process::id());
                    let most = match is_ours || self.end_command(ended) {
                        true => INTERRUPT_MAX,
                        false => OTHER_MAX,
                    };
                    if begun.elapsed() > most {
                        return Err(Error::Conflict(self.who_has_the_host(&error)));
                    }
                    std::thread::sleep(LOOK);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the command that has the host, if it measures. Whether it was asked to end, or nobody
    /// has the host any more.
    fn end_command(&self, ended: &mut BTreeMap<u32, String>) -> bool {
        let is_asked = GivesWay::holder(&self.state_dir).is_some_and(|command| {
            let pid = command.pid();
            if !ended.contains_key(&pid) && command.end().is_ok() {
                let text = format!("ended {command}, which was measuring on this host");
                ended.insert(pid, text);
            }
            ended.contains_key(&pid)
        });
        is_asked || Lock::holder(&self.state_dir).is_none()
    }
}
