//! The rings that a socket shares with the kernel, and the memory of frames.

use std::io::{Error, Result};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::mapping::Mapping;

/// One ring of a socket, of which this process is the producer or the consumer.
#[derive(Debug)]
pub(super) struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    /// Our own index, and the other side's as last read.
    own: u32,
    other: u32,
    /// Keeps the memory mapped.
    _map: Mapping,
}

// SAFETY: the pointers lead into the mapping, which the ring owns; indices shared with the kernel
// are atomic.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries, a power of two.
    pub(super) fn map(
        socket: &OwnedFd,
        size: u32,
        offset: i64,
        places: &libc::xdp_ring_offset,
    ) -> Result<Ring<T>> {
        let place = |offset: u64| usize::try_from(offset).map_err(Error::other);
        let outside = || Error::other("the kernel's ring does not fit its mapping");
        let length = place(places.desc)? + size as usize * size_of::<T>();
        let map = Mapping::of_socket(socket, length, offset)?;
        Ok(Ring {
            producer: map.at(place(places.producer)?).ok_or_else(outside)?,
            consumer: map.at(place(places.consumer)?).ok_or_else(outside)?,
            flags: map.at(place(places.flags)?).ok_or_else(outside)?,
            entries: map.at(place(places.desc)?).ok_or_else(outside)?,
            size,
            own: 0,
            other: 0,
            _map: map,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the pointer is aligned and lies in the mapping, as `map` has checked.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: the pointer is aligned and lies in the mapping, as `map` has checked.
        unsafe { self.consumer.as_ref() }
    }

    /// Whether the kernel wants a system call to go on.
    pub(super) fn needs_wakeup(&self) -> bool {
        // SAFETY: the pointer is aligned and lies in the mapping, as `map` has checked.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn entry(&self, number: u32) -> NonNull<T> {
        let at = (number & (self.size - 1)) as usize;
        // SAFETY: `at` is below the ring's size, and the mapping holds that many entries.
        unsafe { self.entries.add(at) }
    }

    /// Consumer: entries that wait, up to `most`.
    pub(super) fn available(&mut self, most: u32) -> u32 {
        let mut count = self.other.wrapping_sub(self.own);
        if count < most {
            self.other = self.producer().load(Ordering::Acquire);
            count = self.other.wrapping_sub(self.own);
        }
        count.min(most)
    }

    /// Consumer: the next entry, which [`Ring::available`] has seen.
    pub(super) fn take(&mut self) -> T {
        let place = self.entry(self.own);
        self.own = self.own.wrapping_add(1);
        // SAFETY: the kernel has written the entry before it moved the producer's index on, and
        // does not write it again before `release`.
        unsafe { place.read() }
    }

    /// Consumer: gives the entries that were taken back to the kernel.
    pub(super) fn release(&mut self) {
        self.consumer().store(self.own, Ordering::Release);
    }

    /// Producer: places that are free, up to `most`.
    pub(super) fn free(&mut self, most: u32) -> u32 {
        let mut count = self.size - self.own.wrapping_sub(self.other);
        if count < most {
            self.other = self.consumer().load(Ordering::Acquire);
            count = self.size - self.own.wrapping_sub(self.other);
        }
        count.min(most)
    }

    /// Producer: fills the next place, which [`Ring::free`] has seen.
    pub(super) fn put(&mut self, entry: T) {
        let place = self.entry(self.own);
        self.own = self.own.wrapping_add(1);
        // SAFETY: the place is free: the kernel reads it only after `submit`.
        unsafe { place.write(entry) };
    }

    /// Producer: shows the kernel what was put.
    pub(super) fn submit(&mut self) {
        self.producer().store(self.own, Ordering::Release);
    }

    /// Producer: whether the kernel has entries that it has not taken yet.
    pub(super) fn is_pending(&mut self) -> bool {
        self.other = self.consumer().load(Ordering::Acquire);
        self.own != self.other
    }
}

/// A part of the memory of all frames (UMEM). No two parts overlap.
#[derive(Debug)]
pub(super) struct Area {
    map: Arc<Mapping>,
    start: usize,
    end: usize,
}

impl Area {
    /// Two parts of equal length in one mapping, in large pages if that is wanted.
    pub(super) fn halves(length: usize, is_large: bool) -> Result<(Area, Area)> {
        let map = Arc::new(match is_large {
            true => Mapping::in_large_pages(length * 2)?,
            false => Mapping::anonymous(length * 2)?,
        });
        let first = Area {
            map: Arc::clone(&map),
            start: 0,
            end: length,
        };
        let second = Area {
            map,
            start: length,
            end: length * 2,
        };
        Ok((first, second))
    }

    /// Address and length of the whole mapping, for the kernel.
    pub(super) fn whole(&self) -> (u64, u64) {
        let start = self.map.at::<u8>(0);
        let address = start.map_or(0, |start| start.as_ptr().expose_provenance() as u64);
        (address, self.map.length() as u64)
    }

    fn place(&self, address: u64, length: usize) -> Option<NonNull<u8>> {
        let start = usize::try_from(address).ok()?;
        let is_inside = start >= self.start && start.checked_add(length)? <= self.end;
        is_inside.then(|| self.map.at::<u8>(start)).flatten()
    }

    /// A received frame's bytes. The caller has the frame from the receive ring and has not given
    /// it back to the fill ring.
    pub(super) fn bytes(&self, address: u64, length: usize) -> Option<&[u8]> {
        let place = self.place(address, length)?;
        // SAFETY: the range lies in the mapping and in this part of it alone. The kernel does not
        // write to a frame between its appearance in the receive ring and its return by the fill
        // ring.
        Some(unsafe { std::slice::from_raw_parts(place.as_ptr(), length) })
    }

    /// A frame to fill. The caller has the frame from the list of free ones.
    pub(super) fn bytes_mut(&mut self, address: u64, length: usize) -> Option<&mut [u8]> {
        let place = self.place(address, length)?;
        // SAFETY: the range lies in the mapping and in this part of it alone, the borrow is
        // exclusive, and the kernel reads a frame only between its appearance in the transmission
        // ring and its completion.
        Some(unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), length) })
    }
}
