//! The loop: ask, evaluate against the control, tell; then verify the winner on fresh runs.
//!
//! It decides and counts; whatever touches the world is behind [`Bench`].

use std::collections::{BTreeMap, BTreeSet};

use bayes_opt::{Configuration, Observation, Optimizer};

use crate::assignment::{self, Assignment, Purpose};
use crate::bench::{Arm, Bench};
use crate::crash_region::CrashRegion;
use crate::error::TunerError;
pub use crate::evaluation::BY_USER;
use crate::evaluation::{Measurement, Outcome};
use crate::ledger::{Drift, Ledger, LedgerEvent, PlannedArm, ResumeState, weight};
use crate::report::{EvaluationRecord, Failure, Finding, Recommended, Report};
use crate::spec::{CheckedSpec, ConstraintLimit, ObjectiveScale};
use crate::verification;

/// So many evaluations may fail in a row before the experiment gives up: a control that cannot be
/// measured three times running will not be measured the fourth time.
const FAILURES_IN_A_ROW: usize = 3;

/// How many configurations that are sure to crash are passed over for one that is not.
const SURE_CRASHES_MAX: usize = 8;

/// Runs an experiment to its verified end. A signal ends it early, with a report of what there is.
///
/// What the ledger has kept of earlier sessions is not measured again: the optimiser is told of it,
/// and the loop goes on from there. (What is asked next may differ from what an unbroken run would
/// have asked: the optimiser's random state is not kept, only what it was told.)
///
/// # Errors
/// The control cannot be measured, a knob cannot be put back, or the optimiser refuses.
pub fn run(
    spec: &CheckedSpec,
    bench: &mut dyn Bench,
    ledger: &mut dyn Ledger,
) -> Result<Report, TunerError> {
    let (report, error) = run_to_end(spec, bench, ledger);
    error.map_or(Ok(report), Err)
}

/// As [`run`], with the report of what there is even after an error: hours of measurements are not
/// thrown away.
pub fn run_to_end(
    spec: &CheckedSpec,
    bench: &mut dyn Bench,
    ledger: &mut dyn Ledger,
) -> (Report, Option<TunerError>) {
    let mut report = begin(spec);
    let error = fill(spec, bench, ledger, &mut report).err();
    report.error = error.as_ref().map(ToString::to_string);
    report.duration_s = bench.elapsed_s();
    let (own_cpu_s, evaluating_s) = report
        .evaluations
        .iter()
        .fold((0.0, f64::MIN_POSITIVE), |(cpu_s, wall_s), record| {
            (cpu_s + record.own_cpu_s, wall_s + record.duration_s)
        });
    report.own_cpu_cores = own_cpu_s / evaluating_s;
    report.sentence = report.say(&spec.objective().name());
    (report, error)
}

/// The report of an experiment in which nothing has happened yet.
#[must_use]
pub fn begin(spec: &CheckedSpec) -> Report {
    Report {
        name: spec.name.clone(),
        started: jiff::Timestamp::now(),
        duration_s: 0.0,
        own_cpu_cores: 0.0,
        version: env!("CARGO_PKG_VERSION").into(),
        machine: host::Machine::describe(&host::Roots::default()),
        spec: spec.written().clone(),
        dir: spec.dir.clone(),
        skipped: spec.skipped.clone(),
        control: spec.space.default_configuration(),
        recommended: None,
        evaluations: Vec::new(),
        verification: Vec::new(),
        finding: Finding::Unfinished,
        sentence: String::new(),
        interrupted: None,
        paused: false,
        imported: false,
        verified_here: false,
        state: None,
        error: None,
        promoted_before: Vec::new(),
        promoted: Vec::new(),
        settings: Vec::new(),
        templates: BTreeMap::new(),
        note: None,
    }
}

