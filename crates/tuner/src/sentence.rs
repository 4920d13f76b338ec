//! The one sentence, or few, that say what an experiment has shown.

use std::fmt::Write as _;

use paired_stats::{Interval, mean_interval};

use crate::capacity;
use crate::conclusion::{ConstraintResult, ConstraintVerdict, Guard, GuardResult, GuardVerdict};
use crate::evaluation::{EvaluationRules, Outcome};
use crate::figures::{change, confidence_percent, significant};
pub use crate::figures::{counted, sentence};
use crate::report::{ArmResult, EvaluationRecord, Finding, Recommended, Report, score_text};
use crate::spec::{ConstraintLimit, MetricConstraint, ObjectiveScale};

impl Report {
    /// The sentence that goes with the finding.
    pub(crate) fn say(&self, metric: &str) -> String {
        of(self, metric)
    }
}

/// What is said of a report, whose objective has this name.
fn of(report: &Report, objective: &str) -> String {
    let evaluations = counted(report.evaluations.len(), "evaluation");
    if let Some(error) = &report.error {
        return format!("Ended after {evaluations}: {error}. There is no result.");
    }
    if report.paused {
        return format!("Paused after {evaluations}.");
    }
    let Some(winner) = report.winner() else {
        return match (report.interrupted, report.finding) {
            (Some(signal), _) => format!(
                "Stopped by signal {signal} after {evaluations}, before a verification. There is no result."
            ),
            (None, Finding::NoDifference) => nothing_to_verify(report),
            (None, _) => no_result(report),
        };
    };
    let Some(interval) = winner.ratios.get(objective) else {
        let why = without_interval(report, winner, objective);
        return format!("The winner could not be verified ({why}). There is no result.");
    };
    verified(report, winner, objective, interval)
}

/// Why the objective of a winner has no interval.
fn without_interval(report: &Report, winner: &ArmResult, objective: &str) -> String {
    let known = winner.faults.first();
    if let Some(why) = known.or_else(|| winner.without_interval.get(objective)) {
        return why.clone();
    }
    match (report.interrupted, winner.runs) {
        (Some(signal), _) => format!("signal {signal} ended the verification"),
        (None, 0) => "the verification has no run that came to its end".to_owned(),
        (None, _) if winner.means.get(objective) == Some(&(0.0, 0.0)) => {
            format!("{objective} was 0 on both sides")
        }
        (None, _) => format!("no run has measured {objective}"),
    }
}

fn verified(report: &Report, winner: &ArmResult, objective: &str, interval: &Interval) -> String {
    let evidence = evidence(report, winner, objective, interval) + &worse_guards(report, winner);
    let mut text = match report.finding {
        Finding::Improvement | Finding::Paid => format!("Shown: {evidence}."),
        Finding::Undecided => format!("Better, but not everything is decided: {evidence}."),
        Finding::NoDifference => {
            let mut text = format!("No difference shown: {evidence}.");
            if let Some(ratio) = winner.detectable.get(objective) {
                let size = (ratio - 1.0) * 100.0;
                let _ = write!(
                    text,
                    " A change of {size:.1} % or more would have been shown in four cases of five."
                );
            }
            text
        }
        Finding::Worse => format!("The winner is worse than the control: {evidence}."),
        Finding::ConstraintViolated if winner.breaks_a_constraint() => {
            format!("Better, but not acceptable: {evidence}.")
        }
        Finding::ConstraintViolated => format!("Better, but a run failed: {evidence}."),
        Finding::Unfinished => format!("Unfinished: {evidence}."),
    };
    if report.finding != Finding::Worse {
        text.push_str(&of_constraints(winner));
    }
    if !winner.faults.is_empty() {
        let _ = write!(text, " Runs failed: {}.", winner.faults.join("; "));
    }
    if report.finding.is_better() {
        text.push_str(&of_guards(report, winner));
    }
    if let Some(said) = capacity::overload(report, winner) {
        let _ = write!(text, " {said}");
    }
    text
}

/// The change with all that it rests on.
fn evidence(report: &Report, winner: &ArmResult, objective: &str, interval: &Interval) -> String {
    let candidates = report.verification.iter().filter(|arm| arm.is_candidate);
    let candidates = candidates.count();
    let asked = report.spec.verification.confidence;
    let shared = if candidates > 1 && interval.confidence > asked {
        format!(
            ", as {candidates} candidates share the {} % of error that were asked for",
            confidence_percent(1.0 - asked)
        )
    } else {
        String::new()
    };
    format!(
        "{} of {objective} against the control ({} % confidence{shared}, {} fresh runs, {} pairs of blocks)",
        change(interval),
        confidence_percent(interval.confidence),
        winner.runs,
        winner.blocks
    )
}

/// What is worse although the specification does not give it up. It stands in the first sentence,
/// which lists show alone.
fn worse_guards(report: &Report, winner: &ArmResult) -> String {
    let each: Vec<String> = winner.paid().map(guard_change).collect();
    match (each.is_empty(), report.finding.is_better()) {
        (true, _) => String::new(),
        (false, true) => format!(", paid with {}", each.join(", ")),
        (false, false) => format!(", and worse: {}", each.join(", ")),
    }
}

