//! `slackline compare`: two reports side by side.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use paired_stats::{Interval, difference_interval};
use serde::Serialize;
use tuner::evaluation::EvaluationRules;
use tuner::report::{ArmResult, Report, change, difference};

use crate::done::CommandOutcome;
use crate::output::print;
use crate::{apply, table};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A report, as `tune --json` wrote it.
    a: PathBuf,
    /// The other report.
    b: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    let a = apply::read(&arguments.a)?;
    let b = apply::read(&arguments.b)?;
    let comparison = Comparison::of(&a, &b);
    if arguments.json {
        print(&(serde_json::to_string_pretty(&comparison)? + "\n"))?;
    } else {
        print(&comparison.text())?;
    }
    Ok(CommandOutcome::Positive)
}

/// What two reports say of the same things.
#[derive(Serialize)]
struct Comparison {
    /// Names and sentences of both.
    reports: [(String, String); 2],
    /// What differs between the experiments, so that the numbers may not be comparable.
    differences: Vec<String>,
    /// What the winner of each changes.
    winners: [Option<String>; 2],
    /// The verified changes, by metric.
    metrics: Vec<Row>,
}

/// A metric in both verifications.
#[derive(Serialize)]
struct Row {
    metric: String,
    /// The ratio to the control in the first report.
    a: Option<Interval>,
    /// In the second one.
    b: Option<Interval>,
    /// The second ratio over the first one, of the runs of both; at the lower of both confidences.
    b_over_a: Option<Interval>,
}

impl Comparison {
    fn of(a: &Report, b: &Report) -> Self {
        let winners = [a.winner(), b.winner()];
        let metrics: BTreeSet<&String> = winners
            .iter()
            .flatten()
            .flat_map(|arm| arm.ratios.keys())
            .collect();
        let row = |metric: &String| {
            let of = |arm: Option<&ArmResult>| arm.and_then(|arm| arm.ratios.get(metric).copied());
            let (of_a, of_b) = (of(winners[0]), of(winners[1]));
            let confidence = [of_a, of_b]
                .iter()
                .flatten()
                .map(|it| it.confidence)
                .fold(1.0, f64::min);
            let runs = winners.map(|arm| arm.map(|arm| run_means(arm, metric)).unwrap_or_default());
            let over = difference_interval(&runs[0], &runs[1], confidence).ok();
            Row {
                metric: metric.clone(),
                a: of_a,
                b: of_b,
                b_over_a: over
                    .filter(|_| of_a.is_some() && of_b.is_some())
                    .map(Interval::exp),
            }
        };
        Self {
            reports: [a, b].map(|report| (report.name.clone(), report.sentence.clone())),
            differences: differences(a, b),
            winners: [
                winners[0].map(|arm| difference(&arm.configuration, &a.control)),
                winners[1].map(|arm| difference(&arm.configuration, &b.control)),
            ],
            metrics: metrics.into_iter().map(row).collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (label, (name, sentence)) in ["A", "B"].iter().zip(&self.reports) {
            let _ = writeln!(text, "{label}  {name}: {sentence}");
        }
        if !self.differences.is_empty() {
            let _ = writeln!(text, "\nThe experiments differ, so compare with care:");
            for line in &self.differences {
                let _ = writeln!(text, "  {line}");
            }
        }
        text.push('\n');
        for (label, winner) in ["A", "B"].iter().zip(&self.winners) {
            let winner = winner.as_deref().unwrap_or("nothing was verified");
            let _ = writeln!(text, "{label}'s candidate: {winner}");
        }
        if self.metrics.is_empty() {
            return text;
        }
        let _ = writeln!(
            text,
            "\nVerified changes against each report's own control, and B's ratio over A's:"
        );
        let mut rows = table::narrow(&["metric", "A", "B", "B over A"]);
        let said = |interval: &Option<Interval>| interval.as_ref().map_or_else(String::new, change);
        for row in &self.metrics {
            rows.add_row([
                row.metric.clone(),
                said(&row.a),
                said(&row.b),
                said(&row.b_over_a),
            ]);
        }
        let _ = writeln!(text, "{}", table::fitted(rows));
        text
    }
}

/// The mean log ratio of each run that has the metric.
fn run_means(arm: &ArmResult, metric: &str) -> Vec<f64> {
    let of_run = |blocks: &Vec<tuner::evaluation::Block>| {
        let pairs = EvaluationRules::pairs(blocks, metric);
        let ratios = pairs
            .iter()
            .map(|pair| (pair.experiment / pair.control).ln());
        let n = pairs.len() as f64;
        (!pairs.is_empty()).then(|| ratios.sum::<f64>() / n)
    };
    arm.runs_blocks.iter().filter_map(of_run).collect()
}

fn differences(a: &Report, b: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let mut compare = |what: &str, a: String, b: String| {
        if a != b {
            lines.push(format!("{what}: {a} and {b}"));
        }
    };
    let objective = |report: &Report| {
        let objective = report.spec.objective.as_ref();
        objective.map_or_else(String::new, |it| format!("{:?} {}", it.goal, it.name()))
    };
    compare("objective", objective(a), objective(b));
    compare("version of Slackline", a.version.clone(), b.version.clone());
    let names: BTreeSet<&String> = a.control.0.keys().chain(b.control.0.keys()).collect();
    for name in names {
        let value = |report: &Report| {
            let value = report.control.get(name);
            value.map_or_else(|| "no such parameter".to_owned(), ToString::to_string)
        };
        compare(&format!("the control's {name}"), value(a), value(b));
    }
    let (of_a, of_b) = (&a.machine, &b.machine);
    compare("kernel", of_a.kernel.clone(), of_b.kernel.clone());
    compare("CPU", of_a.cpu_model.clone(), of_b.cpu_model.clone());
    compare("CPUs", of_a.cpus.to_string(), of_b.cpus.to_string());
    let part = |report: &Report| {
        let spec = &report.spec;
        serde_json::to_value((&spec.target, &spec.workload, &spec.evaluation)).unwrap_or_default()
    };
    if part(a) != part(b) {
        lines.push("the target, workload or evaluation in the specification".to_owned());
    }
    lines
}
