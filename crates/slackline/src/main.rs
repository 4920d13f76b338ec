//! The `slackline` command: arguments, output and exit codes. What it does is in the crates below.

mod agent;
mod apply;
mod ask_tell;
#[cfg(test)]
mod book;
mod compare;
mod completions;
mod descriptors;
mod done;
mod exit_code;
mod experiments;
mod idle;
mod isolate;
mod live;
mod load;
mod output;
mod own_files;
mod page;
#[cfg(test)]
#[path = "../tests/blackbox/book/pages.rs"]
mod pages;
mod progress;
mod promotions;
#[cfg(test)]
mod reference;
mod relayout;
mod restore;
#[cfg(test)]
mod schemas;
mod serve;
mod serve_block;
mod serve_cache;
mod service_manager;
mod state_dir;
mod style;
mod table;
mod throttle;
mod timeline;
mod tokens;
mod tune;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use done::CommandOutcome;
use exit_code::exit_code;
use output::{error_chain, message, print};
use state_dir::{DEFAULT_STATE_DIR, shell_command, with_state_dir};

/// Makes Linux services cheaper and faster. Every change that Slackline makes to a machine can be
/// undone.
#[derive(Parser)]
#[command(version = VERSION, about, after_help = EXIT_CODES)]
struct Arguments {
    /// Directory of Slackline's state. Use one for each host.
    #[arg(
        long,
        global = true,
        default_value = DEFAULT_STATE_DIR,
        env = "SLACKLINE_STATE_DIR",
        // After a command's own options.
        display_order = 900
    )]
    state_dir: PathBuf,
    #[command(subcommand)]
    command: Command,
}

/// The version, and the commit where it was built from a repository.
const VERSION: &str = env!("SLACKLINE_VERSION");

const EXIT_CODES: &str = "Exit codes: 0 done; 1 ran, and the finding is negative; 2 usage, configuration or \
runtime error; 3 a privilege or kernel feature is missing; 4 a restore failed; 128+n ended by signal n.";

