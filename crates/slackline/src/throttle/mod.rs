//! `slackline throttle`: why a service fails at half its CPU, and what to set.

mod advise;
mod apply;
mod collect;
mod experiment;
mod fleet;
mod live;
mod loadtest;
mod page;
mod report;
mod requests;
mod runtimes;
mod shell;
mod target;
mod text;
pub(crate) mod tracepoints;
mod watch;

pub(crate) use target::{Watched, group_of, process_number};

use std::path::Path;

use crate::done::Done;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Watch a service: cores in use at 10 ms, threads that want to run, throttling, and what
    /// causes it.
    Watch(watch::Arguments),
    /// What pool sizes, quota, burst and period to set: a service's own jobs, recorded, simulated
    /// under others.
    Advise(Box<advise::Arguments>),
    /// Try another limit on a running service, and keep it only if it is shown to be better.
    Apply(apply::Arguments),
    /// Find how much load a service takes within its objective, before and after a change.
    Loadtest(Box<loadtest::Arguments>),
    /// Rank the services of a fleet by CPU that could be given back and latency that could be won.
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
