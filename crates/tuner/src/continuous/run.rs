//! The loop that carries out what a [`ContinuousController`] says, in a [`World`].

use bayes_opt::Configuration;
use jiff::Timestamp;
use paired_stats::Pair;

use super::state::RoundResult;
use super::task::{Applied, Task, Tuned};
use super::{
    Acting, ActionResult, Alert, ContinuousAction, ContinuousController, Round, Seen,
    VerifiedCandidate, after,
};
use crate::assignment::evaluate_to_end;
use crate::bench::{Arm, Bench};
use crate::error::{Fault, TunerError};
use crate::evaluation::{Block, Evaluation, EvaluationRules, Measurement};
use crate::experiment;
use crate::ledger::Ledger;
use crate::report::{ArmResult, Finding, Report};
use crate::spec::{AlertSpec, CheckedSpec, ConstraintLimit};

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Yes.
    On,
    /// No: something asks for an end, for now.
    End,
}

/// What a controller acts on.
pub trait World {
    /// The time.
    fn now(&mut self) -> Timestamp;

    /// Waits until then, until something asks for an end, or until [`World::bars_change`] answers
    /// otherwise.
    fn wait(&mut self, until: Timestamp) -> Flow;

    /// Keeps the state, what happened, and a round. Nothing is done before this has returned.
    ///
    /// # Errors
    /// [`TunerError::Ledger`]: the loop ends, with everything restored.
    fn keep(
        &mut self,
        controller: &mut ContinuousController,
        round: Option<&Round>,
    ) -> Result<(), TunerError>;

    /// One round of this configuration; `None` where something asked for an end.
    ///
    /// # Errors
    /// As an evaluation's.
    fn watch(&mut self, configuration: &Configuration) -> Result<Option<Seen>, TunerError>;

    /// Searches; `None` where something asked for an end.
    ///
    /// # Errors
    /// As a ledger's.
    fn tune(&mut self, task: &Task) -> Result<Option<Tuned>, TunerError>;

    /// Asks whether an alert fires.
    fn alert(&mut self, alert: &AlertSpec) -> Alert;

    /// Why nothing may be searched or promoted at present, whatever the rules say. Rounds and
    /// rollbacks go on.
    ///
    /// # Errors
    /// As a ledger's.
    fn bars_change(&mut self) -> Result<Option<String>, TunerError> {
        Ok(None)
    }

    /// Why nothing may be promoted now, whatever the rules say.
    ///
    /// # Errors
    /// As a ledger's.
    fn bars_promotion(&mut self) -> Result<Option<String>, TunerError> {
        Ok(None)
    }

    /// Puts a configuration in force; `None` is the control's. `None` where something asked for an
    /// end meanwhile: it is begun again later.
    ///
    /// # Errors
    /// What was begun could not be undone.
    fn apply(
        &mut self,
        configuration: Option<&Configuration>,
    ) -> Result<Option<Applied>, TunerError>;
}

/// Runs a controller until something asks for an end.
///
/// # Errors
/// Those of the world.
pub fn run(controller: &mut ContinuousController, world: &mut dyn World) -> Result<(), TunerError> {
    let mut barred = None;
    loop {
        controller.bar(world.bars_change()?);
        let now = world.now();
        let action = controller.next(now);
        if let ContinuousAction::Promote(_) = &action {
            let why = world.bars_promotion()?;
            if let Some(why) = &why {
                controller.put_off(now, why, barred.as_ref() != Some(why));
            }
            barred = why;
            if barred.is_some() {
                continue;
            }
        }
        let observation = match &action {
            ContinuousAction::Wait(until) => {
                // There may be words about why.
                world.keep(controller, None)?;
                if world.wait(*until) == Flow::End {
                    return Ok(());
                }
                continue;
            }
            ContinuousAction::AskAlert => match controller.rules().alert.clone() {
                Some(alert) => ActionResult::Alert(world.alert(&alert)),
                None => ActionResult::Alert(Alert::Quiet),
            },
            ContinuousAction::Watch(configuration) => match world.watch(configuration)? {
                Some(seen) => ActionResult::Watched(seen),
                None => return Ok(()),
            },
            ContinuousAction::Tune(task) => {
                world.keep(controller, None)?;
                match world.tune(task)? {
                    Some(tuned) => ActionResult::Tuned(tuned),
                    None => return Ok(()),
                }
            }
            ContinuousAction::Promote(_) | ContinuousAction::RollBack => {
                world.keep(controller, None)?;
                let configuration = match &action {
                    ContinuousAction::Promote(configuration) => Some(configuration),
                    _ => None,
                };
                match world.apply(configuration)? {
                    Some(applied) => ActionResult::Applied(applied),
                    None => return Ok(()),
                }
            }
        };
        let now = world.now();
        let round = controller.observe(now, observation);
        world.keep(controller, round.as_ref())?;
        if let (Some(round), Some(rounds)) = (&round, controller.gives_up())
            && let Seen::Unsettled(reason) = &round.seen
        {
            let reason = reason.clone();
            return Err(TunerError::Unsettled { rounds, reason });
        }
        if world.wait(now) == Flow::End {
            return Ok(());
        }
    }
}

impl ContinuousController {
    /// What was to be promoted waits until after the next round; that is said once.
    fn put_off(&mut self, now: Timestamp, why: &str, is_new: bool) {
        let Some(Acting::Promote(candidate)) = self.state.pending_change.take() else {
            return;
        };
        self.state.candidate = Some(candidate);
        self.state.changes.pop();
        self.state.not_before = after(now, self.rules.round_every_s);
        if is_new {
            self.say(now, "held", super::state::held(why));
        }
        self.state.blocked_by = Some(why.to_owned());
    }
}

