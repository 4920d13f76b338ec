//! Tables and texts on standard output.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal as _;

use bayes_opt::{Kind, Parameter, Value};
use comfy_table::{ColumnConstraint, ContentArrangement, Table, TableComponent, Width, presets};
use host::{Probe, ProbeState};
use tuner::conclusion::{ConstraintVerdict, GuardVerdict};
use tuner::evaluation::Outcome;
use tuner::report::{AGAINST_MEANS, ArmResult, EvaluationRecord, Report};
use tuner::report::{change, difference, score_text, significant};
use tuner::sentence::{guard_change, observed};
use tuner::spec::{CheckedSpec, Goal, ObjectiveScale, ObjectiveSpec};

use crate::style;

/// Columns where there is no terminal to ask: what a log or a mail shows without wrapping.
const PIPE_WIDTH: u16 = 120;

pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    for between_rows in [
        TableComponent::HorizontalLines,
        TableComponent::MiddleIntersections,
        TableComponent::LeftBorderIntersections,
        TableComponent::RightBorderIntersections,
    ] {
        table.remove_style(between_rows);
    }
    table.set_content_arrangement(ContentArrangement::Dynamic);
    // A serial console is a terminal of no width.
    if !std::io::stdout().is_terminal() || table.width() == Some(0) {
        table.set_width(PIPE_WIDTH);
    }
    table.set_header(header);
    table
}

/// Columns of a table that is to fit everywhere.
const NARROW_WIDTH: u16 = 80;

/// A table that fits 80 columns, or a wider terminal.
pub(crate) fn narrow(header: &[&str]) -> Table {
    let mut rows = table(header);
    if rows.width().is_none_or(|width| width == PIPE_WIDTH) {
        rows.set_width(NARROW_WIDTH);
    }
    rows
}

/// The table with columns that break no word: names stay whole, also where the table becomes too
/// wide then.
pub(crate) fn fitted(mut rows: Table) -> Table {
    let longest_word = |text: &str| {
        let words = text.split_whitespace().map(|word| word.chars().count());
        words.max().unwrap_or(0)
    };
    let count = rows.column_count();
    let widths: Vec<usize> = (0..count)
        .map(|index| {
            let header = rows.header().and_then(|row| row.cell_iter().nth(index));
            let cells = rows.row_iter().filter_map(|row| row.cell_iter().nth(index));
            let contents = header
                .into_iter()
                .chain(cells)
                .map(comfy_table::Cell::content);
            contents.map(|text| longest_word(&text)).max().unwrap_or(0)
        })
        .collect();
    for (column, width) in rows.column_iter_mut().zip(widths) {
        let width = u16::try_from(width + 2).unwrap_or(u16::MAX);
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
    }
    rows
}

/// The results of a tune, best first.
pub(crate) fn results(report: &Report) -> String {
    let Some(objective) = &report.spec.objective else {
        return String::new();
    };
    let mut text = evaluations(report, objective);
    if let Some(why) = report.winner_rank() {
        let _ = writeln!(text, "{why}");
    }
    text.push_str(&violations(report));
    text.push_str(&failures(report));
    if !report.verification.is_empty() {
        text.push_str(
            "\nVerification on fresh runs. Changes are against the control of the same blocks:\n",
        );
        for arm in &report.verification {
            text.push_str(&verified_arm(arm, report.spec.verification.smallest_effect));
        }
    }
    let controls = report.control_runs();
    if !controls.is_empty() {
        text.push_str("\nThe control of the search kept running from evaluation to evaluation:\n");
    }
    for control in controls {
        let _ = writeln!(text, "  {control}");
    }
    for skipped in &report.skipped {
        let _ = writeln!(text, "skipped {skipped}");
    }
    text.push_str(&latency_requests(report));
    for before in &report.promoted_before {
        let _ = writeln!(text, "{before}");
    }
    let _ = writeln!(text, "\n{}", report.sentence);
    if !report.settings.is_empty() {
        let _ = writeln!(text, "\n{}:", report.finding.settings_heading());
        for setting in &report.settings {
            let _ = writeln!(text, "  {setting}");
        }
    }
    text
}

