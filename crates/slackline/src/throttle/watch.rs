//! `slackline throttle watch`.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::Context as _;
use host::Roots;
use throttle_watch::{named, observe};
use tuner::process::Interrupt;

use super::latency::OfPort;
use super::target::{Watched, group_of};
use super::{live, page, text};
use crate::done::CommandOutcome;
use crate::output::message;

/// A day.
const LONGEST_S: f64 = 86_400.0;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    watched: Watched,
    #[command(flatten)]
    of_port: OfPort,
    /// How long to watch, in seconds. By default 10; with --live, until you press q, at most a day.
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
        "--live needs a terminal, and standard output is not a terminal"
    );
    crate::output::ensure_writable(&[arguments.json.as_deref(), arguments.html.as_deref()])?;
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    let of_port = arguments.of_port.wanted();
    let report = if arguments.live {
        let group = group_of(&Roots::default(), &arguments.watched)?;
        live::run(&group, duration_s, of_port.as_ref(), &interrupt)?
    } else {
        let target = arguments.watched.target()?;
        observe(&target, of_port.as_ref(), duration_s, &interrupt, &message)?
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
