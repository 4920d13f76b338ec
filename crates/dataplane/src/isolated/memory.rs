//! The memory of two rings: a sealed file in memory, made by one process and mapped by both.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::error::Error;
use crate::mapping::Mapping;

/// Words of a line that one side alone writes. Two lines of the cache: a processor fetches the
/// neighbour of a line as well.
const LINE_WORDS: usize = 16;
/// Words in front of the rings: a page.
const CONTROL_WORDS: usize = 512;
/// Bytes of one ring: a batch of 64 full frames fits ten times, and both rings stay in a cache of
/// the second level or in the processor's share of the third.
pub const RING_BYTES: usize = 1 << 20;

/// The seals: nobody can make the file smaller, which would end a process that reads it.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// The mapped memory of two rings.
#[derive(Debug)]
pub(super) struct Memory {
    mapping: Mapping,
    ring_words: usize,
}

/// Which of the two rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// From the application to the TCP stack.
    Commands,
    /// From the TCP stack to the application.
    Events,
}

/// One ring's part of the memory.
#[derive(Debug, Clone)]
pub(super) struct Place {
    memory: Arc<Memory>,
    control: usize,
    data: usize,
}

fn os(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Os { call, source }
}

fn length_bytes(ring_bytes: usize) -> usize {
    CONTROL_WORDS * size_of::<AtomicU64>() + 2 * ring_bytes
}

/// A new file for two rings of `ring_bytes` each, sealed.
///
/// # Errors
/// The kernel has no memory for it.
pub(super) fn create(ring_bytes: usize) -> Result<OwnedFd, Error> {
    let call = os("memfd_create");
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // A host may ask for NOEXEC_SEAL (vm.memfd_noexec). Linux before 6.3 does not know it.
    let file = rustix::fs::memfd_create("slackline-rings", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create("slackline-rings", flags))
        .map_err(|error| call(error.into()))?;
    rustix::fs::ftruncate(&file, length_bytes(ring_bytes) as u64)
        .and_then(|()| rustix::fs::fcntl_add_seals(&file, SEALS))
        .map_err(|error| call(error.into()))?;
    Ok(file)
}

impl Memory {
    /// Maps a file of [`create`] that may come from another process.
    ///
    /// # Errors
    /// The file has another length or may still change its length, or cannot be mapped.
    pub(super) fn map(file: &OwnedFd, ring_bytes: usize) -> Result<Arc<Memory>, Error> {
        let call = os("mapping the shared rings");
        let length = length_bytes(ring_bytes);
        let has = rustix::fs::fstat(file).map_err(|error| call(error.into()))?;
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|error| call(error.into()))?;
        if u64::try_from(has.st_size) != Ok(length as u64) || !seals.contains(SEALS) {
            return Err(call(rustix::io::Errno::INVAL.into()));
        }
        let mapping = Mapping::of_file(file, length).map_err(&call)?;
        Ok(Arc::new(Memory {
            mapping,
            ring_words: ring_bytes / size_of::<AtomicU64>(),
        }))
    }
}

#[cfg(test)]
impl Memory {
    pub(super) fn words(&self) -> &[AtomicU64] {
        self.mapping.words()
    }
}

impl Place {
    pub(super) fn of(memory: &Arc<Memory>, which: Which) -> Place {
        let number = match which {
            Which::Commands => 0,
            Which::Events => 1,
        };
        Place {
            memory: Arc::clone(memory),
            control: number * CONTROL_WORDS / 2,
            data: CONTROL_WORDS + number * memory.ring_words,
        }
    }

    fn control(&self, line: usize) -> &AtomicU64 {
        &self.memory.mapping.words()[self.control + line * LINE_WORDS]
    }

    /// How far the writer has come, in words since the start.
    pub(super) fn tail(&self) -> &AtomicU64 {
        self.control(0)
    }

    /// How far the reader has come, in words since the start.
    pub(super) fn head(&self) -> &AtomicU64 {
        self.control(1)
    }

    /// Whether the reader sleeps and wants to be woken: not 0.
    pub(super) fn sleeping(&self) -> &AtomicU64 {
        self.control(2)
    }

    /// The ring's words, a power of two.
    pub(super) fn data(&self) -> &[AtomicU64] {
        &self.memory.mapping.words()[self.data..self.data + self.memory.ring_words]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_rings_keeps_its_length_and_another_file_is_refused() {
        let file = create(1 << 16).unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(rustix::fs::ftruncate(&file, 1 << 20).is_err());
        assert!(Memory::map(&file, 1 << 16).is_ok());
        assert!(Memory::map(&file, 1 << 17).is_err(), "another length");
        let open = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, length_bytes(1 << 16) as u64).unwrap();
        assert!(Memory::map(&open, 1 << 16).is_err(), "no seals");
    }
}
