//! The table of flows of one io_uring shard, and the batched calls on them.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::net::{SendAncillaryBuffer, SendFlags};

use super::socket;
use crate::api::{Calls, DeadReason, FlowId, ListenerId};
use crate::file::{FileBuffer, FileOperation};

/// Bytes of a send buffer that is kept for reuse; larger ones go back to the allocator. A buffer of
/// a batch of disk reads has some hundred KiB, and a new one costs a page fault for every page.
const KEPT_BYTES: usize = 2 << 20;
/// Bytes of all kept send buffers. More are in use only while many sends are under way.
const KEPT_BYTES_ALL: usize = 16 << 20;
/// Sends of at least so many bytes are handed to the kernel at once, as far as the socket has room.
/// A system call of their own costs less than their copy into a send buffer.
const DIRECT_BYTES: usize = 32 * 1024;
/// Bytes that every flow may queue, whatever the others have queued.
pub(super) const RESERVE_BYTES: usize = 4096;

/// The life of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The slot is unused.
    Free,
    /// A connect is under way.
    Connecting,
    /// The application has not yet accepted or rejected it.
    Knocking,
    /// Established.
    Open,
    /// To be closed: when what is queued was sent, or at once.
    Closing {
        reason: DeadReason,
        is_at_once: bool,
    },
}

/// Receiving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receive {
    /// No receive is under way.
    Idle,
    /// A multishot receive is under way.
    Armed,
    /// The receive is being cancelled.
    Cancelling,
    /// A receive into [`Flow::lent`] is under way.
    Lent,
}

/// Memory of the application, for the bytes that arrive next.
pub(super) struct Lent {
    pub(super) buffer: FileBuffer,
    /// Where the next byte goes.
    pub(super) at: usize,
    pub(super) end: usize,
    pub(super) filled_bytes: usize,
}

impl Lent {
    /// Takes what fits of `data`, and gives how much that is.
    pub(super) fn fill(&mut self, data: &[u8]) -> usize {
        let len_bytes = data.len().min(self.end - self.at);
        self.buffer.bytes_mut()[self.at..self.at + len_bytes].copy_from_slice(&data[..len_bytes]);
        self.advance(len_bytes);
        len_bytes
    }

    pub(super) fn advance(&mut self, len_bytes: usize) {
        self.at += len_bytes;
        self.filled_bytes += len_bytes;
    }
}

/// After memory was lent, so many receives take one buffer only: what would be received beyond it
/// might belong into lent memory.
const SINGLE_RECEIVES: u8 = 16;

/// One flow.
pub(super) struct Flow {
    pub(super) generation: u32,
    pub(super) state: State,
    pub(super) socket: Option<OwnedFd>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) listener: ListenerId,
    pub(super) group: u16,
    pub(super) receive: Receive,
    pub(super) has_finished: bool,
    pub(super) is_departing: bool,
    pub(super) is_dirty: bool,
    pub(super) is_waiting: bool,
    /// The kernel finds the socket among the registered ones, in the flow's place.
    pub(super) is_registered: bool,
    /// The flow was told of room because its queue was empty, and has queued nothing since.
    pub(super) was_told_empty: bool,
    /// Bytes handed to the application that it is not done with.
    pub(super) held_bytes: usize,
    /// Where the next bytes go, if not into a buffer of the ring.
    pub(super) lent: Option<Lent>,
    /// Receives that take one buffer only, from now on.
    pub(super) single_receives: u8,
    /// Bytes to send after those in flight.
    pub(super) pending: Vec<u8>,
    /// Bytes that the kernel is sending, and how many of them it has taken.
    pub(super) in_flight: Vec<u8>,
    pub(super) taken_bytes: usize,
    pub(super) is_sending: bool,
    /// A zero-copy send whose memory the kernel still reads.
    pub(super) is_lent: bool,
    /// The address of a connect under way.
    pub(super) address: Option<Box<(libc::sockaddr_storage, libc::socklen_t)>>,
    /// Turn of the clock sweep in which the flow last made progress in sending.
    pub(super) progress: u32,
}

impl Flow {
    fn empty(generation: u32) -> Self {
        Self {
            generation,
            state: State::Free,
            socket: None,
            peer: None,
            listener: ListenerId(0),
            group: 0,
            receive: Receive::Idle,
            has_finished: false,
            is_departing: false,
            is_dirty: false,
            is_waiting: false,
            is_registered: false,
            was_told_empty: false,
            held_bytes: 0,
            lent: None,
            single_receives: 0,
            pending: Vec::new(),
            in_flight: Vec::new(),
            taken_bytes: 0,
            is_sending: false,
            is_lent: false,
            address: None,
            progress: 0,
        }
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.pending.len() + self.in_flight.len() - self.taken_bytes
    }

    /// Whether the kernel knows no request of this flow.
    pub(super) fn is_quiet(&self) -> bool {
        self.receive == Receive::Idle && !self.is_sending && !self.is_lent && self.address.is_none()
    }
}