fn fill(
    spec: &CheckedSpec,
    bench: &mut dyn Bench,
    ledger: &mut dyn Ledger,
    report: &mut Report,
) -> Result<(), TunerError> {
    let mut kept = ledger.kept()?;
    if let Some(started) = kept.started {
        report.started = started;
    }
    let mut search = TuningSearch::resume(spec, &mut kept)?;
    let drifted = search.drifted();
    // A verification that has begun is about what was known then.
    let searched = match kept.plan {
        Some(_) => Ok(Ended::Enough),
        None => search.run(spec, bench, ledger),
    };
    report.evaluations = std::mem::take(&mut search.records);
    match searched? {
        Ended::Enough => {
            report.recommended = search.recommended();
            verification::run(spec, bench, ledger, kept, drifted, report)?;
        }
        Ended::Signal(signal) => report.interrupted = Some(signal),
        Ended::Paused => report.paused = true,
    }
    Ok(())
}

/// Why a search or verification went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// There was enough of it.
    Enough,
    /// A signal.
    Signal(i32),
    /// Its user, for now.
    Paused,
}

/// What a search knows and wants next. [`run`] drives it one evaluation at a time; whoever has
/// several measured at once drives it by [`next`](Self::next) and [`take`](Self::take).
pub struct TuningSearch {
    optimizer: Optimizer,
    records: Vec<EvaluationRecord>,
    /// What failed in a row, by the worker on whose host it did; `None` is this one.
    in_a_row: BTreeMap<Option<String>, InARow>,
    /// To be measured again before anything else.
    again: Vec<Configuration>,
    /// Configurations that could not be measured once already.
    unmeasured: Vec<Configuration>,
    /// What has drifted since earlier evaluations.
    drifts: Vec<Drift>,
    /// Where configurations are sure to crash.
    crash_region: CrashRegion,
}

#[derive(Clone, Copy, Default)]
struct InARow {
    /// Evaluations in a row in which the control could not be measured.
    failures: usize,
    /// Configurations in a row that were given up because their load could not be measured.
    given_up: usize,
}

impl TuningSearch {
    /// A search that goes on from what was kept of earlier sessions; takes its evaluations and
    /// drifts.
    ///
    /// # Errors
    /// The optimiser refuses a configuration that is not of this specification.
    pub fn resume(spec: &CheckedSpec, kept: &mut ResumeState) -> Result<Self, TunerError> {
        let mut search = Self::new(spec, &kept.evaluations)?;
        search.drifts = std::mem::take(&mut kept.drifts);
        for record in std::mem::take(&mut kept.evaluations) {
            search.learn(&record)?;
            search.records.push(record);
        }
        // Whoever goes on has seen to what ended the last session.
        search.in_a_row.clear();
        search.begin_again(kept.in_force.as_ref());
        Ok(search)
    }

    fn new(spec: &CheckedSpec, kept: &[EvaluationRecord]) -> Result<Self, TunerError> {
        let mut settings = spec.settings.clone();
        for record in kept {
            let initial = &mut settings.initial;
            if let Some(position) = initial
                .iter()
                .position(|configuration| *configuration == record.configuration)
            {
                initial.remove(position);
            }
        }
        let mut optimizer = Optimizer::new(spec.space.clone(), settings)?;
        if spec.objective().scale == ObjectiveScale::Ratio {
            // The control against itself: a ratio of 1, known without measuring.
            optimizer.tell(Observation {
                configuration: spec.space.default_configuration(),
                outcome: Measurement {
                    score: 0.0,
                    score_variance: 0.0,
                    ratio: None,
                    excess: known_excess(spec),
                    excess_variance: known_excess(spec)
                        .into_keys()
                        .map(|name| (name, 0.0))
                        .collect(),
                }
                .observed(),
                weight: 1.0,
            })?;
        }
        // It is measured beside every other one.
        let mut crash_region = CrashRegion::default();
        crash_region.survived(&spec.space.default_configuration());
        Ok(Self {
            optimizer,
            records: Vec::new(),
            in_a_row: BTreeMap::new(),
            again: Vec::new(),
            unmeasured: Vec::new(),
            drifts: Vec::new(),
            crash_region,
        })
    }

