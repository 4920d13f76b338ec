//! Memory for data: buffers of a few sizes that are used again, under one bound, and a queue of
//! bytes that has such a buffer only while it holds something.

/// Buffer sizes in bytes: each four times the one before.
const SIZES_BYTES: [usize; 8] = [
    512, 2048, 8192, 32_768, 131_072, 524_288, 2_097_152, 8_388_608,
];
/// Buffers of a size that are kept for later. Beyond this bound they go back to the allocator.
const KEPT_MAX: [usize; 8] = [4096, 1024, 256, 64, 16, 4, 1, 0];

/// Buffers up to this size may use all of the pool: an answer of a few KiB finds room even where
/// others hold all that large buffers may have.
const SMALL_BYTES: usize = 8192;
/// The part of the pool that is left to small buffers: one of so many.
const SMALL_PART: usize = 8;

/// Buffers that are free, and the count of bytes that are in use.
#[derive(Debug)]
pub(crate) struct Pool {
    free: [Vec<Box<[u8]>>; SIZES_BYTES.len()],
    used_bytes: usize,
    bytes_max: usize,
}

impl Pool {
    /// A pool that hands out `bytes_max` bytes at most.
    pub(crate) fn new(bytes_max: usize) -> Pool {
        Pool {
            free: std::array::from_fn(|_| Vec::new()),
            used_bytes: 0,
            bytes_max,
        }
    }

    /// Bytes handed out.
    pub(crate) const fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Whether large buffers have half or more of what they may have.
    pub(crate) const fn is_short(&self) -> bool {
        self.used_bytes >= self.bound_bytes(usize::MAX) / 2
    }

    const fn bound_bytes(&self, size: usize) -> usize {
        if size <= SMALL_BYTES {
            self.bytes_max
        } else {
            self.bytes_max - self.bytes_max / SMALL_PART
        }
    }

    /// Whether a buffer of `size` bytes can be had in place of one of `own` bytes.
    const fn fits(&self, size: usize, own: usize) -> bool {
        self.used_bytes.saturating_sub(own) + size <= self.bound_bytes(size)
    }

    /// The largest buffer that can be had now in place of one of `own` bytes; 0 if none can.
    fn largest_bytes(&self, own: usize) -> usize {
        let mut sizes = SIZES_BYTES.iter().rev().copied();
        sizes.find(|size| self.fits(*size, own)).unwrap_or(0)
    }

    /// A buffer of at least `bytes` bytes, in place of one of `own` bytes that is given back next.
    /// `None` at the bound, or if none is that large.
    fn take(&mut self, bytes: usize, own: usize) -> Option<Box<[u8]>> {
        let class = SIZES_BYTES.iter().position(|size| *size >= bytes)?;
        let size = SIZES_BYTES[class];
        if !self.fits(size, own) {
            return None;
        }
        self.used_bytes += size;
        Some(
            self.free[class]
                .pop()
                .unwrap_or_else(|| vec![0; size].into_boxed_slice()),
        )
    }

    fn give_back(&mut self, buffer: Box<[u8]>) {
        self.used_bytes = self.used_bytes.saturating_sub(buffer.len());
        let class = SIZES_BYTES.iter().position(|size| *size == buffer.len());
        if let Some(class) = class
            && self.free[class].len() < KEPT_MAX[class]
        {
            self.free[class].push(buffer);
        }
    }

    /// Counts memory that is not a buffer of the pool, such as data that came out of order. False
    /// at the bound: then nothing is counted.
    pub(crate) fn reserve(&mut self, bytes: usize) -> bool {
        if self.used_bytes + bytes > self.bound_bytes(usize::MAX) {
            return false;
        }
        self.used_bytes += bytes;
        true
    }

    /// Counts memory that comes from another pool, beyond the bound if need be.
    pub(crate) const fn take_over(&mut self, bytes: usize) {
        self.used_bytes += bytes;
    }

    /// Ends a reservation.
    pub(crate) fn release(&mut self, bytes: usize) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
    }
}

/// A first-in, first-out queue of bytes. An empty queue holds no memory.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    buffer: Option<Box<[u8]>>,
    start: u32,
    length: u32,
}

