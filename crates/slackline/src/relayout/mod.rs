//! `slackline relayout`: the running program, laid out again without source, restart or downtime.

mod config;
mod log;
mod picture;
mod start;
mod status;
mod undo;
mod watcher;

use std::path::{Path, PathBuf};

use ::relayout::{ManifestStore, check_machine};

use crate::done::CommandOutcome;
use crate::output::print;
use crate::throttle::process_number;

#[cfg(test)]
pub(crate) use config::{check as check_config, schema as config_schema};
pub(crate) use undo::{Undone, undo_left};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Watch processes, and lay out their code again. A new layout stays only if it is shown to be
    /// better.
    Start(Box<start::Arguments>),
    /// Show the processes that were examined, with their state and gain.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Put another layout of a process in force. Layout 0 is the original code.
    Switch {
        /// The process id.
        #[arg(value_parser = process_number)]
        pid: u32,
        /// The number of the layout, as `status` prints it.
        generation: u32,
    },
    /// Restore the original code of a process, byte for byte. The memory of the new code is freed
    /// when no thread can return into it any more.
    Rollback(undo::Arguments),
    /// End a running `relayout start`. Processes keep their new layouts, and can still be rolled
    /// back.
    Stop,
    /// Show what was done to a process, and what changed: bytes, pages and taken branches.
    Explain {
        /// The process id.
        pid: u32,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Write a picture (SVG) of the code pages that the process uses, before and after.
        #[arg(long, value_name = "FILE", value_parser = crate::output::file_to_write)]
        svg: Option<PathBuf>,
    },
    /// Print the JSON Schema of the configuration file of `start --config`.
    Schema,
}

pub(crate) fn run(command: &Command, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    // Programs read the schema, also where no process can be laid out again.
    if !matches!(command, Command::Schema) {
        check_machine()?;
    }
    let store = ManifestStore::at(state_dir);
    match command {
        Command::Start(arguments) => start::run(arguments, &ManifestStore::open(state_dir)?),
        Command::Status { json } => status::run(&store, *json, state_dir),
        Command::Switch { pid, generation } => undo::switch(&store, *pid, *generation),
        Command::Rollback(arguments) => undo::run(arguments, &store),
        Command::Stop => watcher::stop(&store),
        Command::Explain { pid, json, svg } => status::explain(&store, *pid, *json, svg.as_deref()),
        Command::Schema => {
            print(&(serde_json::to_string_pretty(&config::schema())? + "\n"))?;
            Ok(CommandOutcome::Positive)
        }
    }
}
