//! The loop: ask, evaluate against the control, tell; then verify the winner on fresh runs.
//!
//! It decides and counts; whatever touches the world is behind [`Bench`].

use std::collections::BTreeMap;

use bayes_opt::{Configuration, Observation, Optimizer};

use crate::bench::{Arm, Bench};
use crate::error::{Fault, TunerError};
use crate::evaluation::{Block, Evaluation, Measurement, Outcome, Rules, Step};
use crate::ledger::{Drift, Event, Ledger, weight};
use crate::process::Stop;
use crate::report::{EvaluationRecord, Failure, Finding, Recommended, Report};
use crate::spec::{CheckedSpec, Limit, ObjectiveScale};
use crate::verification;

/// So many evaluations may fail in a row before the experiment gives up: a control that cannot be
/// measured three times running will not be measured the fourth time.
const FAILURES_IN_A_ROW: usize = 3;

/// Why an evaluation was killed that its user had enough of.
pub const BY_USER: &str = "by its user";

/// Runs an experiment to its verified end. A signal ends it early, with a report of what there is.
///
/// What the ledger has kept of earlier sittings is not measured again: the optimiser is told of it, and the loop goes on
/// from there. (What is asked next may differ from what an unbroken run would have asked: the optimiser's random state is
/// not kept, only what it was told.)
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

