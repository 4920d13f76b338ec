//! Replacing the contents of an ordinary file, undoably: the old contents are kept below the state
//! directory, and the file changes by a rename, so that nobody ever sees half of it. Owner, mode
//! and extended attributes, access-control lists and capabilities among them, are kept; a file with
//! several hard links, of which a rename changes one, is refused.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::Journal;
use super::record::{Action, Record};
use crate::error::HostError;
use crate::files::{
    check_replaceable, fnv, in_words, link_target, ordinary, read_ordinary, replace,
    replace_private, sync_directory, write_synced,
};
use crate::knob::Knob;

/// A file that stays replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former {
    /// Where it is.
    pub path: PathBuf,
    /// Where its former contents are kept, below the state directory.
    pub kept: PathBuf,
}

/// A change that is in force, as far as it is of a knob or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A knob.
    Knob {
        /// Which one.
        knob: Knob,
        /// Its value before.
        old: String,
        /// The value that was read back.
        new: String,
    },
    /// A file.
    File {
        /// Where it is.
        path: PathBuf,
        /// What it held before; `None` where there was none.
        old: Option<Vec<u8>>,
    },
}

impl Journal {
    /// The changes of knobs and files that [`restore`](Self::restore) would undo, oldest first.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`] where the former contents of a file cannot be read.
    pub fn changes(&self) -> Result<Vec<Change>, HostError> {
        let mut changes = Vec::new();
        for pending in &self.pendings.list {
            match &pending.action {
                Action::Write { knob, old, new, .. } => changes.push(Change::Knob {
                    knob: knob.clone(),
                    old: old.clone(),
                    new: pending.left.clone().unwrap_or_else(|| new.clone()),
                }),
                Action::File { path, backup, .. } => {
                    let saved = backup.as_ref().map(|backup| self.saved(backup));
                    let old = saved.transpose().map_err(|errno| HostError::Journal {
                        path: path.clone(),
                        errno,
                    })?;
                    changes.push(Change::File {
                        path: path.clone(),
                        old,
                    });
                }
                _ => {}
            }
        }
        Ok(changes)
    }

    /// Replaces (or makes) a file with `contents`, atomically. The old contents, or the fact that
    /// there was no file, are saved first.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`] where the old contents cannot be saved (the file was not touched);
    /// [`HostError::Disturbed`] where somebody else has changed it since it was replaced;
    /// [`HostError::Irreplaceable`] and [`HostError::Attribute`] (it was not touched either);
    /// [`HostError::Read`]; [`HostError::Write`].
    pub fn replace_file(&mut self, path: &Path, contents: &[u8]) -> Result<(), HostError> {
        let path = link_target(path)?;
        let backup = self.save_found(&path)?;
        self.change_file(&path, backup, contents, |path| replace(path, contents))
    }

    /// Removes a file; whether there was one. Its contents are saved first, but
    /// [`restore`](Self::restore) makes no file again that is gone: whoever does not leave it so
    /// calls [`replace_file`](Self::replace_file) before.
    ///
    /// # Errors
    ///
    /// As of [`replace_file`](Self::replace_file).
    pub fn remove_file(&mut self, path: &Path) -> Result<bool, HostError> {
        let path = link_target(path)?;
        if ordinary(&path)?.is_none() {
            return Ok(false);
        }
        let backup = self.save_found(&path)?;
        self.change_file(&path, backup, &[], |path| {
            fs::remove_file(path)
                .and_then(|()| path.parent().map_or(Ok(()), sync_directory))
                .map_err(|error| HostError::write(path, "no file", &error))
        })?;
        Ok(true)
    }

    /// Saves what a file holds, the first time that it is changed: only the first old contents are
    /// ever restored.
    fn save_found(&self, path: &Path) -> Result<Option<String>, HostError> {
        let is_known = self.pendings.list.iter().any(
            |pending| matches!(&pending.action, Action::File { path: known, .. } if known == path),
        );
        match read_ordinary(path)? {
            Some(found) if is_known => self.check_file(path, &found).map(|()| None),
            Some(old) => {
                check_replaceable(path)?;
                self.save(&old).map(Some)
            }
            None => Ok(None),
        }
    }

    fn change_file(
        &mut self,
        path: &Path,
        backup: Option<String>,
        contents: &[u8],
        change: impl FnOnce(&Path) -> Result<(), HostError>,
    ) -> Result<(), HostError> {
        let seq = self.will(Action::File {
            path: path.to_owned(),
            backup,
            new_fnv: fnv(contents),
        })?;
        if let Err(error) = change(path) {
            self.append(Record::Refused { of: seq })?;
            return Err(error);
        }
        self.done(seq)
    }

    /// An error if somebody else has changed one of the replaced files since. One that is gone has
    /// nothing that could be lost.
    ///
    /// # Errors
    ///
    /// [`HostError::Disturbed`].
    pub fn check_files(&self) -> Result<(), HostError> {
        for pending in &self.pendings.list {
            if let Action::File { path, .. } = &pending.action
                && let Ok(Some(found)) = read_ordinary(path)
            {
                self.check_file(path, &found)?;
            }
        }
        Ok(())
    }

