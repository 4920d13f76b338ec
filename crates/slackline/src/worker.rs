//! `slackline worker`: measures on this host what a coordinator elsewhere gives out.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use dispatch::{Error, WorkerConfig};
use tuner::process::Interrupt;

use crate::done::CommandOutcome;
use crate::output::message;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The worker's configuration (TOML): the address of NATS, the keys of trusted servers, labels
    /// and permissions.
    config: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    let config = WorkerConfig::read(&arguments.config)?;
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    let state_dir = std::path::absolute(state_dir)?;
    match dispatch::worker::run(&config, &state_dir, &interrupt, message) {
        Ok(()) => Ok(interrupt
            .signal()
            .map_or(CommandOutcome::Positive, CommandOutcome::Signal)),
        Err(Error::NotRestored) => {
            let text = "Not everything could be restored: run `slackline restore`.";
            message(&crate::state_dir::with_state_dir(text, &state_dir));
            Ok(CommandOutcome::RestoreFailed)
        }
        Err(error) => Err(error.into()),
    }
}
