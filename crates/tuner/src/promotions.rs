//! What was promoted on this host, and the way back: `promotions.json` in the state directory, and
//! beside it the former contents of replaced files.
//!
//! A promotion is on disk before the undo journal forgets what there is to undo. Undoing a
//! promotion is a change like any other: through the journal, so that what is cut off in the middle
//! is put back.

mod record;
mod served;

use std::path::Path;

use host::{Change, HostError, Journal, Roots, fingerprint};
use serde::Serialize;

use crate::control_files::ControlFiles;
use crate::error::TunerError;
use crate::reapply::Reapply;
pub use record::{PromotedFile, PromotedKnob, PromotionRecord, Served, Standing, list};
use record::{keep_copy, write_list};
pub(crate) use served::rolled_back;
pub use served::{forget_experiment, in_force_by_experiments};

/// What became of undoing one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UndoneChange {
    /// What it is.
    pub subject: String,
    /// What became of it.
    pub outcome: UndoOutcome,
}

/// How undoing one thing ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UndoOutcome {
    /// It has its former value again.
    Restored {
        /// That value, of a knob.
        value: Option<String>,
    },
    /// It had its former value already.
    AlreadyFormer,
    /// Somebody else has changed it since, so it was left alone.
    LeftAlone {
        /// What it has now.
        found: String,
    },
    /// The `apply` steps have told the service.
    Told,
    /// The `apply` steps failed.
    NotTold {
        /// The reason.
        reason: String,
    },
    /// The host refuses its former value, or the file's former contents are gone.
    NotRestored {
        /// The reason.
        reason: String,
    },
}

impl UndoOutcome {
    /// The former state is in force as far as this is concerned.
    #[must_use]
    pub fn is_undone(&self) -> bool {
        !matches!(
            self,
            Self::LeftAlone { .. } | Self::NotTold { .. } | Self::NotRestored { .. }
        )
    }
}

impl std::fmt::Display for UndoneChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let subject = &self.subject;
        match &self.outcome {
            UndoOutcome::Restored { value: Some(value) } => {
                write!(f, "{subject}: restored to {value}")
            }
            UndoOutcome::Restored { value: None } => write!(f, "{subject}: restored"),
            UndoOutcome::AlreadyFormer => write!(f, "{subject}: already as it was"),
            UndoOutcome::LeftAlone { found } => {
                write!(
                    f,
                    "{subject}: left alone: somebody else has changed it to {found}"
                )
            }
            UndoOutcome::Told => write!(f, "{subject}: done"),
            UndoOutcome::NotTold { reason } => write!(f, "{subject}: FAILED: {reason}"),
            UndoOutcome::NotRestored { reason } => write!(f, "{subject}: not restored: {reason}"),
        }
    }
}

/// Keeps what is in force by the journal as a promotion, before the journal forgets it.
///
/// # Errors
/// [`TunerError::File`], [`TunerError::Host`].
pub(crate) fn record(
    state_dir: &Path,
    experiment: &str,
    served: Option<&Served>,
    journal: &Journal,
    reapply: Option<Reapply>,
) -> Result<PromotionRecord, TunerError> {
    let mut records = list(state_dir)?;
    let number = records.iter().map(|it| it.number).max().unwrap_or(0) + 1;
    let mut made = PromotionRecord {
        number,
        experiment: experiment.to_owned(),
        served: served.cloned(),
        at: jiff::Timestamp::now(),
        knobs: Vec::new(),
        files: Vec::new(),
        reapply,
        undone: None,
        left: Vec::new(),
    };
    for change in journal.changes()? {
        match change {
            Change::Knob { knob, old, new } => made.knobs.push(PromotedKnob { knob, old, new }),
            Change::File { path, old } => {
                let place = made.files.len();
                let kept = old.map(|old| keep_copy(state_dir, number, place, &old));
                let kept = kept.transpose()?;
                let new = fingerprint(&path)?;
                made.files.push(PromotedFile { path, kept, new });
            }
        }
    }
    if let Some(by) = served {
        served::take_over(state_dir, &mut records, &mut made, by)?;
    }
    records.push(made.clone());
    write_list(state_dir, &records)?;
    Ok(made)
}