/// "requests_per_s −18.0 % [−22.0, −14.0]".
#[must_use]
pub fn guard_change(guard: &GuardResult) -> String {
    let metric = guard.metric.as_deref().unwrap_or(guard.guard.name());
    let metric = match guard.at_saturation {
        true => format!("{metric} at saturation"),
        false => metric.to_owned(),
    };
    match (&guard.change, guard.guard) {
        (Some(change), Guard::Errors) => format!(
            "{metric} {} [{}, {}]",
            signed(change.estimate),
            signed(change.low),
            signed(change.high)
        ),
        (Some(interval), _) => format!("{metric} {}", change(interval)),
        (None, _) => metric,
    }
}

/// A difference in its own unit: `0`, `+0.02000`, `−3.000e-5`.
fn signed(difference: f64) -> String {
    let size = significant(difference.abs());
    match size.as_str() {
        "0" => size,
        _ if difference < 0.0 => format!("−{size}"),
        _ => format!("+{size}"),
    }
}

fn of_constraints(winner: &ArmResult) -> String {
    if winner.constraints.is_empty() {
        return String::new();
    }
    let mut text = String::new();
    let of = |verdict| {
        let constraints = winner.constraints.iter();
        constraints.filter(move |it| it.verdict == verdict)
    };
    let broken: Vec<String> = of(ConstraintVerdict::Broken).map(observed).collect();
    let open: Vec<String> = of(ConstraintVerdict::NotDecidable).map(observed).collect();
    if !broken.is_empty() {
        let _ = write!(text, " Broken: {}.", broken.join("; "));
    }
    if !open.is_empty() {
        let _ = write!(text, " Not decidable: {}.", open.join("; "));
    }
    if broken.is_empty() && open.is_empty() {
        text.push_str(" Every constraint held.");
    }
    let control: Vec<&str> = winner
        .constraints
        .iter()
        .filter(|it| it.control_breaks)
        .map(|it| it.constraint.as_str())
        .collect();
    if !control.is_empty() {
        let _ = write!(text, " The control itself breaks {}.", control.join(", "));
    }
    text
}

/// "latency_p99_us <= 1.05 * control (+16.7 % [−73.8, +420.1])".
#[must_use]
pub fn observed(constraint: &ConstraintResult) -> String {
    let text = &constraint.constraint;
    match &constraint.observed {
        Some(interval) if constraint.is_ratio => format!("{text} ({})", change(interval)),
        Some(interval) => format!(
            "{text} ({} [{}, {}])",
            significant(interval.estimate),
            significant(interval.low),
            significant(interval.high)
        ),
        None => text.clone(),
    }
}

/// What a better objective was not paid with, and what nobody knows.
fn of_guards(report: &Report, winner: &ArmResult) -> String {
    let mut text = String::new();
    let of = |verdict| {
        let guards = winner.guards.iter();
        guards.filter(move |it| it.verdict == verdict)
    };
    let is_slight = |it: &&GuardResult| it.is_slightly_worse();
    let smallest = report.spec.verification.smallest_effect;
    let slight = of(GuardVerdict::NotWorse).filter(is_slight);
    let (memory, slight): (Vec<_>, Vec<_>) = slight.partition(|it| it.is_little_memory(smallest));
    for (guards, by) in [(slight, "too little to count"), (memory, "less than 1 MiB")] {
        if !guards.is_empty() {
            let changes: Vec<String> = guards.into_iter().map(guard_change).collect();
            let _ = write!(text, " Worse by {by}: {}.", changes.join(", "));
        }
    }
    let fine: Vec<String> = of(GuardVerdict::NotWorse)
        .filter(|it| !is_slight(it))
        .map(guard_change)
        .collect();
    if !fine.is_empty() {
        let _ = write!(text, " Guards not shown worse: {}.", fine.join(", "));
    }
    let allowed: Vec<String> = of(GuardVerdict::Worse)
        .filter(|it| it.is_allowed)
        .map(guard_change)
        .collect();
    if !allowed.is_empty() {
        let _ = write!(
            text,
            " Worse, as the specification allows: {}.",
            allowed.join(", ")
        );
    }
    let missing: Vec<&str> = of(GuardVerdict::NotMeasured)
        .map(|it| it.guard.name())
        .collect();
    if !missing.is_empty() {
        let _ = write!(text, " Not measured: {}.", missing.join(", "));
    }
    if let Some(said) = capacity::not_measured(report, winner) {
        let _ = write!(text, " {said}");
    }
    text
}