/// How many requests each latency stands on.
fn latency_requests(report: &Report) -> String {
    let mut text = String::new();
    let searched = report.evaluations.iter().flat_map(|it| &it.blocks);
    let verified = report.verification.iter();
    let verified = verified.flat_map(|arm| arm.runs_blocks.iter().flatten());
    let blocks: Vec<_> = searched.chain(verified).collect();
    for name in report.spec.metrics.keys() {
        let requests = format!("{name}_requests");
        let sides = blocks
            .iter()
            .flat_map(|block| [&block.control, &block.experiment]);
        let counts: Vec<f64> = sides
            .filter_map(|side| side.get(&requests).copied())
            .collect();
        let least = counts.iter().copied().fold(f64::INFINITY, f64::min);
        let most = counts.iter().copied().fold(0.0, f64::max);
        if !counts.is_empty() {
            let _ = writeln!(
                text,
                "{name}: each side of a block has {least:.0} to {most:.0} requests"
            );
        }
    }
    text
}

/// The table of the search.
fn evaluations(report: &Report, objective: &ObjectiveSpec) -> String {
    let better = match objective.goal {
        Goal::Minimise => "less is better",
        Goal::Maximise => "more is better",
    };
    let name = objective.name();
    let of = match objective.scale {
        ObjectiveScale::Ratio => "as a change against the control of the same blocks",
        ObjectiveScale::Absolute => "in its own unit",
    };
    let ranked = report.ranked();
    let mut rows_of: Vec<(Option<Outcome>, [String; 5])> = ranked
        .iter()
        .map(|record| {
            let [score, half] = scores(record, objective);
            let row = [
                record.number.to_string(),
                record.outcome.to_string(),
                score,
                half,
                difference(&record.configuration, &report.control),
            ];
            (Some(record.outcome), row)
        })
        .collect();
    let is_better = |record: &&&EvaluationRecord| {
        let measured = record.measurement.as_ref();
        record.outcome == Outcome::Completed && measured.is_some_and(|it| it.score < 0.0)
    };
    let place = ranked.iter().take_while(is_better).count();
    let baseline = [
        "–".to_owned(),
        "baseline".to_owned(),
        match objective.scale {
            ObjectiveScale::Ratio => "+0.0 %".to_owned(),
            ObjectiveScale::Absolute => String::new(),
        },
        String::new(),
        "the control".to_owned(),
    ];
    rows_of.insert(place, (None, baseline));
    let mut rows = narrow(&[
        "#",
        "outcome",
        "change",
        "± (95 %)",
        "differs from control in",
    ]);
    for (outcome, row) in rows_of {
        let cells = row.into_iter().enumerate();
        rows.add_row(cells.map(|(index, text)| match (index, outcome) {
            (1, Some(outcome)) => style::cell(text, colour_of(outcome)),
            _ => comfy_table::Cell::new(text),
        }));
    }
    format!("{name} ({better}), {of}:\n{}\n", fitted(rows))
}

/// The colour of an outcome.
pub(crate) fn colour_of(outcome: Outcome) -> style::Colour {
    match outcome {
        Outcome::Completed => style::Colour::Good,
        Outcome::Aborted | Outcome::Killed => style::Colour::Quiet,
        Outcome::Violated => style::Colour::Warning,
        Outcome::Crashed | Outcome::Failed => style::Colour::Bad,
    }
}

/// What an evaluation measured, and half the width of its interval.
fn scores(record: &EvaluationRecord, objective: &ObjectiveSpec) -> [String; 2] {
    let Some(measurement) = &record.measurement else {
        return [String::new(), String::new()];
    };
    // Normal 97.5 % quantile: a guide for reading the search, not a claim.
    let half = 1.96 * measurement.score_variance.sqrt();
    [
        score_text(measurement.score, objective),
        match objective.scale {
            ObjectiveScale::Ratio => format!("{:.1}", half * 100.0),
            ObjectiveScale::Absolute => significant(half),
        },
    ]
}

/// The constraints that evaluations broke, each with those evaluations and how far.
fn violations(report: &Report) -> String {
    let mut broken: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for record in &report.evaluations {
        for (constraint, by) in record.broken() {
            let by = by.map_or_else(String::new, |by| format!(" (by {by})"));
            let evaluations = broken.entry(constraint).or_default();
            evaluations.push(format!("{}{by}", record.number));
        }
    }
    let lines = broken.into_iter().map(|(constraint, evaluations)| {
        format!("{constraint} is broken in {}\n", evaluations.join(", "))
    });
    lines.collect()
}

