//! `slackline throttle`: why a service fails at half its CPU, and what to set.

mod advise;
mod apply;
mod collect;
mod experiment;
mod fleet;
mod live;
mod loadtest;
mod page;
mod requests;
mod runtimes;
mod text;
pub(crate) mod tracepoints;
mod watch;

pub(crate) use watch::{Watched, group_of, process_number};

use std::path::Path;

use anyhow::ensure;

use crate::Done;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Watch a service and name the cause of throttling: cores in use in windows of 10 ms, threads
    /// that want to run, throttled periods.
    Watch(watch::Arguments),
    /// Recommend pool sizes, quota, burst and period: record a service's jobs, then simulate them
    /// under other settings.
    Advise(Box<advise::Arguments>),
    /// Try another CPU limit on a running service, and keep it only if it is shown to be better.
    Apply(apply::Arguments),
    /// Find the highest load at which a service holds its objective, before and after a change.
    Loadtest(Box<loadtest::Arguments>),
    /// Rank the services of a fleet: which are throttled, and which could give CPU back.
    Fleet(fleet::Arguments),
}

pub(crate) fn run(command: &Command, state_dir: &Path) -> anyhow::Result<Done> {
    match command {
        Command::Watch(arguments) => watch::run(arguments),
        Command::Advise(arguments) => advise::run(arguments),
        Command::Apply(arguments) => apply::run(arguments, state_dir),
        Command::Loadtest(arguments) => loadtest::run(arguments),
        Command::Fleet(arguments) => fleet::run(arguments),
    }
}

/// Runs a command of the user's to its end; its standard output.
fn shell(command: &str) -> anyhow::Result<String> {
    let output = std::process::Command::new("sh")
        .args(["-c", command])
        .output()?;
    let (error, printed) = (
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout),
    );
    // sysbench complains on standard output.
    let said = match error.trim() {
        "" => printed.trim(),
        error => error,
    };
    let said = match said.lines().collect::<Vec<_>>().as_slice() {
        [] => "it said nothing".to_owned(),
        [only] => (*only).to_owned(),
        [first, last] => format!("{first} | {last}"),
        [first, .., last] => format!("{first} | … | {last}"),
    };
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {said}",
        output.status
    );
    Ok(printed.into_owned())
}
