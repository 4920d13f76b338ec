//! `slackline completions` and `slackline man`: what shells and man(1) know of the command line.

use std::path::Path;

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;

use crate::done::CommandOutcome;
use crate::output::{message, print_bytes};

/// Prints the completions of a shell.
pub(crate) fn print_for(shell: Shell, command: &mut Command) -> anyhow::Result<CommandOutcome> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "slackline", &mut script);
    print_bytes(&script)?;
    Ok(CommandOutcome::Positive)
}

/// Writes `slackline.1`, and `slackline-COMMAND.1` for each command below it.
pub(crate) fn write_pages(directory: &Path, command: Command) -> anyhow::Result<CommandOutcome> {
    std::fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    clap_mangen::generate_to(command, directory)
        .with_context(|| format!("{}", directory.display()))?;
    message(&format!("The man pages are in {}.", directory.display()));
    Ok(CommandOutcome::Positive)
}
