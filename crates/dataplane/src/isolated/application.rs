//! The backend of the application's process: what a flow may queue is known here, so that a call
//! is answered without the stack.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::message::{Command, Report};
use super::outbox::Outbox;
use super::ring::{PAYLOAD_MAX_BYTES, Reader, Record};
use super::{Ends, Limits, Rings, Side, Violation, broken, drain};
use crate::api::{Calls, Event, FlowId, ListenerId, Time};
use crate::backend::{Backend, Polled};
use crate::error::Error;

/// How often flows that found no memory try again.
const STARVED: Duration = Duration::from_millis(10);
/// How often a full ring of commands is looked at while there is nothing else to do.
const FULL: Duration = Duration::from_millis(1);
/// What a flow may have queued also where the large ones of others hold most of the pool.
const SMALL_BYTES: u64 = 8192;
/// The part of the pool that is left to such flows: one of so many. [`crate::tcp`] does the same.
const SMALL_PART: u64 = 8;

/// One shard's network in the application's process.
#[derive(Debug)]
pub struct ApplicationSide {
    calls: ApplicationCalls,
    reader: Reader,
    wake: OwnedFd,
    /// The mailbox of the shard.
    mailbox: Option<OwnedFd>,
    /// The records of this turn, and where their payloads lie in `bytes`.
    records: Vec<(Record, Range<usize>)>,
    bytes: Vec<u8>,
    /// Flows that try again in this turn.
    due: Vec<FlowId>,
}

/// The batched calls: they reach the stack with [`Backend::flush`].
#[derive(Debug)]
pub struct ApplicationCalls {
    outbox: Outbox,
    limits: Limits,
    flows: Vec<Slot>,
    open: usize,
    /// Bytes that all flows have queued.
    pool_used: u64,
    /// Flows that found no memory.
    starved: Vec<FlowId>,
    starved_until: Time,
}

/// What the application has to do with a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// Nothing.
    #[default]
    Free,
    /// The flow is open.
    Open,
    /// The application has closed the flow, and waits for its end.
    Closed,
}

/// What a flow waits for that wants to send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Wait {
    #[default]
    Nothing,
    /// The stack says when half of the queue is free.
    Queue,
    /// Memory that other flows have.
    Pool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    generation: u32,
    state: State,
    wait: Wait,
    /// Bytes that were queued since the flow's start.
    sent: u64,
    /// Those of them that have left the queue, as far as the stack has said.
    freed: u64,
}

impl ApplicationSide {
    /// The application's side of two rings.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub fn new(rings: Rings, limits: Limits) -> Result<ApplicationSide, Error> {
        let Ends {
            writer,
            reader,
            wake_other,
            wake,
        } = rings.ends(Side::Application)?;
        Ok(ApplicationSide {
            calls: ApplicationCalls {
                outbox: Outbox::new(writer, wake_other),
                limits,
                flows: Vec::new(),
                open: 0,
                pool_used: 0,
                starved: Vec::new(),
                starved_until: Time::default(),
            },
            reader,
            wake,
            mailbox: None,
            records: Vec::new(),
            bytes: Vec::new(),
            due: Vec::new(),
        })
    }
}

impl ApplicationCalls {
    fn slot(&mut self, flow: FlowId) -> Option<&mut Slot> {
        let slot = self.flows.get_mut(flow.index as usize)?;
        (slot.generation == flow.generation && slot.state != State::Free).then_some(slot)
    }

    fn open_slot(&mut self, flow: FlowId) -> Option<&mut Slot> {
        self.slot(flow).filter(|slot| slot.state == State::Open)
    }

    fn command(&mut self, flow: FlowId, command: Command) {
        self.outbox.push(command.record(flow), &[]);
    }

    /// Bytes that this flow may queue now.
    fn space(&self, queued: u64) -> u64 {
        let (queue, pool) = (
            self.limits.queue_bytes as u64,
            self.limits.pool_bytes as u64,
        );
        let large = (pool - pool / SMALL_PART).saturating_sub(self.pool_used);
        let small = pool
            .saturating_sub(self.pool_used)
            .min(SMALL_BYTES.saturating_sub(queued));
        queue.saturating_sub(queued).min(large.max(small))
    }

    /// Has the application told, once, when there is room for more.
    fn wait_for_room(&mut self, flow: FlowId) {
        let half = self.limits.queue_bytes as u64 / 2;
        let Some(slot) = self.open_slot(flow) else {
            return;
        };
        if slot.wait != Wait::Nothing {
            return;
        }
        if slot.sent - slot.freed > half {
            slot.wait = Wait::Queue;
            self.command(flow, Command::Ask);
            return;
        }
        slot.wait = Wait::Pool;
        // What has left the queue meanwhile is not known: the answer says it.
        let asks = slot.sent > slot.freed;
        if asks {
            self.command(flow, Command::Ask);
        }
        if self.starved.is_empty() {
            self.starved_until = Time::now().after(STARVED);
        }
        self.starved.push(flow);
    }