#[derive(Subcommand)]
enum Command {
    /// Search for a better configuration of a service, verify the best one against the unchanged
    /// configuration, and restore the host.
    Tune(tune::Arguments),
    /// Check a specification, also against this host. Changes nothing.
    Check {
        /// The specification (TOML, or JSON with the ending .json).
        spec: PathBuf,
    },
    /// Find out why a service is slow although it uses only a part of its CPU limit: quota, thread
    /// pools, neighbours.
    #[command(subcommand)]
    Throttle(throttle::Command),
    /// Serve throttling metrics of every service of this host to Prometheus.
    Agent(agent::Arguments),
    /// Put the code of a running program into a faster order, without source code, restart or
    /// downtime.
    #[command(subcommand)]
    Relayout(relayout::Command),
    /// Run batch work beside a service with a latency objective, or give back cores that the
    /// service does not need.
    #[command(subcommand)]
    Isolate(isolate::Command),
    /// Send HTTP requests at a given rate, even if the service cannot keep up, and print JSON.
    /// Latency counts from the scheduled arrival.
    Load(load::Arguments),
    /// Run experiments for weeks, with a database, a queue, a JSON API and web pages.
    Serve(serve::Arguments),
    /// Run a memcached server with one thread for each core, over the kernel's network or over
    /// AF_XDP.
    ServeCache(serve_cache::Arguments),
    /// Serve disks, files and memory to other hosts over NBD and NVMe/TCP.
    #[command(subcommand)]
    ServeBlock(serve_block::Command),
    /// Measure evaluations on this host for a `slackline serve --workers` on another host.
    Worker(worker::Arguments),
    /// Create, watch and change the experiments of a running `slackline serve`.
    Experiments(experiments::Arguments),
    /// Use the optimiser in a loop of your own: JSON lines on standard input and output.
    AskTell {
        /// The specification (TOML, or JSON with the ending .json). Only `parameters` is required.
        /// `initial`, `search`, `seed`, `parameter_constraints` and the objective's `goal` are
        /// used, too.
        spec: PathBuf,
    },
    /// Restore everything that a killed Slackline left changed. Promotions and verified layouts
    /// stay.
    Restore(restore::Arguments),
    /// List what was promoted on this host, or undo a promotion.
    #[command(subcommand)]
    Promotions(promotions::Command),
    /// Put a configuration from a report in force, or write its files to a directory.
    Apply(apply::Arguments),
    /// Compare two reports.
    Compare(compare::Arguments),
    /// Show what Slackline can do on this host, and what the host lacks.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the completion script of a shell: `slackline completions bash >
    /// /etc/bash_completion.d/slackline`.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write a man page for each command to a directory.
    Man {
        /// The directory. Slackline creates it if it does not exist.
        directory: PathBuf,
    },
    /// Print the JSON Schema of a specification or of a report. Other files: `slackline isolate
    /// schema`, `relayout schema`, `serve-block schema`.
    Schema {
        /// Print the schema of a report, as `tune --json` writes it. docs/report.md explains the
        /// report.
        #[arg(long)]
        report: bool,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let state_dir = arguments.state_dir.clone();
    match run(arguments) {
        Ok(CommandOutcome::Positive) => ExitCode::SUCCESS,
        Ok(CommandOutcome::Negative) => ExitCode::from(1),
        Ok(CommandOutcome::RestoreFailed) => ExitCode::from(4),
        Ok(CommandOutcome::Signal(signal)) => {
            ExitCode::from(u8::try_from(128 + signal).unwrap_or(255))
        }
        Err(error) => {
            let text = format!("slackline: {}", error_chain(&error));
            message(&with_state_dir(&text, &state_dir));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// Says that knobs have values of a run that has not put them back: what `check` read is not what
/// the host has by itself. Who may not read the journal learns nothing.
fn warn_of_left_over(state_dir: &Path) {
    let left = host::Journal::peek(state_dir).unwrap_or_default();
    if !left.is_empty() {
        let holder = host::Lock::holder(state_dir).map(|it| it.to_string());
        message(&left_over(&left, holder.as_deref(), state_dir));
    }
}

/// What is said of the values of a run, and of what holds the host now: a run at work restores its
/// values itself.
fn left_over(left: &[String], holder: Option<&str>, state_dir: &Path) -> String {
    let what_to_do = match holder {
        Some(holder) => {
            format!(
                "That run is still measuring and restores them when it ends, so do nothing: {holder}"
            )
        }
        None => format!(
            "The run was killed: run `{} restore` first",
            shell_command(state_dir)
        ),
    };
    format!(
        "warning: values of another run are in force: {}. {what_to_do}. So the defaults that Slackline reads now are values of \
         that run, not of the host.",
        left.join(", ")
    )
}

fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    let roots = host::Roots::default();
    match arguments.command {
        Command::Tune(tune) => tune::run(&tune, &arguments.state_dir),
        Command::Check { spec } => {
            let spec = tuner::spec::context(&roots).load(&spec)?;
            print(&table::check(&spec))?;
            table::warn(&spec);
            promotions::warn_of_measured(&spec, &arguments.state_dir);
            warn_of_left_over(&arguments.state_dir);
            Ok(CommandOutcome::Positive)
        }
        Command::Throttle(command) => throttle::run(&command, &arguments.state_dir),
        Command::Agent(arguments) => agent::run(&arguments),
        Command::Relayout(command) => relayout::run(&command, &arguments.state_dir),
        Command::Isolate(command) => isolate::run(&command, &arguments.state_dir),
        Command::Load(arguments) => load::run(&arguments),
        Command::Serve(serve) => serve::run(&serve, &arguments.state_dir),
        Command::ServeCache(arguments) => serve_cache::run(&arguments),
        Command::ServeBlock(command) => serve_block::run(&command),
        Command::Worker(worker) => worker::run(&worker, &arguments.state_dir),
        Command::Experiments(experiments) => experiments::run(&experiments, &arguments.state_dir),
        Command::AskTell { spec } => ask_tell::run(&spec),
        Command::Restore(restore) => restore::run(&restore, &arguments.state_dir),
        Command::Promotions(command) => promotions::run(&command, &arguments.state_dir),
        Command::Apply(apply) => apply::run(&apply, &arguments.state_dir),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Doctor { json } => {
            let mut probes = host::probe(&roots);
            probes.push(::relayout::probe());
            if json {
                print(&(serde_json::to_string_pretty(&probes)? + "\n"))?;
            } else {
                print(&table::doctor(&probes))?;
            }
            Ok(CommandOutcome::Positive)
        }
        Command::Completions { shell } => completions::print_for(shell, &mut Arguments::command()),
        Command::Man { directory } => completions::write_pages(&directory, Arguments::command()),
        Command::Schema { report } => {
            let schema = match report {
                true => tuner::report::schema(),
                false => tuner::spec::schema(),
            };
            print(&(serde_json::to_string_pretty(&schema)? + "\n"))?;
            Ok(CommandOutcome::Positive)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::left_over;

    #[test]
    fn only_what_a_killed_run_left_is_to_be_restored() {
        let left = ["vm.swappiness".to_owned()];
        let dir = std::path::Path::new("/tmp/it");
        let killed = left_over(&left, None, dir);
        assert!(
            killed.contains("run `slackline --state-dir /tmp/it restore` first"),
            "{killed}"
        );
        let held = left_over(&left, Some("`slackline serve` (pid 7)"), dir);
        assert!(held.contains("`slackline serve` (pid 7)"), "{held}");
        assert!(!held.contains("run `slackline"), "{held}");
    }
}
