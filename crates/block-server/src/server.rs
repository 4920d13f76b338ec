//! The application that each shard runs: requests parsed, queued, submitted and answered in turn.

mod requests;
mod upkeep;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dataplane::file::FileBuffer;
use dataplane::histogram::add;
use dataplane::{Application, Calls, Context, Event, FlowId, Time};

use crate::connection::{Connection, Phase};
use crate::counters::BlockCounters;
use crate::device::Storage;
use crate::execute::{Outcome, Pending, Reply};
use crate::nbd::request::{NbdRequest, RequestKind};
use crate::pool::{BufferPool, LINES, Room, Use};
pub use crate::shared::Shared;
use crate::tenants::Tenants;

/// Connections are to be looked at.
const LOOK_TOKEN: u64 = 1;
/// The next round of the schedulers is due.
const ROUND_TOKEN: u64 = 2;
/// A connection with so much under way is not held up by others: it fills a link of 10 Gbit/s with
/// a round trip of 3 ms.
const ENOUGH_BYTES: usize = 4 << 20;
/// Memory of the smallest request.
const BLOCK_BYTES: usize = 4096;
/// What a write of zeros may need, where the kernel cannot make a range zero.
const ZERO_FILL_BYTES: u64 = 1 << 20;

/// The server on one shard.
pub struct BlockService {
    pub(crate) shared: Arc<Shared>,
    pub(crate) shard: usize,
    pub(crate) connections: Vec<Option<Connection>>,
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
    pub(crate) tenants: Tenants,
    /// Reloads that the connections follow already.
    followed: u64,
    /// Requests that their tenant's queue had no room for.
    overflow: VecDeque<u32>,
    /// Requests whose turn it is.
    queue: VecDeque<u32>,
    pub(crate) pool: BufferPool,
    /// Connections whose own requests made room.
    resumable: Vec<FlowId>,
    /// Connections that wait for memory that others hold, in lines of [`BufferPool::line`].
    parked: [VecDeque<FlowId>; LINES],
    pub(crate) scratch: Vec<u8>,
    /// What comes after the data of an answer.
    pub(crate) trailer: Vec<u8>,
    is_looking: bool,
}

/// Whole blocks of memory.
pub(crate) fn pages(len_bytes: u64) -> usize {
    let len = usize::try_from(len_bytes).unwrap_or(usize::MAX / 2);
    len.next_multiple_of(BLOCK_BYTES)
}

/// Memory that a request holds from its header to the end of its answer.
pub(crate) fn memory_of(request: &NbdRequest, storage: &Storage) -> usize {
    match (request.kind, storage) {
        (RequestKind::Write, _) => pages(request.payload_bytes.into()),
        (RequestKind::Read, Storage::File(_)) => pages(request.len_bytes),
        (RequestKind::WriteZeroes, Storage::File(_)) => {
            pages(request.len_bytes.min(ZERO_FILL_BYTES))
        }
        _ => 0,
    }
}

impl BlockService {
    /// The application of one shard.
    pub fn new(shared: Arc<Shared>, shard: usize) -> Self {
        Self {
            pool: BufferPool::new(shared.memory_bytes),
            shard,
            connections: Vec::new(),
            pending: Vec::new(),
            free: Vec::new(),
            tenants: Tenants::new(),
            followed: shared.reloads(),
            overflow: VecDeque::new(),
            queue: VecDeque::new(),
            resumable: Vec::new(),
            parked: std::array::from_fn(|_| VecDeque::new()),
            scratch: Vec::new(),
            trailer: Vec::new(),
            is_looking: false,
            shared,
        }
    }

    pub(crate) fn counters(&self) -> &BlockCounters {
        &self.shared.counters[self.shard]
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.shared.is_draining.load(Ordering::Relaxed)
    }

    pub(crate) fn place(&mut self, connection: Connection) {
        let index = connection.flow.index as usize;
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
    }

    /// Takes a connection out of the table. [`BlockService::settle`] puts it back.
    pub(crate) fn take(&mut self, flow: FlowId) -> Option<Connection> {
        let slot = self.connections.get_mut(flow.index as usize)?;
        slot.take_if(|connection| connection.flow == flow)
    }

