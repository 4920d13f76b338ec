//! Locks on files that belong to an open file description (`F_OFD_SETLK` of fcntl(2)).
//!
//! The kernel keeps a description for as long as an operation on it is under way, also after the
//! process was killed. So whoever gets such a lock knows that nothing more comes of the description
//! that had it before.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// What is wanted of a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeLock {
    /// Others may have the same.
    Shared,
    /// Nobody else has any lock there.
    Exclusive,
    /// No lock any more.
    Released,
}

/// Locks a range of a file for its description, or gives the lock back. Waits for nobody.
///
/// # Errors
/// `WouldBlock`: another description has a lock there. Others: the file system has no such locks.
pub fn lock_range(file: BorrowedFd<'_>, range: Range<u64>, wanted: RangeLock) -> io::Result<()> {
    call(file, libc::F_OFD_SETLK, &range, wanted).map(|_| ())
}

/// Whether the lock of another description is in the way of `wanted`. Locks nothing.
///
/// # Errors
/// The file system has no such locks.
pub fn is_locked(file: BorrowedFd<'_>, range: Range<u64>, wanted: RangeLock) -> io::Result<bool> {
    let found = call(file, libc::F_OFD_GETLK, &range, wanted)?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

/// Calls `fcntl` with a lock, and gives the lock as the kernel left it.
fn call(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    range: &Range<u64>,
    wanted: RangeLock,
) -> io::Result<libc::flock> {
    let kind = match wanted {
        RangeLock::Shared => libc::F_RDLCK,
        RangeLock::Exclusive => libc::F_WRLCK,
        RangeLock::Released => libc::F_UNLCK,
    };
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let (start, end) = (
        i64::try_from(range.start).map_err(invalid)?,
        i64::try_from(range.end).map_err(invalid)?,
    );
    let mut lock = libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or(0),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or(0),
        l_start: start,
        l_len: end - start,
        // Any other value than 0 is refused for this kind of lock.
        l_pid: 0,
    };
    // SAFETY: the descriptor is open for the length of the borrow, and both commands read or write
    // one `flock`.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    match done {
        0 => Ok(lock),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_range_has_one_owner_until_its_description_is_gone() {
        let name = format!("slackline-file-lock-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "x").unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (first, second) = (open(), open());
        std::fs::remove_file(&path).unwrap();
        lock_range(first.as_fd(), 10..12, RangeLock::Exclusive).unwrap();
        for wanted in [RangeLock::Shared, RangeLock::Exclusive] {
            let refused = lock_range(second.as_fd(), 11..20, wanted).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
            assert!(is_locked(second.as_fd(), 11..20, wanted).unwrap());
            assert!(!is_locked(second.as_fd(), 12..20, wanted).unwrap());
        }
        lock_range(second.as_fd(), 12..20, RangeLock::Exclusive).unwrap();
        lock_range(first.as_fd(), 11..12, RangeLock::Released).unwrap();
        lock_range(second.as_fd(), 11..12, RangeLock::Shared).unwrap();
        // A duplicate is the same description.
        let same = first.try_clone().unwrap();
        drop(first);
        assert!(lock_range(second.as_fd(), 10..11, RangeLock::Shared).is_err());
        drop(same);
        lock_range(second.as_fd(), 10..11, RangeLock::Shared).unwrap();
    }
}
