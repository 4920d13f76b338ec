//! What a network backend has to offer to a shard.
//!
//! Nothing here speaks of descriptors: the connections of a backend may live in the kernel
//! (io_uring) or in user space.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::api::{Calls, Event, FlowId};
use crate::error::Error;

/// What [`Backend::poll`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Polled {
    /// Events that [`Backend::deliver`] will hand over: at most the bound.
    pub events: usize,
    /// Events that wait because the bound left them out, as far as the backend can see them.
    pub backlog: usize,
}

/// A network backend. Its methods are called by one thread, in the order of the shard's loop:
/// [`poll`](Backend::poll), [`deliver`](Backend::deliver), [`flush`](Backend::flush), and
/// [`sleep`](Backend::sleep) when there is nothing to do.
pub trait Backend {
    /// Where the batched calls are collected.
    type Calls: Calls;
    /// A flow on its way to another shard: its connection, and what it has queued.
    type Transfer: Send + 'static;

    /// Reclaims finished transmissions and takes at most `bound` events, round-robin over the
    /// queues, without waiting for any.
    ///
    /// # Errors
    /// The network is gone for good.
    fn poll(&mut self, bound: usize) -> Result<Polled, Error>;

    /// Hands over the events of the last [`poll`](Backend::poll) in order, then frees their memory.
    fn deliver(&mut self, handler: &mut impl FnMut(Event<'_>, &mut Self::Calls));

    /// The batched calls, outside an event.
    fn calls(&mut self) -> &mut Self::Calls;

    /// Carries out the calls that were collected, and sends.
    ///
    /// # Errors
    /// The network is gone for good.
    fn flush(&mut self) -> Result<(), Error>;

    /// Sleeps in the kernel until something arrives, the timeout passes, or the descriptor given
    /// to [`watch`](Backend::watch) is readable.
    ///
    /// # Errors
    /// The network is gone for good.
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error>;

    /// Wakes [`sleep`](Backend::sleep) when `wake`, an eventfd, is written to. Called by the shard
    /// once. A backend that another one stands on is given its wake-up as well.
    ///
    /// # Errors
    /// The descriptor cannot be watched.
    fn watch(&mut self, wake: BorrowedFd<'_>) -> Result<(), Error>;

    /// Accepts no new flow from now on. Flows that exist go on.
    fn stop_listening(&mut self);

    /// Flows that exist.
    fn flows(&self) -> usize;

    /// Closes every flow at once.
    fn abort_all(&mut self);

    // What follows is for flows that move between shards. Without it they stay where they are.

    /// Begins to move a flow group away: its flows receive nothing more here. Called once a group;
    /// afterwards [`take_departed`](Backend::take_departed) gives the flows as they become free.
    fn begin_departure(&mut self, group: u16) {
        let _ = group;
    }

    /// Next flow that is ready to leave: no event and no transmission of it is pending. The
    /// identifier is no longer valid here afterwards.
    fn take_departed(&mut self) -> Option<(FlowId, u16, Self::Transfer)> {
        None
    }

    /// Next departing group whose flows have all left: what belongs to the group beside its flows.
    /// `None` where nothing does.
    fn take_departed_group(&mut self) -> Option<(u16, Self::Transfer)> {
        None
    }

    /// Takes what [`take_departed_group`](Backend::take_departed_group) gave to another shard. All
    /// flows of the group have arrived before.
    fn arrive_group(&mut self, group: u16, transfer: Self::Transfer) {
        drop((group, transfer));
    }

    /// Whether a departing group, or flows of it, are still here.
    fn is_departing(&self) -> bool {
        false
    }

    /// Takes a flow from another shard. `None` if the table of flows is full: the flow is closed.
    fn arrive(&mut self, group: u16, transfer: Self::Transfer) -> Option<FlowId> {
        drop((group, transfer));
        None
    }

    /// Next connection that was accepted here, or frame that came here, but whose group another
    /// shard owns.
    fn take_foreign(&mut self) -> Option<(u16, Self::Transfer)> {
        None
    }

    /// What another shard took for this one: a new connection, of which [`Event::Knock`] follows,
    /// or a frame.
    fn knock(&mut self, group: u16, transfer: Self::Transfer) {
        drop((group, transfer));
    }
}
