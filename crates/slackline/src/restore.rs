//! `slackline restore`: undoes what a killed run left.

use std::path::Path;

use host::{Journal, RestoreOutcome, RestoreReport, Roots};

use crate::{Done, message, print};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Say what would be done; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<Done> {
    let mut journal = Journal::open(state_dir)?;
    let roots = Roots::default();
    let scratch_root = tuner::live::scratch_root(state_dir);
    let named = journal.describe();
    let groups = journal.groups();
    // First, so that services which the journal names end as they are used to.
    let mut report = journal.restore(&roots, arguments.dry_run)?;
    // We hold the lock, so every run is over: its stray processes and directories may go. Those that the journal names
    // are in its report.
    let mut orphans = tuner::process::orphans(&scratch_root);
    orphans.extend(tuner::process::left_in_groups(&roots, &groups));
    orphans.sort_unstable();
    orphans.dedup();
    orphans.retain(|pid| !named.contains(&format!("process {pid}")));
    if !arguments.dry_run {
        tuner::process::kill_all(&orphans);
        // A group can be removed once it is empty.
        if !(orphans.is_empty() || report.is_complete()) {
            report.again(journal.restore(&roots, false)?);
        }
        let _ = std::fs::remove_dir_all(scratch_root);
    }
    let store = ::relayout::Store::open(state_dir)?;
    let relaid_out = crate::relayout::undo_all(&store, arguments.dry_run)?;
    let mut is_told = relaid_out.iter().all(|undone| undone.is_restored);
    // The service reads its own configuration only once the files are back.
    let reapply = match tuner::reapply::Reapply::left_in(state_dir) {
        Ok(None) => None,
        Ok(Some(reapply)) if arguments.dry_run => {
            Some(format!("{}: would be run", reapply.describe()))
        }
        Ok(Some(reapply)) => Some(match reapply.run(state_dir) {
            Ok(()) => format!("{}: done", reapply.describe()),
            Err(message) => {
                is_told = false;
                format!("{}: FAILED: {message}; try again", reapply.describe())
            }
        }),
        Err(message) => {
            is_told = false;
            Some(message)
        }
    };
    if arguments.json {
        let printed = Printed {
            report: &report,
            orphans: &orphans,
            reapply: reapply.as_deref(),
            relaid_out: &relaid_out,
        };
        print(&(serde_json::to_string_pretty(&printed)? + "\n"))?;
    } else if report.items.is_empty()
        && orphans.is_empty()
        && reapply.is_none()
        && relaid_out.is_empty()
    {
        message("Nothing to restore: every knob has its first value.");
    } else {
        let ended = if arguments.dry_run {
            "would be ended"
        } else {
            "ended"
        };
        let mut lines = lines(&report, arguments.dry_run);
        lines.extend(
            orphans
                .iter()
                .map(|pid| format!("process {pid}, which a killed run left: {ended}")),
        );
        lines.extend(reapply);
        lines.extend(relaid_out.iter().map(crate::relayout::Undone::line));
        print(&(lines.join("\n") + "\n"))?;
    }
    Ok(if report.is_complete() && is_told {
        Done::Positive
    } else {
        Done::RestoreFailed
    })
}

#[derive(serde::Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    report: &'a RestoreReport,
    /// Processes of killed runs that the journal does not name.
    orphans: &'a [u32],
    /// What became of the `apply` steps of a service that Slackline did not start.
    reapply: Option<&'a str>,
    /// Processes whose code was laid out again.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    relaid_out: &'a [crate::relayout::Undone],
}

/// One line for each thing that was to be undone.
pub(crate) fn lines(report: &RestoreReport, dry_run: bool) -> Vec<String> {
    report
        .items
        .iter()
        .map(|item| {
            let subject = &item.subject;
            let original = item.original.as_deref().map_or_else(String::new, |value| format!(" to {value}"));
            match &item.outcome {
                RestoreOutcome::Restored if dry_run => format!("{subject}: would be restored{original}"),
                RestoreOutcome::Restored => format!("{subject}: restored{original}"),
                RestoreOutcome::AlreadyOriginal => format!("{subject}: already as it was"),
                RestoreOutcome::ChangedByOther { expected, found } => format!(
                    "{subject}: left alone: someone else changed it from {expected} to {found}{}",
                    item.original.as_deref().map_or_else(String::new, |value| format!(" (it was {value} at first)"))
                ),
                RestoreOutcome::Vanished => format!("{subject}: gone, nothing to do"),
                RestoreOutcome::Failed { errno } => format!(
                    "{subject}: COULD NOT BE RESTORED{original}: {}; it stays in the journal, try again",
                    std::io::Error::from_raw_os_error(*errno)
                ),
            }
        })
        .collect()
}
