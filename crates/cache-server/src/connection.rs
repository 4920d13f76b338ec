//! One client's connection: what it has sent so far, and the value that it is sending.

use dataplane::FlowId;

use crate::store::{Mode, PENDING_FREE_BYTES, Reserved};

/// Commands up to this size, with their data block, are kept until they are whole. Larger blocks
/// are received into the item's own memory.
pub(crate) const WHOLE_MAX_BYTES: usize = PENDING_FREE_BYTES;

/// What became of one step of a connection.
pub(crate) enum Step {
    /// So many bytes are done.
    Done(usize),
    /// More bytes have to come.
    Incomplete,
    /// No room for the answer.
    Blocked,
}

/// How a received value is stored.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) mode: Mode,
    pub(crate) compare: Option<u64>,
    pub(crate) is_quiet: bool,
    /// The line of a meta command, whose answer repeats parts of it.
    pub(crate) meta_line: Option<Box<[u8]>>,
}

/// What the connection waits for.
#[derive(Debug)]
pub(crate) enum Phase {
    /// A command line.
    Command,
    /// The rest of a large value.
    Value {
        partition: usize,
        reserved: Reserved,
        filled_bytes: usize,
        len_bytes: usize,
        commit: Commit,
    },
    /// The rest of a data block that nobody wants.
    Skip { left_bytes: usize },
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    pub(crate) flow: FlowId,
    /// Received bytes that are no whole command yet.
    pub(crate) carry: Vec<u8>,
    pub(crate) phase: Phase,
    /// In a retrieval that found no room for all answers: where in its line to go on.
    pub(crate) resume_at: usize,
    /// No room for answers: nothing is executed until there is.
    pub(crate) is_blocked: bool,
    pub(crate) is_closing: bool,
    /// The client sends no more: close when all is answered.
    pub(crate) has_finished: bool,
    /// Second of the last command.
    pub(crate) active_at: u32,
}

impl Connection {
    pub(crate) fn new(flow: FlowId, now: u32) -> Self {
        Self {
            flow,
            carry: Vec::new(),
            phase: Phase::Command,
            resume_at: 0,
            is_blocked: false,
            is_closing: false,
            has_finished: false,
            active_at: now,
        }
    }

    /// Whether no command of the client is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.carry.is_empty() && matches!(self.phase, Phase::Command) && !self.is_blocked
    }
}
