//! `slackline throttle loadtest`: how much load a service takes, before and after a change.

use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use clap::builder::PossibleValuesParser;
use throttle_watch::{
    LoadSource, LoadtestOptions, LoadtestReport, ThrottleError, WatchReport, loadtest,
};
use tuner::parse::Format;
use tuner::process::Interrupt;

use super::page;
use super::target::Watched;
use crate::done::CommandOutcome;
use crate::load;
use crate::output::{error_chain, message};

const SERVICE: &str = "If the service runs on this machine, name it by --pid, --cgroup, --unit or --container. loadtest then also \
compares the cores in use before and after the change, under the same load.";

#[derive(clap::Args)]
#[command(after_help = SERVICE)]
pub(crate) struct Arguments {
    #[command(flatten)]
    load: Load,
    /// The tool whose report the command prints. The tool must keep a fixed rate and print the 99th
    /// percentile. pgbench prints no percentiles: give it `-L` with the objective in milliseconds.
    #[arg(long, value_name = "FORMAT", value_parser = formats(), requires = "command")]
    parse: Option<String>,
    #[command(flatten)]
    source: load::Source,
    /// Objective: limit for the 99th percentile of latency, in milliseconds.
    #[arg(long, value_name = "MS")]
    slo_p99_ms: f64,
    /// Objective: largest share of requests that may fail, at least 0 and below 1.
    #[arg(long, default_value_t = 0.001, value_name = "SHARE")]
    errors_max: f64,
    /// The first rate to try, in requests a second.
    #[arg(long, default_value_t = 100.0, value_name = "N")]
    start: f64,
    /// Length of one run at one rate, in seconds.
    #[arg(long, default_value_t = 10.0, value_parser = load::seconds, value_name = "S")]
    step_s: f64,
    /// The search ends when the highest load that holds the objective is known to this relative
    /// precision: 0.05 is 5 %.
    #[arg(long, default_value_t = 0.05, value_name = "SHARE")]
    tolerance: f64,
    /// Number of independent searches, for each side.
    #[arg(long, default_value_t = 3, value_name = "N")]
    runs: usize,
    /// Shell command that puts the service into its state before the change. The command runs again
    /// at the end.
    #[arg(long, value_name = "COMMAND", requires = "after")]
    before: Option<String>,
    /// Shell command that makes the change.
    #[arg(long, value_name = "COMMAND", requires = "before")]
    after: Option<String>,
    #[command(flatten)]
    watched: Option<Watched>,
    /// Write the results to this file as JSON. `-` prints them instead of the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results to one HTML file, with the histograms of cores in use before and after the
    /// change side by side.
    #[arg(long, value_name = "FILE", value_parser = crate::output::file_to_write)]
    html: Option<PathBuf>,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Load {
    /// The URL, such as http://127.0.0.1:8080/. With `--requests`, the part of the URL before the
    /// paths of the list.
    #[arg(long, value_parser = load::url)]
    url: Option<String>,
    /// Use another load generator: a shell command. Slackline replaces {rate} (requests a second)
    /// and {duration_s} (seconds).
    #[arg(
        long,
        value_name = "COMMAND",
        requires = "parse",
        conflicts_with = "Source"
    )]
    command: Option<String>,
}

/// The tools that can hold a rate and tell whether the objective is kept.
fn formats() -> PossibleValuesParser {
    let able = Format::ALL
        .into_iter()
        .filter(|format| format.p99_advice().is_some());
    PossibleValuesParser::new(able.map(Format::name))
}

fn format_of(name: &str) -> anyhow::Result<Format> {
    let mut known = Format::ALL.into_iter();
    let format = known.find(|format| format.name() == name);
    format.with_context(|| format!("--parse {name} is not known"))
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    let positive = |name: &str, value: f64| {
        ensure!(
            value > 0.0 && value.is_finite(),
            "{name} must be above 0, not {value}"
        );
        Ok(())
    };
    positive("--slo-p99-ms", arguments.slo_p99_ms)?;
    positive("--start", arguments.start)?;
    positive("--tolerance", arguments.tolerance)?;
    ensure!(
        (0.0..1.0).contains(&arguments.errors_max),
        "--errors-max must be at least 0 and below 1, not {}",
        arguments.errors_max
    );
    let command = arguments.load.command.as_ref();
    ensure!(
        command.is_none_or(|command| command.contains("{rate}")),
        "--command has to say where its rate goes: write {{rate}} there"
    );
    ensure!(
        arguments.runs >= 2,
        "--runs must be at least 2: one search has no interval"
    );
    crate::output::ensure_writable(&[arguments.json.as_deref(), arguments.html.as_deref()])?;
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    let end = match loadtest(&options(arguments)?, &interrupt, &message) {
        Err(ThrottleError::Stopped { signal }) => return Ok(CommandOutcome::Signal(signal)),
        end => end?,
    };
    let report = end.report.map_err(anyhow::Error::from);
    let done = match (report, interrupt.signal()) {
        (_, Some(signal)) => Ok(CommandOutcome::Signal(signal)),
        (report, None) => report.and_then(|report| tell(arguments, &report)),
    };
    let Err(error) = end.put_back else {
        return done;
    };
    if let Err(earlier) = done {
        message(&format!("slackline: {}", error_chain(&earlier)));
    }
    message(&format!(
        "The service could not be put back: {}",
        error_chain(&error.into())
    ));
    Ok(CommandOutcome::RestoreFailed)
}