/// Puts back what was in force before a promotion, but for what somebody else has changed since;
/// later promotions of the same knobs and files count as such. What cannot be restored keeps
/// nothing else from being restored; it stays on record, and [`forget_rest`] gives it up.
///
/// # Errors
/// [`TunerError::NoPromotion`]; another Slackline runs; the journal cannot be used: then everything
/// is as it was before.
pub fn undo(
    state_dir: &Path,
    roots: &Roots,
    number: usize,
) -> Result<Vec<UndoneChange>, TunerError> {
    let mut records = list(state_dir)?;
    let record = numbered(&mut records, number)?;
    let mut journal = Journal::open(state_dir)?;
    if !journal.is_empty() {
        return Err(TunerError::LeftOver(journal.describe().join(", ")));
    }
    let mut changes = Vec::new();
    if let Err(error) = put_back(record, &mut journal, roots, &mut changes) {
        journal.restore(roots, false)?;
        return Err(error.into());
    }
    journal.promote_all()?;
    drop(journal);
    if let Some(reapply) = &record.reapply {
        let outcome = match reapply.run(state_dir) {
            Ok(()) => UndoOutcome::Told,
            Err(reason) => UndoOutcome::NotTold { reason },
        };
        changes.push(UndoneChange {
            subject: reapply.describe(),
            outcome,
        });
    }
    let left = changes.iter().filter(|it| !it.outcome.is_undone());
    record.left = left.map(ToString::to_string).collect();
    if record.left.is_empty() {
        record.undone = Some(jiff::Timestamp::now());
    }
    // A later promotion keeps what is in the files now.
    if let Ok(mut kept) = ControlFiles::kept_in(state_dir) {
        for file in &record.files {
            kept.roll_back(&file.path);
        }
        let _ = kept.keep(state_dir);
    }
    write_list(state_dir, &records)?;
    Ok(changes)
}

fn numbered(
    records: &mut [PromotionRecord],
    number: usize,
) -> Result<&mut PromotionRecord, TunerError> {
    let known: Vec<usize> = records.iter().map(|it| it.number).collect();
    let mut found = records.iter_mut().filter(|it| it.number == number);
    found
        .next()
        .ok_or(TunerError::NoPromotion { number, known })
}

/// What the undo of a promotion could not restore, with the reasons.
///
/// # Errors
/// [`TunerError::NoPromotion`]; [`TunerError::NothingLeft`]; the list cannot be read.
pub fn rest(state_dir: &Path, number: usize) -> Result<Vec<String>, TunerError> {
    let mut records = list(state_dir)?;
    let record = numbered(&mut records, number)?;
    match record.undone.is_none() && !record.left.is_empty() {
        true => Ok(record.left.clone()),
        false => Err(TunerError::NothingLeft(number)),
    }
}

/// Forgets what the undo of a promotion could not restore: it stays as it is, and the promotion
/// counts as undone. Returns what that is, with the reasons.
///
/// # Errors
/// As [`rest`]; another Slackline runs.
pub fn forget_rest(state_dir: &Path, number: usize) -> Result<Vec<String>, TunerError> {
    rest(state_dir, number)?;
    // One at a time changes the list.
    let _journal = Journal::open(state_dir)?;
    let forgotten = rest(state_dir, number)?;
    let mut records = list(state_dir)?;
    numbered(&mut records, number)?.undone = Some(jiff::Timestamp::now());
    write_list(state_dir, &records)?;
    Ok(forgotten)
}

fn put_back(
    record: &PromotionRecord,
    journal: &mut Journal,
    roots: &Roots,
    changes: &mut Vec<UndoneChange>,
) -> Result<(), HostError> {
    // The last one written comes first: of knobs that hang together, each write is then one that
    // the kernel accepted before.
    for promoted in record.knobs.iter().rev() {
        let outcome = match promoted.standing(roots) {
            Standing::InForce => match journal.write(roots, &promoted.knob, &promoted.old) {
                Ok(_) => UndoOutcome::Restored {
                    value: Some(promoted.old.clone()),
                },
                Err(error) => not_restored(error)?,
            },
            Standing::Former => UndoOutcome::AlreadyFormer,
            Standing::Other(found) => UndoOutcome::LeftAlone { found },
            Standing::Absent => UndoOutcome::LeftAlone {
                found: "nothing".to_owned(),
            },
        };
        changes.push(UndoneChange {
            subject: promoted.knob.to_string(),
            outcome,
        });
    }
    for promoted in &record.files {
        let outcome = match promoted.standing() {
            Standing::InForce => put_file_back(promoted, journal)?,
            Standing::Former => UndoOutcome::AlreadyFormer,
            Standing::Other(found) => UndoOutcome::LeftAlone { found },
            Standing::Absent => UndoOutcome::LeftAlone {
                found: "no file".to_owned(),
            },
        };
        changes.push(UndoneChange {
            subject: promoted.path.display().to_string(),
            outcome,
        });
    }
    Ok(())
}

/// What the host refuses is left; without the journal, nothing may be changed.
fn not_restored(error: HostError) -> Result<UndoOutcome, HostError> {
    match error {
        error @ HostError::Journal { .. } => Err(error),
        error => Ok(UndoOutcome::NotRestored {
            reason: error.to_string(),
        }),
    }
}

