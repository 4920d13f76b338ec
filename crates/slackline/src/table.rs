//! Tables and texts on standard output.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use bayes_opt::{Kind, Parameter, Value};
use comfy_table::{ContentArrangement, Table, TableComponent, presets};
use host::{Probe, ProbeState};
use tuner::evaluation::Outcome;
use tuner::report::{Finding, Report, change, difference, score_text};
use tuner::spec::{CheckedSpec, Goal, ObjectiveScale};

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

/// The results of a tune, best first.
pub(crate) fn results(report: &Report) -> String {
    let Some(objective) = &report.spec.objective else {
        return String::new();
    };
    let name = objective.name();
    let change_header = match objective.goal {
        Goal::Minimise => format!("{name} (less is better)"),
        Goal::Maximise => format!("{name} (more is better)"),
    };
    let mut rows = table(&[
        "#",
        "outcome",
        &change_header,
        "± (95 %)",
        "differs from control in",
    ]);
    let mut rows_of: Vec<[String; 5]> = Vec::new();
    for record in report.ranked() {
        let (score, half) =
            record
                .measurement
                .as_ref()
                .map_or((String::new(), String::new()), |measurement| {
                    // Normal 97.5 % quantile: a guide for reading the search, not a claim.
                    let half = 1.96 * measurement.score_variance.sqrt();
                    (
                        score_text(measurement.score, objective),
                        match objective.scale {
                            ObjectiveScale::Ratio => format!("{:.1}", half * 100.0),
                            ObjectiveScale::Absolute => format!("{half:.4}"),
                        },
                    )
                });
        rows_of.push([
            record.number.to_string(),
            record.outcome.to_string(),
            score,
            half,
            difference(&record.configuration, &report.control),
        ]);
    }
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
    let place = report
        .ranked()
        .iter()
        .take_while(|record| {
            record.outcome == Outcome::Completed
                && record
                    .measurement
                    .as_ref()
                    .is_some_and(|measurement| measurement.score < 0.0)
        })
        .count();
    rows_of.insert(place, baseline);
    for row in rows_of {
        rows.add_row(row);
    }
    let mut text = format!("{rows}\n");
    if !report.verification.is_empty() {
        let _ = writeln!(text, "\nVerification on fresh runs, against the control:");
        let mut arms = table(&[
            "arm",
            "metric",
            "change [interval]",
            "control's mean",
            "arm's mean",
            "runs",
        ]);
        for arm in &report.verification {
            let means = |metric: &str| {
                let (control, experiment) = arm
                    .means
                    .get(metric)
                    .copied()
                    .unwrap_or((f64::NAN, f64::NAN));
                [number(control), number(experiment)]
            };
            let ratios = arm.ratios.iter();
            let ratios = ratios.map(|(metric, interval)| (metric, change(interval)));
            let others = arm.without_interval.iter();
            let others = others.map(|(metric, why)| (metric, format!("no interval: {why}")));
            for (metric, said) in ratios.chain(others) {
                let [control, experiment] = means(metric);
                arms.add_row([
                    arm.name.clone(),
                    metric.clone(),
                    said,
                    control,
                    experiment,
                    arm.runs.to_string(),
                ]);
            }
            for fault in &arm.faults {
                arms.add_row([&arm.name, "", &format!("fault: {fault}"), "", "", ""]);
            }
            for violated in &arm.violated {
                arms.add_row([&arm.name, "", &format!("violated: {violated}"), "", "", ""]);
            }
        }
        if !arms.is_empty() {
            let _ = writeln!(text, "{arms}");
            let _ = writeln!(
                text,
                "A change is of geometric means, block by block against the control; the means beside it are plain."
            );
        }
    }
    for skipped in &report.skipped {
        let _ = writeln!(text, "skipped {skipped}");
    }
    let _ = writeln!(text, "\n{}", report.sentence);
    if !report.settings.is_empty() {
        let heading = if report.finding == Finding::Improvement {
            "The winner's settings:"
        } else {
            "The settings of the best candidate, which was not shown to be better:"
        };
        let _ = writeln!(text, "\n{heading}");
        for setting in &report.settings {
            let _ = writeln!(text, "  {setting}");
        }
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
    for remark in remarks(spec) {
        let _ = writeln!(text, "  {remark}");
    }
    let _ = writeln!(text, "  {}", spec.planned_time());
    text
}

/// What [`CheckedSpec::remarks`] says with this process's PATH.
pub(crate) fn remarks(spec: &CheckedSpec) -> Vec<String> {
    spec.remarks(&std::env::var_os("PATH").unwrap_or_default())
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
    use tuner::simulation::{Noise, SimulatedService, Truth, pooled_service};

    use super::*;

    /// Everything a table can show: a violated constraint, a crash, an abort, and a baseline in the middle.
    #[test]
    fn results_of_a_simulated_tune() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pooled.toml");
        let text = r#"
            name = "pooled"
            seed = 4
            constraints = ["latency_p99_us <= 1.02 * control"]
            [[parameters]]
            name = "threads"
            type = "int"
            low = 1
            high = 32
            default = 16
            [[parameters]]
            name = "buffer_kib"
            type = "int"
            low = 4
            high = 1024
            scale = "log"
            default = 16
            [target]
            start = ["sleep", "9"]
            [workload]
            command = ["true"]
            json = { requests = "requests", latency_p99_us = "p99", requests_per_s = "rate" }
            [objective]
            metric = "requests_per_s"
            goal = "maximise"
            [budget]
            evaluations = 9
            [search]
            strategy = "sobol"
        "#;
        std::fs::write(&path, text).unwrap();
        let spec = tuner::spec::load(&path, &host::Roots::default()).unwrap();
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
        let report =
            tuner::experiment::run(&spec, &mut service, &mut |_: &tuner::ledger::Event<'_>| {})
                .unwrap();
        insta::assert_snapshot!(results(&report));
    }
}
