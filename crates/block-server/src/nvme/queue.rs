//! One connection of a host: an admin queue or an I/O queue.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dataplane::Time;

use super::admin::Admin;
use super::command::{self, Status, SubmissionEntry};
use super::connect::Connected;
use super::controller::{ErrorEntry, NvmeController};
use super::link::Link;
use super::numbers::Namespaces;
use super::pdu;
use crate::export::Export;
use crate::nbd::request::NbdRequest;
use crate::pool::BufferPool;

/// What a connection is.
pub(crate) enum Role {
    /// No Connect command came yet.
    New,
    /// The admin queue of a controller.
    Admin(Box<Admin>),
    /// An I/O queue of a controller.
    Io {
        controller: Arc<NvmeController>,
        number: u16,
    },
}

/// A command that waits for memory, or for room in its tenant's queue.
pub(crate) struct Waiting {
    pub(crate) entry: SubmissionEntry,
    /// Bytes that the host will be asked for.
    pub(crate) payload_bytes: usize,
    pub(crate) reserved_bytes: usize,
    pub(crate) tenant: Option<u32>,
}

/// Ranges of one command that are deallocated one after the other.
pub(crate) struct Batch {
    pub(crate) cid: u16,
    /// What is still to be done, last first.
    pub(crate) left: Vec<NbdRequest>,
}

/// One connection.
pub(crate) struct Queue {
    pub(crate) link: Link,
    pub(crate) role: Role,
    entries: u16,
    /// The head of the submission queue; `None`: the host does not want to know.
    head: Option<u16>,
    pub(crate) waiting: VecDeque<Waiting>,
    /// The namespaces as the connection knows them.
    pub(crate) seen: Arc<Namespaces>,
    /// Namespaces in use, with their tenants on this shard.
    pub(crate) opened: HashMap<u32, (Arc<Export>, u32)>,
    pub(crate) batches: Vec<Batch>,
}

impl Queue {
    /// A new connection.
    pub(crate) fn new(namespaces: Arc<Namespaces>) -> Self {
        Self {
            link: Link::new(),
            role: Role::New,
            entries: 1,
            head: Some(0),
            waiting: VecDeque::new(),
            seen: namespaces,
            opened: HashMap::new(),
            batches: Vec::new(),
        }
    }

    /// The Connect command succeeded.
    pub(crate) fn become_queue(&mut self, connected: Connected) {
        self.entries = connected.entries;
        self.head = connected.has_flow_control.then_some(0);
        self.role = if connected.queue == 0 {
            Role::Admin(Box::new(Admin::new(connected.controller)))
        } else {
            Role::Io {
                controller: connected.controller,
                number: connected.queue,
            }
        };
    }

    /// Whether no Connect command came yet.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.role, Role::New)
    }

    /// Commands at most that have not been answered.
    pub(crate) fn entries(&self) -> usize {
        self.entries.into()
    }

    /// The controller, once there is one.
    pub(crate) fn controller(&self) -> Option<&Arc<NvmeController>> {
        match &self.role {
            Role::New => None,
            Role::Admin(admin) => Some(&admin.controller),
            Role::Io { controller, .. } => Some(controller),
        }
    }

    /// A command came: the host lives.
    pub(crate) fn heard(&self, now: Time) {
        if let Some(controller) = self.controller() {
            controller.heard_ns.store(now.0, Ordering::Relaxed);
        }
    }

    /// Whether data may say that the command succeeded. The specification allows that where the
    /// host does not follow the queue's head.
    pub(crate) fn saves_completions(&self) -> bool {
        self.head.is_none()
    }

    /// Writes a completion.
    pub(crate) fn complete(
        &mut self,
        (cid, result, status): (u16, u64, Status),
        out: &mut Vec<u8>,
    ) {
        let head = match &mut self.head {
            Some(head) => {
                *head = (*head + 1) % self.entries;
                *head
            }
            None => u16::MAX,
        };
        let completion = command::completion(result, head, cid, status);
        pdu::response(&completion, self.link.digests(), out);
    }

    /// Remembers an error for the log page.
    pub(crate) fn note_error(&self, entry: &SubmissionEntry, status: Status) {
        let queue = match &self.role {
            Role::Io { number, .. } => *number,
            _ => 0,
        };
        if let Some(controller) = self.controller() {
            controller.note_error(ErrorEntry {
                count: 0,
                queue,
                cid: entry.cid(),
                status,
                block: if queue > 0 { entry.u64_at(40) } else { 0 },
                namespace: entry.namespace(),
            });
        }
    }

    /// The host sends no more. Gives the memory that was reserved for each command whose data are
    /// missing.
    pub(crate) fn finish_input(&mut self, pool: &mut BufferPool) -> Vec<usize> {
        self.waiting.clear();
        self.link.abandon(pool)
    }
}