    /// Puts a connection back, ends it if it is to end, and remembers that it can go on.
    pub(crate) fn settle<C: Calls>(&mut self, mut connection: Connection, calls: &mut C) {
        let flow = connection.flow;
        if connection.has_finished && !connection.is_blocked && !connection.is_closing {
            connection.finish_input(&mut self.pool);
        }
        let ends = connection.is_closing || self.is_draining();
        if ends && connection.is_idle() && !connection.is_closed {
            connection.is_closed = true;
            if let Some(tls) = &mut connection.tls {
                tls.close(calls, flow);
            }
            calls.close(flow);
        }
        self.place(connection);
    }

    fn receive<C: Calls>(&mut self, flow: FlowId, data: &[u8], calls: &mut C, now: Time) {
        let Some(mut connection) = self.take(flow) else {
            return;
        };
        if let Some(tls) = &mut connection.tls {
            let received = tls.receive(data, &mut connection.carry);
            tls.flush(calls, flow);
            if let Err(error) = received {
                add(&self.counters().malformed, 1);
                self.shared.tls_failed(connection.peer, error.to_string());
                connection.is_closing = true;
                connection.carry.clear();
            } else {
                self.feed_carry(&mut connection, calls, now);
            }
            let untaken = connection.carry.len();
            let released = connection
                .tls
                .as_mut()
                .map_or(0, |tls| tls.release(untaken));
            calls.recv_done(flow, released);
            self.settle(connection, calls);
            return;
        }
        let done = if connection.carry.is_empty() {
            let done = self.feed(&mut connection, data, calls, now);
            connection.carry.extend_from_slice(&data[done..]);
            done
        } else {
            connection.carry.extend_from_slice(data);
            self.feed_carry(&mut connection, calls, now)
        };
        if connection.carry.is_empty() && connection.carry.capacity() > BLOCK_BYTES {
            // An idle connection holds no memory.
            connection.carry = Vec::new();
        }
        calls.recv_done(flow, done);
        Self::lend(&mut connection, calls);
        self.settle(connection, calls);
    }

    /// As [`BlockService::feed`], with the bytes that the connection has kept.
    fn feed_carry<C: Calls>(
        &mut self,
        connection: &mut Connection,
        calls: &mut C,
        now: Time,
    ) -> usize {
        let mut carry = std::mem::take(&mut connection.carry);
        let done = self.feed(connection, &carry, calls, now);
        carry.drain(..done);
        connection.carry = carry;
        done
    }

    /// Takes whole messages off `bytes`. Gives how many bytes it used.
    fn feed<C: Calls>(
        &mut self,
        connection: &mut Connection,
        bytes: &[u8],
        calls: &mut C,
        now: Time,
    ) -> usize {
        connection.is_short = false;
        if std::mem::take(&mut connection.is_blocked) {
            self.nvme_resume(connection, calls, now);
        }
        let mut at = 0;
        loop {
            if connection.is_closing || connection.is_closed {
                return bytes.len();
            }
            let rest = &bytes[at..];
            let (used, goes_on) = match &connection.phase {
                Phase::Handshake(_) => self.negotiate(connection, rest, calls),
                Phase::Request => self.request(connection, rest, calls, now),
                Phase::Payload { .. } => self.payload(connection, rest, now),
                Phase::Skip { .. } => self.skip(connection, rest, calls),
                Phase::Nvme(_) => self.nvme(connection, rest, calls, now),
            };
            at += used;
            if !goes_on {
                return at;
            }
        }
    }