/// Bounds of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) flows_max: usize,
    pub(super) receive_window_bytes: usize,
    pub(super) send_queue_bytes: usize,
    pub(super) send_memory_bytes: usize,
}

/// An event that the backend itself made, not a completion.
#[derive(Debug, Clone, Copy)]
pub(super) enum Local {
    Knock(FlowId),
    Room(FlowId),
    Dead(FlowId, DeadReason),
}

/// The flows and the calls collected on them.
pub struct UringCalls {
    pub(super) flows: Vec<Flow>,
    free: Vec<u32>,
    pub(super) live: usize,
    pub(super) bounds: Bounds,
    /// Flows with something to do at the next flush.
    pub(super) dirty: Vec<u32>,
    /// Flows that wait for room in their queue.
    pub(super) waiting: Vec<u32>,
    pub(super) locals: std::collections::VecDeque<Local>,
    /// Places whose registered socket belongs to a flow that is gone.
    pub(super) stale_places: Vec<u32>,
    /// Bytes queued by all flows.
    pub(super) queued_bytes: usize,
    kept: Vec<Vec<u8>>,
    kept_bytes: usize,
    pub(super) sweep: u32,
    pub(super) files: super::files::Files,
}

impl UringCalls {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            flows: Vec::new(),
            free: Vec::new(),
            live: 0,
            bounds,
            dirty: Vec::new(),
            waiting: Vec::new(),
            locals: std::collections::VecDeque::new(),
            stale_places: Vec::new(),
            queued_bytes: 0,
            kept: Vec::new(),
            kept_bytes: 0,
            sweep: 0,
            files: super::files::Files::default(),
        }
    }

    /// A free slot, or `None` if the table is full.
    pub(super) fn take_slot(&mut self) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.flows.len() < self.bounds.flows_max => {
                self.flows.push(Flow::empty(0));
                u32::try_from(self.flows.len() - 1).ok()?
            }
            None => return None,
        };
        self.live += 1;
        Some(index)
    }

    /// Ends the use of a slot. The socket is closed.
    pub(super) fn free_slot(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        let generation = flow.generation.wrapping_add(1);
        let queued = flow.queued_bytes();
        let mut old = std::mem::replace(flow, Flow::empty(generation));
        // The slot may still be in these lists: a later owner of the slot only gains a look at it.
        flow.is_dirty = old.is_dirty;
        flow.is_waiting = old.is_waiting;
        if old.is_registered {
            self.stale_places.push(index);
        }
        self.queued_bytes -= queued;
        self.keep(std::mem::take(&mut old.pending));
        self.keep(std::mem::take(&mut old.in_flight));
        self.free.push(index);
        self.live -= 1;
    }

    /// Takes a send buffer back for reuse.
    pub(super) fn keep(&mut self, mut buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        if (1..=KEPT_BYTES).contains(&bytes) && self.kept_bytes + bytes <= KEPT_BYTES_ALL {
            buffer.clear();
            self.kept_bytes += bytes;
            self.kept.push(buffer);
        }
    }

    pub(super) fn id(&self, index: u32) -> FlowId {
        FlowId {
            index,
            generation: self.flows[index as usize].generation,
        }
    }

    pub(super) fn get(&mut self, flow: FlowId) -> Option<&mut Flow> {
        self.flows
            .get_mut(flow.index as usize)
            .filter(|found| found.generation == flow.generation && found.state != State::Free)
    }

    pub(super) fn mark_dirty(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        if !flow.is_dirty {
            flow.is_dirty = true;
            self.dirty.push(index);
        }
    }

    /// Begins the end of a flow, for `reason`. The application hears of it when the kernel knows
    /// no more request of the flow.
    pub(super) fn begin_close(&mut self, flow: FlowId, reason: DeadReason, is_at_once: bool) {
        let Some(found) = self.get(flow) else { return };
        match found.state {
            State::Closing {
                is_at_once: true, ..
            } => return,
            State::Closing { .. } if !is_at_once => return,
            _ => {}
        }
        found.state = State::Closing { reason, is_at_once };
        self.mark_dirty(flow.index);
    }

    fn space_bytes(&self, flow: &Flow) -> usize {
        let queued = flow.queued_bytes();
        let own = self.bounds.send_queue_bytes.saturating_sub(queued);
        let all = self
            .bounds
            .send_memory_bytes
            .saturating_sub(self.queued_bytes);
        own.min(all.max(RESERVE_BYTES.saturating_sub(queued)))
    }

    /// Whether a flow that waits for room has enough of it to be told.
    pub(super) fn has_room(&self, flow: &Flow) -> bool {
        self.space_bytes(flow) >= self.bounds.send_queue_bytes / 2
            || (flow.queued_bytes() == 0 && !flow.was_told_empty)
    }

    /// Sends what the socket takes now of `data`, after what is queued before it. Gives how many
    /// bytes of `data` it took. Whatever is wrong with the socket shows at the next send.
    fn send_directly(&mut self, index: u32, data: &[u8]) -> usize {
        let sweep = self.sweep;
        let flow = &mut self.flows[index as usize];
        if flow.is_sending || flow.is_lent || flow.is_departing || !flow.in_flight.is_empty() {
            return 0;
        }
        let Some(socket) = &flow.socket else { return 0 };
        let pieces = [IoSlice::new(&flow.pending), IoSlice::new(data)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let none = &mut SendAncillaryBuffer::default();
        let Ok(sent) = rustix::net::sendmsg(socket, &pieces, none, flags) else {
            return 0;
        };
        flow.progress = sweep;
        let of_pending = sent.min(flow.pending.len());
        flow.pending.drain(..of_pending);
        self.queued_bytes -= of_pending;
        sent - of_pending
    }

    fn wait_for_room(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        if !flow.is_waiting {
            flow.is_waiting = true;
            self.waiting.push(index);
        }
    }
}

