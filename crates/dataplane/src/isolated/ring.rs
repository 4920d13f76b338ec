//! A ring of records that one process writes and another one reads.
//!
//! Neither side trusts the other. Each side keeps its own position in memory of its own, reads the
//! other's position once, and checks it before use. The reader copies a record before anybody looks
//! at it: what is checked cannot change afterwards. A position, a length or a kind that cannot be
//! is a [`Violation`], and ends the processes.
//!
//! All words are atomic, so there is no unsafe code here. Positions count words since the start and
//! never go back. A record is three words and its payload, in whole words, and may go on at the
//! start of the ring.

use std::sync::atomic::{Ordering, fence};

use super::memory::Place;
use super::violation::Violation;
use crate::api::FlowId;

/// Bytes of a record's payload at most.
pub(super) const PAYLOAD_MAX_BYTES: usize = 32 * 1024;
/// Words of a record without its payload.
const HEADER_WORDS: u64 = 3;
const WORD_BYTES: usize = size_of::<u64>();

/// A record without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: u8,
    pub(super) flow: FlowId,
    pub(super) number: u64,
}

/// The side that writes.
#[derive(Debug)]
pub(super) struct Writer {
    place: Place,
    /// Where the next record begins.
    tail: u64,
    /// What the reader may read.
    published: u64,
    /// The reader's position, as last seen.
    head: u64,
}

/// The side that reads.
#[derive(Debug)]
pub(super) struct Reader {
    place: Place,
    head: u64,
    /// What the writer may use again.
    released: u64,
    /// The writer's position, as last seen.
    tail: u64,
}

/// Words of a record with a payload of so many bytes.
fn words_of(length_bytes: usize) -> u64 {
    HEADER_WORDS + length_bytes.div_ceil(WORD_BYTES) as u64
}

/// A position's place in a ring of a power of two of words.
fn index(position: u64, ring_words: usize) -> usize {
    usize::try_from(position).unwrap_or(0) & (ring_words - 1)
}

fn low32(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

impl Writer {
    pub(super) fn new(place: Place) -> Writer {
        Writer {
            place,
            tail: 0,
            published: 0,
            head: 0,
        }
    }

    fn has_room(&mut self, words: u64) -> Result<bool, Violation> {
        let capacity = self.place.data().len() as u64;
        if self.tail - self.head + words <= capacity {
            return Ok(true);
        }
        let head = self.place.head().load(Ordering::Acquire);
        // The reader does not go back, and reads what was published.
        if head.wrapping_sub(self.head) > self.published - self.head {
            return Err(Violation::Position);
        }
        self.head = head;
        Ok(self.tail - self.head + words <= capacity)
    }

    /// Writes a record that the reader sees after [`Writer::publish`]. False if there is no room:
    /// then nothing is written. The payload has at most [`PAYLOAD_MAX_BYTES`].
    ///
    /// # Errors
    /// The reader's position cannot be.
    pub(super) fn write(&mut self, record: Record, payload: &[u8]) -> Result<bool, Violation> {
        let words = words_of(payload.len());
        if !self.has_room(words)? {
            return Ok(false);
        }
        let data = self.place.data();
        let put = |offset: u64, word: u64| {
            data[index(self.tail + offset, data.len())].store(word, Ordering::Relaxed);
        };
        put(0, u64::from(record.kind) | (payload.len() as u64) << 32);
        let flow = record.flow;
        put(1, u64::from(flow.index) | u64::from(flow.generation) << 32);
        put(2, record.number);
        let (chunks, rest) = payload.as_chunks::<WORD_BYTES>();
        let start = index(self.tail + HEADER_WORDS, data.len());
        let (first, second) = chunks.split_at(chunks.len().min(data.len() - start));
        for (place, chunk) in data[start..].iter().zip(first) {
            place.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        for (place, chunk) in data.iter().zip(second) {
            place.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; WORD_BYTES];
            last[..rest.len()].copy_from_slice(rest);
            put(words - 1, u64::from_ne_bytes(last));
        }
        self.tail += words;
        Ok(true)
    }

    /// Shows the reader what was written. True if the reader sleeps and has to be woken.
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.place.tail().store(self.tail, Ordering::Release);
        self.published = self.tail;
        // Either the reader sees the new position before it sleeps, or its wish is seen here.
        fence(Ordering::SeqCst);
        let sleeping = self.place.sleeping();
        sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::Relaxed) != 0
    }
}