/// As [`run`], with the report of what there is even after an error: hours of measurements are not thrown away.
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
    report.sentence = report.say(&spec.objective.name());
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
        spec: spec.spec.clone(),
        skipped: spec.skipped.clone(),
        control: spec.space.default_configuration(),
        recommended: None,
        evaluations: Vec::new(),
        verification: Vec::new(),
        finding: Finding::Unfinished,
        sentence: String::new(),
        interrupted: None,
        paused: false,
        error: None,
        promoted: Vec::new(),
        settings: Vec::new(),
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
    let mut search = Search::new(spec, &kept.evaluations)?;
    search.drifts = std::mem::take(&mut kept.drifts);
    for record in std::mem::take(&mut kept.evaluations) {
        search.learn(&record)?;
        search.records.push(record);
    }
    // Whoever goes on has seen to what ended the last sitting.
    search.failures = 0;
    search.given_up = 0;
    search.begin_again(kept.in_force.as_ref());
    let drifted = search.drifted();
    // A verification that has begun is about what was known then.
    let searched = match kept.plan {
        Some(_) => Ok(Ended::Enough),
        None => search.run(spec, bench, ledger),
    };
    report.evaluations = std::mem::take(&mut search.records);
    match searched? {
        Ended::Enough => {
            report.recommended = search.optimizer.best().map(|best| Recommended {
                configuration: best.configuration,
                mean: best.mean,
                sd: best.sd,
            });
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

struct Search {
    optimizer: Optimizer,
    records: Vec<EvaluationRecord>,
    /// Evaluations in a row in which the control could not be measured.
    failures: usize,
    /// Configurations in a row that were given up because their load could not be measured.
    given_up: usize,
    /// To be measured again before anything else.
    again: Option<Configuration>,
    /// The configuration in `again` could not be measured once already.
    is_second_try: bool,
    /// What has drifted since earlier evaluations.
    drifts: Vec<Drift>,
}

impl Search {
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
        if spec.objective.scale == ObjectiveScale::Ratio {
            // The control against itself: a ratio of 1, known without measuring.
            optimizer.tell(Observation {
                configuration: spec.space.default_configuration(),
                outcome: Measurement {
                    score: 0.0,
                    score_variance: 0.0,
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
        Ok(Self {
            optimizer,
            records: Vec::new(),
            failures: 0,
            given_up: 0,
            again: None,
            is_second_try: false,
            drifts: Vec::new(),
        })
    }

    /// The number of the last evaluation before the last drift; 0 without one.
    fn drifted(&self) -> usize {
        self.drifts.last().map_or(0, |drift| drift.before)
    }

    /// After a drift, what is in force is measured before anything else: how good it is now is what matters most.
    fn begin_again(&mut self, in_force: Option<&Configuration>) {
        let drifted = self.drifted();
        let is_known = self.records.iter().any(|record| record.number > drifted);
        if drifted > 0 && !is_known && self.again.is_none() {
            self.again = in_force.cloned();
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
            let budget = wish.budget.as_ref().unwrap_or(&spec.spec.budget);
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
            ledger.note(&Event::Started {
                number,
                of: budget.evaluations,
                configuration: &configuration,
            })?;
            let (record, signal) = self.measure(spec, number, configuration, bench, ledger)?;
            if signal.is_none() {
                self.learn(&record)?;
            }
            ledger.note(&Event::Ended(&record))?;
            let reason = record.reason.clone();
            self.records.push(record);
            if let Some(signal) = signal {
                return Ok(Ended::Signal(signal));
            }
            self.give_up(reason)?;
        }
    }

    /// Evaluations that count against the budget.
    fn counted(&self) -> usize {
        let is_lost = |record: &&EvaluationRecord| record.failure == Some(Failure::Lost);
        self.records.len() - self.records.iter().filter(is_lost).count()
    }

    /// The next question; an absolute objective asks for the control's own value first.
    fn next(
        &mut self,
        spec: &CheckedSpec,
        queued: Option<Configuration>,
    ) -> Result<Option<Configuration>, TunerError> {
        if let Some(first) = self.again.take().or(queued) {
            return Ok(Some(first));
        }
        if self.records.is_empty() && spec.objective.scale == ObjectiveScale::Absolute {
            return Ok(Some(spec.space.default_configuration()));
        }
        Ok(self.optimizer.ask(1)?.pop())
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
        let incumbent = self.optimizer.best().map(|best| best.mean + best.sd);
        let arm = Arm {
            configuration: configuration.clone(),
            ..Arm::default()
        };
        let start_s = bench.elapsed_s();
        let own_cpu_start_s = bench.own_cpu_s();
        let evaluation = Evaluation::new(Rules::of(spec), incumbent);
        let (measured, blocks) = evaluate(evaluation, &arm, bench, ledger)?;
        let mut record = EvaluationRecord {
            number,
            configuration,
            outcome: Outcome::Failed,
            reason: None,
            measurement: None,
            failure: None,
            blocks,
            duration_s: bench.elapsed_s() - start_s,
            own_cpu_s: bench.own_cpu_s() - own_cpu_start_s,
        };
        let mut signal = None;
        match measured {
            Ok((outcome, measurement)) => {
                record.outcome = outcome;
                record.measurement = Some(measurement);
            }
            Err(fault) => {
                record.reason = Some(fault.to_string());
                match fault {
                    Fault::Configuration(_) => record.outcome = Outcome::Crashed,
                    Fault::Harness(_) => record.failure = Some(Failure::Harness),
                    Fault::Unmeasured(_) => record.failure = Some(Failure::Unmeasured),
                    Fault::Interrupted(stop) => {
                        record.outcome = Outcome::Killed;
                        match stop {
                            Stop::Signal(number) => {
                                signal = Some(number);
                                record.reason = Some(stop.to_string());
                            }
                            Stop::Evaluation => record.reason = Some(BY_USER.into()),
                        }
                    }
                }
            }
        }
        Ok((record, signal))
    }

    /// Draws the conclusions from an evaluation, measured now or in an earlier sitting.
    fn learn(&mut self, record: &EvaluationRecord) -> Result<(), TunerError> {
        let configuration = &record.configuration;
        let was_second_try = self.is_second_try;
        self.again = None;
        if record.failure != Some(Failure::Lost) {
            self.is_second_try = false;
        }
        if !matches!(record.failure, Some(Failure::Lost | Failure::Harness)) {
            self.failures = 0;
        }
        match record.outcome {
            Outcome::Completed | Outcome::Violated | Outcome::Aborted => {
                self.given_up = 0;
                if let Some(measurement) = &record.measurement {
                    let weight = weight(&self.drifts, record.number, measurement.score_variance);
                    self.tell(configuration, measurement.observed(), weight)?;
                }
            }
            Outcome::Crashed => self.tell(configuration, bayes_opt::Outcome::Crashed, 1.0)?,
            // Its user does not want it: it is not asked again.
            Outcome::Killed => self.optimizer.hold(configuration)?,
            Outcome::Failed => match record.failure {
                Some(Failure::Unmeasured) if was_second_try => {
                    self.given_up += 1;
                    self.optimizer.hold(configuration)?;
                }
                Some(Failure::Unmeasured) => {
                    self.is_second_try = true;
                    self.again = Some(configuration.clone());
                }
                Some(Failure::Lost) => self.again = Some(configuration.clone()),
                Some(Failure::Harness) | None => {
                    self.failures += 1;
                    self.again = Some(configuration.clone());
                }
            },
        }
        Ok(())
    }

    /// Ends the experiment where going on is of no use.
    fn give_up(&self, reason: Option<String>) -> Result<(), TunerError> {
        let reason = reason.unwrap_or_default();
        if self.failures >= FAILURES_IN_A_ROW {
            return Err(TunerError::Control {
                attempts: self.failures,
                reason,
            });
        }
        if self.given_up >= FAILURES_IN_A_ROW {
            return Err(TunerError::Load {
                configurations: self.given_up,
                reason,
            });
        }
        Ok(())
    }

    fn tell(
        &mut self,
        configuration: &Configuration,
        outcome: bayes_opt::Outcome,
        weight: f64,
    ) -> Result<(), TunerError> {
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
    let mut search = Search::new(spec, &[])?;
    for record in evaluations {
        search.learn(record)?;
    }
    Ok(search.optimizer)
}

/// The control's excess over the constraints that compare with the control: known without measuring.
fn known_excess(spec: &CheckedSpec) -> BTreeMap<String, f64> {
    spec.constraints
        .iter()
        .filter(|constraint| matches!(constraint.limit, Limit::TimesControl(_)))
        .map(|constraint| (constraint.text.clone(), constraint.excess(1.0, 1.0)))
        .collect()
}

pub(crate) type Measured = Result<(Outcome, Measurement), Fault>;

/// One evaluation from start to end; the blocks are kept even of one that ended badly.
pub(crate) fn evaluate(
    mut evaluation: Evaluation,
    arm: &Arm,
    bench: &mut dyn Bench,
    ledger: &mut dyn Ledger,
) -> Result<(Measured, Vec<Block>), TunerError> {
    let planned = evaluation.planned_blocks();
    let mut unkept = Ok(());
    let mut measure = || -> Result<(), Fault> {
        bench.begin(arm)?;
        for index in 0..planned {
            let block = bench.block(index)?;
            let step = evaluation.push(block)?;
            if let Some(block) = evaluation.blocks().last() {
                unkept = ledger.note(&Event::Block {
                    done: index + 1,
                    of: planned,
                    block,
                });
            }
            if step == Step::Stop || unkept.is_err() {
                break;
            }
        }
        Ok(())
    };
    let measured = measure();
    bench.end()?;
    unkept?;
    Ok(match measured {
        Err(fault) => (Err(fault), evaluation.blocks().to_vec()),
        Ok(()) => {
            let blocks = evaluation.blocks().to_vec();
            (
                evaluation
                    .finish()
                    .map(|(outcome, measurement, _)| (outcome, measurement)),
                blocks,
            )
        }
    })
}
