//! `slackline relayout`: the running program, laid out again without source, restart or downtime.

mod config;
mod log;
mod picture;
mod start;
mod status;
mod undo;
mod watcher;

use std::path::{Path, PathBuf};

use ::relayout::Store;

use crate::done::Done;
use crate::throttle::process_number;

pub(crate) use undo::{Undone, undo_left};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Watch processes: profile, lay out, measure, keep what is shown to be better, roll back the
    /// rest.
    Start(Box<start::Arguments>),
    /// What is known of the processes that were looked at.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Put another layout of a process in force; 0 is the original.
    Switch {
        /// The process.
        #[arg(value_parser = process_number)]
        pid: u32,
        /// The number of the layout.
        generation: u32,
    },
    /// Back to exactly the original bytes; the memory is given back once nothing can return into
    /// it.
    Rollback(undo::Arguments),
    /// End a `start` that watches. Optimised processes stay so, and can still be rolled back.
    Stop,
    /// What was done to a process, and what it changed.
    Explain {
        /// The process.
        pid: u32,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Write a picture of the pages that the code which ran touches, before and after.
        #[arg(long, value_name = "FILE", value_parser = crate::output::file_to_write)]
        svg: Option<PathBuf>,
    },
}

pub(crate) fn run(command: &Command, state_dir: &Path) -> anyhow::Result<Done> {
    let store = Store::at(state_dir);
    match command {
        Command::Start(arguments) => start::run(arguments, &Store::open(state_dir)?),
        Command::Status { json } => status::run(&store, *json),
        Command::Switch { pid, generation } => undo::switch(&store, *pid, *generation),
        Command::Rollback(arguments) => undo::run(arguments, &store),
        Command::Stop => watcher::stop(&store),
        Command::Explain { pid, json, svg } => status::explain(&store, *pid, *json, svg.as_deref()),
    }
}