    /// The number of the last evaluation before the last drift; 0 without one.
    fn drifted(&self) -> usize {
        self.drifts.last().map_or(0, |drift| drift.before)
    }

    /// After a drift, what is in force is measured before anything else: how good it is now is what
    /// matters most.
    fn begin_again(&mut self, in_force: Option<&Configuration>) {
        let drifted = self.drifted();
        let is_known = self.records.iter().any(|record| record.number > drifted);
        if drifted > 0 && !is_known && self.again.is_empty() {
            self.again.extend(in_force.cloned());
        }
    }

    fn run(
        &mut self,
        spec: &CheckedSpec,
        bench: &mut dyn Bench,
        ledger: &mut dyn Ledger,
    ) -> Result<Ended, TunerError> {
        loop {
            let wish = ledger.wish()?;
            let budget = wish.budget.as_ref().unwrap_or(&spec.written().budget);
            let end_s = budget
                .wall_time_min
                .map_or(f64::INFINITY, |minutes| minutes * 60.0);
            if wish.pause {
                return Ok(Ended::Paused);
            }
            if self.counted() >= budget.evaluations || bench.elapsed_s() >= end_s {
                return Ok(Ended::Enough);
            }
            let Some(configuration) = self.next(spec, wish.queued)? else {
                return Ok(Ended::Enough);
            };
            let number = self.records.len() + 1;
            ledger.note(&LedgerEvent::Started {
                number,
                of: budget.evaluations,
                configuration: &configuration,
            })?;
            let (record, signal) = self.measure(spec, number, configuration, bench, ledger)?;
            if signal.is_none() {
                self.learn(&record)?;
            }
            ledger.note(&LedgerEvent::Ended {
                record: &record,
                signal,
            })?;
            let reason = record.reason.clone();
            self.keep(record);
            if let Some(signal) = signal {
                return Ok(Ended::Signal(signal));
            }
            self.give_up(reason, 1, &[])?;
        }
    }

    /// Remembers an evaluation for the report. What the service printed is long: the ledger has it
    /// of every evaluation, a report only where nothing was measured.
    fn keep(&mut self, mut record: EvaluationRecord) {
        record.output = record.output.filter(|_| record.measurement.is_none());
        self.records.push(record);
    }

    /// Takes in an evaluation that ended, of several measured at once, by any of these workers.
    ///
    /// # Errors
    /// Going on is of no use: the control, or the load, could not be measured several times in a
    /// row on any of their hosts.
    pub fn take(
        &mut self,
        record: EvaluationRecord,
        at_once: usize,
        workers: &[String],
    ) -> Result<(), TunerError> {
        self.learn(&record)?;
        let reason = record.reason.clone();
        self.keep(record);
        self.give_up(reason, at_once, workers)
    }

    /// Counts a configuration as being measured.
    ///
    /// # Errors
    /// It is not of this specification.
    pub fn hold(&mut self, configuration: &Configuration) -> Result<(), TunerError> {
        Ok(self.optimizer.hold(configuration)?)
    }

    /// What an evaluation must not be shown to be worse than: see
    /// [`crate::evaluation::Evaluation::new`].
    pub fn incumbent(&mut self) -> Option<f64> {
        self.optimizer.best().map(|best| best.mean + best.sd)
    }

    /// The arms of a verification of what has been found.
    pub fn plan(&mut self, spec: &CheckedSpec) -> Vec<PlannedArm> {
        let mut report = begin(spec);
        report.recommended = self.recommended();
        report.evaluations.clone_from(&self.records);
        verification::plan(spec, &report, None, self.drifted())
    }

    fn recommended(&mut self) -> Option<Recommended> {
        self.optimizer.best().map(|best| Recommended {
            configuration: best.configuration,
            mean: best.mean,
            sd: best.sd,
        })
    }

