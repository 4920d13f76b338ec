//! The backend of the stack's process: it carries the events of another backend to the ring, and
//! the application's commands to that backend. The shard's own application gets no events.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::message::{Command, Report, address};
use super::outbox::Outbox;
use super::ring::{PAYLOAD_MAX_BYTES, Reader, Record};
use super::{Ends, Limits, Rings, Side, Violation, broken, drain};
use crate::api::{Application, Calls, Context, DeadReason, Event, FlowId, ListenerId, Time};
use crate::backend::{Backend, Polled};
use crate::error::Error;

/// Commands that are taken in one turn, so that the interface is not kept waiting.
const COMMANDS_MAX: usize = 256;
/// How often a full ring of events is looked at while there is nothing else to do.
const FULL: Duration = Duration::from_millis(1);
/// How often what the stack had no memory for is offered again. Its own event comes when the peer
/// acknowledges something, and a peer that reads nothing does not.
const OFFER: Duration = Duration::from_millis(10);
/// Memory of events that wait for room: what one turn brings at most, of 64 packets of 64 KiB and
/// what had come out of order before them.
const TURN_MAX_BYTES: usize = 64 << 20;
/// And what each flow may have to say without a frame: that it ended, or that there is room.
const FLOW_MAX_BYTES: usize = 256;

/// Calls that know how much of a flow's queue is still there.
pub trait Queued: Calls {
    /// Bytes that a flow has queued and that its peer has not acknowledged.
    fn queued_bytes(&self, flow: FlowId) -> usize;
}

/// The application of a shard in the process of the TCP stack: it gets no events.
#[derive(Debug)]
pub struct NoApplication;

impl Application for NoApplication {
    type FlowState = ();

    fn on_event<C: Calls>(&mut self, _event: Event<'_>, _context: &mut Context<'_, C>) {}

    fn detach(&mut self, _flow: FlowId) {}

    fn attach<C: Calls>(&mut self, _flow: FlowId, _state: (), _context: &mut Context<'_, C>) {}
}

/// One shard's network in the process of the TCP stack.
#[derive(Debug)]
pub struct StackSide<B: Backend> {
    backend: B,
    relay: Relay,
    reader: Reader,
    wake: OwnedFd,
    payload: Vec<u8>,
}

#[derive(Debug)]
struct Relay {
    outbox: Outbox,
    limits: Limits,
    flows: Vec<Option<Flow>>,
    /// Bytes in the backlogs of all flows.
    backlog_bytes: usize,
    /// Flows with a backlog.
    backlogged: Vec<FlowId>,
    offered_next: Time,
}

/// A flow that the application knows.
#[derive(Debug, Default)]
struct Flow {
    generation: u32,
    /// Bytes that the application has queued since the flow's start.
    accepted: u64,
    /// Those of them for which the stack has no memory yet.
    backlog: VecDeque<u8>,
    /// The flow is on the list of those with a backlog.
    is_listed: bool,
    /// Bytes that the application has received and is not done with.
    held: u64,
    /// The application waits for room.
    is_asking: bool,
    /// The application has closed the flow.
    is_closing: bool,
}

impl<B: Backend> StackSide<B> {
    /// The stack's side of two rings, in front of a backend that serves.
    ///
    /// # Errors
    /// The memory cannot be mapped, or the wake-up cannot be watched.
    pub fn new(mut backend: B, rings: Rings, limits: Limits) -> Result<StackSide<B>, Error> {
        let Ends {
            writer,
            reader,
            wake_other,
            wake,
        } = rings.ends(Side::Stack)?;
        backend.watch(wake.as_fd())?;
        Ok(StackSide {
            backend,
            relay: Relay {
                outbox: Outbox::new(writer, wake_other),
                limits,
                flows: Vec::new(),
                backlog_bytes: 0,
                backlogged: Vec::new(),
                offered_next: Time::default(),
            },
            reader,
            wake,
            payload: Vec::new(),
        })
    }

    /// The backend that serves.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }
}

impl Relay {
    /// A flow that the application knows and that has not ended.
    fn get(&mut self, flow: FlowId) -> Option<&mut Flow> {
        let found = self.flows.get_mut(flow.index as usize)?.as_mut();
        found.filter(|found| found.generation == flow.generation)
    }

    fn report(&mut self, flow: FlowId, report: Report, payload: &[u8]) {
        self.outbox.push(report.record(flow), payload);
    }

