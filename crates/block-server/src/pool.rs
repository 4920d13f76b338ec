//! Buffers for requests under way, used again by size, under one limit.

use dataplane::file::FileBuffer;

/// Sizes that are kept: 4 KiB to 1 MiB, by powers of two.
const CLASSES: usize = 9;
const SMALLEST_BYTES: usize = 4096;
/// Requests up to this size have memory of their own.
const SMALL_BYTES: usize = 64 * 1024;
/// Memory that one connection may hold, however much there is.
const SHARE_MAX_BYTES: usize = 64 << 20;
/// Bytes that are kept of each size at most.
const KEPT_BYTES: usize = 8 << 20;

/// The buffers of one shard.
pub struct Pool {
    kept: [Vec<FileBuffer>; CLASSES],
    limit_bytes: usize,
    /// Bytes that requests under way have asked for.
    reserved_bytes: usize,
}

fn class_of(len_bytes: usize) -> usize {
    let units = len_bytes.div_ceil(SMALLEST_BYTES).max(1);
    units.next_power_of_two().trailing_zeros() as usize
}

impl Pool {
    /// A pool that gives out no more than `limit_bytes`, or one buffer if that is larger.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            kept: std::array::from_fn(|_| Vec::new()),
            limit_bytes,
            reserved_bytes: 0,
        }
    }

    /// Whether there is room for a request of `len_bytes`. An eighth of the memory is for small
    /// requests, so that a few large ones whose clients are slow do not stop everybody.
    pub fn has_room(&self, len_bytes: usize) -> bool {
        let limit_bytes = if len_bytes <= SMALL_BYTES {
            self.limit_bytes
        } else {
            self.limit_bytes - self.limit_bytes / 8
        };
        self.reserved_bytes == 0 || self.reserved_bytes + len_bytes <= limit_bytes
    }

    /// As [`Pool::has_room`], for a request of any size whose client may take long to send its
    /// data.
    pub fn has_room_for_long(&self, len_bytes: usize) -> bool {
        self.has_room(len_bytes.max(SMALL_BYTES + 1))
            || (self.reserved_bytes + len_bytes <= self.limit_bytes - self.limit_bytes / 8)
    }

    /// Memory that one connection may hold at most, past its first request.
    pub fn share_bytes(&self) -> usize {
        (self.limit_bytes / 4).min(SHARE_MAX_BYTES)
    }

    /// Counts the memory of a request.
    pub fn reserve(&mut self, len_bytes: usize) {
        self.reserved_bytes += len_bytes;
    }

    /// The request has ended.
    pub fn release(&mut self, len_bytes: usize) {
        self.reserved_bytes -= len_bytes;
    }

    /// A buffer of at least `len_bytes`, with bytes of earlier requests in it.
    pub fn take(&mut self, len_bytes: usize) -> FileBuffer {
        if len_bytes == 0 {
            return FileBuffer::default();
        }
        let class = class_of(len_bytes);
        match self.kept.get_mut(class) {
            Some(kept) => kept
                .pop()
                .unwrap_or_else(|| FileBuffer::zeroed(SMALLEST_BYTES << class)),
            None => FileBuffer::zeroed(len_bytes),
        }
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buffer: FileBuffer) {
        let len_bytes = buffer.len_bytes();
        if len_bytes == 0 {
            return;
        }
        let class = class_of(len_bytes);
        if let Some(kept) = self.kept.get_mut(class)
            && len_bytes == SMALLEST_BYTES << class
            && kept.len() < (KEPT_BYTES >> class) / SMALLEST_BYTES
        {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_by_size_and_the_limit_holds() {
        let mut pool = Pool::new(1 << 20);
        for len_bytes in [1, 4096, 4097, 70_000, 1 << 20, 5 << 20] {
            let mut buffer = pool.take(len_bytes);
            assert!(buffer.len_bytes() >= len_bytes);
            buffer.bytes_mut()[0] = 7;
            pool.give(buffer);
            let is_kept = pool.take(len_bytes).bytes()[0] == 7;
            assert_eq!(is_kept, len_bytes <= 1 << 20, "{len_bytes}");
        }
        assert!(pool.has_room(8 << 20));
        pool.reserve(1 << 19);
        assert!(pool.has_room(3 << 17));
        assert!(!pool.has_room((3 << 17) + 1));
        pool.reserve(3 << 17);
        assert!(pool.has_room(64 << 10) && !pool.has_room(65 << 10));
        pool.release(7 << 17);
        assert!(pool.has_room(8 << 20));
    }
}
