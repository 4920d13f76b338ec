//! Ordinary files: what is there, and new contents that come by a rename, so that nobody ever sees
//! half of a file. Owner, mode and extended attributes, access-control lists and capabilities among
//! them, are kept.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use crate::error::{HostError, is_absence};
use crate::roots::write_bytes;

/// How long an attribute and a list of their names may be (include/uapi/linux/limits.h,
/// `XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const XATTR_SIZE_MAX_BYTES: usize = 65_536;
const XATTR_LIST_MAX_BYTES: usize = 65_536;

/// The file that a path really means: a symbolic link is followed, so that the link itself stays,
/// also where there is nothing at its end yet.
pub(crate) fn link_target(path: &Path) -> Result<PathBuf, HostError> {
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
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The contents of a file, to tell them from others.
pub(crate) fn in_words(fnv: u64) -> String {
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

/// An error if [`crate::Journal::replace_file`] would refuse the file that is there.
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
pub(crate) fn ordinary(path: &Path) -> Result<Option<Metadata>, HostError> {
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
pub(crate) fn read_ordinary(path: &Path) -> Result<Option<Vec<u8>>, HostError> {
    if ordinary(path)?.is_none() {
        return Ok(None);
    }
    match fs::read(path) {
        Ok(contents) => Ok(Some(contents)),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(HostError::read(path, &error)),
    }
}

/// The one name of the temporary copy beside a file, so that a copy that a crash left is found
/// again.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.slackline"))
}

pub(crate) fn replace(path: &Path, contents: &[u8]) -> Result<(), HostError> {
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
pub(crate) fn attributes(file: &File) -> Result<BTreeMap<String, Vec<u8>>, (String, Errno)> {
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

/// Replaces (or makes) a file of the state directory: on return the new contents are on disk, and
/// after a crash at any moment it is either the old file or the new one.
///
/// # Errors
///
/// [`HostError::Journal`]: the file is as it was.
pub fn replace_synced(path: &Path, bytes: &[u8]) -> Result<(), HostError> {
    replace_private(path, bytes).map_err(|error| HostError::journal_io(path, &error))
}

/// As [`replace_synced`], with the bare error, for files that no change of the host rests on. Only
/// their owner may read them.
///
/// # Errors
///
/// The file is as it was.
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let next = path.with_extension("next");
    let written = write_synced(&next, bytes).and_then(|()| fs::rename(&next, path));
    if written.is_err() {
        // Of a full disk, half a file would take the last of it.
        let _ = fs::remove_file(&next);
    }
    written.and_then(|()| path.parent().map_or(Ok(()), sync_directory))
}

pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