    /// Carries out a command.
    fn obey<C: Queued>(
        &mut self,
        record: &Record,
        payload: &[u8],
        calls: &mut C,
    ) -> Result<(), Violation> {
        let flow = record.flow;
        let command = Command::of(record, payload)?;
        if flow.index as usize >= self.limits.flows_max {
            return Err(Violation::Flow);
        }
        let limits = self.limits;
        let Some(found) = self.get(flow) else {
            // The flow has ended meanwhile, or the application rejects it a second time.
            return Ok(());
        };
        match command {
            Command::Send => {
                if found.is_closing {
                    return Err(Violation::Content);
                }
                let queued = calls.queued_bytes(flow) + found.backlog.len();
                if queued + payload.len() > limits.queue_bytes {
                    return Err(Violation::Credit);
                }
                let taken = match found.backlog.is_empty() {
                    true => calls.send(flow, payload),
                    false => 0,
                };
                found.accepted += payload.len() as u64;
                found.backlog.extend(&payload[taken..]);
                if taken < payload.len() && !found.is_listed {
                    found.is_listed = true;
                    self.backlogged.push(flow);
                }
                self.backlog_bytes += payload.len() - taken;
                if self.backlog_bytes > limits.pool_bytes {
                    return Err(Violation::Credit);
                }
            }
            Command::RecvDone { length_bytes } => {
                let left = found.held.checked_sub(length_bytes);
                found.held = left.ok_or(Violation::Credit)?;
                calls.recv_done(flow, usize::try_from(length_bytes).unwrap_or(usize::MAX));
            }
            Command::Ask => {
                found.is_asking = true;
                self.answer(flow, calls);
            }
            Command::Close => {
                found.is_closing = true;
                if found.backlog.is_empty() {
                    calls.close(flow);
                }
            }
            Command::Abort => calls.abort(flow),
            Command::Reject => {
                self.forget(flow);
                calls.reject(flow);
            }
            // Those of all flows are carried out by the caller.
            Command::StopListening | Command::AbortAll => {}
        }
        Ok(())
    }

    /// Answers a flow that waits for room, if half of its queue is free.
    fn answer<C: Queued>(&mut self, flow: FlowId, calls: &mut C) {
        let half = self.limits.queue_bytes / 2;
        let Some(found) = self.get(flow) else { return };
        if !found.is_asking {
            return;
        }
        let queued = found.backlog.len() + calls.queued_bytes(flow);
        if queued > half {
            // Asks the backend for its event.
            calls.send_space_bytes(flow);
            return;
        }
        found.is_asking = false;
        let freed = found.accepted - queued as u64;
        self.report(flow, Report::Sent { freed }, &[]);
    }

    /// The backend has room for a flow again.
    fn go_on<C: Queued>(&mut self, flow: FlowId, calls: &mut C) {
        let Some(found) = self.get(flow) else { return };
        let mut taken = 0;
        while !found.backlog.is_empty() {
            let (first, _) = found.backlog.as_slices();
            let length = first.len();
            let sent = calls.send(flow, first);
            found.backlog.drain(..sent);
            taken += sent;
            if sent < length {
                break;
            }
        }
        if found.backlog.is_empty() {
            // A queue that was full for once holds no memory.
            found.backlog = VecDeque::new();
            if found.is_closing && taken > 0 {
                calls.close(flow);
            }
        }
        self.backlog_bytes -= taken;
        self.answer(flow, calls);
    }

    /// Offers the stack what it had no memory for, now and then.
    fn offer<C: Queued>(&mut self, calls: &mut C) {
        if self.backlogged.is_empty() {
            return;
        }
        let now = Time::now();
        if now < self.offered_next {
            return;
        }
        self.offered_next = now.after(OFFER);
        for flow in std::mem::take(&mut self.backlogged) {
            self.go_on(flow, calls);
            let Some(found) = self.get(flow) else {
                continue;
            };
            found.is_listed = !found.backlog.is_empty();
            if found.is_listed {
                self.backlogged.push(flow);
            }
        }
    }

    fn forget(&mut self, flow: FlowId) {
        if let Some(found) = self.get(flow) {
            let backlog = found.backlog.len();
            self.backlog_bytes -= backlog;
            self.flows[flow.index as usize] = None;
        }
    }

    /// A flow that knocks.
    fn create(&mut self, flow: FlowId) {
        let index = flow.index as usize;
        if self.flows.len() <= index {
            self.flows.resize_with(index + 1, || None);
        }
        self.flows[index] = Some(Flow {
            generation: flow.generation,
            ..Flow::default()
        });
    }