fn put_file_back(promoted: &PromotedFile, journal: &mut Journal) -> Result<UndoOutcome, HostError> {
    let restored = UndoOutcome::Restored { value: None };
    let unusable = |path: &Path, error: std::io::Error| UndoOutcome::NotRestored {
        reason: format!("{}: {error}", path.display()),
    };
    let Some(kept) = &promoted.kept else {
        // There was none before.
        let removed = std::fs::remove_file(&promoted.path);
        return Ok(removed.map_or_else(|error| unusable(&promoted.path, error), |()| restored));
    };
    let former = match std::fs::read(kept) {
        Ok(former) => former,
        Err(error) => return Ok(unusable(kept, error)),
    };
    match journal.replace_file(&promoted.path, &former) {
        Ok(()) => Ok(restored),
        Err(error) => not_restored(error),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use host::Knob;

    use super::*;

    pub(super) struct HostTree {
        dir: tempfile::TempDir,
        pub(super) roots: Roots,
        pub(super) state: PathBuf,
    }

    pub(super) fn swappiness() -> Knob {
        Knob::Sysctl("vm.swappiness".into())
    }

    impl HostTree {
        pub(super) fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(dir.path().join("proc/sys/vm")).unwrap();
            std::fs::write(dir.path().join("proc/sys/vm/swappiness"), "60\n").unwrap();
            std::fs::write(dir.path().join("app.conf"), "before").unwrap();
            Self {
                roots: Roots::at(dir.path()),
                state: dir.path().join("state"),
                dir,
            }
        }

        pub(super) fn file(&self) -> PathBuf {
            self.dir.path().join("app.conf")
        }

        pub(super) fn value(&self) -> String {
            swappiness().read(&self.roots).unwrap().unwrap()
        }

        pub(super) fn promote(&self, value: &str) {
            self.promote_by(value, None);
        }

        pub(super) fn promote_by(&self, value: &str, served: Option<Served>) {
            let mut journal = Journal::open(&self.state).unwrap();
            journal.write(&self.roots, &swappiness(), value).unwrap();
            journal
                .replace_file(&self.file(), value.as_bytes())
                .unwrap();
            record(&self.state, "it", served.as_ref(), &journal, None).unwrap();
            journal.promote_all().unwrap();
        }
    }

    #[test]
    fn a_promotion_is_undone_once() {
        let tree = HostTree::new();
        tree.promote("10");
        let records = list(&tree.state).unwrap();
        assert!(records[0].is_in_force(&tree.roots));
        let settings = records[0].boot_settings(&tree.roots);
        assert_eq!(settings[0].line, "vm.swappiness = 10");
        let changes = undo(&tree.state, &tree.roots, 1).unwrap();
        assert!(
            changes.iter().all(|it| it.outcome.is_undone()),
            "{changes:?}"
        );
        assert_eq!(tree.value(), "60");
        assert_eq!(std::fs::read_to_string(tree.file()).unwrap(), "before");
        assert!(Journal::open(&tree.state).unwrap().is_empty());
        let records = list(&tree.state).unwrap();
        assert!(!records[0].is_in_force(&tree.roots) && records[0].undone.is_some());
        let again = undo(&tree.state, &tree.roots, 1).unwrap();
        assert!(
            again
                .iter()
                .all(|it| it.outcome == UndoOutcome::AlreadyFormer)
        );
    }

    #[test]
    fn what_somebody_else_has_changed_since_is_left_alone() {
        let tree = HostTree::new();
        tree.promote("10");
        tree.promote("20");
        std::fs::write(tree.file(), "mine").unwrap();
        let changes = undo(&tree.state, &tree.roots, 1).unwrap();
        let left = |found: &str| UndoOutcome::LeftAlone {
            found: found.to_owned(),
        };
        assert_eq!(changes[0].outcome, left("20"));
        assert_eq!(changes[1].outcome, left("other contents"));
        assert!(list(&tree.state).unwrap()[0].undone.is_none());
        // The later one goes back to the earlier one.
        undo(&tree.state, &tree.roots, 2).unwrap();
        assert_eq!(tree.value(), "10");
        assert_eq!(std::fs::read_to_string(tree.file()).unwrap(), "mine");
        let error = undo(&tree.state, &tree.roots, 7).unwrap_err().to_string();
        assert_eq!(error, "there is no promotion 7; there are 1, 2");
    }

    #[test]
    fn what_an_undo_cannot_restore_is_forgotten_on_request() {
        let tree = HostTree::new();
        tree.promote("10");
        let nothing = forget_rest(&tree.state, 1).unwrap_err().to_string();
        assert_eq!(
            nothing,
            "promotion 1 has nothing to forget: its undo restored everything, or there was none"
        );
        let kept = list(&tree.state).unwrap()[0].files[0].kept.clone().unwrap();
        std::fs::remove_file(&kept).unwrap();
        let changes = undo(&tree.state, &tree.roots, 1).unwrap();
        // The knob is back although the file is not.
        assert_eq!(tree.value(), "60");
        assert!(
            matches!(&changes[1].outcome, UndoOutcome::NotRestored { reason } if reason.contains("No such file")),
            "{changes:?}"
        );
        assert!(list(&tree.state).unwrap()[0].is_in_force(&tree.roots));
        assert_eq!(rest(&tree.state, 1).unwrap(), [changes[1].to_string()]);
        let forgotten = forget_rest(&tree.state, 1).unwrap();
        assert_eq!(forgotten, [changes[1].to_string()]);
        let record = &list(&tree.state).unwrap()[0];
        assert!(!record.is_in_force(&tree.roots) && record.undone.is_some());
        assert_eq!(record.left, forgotten);
        assert_eq!(std::fs::read_to_string(tree.file()).unwrap(), "10");
        assert!(forget_rest(&tree.state, 1).is_err());
    }
}