impl Calls for UringCalls {
    fn connect(&mut self, peer: SocketAddr) -> Option<FlowId> {
        let socket = socket::stream(peer).ok()?;
        rustix::net::sockopt::set_tcp_nodelay(&socket, true).ok()?;
        let index = self.take_slot()?;
        let flow = &mut self.flows[index as usize];
        flow.state = State::Connecting;
        flow.socket = Some(socket);
        flow.peer = Some(peer);
        flow.group = crate::groups::group_of(Some(peer), index);
        self.mark_dirty(index);
        Some(self.id(index))
    }

    fn accept(&mut self, flow: FlowId) {
        if let Some(found) = self.get(flow)
            && found.state == State::Knocking
        {
            found.state = State::Open;
            self.mark_dirty(flow.index);
        }
    }

    fn reject(&mut self, flow: FlowId) {
        if let Some(found) = self.get(flow)
            && found.state == State::Knocking
        {
            if let Some(socket) = &found.socket {
                socket::reset_on_close(socket.as_fd());
            }
            self.free_slot(flow.index);
        }
    }

    fn send(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let Some(found) = self.flows.get(flow.index as usize) else {
            return 0;
        };
        if found.generation != flow.generation || found.state != State::Open {
            return 0;
        }
        let direct = match data.len() {
            DIRECT_BYTES.. => self.send_directly(flow.index, data),
            _ => 0,
        };
        let data = &data[direct..];
        if data.is_empty() {
            return direct;
        }
        let accepted = data
            .len()
            .min(self.space_bytes(&self.flows[flow.index as usize]));
        let found = &mut self.flows[flow.index as usize];
        if found.pending.capacity() == 0
            && let Some(buffer) = self.kept.pop()
        {
            self.kept_bytes -= buffer.capacity();
            found.pending = buffer;
        }
        found.pending.extend_from_slice(&data[..accepted]);
        found.was_told_empty = false;
        self.queued_bytes += accepted;
        if !found.is_dirty {
            found.is_dirty = true;
            self.dirty.push(flow.index);
        }
        if accepted < data.len() {
            self.wait_for_room(flow.index);
        }
        direct + accepted
    }

    fn send_space_bytes(&mut self, flow: FlowId) -> usize {
        let Some(found) = self.flows.get(flow.index as usize) else {
            return 0;
        };
        if found.generation != flow.generation || found.state != State::Open {
            return 0;
        }
        let space = self.space_bytes(found);
        if space < self.bounds.send_queue_bytes / 2 {
            self.wait_for_room(flow.index);
        }
        space
    }

    fn receive_into(
        &mut self,
        flow: FlowId,
        buffer: FileBuffer,
        at: usize,
        len_bytes: usize,
    ) -> Result<(), FileBuffer> {
        let end = buffer.len_bytes().min(at.saturating_add(len_bytes));
        match self.get(flow) {
            Some(found) if found.state == State::Open && found.lent.is_none() && at < end => {
                found.lent = Some(Lent {
                    buffer,
                    at,
                    end,
                    filled_bytes: 0,
                });
                found.single_receives = SINGLE_RECEIVES;
                self.mark_dirty(flow.index);
                Ok(())
            }
            _ => Err(buffer),
        }
    }

    fn recv_done(&mut self, flow: FlowId, len_bytes: usize) {
        let window = self.bounds.receive_window_bytes;
        let Some(found) = self.get(flow) else { return };
        found.held_bytes = found.held_bytes.saturating_sub(len_bytes);
        if found.receive == Receive::Idle && found.held_bytes < window {
            self.mark_dirty(flow.index);
        }
    }

    fn close(&mut self, flow: FlowId) {
        self.begin_close(flow, DeadReason::Closed, false);
    }

    fn abort(&mut self, flow: FlowId) {
        if let Some(found) = self.get(flow)
            && let Some(socket) = &found.socket
        {
            socket::reset_on_close(socket.as_fd());
        }
        self.begin_close(flow, DeadReason::Aborted, true);
    }

    fn file(&mut self, operation: FileOperation) -> Result<(), FileOperation> {
        self.files.add(operation)
    }
}