    /// Carries an event of the backend to the ring.
    fn carry<C: Queued>(&mut self, event: &Event<'_>, calls: &mut C) {
        match *event {
            Event::Knock {
                flow,
                listener: ListenerId(listener),
                peer,
            } => {
                if flow.index as usize >= self.limits.flows_max {
                    calls.reject(flow);
                    return;
                }
                self.create(flow);
                calls.accept(flow);
                let (bytes, length) = address(peer);
                self.report(flow, Report::Knock { listener, peer }, &bytes[..length]);
            }
            Event::Recv { flow, data } => {
                let Some(found) = self.get(flow) else { return };
                found.held += data.len() as u64;
                let queued = found.backlog.len() + calls.queued_bytes(flow);
                let freed = found.accepted - queued as u64;
                for piece in data.chunks(PAYLOAD_MAX_BYTES) {
                    self.report(flow, Report::Recv { freed }, piece);
                }
            }
            Event::Sent { flow } => self.go_on(flow, calls),
            Event::PeerFinished { flow } => {
                if self.get(flow).is_some() {
                    self.report(flow, Report::Finished, &[]);
                }
            }
            Event::Dead { flow, reason } => self.end(flow, reason),
            // There are no connections of the application's own, no lent memory, timers or files.
            Event::Connected { .. }
            | Event::Filled { .. }
            | Event::Timer { .. }
            | Event::File { .. } => {}
        }
    }

    fn end(&mut self, flow: FlowId, reason: DeadReason) {
        if self.get(flow).is_some() {
            self.forget(flow);
            self.report(flow, Report::Dead { reason }, &[]);
        }
    }

    /// Shows the application what was written.
    fn flush(&mut self) -> Result<(), Violation> {
        self.outbox.flush()?;
        let bound = TURN_MAX_BYTES + self.limits.flows_max * FLOW_MAX_BYTES;
        match self.outbox.waiting_bytes() > bound {
            true => Err(Violation::Unread),
            false => Ok(()),
        }
    }
}

impl<B: Backend> StackSide<B>
where
    B::Calls: Queued,
{
    /// Carries out commands of the application. Gives their number.
    fn obey(&mut self) -> Result<usize, Violation> {
        for count in 0..COMMANDS_MAX {
            self.payload.clear();
            let Some(record) = self.reader.next(&mut self.payload)? else {
                self.reader.release();
                return Ok(count);
            };
            match Command::of(&record, &self.payload)? {
                Command::StopListening => self.backend.stop_listening(),
                Command::AbortAll => self.backend.abort_all(),
                _ => self
                    .relay
                    .obey(&record, &self.payload, self.backend.calls())?,
            }
        }
        self.reader.release();
        Ok(COMMANDS_MAX)
    }
}

impl<B: Backend> Backend for StackSide<B>
where
    B::Calls: Queued,
{
    type Calls = B::Calls;
    type Transfer = B::Transfer;

    fn poll(&mut self, bound: usize) -> Result<Polled, Error> {
        let commands = self.obey().map_err(broken(Side::Application))?;
        self.relay.offer(self.backend.calls());
        self.relay.flush().map_err(broken(Side::Application))?;
        // Frames wait in the queues of the interface while the application is behind.
        let bound = match self.relay.outbox.is_clear() {
            true => bound,
            false => 0,
        };
        let polled = self.backend.poll(bound)?;
        Ok(Polled {
            events: polled.events + commands,
            backlog: polled.backlog,
        })
    }

    fn deliver(&mut self, _handler: &mut impl FnMut(Event<'_>, &mut Self::Calls)) {
        let relay = &mut self.relay;
        self.backend
            .deliver(&mut |event, calls| relay.carry(&event, calls));
        // The application begins while this side sends. What it may have done is said by `poll`.
        let _ = self.relay.flush();
    }

    fn calls(&mut self) -> &mut Self::Calls {
        self.backend.calls()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.backend.flush()
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let full = (!self.relay.outbox.is_clear()).then_some(FULL);
        let offer = (!self.relay.backlogged.is_empty()).then_some(OFFER);
        let sleeps = self.reader.prepare_sleep();
        if !sleeps.map_err(broken(Side::Application))? {
            return Ok(());
        }
        let timeout = [timeout, full, offer].into_iter().flatten().min();
        let result = self.backend.sleep(timeout);
        self.reader.wake();
        drain(&self.wake);
        result
    }

    fn watch(&mut self, wake: BorrowedFd<'_>) -> Result<(), Error> {
        self.backend.watch(wake)
    }

    fn stop_listening(&mut self) {
        self.backend.stop_listening();
    }

    fn flows(&self) -> usize {
        self.backend.flows()
    }

    fn abort_all(&mut self) {
        self.backend.abort_all();
    }

    // Flows stay on their shard, and frames may come by another one's queue.

    fn take_foreign(&mut self) -> Option<(u16, Self::Transfer)> {
        self.backend.take_foreign()
    }

    fn knock(&mut self, group: u16, transfer: Self::Transfer) {
        self.backend.knock(group, transfer);
    }
}
