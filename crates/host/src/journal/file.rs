//! Replacing the contents of an ordinary file, undoably: the old contents are kept below the state
//! directory, and the file changes by a rename, so that nobody ever sees half of it. Owner, mode
//! and extended attributes, access-control lists and capabilities among them, are kept; a file with
//! several hard links, of which a rename changes one, is refused.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::record::{Action, Record};
use super::{Journal, replace_private, sync_directory, write_synced};
use crate::error::{HostError, is_absence};
use crate::knob::Knob;
use crate::roots::write_bytes;

/// How long an attribute and a list of their names may be (include/uapi/linux/limits.h,
/// `XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const XATTR_SIZE_MAX_BYTES: usize = 65_536;
const XATTR_LIST_MAX_BYTES: usize = 65_536;

/// The file that a path really means: a symbolic link is followed, so that the link itself stays,
/// also where there is nothing at its end yet.
pub(super) fn link_target(path: &Path) -> Result<PathBuf, HostError> {
    let failed = |error: io::Error| HostError::read(path, &error);
    let mut path = std::path::absolute(path).map_err(failed)?;
    loop {
        match fs::canonicalize(&path) {
            Ok(found) => return Ok(found),
            // Of links that lead in a circle the error is another one, so this ends.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        match fs::read_link(&path) {
            Ok(link) => path = path.with_file_name(link),
            Err(_) => break,
        }
    }
    // The name that it has once it is made.
    let directory = path
        .parent()
        .and_then(|parent| fs::canonicalize(parent).ok());
    Ok(match (directory, path.file_name()) {
        (Some(directory), Some(name)) => directory.join(name),
        _ => path,
    })
}

/// The file that a path really means, with every link and every `..` followed; the path itself
/// where nobody can tell.
#[must_use]
pub fn target(path: &Path) -> PathBuf {
    link_target(path).unwrap_or_else(|_| path.to_owned())
}

/// Whether two paths mean one file: by device and inode where both are there, as two hard links and
/// two mounts of one file are, else by what they lead to.
#[must_use]
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    if one == other {
        return true;
    }
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        (Err(_), Err(_)) => target(one) == target(other),
        _ => false,
    }
}

/// FNV-1a, 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>): tells whether somebody else
/// changed a file, which needs no protection against forgery.
pub(super) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The contents of a file, to tell them from others.
pub(super) fn in_words(fnv: u64) -> String {
    format!("contents with hash {fnv:016x}")
}

/// The contents of a file in a few characters, to tell them from others; `None` where there is
/// none.
///
/// # Errors
/// [`HostError::Irreplaceable`] where it is not an ordinary file; [`HostError::Read`].
pub fn fingerprint(path: &Path) -> Result<Option<String>, HostError> {
    Ok(read_ordinary(path)?.map(|contents| format!("{:016x}", fnv(&contents))))
}

/// An error if [`Journal::replace_file`] would refuse the file that is there.
///
/// # Errors
///
/// [`HostError::Irreplaceable`]; [`HostError::Read`] where nobody can tell.
pub fn check_replaceable(path: &Path) -> Result<(), HostError> {
    match ordinary(path)? {
        Some(metadata) if metadata.nlink() > 1 => Err(HostError::Irreplaceable {
            path: path.to_owned(),
            why: "it has several hard links, and the others would not follow: make it a file of its own (cp -a it, and mv the copy over it)",
        }),
        _ => Ok(()),
    }
}

/// What an ordinary file is like; `None` where there is none.
fn ordinary(path: &Path) -> Result<Option<Metadata>, HostError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata)),
        Ok(_) => Err(HostError::Irreplaceable {
            path: path.to_owned(),
            why: "it is a directory, a pipe, a socket or a device, not a file with contents",
        }),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(HostError::read(path, &error)),
    }
}

/// What an ordinary file holds; `None` where there is none. Whoever opens a pipe waits for its
/// other end.
pub(super) fn read_ordinary(path: &Path) -> Result<Option<Vec<u8>>, HostError> {
    if ordinary(path)?.is_none() {
        return Ok(None);
    }
    match fs::read(path) {
        Ok(contents) => Ok(Some(contents)),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(HostError::read(path, &error)),
    }
}

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
        self.append(Record::Done {
            of: seq,
            left: String::new(),
        })
        .map(drop)
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

    /// Keeps what replaced files held before, where somebody else wrote it: with what is to be
    /// undone the copies are forgotten.
    pub(super) fn keep_former(&self) -> Result<Vec<Former>, HostError> {
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

/// The one name of the temporary copy beside a file, so that a copy that a crash left is found
/// again.
pub(super) fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.slackline"))
}