/// Why evaluations gave no result, once for each reason, with the end of the service's own output.
fn failures(report: &Report) -> String {
    let mut reasons: Vec<(Vec<String>, &EvaluationRecord)> = Vec::new();
    for record in &report.evaluations {
        let Some(reason) = &record.reason else {
            continue;
        };
        let number = record.number.to_string();
        let same = |(_, other): &&mut (Vec<String>, &EvaluationRecord)| {
            let is_one_crash = match (&record.crash, &other.crash) {
                (Some(crash), Some(other)) => crash.is_like(other),
                _ => false,
            };
            other.outcome == record.outcome
                && (is_one_crash || other.reason.as_ref() == Some(reason))
        };
        match reasons.iter_mut().find(same) {
            Some((numbers, last)) => {
                numbers.push(number);
                *last = record;
            }
            None => reasons.push((vec![number], record)),
        }
    }
    let mut text = String::new();
    for (numbers, record) in reasons {
        let reason = record.reason.as_deref().unwrap_or_default();
        let _ = writeln!(text, "{} {}: {reason}", numbers.join(", "), record.outcome);
        let output = record
            .crash
            .as_ref()
            .and_then(|crash| crash.output.as_deref());
        if let Some(output) = output {
            let lines: Vec<&str> = output.lines().collect();
            let last = &lines[lines.len().saturating_sub(OUTPUT_LINES)..];
            let _ = writeln!(
                text,
                "  the end of its output in evaluation {}:",
                record.number
            );
            for line in last {
                let _ = writeln!(text, "    {line}");
            }
        }
    }
    text
}

/// How many lines of a service's output stand beneath the table; the report has more.
const OUTPUT_LINES: usize = 8;

/// One arm of the verification.
fn verified_arm(arm: &ArmResult, smallest_effect: f64) -> String {
    let mut text = format!(
        "\n{}: {} runs, {} pairs of blocks\n",
        arm.name, arm.runs, arm.blocks
    );
    let mut rows = narrow(&["metric", "change [interval]", "control → arm"]);
    let means = |metric: &str| {
        let means = arm.means.get(metric);
        means.map_or_else(String::new, |(control, experiment)| {
            format!("{} → {}", number(*control), number(*experiment))
        })
    };
    let ratios = arm.ratios.iter();
    let ratios = ratios.map(|(metric, interval)| (metric, change(interval)));
    let others = arm.without_interval.iter();
    let others = others.map(|(metric, why)| (metric, format!("no interval: {why}")));
    for (metric, said) in ratios.chain(others) {
        rows.add_row([metric.clone(), said, means(metric)]);
    }
    if !rows.is_empty() {
        let _ = writeln!(text, "{}", fitted(rows));
    }
    if arm.ratios.keys().any(|metric| arm.is_against_means(metric)) {
        let _ = writeln!(text, "  {AGAINST_MEANS}");
    }
    for constraint in &arm.constraints {
        let (verdict, colour) = match constraint.verdict {
            ConstraintVerdict::Held => ("held", style::Colour::Good),
            ConstraintVerdict::Broken => ("broken", style::Colour::Bad),
            ConstraintVerdict::NotDecidable => ("not decidable", style::Colour::Warning),
        };
        let verdict = style::paint(&format!("{verdict:<19}"), colour);
        let _ = writeln!(text, "  {verdict}  {}", observed(constraint));
    }
    for guard in &arm.guards {
        let verdict = guard.word(smallest_effect);
        let colour = match guard.verdict {
            GuardVerdict::Worse => style::Colour::Bad,
            GuardVerdict::NotWorse => style::Colour::Good,
            GuardVerdict::NotMeasured => style::Colour::Quiet,
            GuardVerdict::Specified => continue,
        };
        let verdict = style::paint(&format!("{verdict:<19}"), colour);
        let name = guard.guard.name();
        let _ = match guard.change {
            Some(_) => writeln!(text, "  {verdict}  {name}: {}", guard_change(guard)),
            None => writeln!(text, "  {verdict}  {name}"),
        };
    }
    for fault in &arm.faults {
        let _ = writeln!(text, "  fault: {fault}");
    }
    for unsteady in arm.unsteady.iter().chain(&arm.few_requests) {
        let _ = writeln!(text, "  {unsteady}");
    }
    text
}

fn number(value: f64) -> String {
    if value.is_nan() {
        String::new()
    } else if value != 0.0 && value.abs() < 0.01 {
        format!("{value:.3e}")
    } else {
        format!("{value:.2}")
    }
}

