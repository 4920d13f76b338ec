//! What was promoted on this host, and the way back: `promotions.json` in the state directory, and
//! beside it the former contents of replaced files.
//!
//! A promotion is on disk before the undo journal forgets what there is to undo. Undoing a
//! promotion is a change like any other: through the journal, so that what is cut off in the middle
//! is put back.

mod served;

use std::path::{Path, PathBuf};

use host::{BootSetting, Change, HostError, Journal, Knob, Roots, boot_setting, fingerprint};
use serde::{Deserialize, Serialize};

use crate::control_files::ControlFiles;
use crate::error::TunerError;
use crate::reapply::Reapply;
pub(crate) use served::rolled_back;
pub use served::{Served, forget_experiment, in_force_by_experiments};

/// One promotion.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PromotionRecord {
    /// From 1.
    pub number: usize,
    /// The experiment, by its name.
    pub experiment: String,
    /// The experiment of a server. None, where a command has promoted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Served>,
    /// When.
    pub at: jiff::Timestamp,
    /// The knobs.
    pub knobs: Vec<PromotedKnob>,
    /// The files.
    pub files: Vec<PromotedFile>,
    /// How the service is told of what was in force before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reapply: Option<Reapply>,
    /// When it was undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone: Option<jiff::Timestamp>,
    /// What the last undo could not restore, with the reasons. Of one that is undone, what was
    /// forgotten: it is as it was then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

/// A knob that was promoted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromotedKnob {
    /// Which one.
    pub knob: Knob,
    /// Its value before.
    pub old: String,
    /// Its value since.
    pub new: String,
}

/// A file that was promoted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromotedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Where its former contents are kept; `None` where there was no file.
    pub kept: Option<PathBuf>,
    /// The fingerprint of what it holds since.
    pub new: Option<String>,
}

/// What has become of one promoted value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It has the promoted value.
    InForce,
    /// It has the value from before the promotion, as after a boot or a rollback.
    Former,
    /// It has another value.
    Other(String),
    /// It is not there.
    Absent,
}

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
        /// Why.
        reason: String,
    },
    /// The host refuses its former value, or the file's former contents are gone.
    NotRestored {
        /// Why.
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

impl PromotedKnob {
    /// What has become of it.
    #[must_use]
    pub fn standing(&self, roots: &Roots) -> Standing {
        match self.knob.read(roots) {
            Ok(Some(value)) if value == self.new => Standing::InForce,
            Ok(Some(value)) if value == self.old => Standing::Former,
            Ok(Some(value)) => Standing::Other(value),
            Ok(None) => Standing::Absent,
            Err(error) => Standing::Other(error.to_string()),
        }
    }
}

impl std::fmt::Display for PromotedKnob {
    /// Its name with both values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} = {}, was {}", self.knob, self.new, self.old)
    }
}

impl std::fmt::Display for PromotedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "file {}", self.path.display())
    }
}

impl PromotedFile {
    /// The fingerprint of its former contents.
    fn former(&self) -> Result<Option<String>, HostError> {
        self.kept
            .as_ref()
            .map_or(Ok(None), |kept| fingerprint(kept))
    }

    /// What has become of it.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let former = self.former().ok().flatten();
        match fingerprint(&self.path) {
            Ok(Some(now)) if Some(&now) == self.new.as_ref() => Standing::InForce,
            Ok(Some(now)) if Some(&now) == former.as_ref() => Standing::Former,
            Ok(None) if self.kept.is_none() => Standing::Former,
            Ok(Some(_)) => Standing::Other("other contents".to_owned()),
            Ok(None) => Standing::Absent,
            Err(error) => Standing::Other(error.to_string()),
        }
    }
}

impl PromotionRecord {
    /// Something of it is in force.
    #[must_use]
    pub fn is_in_force(&self, roots: &Roots) -> bool {
        let knobs = self.knobs.iter().map(|knob| knob.standing(roots));
        let files = self.files.iter().map(PromotedFile::standing);
        self.undone.is_none() && knobs.chain(files).any(|it| it == Standing::InForce)
    }

    /// What it has changed, a line each: a knob with both values, a file with its path.
    #[must_use]
    pub fn changed(&self) -> Vec<String> {
        let knobs = self.knobs.iter().map(ToString::to_string);
        knobs
            .chain(self.files.iter().map(ToString::to_string))
            .collect()
    }

    /// The lines that keep it in force beyond a boot, by file.
    #[must_use]
    pub fn boot_settings(&self, roots: &Roots) -> Vec<BootSetting> {
        let knobs = self.knobs.iter();
        let mut settings: Vec<BootSetting> = knobs
            .filter_map(|it| boot_setting(roots, &it.knob, &it.new))
            .collect();
        settings.sort();
        settings
    }
}

/// Where the former contents of files of a promotion are kept.
fn directory(state_dir: &Path, number: usize) -> PathBuf {
    state_dir.join("promotions").join(number.to_string())
}

/// Keeps the former contents of a file of a promotion.
fn keep_copy(
    state_dir: &Path,
    number: usize,
    place: usize,
    contents: &[u8],
) -> Result<PathBuf, TunerError> {
    let directory = directory(state_dir, number);
    std::fs::create_dir_all(&directory).map_err(failed(&directory))?;
    let kept = directory.join(place.to_string());
    host::replace_private(&kept, contents).map_err(failed(&kept))?;
    Ok(kept)
}

fn list_file(state_dir: &Path) -> PathBuf {
    state_dir.join("promotions.json")
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> TunerError {
    let path = path.to_owned();
    move |source| TunerError::File {
        path: path.clone(),
        source,
    }
}

/// All promotions, oldest first.
///
/// # Errors
/// [`TunerError::File`] where they cannot be read.
pub fn list(state_dir: &Path) -> Result<Vec<PromotionRecord>, TunerError> {
    let path = list_file(state_dir);
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            failed(&path)(std::io::Error::other(format!(
                "{error}: the file is damaged; mend it, or move it away: its promotions stay in force, and have to be undone by hand"
            )))
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(&path)(error)),
    }
}

fn write_list(state_dir: &Path, records: &[PromotionRecord]) -> Result<(), TunerError> {
    let path = list_file(state_dir);
    let json = serde_json::to_vec_pretty(records);
    let json = json.map_err(|error| failed(&path)(std::io::Error::other(error)))?;
    host::replace_private(&path, &json).map_err(failed(&path))
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
