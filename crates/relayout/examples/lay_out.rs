//! Lays a process out and ends, without a comparison: for stress tests and benches.
//!
//! `cargo run --release -p relayout --example lay_out -- --state-dir DIR --pid PID [--random SEED]
//! [--hurry]`: with a seed every movable function with its blocks in random order, slow on purpose;
//! `--hurry` profiles for a short time only. `slackline --state-dir DIR relayout` shows the layout,
//! switches it and rolls it back. Layouts that are there already stay.
#![allow(clippy::print_stdout, reason = "it says what it has laid out")]

use std::error::Error;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use relayout::{
    DriverSettings, LayoutCandidate, LayoutSummary, ManifestStore, ProfilingOptions, Session,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let state_dir: String = value(&arguments, "--state-dir")?.ok_or("--state-dir is missing")?;
    let pid: u32 = value(&arguments, "--pid")?.ok_or("--pid is missing")?;
    let mut options = ProfilingOptions {
        random: value(&arguments, "--random")?,
        ..ProfilingOptions::default()
    };
    if arguments.iter().any(|argument| argument == "--hurry") {
        options.sampling = Duration::from_millis(400);
        options.counting = Duration::from_millis(20);
        options.resting = Duration::from_millis(5);
    }
    let store = ManifestStore::open(Path::new(&state_dir))?;
    let layout = lay_out(&store, pid, options)?;
    let origin = match &layout.kept {
        Some(kept) => format!(", by the profile kept ({})", kept.file.display()),
        None => String::new(),
    };
    println!(
        "process {pid} runs in generation {}: {} functions, {} bytes{origin}",
        layout.generation, layout.functions, layout.code_bytes,
    );
    Ok(())
}

/// Installs a layout by a kept profile, or by a new one.
fn lay_out(
    store: &ManifestStore,
    pid: u32,
    options: ProfilingOptions,
) -> Result<LayoutSummary, Box<dyn Error>> {
    let mut session = Session::open(store, pid, options)?;
    session.look()?;
    let candidates = match options.random {
        None => {
            let (candidates, notes) = session.consider_kept(store);
            notes.iter().for_each(|note| println!("{note}"));
            candidates
        }
        Some(_) => Vec::new(),
    };
    let cover_min = DriverSettings::default().cover_min;
    let layout = match LayoutCandidate::best(&candidates, cover_min) {
        Some(index) => session.install_kept(index)?,
        None => {
            session.count()?;
            session.install()?
        }
    };
    session.keep_profile(store, None)?;
    Ok(layout)
}

/// What follows an option.
fn value<T: FromStr>(arguments: &[String], option: &str) -> Result<Option<T>, String> {
    let Some(at) = arguments.iter().position(|argument| argument == option) else {
        return Ok(None);
    };
    let value = arguments.get(at + 1).and_then(|value| value.parse().ok());
    value.map(Some).ok_or(format!("{option} takes a value"))
}
