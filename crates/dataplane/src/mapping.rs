//! Mapped memory that is shared: with the kernel, or with another process.

use std::ffi::c_int;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Memory that is shared with the kernel or with another process. It is unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is plain memory, owned by this value alone; no thread keeps a pointer to it.
unsafe impl Send for Mapping {}
// SAFETY: shared references give out pointers only; whoever uses one says why that is sound.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Anonymous memory.
    pub(crate) fn anonymous(length: usize) -> Result<Mapping> {
        Mapping::new(length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// Anonymous memory in pages of 2 MiB, where the kernel has some to give.
    pub(crate) fn in_large_pages(length: usize) -> Result<Mapping> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mapping = Mapping::map(length, kind, -1, 0)?;
        // SAFETY: the range is the whole mapping, and the call changes none of its bytes. Where the
        // kernel refuses, pages are as small as ever.
        unsafe { libc::madvise(mapping.start.as_ptr().cast(), length, libc::MADV_HUGEPAGE) };
        Ok(mapping)
    }

    /// A ring of a socket.
    pub(crate) fn of_socket(socket: &OwnedFd, length: usize, offset: i64) -> Result<Mapping> {
        Mapping::new(length, libc::MAP_SHARED, socket.as_raw_fd(), offset)
    }

    /// The first `length` bytes of a file that lies in memory.
    pub(crate) fn of_file(file: &OwnedFd, length: usize) -> Result<Mapping> {
        Mapping::new(length, libc::MAP_SHARED, file.as_raw_fd(), 0)
    }

    /// The pages are there at once.
    fn new(length: usize, flags: c_int, fd: c_int, offset: i64) -> Result<Mapping> {
        Mapping::map(length, flags | libc::MAP_POPULATE, fd, offset)
    }

    fn map(length: usize, flags: c_int, fd: c_int, offset: i64) -> Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a null address lets the kernel choose one, so no existing mapping is replaced.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| Error::other("mapped at 0"))?;
        Ok(Mapping { start, length })
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The place `offset` bytes from the start, if a whole `T` fits there and is aligned.
    pub(crate) fn at<T>(&self, offset: usize) -> Option<NonNull<T>> {
        let fits = offset.checked_add(size_of::<T>())? <= self.length;
        // SAFETY: `offset` lies inside of the mapping, as `fits` says; else it is not used.
        let place = fits.then(|| unsafe { self.start.add(offset) })?.cast::<T>();
        place.is_aligned().then_some(place)
    }

    /// All of the memory as words, which others may change at any moment.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let count = self.length / size_of::<AtomicU64>();
        // SAFETY: the mapping has `count` words, begins on a page and lives as long as `self`. Any
        // bytes are a valid word, and atomic access allows for changes by others.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `Mapping::map` with this length and is not used again.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