    fn check_file(&self, of: &Path, found: &[u8]) -> Result<(), HostError> {
        for pending in &self.pendings.list {
            if let Action::File { path, new_fnv, .. } = &pending.action
                && path == of
                // While a replacement is under way it is not known which contents are there.
                && pending.left.is_some()
                && *new_fnv != fnv(found)
            {
                return Err(HostError::Disturbed {
                    knob: of.display().to_string(),
                    left: in_words(*new_fnv),
                    found: in_words(fnv(found)),
                });
            }
        }
        Ok(())
    }

    /// Saves the contents of a knob that is an ordinary file, the first time that it is written.
    pub(super) fn save_ordinary(
        &self,
        knob: &Knob,
        path: &Path,
    ) -> Result<Option<String>, HostError> {
        let is_known = self.pendings.list.iter().any(
            |pending| matches!(&pending.action, Action::Write { knob: known, .. } if known == knob),
        );
        if is_known || !matches!(knob, Knob::File(_)) {
            return Ok(None);
        }
        let failed = |error: io::Error| HostError::read(path, &error);
        let length_bytes = fs::metadata(path).map_err(failed)?.len();
        // Files of the kernel are 0 bytes long, or a page, whatever is read from them.
        let mut contents = Vec::new();
        File::open(path)
            .and_then(|file| file.take(length_bytes + 1).read_to_end(&mut contents))
            .map_err(failed)?;
        match contents.len() as u64 == length_bytes {
            true => self.save(&contents).map(Some),
            false => Ok(None),
        }
    }

    /// Forgets everything: knobs, files, groups and processes stay as they are. What the files held
    /// before is kept, unless it was left there by an earlier promotion, and named.
    ///
    /// # Errors
    ///
    /// [`HostError::Journal`]: then nothing is forgotten.
    pub fn promote_all(&mut self) -> Result<Vec<Former>, HostError> {
        let former = self.keep_former()?;
        self.forget(|_| true)?;
        Ok(former)
    }

    /// Keeps what replaced files held before, where somebody else wrote it: with what is to be
    /// undone the copies are forgotten.
    fn keep_former(&self) -> Result<Vec<Former>, HostError> {
        let directory = self.replaced();
        let failed = |error: io::Error| HostError::journal_io(&directory, &error);
        // What was left in files before, by their paths. Where that is not known, more is kept than
        // has to be.
        let ours_path = directory.join("ours.json");
        let ours = fs::read(&ours_path).map(|bytes| serde_json::from_slice(&bytes));
        let mut ours: BTreeMap<String, u64> = ours.ok().and_then(Result::ok).unwrap_or_default();
        let mut former = Vec::new();
        for pending in &self.pendings.list {
            let Action::File {
                path,
                backup,
                new_fnv,
            } = &pending.action
            else {
                continue;
            };
            let before = ours.insert(path.display().to_string(), *new_fnv);
            let Some(backup) = backup else { continue };
            let old = self.saved(backup).map_err(|errno| HostError::Journal {
                path: directory.clone(),
                errno,
            })?;
            let old_fnv = fnv(&old);
            if old_fnv == *new_fnv || before == Some(old_fnv) {
                continue;
            }
            let kept = self.keep(path, &old).map_err(failed)?;
            let path = path.clone();
            former.push(Former { path, kept });
        }
        if !ours.is_empty() {
            fs::create_dir_all(&directory).map_err(failed)?;
            let text = serde_json::to_vec(&ours).map_err(|error| failed(error.into()))?;
            replace_private(&ours_path, &text).map_err(failed)?;
        }
        Ok(former)
    }

    /// Keeps what a file held, beyond the journal, and says where.
    pub(super) fn keep(&self, path: &Path, held: &[u8]) -> io::Result<PathBuf> {
        let kept = self.kept_path(path, held);
        fs::create_dir_all(self.replaced())?;
        replace_private(&kept, held)?;
        sync_directory(&self.state_dir)?;
        Ok(kept)
    }

    pub(super) fn kept_path(&self, path: &Path, held: &[u8]) -> PathBuf {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.replaced().join(format!("{name}.{:016x}", fnv(held)))
    }

    fn replaced(&self) -> PathBuf {
        self.state_dir.join("replaced")
    }

    fn save(&self, old: &[u8]) -> Result<String, HostError> {
        let directory = self.state_dir.join("files");
        let name = format!("{:06}.old", self.pendings.last_seq + 1);
        let path = directory.join(&name);
        fs::create_dir_all(&directory)
            .and_then(|()| write_synced(&path, old))
            .and_then(|()| sync_directory(&directory))
            .and_then(|()| sync_directory(&self.state_dir))
            .map_err(|error| HostError::journal_io(&path, &error))?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests;
