//! The coordinator: what its thread, its users and its workers have in common.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use host::Roots;
use schemars::JsonSchema;
use serde::Serialize;
use tuner::continuous::HistoryEntry;
use tuner::live::Changed;
use tuner::process::Interrupt;
use tuner::protocol::{Reply, WorkerMessage};

use crate::lock::lock;
use crate::reserve::Reserve;
use crate::store::Store;
use crate::workers::Workers;

/// What the signal that ends a process is (signal(7)).
pub(crate) const SIGTERM: i32 = 15;

/// Runs experiments, and changes them for their users.
pub struct Coordinator {
    pub(crate) store: Store,
    pub(crate) state_dir: PathBuf,
    pub(crate) reserve: Reserve,
    pub(crate) roots: Roots,
    current_run: Mutex<Option<CurrentRun>>,
    pub(crate) wake: Condvar,
    is_ending: AtomicBool,
    /// It has the store's lock, and has seen to what an earlier coordinator left.
    pub(crate) is_active: AtomicBool,
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
type OwnActs = Box<dyn Fn(i64, &HistoryEntry) + Send + Sync>;

/// A rollback that has happened on the host while the store could not be written.
#[derive(Clone, Debug)]
pub(crate) struct UntoldRollback {
    pub(crate) experiment: i64,
    pub(crate) changed: Changed,
}

/// The experiment that is measured now.
pub(crate) struct CurrentRun {
    pub(crate) interrupt: Interrupt,
    pub(crate) progress: Progress,
}

/// The progress of the experiment that is being measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Progress {
    /// Number of the experiment.
    pub experiment: i64,
    /// Number of the evaluation that is being measured.
    pub evaluation: Option<usize>,
    /// Pairs of blocks of the evaluation, or of the verification's run, that are done.
    pub blocks: usize,
    /// Pairs of blocks that are planned.
    pub of_blocks: usize,
    /// The arm and the run of the verification that are being measured.
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
            current_run: Mutex::new(None),
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
    pub fn tell_of_own_acts(&self, told: impl Fn(i64, &HistoryEntry) + Send + Sync + 'static) {
        let _ = self.own_acts.set(Box::new(told));
    }

    /// What a continuous experiment has just written down.
    pub(crate) fn acted(&self, id: i64, entries: &[HistoryEntry]) {
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
    pub fn answer(&self, request: WorkerMessage) -> Reply {
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
        self.current_run()
            .as_ref()
            .map(|current_run| current_run.progress.clone())
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

    pub(crate) fn own_trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    /// Whether the store answers; for a watchdog.
    pub fn is_alive(&self) -> bool {
        self.store.next_in_queue().is_ok()
    }

    pub(crate) fn current_run(&self) -> MutexGuard<'_, Option<CurrentRun>> {
        lock(&self.current_run)
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
        if let Some(current_run) = &*self.current_run() {
            current_run.interrupt.raise(SIGTERM);
        }
        self.nudge();
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

    pub(crate) fn set_trouble(&self, message: Option<String>) {
        let mut trouble = lock(&self.trouble);
        if *trouble != message {
            *trouble = message;
            self.store.touch();
        }
    }
}