impl ByteQueue {
    /// Bytes in the queue.
    pub(crate) const fn len(&self) -> u32 {
        self.length
    }

    /// Bytes of memory that the queue holds.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    /// How many bytes [`ByteQueue::push`] would take now, in one piece or in several.
    pub(crate) fn space(&self, pool: &Pool, length_max: u32) -> u32 {
        let capacity = self.buffer_bytes();
        let most = super::wire::length32(capacity.max(pool.largest_bytes(capacity)));
        length_max.min(most).saturating_sub(self.length)
    }

    /// Appends as many bytes as fit under `length_max` and under the pool's bound. Returns their
    /// number.
    pub(crate) fn push(&mut self, pool: &mut Pool, bytes: &[u8], length_max: u32) -> usize {
        let room = length_max.saturating_sub(self.length);
        let mut count = bytes.len().min(index(room));
        if index(self.length) + count > self.buffer_bytes() {
            count = count.min(index(self.space(pool, length_max)));
        }
        let wanted = index(self.length) + count;
        if wanted > self.buffer_bytes() && !self.grow(pool, wanted) {
            count = self.buffer_bytes() - index(self.length);
        }
        let Some(buffer) = self.buffer.as_mut() else {
            return 0;
        };
        let capacity = buffer.len();
        let mut at = index(self.start) + index(self.length);
        if at >= capacity {
            at -= capacity;
        }
        let first = count.min(capacity - at);
        buffer[at..at + first].copy_from_slice(&bytes[..first]);
        buffer[..count - first].copy_from_slice(&bytes[first..count]);
        self.length += super::wire::length32(count);
        count
    }

    fn grow(&mut self, pool: &mut Pool, wanted: usize) -> bool {
        let Some(mut buffer) = pool.take(wanted, self.buffer_bytes()) else {
            return false;
        };
        let (first, second) = self.slices(0, self.length);
        buffer[..first.len()].copy_from_slice(first);
        buffer[first.len()..first.len() + second.len()].copy_from_slice(second);
        self.start = 0;
        if let Some(old) = self.buffer.replace(buffer) {
            pool.give_back(old);
        }
        true
    }

    /// Up to `length` bytes from `offset` on, in two slices.
    pub(crate) fn slices(&self, offset: u32, length: u32) -> (&[u8], &[u8]) {
        let Some(buffer) = self.buffer.as_ref() else {
            return (&[], &[]);
        };
        let length = index(length.min(self.length.saturating_sub(offset)));
        let mut at = index(self.start) + index(offset);
        if at >= buffer.len() {
            at -= buffer.len();
        }
        if length == 0 || at >= buffer.len() {
            return (&[], &[]);
        }
        let first = length.min(buffer.len() - at);
        (&buffer[at..at + first], &buffer[..length - first])
    }

    /// Removes bytes from the front. An empty queue gives its buffer back.
    pub(crate) fn consume(&mut self, pool: &mut Pool, count: u32) {
        let count = count.min(self.length);
        self.length -= count;
        if self.length == 0 {
            self.clear(pool);
        } else if let Some(buffer) = self.buffer.as_ref() {
            let capacity = super::wire::length32(buffer.len());
            self.start += count;
            if self.start >= capacity {
                self.start -= capacity;
            }
        }
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        if let Some(buffer) = self.buffer.take() {
            pool.give_back(buffer);
        }
        self.start = 0;
        self.length = 0;
    }
}

