//! Undoing what a killed run left: knobs and files by the journal, stray processes, and the service
//! that must be told.

use std::path::Path;

use host::{HostError, Journal, RestoreReport, Roots};
use serde::Serialize;

use crate::process;
use crate::reapply::Reapply;
use crate::scratch::scratch_root;

/// What was undone, or would be.
#[derive(Clone, Debug, Serialize)]
pub struct Undone {
    /// What the journal named.
    #[serde(flatten)]
    pub report: RestoreReport,
    /// Processes of killed runs that the journal does not name.
    pub orphans: Vec<u32>,
    /// What became of the `apply` steps of a service that Slackline did not start.
    pub reapply: Option<String>,
    /// That service has been told, or need not be.
    #[serde(skip)]
    is_told: bool,
}

impl Undone {
    /// Nothing is left to undo.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.report.is_complete() && self.is_told
    }

    /// For a log; `None` where there was nothing.
    #[must_use]
    pub fn sentence(&self) -> Option<String> {
        let kept = self.report.items.iter().filter(|item| item.kept.is_some());
        let kept: Vec<String> = kept
            .map(|item| format!("; left as someone else has it: {}", item.named()))
            .collect();
        (!self.is_empty()).then(|| {
            format!(
                "an earlier run was killed; undone: {} changes, {} processes{}",
                self.report.items.len(),
                self.orphans.len(),
                kept.concat()
            )
        })
    }

    /// There was nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.report.items.is_empty() && self.orphans.is_empty() && self.reapply.is_none()
    }
}

/// Undoes everything that a killed run left on this host; a dry run only says what that would be.
///
/// # Errors
/// Another Slackline runs, or the journal cannot be used.
pub fn undo(state_dir: &Path, roots: &Roots, dry_run: bool) -> Result<Undone, HostError> {
    if matches!(state_dir.try_exists(), Ok(false)) {
        // Nothing was ever done with it: no directory is made to say so.
        return Ok(Undone {
            report: RestoreReport::default(),
            orphans: Vec::new(),
            reapply: None,
            is_told: true,
        });
    }
    // A dry run makes nothing: neither a journal nor the lock beside it.
    let mut journal = match dry_run && !Journal::exists(state_dir) {
        true => None,
        false => Some(Journal::open(state_dir)?),
    };
    let scratch_root = scratch_root(state_dir);
    let (mut named, mut groups) = (Vec::new(), Vec::new());
    let mut report = RestoreReport::default();
    if let Some(journal) = &mut journal {
        named = journal.describe();
        groups = journal.groups();
        // First, so that services which the journal names end as they are used to.
        report = journal.restore(roots, dry_run)?;
    }
    // We hold the lock, so every run is over: its stray processes and directories may go. Those
    // that the journal names are in its report.
    let mut orphans = process::orphans(&scratch_root);
    orphans.extend(process::left_in_groups(roots, &groups));
    orphans.sort_unstable();
    orphans.dedup();
    orphans.retain(|pid| !named.contains(&format!("process {pid}")));
    if let Some(journal) = journal.as_mut().filter(|_| !dry_run) {
        process::kill_all(&orphans);
        // A group can be removed once it is empty.
        if !(orphans.is_empty() || report.is_complete()) {
            report.again(journal.restore(roots, false)?);
        }
        let _ = std::fs::remove_dir_all(scratch_root);
    }
    let mut is_told = true;
    // The service reads its own configuration only once the files are back.
    let reapply = match Reapply::left_in(state_dir) {
        Ok(None) => None,
        Ok(Some(reapply)) if dry_run => Some(format!("{}: would be run", reapply.describe())),
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
    Ok(Undone {
        report,
        orphans,
        reapply,
        is_told,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_the_state_directory_has_no_instances_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let root = scratch_root(&real);
        assert!(root.ends_with("real.run"));
        assert_eq!(scratch_root(&link), root);
    }
}
