//! `slackline throttle loadtest`: how much load a service takes, before and after a change.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ::load::{Bottleneck, LoadPlan, ServiceOnHost};
use anyhow::{Context as _, bail, ensure};
use clap::builder::PossibleValuesParser;
use host::Roots;
use paired_stats::{Interval, Pair, StatsError, mean_interval, ratio_interval};
use serde::Serialize;
use throttle::capacity::{CapacitySearch, Trial};
use tuner::parse::Format;
use tuner::process::Interrupt;

use super::shell::shell;
use super::target::{Watched, group_of};
use super::{page, report, watch};
use crate::done::CommandOutcome;
use crate::load;
use crate::output::{error_chain, message};

/// How often a rate is tried at which the generator was held up.
const ATTEMPTS: usize = 5;
/// The share of the requests that may be above a 99th percentile.
const LATE_SHARE: f64 = 0.01;
/// Of every interval.
const CONFIDENCE: f64 = 0.95;
/// The share of the lower capacity at which both sides are watched: both hold there, one only just.
const WATCH_AT: f64 = 0.9;

const SERVICE: &str = "If the service runs on this machine, name it by --pid, --cgroup, --unit or --container. loadtest then also \
compares the cores in use before and after the change, under the same load.";

#[derive(clap::Args)]
#[command(after_help = SERVICE)]
pub(crate) struct Arguments {
    #[command(flatten)]
    load: Load,
    /// The tool whose report the command prints. The tool must keep a fixed rate and print the 99th
    /// percentile. For pgbench, use `-L` with the objective instead of the percentile.
    #[arg(long, value_name = "FORMAT", value_parser = formats(), requires = "command")]
    parse: Option<String>,
    #[command(flatten)]
    source: load::Source,
    /// Objective: limit for the 99th percentile of latency, in milliseconds.
    #[arg(long, value_name = "MS")]
    slo_p99_ms: f64,
    /// Objective: largest share of requests that may fail, from 0 to 1.
    #[arg(long, default_value_t = 0.001, value_name = "SHARE")]
    errors_max: f64,
    /// The first rate to try, in requests a second.
    #[arg(long, default_value_t = 100.0, value_name = "N")]
    start: f64,
    /// Length of one run at one rate, in seconds.
    #[arg(long, default_value_t = 10.0, value_parser = load::seconds, value_name = "S")]
    step_s: f64,
    /// The search ends when the capacity is known to this relative precision.
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

/// What one side took.
#[derive(Serialize)]
struct Side {
    name: &'static str,
    /// One for each search.
    capacities_per_s: Vec<f64>,
    /// Of the searches' mean.
    capacity_per_s: Option<Interval>,
    trials: Vec<Trial>,
    /// Under the same load as the other side.
    watch: Option<report::Report>,
}

#[derive(Serialize)]
struct Report {
    slo_p99_ms: f64,
    errors_max: f64,
    step_s: f64,
    tolerance: f64,
    sides: Vec<Side>,
    /// Capacity after the change over that before.
    ratio: Option<Interval>,
    /// The load under which the sides were watched.
    watched_at_per_s: Option<f64>,
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
    if let Err(error) = put(arguments, 0) {
        // Where it fails, there is nothing to put back yet.
        return interrupt.signal().map(CommandOutcome::Signal).ok_or(error);
    }
    if let Some(watched) = &arguments.watched {
        // Not earlier: where --before starts the service, there is no group until now. Not later:
        // searches take hours.
        group_of(&Roots::default(), watched)?;
    }
    let report = measure(arguments, &interrupt);
    // Also after an error or a signal: the service is left as it was found.
    let put_back = put(arguments, 0);
    let done = match (report, interrupt.signal()) {
        (_, Some(signal)) => Ok(CommandOutcome::Signal(signal)),
        (report, None) => report.and_then(|report| tell(arguments, &report)),
    };
    let Err(error) = put_back else {
        return done;
    };
    if let Err(earlier) = done {
        message(&format!("slackline: {}", error_chain(&earlier)));
    }
    message(&format!(
        "The service could not be put back: {}",
        error_chain(&error)
    ));
    Ok(CommandOutcome::RestoreFailed)
}

/// Prints and writes what was found.
fn tell(arguments: &Arguments, report: &Report) -> anyhow::Result<CommandOutcome> {
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

fn measure(arguments: &Arguments, interrupt: &Interrupt) -> anyhow::Result<Report> {
    let mut sides = vec![Side::new("before")];
    if arguments.after.is_some() {
        sides.push(Side::new("after"));
    } else {
        sides[0].name = "service";
    }
    for run in 0..arguments.runs {
        let mut order: Vec<usize> = (0..sides.len()).collect();
        // A B, B A, …: what drifts favours nobody.
        if run % 2 == 1 {
            order.reverse();
        }
        for index in order {
            // The first search finds the service as it was put before all of them.
            if run > 0 || index > 0 {
                put(arguments, index)?;
            }
            let side = &mut sides[index];
            // Each search has a grid of rates of its own, so that what the grid rounds off varies
            // like any other error.
            let offset = 2_f64.powf(run as f64 / arguments.runs as f64);
            let mut search = CapacitySearch::new(arguments.start * offset, arguments.tolerance);
            while let Some(per_s) = search.next() {
                let (outcome, held) = undisturbed(arguments, per_s, &search, interrupt)?;
                message(&format!(
                    "{}, search {}/{}: {per_s:.1}/s {} ({})",
                    side.name,
                    run + 1,
                    arguments.runs,
                    if held { "holds" } else { "fails" },
                    outcome.figures(),
                ));
                search.take(held);
            }
            side.trials.extend_from_slice(search.trials());
            let Some(capacity) = search.capacity() else {
                let last = search.trials().last().map_or(0.0, |trial| trial.per_s);
                bail!(
                    "{}: no rate down or up to {last:.3}/s divides holding from failing: is --slo-p99-ms right?",
                    side.name
                );
            };
            side.capacities_per_s.push(capacity);
        }
    }
    for side in &mut sides {
        let interval = interval_of(&side.capacities_per_s)?;
        side.capacity_per_s = Some(widened(interval, arguments.tolerance / 2.0));
    }
    let ratio = match sides.as_slice() {
        [before, after] => Some(widened(ratio_of(before, after)?, arguments.tolerance)),
        _ => None,
    };
    let mut watched_at_per_s = None;
    if let Some(watched) = &arguments.watched {
        let estimate = |side: &Side| {
            side.capacity_per_s
                .map_or(f64::INFINITY, |capacity| capacity.estimate)
        };
        let per_s = WATCH_AT * sides.iter().map(estimate).fold(f64::INFINITY, f64::min);
        watched_at_per_s = Some(per_s);
        for (index, side) in sides.iter_mut().enumerate() {
            put(arguments, index)?;
            let seen = std::thread::scope(|scope| {
                let loading = scope.spawn(|| trial(arguments, per_s, 0, false, interrupt));
                let seen = watch::observe(watched, arguments.step_s, interrupt);
                loading
                    .join()
                    .map_err(|_| anyhow::anyhow!("the load generator panicked"))??;
                seen
            })?;
            side.watch = Some(seen);
        }
    }
    Ok(Report {
        slo_p99_ms: arguments.slo_p99_ms,
        errors_max: arguments.errors_max,
        step_s: arguments.step_s,
        tolerance: arguments.tolerance,
        sides,
        ratio,
        watched_at_per_s,
    })
}

/// Puts the service into the state of a side.
fn put(arguments: &Arguments, side: usize) -> anyhow::Result<()> {
    let command = if side == 0 {
        &arguments.before
    } else {
        &arguments.after
    };
    let option = if side == 0 { "--before" } else { "--after" };
    command
        .as_deref()
        .map_or(Ok(()), |command| shell(command).map(drop).context(option))
}

struct Outcome {
    /// Infinite where the generator gave up.
    p99_ms: f64,
    /// Without what the complaint is about.
    p99_at_least_ms: f64,
    error_share: f64,
    complaint: Option<String>,
    /// The complaint is about the generator itself, so that it would be the same once more.
    is_own_limit: bool,
    /// That no request succeeded, and why.
    failure: Option<String>,
}

impl Outcome {
    fn figures(&self) -> String {
        match self.p99_ms.is_finite() {
            true => {
                let failure = self.failure.iter().map(|failure| format!(", {failure}"));
                format!(
                    "p99 {:.1} ms, {:.2} % errors{}",
                    self.p99_ms,
                    100.0 * self.error_share,
                    failure.collect::<String>()
                )
            }
            // Of pgbench it is only known that it is above the objective.
            false if self.error_share < 1.0 => format!(
                "p99 above the objective, {:.2} % errors",
                100.0 * self.error_share
            ),
            false => "the generator gave up".to_owned(),
        }
    }
}

/// A run at one rate, and whether it held. One that failed while the generator was held up, and
/// might not have otherwise, says nothing of the service: it is repeated, and given up after
/// [`ATTEMPTS`].
fn undisturbed(
    arguments: &Arguments,
    per_s: f64,
    search: &CapacitySearch,
    interrupt: &Interrupt,
) -> anyhow::Result<(Outcome, bool)> {
    let before = search.trials();
    let has_held_less = before.iter().any(|trial| trial.held && trial.per_s < per_s);
    let mut attempt = 1;
    loop {
        let outcome = trial(arguments, per_s, before.len(), has_held_less, interrupt)?;
        let held =
            outcome.p99_ms <= arguments.slo_p99_ms && outcome.error_share <= arguments.errors_max;
        let is_open = !held && outcome.p99_at_least_ms <= arguments.slo_p99_ms;
        match &outcome.complaint {
            Some(complaint) if is_open && outcome.is_own_limit => {
                let held = before.iter().filter(|trial| trial.held);
                let held = held.map(|trial| trial.per_s).fold(0.0, f64::max);
                bail!(
                    "the service's capacity is above what this generator sends: it held {held:.1}/s, and at {per_s:.1}/s {complaint}"
                );
            }
            Some(complaint) if is_open && attempt < ATTEMPTS => {
                message(&format!("at {per_s:.1}/s {complaint}. Once more."));
                attempt += 1;
            }
            Some(complaint) if is_open => bail!("at {per_s:.1}/s, {ATTEMPTS} times, {complaint}"),
            _ => return Ok((outcome, held)),
        }
    }
}

/// One run at one rate; each of a search has arrivals of its own. A command may give up, where it
/// is said to have got through at a lower rate: sysbench does when more is due than it can hold.
/// Where nobody is reached the address is wrong, or the service is gone.
fn trial(
    arguments: &Arguments,
    per_s: f64,
    number: usize,
    may_give_up: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let stopped = || match interrupt.signal() {
        Some(signal) => bail!("stopped by signal {signal}"),
        None => Ok(()),
    };
    if let Some(url) = &arguments.load.url {
        let plan = LoadPlan {
            service: match &arguments.watched {
                Some(watched) => ServiceOnHost::Group(group_of(&Roots::default(), watched)?),
                None => ServiceOnHost::Unknown,
            },
            ..arguments
                .source
                .at_rate(url, per_s, arguments.step_s, number as u64)?
        };
        let report = ::load::run(&plan, &|| interrupt.signal().is_some())?;
        stopped()?;
        // Of nothing, no share fails.
        ensure!(
            report.due > 0,
            "at {per_s:.3}/s no request was due within --step-s {}, so nothing is known there: raise --start or --step-s; where all \
             higher rates failed, look at the service and at --slo-p99-ms",
            arguments.step_s
        );
        if let Some(failure) = report.failure().filter(|_| report.reached_nobody()) {
            bail!("at {per_s:.1}/s {failure}");
        }
        return Ok(Outcome {
            p99_ms: report.latency.latency_p99_us / 1000.0,
            p99_at_least_ms: report.latency_p99_at_least_us() / 1000.0,
            error_share: report.errors as f64 / report.due.max(1) as f64,
            complaint: report.complaint(),
            is_own_limit: matches!(
                report.bottleneck,
                Some(Bottleneck::Generator | Bottleneck::GeneratorAndService)
            ),
            failure: report.failure(),
        });
    }
    let (Some(command), Some(format)) = (&arguments.load.command, &arguments.parse) else {
        bail!("give either --url, or --command and --parse");
    };
    let format = format_of(format)?;
    // sysbench takes no fractions.
    let decimals = if format == Format::Sysbench { 0 } else { 3 };
    let filled = command
        .replace("{rate}", &format!("{per_s:.decimals$}"))
        .replace("{duration_s}", &format!("{}", arguments.step_s));
    let output = match shell(&filled).context("--command") {
        Err(error) if may_give_up && interrupt.signal().is_none() => {
            message(&error_chain(&error));
            return Ok(Outcome {
                p99_ms: f64::INFINITY,
                p99_at_least_ms: f64::INFINITY,
                error_share: 1.0,
                complaint: None,
                is_own_limit: false,
                failure: None,
            });
        }
        output => output?,
    };
    stopped()?;
    let metrics = tuner::parse::parse(&format, &output).context("--command")?;
    let p99_ms = p99_ms(format, &metrics, arguments.slo_p99_ms)?;
    let requests = metrics.get("requests").copied().unwrap_or(0.0);
    let errors = metrics.get("errors").copied().unwrap_or(0.0);
    Ok(Outcome {
        p99_ms,
        p99_at_least_ms: p99_ms,
        error_share: errors / (requests + errors).max(1.0),
        complaint: None,
        is_own_limit: false,
        failure: None,
    })
}

/// The 99th percentile of a report. pgbench prints none: there the number of transactions above its
/// latency limit says on which side of the objective it is, and the limit itself, or infinity,
/// stands for it.
fn p99_ms(format: Format, metrics: &BTreeMap<String, f64>, slo_p99_ms: f64) -> anyhow::Result<f64> {
    let get = |name: &str| metrics.get(name).copied();
    if let Some(p99_us) = get("latency_p99_us") {
        return Ok(p99_us / 1000.0);
    }
    if let (Some(late), Some(limit_us)) = (get("late"), get("latency_limit_us")) {
        let limit_ms = limit_us / 1000.0;
        // pgbench prints the limit with one decimal.
        ensure!(
            (limit_ms - slo_p99_ms).abs() <= 0.05,
            "the output counts transactions above {limit_ms} ms: give pgbench -L {slo_p99_ms}, the objective"
        );
        // Skipped transactions were due and too late already. They are errors, too.
        let skipped = get("errors").unwrap_or(0.0);
        let due = get("requests").unwrap_or(0.0) + skipped;
        let keeps = late + skipped <= LATE_SHARE * due;
        return Ok(if keeps { slo_p99_ms } else { f64::INFINITY });
    }
    let advice = format.p99_advice().unwrap_or("use another tool");
    bail!("the output has no 99th percentile of latency: {advice}")
}

/// A capacity is a scale: its interval is that of the logarithms.
fn interval_of(capacities_per_s: &[f64]) -> Result<Interval, StatsError> {
    let logarithms: Vec<f64> = capacities_per_s
        .iter()
        .map(|capacity| capacity.ln())
        .collect();
    Ok(mean_interval(&logarithms, CONFIDENCE)?.exp())
}

/// With what a search leaves open, for when all searches agree by chance.
fn widened(interval: Interval, open: f64) -> Interval {
    Interval {
        low: interval.low / (1.0 + open),
        high: interval.high * (1.0 + open),
        ..interval
    }
}

/// Searches of the same number ran one after the other: they are pairs.
fn ratio_of(before: &Side, after: &Side) -> Result<Interval, StatsError> {
    let pairs: Vec<Pair> = before
        .capacities_per_s
        .iter()
        .zip(&after.capacities_per_s)
        .map(|(control, experiment)| Pair {
            control: *control,
            experiment: *experiment,
        })
        .collect();
    ratio_interval(&pairs, CONFIDENCE)
}

impl Side {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            capacities_per_s: Vec::new(),
            capacity_per_s: None,
            trials: Vec::new(),
            watch: None,
        }
    }
}

fn text(report: &Report) -> String {
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

fn html(report: &Report) -> String {
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

fn watched(report: &Report) -> impl Iterator<Item = (&str, &report::Report)> {
    report
        .sides
        .iter()
        .filter_map(|side| Some((side.name, side.watch.as_ref()?)))
}

/// Both capacities, and how they compare.
fn findings(report: &Report) -> Vec<String> {
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
