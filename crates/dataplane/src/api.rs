//! What an application sees: event conditions and batched calls, named as IX names them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::file::{FileAction, FileBuffer, FileOperation};
pub use crate::time::Time;
use crate::timers::Timers;

/// One connection of one shard. The index is dense, so an application may keep its state in a
/// vector; the generation tells a connection from an earlier one with the same index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// Position in the shard's table of flows.
    pub index: u32,
    /// How many flows had this index before, modulo 2³².
    pub generation: u32,
}

/// Position of a listening socket in the backend's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListenerId(pub u16);

/// Why a flow is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadReason {
    /// The application closed the flow, and everything queued was sent.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// The peer did not answer in time.
    TimedOut,
    /// The backend gave the flow up, because memory for queues was short and the flow made no
    /// progress, or because the application aborted or rejected it.
    Aborted,
    /// Another error of the operating system, as `errno`.
    Os(i32),
}

/// An event condition. Data of a [`Event::Recv`] is valid during the call only.
#[derive(Debug)]
pub enum Event<'a> {
    /// A peer wants to connect: answer with [`Calls::accept`] or [`Calls::reject`].
    Knock {
        /// The new flow.
        flow: FlowId,
        /// Where the peer knocked.
        listener: ListenerId,
        /// The peer, where its address family has one.
        peer: Option<SocketAddr>,
    },
    /// A flow of [`Calls::connect`] is established. If it fails instead, [`Event::Dead`] comes.
    Connected {
        /// The flow.
        flow: FlowId,
    },
    /// Bytes arrived. They count against the flow's receive window until [`Calls::recv_done`].
    Recv {
        /// The flow.
        flow: FlowId,
        /// The bytes, in order.
        data: &'a [u8],
    },
    /// Bytes arrived in the memory that was lent by [`Calls::receive_into`]. They do not count
    /// against the receive window.
    Filled {
        /// The flow.
        flow: FlowId,
        /// The memory.
        buffer: FileBuffer,
        /// How many bytes arrived: at least one, perhaps fewer than asked for.
        len_bytes: usize,
    },
    /// At least half of the flow's queue is free, after [`Calls::send`] took less than all or
    /// [`Calls::send_space_bytes`] said less than half.
    Sent {
        /// The flow.
        flow: FlowId,
    },
    /// The peer sends no more (FIN). The application may still send; it has to close the flow.
    PeerFinished {
        /// The flow.
        flow: FlowId,
    },
    /// The flow is gone: the last event of every flow, after its [`Event::Knock`] was accepted or
    /// [`Calls::connect`] gave its identifier.
    Dead {
        /// The flow.
        flow: FlowId,
        /// The reason.
        reason: DeadReason,
    },
    /// A timer that was set by [`Context::set_timer`].
    Timer {
        /// The number given to [`Context::set_timer`].
        token: u64,
    },
    /// An operation of [`Calls::file`] has ended.
    File {
        /// The number given to [`Calls::file`].
        token: u64,
        /// What was done.
        action: FileAction,
        /// Bytes read or written, fewer than asked for at the end of a file, or `errno`.
        result: Result<usize, i32>,
        /// The buffer of the operation.
        buffer: FileBuffer,
    },
}

/// The batched calls. A backend collects them and carries them out when the whole batch of events
/// has run, so that one system call (or one look at a ring) serves the batch.
///
/// Calls that name a flow that is gone do nothing: its [`Event::Dead`] is on the way.
pub trait Calls {
    /// Opens a connection. `None` if the table of flows is full or no socket can be had.
    fn connect(&mut self, peer: SocketAddr) -> Option<FlowId>;

    /// Accepts a flow that knocked: events of it follow.
    fn accept(&mut self, flow: FlowId);

    /// Refuses a flow that knocked: the peer sees a reset, the application no further event.
    fn reject(&mut self, flow: FlowId);