    /// The stack says how much of a flow's queue has left it.
    fn free(&mut self, flow: FlowId, freed: u64) -> Result<(), Violation> {
        let Some(slot) = self.slot(flow) else {
            return Ok(());
        };
        if freed < slot.freed || freed > slot.sent {
            return Err(Violation::Credit);
        }
        let more = freed - slot.freed;
        slot.freed = freed;
        self.pool_used -= more;
        Ok(())
    }

    fn forget(&mut self, flow: FlowId) {
        if let Some(slot) = self.slot(flow) {
            let queued = slot.sent - slot.freed;
            slot.state = State::Free;
            self.pool_used -= queued;
            self.open -= 1;
        }
    }

    /// A peer knocks.
    fn create(&mut self, flow: FlowId) -> Result<(), Violation> {
        let index = flow.index as usize;
        if self.flows.len() <= index {
            self.flows.resize(index + 1, Slot::default());
        }
        let slot = &mut self.flows[index];
        if slot.state != State::Free {
            return Err(Violation::Flow);
        }
        *slot = Slot {
            generation: flow.generation,
            state: State::Open,
            ..Slot::default()
        };
        self.open += 1;
        Ok(())
    }

    /// Checks a record of the stack, and gives the event that the application is to see.
    fn admit<'a>(
        &mut self,
        record: &Record,
        payload: &'a [u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        let flow = record.flow;
        let report = Report::of(record, payload)?;
        if flow.index as usize >= self.limits.flows_max {
            return Err(Violation::Flow);
        }
        if let Report::Recv { freed } | Report::Sent { freed } = report {
            self.free(flow, freed)?;
        }
        let is_open = self.open_slot(flow).is_some();
        Ok(match report {
            Report::Knock { listener, peer } => {
                self.create(flow)?;
                Some(Event::Knock {
                    flow,
                    listener: ListenerId(listener),
                    peer,
                })
            }
            Report::Recv { .. } => is_open.then_some(Event::Recv {
                flow,
                data: payload,
            }),
            Report::Sent { .. } => self.sent(flow),
            Report::Finished => is_open.then_some(Event::PeerFinished { flow }),
            Report::Dead { reason } => {
                let is_known = self.slot(flow).is_some();
                self.forget(flow);
                is_known.then_some(Event::Dead { flow, reason })
            }
        })
    }

    /// The answer to [`Command::Ask`].
    fn sent(&mut self, flow: FlowId) -> Option<Event<'static>> {
        let slot = self.open_slot(flow)?;
        if slot.wait != Wait::Queue {
            return None;
        }
        slot.wait = Wait::Nothing;
        Some(Event::Sent { flow })
    }

    /// Flows that found no memory some time ago: they try again.
    fn take_starved(&mut self, due: &mut Vec<FlowId>) {
        if self.starved.is_empty() || Time::now() < self.starved_until {
            return;
        }
        for flow in std::mem::take(&mut self.starved) {
            if let Some(slot) = self.open_slot(flow)
                && slot.wait == Wait::Pool
            {
                slot.wait = Wait::Nothing;
                due.push(flow);
            }
        }
    }
}

impl Calls for ApplicationCalls {
    /// `None`: what runs like this serves, and opens no connection.
    fn connect(&mut self, _peer: std::net::SocketAddr) -> Option<FlowId> {
        None
    }

    /// Needs no command: the stack has accepted, and an application that rejects says so.
    fn accept(&mut self, _flow: FlowId) {}

    fn reject(&mut self, flow: FlowId) {
        if self.slot(flow).is_some() {
            self.forget(flow);
            self.command(flow, Command::Reject);
        }
    }

    fn send(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let Some(slot) = self.open_slot(flow) else {
            return 0;
        };
        let queued = slot.sent - slot.freed;
        let space = usize::try_from(self.space(queued)).unwrap_or(usize::MAX);
        let taken = data.len().min(space);
        for piece in data[..taken].chunks(PAYLOAD_MAX_BYTES) {
            self.outbox.push(Command::Send.record(flow), piece);
        }
        self.pool_used += taken as u64;
        if let Some(slot) = self.open_slot(flow) {
            slot.sent += taken as u64;
        }
        if taken < data.len() {
            self.wait_for_room(flow);
        }
        taken
    }

