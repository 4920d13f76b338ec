//! The store as the ledger of one session of an experiment.

use std::time::{Duration, Instant};

use bayes_opt::Configuration;
use tuner::TunerError;
use tuner::continuous::{Alert, Task, ask};
use tuner::evaluation::Outcome;
use tuner::ledger::{self, Ledger, LedgerEvent, ResumeState};
use tuner::report::{EvaluationRecord, Failure};

use crate::coordinator::{Coordinator, Progress};
use crate::error::Error;
use crate::store::{RunningEvaluation, UserRequest};

pub(crate) struct RunSession<'a> {
    coordinator: &'a Coordinator,
    id: i64,
    /// The first enqueued configuration, as it was offered last.
    offered: Option<Configuration>,
    /// The evaluation that is measured.
    number: Option<usize>,
    /// The search of a continuous experiment.
    task: Option<Task>,
    /// When that search makes room. A clock that is set back does not move it.
    until: Option<Instant>,
}

impl<'a> RunSession<'a> {
    pub(crate) fn new(coordinator: &'a Coordinator, id: i64) -> Self {
        Self {
            coordinator,
            id,
            offered: None,
            number: None,
            task: None,
            until: None,
        }
    }

    /// The ledger of one search of a continuous experiment.
    pub(crate) fn of_task(coordinator: &'a Coordinator, id: i64, task: Task) -> Self {
        let left = task.until.duration_since(jiff::Timestamp::now());
        let left = Duration::try_from(left).unwrap_or_default();
        Self {
            task: Some(task),
            until: Instant::now().checked_add(left),
            ..Self::new(coordinator, id)
        }
    }

    /// A search of a continuous experiment has to make room: for a round, for the end of the hours,
    /// for an alert.
    fn must_pause(&self) -> bool {
        self.task.as_ref().is_some_and(|task| {
            self.until.is_some_and(|until| Instant::now() >= until)
                || jiff::Timestamp::now() >= task.until
                || task
                    .alert
                    .as_ref()
                    .is_some_and(|alert| ask(alert) != Alert::Quiet)
        })
    }

    /// How long the evaluations of earlier sessions took.
    pub(crate) fn elapsed_s(&self) -> Result<f64, Error> {
        let evaluations = self.coordinator.store.evaluations(self.id, 1)?;
        Ok(evaluations.iter().map(|row| row.record.duration_s).sum())
    }

    fn progress(&self, change: impl FnOnce(&mut Progress)) {
        if let Some(current_run) = &mut *self.coordinator.current_run() {
            change(&mut current_run.progress);
        }
        self.coordinator.store.touch();
    }

    fn write(&mut self, event: &LedgerEvent<'_>) -> Result<(), Error> {
        let (store, id) = (&self.coordinator.store, self.id);
        match event {
            LedgerEvent::Started {
                number,
                configuration,
                ..
            } => {
                let running = RunningEvaluation {
                    number: *number,
                    configuration: (*configuration).clone(),
                };
                let is_from_queue = self.offered.take().as_ref() == Some(configuration);
                store.started(id, &running, is_from_queue)?;
                self.number = Some(*number);
                self.progress(|progress| {
                    progress.evaluation = Some(*number);
                    progress.blocks = 0;
                });
            }
            LedgerEvent::Block { done, of, block } => {
                if let Some(number) = self.number {
                    store.add_block(id, number, *done, block)?;
                }
                self.progress(|progress| (progress.blocks, progress.of_blocks) = (*done, *of));
            }
            LedgerEvent::Ended { record, signal } => {
                store.ended(id, &self.outcome(record, signal.is_some())?)?;
                self.number = None;
                if let Some(current_run) = &mut *self.coordinator.current_run() {
                    current_run.progress.evaluation = None;
                    // One that came too late is not for the next.
                    current_run.interrupt.evaluation_is_over();
                }
            }
            LedgerEvent::Planned(plan) => store.set_plan(id, plan)?,
            LedgerEvent::Verifying { arm, run, of } => self.progress(|progress| {
                progress.verifying = Some(format!("{arm}, run {run} of {of}"));
                progress.blocks = 0;
            }),
            LedgerEvent::Verified(run) => store.add_run(id, run)?,
        }
        Ok(())
    }

    /// As it is kept: what a signal cut off ended with its experiment, or is repeated after the
    /// next start.
    fn outcome(
        &self,
        record: &EvaluationRecord,
        by_signal: bool,
    ) -> Result<EvaluationRecord, Error> {
        let mut record = record.clone();
        if record.outcome == Outcome::Killed && by_signal {
            if self.coordinator.store.experiment(self.id)?.wish == Some(UserRequest::Stop) {
                record.reason = Some("the experiment ended".into());
            } else {
                record.outcome = Outcome::Failed;
                record.failure = Some(Failure::Lost);
                record.reason = Some(match self.coordinator.is_ending() {
                    true => "`slackline serve` ended while it was measured".into(),
                    false => "a rollback interrupted it".into(),
                });
            }
        }
        Ok(record)
    }

    fn read_kept(&self) -> Result<ResumeState, Error> {
        let (store, id) = (&self.coordinator.store, self.id);
        let row = store.experiment(id)?;
        let evaluations = store.evaluations(id, 1)?.into_iter();
        Ok(ResumeState {
            started: jiff::Timestamp::from_millisecond(row.created_ms).ok(),
            evaluations: evaluations.map(|row| row.record).collect(),
            plan: row.plan,
            runs: store.runs(id)?,
            drifts: self
                .task
                .as_ref()
                .map(|task| task.drifts.clone())
                .unwrap_or_default(),
            in_force: self.task.as_ref().and_then(|task| task.in_force.clone()),
        })
    }

    fn read_wish(&mut self) -> Result<ledger::RunControl, Error> {
        let store = &self.coordinator.store;
        let row = store.experiment(self.id)?;
        let mut budget = row.budget().clone();
        if row.wish == Some(UserRequest::Verify) {
            budget.evaluations = 0;
        }
        if let Some(task) = &self.task {
            budget.evaluations += task.from;
            // It counts from the first search; how long each takes is bounded by its evaluations.
            budget.wall_time_min = None;
        }
        self.offered = store.queue(self.id)?.into_iter().next();
        Ok(ledger::RunControl {
            budget: Some(budget),
            queued: self.offered.clone(),
            pause: row.wish == Some(UserRequest::Pause)
                || store.is_queue_paused()?
                || self.must_pause(),
        })
    }
}

impl Ledger for RunSession<'_> {
    fn kept(&mut self) -> Result<ResumeState, TunerError> {
        Ok(self.read_kept()?)
    }

    fn wish(&mut self) -> Result<ledger::RunControl, TunerError> {
        Ok(self.read_wish()?)
    }

    fn note(&mut self, event: &LedgerEvent<'_>) -> Result<(), TunerError> {
        Ok(self.write(event)?)
    }
}
