//! Disk space that is kept for a rollback by hand, which must work on a full disk.
//!
//! The undo journal keeps space of its own. Files that a rollback writes, and the store's row, need
//! some more: a file of that size lies in the state directory, and goes when a rollback begins. It
//! is made again once there is space.

use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

/// The old and new contents of templated files, the log of an `apply` command and the store's
/// pages.
const RESERVE_BYTES: u64 = 4 << 20;

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("reserve")
}

/// Makes the file, where there is none and the disk has the space. Gives what is wrong where the
/// disk is full.
pub(crate) fn keep(state_dir: &Path) -> Option<String> {
    let path = path(state_dir);
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
        .and_then(|file| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES));
    let error = made.err()?;
    // A file system that cannot reserve, or a disk that is full: half a reserve only takes space
    // away from others.
    release(state_dir);
    matches!(error, Errno::NOSPC | Errno::DQUOT).then(|| {
        format!(
            "the disk of {} is full: free {} MiB, so that a rollback always has room",
            state_dir.display(),
            RESERVE_BYTES >> 20
        )
    })
}

/// Gives the space to a rollback.
pub(crate) fn release(state_dir: &Path) {
    let _ = std::fs::remove_file(path(state_dir));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn the_reserve_takes_space_until_it_is_released() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!((keep(dir.path()), keep(dir.path())), (None, None));
        let Ok(kept) = std::fs::metadata(path(dir.path())) else {
            eprintln!("SKIP: this file system cannot reserve space");
            return;
        };
        assert!(kept.blocks() * 512 >= RESERVE_BYTES);
        assert_eq!(kept.mode() & 0o777, 0o600);
        release(dir.path());
        assert!(!path(dir.path()).exists());
    }
}
