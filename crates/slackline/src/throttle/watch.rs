//! `slackline throttle watch`.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use host::Roots;
use tuner::process::Interrupt;

use super::collect::{self, Collected, Jobs};
use super::report::{Report, Watch};
use super::requests::{OfPort, Requests};
use super::target::{Watched, group_of, named};
use super::{live, page, text};
use crate::done::CommandOutcome;

/// A day.
const LONGEST_S: f64 = 86_400.0;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    watched: Watched,
    #[command(flatten)]
    of_port: OfPort,
    /// How long to watch, in seconds. By default 10; with --live, until you press q.
    #[arg(long, value_name = "S")]
    duration_s: Option<f64>,
    /// Show the measurements in the terminal while they run. Keys: r starts the counts from zero, q
    /// ends.
    #[arg(long, conflicts_with = "json")]
    live: bool,
    /// Write the results to this file as JSON. `-` prints them instead of the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results to one HTML file, with its pictures inside.
    #[arg(long, value_name = "FILE", value_parser = crate::output::file_to_write)]
    html: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    let otherwise_s = if arguments.live { LONGEST_S } else { 10.0 };
    let duration_s = arguments.duration_s.unwrap_or(otherwise_s);
    anyhow::ensure!(
        (0.1..=LONGEST_S).contains(&duration_s),
        "--duration-s must be between 0.1 and 86400"
    );
    anyhow::ensure!(
        !arguments.live || std::io::stdout().is_terminal(),
        "--live needs a terminal, and standard output is none"
    );
    crate::output::ensure_writable(&[arguments.json.as_deref(), arguments.html.as_deref()])?;
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    let report = if arguments.live {
        let group = group_of(&Roots::default(), &arguments.watched)?;
        live::run(&group, duration_s, &arguments.of_port, &interrupt)?
    } else {
        observe_with(
            &arguments.watched,
            &arguments.of_port,
            duration_s,
            &interrupt,
        )?
    };
    let text = text::report(&report);
    crate::output::publish(arguments.json.as_deref(), &report, &text, "Everything")?;
    if let Some(file) = &arguments.html {
        let title = format!("CPU throttling of {}", named(&report.group));
        page::write(file, &title, &page::watch(&report))?;
    }
    Ok(match interrupt.signal() {
        Some(signal) => CommandOutcome::Signal(signal),
        None => CommandOutcome::Positive,
    })
}

/// Watches for so many seconds, or until a signal comes.
pub(super) fn observe(
    watched: &Watched,
    duration_s: f64,
    interrupt: &Interrupt,
) -> anyhow::Result<Report> {
    observe_with(watched, &OfPort::default(), duration_s, interrupt)
}

/// The same, with the latency of a port's requests.
fn observe_with(
    watched: &Watched,
    of_port: &OfPort,
    duration_s: f64,
    interrupt: &Interrupt,
) -> anyhow::Result<Report> {
    let roots = Roots::default();
    let group = group_of(&roots, watched)?;
    let mut requests = Requests::watch(of_port, &group)?;
    let started = |pid| host::start_time(&roots, pid).ok();
    let began = watched.pid.map(started);
    let mut goes_on = |seen: &Collected| {
        if let Some(requests) = &mut requests {
            requests.note(seen);
        }
        Ok(interrupt.signal().is_none())
    };
    let (mut report, collected) = observe_group(group, duration_s, Jobs::Summed, &mut goes_on)?;
    report.latency = requests.map(|mut requests| {
        requests.note(&collected);
        requests.report()
    });
    if let (Some(pid), Some(began)) = (watched.pid, began)
        && started(pid) != began
    {
        crate::output::message(&format!(
            "Process {pid} ended meanwhile, and its number may be another's by now; what follows is of its control group."
        ));
    }
    Ok(report)
}

/// Watches a group, and hands over what was collected beside what is said of it.
pub(super) fn observe_group(
    group: String,
    duration_s: f64,
    jobs: Jobs,
    goes_on: &mut dyn FnMut(&Collected) -> anyhow::Result<bool>,
) -> anyhow::Result<(Report, Collected)> {
    let mut watch = Watch::begin(group)?;
    let duration = Duration::from_secs_f64(duration_s);
    let collected = collect::collect(&watch.group, watch.limited_by(), duration, jobs, goes_on)?;
    Ok((watch.report(&collected), collected))
}
