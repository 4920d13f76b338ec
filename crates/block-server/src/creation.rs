//! Files that do not exist when the server starts: the key `create` of a device.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use qos::Grouped;
use rustix::fs::{Access, AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::config::Backing;
use crate::device_error::{DeviceError, failed};

/// A file that does not exist, and is made when the server starts.
pub(crate) struct ToMake<'a> {
    path: &'a Path,
    /// Bytes that the file will have.
    pub(crate) size_bytes: u64,
    is_preallocated: bool,
}

impl<'a> ToMake<'a> {
    pub(crate) fn of(backing: &'a Backing) -> Option<Self> {
        let Backing::Path {
            path,
            create_bytes: Some(size_bytes),
            is_preallocated,
            ..
        } = backing
        else {
            return None;
        };
        let found = std::fs::symlink_metadata(path);
        let is_missing = found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        is_missing.then_some(Self {
            path,
            size_bytes: *size_bytes,
            is_preallocated: *is_preallocated,
        })
    }

    /// Whether the file could be made, as far as that can be seen without making it; gives what
    /// stands for its identity.
    pub(crate) fn check(&self) -> Result<(u64, u64), DeviceError> {
        let not_made = |errno| failed(self.path, "made", errno);
        let parent = self
            .path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = parent.unwrap_or(Path::new("."));
        let parent =
            rustix::fs::open(parent, flags, Mode::empty()).map_err(|errno| match errno {
                Errno::NOENT => DeviceError(format!(
                    "{} cannot be made: there is no directory {}. Make the directory first",
                    self.path.display(),
                    parent.display()
                )),
                errno => not_made(errno),
            })?;
        let writable = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(&parent, ".", writable, AtFlags::empty()).map_err(not_made)?;
        let space = rustix::fs::fstatvfs(&parent).map_err(not_made)?;
        let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        if self.is_preallocated && free_bytes < self.size_bytes {
            return Err(DeviceError(format!(
                "{} cannot be preallocated: its file system has {} bytes free, and {} are needed",
                self.path.display(),
                Grouped(free_bytes),
                Grouped(self.size_bytes)
            )));
        }
        // A file without a name shows whether the file system has files of this size.
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        if let Ok(nameless) = rustix::fs::openat(&parent, ".", flags, Mode::RUSR | Mode::WUSR) {
            rustix::fs::ftruncate(&nameless, self.size_bytes)
                .map_err(|errno| failed(self.path, "given its size", errno))?;
        }
        let directory = rustix::fs::fstat(&parent).map_err(not_made)?;
        let mut hasher = DefaultHasher::new();
        (directory.st_dev, directory.st_ino, self.path.file_name()).hash(&mut hasher);
        Ok((u64::MAX - 1, hasher.finish()))
    }
}

/// The file that a server would make for a device, with its bytes. `None`: nothing is to be made.
pub(crate) fn to_make(backing: &Backing) -> Option<(&Path, u64)> {
    ToMake::of(backing).map(|file| (file.path, file.size_bytes))
}

/// Makes a file that does not exist.
pub(crate) fn create(
    path: &Path,
    size_bytes: u64,
    is_preallocated: bool,
) -> Result<(), DeviceError> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => file,
        Err(Errno::EXIST) => return Ok(()),
        Err(errno) => return Err(failed(path, "made", errno)),
    };
    let sized = if is_preallocated {
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size_bytes)
    } else {
        rustix::fs::ftruncate(&file, size_bytes)
    };
    sized
        .and_then(|()| rustix::fs::fsync(&file))
        .map_err(|errno| {
            // Half a file would be taken for the device at the next start.
            let _ = std::fs::remove_file(path);
            failed(path, "given its size", errno)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn a_file_that_is_planned_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| Backing::Path {
            path: directory.path().join(name),
            create_bytes: Some(1 << 20),
            is_preallocated: false,
            is_direct: true,
        };
        let plan =
            |backing: &Backing| Device::plan("d", backing, qos::SharedDevice::new(None), true);
        let first = plan(&at("disk")).unwrap();
        assert_eq!(
            (first.size_bytes, to_make(&first.backing).is_some()),
            (1 << 20, true)
        );
        assert!(first.is_same(&plan(&at("disk")).unwrap()));
        assert!(!first.is_same(&plan(&at("other")).unwrap()));
        assert!(
            std::fs::read_dir(directory.path())
                .unwrap()
                .next()
                .is_none()
        );
        let refused = |backing: &Backing| plan(backing).err().unwrap().to_string();
        assert!(refused(&at("no/disk")).contains("cannot be made: there is no directory"));
        let mut large = at("disk");
        if let Backing::Path {
            create_bytes,
            is_preallocated,
            ..
        } = &mut large
        {
            (*create_bytes, *is_preallocated) = (Some(1 << 60), true);
        }
        assert!(refused(&large).contains("cannot be preallocated"));
        let mut huge = at("disk");
        if let Backing::Path { create_bytes, .. } = &mut huge {
            *create_bytes = Some(u64::MAX);
        }
        assert!(refused(&huge).contains("cannot be given its size"));
        // A file that is there is opened.
        Device::open("d", &at("disk"), qos::SharedDevice::new(None), true).unwrap();
        assert_eq!(to_make(&at("disk")), None);
        assert_eq!(plan(&at("disk")).unwrap().size_bytes, 1 << 20);
    }
}
