//! Records that one side writes: straight into the ring, or into memory of its own while the ring
//! is full. The protocol bounds what may wait.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use super::Violation;
use super::ring::{Record, Writer};

/// What a waiting record costs beside its payload, in bytes.
const RECORD_BYTES: usize = size_of::<(Record, Box<[u8]>)>();

#[derive(Debug)]
pub(super) struct Outbox {
    writer: Writer,
    waiting: VecDeque<(Record, Box<[u8]>)>,
    waiting_bytes: usize,
    /// Wakes the other side.
    wake: OwnedFd,
    /// What the other side did. From then on nothing is written.
    violation: Option<Violation>,
}

impl Outbox {
    pub(super) fn new(writer: Writer, wake: OwnedFd) -> Outbox {
        Outbox {
            writer,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            wake,
            violation: None,
        }
    }

    /// Writes a record, now or when there is room.
    pub(super) fn push(&mut self, record: Record, payload: &[u8]) {
        if self.violation.is_some() {
            return;
        }
        if self.waiting.is_empty() {
            match self.writer.write(record, payload) {
                Ok(true) => return,
                Ok(false) => {}
                Err(violation) => return self.break_off(violation),
            }
        }
        self.waiting_bytes += RECORD_BYTES + payload.len();
        self.waiting.push_back((record, payload.into()));
    }

    /// Writes what waited for room, as far as there is some, and shows the other side all that was
    /// written.
    ///
    /// # Errors
    /// What the other side did, now or before.
    pub(super) fn flush(&mut self) -> Result<(), Violation> {
        while let Some((record, payload)) = self.waiting.front() {
            match self.writer.write(*record, payload) {
                Ok(true) => {}
                Ok(false) => break,
                Err(violation) => {
                    self.break_off(violation);
                    break;
                }
            }
            self.waiting_bytes -= RECORD_BYTES + payload.len();
            self.waiting.pop_front();
        }
        if self.writer.publish() {
            // The counter can only be full when a wake-up is on its way.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
        self.violation.map_or(Ok(()), Err)
    }

    /// Whether everything is in the ring.
    pub(super) fn is_clear(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Memory of the records that wait for room.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Notes the first thing that the other side did and may not do.
    pub(super) fn break_off(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
        self.waiting.clear();
        self.waiting_bytes = 0;
    }
}
