//! The loop: ask, evaluate against the control, tell; then verify the winner on fresh runs.
//!
//! It decides and counts; whatever touches the world is behind [`Bench`].

use std::collections::BTreeMap;

use bayes_opt::{Configuration, Observation, Optimizer};
use latency_stats::{ratio_interval, ratio_interval_of_runs};

use crate::bench::{Arm, Bench};
use crate::error::{Fault, TunerError};
use crate::evaluation::{Block, Evaluation, Measurement, Outcome, Rules, Step};
use crate::report::{ArmResult, EvaluationRecord, Finding, Recommended, Report, judge};
use crate::spec::{CheckedSpec, Limit, ObjectiveScale};
use crate::template;

/// So many evaluations may fail in a row before the experiment gives up: a control that cannot be
/// measured three times running will not be measured the fourth time.
const FAILURES_IN_A_ROW: usize = 3;

/// What happens, for whoever shows progress.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// An evaluation starts.
    Started {
        /// From 1.
        number: usize,
        /// How many there may be.
        of: usize,
        /// What is evaluated.
        configuration: &'a Configuration,
    },
    /// A block was measured.
    Block {
        /// Blocks so far.
        done: usize,
        /// Blocks planned.
        of: usize,
    },
    /// An evaluation ended.
    Ended(&'a EvaluationRecord),
    /// A run of the verification starts.
    Verifying {
        /// The arm.
        arm: &'a str,
        /// From 1.
        run: usize,
        /// Runs planned.
        of: usize,
    },
}