/// What `slackline check` says of a good specification.
pub(crate) fn check(spec: &CheckedSpec) -> String {
    let parameters = match spec.space.parameters().len() {
        1 => "1 parameter".to_owned(),
        count => format!("{count} parameters"),
    };
    let mut text = format!("{}: {parameters}", spec.name);
    if let Some(count) = spec.space.cardinality() {
        let _ = write!(text, ", {count} configurations");
    }
    text.push('\n');
    let control = spec.space.default_configuration();
    for (name, value) in &control.0 {
        let parameter = spec.space.parameters().iter().find(|it| it.name == *name);
        let range = parameter.map_or_else(String::new, range);
        let of = spec
            .knobs
            .get(name)
            .map_or_else(String::new, |binding| match &binding.element {
                Some(element) => format!("  ({}[{}])", binding.knob, element.index),
                None => format!("  ({})", binding.knob),
            });
        let _ = writeln!(text, "  {name} = {value}  of {range}{of}");
    }
    let _ = writeln!(text, "  {}", spec.planned_time());
    text
}

/// Says what [`tuner::remarks`] says with this process's PATH.
pub(crate) fn warn(spec: &CheckedSpec) {
    for remark in tuner::remarks(spec, &std::env::var_os("PATH").unwrap_or_default()) {
        crate::output::message(&format!("warning: {remark}"));
    }
}

/// What a parameter may be.
fn range(parameter: &Parameter) -> String {
    let ordinary = match &parameter.kind {
        Kind::Int {
            low,
            high,
            step,
            log,
        } => between(low, high, Some(step).filter(|step| **step != 1), *log),
        Kind::Float {
            low,
            high,
            step,
            log,
        } => between(low, high, step.as_ref(), *log),
        Kind::Ordinal { values } | Kind::Categorical { values } => listed(values),
        Kind::Bool => "true, false".to_owned(),
    };
    match parameter.special.as_slice() {
        [] => ordinary,
        special => format!("{ordinary}, or {}", listed(special)),
    }
}

fn between<T: std::fmt::Display>(low: T, high: T, step: Option<T>, log: bool) -> String {
    let step = step.map_or_else(String::new, |step| format!(" by {step}"));
    let scale = if log { ", log scale" } else { "" };
    format!("{low} to {high}{step}{scale}")
}

fn listed(values: &[Value]) -> String {
    let texts: Vec<String> = values.iter().map(Value::to_string).collect();
    texts.join(", ")
}

/// What `slackline doctor` says.
pub(crate) fn doctor(probes: &[Probe]) -> String {
    let mut rows = table(&["feature", "state", "needed for"]);
    for probe in probes {
        let state = match &probe.state {
            ProbeState::Available { detail } => format!("available: {detail}"),
            ProbeState::Missing { why } => format!("missing: {why}"),
        };
        rows.add_row([probe.name.to_string(), state, probe.needed_for.to_string()]);
    }
    format!("{rows}\n")
}

#[cfg(test)]
mod tests {
    use tuner::simulation::{Noise, POOLED_SPEC, SimulatedService, Truth, pooled_service};

    use super::*;

    /// Everything a table can show: a violated constraint, a crash, an abort, and a baseline in the
    /// middle.
    #[test]
    fn results_of_a_simulated_tune() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pooled.toml");
        let text = format!(
            r#"
            name = "pooled"
            seed = 4
            constraints = ["latency_p99_us <= 1.02 * control"]
            {POOLED_SPEC}
            [objective]
            metric = "requests_per_s"
            goal = "maximise"
            [budget]
            evaluations = 9
            [search]
            strategy = "sobol"
        "#
        );
        std::fs::write(&path, text).unwrap();
        let spec = tuner::spec::context(&host::Roots::default())
            .load(&path)
            .unwrap();
        let truth = |at: &bayes_opt::Configuration| Truth {
            latency_p99_us: if tuner::simulation::number(at, "threads", 0.0) < 4.0 {
                9000.0
            } else {
                2000.0
            },
            ..pooled_service(at)
        };
        let control = spec.space.default_configuration();
        let mut service = SimulatedService::new(4, Noise::default(), control, truth);
        let report = tuner::experiment::run(
            &spec,
            &mut service,
            &mut |_: &tuner::ledger::LedgerEvent<'_>| {},
        )
        .unwrap();
        insta::assert_snapshot!(results(&report));
    }
}