/// One round: a whole evaluation of `configuration` against the control, without an early end.
/// `None` where a signal or its user stopped it.
///
/// # Errors
/// A knob could not be put back, or the ledger refused.
pub fn watch(
    spec: &CheckedSpec,
    configuration: &Configuration,
    bench: &mut dyn Bench,
    ledger: &mut dyn Ledger,
) -> Result<Option<Seen>, TunerError> {
    let arm = Arm {
        configuration: configuration.clone(),
        ..Arm::default()
    };
    let evaluation = Evaluation::new(EvaluationRules::of_round(spec), None);
    let (measured, blocks, end) = evaluate_to_end(evaluation, &arm, bench, ledger);
    let unsettled = match end {
        Ok(()) => None,
        Err(error @ (TunerError::Reapply(_) | TunerError::Disturbed(_))) => Some(error.to_string()),
        Err(error) => return Err(error),
    };
    Ok(match (measured, unsettled) {
        (Err(Fault::Interrupted(_)), _) => None,
        // What the promoted configuration has done leads to its rollback, also where the way back
        // to it fails.
        (Err(Fault::Configuration(crash)), _) => Some(Seen::Crashed(crash.message)),
        // In each round and in each block the control's load is the first to be looked at.
        (Err(Fault::Unmeasured(reason)), _) => Some(Seen::OneSided(reason)),
        (_, Some(reason)) => Some(Seen::Unsettled(reason)),
        (Err(Fault::Harness(reason)), None) => Some(Seen::Unmeasured(reason)),
        (Ok((_, measurement)), None) => Some(seen(spec, &measurement, &blocks)),
    })
}

fn seen(spec: &CheckedSpec, measurement: &Measurement, blocks: &[Block]) -> Seen {
    let rules = spec.continuous.as_ref();
    let metrics = rules.map(|rules| rules.metrics.clone()).unwrap_or_default();
    let of_control = |metric: &str| {
        let pairs: Vec<Pair> = EvaluationRules::pairs(blocks, metric);
        let sum: f64 = pairs.iter().map(|pair| pair.control).sum();
        (!pairs.is_empty()).then(|| sum / pairs.len() as f64)
    };
    let (mut broken, mut broken_by_both) = (Vec::new(), Vec::new());
    let excess = measurement.excess.values().copied().fold(0.0, f64::max);
    for constraint in &spec.constraints {
        let excess = measurement
            .excess
            .get(&constraint.text)
            .copied()
            .unwrap_or(0.0);
        if !measurement.breaks(&constraint.text) {
            continue;
        }
        // A limit of its own may be too much for the control as well.
        let control = match constraint.limit {
            ConstraintLimit::Absolute(_) => {
                of_control(&constraint.metric).map(|value| constraint.excess(value, value))
            }
            ConstraintLimit::TimesControl(_) => None,
        };
        if control.is_some_and(|control| control > 0.0 && control >= excess) {
            broken_by_both.push(constraint.text.clone());
        } else {
            broken.push(constraint.text.clone());
        }
    }
    Seen::Measured(RoundResult {
        gain: measurement.score,
        gain_variance: measurement.score_variance,
        workload: metrics
            .into_iter()
            .filter_map(|metric| of_control(&metric).map(|value| (metric, value)))
            .collect(),
        excess,
        broken,
        broken_by_both,
    })
}

/// What is in force is replaced by what is better by 1 % at the least, measured in the same runs.
const WORTH_A_CHANGE: f64 = 0.01;

/// Searches and verifies by [`experiment::run_to_end`]. `None` where a signal ended it. With the
/// report of what there is.
///
/// # Errors
/// The ledger refused, or a knob could not be put back.
pub fn tune(
    spec: &CheckedSpec,
    in_force: Option<&Configuration>,
    bench: &mut dyn Bench,
    ledger: &mut dyn Ledger,
) -> Result<(Option<Tuned>, Report), TunerError> {
    let (report, error) = experiment::run_to_end(spec, bench, ledger);
    let counted = report.evaluations.last().map_or(0, |record| record.number);
    let tuned = match error {
        Some(
            error @ (TunerError::Control { .. }
            | TunerError::Load { .. }
            | TunerError::Optimizer(_)
            | TunerError::Reapply(_)
            | TunerError::Disturbed(_)),
        ) => Some(Tuned::Failed {
            evaluated: counted,
            reason: error.to_string(),
            is_unsettled: matches!(error, TunerError::Reapply(_) | TunerError::Disturbed(_)),
        }),
        Some(error) => return Err(error),
        None if report.interrupted.is_some() => None,
        None if report.paused => Some(Tuned::Paused { evaluated: counted }),
        None => {
            let sign = spec.objective().goal.sign();
            let is_shown = report.finding == Finding::Improvement;
            let candidate = |arm: &ArmResult| {
                Some(VerifiedCandidate {
                    configuration: arm.configuration.clone(),
                    gain: sign * arm.ratios.get(&spec.objective().name())?.estimate.ln(),
                })
            };
            let mut winner = report.winner().filter(|_| is_shown).and_then(candidate);
            let mut arms = report.verification.iter();
            let present = arms.find(|arm| Some(&arm.configuration) == in_force);
            let present = present.filter(|arm| arm.violated.is_empty() && arm.faults.is_empty());
            if let (Some(found), Some(present)) = (&winner, present.and_then(candidate))
                && found.gain > present.gain - WORTH_A_CHANGE
            {
                winner = Some(present);
            }
            Some(Tuned::Ended {
                evaluated: counted,
                winner,
                sentence: report.sentence.clone(),
                is_conclusive: report.finding != Finding::Unfinished,
            })
        }
    };
    Ok((tuned, report))
}
