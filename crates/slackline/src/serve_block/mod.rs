//! `slackline serve-block`.

mod admit;
mod calibrate;
mod run;
mod status;
mod surroundings;

use crate::done::Done;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Export the devices of a configuration file over NBD and NVMe/TCP.
    Run(run::Arguments),
    /// Show the tenants of a running server: objective, latency, requests and tokens of the last
    /// second, refused requests and clients, and which tenants left tokens to others.
    Status(status::Arguments),
    /// Measure a device: latency against rate at several shares of reads. Nothing is written
    /// without --write-area.
    Calibrate(calibrate::Arguments),
    /// Check whether a tenant with an objective would fit. Exit code 1: the tenant does not fit.
    Admit(admit::Arguments),
}

pub(crate) fn run(command: &Command) -> anyhow::Result<Done> {
    match command {
        Command::Run(arguments) => run::run(arguments),
        Command::Status(arguments) => status::run(arguments),
        Command::Calibrate(arguments) => calibrate::run(arguments),
        Command::Admit(arguments) => admit::run(arguments),
    }
}
