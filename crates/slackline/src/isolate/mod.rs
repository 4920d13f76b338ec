//! `slackline isolate`: a service's latency slack becomes batch work, fewer reserved cores, and
//! less power.

mod live;
mod metrics;
mod report;
mod run;
#[cfg(test)]
mod samples;
mod simulate;
mod text;

use std::path::{Path, PathBuf};

use host::Roots;

use crate::done::CommandOutcome;
use crate::output::{message, print};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Show which settings of services, best-effort groups and the machine the policy may write on
    /// this host, and what the host lacks. Changes nothing.
    Check {
        /// The configuration (TOML, or JSON with the ending .json).
        config: PathBuf,
        /// Also show the settings that the policy does not write.
        #[arg(long)]
        all: bool,
        /// Print JSON, always with all settings.
        #[arg(long)]
        json: bool,
    },
    /// Run the controller in the foreground until a signal. Every setting is restored at the end.
    Run(run::Arguments),
    /// Show the state of the running controller: latency against objective, what best-effort work
    /// may use, and why.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Show the state in the terminal, and update it.
        #[arg(long, conflicts_with = "json")]
        live: bool,
    },
    /// Write an HTML page with the timeline of a recorded run.
    Report {
        /// The directory that `run --out` wrote.
        directory: PathBuf,
        /// The file to write.
        #[arg(long, value_name = "FILE", value_parser = crate::output::file_to_write)]
        html: PathBuf,
    },
    /// Test each actuator of this host: make a small change in a control group made for the test,
    /// read it back, and undo it.
    Selftest {
        /// Also test the settings of the whole machine: change frequency, energy preference and
        /// power limit by one step, and switch the cost model of the first disk on or off.
        #[arg(long)]
        machine: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run the same controllers on a model of a machine. Every number that it prints is simulated.
    Simulate(simulate::Arguments),
    /// Print the JSON Schema of the configuration.
    Schema,
    /// Restore when the controller at the other end of standard input dies.
    #[command(hide = true)]
    Watchdog,
}

pub(crate) fn run(command: &Command, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    match command {
        Command::Check { config, all, json } => check(config, *all, *json),
        Command::Run(arguments) => run::run(arguments, state_dir),
        Command::Status { live: true, .. } => live::run(state_dir),
        Command::Status { json, .. } => status(state_dir, *json),
        Command::Report { directory, html } => {
            let recorded = isolate_run::read_record(directory)?;
            report::write(&recorded, html)?;
            Ok(CommandOutcome::Positive)
        }
        Command::Selftest { machine, json } => selftest(state_dir, *machine, *json),
        Command::Simulate(arguments) => simulate::run(arguments),
        Command::Schema => {
            print(&(serde_json::to_string_pretty(&isolate_run::schema())? + "\n"))?;
            Ok(CommandOutcome::Positive)
        }
        Command::Watchdog => watchdog(state_dir),
    }
}

fn check(config: &Path, all: bool, json: bool) -> anyhow::Result<CommandOutcome> {
    let check = isolate_run::check(config, &Roots::default())?;
    match json {
        true => print(&(serde_json::to_string_pretty(&check)? + "\n"))?,
        false => print(&text::check(&check, all))?,
    }
    Ok(match check.problems.is_empty() {
        true => CommandOutcome::Positive,
        false => CommandOutcome::Negative,
    })
}

fn status(state_dir: &Path, json: bool) -> anyhow::Result<CommandOutcome> {
    let status = isolate_run::read_status(state_dir)?;
    if json {
        print(&(serde_json::to_string_pretty(&status)? + "\n"))?;
    } else if let Some(status) = &status {
        print(&text::status(status))?;
    } else {
        message(&text::none_runs(state_dir));
    }
    let is_of_now = status.is_some_and(|status| status.too_old_s().is_none());
    Ok(match is_of_now {
        true => CommandOutcome::Positive,
        false => CommandOutcome::Negative,
    })
}

fn selftest(state_dir: &Path, machine: bool, json: bool) -> anyhow::Result<CommandOutcome> {
    let rows = isolate_run::selftest(state_dir, machine)?;
    match json {
        true => print(&(serde_json::to_string_pretty(&rows)? + "\n"))?,
        false => print(&text::selftest(&rows))?,
    }
    Ok(
        match rows.iter().any(isolate_run::SelftestRow::has_failed) {
            true => CommandOutcome::Negative,
            false => CommandOutcome::Positive,
        },
    )
}

fn watchdog(state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    let Some(report) = isolate_run::watchdog(state_dir)? else {
        return Ok(CommandOutcome::Positive);
    };
    for line in crate::restore::lines(&report, false) {
        message(&format!("The controller died: {line}"));
    }
    Ok(match report.is_complete() {
        true => CommandOutcome::Positive,
        false => CommandOutcome::RestoreFailed,
    })
}
