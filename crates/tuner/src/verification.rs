//! The winner and whatever is compared with it, measured again on fresh runs: what a claim rests
//! on.

use std::collections::{BTreeMap, BTreeSet};

use bayes_opt::{Configuration, Value};

use crate::assignment::{self, Assignment, Purpose};
use crate::begun::WarmUp;
use crate::bench::Bench;
use crate::conclusion::{self, Confidence};
use crate::error::TunerError;
use crate::evaluation::Outcome;
use crate::knob_writes::{knob_text, knob_writes};
use crate::ledger::{Ledger, LedgerEvent, PlannedArm, ResumeState, VerificationRun};
use crate::report::{ArmResult, Finding, Report};
pub use crate::shell_words::quoted;
use crate::spec::CheckedSpec;
use crate::template;

impl ArmResult {
    /// The arm as it was planned, with these template variables.
    #[must_use]
    pub fn planned(&self, variables: BTreeMap<String, Value>) -> PlannedArm {
        PlannedArm {
            name: self.name.clone(),
            is_candidate: self.is_candidate,
            configuration: self.configuration.clone(),
            variables,
            capacity_of: self.capacity_of.clone(),
        }
    }

    /// An arm of which nothing is known yet.
    pub(crate) fn of(planned: &PlannedArm) -> Self {
        Self {
            name: planned.name.clone(),
            is_candidate: planned.is_candidate,
            capacity_of: planned.capacity_of.clone(),
            configuration: planned.configuration.clone(),
            ratios: BTreeMap::new(),
            without_interval: BTreeMap::new(),
            means: BTreeMap::new(),
            violated: Vec::new(),
            constraints: Vec::new(),
            guards: Vec::new(),
            detectable: BTreeMap::new(),
            faults: Vec::new(),
            unsteady: Vec::new(),
            few_requests: None,
            runs: 0,
            blocks: 0,
            runs_blocks: Vec::new(),
        }
    }
}

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
    found.truncate(spec.written().verification.top);
    found
}

/// The arms to measure: the best configurations of the search, then those that the specification
/// names.
///
/// What is in force is a candidate too: another one replaces it only where it does better in the
/// same runs.
pub(crate) fn plan(
    spec: &CheckedSpec,
    report: &Report,
    in_force: Option<&Configuration>,
    drifted: usize,
) -> Vec<PlannedArm> {
    let mut found = candidates(spec, report, drifted);
    found.extend(in_force.filter(|it| !found.contains(it)).cloned());
    let found = found.into_iter().enumerate();
    let found = found.map(|(index, configuration)| PlannedArm::candidate(index + 1, configuration));
    let extra = spec.written().verification.arms.iter();
    let extra = extra.map(|extra| PlannedArm {
        name: extra.name.clone(),
        is_candidate: false,
        configuration: crate::spec::arm_configuration(&spec.space, &extra.parameters),
        variables: extra.variables.clone(),
        capacity_of: None,
    });
    let mut plan = found.chain(extra).collect();
    add_capacities(spec, &mut plan);
    plan
}

/// Adds an arm for the capacity of each candidate that has none, where capacities are compared.
fn add_capacities(spec: &CheckedSpec, plan: &mut Vec<PlannedArm>) {
    if !spec.compares_capacity() {
        return;
    }
    let is_there = |candidate: &PlannedArm| {
        let mut arms = plan.iter();
        arms.any(|arm| arm.capacity_of.as_ref() == Some(&candidate.name))
    };
    let candidates = plan.iter().filter(|arm| arm.is_candidate);
    let missing = candidates.filter(|candidate| !is_there(candidate));
    let missing: Vec<PlannedArm> = missing.map(PlannedArm::capacity_of).collect();
    plan.extend(missing);
}

