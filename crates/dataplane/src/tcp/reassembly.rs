//! Data that came out of order, kept until what is missing comes.

use super::buffer::Pool;
use super::sequence::{at_most, before, distance};
use super::wire::length32;
use super::wire::segment::{SACKS_MAX, Sacks};

/// Pieces that a connection keeps. A peer that sends more holes has its data dropped; the peer
/// sends it again.
const PIECES_MAX: usize = 256;
/// Memory that a piece costs besides its bytes.
const OVERHEAD_BYTES: usize = 48;

/// A run of bytes that lies beyond a hole.
#[derive(Debug)]
struct Piece {
    start: u32,
    bytes: Box<[u8]>,
}

impl Piece {
    fn end(&self) -> u32 {
        self.start.wrapping_add(length32(self.bytes.len()))
    }

    fn cost_bytes(&self) -> usize {
        self.bytes.len() + OVERHEAD_BYTES
    }
}

/// Pieces in order of their numbers. No two overlap.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    pieces: Vec<Piece>,
    /// Start of the piece that came last: its range is the first to be acknowledged (RFC 2018 §4).
    latest: u32,
    /// Where the peer's FIN stands, if it came.
    fin: Option<u32>,
}

impl Reassembly {
    /// Whether there is neither data nor a FIN.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.fin.is_none()
    }

    /// Bytes of data.
    pub(crate) fn len(&self) -> u32 {
        self.pieces
            .iter()
            .map(|piece| length32(piece.bytes.len()))
            .sum()
    }

    /// Bytes of memory that are reserved.
    pub(crate) fn cost_bytes(&self) -> usize {
        self.pieces.iter().map(Piece::cost_bytes).sum()
    }

    /// Notes the FIN's sequence number.
    pub(crate) fn note_fin(&mut self, sequence: u32) {
        self.fin = Some(sequence);
    }

    /// Whether the FIN has this number.
    pub(crate) fn fin_is_at(&self, sequence: u32) -> bool {
        self.fin == Some(sequence)
    }

    /// Keeps what is new of `bytes`. False if there is no memory for it.
    pub(crate) fn insert(&mut self, pool: &mut Pool, start: u32, bytes: &[u8]) -> bool {
        let end = start.wrapping_add(length32(bytes.len()));
        self.latest = start;
        let mut at = start;
        // The place of the first piece that ends after our start.
        let mut place = self
            .pieces
            .partition_point(|piece| at_most(piece.end(), start));
        while before(at, end) {
            let next = self
                .pieces
                .get(place)
                .map(|piece| (piece.start, piece.end()));
            if let Some((next_start, next_end)) = next
                && at_most(next_start, at)
            {
                if before(at, next_end) {
                    at = next_end;
                }
                place += 1;
                continue;
            }
            let until = match next {
                Some((next_start, _)) if before(next_start, end) => next_start,
                _ => end,
            };
            let from = distance(start, at) as usize;
            let to = distance(start, until) as usize;
            let Some(fresh) = bytes.get(from..to) else {
                return false;
            };
            if self.pieces.len() >= PIECES_MAX || !pool.reserve(fresh.len() + OVERHEAD_BYTES) {
                return false;
            }
            self.pieces.insert(
                place,
                Piece {
                    start: at,
                    bytes: fresh.into(),
                },
            );
            at = until;
            place += 1;
        }
        true
    }

    /// Takes the next piece that begins at or before `next`, cut so that it begins there.
    pub(crate) fn take(&mut self, pool: &mut Pool, next: u32) -> Option<Box<[u8]>> {
        while let Some(piece) = self.pieces.first() {
            if before(next, piece.start) {
                return None;
            }
            let piece = self.pieces.remove(0);
            pool.release(piece.cost_bytes());
            let skipped = distance(piece.start, next) as usize;
            match piece.bytes.get(skipped..) {
                Some(rest) if skipped == 0 && !rest.is_empty() => return Some(piece.bytes),
                Some(rest) if !rest.is_empty() => return Some(rest.into()),
                _ => {}
            }
        }
        None
    }

    /// Gives all memory back.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        for piece in self.pieces.drain(..) {
            pool.release(piece.cost_bytes());
        }
        self.fin = None;
    }

    /// Ranges to acknowledge: first the one that came last, then others.
    pub(crate) fn sacks(&self) -> Sacks {
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(SACKS_MAX);
        for piece in &self.pieces {
            match merged.last_mut() {
                Some((_, end)) if *end == piece.start => *end = piece.end(),
                _ => merged.push((piece.start, piece.end())),
            }
        }
        let holds = |&&(start, end): &&(u32, u32)| super::sequence::within(self.latest, start, end);
        let first = merged.iter().find(holds).copied();
        let mut sacks = Sacks::default();
        for (start, end) in first.into_iter().chain(
            merged
                .iter()
                .rev()
                .copied()
                .filter(|range| Some(*range) != first),
        ) {
            sacks.push(start, end);
        }
        sacks
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_latest_range_is_acknowledged_first() {
        let mut pool = Pool::new(1 << 20);
        let mut pieces = Reassembly::default();
        assert!(pieces.insert(&mut pool, 100, &[1; 10]));
        assert!(pieces.insert(&mut pool, 200, &[1; 10]));
        assert!(pieces.insert(&mut pool, 110, &[1; 10]));
        assert_eq!(pieces.sacks().ranges(), [(100, 120), (200, 210)]);
    }

    #[test]
    fn holes_are_bounded() {
        let mut pool = Pool::new(1 << 20);
        let mut pieces = Reassembly::default();
        let kept = (0..1000u32)
            .filter(|hole| pieces.insert(&mut pool, hole * 10, &[1; 5]))
            .count();
        assert_eq!(kept, PIECES_MAX);
        pieces.clear(&mut pool);
        assert_eq!(pool.used_bytes(), 0);
    }

    proptest! {
        /// Segments of one stream in any order give the stream.
        #[test]
        fn gives_the_stream(
            segments in proptest::collection::vec((0u32..2000, 1u32..200), 1..80),
            first in any::<u32>(),
        ) {
            let byte = |offset: u32| u8::try_from((offset * 7) % 251).unwrap();
            let mut pool = Pool::new(1 << 20);
            let mut pieces = Reassembly::default();
            let mut got = vec![false; 2300];
            for (start, length) in segments {
                let bytes: Vec<u8> = (start..start + length).map(byte).collect();
                prop_assert!(pieces.insert(&mut pool, first.wrapping_add(start), &bytes));
                for offset in start..start + length {
                    got[offset as usize] = true;
                }
            }
            let kept: u32 = pieces.len();
            prop_assert_eq!(kept as usize, got.iter().filter(|got| **got).count());
            let mut offset = 0u32;
            while (offset as usize) < got.len() {
                match pieces.take(&mut pool, first.wrapping_add(offset)) {
                    Some(bytes) => {
                        for found in bytes.iter() {
                            prop_assert!(got[offset as usize]);
                            prop_assert_eq!(*found, byte(offset));
                            offset += 1;
                        }
                    }
                    None => {
                        prop_assert!(!got[offset as usize]);
                        offset += 1;
                    }
                }
            }
            prop_assert_eq!(pool.used_bytes(), 0);
        }
    }
}
