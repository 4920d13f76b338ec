//! `slackline throttle`: why a service fails at half its CPU, and what to set.

mod advise;
mod apply;
mod fleet;
mod latency;
mod live;
mod loadtest;
mod page;
mod target;
mod text;
mod watch;

pub(crate) use target::{Watched, group_of, process_number};

use std::path::Path;

use crate::done::CommandOutcome;

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

pub(crate) fn run(command: &Command, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    match command {
        Command::Watch(arguments) => watch::run(arguments),
        Command::Advise(arguments) => advise::run(arguments),
        Command::Apply(arguments) => apply::run(arguments, state_dir),
        Command::Loadtest(arguments) => loadtest::run(arguments),
        Command::Fleet(arguments) => fleet::run(arguments),
    }
}
