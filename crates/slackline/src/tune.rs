//! `slackline tune`: the experiment from its file to its verified end.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use host::RestoreReport;
use tuner::experiment;
use tuner::ledger::Event;
use tuner::live::Live;
use tuner::process::Interrupt;
use tuner::report::{Finding, Report};

use crate::progress::Progress;
use crate::{Done, message, restore, table};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The specification (TOML, or JSON with the ending .json).
    spec: PathBuf,
    /// Write the whole report as JSON to this file; `-` prints it instead of the tables.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Apply the winner, if it is shown to be better and no constraint is violated.
    #[arg(long)]
    promote: bool,
    /// Seed of the search, instead of the specification's.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of evaluations, instead of the specification's.
    #[arg(long, value_name = "N")]
    evaluations: Option<usize>,
}

pub(crate) fn run(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<Done> {
    let mut spec = tuner::spec::load(&arguments.spec, &host::Roots::default())?;
    anyhow::ensure!(
        spec.continuous.is_none(),
        "mode = \"continuous\" goes on after its promotion, which needs `slackline serve`: `slackline experiments create`"
    );
    if let Some(seed) = arguments.seed {
        spec.spec.seed = seed;
        spec.settings.seed = seed;
    }
    if let Some(evaluations) = arguments.evaluations {
        anyhow::ensure!(evaluations > 0, "--evaluations must be above 0");
        spec.spec.budget.evaluations = evaluations;
    }
    for remark in table::remarks(&spec) {
        message(&remark);
    }
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    let mut live = Live::new(&spec, state_dir, interrupt.clone())?;
    let left_over = live.left_over();
    if !left_over.is_empty() {
        anyhow::bail!(
            "an earlier run was killed and left this to undo: {}; run `slackline restore` first",
            left_over.join(", ")
        );
    }
    crate::ensure_writable(&[arguments.json.as_deref()])?;
    let mut progress = Progress::new(&spec);
    let (mut report, failed) =
        experiment::run_to_end(&spec, &mut live, &mut |event: &Event<'_>| {
            progress.show(event)
        });
    progress.finish();
    if interrupt.signal().is_some() && !spec.target.apply.is_empty() {
        message(&format!(
            "Stopping: the service is told of its own configuration, each apply step for {} s at most.",
            tuner::reapply::Reapply::STEP_MAX.as_secs()
        ));
    }
    let restored = live.restore();
    if let Ok(restored) = &restored {
        for line in restore::lines(restored, false) {
            message(&line);
        }
    }
    let is_restored = restored.as_ref().is_ok_and(RestoreReport::is_complete);
    let promoted = if arguments.promote && is_restored && failed.is_none() {
        promote(&spec, &mut live, &mut report)
    } else {
        Ok(())
    };
    let published = crate::publish(
        arguments.json.as_deref(),
        &report,
        &table::results(&report),
        "The whole report",
    );
    if !is_restored {
        if let Err(error) = published {
            message(&format!("slackline: {error:#}"));
        }
        if let Err(error) = restored {
            message(&format!("slackline: {error}"));
        }
        message("Not everything could be restored: run `slackline restore`.");
        return Ok(Done::RestoreFailed);
    }
    if let Some(error) = failed {
        message("Everything is restored.");
        return Err(error.into());
    }
    promoted?;
    published?;
    Ok(match (report.interrupted, report.finding) {
        (Some(signal), _) => {
            message(&format!(
                "Stopped by signal {signal}. Everything is restored."
            ));
            Done::Signal(signal)
        }
        (None, Finding::Improvement) => Done::Positive,
        (None, _) => Done::Negative,
    })
}

fn promote(
    spec: &tuner::spec::CheckedSpec,
    live: &mut Live<'_>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let winner = report.winner().map(|arm| arm.configuration.clone());
    match winner {
        Some(winner) if report.finding == Finding::Improvement && report.interrupted.is_none() => {
            let promoted = live.promote(&winner);
            // After a refusal, what was applied so far is taken back; else there is nothing to take back.
            live.restore()?;
            report.promoted = promoted?.done;
            if report.promoted.is_empty() && spec.target.start.is_some() {
                message(
                    "Nothing to promote to: the service was started by Slackline for the experiment only. Put the settings below into your own.",
                );
            } else {
                message(&format!("Promoted: {}", report.promoted.join(", ")));
            }
        }
        _ => message("Not promoted: an improvement was not shown."),
    }
    Ok(())
}