/// Verifies what was found, from where an earlier session left it.
pub(crate) fn run(
    spec: &CheckedSpec,
    bench: &mut dyn Bench,
    ledger: &mut dyn Ledger,
    kept: ResumeState,
    drifted: usize,
    report: &mut Report,
) -> Result<(), TunerError> {
    let mut kept = kept;
    let plan = match kept.plan.take() {
        Some(mut plan) => {
            add_capacities(spec, &mut plan);
            plan
        }
        None => {
            let plan = plan(spec, report, kept.in_force.as_ref(), drifted);
            ledger.note(&LedgerEvent::Planned(&plan))?;
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
    let mut runs = kept.runs;
    while let Some((index, run)) = due(spec, &plan, &runs).first().copied() {
        if ledger.wish()?.pause {
            report.paused = true;
            break;
        }
        ledger.note(&LedgerEvent::Verifying {
            arm: &plan[index].name,
            run,
            of: spec.written().verification.stage_end(run),
        })?;
        let assignment = Assignment {
            purpose: Purpose::Verification,
            arm: plan[index].arm(),
            incumbent: None,
        };
        let measured = assignment::measure(spec, &assignment, bench, ledger)?;
        if let Some(signal) = measured.signal {
            report.interrupted = Some(signal);
            break;
        }
        let measured = measured.run(index, run);
        ledger.note(&LedgerEvent::Verified(&measured))?;
        runs.push(measured);
    }
    let templates = runs.iter().map(|run| run.templates.clone());
    report.templates = templates.fold(BTreeMap::new(), assignment::joined);
    let mut results = results(spec, &plan, &runs, usize::MAX);
    // The capacity of what was not found to be better was not measured.
    let mut planned = plan.iter();
    results.retain(|arm| {
        let planned = planned.next();
        planned.is_none_or(|it| it.capacity_of.is_none())
            || !arm.runs_blocks.is_empty()
            || !arm.faults.is_empty()
    });
    if count > 0 {
        let rank = |arm: &ArmResult| conclusion::rank(spec, arm);
        results[..count].sort_by(|a, b| {
            let (a, b) = (rank(a), rank(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        let winner = &results[0];
        if report.interrupted.is_none() && !report.paused {
            report.finding = conclusion::finding(spec, winner);
        }
        // What showed nothing is not offered for copying.
        if report.finding.is_better() {
            report.settings = settings(spec, &winner.configuration);
        }
    }
    report.verification = results;
    Ok(())
}

/// The runs that are to be measured next, as (arm, run) with runs counted from 1, of a verification
/// that has come so far. None are left once a candidate is acceptable, every candidate is decided,
/// or the limit is reached.
///
/// All arms have the runs that the specification asks for. Then the candidates that are not decided
/// have as many again, and so on up to the limit. Runs are outside and arms inside: slow drift of
/// the machine reaches every arm alike. The capacity of a candidate is measured once the candidate
/// is found to be better.
#[must_use]
pub fn due(
    spec: &CheckedSpec,
    plan: &[PlannedArm],
    runs: &[VerificationRun],
) -> Vec<(usize, usize)> {
    let rules = &spec.written().verification;
    let there: BTreeSet<(usize, usize)> = runs.iter().map(|it| (it.arm, it.run)).collect();
    let mut arms: Vec<usize> = (0..plan.len())
        .filter(|index| plan[*index].capacity_of.is_none())
        .collect();
    for look in 1..=rules.looks() {
        let end = (rules.runs * look).min(rules.runs_max());
        let wanted = (1..=end).flat_map(|run| arms.iter().map(move |arm| (*arm, run)));
        let missing: Vec<(usize, usize)> = wanted.filter(|it| !there.contains(it)).collect();
        if !missing.is_empty() {
            return missing;
        }
        let results = results(spec, plan, runs, end);
        let better = plan.iter().zip(&results).filter(|(planned, arm)| {
            planned.is_candidate && conclusion::finding(spec, arm) == Finding::Improvement
        });
        let better: BTreeSet<&String> = better.map(|(planned, _)| &planned.name).collect();
        let capacities = plan.iter().enumerate().filter(|(_, arm)| {
            let of = arm.capacity_of.as_ref();
            of.is_some_and(|name| better.contains(name))
        });
        let capacities: Vec<usize> = capacities.map(|(index, _)| index).collect();
        let wanted = (1..=rules.runs).flat_map(|run| capacities.iter().map(move |arm| (*arm, run)));
        let missing: Vec<(usize, usize)> = wanted.filter(|it| !there.contains(it)).collect();
        if !missing.is_empty() {
            return missing;
        }
        let is_acceptable = |(planned, arm): (&PlannedArm, &ArmResult)| {
            planned.is_candidate && conclusion::finding(spec, arm) == Finding::Improvement
        };
        if plan.iter().zip(&results).any(is_acceptable) {
            return Vec::new();
        }
        arms.retain(|arm| plan[*arm].is_candidate && !conclusion::is_decided(spec, &results[*arm]));
    }
    Vec::new()
}

/// What the runs up to number `end` show of each arm, in the order of the plan.
fn results(
    spec: &CheckedSpec,
    plan: &[PlannedArm],
    runs: &[VerificationRun],
    end: usize,
) -> Vec<ArmResult> {
    let candidates = plan.iter().filter(|arm| arm.is_candidate).count();
    let of_arm = |(index, planned): (usize, &PlannedArm)| {
        let mut result = ArmResult::of(planned);
        let mut own: Vec<&VerificationRun> = runs
            .iter()
            .filter(|it| it.arm == index && it.run <= end)
            .collect();
        own.sort_by_key(|it| it.run);
        for run in own {
            match &run.fault {
                Some(fault) => result.faults.push(fault.clone()),
                None => result.runs_blocks.push(run.blocks.clone()),
            }
            let warm_up = run.begun.as_ref().and_then(|it| it.warm_up.as_ref());
            let complaint = warm_up.and_then(WarmUp::complaint);
            let complaint = complaint.map(|why| format!("run {}: {why}", run.run));
            result.unsteady.extend(complaint);
        }
        let confidence = Confidence::of(spec, candidates, planned.is_candidate);
        match planned.capacity_of {
            Some(_) => conclusion::summarise_capacity(spec, result, confidence),
            None => conclusion::summarise(spec, result, confidence),
        }
    };
    let mut results: Vec<ArmResult> = plan.iter().enumerate().map(of_arm).collect();
    for (index, planned) in plan.iter().enumerate() {
        let Some(name) = &planned.capacity_of else {
            continue;
        };
        let capacity = results[index].clone();
        if let Some(candidate) = results.iter_mut().find(|arm| arm.name == *name) {
            conclusion::add_capacity(candidate, &capacity);
        }
    }
    results
}

/// The settings of a configuration, as one would type them into a shell.
pub(crate) fn settings(spec: &CheckedSpec, configuration: &Configuration) -> Vec<String> {
    let variables = template::variables(&spec.written().variables, configuration);
    let whole = knob_writes(&spec.knobs, configuration, &variables);
    let whole = whole.unwrap_or_default();
    let line = |(name, value): (&String, &Value)| {
        let Some(binding) = spec.knobs.get(name) else {
            return format!("{name} = {value}");
        };
        // A template that names the port or the directory of an instance has no settings to show.
        let list = binding.element.as_ref().and_then(|_| {
            let mut writes = whole.iter();
            writes.find_map(|(knob, text)| (*knob == binding.knob).then(|| text.clone()))
        });
        let text = list.map_or_else(|| knob_text(binding, value, &variables), Ok);
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
