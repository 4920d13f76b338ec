//! A session of an experiment that workers on other hosts measure: several evaluations at once,
//! each taken in as it ends.
//!
//! Each session has a thread of its own, so that what one experiment asks its optimiser keeps no
//! other waiting. What is outstanding stands in the store; a session that begins anew, after a
//! restart or trouble with the store, takes up from there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bayes_opt::Configuration;
use tuner::Fault;
use tuner::TunerError;
use tuner::assignment::{Assignment, Purpose};
use tuner::bench::{Arm, Bench};
use tuner::evaluation::Block;
use tuner::experiment::{self, TuningSearch};
use tuner::ledger::{Ledger, LedgerEvent, PlannedArm, ResumeState};
use tuner::protocol::{Ticket, WorkOrder};
use tuner::report::EvaluationRecord;
use tuner::spec::{CheckedSpec, WorkersSpec};
use tuner::verification;

use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::run_session::RunSession;
use crate::store::{Assigned, ExperimentRow, RunningEvaluation, State, UserRequest};
use crate::workers::Bus;

/// How often a session looks for wishes, and the coordinator for experiments, that nobody told it
/// of.
const LOOK: Duration = Duration::from_secs(1);

/// Experiments that are measured by workers at once; the others wait in the queue.
const SESSIONS_MAX: usize = 256;

impl Coordinator {
    /// Gives experiments to workers, until [`end`](Self::end); returns at once where there is no
    /// bus. To be called beside [`run`](Self::run), from another thread.
    pub fn run_workers(&self, bus: &dyn Bus, report: &(dyn Fn(&str) + Sync)) {
        std::thread::scope(|scope| {
            while !self.is_ending() {
                let waiting = match self.is_active() {
                    true => self.store.waiting_for_workers().unwrap_or_default(),
                    false => Vec::new(),
                };
                for id in waiting {
                    if self.workers.sessions() >= SESSIONS_MAX {
                        break;
                    }
                    if !self.workers.begin_session(id, std::thread::current()) {
                        continue;
                    }
                    let session = std::thread::Builder::new().name(format!("experiment {id}"));
                    let spawned = session.spawn_scoped(scope, move || {
                        self.workers.enter_session(id);
                        self.sit_with_workers(id, bus, report);
                        self.workers.end_session(id);
                    });
                    if let Err(error) = spawned {
                        self.workers.end_session(id);
                        report(&format!(
                            "the thread that gives experiment {id} to workers cannot be started, and is tried again: {error}"
                        ));
                    }
                }
                for complaint in self.workers.new_complaints() {
                    report(&complaint);
                }
                std::thread::park_timeout(LOOK);
            }
        });
    }

    /// Until the experiment rests, or the coordinator ends. Trouble with the store is waited out.
    fn sit_with_workers(&self, id: i64, bus: &dyn Bus, report: &(dyn Fn(&str) + Sync)) {
        let mut said = String::new();
        while !self.is_ending() {
            let sat = self.begin_remote(id).and_then(|begun| match begun {
                Some((row, spec)) => RemoteSession::new(self, &row, &spec, bus)?.run(),
                None => Ok(()),
            });
            match sat {
                Ok(()) => return,
                Err(Error::Superseded | Error::Corrupt(_) | Error::NotFound(_)) => return,
                Err(error) => {
                    let message = format!("experiment {id}: {error}");
                    if said != message {
                        report(&message);
                        said = message;
                    }
                    std::thread::park_timeout(LOOK);
                }
            }
        }
    }

    fn begin_remote(&self, id: i64) -> Result<Option<(ExperimentRow, CheckedSpec)>, Error> {
        let row = self.store.experiment(id)?;
        let spec = match self.checked(&row) {
            Ok(spec) => spec,
            Err(error) => {
                self.store.withdraw_all(id, "its specification is wrong")?;
                let message = error.to_string();
                self.store
                    .session_ended(id, State::Failed, Some(&message), &row.report)?;
                return Ok(None);
            }
        };
        let begun = self.store.transition(id, |row| match row.state {
            State::Queued | State::Running => Ok((State::Running, row.wish, None)),
            _ => Err(Error::Conflict(String::new())),
        });
        match begun {
            Err(Error::Conflict(_)) => Ok(None),
            begun => begun.map(|()| Some((row, spec))),
        }
    }
}

/// What one look at the store led to.
enum Next {
    /// To wait for a worker or a wish.
    Wait,
    /// The experiment rests.
    Rests,
}

