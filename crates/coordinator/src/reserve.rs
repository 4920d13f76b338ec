//! Disk space that is kept for a rollback by hand, which must work on a full disk.
//!
//! The undo journal keeps space of its own. Files that a rollback writes, and the store's row, need
//! some more: a file of that size lies in the state directory, and goes when a rollback begins. It
//! is made again once there is space.

use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, Mode, OFlags};

/// The old and new contents of templated files, the log of an `apply` command and the store's
/// pages.
const RESERVE_BYTES: u64 = 4 << 20;

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("reserve")
}

/// Makes the file, where there is none and the disk has the space.
pub(crate) fn keep(state_dir: &Path) {
    let path = path(state_dir);
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) else {
        return;
    };
    if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES).is_err() {
        // A file system that cannot reserve, or a disk that is full: half a reserve only takes
        // space away from others.
        release(state_dir);
    }
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
        keep(dir.path());
        keep(dir.path());
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
