//! Answers, put together in a small buffer on the stack and queued on the flow.

use dataplane::{Calls, FlowId};

use crate::counters::{CacheCounters, count};
use crate::protocol::Digits;
use crate::store::StoreError;

/// Room that a command's answer needs at most, beside values: `stats` takes more and asks itself.
pub(crate) const ANSWER_MAX_BYTES: usize = 3 * 1024;
const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(crate) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";

/// Where answers to one flow go.
pub struct Answers<'a, C: Calls> {
    /// The batched calls.
    pub calls: &'a mut C,
    /// The flow.
    pub flow: FlowId,
    /// The shard's counters.
    pub counters: &'a CacheCounters,
}

impl<C: Calls> Answers<'_, C> {
    /// Queues bytes. The caller made sure that there is room ([`Answers::has_room`]).
    pub fn send(&mut self, data: &[u8]) {
        let sent = self.calls.send(self.flow, data);
        count(&self.counters.bytes_written, sent as u64);
    }

    /// Queues an answer, unless the client wants none.
    pub fn send_unless(&mut self, is_quiet: bool, data: &[u8]) {
        if !is_quiet {
            self.send(data);
        }
    }

    /// Whether so many bytes can be queued. If not, the flow hears when there is room.
    pub fn has_room(&mut self, len_bytes: usize) -> bool {
        self.calls.send_space_bytes(self.flow) >= len_bytes
    }
}

/// Says why a value is not stored.
pub(crate) fn answer_error<C: Calls>(answers: &mut Answers<'_, C>, error: StoreError) {
    let (counter, answer) = match error {
        StoreError::TooLarge => (&answers.counters.store_too_large, TOO_LARGE),
        StoreError::OutOfMemory => (&answers.counters.store_no_memory, OUT_OF_MEMORY),
    };
    count(counter, 1);
    answers.send(answer);
}

/// A line under construction: at most a key, a few numbers, and words.
pub struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Line {
    /// An empty line.
    pub fn new() -> Self {
        Self {
            bytes: [0; 512],
            len: 0,
        }
    }

    /// Adds text. What does not fit is left out; no line of the protocol is that long.
    pub fn text(&mut self, text: &[u8]) -> &mut Self {
        let end = (self.len + text.len()).min(self.bytes.len());
        let taken = end - self.len;
        self.bytes[self.len..end].copy_from_slice(&text[..taken]);
        self.len = end;
        self
    }

    /// Adds a number.
    pub fn number(&mut self, number: u64) -> &mut Self {
        self.text(Digits::new().write(number))
    }

    /// The line so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}