struct RemoteSession<'a> {
    coordinator: &'a Coordinator,
    bus: &'a dyn Bus,
    spec: &'a CheckedSpec,
    workers: WorkersSpec,
    id: i64,
    class: String,
    search: TuningSearch,
    /// Evaluations of the search that are outstanding.
    outstanding: BTreeMap<usize, Configuration>,
    last_number: usize,
    /// How long something of it was measured in this session: time in which no worker is there is
    /// none of the budget's.
    measured: Duration,
    looked: Instant,
    /// How long earlier sessions took, about.
    before_s: f64,
    swept: Option<Instant>,
    message: Option<String>,
}

impl<'a> RemoteSession<'a> {
    fn new(
        coordinator: &'a Coordinator,
        row: &ExperimentRow,
        spec: &'a CheckedSpec,
        bus: &'a dyn Bus,
    ) -> Result<Self, Error> {
        let workers = spec.written().workers.clone().unwrap_or_default();
        let store = &coordinator.store;
        let rows = store.evaluations(row.id, 1)?;
        let last_number = rows.last().map_or(0, |row| row.record.number);
        let (running, ended): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.is_running);
        let ended: Vec<EvaluationRecord> = ended.into_iter().map(|row| row.record).collect();
        let measured_s: f64 = ended.iter().map(|record| record.duration_s).sum();
        let mut kept = ResumeState {
            evaluations: ended,
            ..ResumeState::default()
        };
        let mut search = TuningSearch::resume(spec, &mut kept)?;
        let mut outstanding = BTreeMap::new();
        for row in running {
            search.hold(&row.record.configuration)?;
            outstanding.insert(row.record.number, row.record.configuration);
        }
        Ok(Self {
            coordinator,
            bus,
            spec,
            id: row.id,
            class: coordinator.workers.open_class(&workers.labels),
            search,
            outstanding,
            last_number,
            measured: Duration::ZERO,
            looked: Instant::now(),
            before_s: measured_s / workers.at_once as f64,
            swept: None,
            message: None,
            workers,
        })
    }

    fn elapsed_s(&self) -> f64 {
        self.before_s + self.measured.as_secs_f64()
    }

    fn run(mut self) -> Result<(), Error> {
        while !self.coordinator.is_ending() {
            match self.look() {
                Ok(Next::Wait) => std::thread::park_timeout(LOOK),
                Ok(Next::Rests) => return Ok(()),
                // What the loop itself gives up for.
                Err(Error::Tuner(error)) => return self.fail(&error),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn look(&mut self) -> Result<Next, Error> {
        let store = &self.coordinator.store;
        let row = store.experiment(self.id)?;
        // What somebody has begun comes to its end; nothing else is given out.
        if store.is_queue_paused()? && row.wish != Some(UserRequest::Stop) {
            let mut assigned = store.assignments(self.id)?;
            if assigned.iter().any(|it| it.attempt == 0) {
                store.withdraw_unclaimed(self.id, 0)?;
                store.withdraw_unclaimed(self.id, row.verification)?;
                assigned = store.assignments(self.id)?;
            }
            self.take(&assigned)?;
            return Ok(Next::Wait);
        }
        if row.wish == Some(UserRequest::Stop) {
            store.withdraw_all(self.id, "the experiment ended")?;
            let mut report = row.report;
            report.sentence = "A user stopped the experiment. There is no result.".into();
            store.session_ended(self.id, State::Stopped, None, &report)?;
            return Ok(Next::Rests);
        }
        // A pause, or a verification, comes when those end that somebody has begun.
        let unwanted = match (row.wish, &row.plan) {
            (Some(UserRequest::Pause | UserRequest::Verify), None) => Some(0),
            (Some(UserRequest::Pause), Some(_)) => Some(row.verification),
            _ => None,
        };
        let mut assigned = store.assignments(self.id)?;
        if let Some(verification) = unwanted
            && assigned.iter().any(|it| it.attempt == 0)
        {
            store.withdraw_unclaimed(self.id, verification)?;
            assigned = store.assignments(self.id)?;
        }
        let outstanding = self.outstanding.len();
        self.take(&assigned)?;
        let workers = &self.coordinator.workers;
        let since = std::mem::replace(&mut self.looked, Instant::now()).elapsed();
        // A look follows each result at once, and its lease is gone by then.
        if workers.is_measured(self.id) || self.outstanding.len() < outstanding {
            self.measured += since;
        }
        if let Some(reason) = workers.given_back_by_all(self.id, &self.workers.labels) {
            return Err(TunerError::NoWorker { reason }.into());
        }
        if row.plan.is_none() {
            self.ask(&row)?;
            if !self.outstanding.is_empty() {
                return self.wait(&row);
            }
            if row.wish == Some(UserRequest::Pause) {
                return self.rest();
            }
            let plan = self.search.plan(self.spec);
            return self.verify(&plan);
        }
        let of_this = |assigned: &Assigned| assigned.ticket.verification == row.verification;
        if assigned.iter().any(of_this) {
            return self.wait(&row);
        }
        if row.wish == Some(UserRequest::Pause) {
            return self.rest();
        }
        // It was stopped in the middle, or what there is does not decide it.
        let plan = row.plan.clone().unwrap_or_default();
        self.verify(&plan)
    }

    /// Gives out the runs of a verification that are due, or comes to its end.
    fn verify(&mut self, plan: &[PlannedArm]) -> Result<Next, Error> {
        let store = &self.coordinator.store;
        let due = verification::due(self.spec, plan, &store.runs(self.id)?);
        store.assign_verification(self.id, plan, &due)?;
        if due.is_empty() {
            return self.rest();
        }
        // Published at once.
        self.swept = None;
        let row = store.experiment(self.id)?;
        self.wait(&row)
    }

    /// Takes in what has ended since the last look.
    fn take(&mut self, assigned: &[Assigned]) -> Result<(), Error> {
        let search = assigned.iter().filter(|it| it.ticket.verification == 0);
        let still: Vec<usize> = search.map(|it| it.ticket.number).collect();
        let ended: Vec<usize> = self
            .outstanding
            .keys()
            .filter(|number| !still.contains(number))
            .copied()
            .collect();
        for number in ended {
            let row = self.coordinator.store.evaluation(self.id, number)?;
            self.outstanding.remove(&number);
            self.coordinator.workers.forget(evaluation(self.id, number));
            let record = EvaluationRecord {
                blocks: Vec::new(),
                ..row.record
            };
            let workers = &self.coordinator.workers;
            let able = workers.able_with(self.id, &self.workers.labels);
            self.search.take(record, self.workers.at_once, &able)?;
        }
        Ok(())
    }

    /// Gives out evaluations, as many at once as there may be.
    fn ask(&mut self, row: &ExperimentRow) -> Result<(), Error> {
        let store = &self.coordinator.store;
        if matches!(row.wish, Some(UserRequest::Pause | UserRequest::Verify)) {
            return Ok(());
        }
        let budget = row.budget();
        let end_s = budget
            .wall_time_min
            .map_or(f64::INFINITY, |minutes| minutes * 60.0);
        // One more than there are workers, so that none waits; those that nobody takes would only
        // be older.
        let there = self.coordinator.workers.count_with(&self.workers.labels);
        let at_once = self.workers.at_once.min(there + 1);
        while self.outstanding.len() < at_once
            && self.search.counted() + self.outstanding.len() < budget.evaluations
            && self.elapsed_s() < end_s
            && !self.coordinator.is_ending()
        {
            let queued = store.queue(self.id)?.into_iter().next();
            let configuration = match self.search.next(self.spec, queued.clone()) {
                Ok(Some(configuration)) => configuration,
                // Everything was tried. Where no result is waited for, the search has ended.
                Ok(None) => break,
                // Everything that is left is being measured.
                Err(TunerError::Optimizer(bayes_opt::Error::Exhausted))
                    if !self.outstanding.is_empty() =>
                {
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            // One by hand, or again, was not asked for by the optimiser.
            self.search.hold(&configuration)?;
            let incumbent = self.search.incumbent();
            let running = RunningEvaluation {
                number: self.last_number + 1,
                configuration: configuration.clone(),
            };
            let is_from_queue = queued.as_ref() == Some(&configuration);
            let ticket = store.assign_evaluation(self.id, &running, is_from_queue, incumbent)?;
            self.last_number += 1;
            self.outstanding.insert(self.last_number, configuration);
            if !self.publish(row, ticket, incumbent) {
                break;
            }
        }
        Ok(())
    }

    /// Puts an order into the queue; one that cannot be put there now is put there by a later
    /// sweep.
    fn publish(&mut self, row: &ExperimentRow, ticket: Ticket, incumbent: Option<f64>) -> bool {
        let (purpose, arm) = match ticket.verification {
            0 => (
                Purpose::Search,
                self.outstanding.get(&ticket.number).map(|it| Arm {
                    configuration: it.clone(),
                    ..Arm::default()
                }),
            ),
            _ => (
                Purpose::Verification,
                row.plan
                    .iter()
                    .flatten()
                    .nth(ticket.arm)
                    .map(PlannedArm::arm),
            ),
        };
        let Some(arm) = arm else {
            return true;
        };
        let order = WorkOrder {
            ticket,
            spec: row.spec.clone(),
            dir: row.dir.clone().into(),
            assignment: Assignment {
                purpose,
                arm,
                incumbent,
            },
            made_ms: Some(row.created_ms),
        };
        match self.bus.publish(&self.class, &order) {
            Ok(()) => true,
            Err(message) => {
                self.message = Some(format!("waits for NATS: {message}"));
                false
            }
        }
    }

    /// Sees to it that what nobody measures lies in the queue, and says what is waited for.
    fn wait(&mut self, row: &ExperimentRow) -> Result<Next, Error> {
        let lease = self.coordinator.workers.lease();
        if self.swept.is_none_or(|at| at.elapsed() > lease / 2) {
            self.swept = Some(Instant::now());
            self.message = None;
            for assigned in self.coordinator.store.assignments(self.id)? {
                let is_idle = self.coordinator.workers.is_idle(assigned.ticket);
                if is_idle && !self.publish(row, assigned.ticket, assigned.incumbent) {
                    break;
                }
            }
            let labels = &self.workers.labels;
            if self.message.is_none() && self.coordinator.workers.count_with(labels) == 0 {
                self.message = Some(if labels.is_empty() {
                    "waits for a worker".into()
                } else {
                    format!("waits for a worker with the labels {labels:?}")
                });
            }
            if self.message.is_none() {
                self.message = self.coordinator.workers.complaint_with(self.id, labels);
            }
        }
        if row.message != self.message {
            // A message is no state: what its user has just wished stays.
            self.coordinator
                .store
                .say(self.id, self.message.as_deref())?;
        }
        Ok(Next::Wait)
    }

    /// Everything that was wanted is there: the loop itself makes a report of it, without measuring
    /// anything.
    fn rest(&mut self) -> Result<Next, Error> {
        let store = &self.coordinator.store;
        let mut nowhere = Nowhere {
            elapsed_s: self.elapsed_s(),
        };
        let mut session = ReportOnlySession(RunSession::new(self.coordinator, self.id));
        let (report, error) = experiment::run_to_end(self.spec, &mut nowhere, &mut session);
        let mut report = report.without_blocks();
        let row = store.experiment(self.id)?;
        if report.paused && row.wish != Some(UserRequest::Pause) {
            // Its user took the pause back meanwhile.
            return Ok(Next::Wait);
        }
        let (state, message) = crate::run::end_of(&mut report, error.as_ref(), false);
        report.keep_verified(&row.report);
        store.session_ended(self.id, state, message.as_deref(), &report)?;
        Ok(Next::Rests)
    }

    fn fail(&self, error: &TunerError) -> Result<(), Error> {
        let store = &self.coordinator.store;
        let message = error.to_string();
        store.withdraw_all(self.id, "the experiment ended")?;
        let mut report = experiment::begin(self.spec);
        report.error = Some(message.clone());
        report.duration_s = self.elapsed_s();
        report.keep_verified(&store.experiment(self.id)?.report);
        store.session_ended(self.id, State::Failed, Some(&message), &report)
    }
}

fn evaluation(id: i64, number: usize) -> Ticket {
    Ticket {
        experiment: id,
        verification: 0,
        arm: 0,
        number,
    }
}

/// The ledger of a session that only makes its report: whatever its user wishes meanwhile, nothing
/// is to be measured.
struct ReportOnlySession<'a>(RunSession<'a>);

impl Ledger for ReportOnlySession<'_> {
    fn kept(&mut self) -> Result<ResumeState, TunerError> {
        self.0.kept()
    }

    fn wish(&mut self) -> Result<tuner::ledger::RunControl, TunerError> {
        Ok(tuner::ledger::RunControl {
            pause: true,
            ..Default::default()
        })
    }

    fn note(&mut self, event: &LedgerEvent<'_>) -> Result<(), TunerError> {
        self.0.note(event)
    }
}

/// The bench of a host that measures nothing itself.
struct Nowhere {
    elapsed_s: f64,
}

impl Bench for Nowhere {
    fn begin(&mut self, _: &Arm) -> Result<(), Fault> {
        Err(Fault::Harness("it is measured by workers".into()))
    }

    fn block(&mut self, _: usize) -> Result<Block, Fault> {
        Err(Fault::Harness("it is measured by workers".into()))
    }

    fn end(&mut self) -> Result<(), TunerError> {
        Ok(())
    }

    fn elapsed_s(&self) -> f64 {
        self.elapsed_s
    }

    fn own_cpu_s(&self) -> f64 {
        0.0
    }
}

#[cfg(test)]
mod tests;