    /// Evaluations that count against the budget: what failed on one worker's host does not, where
    /// another one's could measure.
    pub fn counted(&self) -> usize {
        let measured = self.records.iter().filter(|it| it.measurement.is_some());
        let able: BTreeSet<&str> = measured.filter_map(|it| it.host.as_deref()).collect();
        let counts = |record: &&EvaluationRecord| match (record.failure, &record.host) {
            (Some(Failure::Lost), _) => false,
            (Some(_), Some(host)) => able.iter().all(|other| other == host),
            _ => true,
        };
        self.records.iter().filter(counts).count()
    }

    /// The next question; an absolute objective asks for the control's own value first.
    ///
    /// # Errors
    /// The optimiser has nothing left to ask.
    pub fn next(
        &mut self,
        spec: &CheckedSpec,
        queued: Option<Configuration>,
    ) -> Result<Option<Configuration>, TunerError> {
        if !self.again.is_empty() {
            return Ok(Some(self.again.remove(0)));
        }
        if queued.is_some() {
            return Ok(queued);
        }
        if self.records.is_empty() && spec.objective().scale == ObjectiveScale::Absolute {
            return Ok(Some(spec.space.default_configuration()));
        }
        self.ask(spec)
    }

    /// What the optimiser asks for, but for what is sure to crash: the optimiser is told that of
    /// it, with half the weight of a crash that was seen.
    fn ask(&mut self, spec: &CheckedSpec) -> Result<Option<Configuration>, TunerError> {
        let is_measured = |record: &EvaluationRecord| record.measurement.is_some();
        let mut asked = match self.optimizer.ask(1) {
            Ok(mut first) => first.pop(),
            // All was tried, and nothing of it keeps to the constraints.
            Err(bayes_opt::Error::Exhausted) if self.records.iter().any(is_measured) => None,
            Err(error) => return Err(error.into()),
        };
        for _ in 0..SURE_CRASHES_MAX {
            let Some(configuration) = &asked else {
                return Ok(None);
            };
            let repeated = self.crash_region.repeats(&spec.space, configuration);
            if repeated.is_none() {
                return Ok(asked);
            }
            self.optimizer.tell(Observation {
                configuration: configuration.clone(),
                outcome: bayes_opt::ObservedOutcome::Crashed,
                weight: 0.5,
            })?;
            asked = match self.optimizer.ask(1) {
                Ok(mut next) => next.pop(),
                // Nothing else is left.
                Err(bayes_opt::Error::Exhausted) => return Ok(asked),
                Err(error) => return Err(error.into()),
            };
        }
        Ok(asked)
    }

    /// Measures one configuration; with the signal that came meanwhile.
    fn measure(
        &mut self,
        spec: &CheckedSpec,
        number: usize,
        configuration: Configuration,
        bench: &mut dyn Bench,
        ledger: &mut dyn Ledger,
    ) -> Result<(EvaluationRecord, Option<i32>), TunerError> {
        let assignment = Assignment {
            purpose: Purpose::Search,
            arm: Arm {
                configuration: configuration.clone(),
                warm_control: spec.has_warm_control(),
                ..Arm::default()
            },
            incumbent: self.incumbent(),
        };
        let measured = assignment::measure(spec, &assignment, bench, ledger)?;
        let signal = measured.signal;
        Ok((measured.record(number, configuration), signal))
    }

