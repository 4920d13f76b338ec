//! `slackline serve-block`.

mod admit;
mod calibrate;
mod run;
mod status;
mod surroundings;

use crate::done::CommandOutcome;
use crate::output::print;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Export the devices of a configuration file over NBD and NVMe/TCP.
    Run(run::Arguments),
    /// Show the tenants of a running server: objective, latency, requests and tokens of the last
    /// second, and refused requests and clients.
    Status(status::Arguments),
    /// Measure a device: its latency at several rates and shares of reads. Writes nothing to the
    /// device without --write-area.
    Calibrate(calibrate::Arguments),
    /// Check whether a tenant with an objective would fit. Exit code 1: the tenant does not fit.
    Admit(admit::Arguments),
    /// Print the JSON Schema of the configuration file.
    Schema,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<CommandOutcome> {
    match command {
        Command::Run(arguments) => run::run(arguments),
        Command::Status(arguments) => status::run(arguments),
        Command::Calibrate(arguments) => calibrate::run(arguments),
        Command::Admit(arguments) => admit::run(arguments),
        Command::Schema => {
            let schema = block_server::config::schema();
            print(&(serde_json::to_string_pretty(&schema)? + "\n"))?;
            Ok(CommandOutcome::Positive)
        }
    }
}