    /// Puts a request into its tenant's queue.
    pub(crate) fn submit(&mut self, pending: Pending, now: Time) {
        let (tenant, request) = (pending.tenant, pending.request);
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.pending.push(None);
                u32::try_from(self.pending.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.pending[slot as usize] = Some(pending);
        if !self.tenants.enqueue(tenant, &request, slot, now) {
            // The queue had room when the request began, and many others came meanwhile.
            self.overflow.push_back(slot);
        }
    }

    /// Submits what is queued, and lets connections go on that have room again.
    fn work<C: Calls>(&mut self, calls: &mut C, now: Time) {
        loop {
            self.enqueue_overflow(now);
            self.tenants
                .round(now, &mut self.queue, &mut self.resumable);
            while let Some(slot) = self.queue.pop_front() {
                self.start(slot, calls, now);
            }
            if let Some(flow) = self.resumable.pop() {
                self.receive(flow, &[], calls, now);
            } else if !self.unpark(calls, now) {
                break;
            }
        }
    }

    /// Whether a request of the connection may have memory. If not, the connection goes on when one
    /// of its own requests has ended or, if none of them has memory, when others gave memory back.
    pub(crate) fn has_memory(
        &mut self,
        connection: &mut Connection,
        len_bytes: usize,
        wanted_for: Use,
    ) -> bool {
        let account = &connection.account;
        let room = self.pool.room(account, len_bytes, wanted_for);
        if room == Room::Free {
            return true;
        }
        connection.is_blocked = true;
        if room == Room::OthersFirst {
            connection.is_short = account.held_bytes() < ENOUGH_BYTES;
            if BufferPool::is_first(account, wanted_for) && !connection.is_parked {
                connection.is_parked = true;
                self.parked[BufferPool::line(account, wanted_for)].push_back(connection.flow);
            }
        }
        false
    }

    fn enqueue_overflow(&mut self, now: Time) {
        for _ in 0..self.overflow.len() {
            let Some(slot) = self.overflow.pop_front() else {
                return;
            };
            if let Some(pending) = &self.pending[slot as usize]
                && !self
                    .tenants
                    .enqueue(pending.tenant, &pending.request, slot, now)
            {
                self.overflow.push_back(slot);
            }
        }
    }

    /// Lets a connection go on that has waited longest in its line for memory. False if those of
    /// all lines still have to wait.
    fn unpark<C: Calls>(&mut self, calls: &mut C, now: Time) -> bool {
        for line in 0..LINES {
            let Some(flow) = self.parked[line].pop_front() else {
                continue;
            };
            if let Some(Some(connection)) = self.connections.get_mut(flow.index as usize)
                && connection.flow == flow
            {
                connection.is_parked = false;
            }
            let before = self.parked[line].len();
            self.receive(flow, &[], calls, now);
            let parked = &mut self.parked[line];
            let is_back = parked.len() > before && parked.back() == Some(&flow);
            if !is_back || !self.queue.is_empty() {
                return true;
            }
            // It keeps its turn.
            parked.rotate_right(1);
        }
        false
    }

    fn start<C: Calls>(&mut self, slot: u32, calls: &mut C, now: Time) {
        let Some(pending) = self.pending[slot as usize].as_mut() else {
            return;
        };
        pending.submitted = now;
        if let Some(outcome) = pending.start(slot.into(), calls, &mut self.pool) {
            self.finish(slot, outcome, calls);
        }
    }

    fn on_file<C: Calls>(
        &mut self,
        token: u64,
        result: Result<usize, i32>,
        buffer: FileBuffer,
        calls: &mut C,
    ) {
        let slot = usize::try_from(token).unwrap_or(usize::MAX);
        let Some(Some(pending)) = self.pending.get_mut(slot) else {
            return;
        };
        pending.buffer = buffer;
        if let Some(outcome) = pending.completed(token, result, calls, &mut self.pool) {
            self.finish(u32::try_from(slot).unwrap_or(u32::MAX), outcome, calls);
        }
    }

    fn finish<C: Calls>(&mut self, slot: u32, outcome: Outcome, calls: &mut C) {
        let Some(pending) = self.pending[slot as usize].take() else {
            return;
        };
        self.free.push(slot);
        self.count(&pending, &outcome);
        let Some(mut connection) = self.take(pending.flow) else {
            self.pool.give(pending.buffer);
            self.pool.release_orphan(pending.reserved_bytes);
            return;
        };
        match pending.reply {
            Reply::Nbd(address) => {
                self.nbd_finish(&mut connection, address, pending, outcome, calls);
            }
            Reply::Nvme { .. } => self.nvme_finish(&mut connection, pending, outcome, calls),
        }
        if connection.is_blocked && !connection.is_parked {
            self.resumable.push(connection.flow);
        }
        self.settle(connection, calls);
    }

    fn count(&mut self, pending: &Pending, outcome: &Outcome) {
        let stats = &pending.export.stats[self.shard];
        let request = &pending.request;
        let now = Time::now();
        let took_ns = now.since_ns(pending.begun);
        let on_device_ns = now.since_ns(pending.submitted);
        self.tenants
            .completed(pending.tenant, request, took_ns, on_device_ns);
        if let Outcome::Failed(..) = outcome {
            add(&stats.errors, 1);
            return;
        }
        match request.kind {
            RequestKind::Read => {
                add(&stats.reads, 1);
                add(&stats.read_bytes, request.len_bytes);
                stats.read_ns.record(took_ns, 1);
            }
            RequestKind::Write | RequestKind::WriteZeroes | RequestKind::Trim => {
                add(&stats.writes, 1);
                add(&stats.written_bytes, request.len_bytes);
                stats.write_ns.record(took_ns, 1);
            }
            RequestKind::Flush => add(&stats.flushes, 1),
            _ => {}
        }
    }
}

impl Application for BlockService {
    /// Connections stay on the shard that accepted them: their requests are under way there.
    type FlowState = ();

    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>) {
        let now = context.now();
        self.follow(context.calls, now);
        match event {
            Event::Recv { flow, data } => self.receive(flow, data, context.calls, now),
            Event::File {
                token,
                result,
                buffer,
                ..
            } => self.on_file(token, result, buffer, context.calls),
            Event::Filled {
                flow,
                buffer,
                len_bytes,
            } => self.filled(flow, buffer, len_bytes, context.calls, now),
            Event::Sent { flow } => {
                if let Some(mut connection) = self.take(flow) {
                    connection.pump(context.calls, &mut self.pool);
                    if connection.is_blocked && !connection.is_parked {
                        self.resumable.push(flow);
                    }
                    self.settle(connection, context.calls);
                }
            }
            Event::Knock {
                flow,
                listener,
                peer,
            } => {
                self.knock(flow, listener, peer.map(|peer| peer.ip()), context.calls);
            }
            Event::PeerFinished { flow } => {
                if let Some(mut connection) = self.take(flow) {
                    connection.has_finished = true;
                    if connection.is_blocked && matches!(connection.phase, Phase::Request) {
                        self.feed_carry(&mut connection, context.calls, now);
                    }
                    self.settle(connection, context.calls);
                }
            }
            Event::Dead { flow, .. } => {
                if let Some(connection) = self.take(flow) {
                    if let Phase::Nvme(queue) = &connection.phase {
                        self.nvme_gone(queue);
                    }
                    if let Some(session) = &connection.session {
                        self.tenants.close(session.tenant);
                    }
                    connection.abandon(&mut self.pool);
                }
            }
            Event::Timer { token: LOOK_TOKEN } => self.look(context),
            // The work at the end of the batch is what the timer is for.
            Event::Timer { .. } => {}
            Event::Connected { .. } => {}
        }
    }

    fn on_batch_end<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        if !self.is_looking {
            self.is_looking = true;
            self.look(context);
        }
        let now = context.now();
        self.follow(context.calls, now);
        self.work(context.calls, now);
        let requests = self.pool.requests() as u64;
        self.counters().requests.store(requests, Ordering::Relaxed);
        if let Some(due_ns) = self.tenants.due_ns() {
            context.set_timer(ROUND_TOKEN, Duration::from_nanos(due_ns));
        }
    }

    fn on_drain<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        self.shared.is_draining.store(true, Ordering::Relaxed);
        for connection in self.connections.iter_mut().flatten() {
            if connection.is_idle() && !connection.is_closed {
                connection.is_closed = true;
                context.calls.close(connection.flow);
            }
        }
    }

    fn detach(&mut self, _: FlowId) {}

    fn attach<C: Calls>(&mut self, flow: FlowId, (): (), context: &mut Context<'_, C>) {
        context.calls.close(flow);
    }
}
