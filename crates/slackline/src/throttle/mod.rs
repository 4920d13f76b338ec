//! `slackline throttle`: why a service fails at half its CPU.

mod collect;
mod fleet;
mod loadtest;
mod text;
pub(crate) mod tracepoints;
mod watch;

use crate::Done;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Watch a service: cores in use at 10 ms, threads that want to run, throttling, and what causes it.
    Watch(watch::Arguments),
    /// Find how much load a service takes within its objective, before and after a change.
    Loadtest(Box<loadtest::Arguments>),
    /// Rank the services of a fleet by CPU that could be given back and latency that could be won.
    Fleet(fleet::Arguments),
}

pub(crate) fn run(command: &Command) -> anyhow::Result<Done> {
    match command {
        Command::Watch(arguments) => watch::run(arguments),
        Command::Loadtest(arguments) => loadtest::run(arguments),
        Command::Fleet(arguments) => fleet::run(arguments),
    }
}
