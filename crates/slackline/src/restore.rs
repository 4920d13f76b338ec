//! `slackline restore`: undoes what a killed run left.

use std::path::Path;

use host::{RestoreOutcome, RestoreReport, Roots};

use crate::done::CommandOutcome;
use crate::output::{error_chain, message, print};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print what would be restored. Changes nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    let undone = tuner::undo::undo(state_dir, &Roots::default(), arguments.dry_run)?;
    let store = ::relayout::ManifestStore::at(state_dir);
    // What was undone so far is told, whatever comes of this.
    let (relaid_out, error) = match crate::relayout::undo_left(&store, arguments.dry_run) {
        Ok(relaid_out) => (relaid_out, None),
        Err(error) => (Vec::new(), Some(error_chain(&error))),
    };
    if arguments.json {
        let printed = Printed {
            dry_run: arguments.dry_run,
            undone: &undone,
            relaid_out: &relaid_out,
            error: error.as_deref(),
        };
        print(&(serde_json::to_string_pretty(&printed)? + "\n"))?;
    } else if undone.is_empty() && relaid_out.is_empty() && error.is_none() {
        let why = match state_dir.try_exists() {
            Ok(false) => format!(
                "{} does not exist, so nothing was changed with it",
                state_dir.display()
            ),
            _ => "no run has left anything to undo".to_owned(),
        };
        message(&format!("Nothing to restore: {why}."));
        let promoted = crate::promotions::in_force(state_dir, &Roots::default())?;
        if !promoted.is_empty() {
            message("Promoted for good, and so not undone here:");
            for line in promoted {
                message(&format!("  {line}"));
            }
            message("`slackline promotions undo N` undoes one.");
        }
    } else {
        let ended = if arguments.dry_run {
            "would be ended"
        } else {
            "ended"
        };
        let mut lines = lines(&undone.report, arguments.dry_run);
        lines.extend(
            undone
                .orphans
                .iter()
                .map(|pid| format!("process {pid}, which a killed run left: {ended}")),
        );
        lines.extend(undone.reapply.clone());
        lines.extend(relaid_out.iter().map(crate::relayout::Undone::line));
        print(
            &lines
                .iter()
                .map(|line| format!("{line}\n"))
                .collect::<String>(),
        )?;
        if let Some(error) = &error {
            message(&format!("slackline: {error}"));
        }
    }
    let are_all_as_they_were = relaid_out.iter().all(|undone| undone.is_restored);
    Ok(
        if undone.is_complete() && are_all_as_they_were && error.is_none() {
            CommandOutcome::Positive
        } else {
            CommandOutcome::RestoreFailed
        },
    )
}

#[derive(serde::Serialize)]
struct Printed<'a> {
    /// Nothing was done: it is what would be.
    dry_run: bool,
    #[serde(flatten)]
    undone: &'a tuner::undo::Undone,
    /// Processes whose code was laid out again.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    relaid_out: &'a [crate::relayout::Undone],
    /// Why nothing is known of such processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// One line for each thing that was to be undone.
pub(crate) fn lines(report: &RestoreReport, dry_run: bool) -> Vec<String> {
    report
        .items
        .iter()
        .map(|item| {
            let subject = &item.subject;
            let done = match subject.starts_with("process ") || subject.starts_with("processes ") {
                true => "ended",
                false => "restored",
            };
            let original = item.original.as_deref().map_or_else(String::new, |value| format!(" to {value}"));
            let is_kept = if dry_run { "would be kept" } else { "are kept" };
            let kept = item.kept.as_deref().map_or_else(String::new, |kept| {
                format!("; the original contents {is_kept} in {}", kept.display())
            });
            match &item.outcome {
                RestoreOutcome::Restored if dry_run => format!("{subject}: would be {done}{original}"),
                RestoreOutcome::Restored => format!("{subject}: {done}{original}"),
                RestoreOutcome::AlreadyOriginal => format!("{subject}: already as it was"),
                RestoreOutcome::ChangedByOther { expected, found } => format!(
                    "{subject}: left alone: someone else changed it from {expected} to {found}{}{kept}",
                    item.original.as_deref().map_or_else(String::new, |value| format!(" (it was {value} at first)"))
                ),
                RestoreOutcome::Vanished if item.kept.is_some() => format!("{subject}: gone, left so{kept}"),
                RestoreOutcome::Vanished => format!("{subject}: gone, nothing to do"),
                RestoreOutcome::Failed { errno } => format!(
                    "{subject}: COULD NOT BE RESTORED{original}: {}; it stays in the journal, try again",
                    std::io::Error::from_raw_os_error(*errno)
                ),
            }
        })
        .collect()
}
