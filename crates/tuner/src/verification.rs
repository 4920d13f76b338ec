//! The winner and whatever is compared with it, measured again on fresh runs: what a claim rests on.

use std::collections::{BTreeMap, BTreeSet};

use bayes_opt::Configuration;
use latency_stats::{ratio_interval, ratio_interval_of_runs};

use crate::assignment::{self, Assignment, Purpose};
use crate::bench::Bench;
use crate::error::TunerError;
use crate::evaluation::{Block, Outcome, Rules};
use crate::ledger::{Event, Kept, Ledger, PlannedArm};
use crate::report::{ArmResult, Finding, Report, judge};
use crate::spec::CheckedSpec;
use crate::template;

/// The `top` best configurations that are not the control: the model's choice first, then by
/// measured score among those completed since the last drift.
fn candidates(spec: &CheckedSpec, report: &Report, drifted: usize) -> Vec<Configuration> {
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
            && record.number > drifted
            && record.configuration != control
            && !found.contains(&record.configuration)
        {
            found.push(record.configuration.clone());
        }
    }
    found.truncate(spec.spec.verification.top);
    found
}

/// The arms to measure: the best configurations of the search, then those that the specification names.
///
/// What is in force is a candidate too: another one replaces it only where it does better in the same runs.
pub(crate) fn plan(
    spec: &CheckedSpec,
    report: &Report,
    in_force: Option<&Configuration>,
    drifted: usize,
) -> Vec<PlannedArm> {
    let mut found = candidates(spec, report, drifted);
    found.extend(in_force.filter(|it| !found.contains(it)).cloned());
    let found = found.into_iter().enumerate();
    let found = found.map(|(index, configuration)| PlannedArm {
        name: format!("candidate {}", index + 1),
        is_candidate: true,
        configuration,
        variables: BTreeMap::new(),
    });
    let extra = spec.spec.verification.arms.iter();
    let extra = extra.map(|extra| PlannedArm {
        name: extra.name.clone(),
        is_candidate: false,
        configuration: crate::spec::arm_configuration(&spec.space, &extra.parameters),
        variables: extra.variables.clone(),
    });
    found.chain(extra).collect()
}

/// Verifies what was found, from where an earlier sitting left it.
pub(crate) fn run(
    spec: &CheckedSpec,
    bench: &mut dyn Bench,
    ledger: &mut dyn Ledger,
    kept: Kept,
    drifted: usize,
    report: &mut Report,
) -> Result<(), TunerError> {
    let rules = &spec.spec.verification;
    let plan = match kept.plan.clone() {
        Some(plan) => plan,
        None => {
            let plan = plan(spec, report, kept.in_force.as_ref(), drifted);
            ledger.note(&Event::Planned(&plan))?;
            plan
        }
    };
    let count = plan.iter().filter(|arm| arm.is_candidate).count();
    if count == 0 {
        let measured = report
            .evaluations
            .iter()
            .any(|record| record.measurement.is_some());
        report.finding = if measured {
            Finding::NoDifference
        } else {
            Finding::Unfinished
        };
    }
    let mut results: Vec<ArmResult> = plan.iter().map(empty_result).collect();
    // Runs outside, arms inside: slow drift of the machine reaches every arm alike.
    'runs: for run in 1..=rules.runs {
        for (index, (planned, result)) in plan.iter().zip(&mut results).enumerate() {
            let mut earlier = kept.runs.iter();
            let measured = match earlier.find(|kept| kept.arm == index && kept.run == run) {
                Some(kept) => kept.clone(),
                None => {
                    if ledger.wish()?.pause {
                        report.paused = true;
                        break 'runs;
                    }
                    ledger.note(&Event::Verifying {
                        arm: &planned.name,
                        run,
                        of: rules.runs,
                    })?;
                    let assignment = Assignment {
                        purpose: Purpose::Verification,
                        arm: planned.arm(),
                        incumbent: None,
                    };
                    let measured = assignment::measure(spec, &assignment, bench, ledger)?;
                    if let Some(signal) = measured.signal {
                        report.interrupted = Some(signal);
                        break 'runs;
                    }
                    let measured = measured.run(index, run);
                    ledger.note(&Event::Verified(&measured))?;
                    measured
                }
            };
            match measured.fault {
                Some(fault) => result.faults.push(fault),
                None => result.runs_blocks.push(measured.blocks),
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
    let mut results: Vec<ArmResult> = results
        .into_iter()
        .enumerate()
        .map(|(index, result)| summarise(spec, result, confidence(index)))
        .collect();
    if count > 0 {
        results[..count].sort_by(|a, b| rank(spec, a).total_cmp(&rank(spec, b)));
        let winner = &results[0];
        let sound = winner.violated.is_empty() && winner.faults.is_empty();
        if report.interrupted.is_none() && !report.paused {
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

fn empty_result(arm: &PlannedArm) -> ArmResult {
    ArmResult {
        name: arm.name.clone(),
        is_candidate: arm.is_candidate,
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
pub(crate) fn settings(spec: &CheckedSpec, configuration: &Configuration) -> Vec<String> {
    let variables = template::variables(&spec.spec.variables, configuration);
    let whole = crate::spec::knob_writes(&spec.knobs, configuration, &variables);
    let whole = whole.unwrap_or_default();
    let line = |(name, value): (&String, &bayes_opt::Value)| {
        let Some(binding) = spec.knobs.get(name) else {
            return format!("{name} = {value}");
        };
        // A template that names the port or the directory of an instance has no settings to show.
        let list = binding.element.as_ref().and_then(|_| {
            let mut writes = whole.iter();
            writes.find_map(|(knob, text)| (*knob == binding.knob).then(|| text.clone()))
        });
        let text = list.map_or_else(|| binding.text(value, &variables), Ok);
        let text = text.unwrap_or_else(|_| value.to_string());
        match &binding.knob {
            host::Knob::Sysctl(sysctl) => {
                format!("sysctl -w {}", quoted(&format!("{sysctl}={text}")))
            }
            host::Knob::Sched { .. } => format!("{} = {text}", binding.knob),
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
    let mut lines: Vec<String> = configuration.0.iter().map(line).collect();
    // Several values of one list are one line.
    let mut seen = BTreeSet::new();
    lines.retain(|line| seen.insert(line.clone()));
    lines
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