    /// Draws the conclusions from an evaluation, measured now or in an earlier session.
    fn learn(&mut self, record: &EvaluationRecord) -> Result<(), TunerError> {
        let configuration = &record.configuration;
        let was_second_try = self.unmeasured.contains(configuration);
        self.again.retain(|again| again != configuration);
        if record.failure != Some(Failure::Lost) {
            self.unmeasured.retain(|once| once != configuration);
        }
        match record.failure {
            // The control could be measured: on that host, which says nothing of others that have
            // failed.
            Some(Failure::Unmeasured) => self.of_host(record).failures = 0,
            Some(Failure::Lost | Failure::Harness) => {}
            None => self.in_a_row.values_mut().for_each(|it| it.failures = 0),
        }
        match record.outcome {
            Outcome::Aborted if record.measurement.is_none() => {
                self.in_a_row.clear();
                self.tell(configuration, bayes_opt::ObservedOutcome::Crashed, 1.0)?;
            }
            Outcome::Completed | Outcome::Violated | Outcome::Aborted => {
                self.in_a_row.clear();
                self.crash_region.survived(configuration);
                if let Some(measurement) = &record.measurement {
                    let weight = weight(&self.drifts, record.number, measurement.score_variance);
                    self.tell(configuration, measurement.observed(), weight)?;
                }
            }
            Outcome::Crashed => {
                if let Some(crash) = &record.crash {
                    self.crash_region.crashed(crash, configuration);
                }
                self.tell(configuration, bayes_opt::ObservedOutcome::Crashed, 1.0)?;
            }
            // Its user does not want it: it is not asked again.
            Outcome::Killed => self.optimizer.hold(configuration)?,
            Outcome::Failed => match record.failure {
                Some(Failure::Unmeasured) if was_second_try => {
                    self.of_host(record).given_up += 1;
                    self.optimizer.hold(configuration)?;
                }
                Some(Failure::Unmeasured) => {
                    self.unmeasured.push(configuration.clone());
                    self.again.push(configuration.clone());
                }
                Some(Failure::Lost) => self.again.push(configuration.clone()),
                Some(Failure::Harness) | None => {
                    self.of_host(record).failures += 1;
                    self.again.push(configuration.clone());
                }
            },
        }
        Ok(())
    }

    fn of_host(&mut self, record: &EvaluationRecord) -> &mut InARow {
        self.in_a_row.entry(record.host.clone()).or_default()
    }

    /// Ends the experiment where going on is of no use: of several workers, any that has not failed
    /// so often may be able to. Of several at once, some had begun before the others failed.
    fn give_up(
        &self,
        reason: Option<String>,
        at_once: usize,
        workers: &[String],
    ) -> Result<(), TunerError> {
        let has_failed = |worker: &String| {
            let of_host = self.in_a_row.get(&Some(worker.clone()));
            of_host.is_some_and(|it| it.failures.max(it.given_up) >= FAILURES_IN_A_ROW)
        };
        if !workers.iter().all(has_failed) {
            return Ok(());
        }
        let reason = reason.unwrap_or_default();
        let limit = FAILURES_IN_A_ROW + at_once.saturating_sub(1);
        let failures = self.in_a_row.values().map(|it| it.failures).sum();
        if failures >= limit {
            return Err(TunerError::Control {
                attempts: failures,
                reason,
            });
        }
        let given_up = self.in_a_row.values().map(|it| it.given_up).sum();
        if given_up >= limit {
            return Err(TunerError::Load {
                configurations: given_up,
                reason,
            });
        }
        Ok(())
    }

    fn tell(
        &mut self,
        configuration: &Configuration,
        outcome: bayes_opt::ObservedOutcome,
        weight: f64,
    ) -> Result<(), TunerError> {
        // Of an earlier session it was not asked in this one.
        self.optimizer.hold(configuration)?;
        Ok(self.optimizer.tell(Observation {
            configuration: configuration.clone(),
            outcome,
            weight,
        })?)
    }
}

/// What an optimiser knows after these evaluations, for explaining it.
///
/// # Errors
/// The optimiser refuses a configuration that is not of this specification.
pub fn surrogate(
    spec: &CheckedSpec,
    evaluations: &[EvaluationRecord],
) -> Result<Optimizer, TunerError> {
    let mut search = TuningSearch::new(spec, &[])?;
    for record in evaluations {
        search.learn(record)?;
    }
    Ok(search.optimizer)
}

/// The control's excess over the constraints that compare with the control: known without
/// measuring.
fn known_excess(spec: &CheckedSpec) -> BTreeMap<String, f64> {
    spec.constraints
        .iter()
        .filter(|constraint| matches!(constraint.limit, ConstraintLimit::TimesControl(_)))
        .map(|constraint| (constraint.text.clone(), constraint.excess(1.0, 1.0)))
        .collect()
}

#[cfg(test)]
mod tests;