pub(super) fn replace(path: &Path, contents: &[u8]) -> Result<(), HostError> {
    let failed = |error: io::Error| HostError::write(path, "new contents", &error);
    let temporary = temporary(path);
    let written = write_beside(path, &temporary, contents)
        .and_then(|()| fs::rename(&temporary, path).map_err(failed));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    path.parent().map_or(Ok(()), sync_directory).map_err(failed)
}

/// Gives an ordinary file new contents: by a rename, so that nobody sees half of it. Where there is
/// no other way, the file is written in place: it has several hard links, is mounted itself, or its
/// directory or attributes are not ours to write. Never makes the file.
pub(crate) fn replace_or_write(path: &Path, contents: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    let contents = &*crate::roots::fake_kernel::answer(path, contents)?;
    let path = link_target(path).map_err(|error| io_error(&error))?;
    let in_place = || write_bytes(&path, contents).and_then(|()| File::open(&path)?.sync_all());
    if fs::metadata(&path)?.nlink() > 1 {
        return in_place();
    }
    match replace(&path, contents) {
        Ok(()) => Ok(()),
        Err(HostError::Attribute { .. }) => in_place(),
        Err(error) => match error.errno() {
            Some(libc::EBUSY | libc::EACCES | libc::EPERM | libc::EROFS | libc::ENAMETOOLONG) => {
                in_place()
            }
            _ => Err(io_error(&error)),
        },
    }
}

fn io_error(error: &HostError) -> io::Error {
    io::Error::from_raw_os_error(error.errno().unwrap_or(libc::EIO))
}

fn write_beside(path: &Path, temporary: &Path, contents: &[u8]) -> Result<(), HostError> {
    let failed = |error: io::Error| HostError::write(path, "new contents", &error);
    let old = ordinary(path)?;
    let _ = fs::remove_file(temporary);
    // create_new: in a directory that others can write to, a planted link is an error. A secret
    // stays private while its mode is not yet set.
    let mode = if old.is_some() { 0o600 } else { 0o644 };
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(temporary)
        .map_err(failed)?;
    file.write_all(contents).map_err(failed)?;
    if let Some(old) = old {
        // In this order: a new owner ends capabilities, and a mode says of a file with an
        // access-control list how much of it counts, which without the list would be what the group
        // may do.
        fchown(&file, Some(old.uid()), Some(old.gid())).map_err(failed)?;
        let from = File::open(path).map_err(failed)?;
        copy_attributes(&from, &file).map_err(|(name, errno)| HostError::Attribute {
            path: path.to_owned(),
            name,
            errno: errno.raw_os_error(),
        })?;
        file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))
            .map_err(failed)?;
    }
    file.sync_all().map_err(failed)
}

/// Gives a file the extended attributes of another one, and takes from it what it inherited from
/// its directory. An error has the attribute's name.
fn copy_attributes(from: &File, to: &File) -> Result<(), (String, Errno)> {
    let (wanted, inherited) = (attributes(from)?, attributes(to)?);
    let failed = |name: &str| {
        let name = name.to_owned();
        move |errno| (name, errno)
    };
    for name in inherited.keys().filter(|name| !wanted.contains_key(*name)) {
        fremovexattr(to, name.as_str()).map_err(failed(name))?;
    }
    for (name, value) in &wanted {
        // A label that is right already takes no privilege.
        if inherited.get(name) != Some(value) {
            fsetxattr(to, name.as_str(), value, XattrFlags::empty()).map_err(failed(name))?;
        }
    }
    Ok(())
}

/// The extended attributes of a file, but for those that the kernel computes of its contents and
/// inode (security/integrity).
fn attributes(file: &File) -> Result<BTreeMap<String, Vec<u8>>, (String, Errno)> {
    let mut names = Vec::with_capacity(XATTR_LIST_MAX_BYTES);
    match flistxattr(file, spare_capacity(&mut names)) {
        Ok(_) => {}
        // The file system has none.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(BTreeMap::new()),
        Err(errno) => return Err(("list".to_owned(), errno)),
    }
    let names = String::from_utf8_lossy(&names);
    let mut found = BTreeMap::new();
    for name in names.split_terminator('\0') {
        if matches!(name, "security.ima" | "security.evm") {
            continue;
        }
        let mut value = Vec::with_capacity(XATTR_SIZE_MAX_BYTES);
        fgetxattr(file, name, spare_capacity(&mut value))
            .map_err(|errno| (name.to_owned(), errno))?;
        found.insert(name.to_owned(), value);
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