/// A 32-bit number as an index.
pub(crate) const fn index(number: u32) -> usize {
    number as usize
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_queue_holds_no_memory() {
        let mut pool = Pool::new(4096);
        let mut queue = ByteQueue::default();
        assert_eq!(queue.push(&mut pool, b"hello", 100), 5);
        assert_eq!(pool.used_bytes(), 512);
        queue.consume(&mut pool, 5);
        assert_eq!(pool.used_bytes(), 0);
        assert!(queue.buffer.is_none());
    }

    #[test]
    fn the_pool_keeps_its_bound() {
        let mut pool = Pool::new(1024);
        let mut a = ByteQueue::default();
        let mut b = ByteQueue::default();
        let mut c = ByteQueue::default();
        assert_eq!(
            a.push(&mut pool, &[1; 600], 500),
            500,
            "more would need 2,048 bytes"
        );
        assert_eq!(b.push(&mut pool, &[1; 500], 2048), 500);
        assert_eq!(c.push(&mut pool, &[1; 500], 2048), 0);
        assert_eq!(
            a.push(&mut pool, &[2; 500], 2048),
            12,
            "what is free in its buffer"
        );
        assert!(!pool.reserve(1));
    }

    #[test]
    fn a_small_answer_finds_room_where_large_ones_hold_the_memory() {
        let mut pool = Pool::new(1 << 20);
        let mut large: Vec<ByteQueue> = (0..8).map(|_| ByteQueue::default()).collect();
        for queue in &mut large {
            let space = queue.space(&pool, 1 << 17);
            let taken = queue.push(&mut pool, &vec![0; 1 << 17], 1 << 17);
            assert!(taken <= index(space), "{taken} of {space}");
        }
        assert!(pool.is_short());
        let mut small = ByteQueue::default();
        assert_eq!(small.space(&pool, 1 << 20), 8192);
        assert_eq!(small.push(&mut pool, &[0; 3000], 1 << 20), 3000);
        assert!(pool.used_bytes() <= 1 << 20);
    }

    #[test]
    fn what_there_is_space_for_is_taken_in_pieces_also_where_the_last_memory_goes() {
        // Seven eighths of the pool are 14 buffers of 2 MiB.
        let mut pool = Pool::new(16 << 21);
        let mut large: Vec<ByteQueue> = (0..13).map(|_| ByteQueue::default()).collect();
        for queue in &mut large {
            assert_eq!(queue.push(&mut pool, &[0; 1_000_000], 1 << 21), 1_000_000);
        }
        let mut last = ByteQueue::default();
        let pieces = [&b"VALUE b 0 1000000\r\n"[..], &[0; 1000], &[0; 999_000]];
        for piece in pieces {
            let space = last.space(&pool, 1 << 21);
            assert!(index(space) > 1_000_000, "{space}");
            assert_eq!(last.push(&mut pool, piece, 1 << 21), piece.len());
        }
        assert_eq!(pool.used_bytes(), 14 << 21);
    }

    proptest! {
        #[test]
        fn space_is_what_pieces_take(
            others in 0usize..1 << 20,
            pieces in proptest::collection::vec(1usize..200_000, 1..20),
        ) {
            let mut pool = Pool::new(1 << 20);
            pool.take_over(others);
            let mut queue = ByteQueue::default();
            let mut left = index(queue.space(&pool, 1 << 19));
            for piece in pieces {
                let taken = queue.push(&mut pool, &vec![0; piece], 1 << 19);
                prop_assert_eq!(taken, piece.min(left));
                left -= taken;
            }
        }

        #[test]
        fn behaves_as_a_deque(steps in proptest::collection::vec((0u32..3000, 0u32..3000), 1..60)) {
            let mut pool = Pool::new(1 << 20);
            let mut queue = ByteQueue::default();
            let mut model = VecDeque::new();
            let mut next = 0u8;
            for (pushed, taken) in steps {
                let bytes: Vec<u8> = (0..pushed).map(|_| { next = next.wrapping_add(1); next }).collect();
                let space = index(queue.space(&pool, 8192));
                let count = queue.push(&mut pool, &bytes, 8192);
                prop_assert_eq!(count, bytes.len().min(space));
                prop_assert_eq!(count, bytes.len().min(8192 - model.len()));
                model.extend(&bytes[..count]);
                next = model.back().copied().unwrap_or(next);
                let offset = taken / 2;
                let (a, b) = queue.slices(offset, taken);
                let seen: Vec<u8> = a.iter().chain(b).copied().collect();
                let expected: Vec<u8> =
                    model.iter().skip(index(offset)).take(index(taken)).copied().collect();
                prop_assert_eq!(seen, expected);
                queue.consume(&mut pool, taken);
                model.drain(..index(taken).min(model.len()));
                prop_assert_eq!(index(queue.len()), model.len());
            }
            queue.clear(&mut pool);
            prop_assert_eq!(pool.used_bytes(), 0);
        }
    }
}