/// Why nothing was verified although something was measured.
fn nothing_to_verify(report: &Report) -> String {
    const NONE: &str = "no difference shown.";
    if let Some(broken) = broken_by_control(report) {
        return format!("The control itself breaks {broken}: {NONE}");
    }
    let is_ratio = report
        .spec
        .objective
        .as_ref()
        .is_some_and(|objective| objective.scale == ObjectiveScale::Ratio);
    let looks_better = |record: &&&EvaluationRecord| {
        let measurement = record.measurement.as_ref();
        is_ratio
            && record.configuration != report.control
            && measurement.is_some_and(|it| it.score < 0.0)
    };
    let ranked = report.ranked();
    let better: Vec<&&EvaluationRecord> = ranked.iter().filter(looks_better).collect();
    let is_control = |it: &Recommended| it.configuration == report.control;
    let expects_none = report.recommended.as_ref().is_some_and(is_control);
    let completed = better.iter().find(|it| it.outcome == Outcome::Completed);
    if let (Some(record), false) = (completed, expects_none) {
        return format!(
            "Nothing was verified: evaluation {} looked better than the control, and the service or its load has drifted since; {NONE}",
            record.number
        );
    }
    if let (Some(record), Some(objective)) = (completed, &report.spec.objective) {
        let measured = record.measurement.as_ref();
        let (score, variance) = measured.map_or((0.0, 0.0), |it| (it.score, it.score_variance));
        return format!(
            "Nothing was verified: evaluation {} measured {} (± {:.1}), which the model attributes to noise: it expects no \
             configuration to be better than the control; {NONE}",
            record.number,
            score_text(score, objective),
            1.96 * variance.sqrt() * 100.0
        );
    }
    let violated: Vec<String> = better
        .iter()
        .filter(|it| it.outcome == Outcome::Violated)
        .map(|it| it.number.to_string())
        .collect();
    if !violated.is_empty() {
        let numbers = violated.join(", ");
        return format!(
            "Only configurations that broke a constraint looked better than the control (evaluations {numbers}): {NONE}"
        );
    }
    match (is_ratio, expects_none) {
        (true, _) => format!("No configuration looked better than the control: {NONE}"),
        // Values of different times are no comparison with the control.
        (false, true) => {
            format!("The model expects no configuration to be better than the control: {NONE}")
        }
        (false, false) => format!("No configuration but the control was completed: {NONE}"),
    }
}

/// A constraint that the control is shown to break, by its blocks in all evaluations, with what it
/// measured.
fn broken_by_control(report: &Report) -> Option<String> {
    let constraints = report.spec.constraints.iter();
    let mut constraints = constraints.filter_map(|text| MetricConstraint::parse(text).ok());
    constraints.find_map(|constraint| {
        if !matches!(constraint.limit, ConstraintLimit::Absolute(_)) {
            return None;
        }
        let evaluations = report.evaluations.iter();
        let each: Vec<(f64, f64)> = evaluations
            .filter_map(|record| {
                let pairs = EvaluationRules::pairs(&record.blocks, &constraint.metric);
                let n = pairs.len() as f64;
                let excess = pairs
                    .iter()
                    .map(|it| constraint.excess(it.control, it.control));
                let value = pairs.iter().map(|it| it.control);
                (!pairs.is_empty()).then(|| (excess.sum::<f64>() / n, value.sum::<f64>() / n))
            })
            .collect();
        let excess: Vec<f64> = each.iter().map(|it| it.0).collect();
        let confidence = report.spec.verification.confidence;
        let is_broken = mean_interval(&excess, confidence).is_ok_and(|it| it.low > 0.0);
        is_broken.then(|| {
            let mean = each.iter().map(|it| it.1).sum::<f64>() / each.len() as f64;
            format!("{} ({} on average)", constraint.text, significant(mean))
        })
    })
}

/// Why nothing can be said.
fn no_result(report: &Report) -> String {
    let nothing = "No evaluation gave a result: nothing can be said.";
    let mut reasons = report.evaluations.iter().rev();
    match reasons.find_map(|record| record.reason.as_deref()) {
        Some(reason) => format!("{nothing} The last one that failed: {reason}"),
        None => nothing.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_that_is_slightly_worse_is_not_called_not_worse() {
        let of = |guard, low: f64, high: f64| GuardResult {
            guard,
            metric: None,
            verdict: GuardVerdict::NotWorse,
            change: Some(Interval {
                low,
                estimate: f64::midpoint(low, high),
                high,
                confidence: 0.95,
            }),
            is_allowed: false,
            at_saturation: false,
        };
        // Half a megabyte more of a small process.
        assert!(of(Guard::Memory, 1.17, 1.19).is_slightly_worse());
        assert_eq!(of(Guard::Memory, 1.17, 1.19).word(0.01), "below 1 MiB more");
        assert_eq!(
            of(Guard::Memory, 1.001, 1.009).word(0.01),
            "too little to count"
        );
        assert_eq!(of(Guard::Memory, 0.95, 1.27).word(0.01), "not shown worse");
        assert!(!of(Guard::Memory, 0.98, 1.02).is_slightly_worse());
        assert!(!of(Guard::Throughput, 1.2, 1.5).is_slightly_worse());
        assert!(of(Guard::Throughput, 0.993, 0.998).is_slightly_worse());
    }
}
