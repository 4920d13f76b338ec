//! A segment that arrives at a connection, and what becomes of it.

use super::wire::length32;
use super::wire::segment::{FIN, SYN, Segment};

/// What the stack does after a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing more.
    Done,
    /// The connection is gone.
    Gone,
    /// Answer the segment with an RST; the connection stays.
    Refuse,
    /// The segment opens a new connection in the place of this one, which was in TIME-WAIT.
    Reopen,
}

/// The parts of an arriving segment.
pub(crate) struct Arrival<'a> {
    pub(crate) segment: &'a Segment,
    pub(crate) payload: &'a [u8],
    /// The frame's number, and the payload's place in it.
    pub(crate) frame_index: u32,
    pub(crate) payload_start: usize,
}

impl Arrival<'_> {
    /// Sequence numbers that the segment takes (SEG.LEN).
    #[inline]
    pub(crate) fn length(&self) -> u32 {
        length32(self.payload.len())
            + u32::from(self.segment.has(SYN))
            + u32::from(self.segment.has(FIN))
    }
}
