//! `slackline apply`: a configuration of a report, put in force or written to a directory.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use bayes_opt::Configuration;
use host::Roots;
use tuner::live::Live;
use tuner::process::Interrupt;
use tuner::report::{Finding, Report, difference};

use crate::done::CommandOutcome;
use crate::output::message;
use crate::promotions;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The report, as `tune --json` wrote it.
    report: PathBuf,
    /// Apply the configuration of this evaluation, even if it is not verified. By default the
    /// verified winner.
    #[arg(long, value_name = "N")]
    configuration: Option<usize>,
    /// Change nothing on the host. Write the configuration's files below this directory, with files
    /// that set its kernel knobs at boot.
    #[arg(long, value_name = "DIRECTORY")]
    to: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    let report = read(&arguments.report)?;
    let roots = Roots::default();
    let spec = report.checked(&arguments.report, &roots)?;
    let configuration = chosen(&report, arguments.configuration)?;
    message(&format!(
        "{}: {}",
        report.name,
        difference(&configuration, &report.control)
    ));
    if let Some(directory) = &arguments.to {
        let files = tuner::exchange::files(&spec, &configuration, &roots);
        for (path, text) in files.map_err(anyhow::Error::msg)? {
            let path = directory.join(path);
            let write = || {
                std::fs::create_dir_all(path.parent().unwrap_or(directory))?;
                std::fs::write(&path, text)
            };
            write().with_context(|| format!("{}", path.display()))?;
            message(&format!("wrote {}", path.display()));
        }
        return Ok(CommandOutcome::Positive);
    }
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    let mut live = Live::new(&spec, state_dir, interrupt)?;
    let left_over = live.left_over();
    if !left_over.is_empty() {
        return Err(tuner::TunerError::LeftOver(left_over.join(", ")).into());
    }
    let changed = promotions::put_in_force(&mut live, &configuration)?;
    ensure!(
        !changed.done.is_empty(),
        "there is nothing to put in force: Slackline started the service for the experiment only. `--to DIRECTORY` writes the \
         configuration's files"
    );
    Ok(CommandOutcome::Positive)
}

/// Reads a report.
pub(crate) fn read(path: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read(path).with_context(|| format!("{}", path.display()))?;
    let mut from = serde_json::Deserializer::from_slice(&text);
    serde_path_to_error::deserialize(&mut from).map_err(|error| {
        anyhow::anyhow!(
            "{}: {}: {}; a report is what `slackline tune --json FILE` writes",
            path.display(),
            error.path(),
            error.inner()
        )
    })
}

/// The configuration that is meant.
fn chosen(report: &Report, number: Option<usize>) -> anyhow::Result<Configuration> {
    if let Some(number) = number {
        let record = report.evaluation(number);
        let record = record.with_context(|| {
            let count = report.evaluations.len();
            format!("the report has no evaluation {number}: it has {count}")
        })?;
        let is_verified = report
            .verification
            .iter()
            .any(|arm| arm.configuration == record.configuration);
        if !is_verified {
            message(&format!(
                "Evaluation {number} ({}) was not verified: its measured effect proves nothing.",
                record.outcome
            ));
        }
        return Ok(record.configuration.clone());
    }
    let winner = report
        .winner()
        .filter(|_| report.finding == Finding::Improvement);
    let winner = winner.with_context(|| {
        format!(
            "the report shows no improvement that could be put in force ({}): name an evaluation by --configuration N",
            report.sentence
        )
    })?;
    Ok(winner.configuration.clone())
}
