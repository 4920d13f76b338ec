//! debugfs where it is not mounted: a mount of this process's own, which nobody else sees and which
//! goes with the process.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::roots::Roots;

/// Where debugfs usually is mounted (Documentation/filesystems/debugfs.rst).
const MOUNT_POINT: &str = "/sys/kernel/debug";

/// The mount of this process, once it was asked for; `None` if there can be none.
static OWN: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// Whether a path leads into debugfs.
pub(crate) fn is_below(path: &Path) -> bool {
    path.starts_with(MOUNT_POINT)
}

/// Where this process finds a file of debugfs: at its usual path if debugfs is mounted there, else
/// in a mount of its own. `None` for files elsewhere, and where debugfs cannot be mounted.
pub(crate) fn reach(roots: &Roots, path: &Path) -> Option<PathBuf> {
    let below = path.strip_prefix(MOUNT_POINT).ok()?;
    // The directory of the mount point is empty.
    let is_mounted = || {
        let mut entries = std::fs::read_dir(MOUNT_POINT).ok()?;
        entries.next()
    };
    if !roots.is_real() || is_mounted().is_some() {
        return None;
    }
    let own = OWN.get_or_init(mount).as_ref()?;
    Some(PathBuf::from(format!("/proc/self/fd/{}", own.as_raw_fd())).join(below))
}

fn mount() -> Option<OwnedFd> {
    let context = fsopen("debugfs", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    fsconfig_create(&context).ok()?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    fsmount(&context, flags, MountAttrFlags::empty()).ok()
}

/// Whether the kernel refuses a file of debugfs although its mode allows it. Lockdown does, to root
/// as well (fs/debugfs/file.c, `debugfs_locked_down`).
pub(crate) fn is_locked_down(roots: &Roots, path: &Path) -> bool {
    let at = reach(roots, path);
    let opened = File::open(at.as_deref().unwrap_or(path));
    let is_refused = opened.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM));
    is_refused && is_below(path) && rustix::process::geteuid().is_root()
}