    /// Queues bytes, and gives the number accepted: less than all when the flow's queue is full.
    /// After that, [`Event::Sent`] says when half of the queue is free.
    fn send(&mut self, flow: FlowId, data: &[u8]) -> usize;

    /// As [`Calls::send`], for data in several pieces.
    fn send_vectored(&mut self, flow: FlowId, data: &[&[u8]]) -> usize {
        let mut accepted = 0;
        for piece in data {
            let taken = self.send(flow, piece);
            accepted += taken;
            if taken < piece.len() {
                break;
            }
        }
        accepted
    }

    /// Bytes that [`Calls::send`] would accept now. If that is less than half of the flow's queue,
    /// [`Event::Sent`] comes when half of the queue is free.
    fn send_space_bytes(&mut self, flow: FlowId) -> usize;

    /// Lends memory for the bytes that arrive next: `len_bytes` at most go into `buffer` from `at`
    /// on, without a copy in between. [`Event::Filled`] gives the memory back, and until then no
    /// [`Event::Recv`] of the flow comes. If the flow ends first, the memory is freed.
    ///
    /// # Errors
    /// Gives the memory back where the backend cannot do that, or nothing would fit: the bytes come
    /// by [`Event::Recv`].
    fn receive_into(
        &mut self,
        flow: FlowId,
        buffer: FileBuffer,
        at: usize,
        len_bytes: usize,
    ) -> Result<(), FileBuffer> {
        let _ = (flow, at, len_bytes);
        Err(buffer)
    }

    /// The application is done with received bytes: the flow's window opens by that much.
    fn recv_done(&mut self, flow: FlowId, len_bytes: usize);

    /// Closes a flow after what is queued was sent.
    fn close(&mut self, flow: FlowId);

    /// Closes a flow at once: the peer sees a reset.
    fn abort(&mut self, flow: FlowId);

    /// Starts an operation on a file: [`Event::File`] follows.
    ///
    /// # Errors
    /// Gives the operation back where the backend knows no files or has too many under way.
    fn file(&mut self, operation: FileOperation) -> Result<(), FileOperation> {
        Err(operation)
    }
}

/// What a handler can reach: the batched calls, the timers and the time of the turn.
pub struct Context<'a, C: Calls> {
    /// The batched calls.
    pub calls: &'a mut C,
    pub(crate) timers: &'a mut Timers,
    pub(crate) now: Time,
}

impl<'a, C: Calls> Context<'a, C> {
    /// What a loop other than [`Shard`](crate::Shard)'s gives to its application.
    pub fn new(calls: &'a mut C, timers: &'a mut Timers, now: Time) -> Self {
        Self { calls, timers, now }
    }

    /// When the turn began: the same for all events of a batch.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Asks for [`Event::Timer`] with `token` after `delay`, in a later turn. A token has one
    /// timer: setting it again replaces it.
    pub fn set_timer(&mut self, token: u64, delay: Duration) {
        // A timer of this turn that is set again whenever it comes would keep the turn from ending.
        let later = self.now.after(delay.max(Duration::from_nanos(1)));
        self.timers.set(token, later);
    }
}

/// A program on the runtime. Each shard has a value of its own.
pub trait Application {
    /// State of one flow that moves with it to another shard.
    type FlowState: Send + 'static;

    /// Handles one event to completion.
    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>);

    /// Called once after the last event of a batch, before anything is sent.
    fn on_batch_end<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        let _ = context;
    }

    /// The shard drains: no new flow will come. Close what is idle; the rest has until the
    /// deadline.
    fn on_drain<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        let _ = context;
    }

    /// The flow leaves this shard: gives away its state.
    fn detach(&mut self, flow: FlowId) -> Self::FlowState;

    /// A flow arrives from another shard.
    fn attach<C: Calls>(
        &mut self,
        flow: FlowId,
        state: Self::FlowState,
        context: &mut Context<'_, C>,
    );
}
