//! One evaluation, or one run of a verification, as whoever measures it is given it: the loop of
//! this process, or a worker on another host. Both measure by [`measure`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use bayes_opt::Configuration;

use crate::begun::{Begun, WarmUp};
use crate::bench::{Arm, Bench};
use crate::error::{Crash, CrashKind, Fault, TunerError};
use crate::evaluation::{BY_USER, Block, Evaluation, EvaluationRules, Measurement, Outcome, Step};
use crate::ledger::{Ledger, LedgerEvent, VerificationRun};
use crate::report::{EvaluationRecord, Failure, SEVERAL};
use crate::spec::CheckedSpec;
use crate::stop::Stop;

/// What it is measured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// To find something better: it may end early.
    Search,
    /// To prove it: it never ends early, and a hiccup of the harness is tried again.
    Verification,
}

/// What is to be measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// What for.
    pub purpose: Purpose,
    /// What is measured beside the control.
    pub arm: Arm,
    /// The score that it must not be shown to be worse than.
    pub incumbent: Option<f64>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationResult {
    /// How the evaluation ended.
    pub outcome: Outcome,
    /// Why the evaluation ended so, if there is more to say.
    pub reason: Option<String>,
    /// What was measured.
    pub measurement: Option<Measurement>,
    /// Why the evaluation `failed`, if it did.
    pub failure: Option<Failure>,
    /// How the service failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash: Option<Crash>,
    /// The blocks, even of one that ended badly.
    pub blocks: Vec<Block>,
    /// How long the evaluation took, in seconds.
    pub duration_s: f64,
    /// Slackline's own CPU time during the evaluation, in seconds.
    pub own_cpu_s: f64,
    /// The signal that ended it.
    #[serde(skip)]
    pub signal: Option<i32>,
    /// The worker that measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The last lines that the service printed: of the side that made it fail, else of the
    /// experiment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The fingerprint of each template that it was measured with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub templates: BTreeMap<String, String>,
    /// How it began, where there is something to say of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Begun>,
}

/// What templates were in one time and in another.
pub(crate) fn joined(
    mut one: BTreeMap<String, String>,
    other: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    for (template, print) in other {
        let known = one.entry(template).or_insert_with(|| print.clone());
        if *known != print {
            SEVERAL.clone_into(known);
        }
    }
    one
}

impl EvaluationResult {
    /// Nothing, for a reason that is the harness's.
    #[must_use]
    pub fn failed(reason: String) -> Self {
        Self {
            outcome: Outcome::Failed,
            reason: Some(reason),
            measurement: None,
            failure: Some(Failure::Harness),
            crash: None,
            blocks: Vec::new(),
            duration_s: 0.0,
            own_cpu_s: 0.0,
            signal: None,
            host: None,
            output: None,
            templates: BTreeMap::new(),
            begun: None,
        }
    }

    /// As an evaluation of the search.
    #[must_use]
    pub fn record(self, number: usize, configuration: Configuration) -> EvaluationRecord {
        EvaluationRecord {
            number,
            configuration,
            outcome: self.outcome,
            reason: self.reason,
            measurement: self.measurement,
            failure: self.failure,
            crash: self.crash,
            blocks: self.blocks,
            duration_s: self.duration_s,
            own_cpu_s: self.own_cpu_s,
            host: self.host,
            output: self.output,
            note: None,
            begun: self.begun,
        }
    }

    /// As a run of a verification.
    #[must_use]
    pub fn run(self, arm: usize, run: usize) -> VerificationRun {
        let (blocks, fault) = match self.measurement {
            Some(_) => (self.blocks, None),
            None => (Vec::new(), Some(self.reason.unwrap_or_default())),
        };
        VerificationRun {
            arm,
            run,
            blocks,
            fault,
            host: self.host,
            templates: self.templates,
            begun: self.begun,
        }
    }
}