impl Reader {
    pub(super) fn new(place: Place) -> Reader {
        Reader {
            place,
            head: 0,
            released: 0,
            tail: 0,
        }
    }

    /// Looks how far the writer has come. Gives the words that wait.
    ///
    /// # Errors
    /// The writer's position cannot be.
    pub(super) fn look(&mut self) -> Result<u64, Violation> {
        let tail = self.place.tail().load(Ordering::Acquire);
        let waiting = tail.wrapping_sub(self.head);
        let room = self.place.data().len() as u64 - (self.head - self.released);
        // The writer does not go back, and overwrites nothing that is not released.
        if waiting > room || waiting < self.tail - self.head {
            return Err(Violation::Position);
        }
        self.tail = tail;
        Ok(waiting)
    }

    /// Takes the next record, and appends its payload to `payload`. `None`: nothing waits.
    ///
    /// # Errors
    /// The writer's position, or the record's length, cannot be.
    pub(super) fn next(&mut self, payload: &mut Vec<u8>) -> Result<Option<Record>, Violation> {
        if self.tail == self.head && self.look()? == 0 {
            return Ok(None);
        }
        let waiting = self.tail - self.head;
        if waiting < HEADER_WORDS {
            return Err(Violation::Length);
        }
        let data = self.place.data();
        let get = |offset: u64| data[index(self.head + offset, data.len())].load(Ordering::Relaxed);
        let (first, flow, number) = (get(0), get(1), get(2));
        let length_bytes = low32(first >> 32) as usize;
        let words = words_of(length_bytes);
        if length_bytes > PAYLOAD_MAX_BYTES || words > waiting {
            return Err(Violation::Length);
        }
        let [kind, 0, 0, 0, ..] = first.to_le_bytes() else {
            return Err(Violation::Kind);
        };
        let at = payload.len();
        payload.resize(at + length_bytes, 0);
        let (chunks, rest) = payload[at..].as_chunks_mut::<WORD_BYTES>();
        let start = index(self.head + HEADER_WORDS, data.len());
        let (before, after) = chunks.split_at_mut(chunks.len().min(data.len() - start));
        for (chunk, place) in before.iter_mut().zip(&data[start..]) {
            *chunk = place.load(Ordering::Relaxed).to_ne_bytes();
        }
        for (chunk, place) in after.iter_mut().zip(data) {
            *chunk = place.load(Ordering::Relaxed).to_ne_bytes();
        }
        let last = get(words - 1).to_ne_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
        self.head += words;
        Ok(Some(Record {
            kind,
            flow: FlowId {
                index: low32(flow),
                generation: low32(flow >> 32),
            },
            number,
        }))
    }

    /// Gives the writer the room of what was taken.
    pub(super) fn release(&mut self) {
        if self.released != self.head {
            self.released = self.head;
            self.place.head().store(self.head, Ordering::Release);
        }
    }

    /// Asks the writer for a wake-up. False if a record waits: then there is no sleep.
    ///
    /// # Errors
    /// The writer's position cannot be.
    pub(super) fn prepare_sleep(&mut self) -> Result<bool, Violation> {
        self.place.sleeping().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let sleeps = self.look()? == 0;
        if !sleeps {
            self.wake();
        }
        Ok(sleeps)
    }

    /// Asks for no wake-up any more.
    pub(super) fn wake(&self) {
        self.place.sleeping().store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
