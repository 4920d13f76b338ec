//! Devices: block devices, files and memory, opened and described.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use qos::Grouped;
use rustix::fs::{Access, AtFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::config::Backing;
use crate::creation::{ToMake, create};
pub use crate::device_error::DeviceError;
use crate::device_error::failed;
use crate::holders::{self, Holder};
use crate::memory::MemoryDevice;
use crate::nbd::reply::{Extent, STATE_HOLE, STATE_ZERO};
use crate::usage;
use crate::write_locks::{hand_over, own_writes, patiently};

/// The smallest block that `O_DIRECT` may be used with where the device does not say.
const SECTOR_BYTES: u64 = 512;

/// What a device is made of.
pub enum Storage {
    /// Memory of the server.
    Memory(MemoryDevice),
    /// A block device or a file.
    File(FileStorage),
    /// Nothing was opened: the device was only looked at, and takes no requests.
    Unopened,
}

/// An open block device or file.
pub struct FileStorage {
    /// For requests that `O_DIRECT` can carry.
    direct: Option<Arc<OwnedFd>>,
    /// For the others. The kernel keeps both views the same.
    buffered: Arc<OwnedFd>,
    /// What offsets and lengths of direct requests are multiples of.
    alignment_bytes: AtomicU64,
    is_block: bool,
    /// Whether the kernel can write zeros and punch holes here: false once it said no.
    has_zero_range: AtomicBool,
    has_punch_hole: AtomicBool,
    /// The kernel could not bring something to stable storage, and tells of that once only.
    has_lost_writes: AtomicBool,
}

/// An open device.
pub struct Device {
    /// By what tenants name the device.
    pub name: String,
    /// What the device is made of.
    pub storage: Storage,
    /// Bytes.
    pub size_bytes: u64,
    /// Whether the device was opened for writing.
    pub is_writable: bool,
    /// What was opened.
    pub backing: Backing,
    /// Whose requests are submitted when.
    pub qos: Arc<qos::SharedDevice>,
    /// Device and inode number, or the number of the block device itself.
    identity: Option<(u64, u64)>,
    /// Processes that keep a server from opening the device, where it was only looked at.
    pub held_by: Option<Vec<Holder>>,
}

/// What opening a device, or looking at it, shows.
struct Found {
    storage: Storage,
    size_bytes: u64,
    identity: Option<(u64, u64)>,
    held_by: Option<Vec<Holder>>,
}

impl Found {
    fn opened(storage: Storage, size_bytes: u64, identity: Option<(u64, u64)>) -> Self {
        Self {
            storage,
            size_bytes,
            identity,
            held_by: None,
        }
    }

    fn open(backing: &Backing, is_writable: bool) -> Result<Self, DeviceError> {
        match backing {
            Backing::Memory { size_bytes } => {
                let memory = Storage::Memory(MemoryDevice::new(*size_bytes));
                Ok(Self::opened(memory, *size_bytes, None))
            }
            Backing::Path {
                path,
                create_bytes,
                is_preallocated,
                is_direct,
            } => {
                if let Some(size_bytes) = create_bytes {
                    create(path, *size_bytes, *is_preallocated)?;
                }
                let (file, size_bytes, identity) = open_path(path, is_writable, *is_direct)?;
                Ok(Self::opened(
                    Storage::File(file),
                    size_bytes,
                    Some(identity),
                ))
            }
            Backing::Simulated { model } => Err(DeviceError(format!(
                "{model} is simulated: `slackline serve-block admit` plans on such a device, and nothing can be served \
                 from it"
            ))),
        }
    }

    fn plan(backing: &Backing, is_writable: bool) -> Result<Self, DeviceError> {
        let Some(file) = ToMake::of(backing) else {
            return Self::open(backing, is_writable);
        };
        let identity = file.check()?;
        Ok(Self::opened(
            Storage::Unopened,
            file.size_bytes,
            Some(identity),
        ))
    }

    fn look(backing: &Backing, is_writable: bool) -> Result<Self, DeviceError> {
        let path = match backing {
            Backing::Memory { size_bytes } => {
                return Ok(Self::opened(Storage::Unopened, *size_bytes, None));
            }
            Backing::Path { path, .. } if ToMake::of(backing).is_none() => path,
            Backing::Path { .. } | Backing::Simulated { .. } => {
                return Self::plan(backing, is_writable);
            }
        };
        let (status, is_block) = status_of(path)?;
        if is_writable {
            let access = rustix::fs::accessat(
                rustix::fs::CWD,
                path,
                Access::READ_OK | Access::WRITE_OK,
                AtFlags::EACCESS,
            );
            access.map_err(|errno| failed(path, "opened", errno))?;
        }
        // A writable block device that is closed makes udev look at it.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| failed(path, "opened", errno))?;
        let user = match is_block {
            true => usage::of_block_device(path, status.st_rdev)
                .or_else(|| image_in_use(path, &status, is_writable)),
            false => usage::of_file(path),
        };
        if let Some(user) = user {
            return Err(DeviceError(user));
        }
        Ok(Self {
            storage: Storage::Unopened,
            size_bytes: size_of_file(&file, path)?,
            identity: Some(identity_of(&status, is_block)),
            held_by: holders::of(&file, &status, is_writable),
        })
    }

    fn device(
        self,
        name: &str,
        backing: &Backing,
        qos: qos::SharedDevice,
        is_writable: bool,
    ) -> Device {
        Device {
            name: name.to_owned(),
            storage: self.storage,
            size_bytes: self.size_bytes,
            is_writable,
            backing: backing.clone(),
            qos: Arc::new(qos),
            identity: self.identity,
            held_by: self.held_by,
        }
    }
}

impl Device {
    /// Opens a device. A block device is opened exclusively; a file is locked.
    ///
    /// # Errors
    /// The device does not exist, is in use, or is no device.
    pub fn open(
        name: &str,
        backing: &Backing,
        qos: qos::SharedDevice,
        is_writable: bool,
    ) -> Result<Self, DeviceError> {
        let found = Found::open(backing, is_writable)?;
        Ok(found.device(name, backing, qos, is_writable))
    }

    /// As [`Device::open`], but a file that would be made is not made. The device stands for the
    /// file, and takes no requests.
    ///
    /// # Errors
    /// See [`Device::open`]; or the file could not be made.
    pub fn plan(
        name: &str,
        backing: &Backing,
        qos: qos::SharedDevice,
        is_writable: bool,
    ) -> Result<Self, DeviceError> {
        let found = Found::plan(backing, is_writable)?;
        Ok(found.device(name, backing, qos, is_writable))
    }

    /// As [`Device::plan`], but nothing is locked or allocated: beside a server that has the device
    /// open. The device takes no requests.
    ///
    /// # Errors
    /// See [`Device::plan`]. A device that another process holds is no error.
    pub fn look(
        name: &str,
        backing: &Backing,
        qos: qos::SharedDevice,
        is_writable: bool,
    ) -> Result<Self, DeviceError> {
        let found = Found::look(backing, is_writable)?;
        Ok(found.device(name, backing, qos, is_writable))
    }

    /// Whether the device is what lies at a path, or was opened at that path.
    pub fn is_at(&self, path: &Path) -> bool {
        let is_opened_there =
            matches!(&self.backing, Backing::Path { path: own, .. } if own == path);
        is_opened_there
            || status_of(path).is_ok_and(|(status, is_block)| {
                self.identity == Some(identity_of(&status, is_block))
            })
    }

    /// What has happened to the file of an open device: it is gone, another one, or shorter.
    pub fn trouble(&self) -> Option<String> {
        let (Storage::File(file), Backing::Path { path, .. }) = (&self.storage, &self.backing)
        else {
            return None;
        };
        let has_lost_its_end = || {
            let size_bytes = size_of_file(&file.buffered, path).ok()?;
            (size_bytes < self.size_bytes).then(|| {
                format!(
                    "has {} bytes, and had {}: reads and writes beyond its end fail",
                    Grouped(size_bytes),
                    Grouped(self.size_bytes)
                )
            })
        };
        let what = match rustix::fs::stat(path) {
            Err(Errno::NOENT) => "was deleted: the data are gone when the server ends".to_owned(),
            Err(_) => return None,
            Ok(status) if self.identity != Some(identity_of(&status, file.is_block)) => {
                "was replaced by another file: the server goes on with the one that it has open, \
                 and takes the other one at a restart"
                    .to_owned()
            }
            Ok(_) => has_lost_its_end()?,
        };
        Some(format!("{} {what}", path.display()))
    }

    /// Whether writes that were answered may be lost: bringing some to stable storage failed.
    pub fn has_lost_writes(&self) -> bool {
        matches!(&self.storage, Storage::File(file) if file.has_lost_writes())
    }

    /// Whether both are the same file or block device, by whatever name.
    pub fn is_same(&self, other: &Self) -> bool {
        self.identity.is_some() && self.identity == other.identity
    }

    /// Block size at which requests are fastest.
    pub fn preferred_block_bytes(&self) -> u32 {
        4096
    }

    /// Which parts of a range hold data, as at most `extents_max` extents.
    pub fn extents(&self, offset: u64, len_bytes: u64, extents_max: usize) -> Vec<Extent> {
        match &self.storage {
            Storage::Memory(memory) => memory.extents(offset, len_bytes, extents_max),
            Storage::File(file) => file.extents(offset, len_bytes, extents_max),
            Storage::Unopened => Vec::new(),
        }
    }
}

/// How long what is held may still be held by a process that was killed: the kernel lets go of the
/// files of an io_uring a moment after its process has ended.
const HELD: Duration = Duration::from_secs(2);

type Opened = (FileStorage, u64, (u64, u64));

/// What lies at a path, and whether that is a block device.
pub(crate) fn status_of(path: &Path) -> Result<(Stat, bool), DeviceError> {
    let status = rustix::fs::stat(path).map_err(|errno| failed(path, "opened", errno))?;
    let kind = FileType::from_raw_mode(status.st_mode);
    let is_block = kind == FileType::BlockDevice;
    if !is_block && kind != FileType::RegularFile {
        return Err(DeviceError(format!(
            "{} is neither a block device nor a regular file",
            path.display()
        )));
    }
    Ok((status, is_block))
}

/// What tells a file or a block device apart, whichever path leads to it.
pub(crate) fn identity_of(status: &Stat, is_block: bool) -> (u64, u64) {
    match is_block {
        true => (u64::MAX, status.st_rdev),
        false => (status.st_dev, status.st_ino),
    }
}

fn size_of_file(file: &OwnedFd, path: &Path) -> Result<u64, DeviceError> {
    rustix::fs::seek(file, SeekFrom::End(0)).map_err(|errno| failed(path, "measured", errno))
}

/// Why a loop device must not be exported: a server holds the file behind it.
fn image_in_use(path: &Path, status: &Stat, is_writable: bool) -> Option<String> {
    let image = usage::image_of(status.st_rdev)?;
    let of_image = rustix::fs::stat(&image).ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(&image, flags, Mode::empty()).ok()?;
    holders::of(&file, &of_image, is_writable)?;
    Some(format!(
        "{} is a loop device on {}, which is locked: is the file exported already?",
        path.display(),
        image.display()
    ))
}

fn open_path(path: &Path, is_writable: bool, is_direct: bool) -> Result<Opened, DeviceError> {
    let (status, is_block) = status_of(path)?;
    let access = if is_writable {
        OFlags::RDWR
    } else {
        OFlags::RDONLY
    };
    let exclusive = if is_block {
        OFlags::EXCL
    } else {
        OFlags::empty()
    };
    let open = |flags| rustix::fs::open(path, access | flags | OFlags::CLOEXEC, Mode::empty());
    let first = patiently(HELD, || open(exclusive)).map_err(|errno| match errno {
        Errno::BUSY => {
            let user = usage::of_block_device(path, status.st_rdev);
            DeviceError(user.unwrap_or_else(|| {
                let holder = match &holders::processes(&status)[..] {
                    [] => "a mount, swap space or another process".to_owned(),
                    processes => holders::named(processes),
                };
                format!(
                    "{} is in use: {holder} holds it exclusively",
                    path.display()
                )
            }))
        }
        errno => failed(path, "opened", errno),
    })?;
    if is_block && let Some(user) = image_in_use(path, &status, is_writable) {
        return Err(DeviceError(user));
    }
    if !is_block {
        if let Some(holder) = usage::of_file(path) {
            return Err(DeviceError(holder));
        }
        let lock = if is_writable {
            FlockOperation::NonBlockingLockExclusive
        } else {
            FlockOperation::NonBlockingLockShared
        };
        if patiently(HELD, || rustix::fs::flock(&first, lock)).is_err() {
            drop(first);
            let what = if holders::is_own(&status) {
                "is in use by connections of a removed tenant of this server: wait until these \
                 connections have ended, or disconnect their clients"
                    .to_owned()
            } else {
                let holder = holders::named(&holders::processes(&status));
                format!("is locked by {holder}: is it exported already?")
            };
            return Err(DeviceError(format!("{} {what}", path.display())));
        }
    }
    let is_owner = own_writes(&first, path, is_writable)?;
    let direct = is_direct.then(|| open(OFlags::DIRECT).ok()).flatten();
    if let Some(direct) = direct.as_ref().filter(|_| is_owner && is_writable) {
        hand_over(&first, direct)
            .map_err(|error| DeviceError(format!("{}: {error}", path.display())))?;
    }
    let direct = direct.map(Arc::new);
    let size_bytes = size_of_file(&first, path)?;
    let block_bytes = rustix::fs::ioctl_blksszget(&first).map_or(SECTOR_BYTES, u64::from);
    let alignment_bytes = if is_block { block_bytes } else { SECTOR_BYTES };
    let storage = FileStorage {
        direct,
        buffered: Arc::new(first),
        alignment_bytes: AtomicU64::new(alignment_bytes),
        is_block,
        has_zero_range: AtomicBool::new(true),
        has_punch_hole: AtomicBool::new(true),
        has_lost_writes: AtomicBool::new(false),
    };
    Ok((storage, size_bytes, identity_of(&status, is_block)))
}

impl FileStorage {
    /// The descriptor for a request, and whether the request bypasses the page cache.
    pub fn descriptor(&self, offset: u64, len_bytes: u64) -> (&Arc<OwnedFd>, bool) {
        let alignment = self.alignment_bytes.load(Ordering::Relaxed);
        match &self.direct {
            Some(direct) if (offset | len_bytes).is_multiple_of(alignment) => (direct, true),
            _ => (&self.buffered, false),
        }
    }

    /// The descriptor that bypasses the page cache, where the file system has one.
    pub fn direct(&self) -> Option<&Arc<OwnedFd>> {
        self.direct.as_ref()
    }

    /// The descriptor that takes every request.
    pub fn buffered(&self) -> &Arc<OwnedFd> {
        &self.buffered
    }

    /// A direct request was refused as unaligned: smaller ones go through the page cache from now.
    pub fn raise_alignment(&self) {
        self.alignment_bytes.fetch_max(4096, Ordering::Relaxed);
    }

    /// Bringing writes to stable storage failed. The kernel forgets that when it has said so once,
    /// and those writes may be anybody's: no flush can be promised any more.
    pub fn lose_writes(&self) {
        self.has_lost_writes.store(true, Ordering::Relaxed);
    }

    /// Whether writes that were answered may be lost.
    pub fn has_lost_writes(&self) -> bool {
        self.has_lost_writes.load(Ordering::Relaxed)
    }

    /// Whether the device is a block device.
    pub fn is_block(&self) -> bool {
        self.is_block
    }

    /// The `fallocate` flags that make a range zero, if the kernel can do that here. `keeps`:
    /// without leaving a hole.
    pub fn zero_mode(&self, keeps: bool) -> Option<i32> {
        let keep_size = libc::FALLOC_FL_KEEP_SIZE;
        if !keeps && self.has_punch_hole.load(Ordering::Relaxed) {
            return Some(libc::FALLOC_FL_PUNCH_HOLE | keep_size);
        }
        self.has_zero_range
            .load(Ordering::Relaxed)
            .then_some(libc::FALLOC_FL_ZERO_RANGE | keep_size)
    }

    /// The kernel does not know `mode` here.
    pub fn forget_mode(&self, mode: i32) {
        if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 {
            self.has_punch_hole.store(false, Ordering::Relaxed);
        } else {
            self.has_zero_range.store(false, Ordering::Relaxed);
        }
    }

    fn extents(&self, offset: u64, len_bytes: u64, extents_max: usize) -> Vec<Extent> {
        let end = offset + len_bytes;
        let mut extents = Vec::new();
        let mut at = offset;
        while at < end && extents.len() < extents_max && !self.is_block {
            let data = match rustix::fs::seek(&self.buffered, SeekFrom::Data(at)) {
                Ok(data) => data.clamp(at, end),
                Err(Errno::NXIO) => end,
                Err(_) => break,
            };
            if data > at {
                extents.push(Extent {
                    len_bytes: data - at,
                    state: STATE_HOLE | STATE_ZERO,
                });
                at = data;
                continue;
            }
            let Ok(hole) = rustix::fs::seek(&self.buffered, SeekFrom::Hole(at)) else {
                break;
            };
            // A file that changes meanwhile must not hold us here.
            let hole = if hole <= at { end } else { hole.min(end) };
            extents.push(Extent {
                len_bytes: hole - at,
                state: 0,
            });
            at = hole;
        }
        if extents.is_empty() {
            extents.push(Extent {
                len_bytes,
                state: 0,
            });
        }
        extents
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
