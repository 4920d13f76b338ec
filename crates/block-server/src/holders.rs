//! Which processes hold a device, without a lock of our own.

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use dataplane::file_lock::is_locked;
use rustix::fs::{Stat, major, minor};

use crate::write_locks::{WRITES, lock_for};

/// A process that has a device open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its name, as `/proc/PID/comm` has it.
    pub name: String,
}

/// Who keeps a server from opening `file`. `None`: nobody. Of processes that this user may not look
/// into nothing is known, so the list may be empty.
pub(crate) fn of(file: &OwnedFd, status: &Stat, is_writable: bool) -> Option<Vec<Holder>> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let is_held = is_locked(file.as_fd(), WRITES, lock_for(is_writable)).unwrap_or(false)
        || has_flock(&locks, status, is_writable);
    is_held.then(|| processes(status))
}

/// Processes in words.
pub fn named(holders: &[Holder]) -> String {
    let holders = holders.iter();
    let named: Vec<String> = holders
        .map(|holder| format!("process {} ({})", holder.pid, holder.name))
        .collect();
    match named.is_empty() {
        true => "another process".to_owned(),
        false => named.join(", "),
    }
}

/// Whether flock(2) is in the way, by the text of `/proc/locks`.
fn has_flock(locks: &str, status: &Stat, is_writable: bool) -> bool {
    let (device, inode) = (status.st_dev, status.st_ino);
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Those that wait for a lock have an arrow before the kind.
        let [_, "FLOCK", _, kind, _, found, ..] = fields[..] else {
            return false;
        };
        found == place && (is_writable || kind == "WRITE")
    })
}

fn has_open(pid: u32, status: &Stat) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    descriptors.into_iter().flatten().flatten().any(|entry| {
        let found = fs::metadata(entry.path());
        found.is_ok_and(|found| {
            let is_same_device =
                found.file_type().is_block_device() && found.rdev() == status.st_rdev;
            is_same_device || (found.dev(), found.ino()) == (status.st_dev, status.st_ino)
        })
    })
}

/// Whether this process has the device open.
pub(crate) fn is_own(status: &Stat) -> bool {
    has_open(std::process::id(), status)
}

/// Other processes that have the device open, as far as this user may see them.
pub(crate) fn processes(status: &Stat) -> Vec<Holder> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != std::process::id() && has_open(pid, status))
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let name = name.trim_end().to_owned();
            Holder { pid, name }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flock_is_found_by_device_and_inode() {
        let directory = tempfile::tempdir().unwrap();
        let mut status = rustix::fs::stat(directory.path()).unwrap();
        (status.st_dev, status.st_ino) = (rustix::fs::makedev(0xfe, 1), 1234);
        let locks = "1: POSIX  ADVISORY  WRITE 7 fe:01:1234 0 EOF\n\
                     2: FLOCK  ADVISORY  READ 8 fe:01:1234 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 9 fe:01:1234 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 8 fe:01:99 0 EOF\n";
        assert!(has_flock(locks, &status, true));
        assert!(!has_flock(locks, &status, false));
        status.st_ino = 99;
        assert!(has_flock(locks, &status, false));
        status.st_ino = 123;
        assert!(!has_flock(locks, &status, true));
    }
}