/// Runs an experiment to its verified end. A signal ends it early, with a report of what there is.
///
/// # Errors
/// The control cannot be measured, a knob cannot be put back, or the optimiser refuses.
pub fn run(
    spec: &CheckedSpec,
    bench: &mut dyn Bench,
    watch: &mut dyn FnMut(&Event<'_>),
) -> Result<Report, TunerError> {
    let (report, error) = run_to_end(spec, bench, watch);
    error.map_or(Ok(report), Err)
}

/// As [`run`], with the report of what there is even after an error: hours of measurements are not thrown away.
pub fn run_to_end(
    spec: &CheckedSpec,
    bench: &mut dyn Bench,
    watch: &mut dyn FnMut(&Event<'_>),
) -> (Report, Option<TunerError>) {
    let mut report = Report {
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
        error: None,
        promoted: Vec::new(),
        settings: Vec::new(),
    };
    let error = fill(spec, bench, watch, &mut report).err();
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

fn fill(
    spec: &CheckedSpec,
    bench: &mut dyn Bench,
    watch: &mut dyn FnMut(&Event<'_>),
    report: &mut Report,
) -> Result<(), TunerError> {
    let mut search = Search::new(spec)?;
    let searched = search.run(spec, bench, watch);
    report.evaluations = std::mem::take(&mut search.records);
    report.interrupted = search.interrupted;
    searched?;
    report.recommended = search.optimizer.best().map(|best| Recommended {
        configuration: best.configuration,
        mean: best.mean,
        sd: best.sd,
    });
    if report.interrupted.is_none() {
        verify(spec, bench, watch, report)?;
    }
    Ok(())
}

struct Search {
    optimizer: Optimizer,
    records: Vec<EvaluationRecord>,
    interrupted: Option<i32>,
}

impl Search {
    fn new(spec: &CheckedSpec) -> Result<Self, TunerError> {
        let mut optimizer = Optimizer::new(spec.space.clone(), spec.settings.clone())?;
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
            interrupted: None,
        })
    }

    fn run(
        &mut self,
        spec: &CheckedSpec,
        bench: &mut dyn Bench,
        watch: &mut dyn FnMut(&Event<'_>),
    ) -> Result<(), TunerError> {
        let budget = &spec.spec.budget;
        let end_s = budget
            .wall_time_min
            .map_or(f64::INFINITY, |minutes| minutes * 60.0);
        let mut failures = 0;
        // Configurations in a row that were given up because their load could not be measured.
        let mut given_up = 0;
        let mut again = None;
        let mut is_second_try = false;
        while self.records.len() < budget.evaluations
            && bench.elapsed_s() < end_s
            && self.interrupted.is_none()
        {
            let configuration = match again.take() {
                Some(configuration) => configuration,
                None => match self.next(spec)? {
                    Some(configuration) => configuration,
                    None => break,
                },
            };
            let number = self.records.len() + 1;
            watch(&Event::Started {
                number,
                of: budget.evaluations,
                configuration: &configuration,
            });
            let incumbent = self.optimizer.best().map(|best| best.mean + best.sd);
            let arm = Arm {
                configuration: configuration.clone(),
                ..Arm::default()
            };
            let start_s = bench.elapsed_s();
            let own_cpu_start_s = bench.own_cpu_s();
            let evaluation = Evaluation::new(Rules::of(spec), incumbent);
            let (measured, blocks) = evaluate(evaluation, &arm, bench, watch)?;
            let mut record = EvaluationRecord {
                number,
                configuration: configuration.clone(),
                outcome: Outcome::Failed,
                reason: None,
                measurement: None,
                blocks,
                duration_s: bench.elapsed_s() - start_s,
                own_cpu_s: bench.own_cpu_s() - own_cpu_start_s,
            };
            failures = if matches!(measured, Err(Fault::Harness(_))) {
                failures + 1
            } else {
                0
            };
            let was_second_try = std::mem::replace(
                &mut is_second_try,
                matches!(measured, Err(Fault::Unmeasured(_))),
            );
            if measured.is_ok() {
                given_up = 0;
            }
            match measured {
                Ok((outcome, measurement)) => {
                    record.outcome = outcome;
                    self.tell(&configuration, measurement.observed())?;
                    record.measurement = Some(measurement);
                }
                Err(Fault::Configuration(reason)) => {
                    record.outcome = Outcome::Crashed;
                    record.reason = Some(reason);
                    self.tell(&configuration, bayes_opt::Outcome::Crashed)?;
                }
                Err(Fault::Harness(reason)) => {
                    record.reason = Some(reason.clone());
                    if failures >= FAILURES_IN_A_ROW {
                        self.records.push(record);
                        return Err(TunerError::Control {
                            attempts: failures,
                            reason,
                        });
                    }
                    again = Some(configuration);
                }
                Err(Fault::Unmeasured(reason)) => {
                    record.reason = Some(reason.clone());
                    if was_second_try {
                        // It stays pending, so it is not asked again.
                        is_second_try = false;
                        given_up += 1;
                    } else {
                        again = Some(configuration);
                    }
                    if given_up >= FAILURES_IN_A_ROW {
                        self.records.push(record);
                        return Err(TunerError::Load {
                            configurations: given_up,
                            reason,
                        });
                    }
                }
                Err(Fault::Interrupted(signal)) => {
                    record.outcome = Outcome::Killed;
                    record.reason = Some(format!("signal {signal}"));
                    self.interrupted = Some(signal);
                }
            }
            watch(&Event::Ended(&record));
            self.records.push(record);
        }
        Ok(())
    }

    /// The next question; an absolute objective asks for the control's own value first.
    fn next(&mut self, spec: &CheckedSpec) -> Result<Option<Configuration>, TunerError> {
        if self.records.is_empty() && spec.objective.scale == ObjectiveScale::Absolute {
            return Ok(Some(spec.space.default_configuration()));
        }
        Ok(self.optimizer.ask(1)?.pop())
    }

    fn tell(
        &mut self,
        configuration: &Configuration,
        outcome: bayes_opt::Outcome,
    ) -> Result<(), TunerError> {
        Ok(self.optimizer.tell(Observation {
            configuration: configuration.clone(),
            outcome,
            weight: 1.0,
        })?)
    }
}

/// The control's excess over the constraints that compare with the control: known without measuring.
fn known_excess(spec: &CheckedSpec) -> BTreeMap<String, f64> {
    spec.constraints
        .iter()
        .filter(|constraint| matches!(constraint.limit, Limit::TimesControl(_)))
        .map(|constraint| (constraint.text.clone(), constraint.excess(1.0, 1.0)))
        .collect()
}

type Measured = Result<(Outcome, Measurement), Fault>;

/// One evaluation from start to end; the blocks are kept even of one that ended badly.
fn evaluate(
    mut evaluation: Evaluation,
    arm: &Arm,
    bench: &mut dyn Bench,
    watch: &mut dyn FnMut(&Event<'_>),
) -> Result<(Measured, Vec<Block>), TunerError> {
    let planned = evaluation.planned_blocks();
    let mut measure = || -> Result<(), Fault> {
        bench.begin(arm)?;
        for index in 0..planned {
            let block = bench.block(index)?;
            let step = evaluation.push(block)?;
            watch(&Event::Block {
                done: index + 1,
                of: planned,
            });
            if step == Step::Stop {
                break;
            }
        }
        Ok(())
    };
    let measured = measure();
    bench.end()?;
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

/// The `top` best configurations that are not the control: the model's choice first, then by
/// measured score among the completed.
fn candidates(spec: &CheckedSpec, report: &Report) -> Vec<Configuration> {
    let control = spec.space.default_configuration();
    let mut found: Vec<Configuration> = Vec::new();
    if let Some(best) = &report.recommended {
        if best.configuration == control {
            return Vec::new();
        }
        found.push(best.configuration.clone());
    }
    for record in report.ranked() {
        if record.outcome == Outcome::Completed
            && record.configuration != control
            && !found.contains(&record.configuration)
        {
            found.push(record.configuration.clone());
        }
    }
    found.truncate(spec.spec.verification.top);
    found
}

fn verify(
    spec: &CheckedSpec,
    bench: &mut dyn Bench,
    watch: &mut dyn FnMut(&Event<'_>),
    report: &mut Report,
) -> Result<(), TunerError> {
    let rules = &spec.spec.verification;
    let candidates = candidates(spec, report);
    if candidates.is_empty() {
        let measured = report
            .evaluations
            .iter()
            .any(|record| record.measurement.is_some());
        report.finding = if measured {
            Finding::NoDifference
        } else {
            Finding::Unfinished
        };
        if rules.arms.is_empty() {
            return Ok(());
        }
    }
    let count = candidates.len();
    let mut arms: Vec<(ArmResult, Arm)> = candidates
        .into_iter()
        .enumerate()
        .map(|(index, configuration)| {
            let arm = Arm {
                configuration,
                ..Arm::default()
            };
            let name = format!("candidate {}", index + 1);
            (empty_result(&name, &arm, true), arm)
        })
        .collect();
    for extra in &rules.arms {
        let arm = Arm {
            configuration: crate::spec::arm_configuration(&spec.space, &extra.parameters),
            variables: extra.variables.clone(),
        };
        arms.push((empty_result(&extra.name, &arm, false), arm));
    }
    // Runs outside, arms inside: slow drift of the machine reaches every arm alike.
    'runs: for run in 1..=rules.runs {
        for (result, arm) in &mut arms {
            watch(&Event::Verifying {
                arm: &result.name,
                run,
                of: rules.runs,
            });
            for is_last_try in [false, true] {
                let evaluation = Evaluation::new(Rules::of_verification(spec), None);
                let (measured, blocks) = evaluate(evaluation, arm, bench, watch)?;
                match measured {
                    Ok(_) => result.runs_blocks.push(blocks),
                    Err(Fault::Interrupted(signal)) => {
                        report.interrupted = Some(signal);
                        break 'runs;
                    }
                    // A hiccup of the harness says nothing about the candidate.
                    Err(Fault::Harness(_) | Fault::Unmeasured(_)) if !is_last_try => continue,
                    Err(fault) => result.faults.push(fault.to_string()),
                }
                break;
            }
        }
    }
    // Choosing the best of k candidates by their verification costs confidence: Bonferroni.
    let confidence = |index: usize| {
        if index < count {
            1.0 - (1.0 - rules.confidence) / count as f64
        } else {
            rules.confidence
        }
    };
    let mut results: Vec<ArmResult> = arms
        .into_iter()
        .enumerate()
        .map(|(index, (result, _))| summarise(spec, result, confidence(index)))
        .collect();
    if count > 0 {
        results[..count].sort_by(|a, b| rank(spec, a).total_cmp(&rank(spec, b)));
        let winner = &results[0];
        let sound = winner.violated.is_empty() && winner.faults.is_empty();
        if report.interrupted.is_none() {
            report.finding = judge(
                winner.ratios.get(&spec.objective.name()),
                spec.objective.goal,
                sound,
            );
        }
        report.settings = settings(spec, &winner.configuration);
    }
    report.verification = results;
    Ok(())
}

fn empty_result(name: &str, arm: &Arm, is_candidate: bool) -> ArmResult {
    ArmResult {
        name: name.to_owned(),
        is_candidate,
        configuration: arm.configuration.clone(),
        ratios: BTreeMap::new(),
        without_interval: BTreeMap::new(),
        means: BTreeMap::new(),
        violated: Vec::new(),
        faults: Vec::new(),
        runs: 0,
        blocks: 0,
        runs_blocks: Vec::new(),
    }
}

/// The order of candidates: the sound ones by their ratio, the others last.
fn rank(spec: &CheckedSpec, result: &ArmResult) -> f64 {
    let Some(interval) = result.ratios.get(&spec.objective.name()) else {
        return f64::INFINITY;
    };
    let score = match spec.objective.goal {
        crate::spec::Goal::Minimise => interval.estimate,
        crate::spec::Goal::Maximise => 1.0 / interval.estimate,
    };
    if result.violated.is_empty() && result.faults.is_empty() {
        score
    } else {
        score + 1e6
    }
}

fn summarise(spec: &CheckedSpec, mut result: ArmResult, confidence: f64) -> ArmResult {
    let runs = &result.runs_blocks;
    let all: Vec<Block> = runs.iter().flatten().cloned().collect();
    let mut metrics = vec![spec.objective.metric.clone()];
    metrics.extend(
        spec.constraints
            .iter()
            .map(|constraint| constraint.metric.clone()),
    );
    metrics.extend(spec.spec.verification.report.iter().cloned());
    for metric in metrics {
        let pairs: Vec<_> = runs
            .iter()
            .map(|blocks| Rules::pairs(blocks, &metric))
            .collect();
        let flat: Vec<_> = pairs.iter().flatten().collect();
        if flat.is_empty() {
            continue;
        }
        let n = flat.len() as f64;
        let mean = (
            flat.iter().map(|pair| pair.control).sum::<f64>() / n,
            flat.iter().map(|pair| pair.experiment).sum::<f64>() / n,
        );
        result.means.insert(metric.clone(), mean);
        if mean == (0.0, 0.0) {
            // Nothing on either side, such as no errors: there is no ratio, and none is missed.
            continue;
        }
        match ratio_interval_of_runs(&pairs, confidence) {
            Ok(interval) => {
                result.ratios.insert(metric, interval);
            }
            Err(error) => {
                result.without_interval.insert(metric, error.to_string());
            }
        }
    }
    if spec.objective.std_weight > 0.0 {
        // One value a run: mean + k·std has none for a block.
        let of_runs: Vec<_> = runs
            .iter()
            .map(|blocks| {
                spec.objective
                    .of_blocks(&Rules::pairs(blocks, &spec.objective.metric))
            })
            .collect();
        let name = spec.objective.name();
        match ratio_interval(&of_runs, confidence) {
            Ok(interval) => {
                result.ratios.insert(name, interval);
            }
            Err(error) => {
                result.without_interval.insert(name, error.to_string());
            }
        }
    }
    for constraint in &spec.constraints {
        let pairs = Rules::pairs(&all, &constraint.metric);
        if pairs.is_empty() {
            continue;
        }
        let excess = pairs
            .iter()
            .map(|pair| constraint.excess(pair.control, pair.experiment))
            .sum::<f64>()
            / pairs.len() as f64;
        if excess > 0.0 {
            result.violated.push(constraint.text.clone());
        }
    }
    result.runs = runs.len();
    result.blocks = all.len();
    result
}

/// The settings of a configuration, as one would type them into a shell.
pub fn settings(spec: &CheckedSpec, configuration: &Configuration) -> Vec<String> {
    let variables = template::variables(&spec.spec.variables, configuration);
    let line = |(name, value): (&String, &bayes_opt::Value)| {
        let Some(binding) = spec.knobs.get(name) else {
            return format!("{name} = {value}");
        };
        // A template that names the port or the directory of an instance has no settings to show.
        let text = binding
            .text(value, &variables)
            .unwrap_or_else(|_| value.to_string());
        match &binding.knob {
            host::Knob::Sysctl(sysctl) => {
                format!("sysctl -w {}", quoted(&format!("{sysctl}={text}")))
            }
            knob => {
                let path = knob.path(&host::Roots::default());
                format!(
                    "echo {} > {}",
                    quoted(&text),
                    quoted(&path.display().to_string())
                )
            }
        }
    };
    configuration.0.iter().map(line).collect()
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