/// Prints and writes what was found.
fn tell(arguments: &Arguments, report: &LoadtestReport) -> anyhow::Result<CommandOutcome> {
    crate::output::publish(
        arguments.json.as_deref(),
        report,
        &text(report),
        "Everything",
    )?;
    if let Some(file) = &arguments.html {
        page::write(file, "Load within the objective", &html(report))?;
    }
    let is_worse = report
        .ratio
        .is_some_and(|ratio| !(ratio.excludes(1.0) && ratio.estimate > 1.0));
    Ok(if is_worse {
        CommandOutcome::Negative
    } else {
        CommandOutcome::Positive
    })
}

fn options(arguments: &Arguments) -> anyhow::Result<LoadtestOptions<'_>> {
    let load = match (
        &arguments.load.url,
        &arguments.load.command,
        &arguments.parse,
    ) {
        (Some(url), ..) => LoadSource::Http(Box::new(move |per_s, number| {
            let source = &arguments.source;
            Ok(source.at_rate(url, per_s, arguments.step_s, number)?)
        })),
        (None, Some(command), Some(format)) => LoadSource::Command {
            command: command.clone(),
            format: format_of(format)?,
        },
        _ => bail!("give either --url, or --command and --parse"),
    };
    Ok(LoadtestOptions {
        load,
        slo_p99_ms: arguments.slo_p99_ms,
        errors_max: arguments.errors_max,
        start: arguments.start,
        step_s: arguments.step_s,
        tolerance: arguments.tolerance,
        runs: arguments.runs,
        before: arguments.before.clone(),
        after: arguments.after.clone(),
        service: arguments
            .watched
            .as_ref()
            .map(Watched::target)
            .transpose()?,
    })
}

fn text(report: &LoadtestReport) -> String {
    let mut lines = findings(report);
    if let Some(per_s) = report.watched_at_per_s {
        lines.push(format!("\nAt {per_s:.1}/s:\n"));
        let columns: Vec<String> = watched(report)
            .map(|(name, watch)| super::text::watched(name, watch))
            .collect();
        lines.push(super::text::side_by_side(&columns));
    }
    lines.join("\n") + "\n"
}

fn html(report: &LoadtestReport) -> String {
    let mut html = page::paragraphs(&findings(report));
    if let Some(per_s) = report.watched_at_per_s {
        let watched: Vec<_> = watched(report).collect();
        html.push_str(&format!(
            "<h2>Cores in use at {per_s:.1}/s, windows of 10 ms</h2>\n"
        ));
        html.push_str(&page::side_by_side(&watched));
    }
    html
}

fn watched(report: &LoadtestReport) -> impl Iterator<Item = (&str, &WatchReport)> {
    report
        .sides
        .iter()
        .filter_map(|side| Some((side.name, side.watch.as_ref()?)))
}

/// Both capacities, and how they compare.
fn findings(report: &LoadtestReport) -> Vec<String> {
    let mut lines = Vec::new();
    for side in &report.sides {
        if let Some(capacity) = side.capacity_per_s {
            lines.push(format!(
                "{}: {:.1}/s [{:.1}, {:.1}] with p99 at most {} ms ({} searches, 95 % confidence)",
                side.name,
                capacity.estimate,
                capacity.low,
                capacity.high,
                report.slo_p99_ms,
                side.capacities_per_s.len()
            ));
        }
    }
    if let Some(ratio) = report.ratio {
        let finding = if ratio.excludes(1.0) {
            "Shown"
        } else {
            "No difference shown"
        };
        lines.push(format!(
            "{finding}: {} load within the objective, after against before.",
            tuner::report::change(&ratio)
        ));
    }
    lines
}