/// Measures it. The ledger is told of every block.
///
/// # Errors
/// A knob cannot be put back, or what was measured cannot be kept.
pub fn measure(
    spec: &CheckedSpec,
    assignment: &Assignment,
    bench: &mut dyn Bench,
    ledger: &mut dyn Ledger,
) -> Result<EvaluationResult, TunerError> {
    let start_s = bench.elapsed_s();
    let own_cpu_start_s = bench.own_cpu_s();
    let mut attempt = |bench: &mut dyn Bench| match assignment.purpose {
        Purpose::Search => {
            let evaluation = Evaluation::new(EvaluationRules::of(spec), assignment.incumbent);
            evaluate(evaluation, &assignment.arm, bench, ledger)
        }
        Purpose::Verification => {
            let evaluation = Evaluation::new(EvaluationRules::of_verification(spec), None);
            evaluate(evaluation, &assignment.arm, bench, ledger)
        }
    };
    let templates = bench.templates();
    let mut measured = attempt(bench)?;
    let hiccup = matches!(measured.0, Err(Fault::Harness(_) | Fault::Unmeasured(_)));
    if hiccup && assignment.purpose == Purpose::Verification {
        measured = attempt(bench)?;
    }
    let (ended, blocks) = measured;
    let mut result = EvaluationResult {
        outcome: Outcome::Failed,
        reason: None,
        measurement: None,
        failure: None,
        crash: None,
        blocks,
        duration_s: bench.elapsed_s() - start_s,
        own_cpu_s: bench.own_cpu_s() - own_cpu_start_s,
        signal: None,
        host: None,
        output: None,
        templates: joined(templates, bench.templates()),
        begun: bench.take_begun(),
    };
    let warm_up = result.begun.as_ref().and_then(|it| it.warm_up.as_ref());
    let complaint = warm_up.and_then(WarmUp::complaint);
    let output = bench.take_output();
    match ended {
        Ok((outcome, measurement)) => {
            let early = (outcome == Outcome::Aborted).then(|| {
                let (done, of) = (result.blocks.len(), spec.written().evaluation.blocks);
                format!(
                    "ended early after {done} of {of} pairs of blocks: shown to be worse than the best so far"
                )
            });
            let said: Vec<String> = complaint.into_iter().chain(early).collect();
            result.reason = (!said.is_empty()).then(|| said.join("; "));
            result.outcome = outcome;
            result.measurement = Some(measurement);
            result.output = output.as_deref().map(http_client::redact);
        }
        Err(fault) => {
            // Nothing that is kept of a failure shows a password.
            result.reason = Some(http_client::redact(&fault.to_string()));
            if !matches!(fault, Fault::Interrupted(Stop::Signal(_))) {
                result.output = output.as_deref().map(http_client::redact);
            }
            match fault {
                Fault::Configuration(crash) => {
                    result.outcome = match crash.kind {
                        CrashKind::TooSlow => Outcome::Aborted,
                        _ => Outcome::Crashed,
                    };
                    result.crash = Some(crash);
                }
                Fault::Harness(_) => result.failure = Some(Failure::Harness),
                Fault::Unmeasured(_) => result.failure = Some(Failure::Unmeasured),
                Fault::Interrupted(stop) => {
                    result.outcome = Outcome::Killed;
                    match stop {
                        Stop::Signal(number) => {
                            result.signal = Some(number);
                            result.reason = Some(stop.to_string());
                        }
                        Stop::Evaluation => result.reason = Some(BY_USER.into()),
                    }
                }
            }
        }
    }
    Ok(result)
}

type Ended = Result<(Outcome, Measurement), Fault>;

/// One evaluation from start to end; the blocks are kept even of one that ended badly.
pub(crate) fn evaluate(
    evaluation: Evaluation,
    arm: &Arm,
    bench: &mut dyn Bench,
    ledger: &mut dyn Ledger,
) -> Result<(Ended, Vec<Block>), TunerError> {
    let (ended, blocks, end) = evaluate_to_end(evaluation, arm, bench, ledger);
    end.map(|()| (ended, blocks))
}

/// The same, with what was found out even where the bench could not put everything back after it.
pub(crate) fn evaluate_to_end(
    mut evaluation: Evaluation,
    arm: &Arm,
    bench: &mut dyn Bench,
    ledger: &mut dyn Ledger,
) -> (Ended, Vec<Block>, Result<(), TunerError>) {
    let planned = evaluation.planned_blocks();
    let mut unkept = Ok(());
    let mut measure = || -> Result<(), Fault> {
        bench.begin(arm)?;
        for index in 0..planned {
            let block = bench.block(index)?;
            let step = evaluation.push(block)?;
            if let Some(block) = evaluation.blocks().last() {
                unkept = ledger.note(&LedgerEvent::Block {
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
    let end = bench.end().and(unkept);
    let blocks = evaluation.blocks().to_vec();
    let ended = measured.and_then(|()| evaluation.finish());
    let ended = ended.map(|(outcome, measurement, _)| (outcome, measurement));
    (ended, blocks, end)
}
