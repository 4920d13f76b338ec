//! A ring of receive buffers that the kernel picks from (`IORING_REGISTER_PBUF_RING`).

use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;

use crate::error::Error;

/// Buffers of one ring, if nothing else is asked for.
pub(super) const BUFFERS: u16 = 512;
/// Buffers of one ring at least and at most. The kernel fills some 20 in a call; a batch has 64.
const BUFFERS_RANGE: std::ops::RangeInclusive<u16> = 32..=1 << 14;
/// Bytes of a buffer. A large value arrives in few pieces, and a small request fits many times.
const BUFFER_BYTES: usize = 8192;
/// Distance between buffers: not a power of two, so that the first lines of all buffers, which
/// small requests use, do not fall into the same sets of the caches.
const STRIDE_BYTES: usize = BUFFER_BYTES + 192;
/// The only group of buffers of a ring.
pub(super) const GROUP: u16 = 0;

/// The ring and the memory it names.
pub(super) struct Buffers {
    ring: *mut BufRingEntry,
    ring_bytes: usize,
    memory: *mut u8,
    memory_bytes: usize,
    /// A power of two.
    count: u16,
    tail: u16,
}

// SAFETY: the pointers are to private mappings that this value alone owns.
unsafe impl Send for Buffers {}

fn map(len_bytes: usize) -> Result<*mut u8, Error> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice aliases nothing.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(Error::last_os("mmap"));
    }
    Ok(address.cast())
}

impl Buffers {
    /// Maps memory for `count` buffers, rounded up to a power of two, and registers all of them
    /// with the ring of `submitter`.
    pub(super) fn new(submitter: &Submitter<'_>, count: u16) -> Result<Self, Error> {
        let count = count
            .clamp(*BUFFERS_RANGE.start(), *BUFFERS_RANGE.end())
            .next_power_of_two();
        let ring_bytes = usize::from(count) * size_of::<BufRingEntry>();
        let memory_bytes = usize::from(count) * STRIDE_BYTES;
        let ring = map(ring_bytes)?;
        let mut buffers = Self {
            ring: ring.cast(),
            ring_bytes,
            memory: map(memory_bytes)?,
            memory_bytes,
            count,
            tail: 0,
        };
        // SAFETY: the ring is a page-aligned mapping of the size named, and lives until `Buffers`
        // is dropped, which its owner does after the io_uring instance is closed.
        unsafe { submitter.register_buf_ring_with_flags(ring as u64, count, GROUP, 0) }
            .map_err(Error::no_uring)?;
        for buffer in 0..count {
            buffers.give_back(buffer);
        }
        buffers.publish();
        Ok(buffers)
    }

    /// The first `len_bytes` of a buffer that the kernel filled.
    pub(super) fn filled(&self, buffer: u16, len_bytes: usize) -> &[u8] {
        let offset = usize::from(buffer % self.count) * STRIDE_BYTES;
        // SAFETY: the range lies in the mapping, and the kernel does not write to a buffer between
        // its completion and the next `publish`, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.memory.add(offset), len_bytes.min(BUFFER_BYTES)) }
    }

    /// Puts a buffer back behind the others; the kernel sees it after [`Buffers::publish`].
    pub(super) fn give_back(&mut self, buffer: u16) {
        let slot = usize::from(self.tail % self.count);
        // SAFETY: the slot lies in the ring, and the kernel does not read slots past its tail.
        let entry = unsafe { &mut *self.ring.add(slot) };
        let offset = usize::from(buffer % self.count) * STRIDE_BYTES;
        entry.set_addr(self.memory as u64 + offset as u64);
        entry.set_len(u32::try_from(BUFFER_BYTES).unwrap_or(0));
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel all buffers that were given back.
    pub(super) fn publish(&self) {
        // SAFETY: the ring's base is the address of its first entry.
        let tail = unsafe { BufRingEntry::tail(self.ring) };
        // SAFETY: the tail is two aligned bytes in our mapping that only this thread writes.
        let tail = unsafe { &*tail.cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the io_uring instance that knew it is closed.
        unsafe { libc::munmap(self.memory.cast(), self.memory_bytes) };
        // SAFETY: as above.
        unsafe { libc::munmap(self.ring.cast(), self.ring_bytes) };
    }
}