    fn send_space_bytes(&mut self, flow: FlowId) -> usize {
        let Some(slot) = self.open_slot(flow) else {
            return 0;
        };
        let queued = slot.sent - slot.freed;
        let space = self.space(queued);
        if space < self.limits.queue_bytes as u64 / 2 {
            self.wait_for_room(flow);
        }
        usize::try_from(space).unwrap_or(usize::MAX)
    }

    fn recv_done(&mut self, flow: FlowId, len_bytes: usize) {
        if len_bytes > 0 && self.open_slot(flow).is_some() {
            let length_bytes = len_bytes as u64;
            self.command(flow, Command::RecvDone { length_bytes });
        }
    }

    fn close(&mut self, flow: FlowId) {
        if let Some(slot) = self.open_slot(flow) {
            slot.state = State::Closed;
            self.command(flow, Command::Close);
        }
    }

    fn abort(&mut self, flow: FlowId) {
        if let Some(slot) = self.slot(flow) {
            slot.state = State::Closed;
            self.command(flow, Command::Abort);
        }
    }
}

impl ApplicationSide {
    fn take(&mut self, bound: usize) -> Result<Polled, Violation> {
        self.bytes.clear();
        self.calls.take_starved(&mut self.due);
        while self.records.len() < bound {
            let start = self.bytes.len();
            let Some(record) = self.reader.next(&mut self.bytes)? else {
                break;
            };
            self.records.push((record, start..self.bytes.len()));
        }
        self.reader.release();
        let waiting = match self.records.len() < bound {
            true => 0,
            false => self.reader.look()?,
        };
        let events = self.records.len();
        // Records that wait are taken to be like those that were taken.
        let each = (self.bytes.len() / 8 / events.max(1) + 3) as u64;
        Ok(Polled {
            events: events + self.due.len(),
            backlog: usize::try_from(waiting.div_ceil(each)).unwrap_or(0),
        })
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let watched = [Some(&self.wake), self.mailbox.as_ref()];
        let mut watched: Vec<PollFd<'_>> = watched
            .into_iter()
            .flatten()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        match rustix::event::poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::Os {
                call: "poll on the rings",
                source: error.into(),
            }),
        }
    }
}

impl Backend for ApplicationSide {
    type Calls = ApplicationCalls;
    type Transfer = std::convert::Infallible;

    fn poll(&mut self, bound: usize) -> Result<Polled, Error> {
        let calls = &mut self.calls;
        if !calls.outbox.is_clear() {
            calls.outbox.flush().map_err(broken(Side::Stack))?;
        }
        if !calls.outbox.is_clear() {
            // The stack is behind: it gets no more to do.
            return Ok(Polled::default());
        }
        self.take(bound).map_err(broken(Side::Stack))
    }

    fn deliver(&mut self, handler: &mut impl FnMut(Event<'_>, &mut ApplicationCalls)) {
        let calls = &mut self.calls;
        for flow in self.due.drain(..) {
            if calls.open_slot(flow).is_some() {
                handler(Event::Sent { flow }, calls);
            }
        }
        for (record, range) in self.records.drain(..) {
            match calls.admit(&record, &self.bytes[range]) {
                Ok(Some(event)) => handler(event, calls),
                Ok(None) => {}
                // The next flush says it.
                Err(violation) => {
                    calls.outbox.break_off(violation);
                    break;
                }
            }
        }
    }

    fn calls(&mut self) -> &mut ApplicationCalls {
        &mut self.calls
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.calls.outbox.flush().map_err(broken(Side::Stack))
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let full = (!self.calls.outbox.is_clear()).then_some(FULL);
        let starved = (!self.calls.starved.is_empty()).then_some(STARVED);
        if full.is_none() && !self.reader.prepare_sleep().map_err(broken(Side::Stack))? {
            return Ok(());
        }
        let timeout = [timeout, full, starved].into_iter().flatten().min();
        let result = self.wait(timeout);
        self.reader.wake();
        drain(&self.wake);
        result
    }

    fn watch(&mut self, wake: BorrowedFd<'_>) -> Result<(), Error> {
        let wake = wake.try_clone_to_owned().map_err(|source| Error::Os {
            call: "dup",
            source,
        })?;
        self.mailbox = Some(wake);
        Ok(())
    }

    fn stop_listening(&mut self) {
        let no_flow = FlowId {
            index: 0,
            generation: 0,
        };
        self.calls.command(no_flow, Command::StopListening);
    }

    fn flows(&self) -> usize {
        self.calls.open
    }

    fn abort_all(&mut self) {
        let no_flow = FlowId {
            index: 0,
            generation: 0,
        };
        self.calls.command(no_flow, Command::AbortAll);
        for slot in &mut self.calls.flows {
            if slot.state == State::Open {
                slot.state = State::Closed;
            }
        }
    }

    // Flows stay on their shard: the stacks' process divides the queues once, at the start.
}
