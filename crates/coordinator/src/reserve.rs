//! Disk space that is kept for a rollback by hand, which must work on a full disk.
//!
//! The undo journal keeps space of its own. Files that a rollback writes, and the store's row, need
//! some more: a file of that size lies in the state directory, and goes when a rollback begins. It
//! is made again once there is space.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use crate::lock::lock;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

/// The old and new contents of templated files, the log of an `apply` command and the store's
/// pages.
const RESERVE_BYTES: u64 = 4 << 20;

/// The space of one state directory.
pub(crate) struct Reserve {
    file: PathBuf,
    /// Commands that use the space now. Nobody takes it from them.
    borrowers: Mutex<usize>,
}

/// The space, for as long as a command needs it.
pub(crate) struct Lent<'a>(&'a Reserve);

impl Reserve {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self {
            file: state_dir.join("reserve"),
            borrowers: Mutex::default(),
        }
    }

    fn borrowers(&self) -> MutexGuard<'_, usize> {
        lock(&self.borrowers)
    }

    /// Makes the file, where there is none and the disk has the space. Gives what is wrong where
    /// the disk is full.
    pub(crate) fn keep(&self) -> Option<String> {
        let borrowers = self.borrowers();
        if *borrowers > 0 {
            return None;
        }
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let made = rustix::fs::open(&self.file, flags, Mode::RUSR | Mode::WUSR).and_then(|file| {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)
        });
        let error = made.err()?;
        // A file system that cannot reserve, or a disk that is full: half a reserve only takes
        // space away from others.
        let _ = std::fs::remove_file(&self.file);
        matches!(error, Errno::NOSPC | Errno::DQUOT).then(|| {
            format!(
                "the disk of {} is full: free {} MiB, so that a rollback always has room",
                self.file.parent().unwrap_or(&self.file).display(),
                RESERVE_BYTES >> 20
            )
        })
    }

    /// Gives the space to a command.
    pub(crate) fn lend(&self) -> Lent<'_> {
        *self.borrowers() += 1;
        let _ = std::fs::remove_file(&self.file);
        Lent(self)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        *self.0.borrowers() -= 1;
        self.0.keep();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn the_reserve_takes_space_until_it_is_lent() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::new(dir.path());
        assert_eq!((reserve.keep(), reserve.keep()), (None, None));
        let Ok(kept) = std::fs::metadata(&reserve.file) else {
            eprintln!("SKIP: this file system cannot reserve space");
            return;
        };
        assert!(kept.blocks() * 512 >= RESERVE_BYTES);
        assert_eq!(kept.mode() & 0o777, 0o600);
        let lent = [reserve.lend(), reserve.lend()];
        for lent in lent {
            // Whoever looks at the disk meanwhile takes nothing from them.
            assert_eq!(reserve.keep(), None);
            assert!(!reserve.file.exists());
            drop(lent);
        }
        assert!(reserve.file.exists());
    }
}
