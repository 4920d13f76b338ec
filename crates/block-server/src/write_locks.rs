//! Locks on writes to a file: writes of an earlier server end before those of a later one begin.

use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use dataplane::file_lock::{RangeLock, lock_range};
use rustix::io::Errno;

use crate::device_error::DeviceError;

/// How long writes of an earlier server may still be under way: a slow disk's, at the worst.
const UNDER_WAY: Duration = Duration::from_secs(10);
/// Two bytes behind the end of any file, which nobody reads or writes: a server has locks on both.
/// The descriptor that has a lock on the first one takes buffered writes, the one with the second
/// takes direct writes.
pub(crate) const WRITES: Range<u64> = BUFFERED_WRITES.start..DIRECT_WRITES.end;
const BUFFERED_WRITES: Range<u64> = 1 << 62..(1 << 62) + 1;
const DIRECT_WRITES: Range<u64> = BUFFERED_WRITES.end..BUFFERED_WRITES.end + 1;
/// File systems whose `flock` is a lock on all bytes, so that these two would be in its way, by
/// their numbers in linux/magic.h: NFS, CIFS, SMB2.
const REMOTE: [u64; 3] = [0x6969, 0xff53_4d42, 0xfe53_4d42];

/// What a server needs on [`WRITES`].
pub(crate) fn lock_for(is_writable: bool) -> RangeLock {
    match is_writable {
        true => RangeLock::Exclusive,
        false => RangeLock::Shared,
    }
}

/// Waits until the writes of an earlier server have ended, and keeps a later one from beginning
/// until those of `buffered` have.
pub(crate) fn own_writes(
    buffered: &OwnedFd,
    path: &Path,
    is_writable: bool,
) -> Result<bool, DeviceError> {
    let is_remote = rustix::fs::fstatfs(buffered)
        .is_ok_and(|status| u64::try_from(status.f_type).is_ok_and(|kind| REMOTE.contains(&kind)));
    if is_remote {
        return Ok(false);
    }
    let wanted = lock_for(is_writable);
    let errno = |error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let lock = || lock_range(buffered.as_fd(), WRITES, wanted).map_err(errno);
    match patiently(UNDER_WAY, lock) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Err(DeviceError(format!(
            "writes of a server that has ended are still under way on {}: start this server again when the disk has finished them",
            path.display()
        ))),
        // A file system without such locks.
        Err(_) => Ok(false),
    }
}

/// Gives the lock for direct writes to the descriptor that carries them.
pub(crate) fn hand_over(buffered: &OwnedFd, direct: &OwnedFd) -> std::io::Result<()> {
    lock_range(buffered.as_fd(), DIRECT_WRITES, RangeLock::Released)?;
    // Nobody comes between: whoever begins wants both bytes at once.
    lock_range(direct.as_fd(), DIRECT_WRITES, RangeLock::Exclusive)
}

/// Tries again for so long while something is held by another process.
pub(crate) fn patiently<T>(
    time: Duration,
    mut attempt: impl FnMut() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    let end = Instant::now() + time;
    loop {
        match attempt() {
            Err(Errno::BUSY | Errno::AGAIN) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}
