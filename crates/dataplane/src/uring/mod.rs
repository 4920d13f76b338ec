//! The backend on io_uring: connections are the kernel's, requests go in and out in batches.
//!
//! One ring a shard, one thread a ring (`SINGLE_ISSUER`), completions run when the shard asks for
//! them (`DEFER_TASKRUN`). Accepting and receiving are multishot; the kernel picks receive buffers
//! from a ring. All sends of a batch go in with the one system call that also fetches the next
//! completions.

mod buffers;
mod completion;
mod config;
mod events;
mod files;
mod flows;
mod requests;
mod ring;
mod socket;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use io_uring::opcode;
use io_uring::types::{Fd, SubmitArgs, Timespec};

use self::completion::{Pending, Tag};
pub use self::config::{OwnsGroup, UringConfig};
pub use self::flows::UringCalls;
use self::flows::{Local, RESERVE_BYTES, Receive, State};
use self::ring::{ACCEPT_PAUSE, is_passing};
pub use self::ring::{Uring, UringTransfer};
use crate::api::{Event, FlowId, Time};
use crate::backend::{Backend, Polled};
use crate::error::Error;

/// A flow that sends nothing for this long, while memory for queues is short, is given up.
const STALL: Duration = Duration::from_secs(2);
/// Polls between two looks at the clock for that.
const SWEEP_POLLS: u32 = 4096;

/// Listens on an address, with a backlog of 4096.
///
/// # Errors
/// The address is taken, not this host's, or needs a privilege.
pub fn listen(address: SocketAddr) -> Result<OwnedFd, Error> {
    socket::listen(address, 4096)
}

/// Listening sockets that systemd opened for this process, with their addresses (`LISTEN_FDS` of
/// sd_listen_fds(3)). Call it once.
///
/// # Errors
/// One of them is no listening TCP socket.
pub fn inherited() -> Result<Vec<(OwnedFd, SocketAddr)>, Error> {
    socket::inherited()
}

impl Uring {
    /// While memory for queues is short, gives up flows that make no progress.
    fn sweep(&mut self) {
        let now = Time::now();
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now.after(STALL);
        self.calls.sweep = self.calls.sweep.wrapping_add(1);
        let is_short = self.calls.queued_bytes > self.config.send_memory_bytes / 2;
        for index in 0..self.calls.flows.len() {
            let flow = &mut self.calls.flows[index];
            let stalled = self.calls.sweep.wrapping_sub(flow.progress);
            if flow.queued_bytes() == 0 {
                flow.progress = self.calls.sweep;
            } else if is_short && stalled >= 2 && flow.queued_bytes() > RESERVE_BYTES {
                let id = self.calls.id(u32::try_from(index).unwrap_or(0));
                crate::api::Calls::abort(&mut self.calls, id);
            }
        }
    }
}

impl Backend for Uring {
    type Calls = UringCalls;
    type Transfer = UringTransfer;

    fn poll(&mut self, bound: usize) -> Result<Polled, Error> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(SWEEP_POLLS) {
            self.sweep();
        }
        if self.ring.completion().is_empty() && self.has_more() {
            self.enter()?;
        }
        self.collect(bound);
        if self.pending.len() < bound && self.has_more() {
            // The kernel runs about 20 completions a call; more are ready.
            self.enter()?;
            self.collect(bound);
        }
        let mut backlog = self.ring.completion().len() + self.calls.locals.len();
        // The flag is a hint: the kernel may set it after the work that it stands for is done.
        // Where this turn found nothing, nothing is left, and commands need not wait.
        if backlog == 0 && !self.pending.is_empty() && self.ring.submission().taskrun() {
            backlog = 1;
        }
        Ok(Polled {
            events: self.pending.len(),
            backlog,
        })
    }

    fn deliver(&mut self, handler: &mut impl FnMut(Event<'_>, &mut Self::Calls)) {
        let mut pending = std::mem::take(&mut self.pending);
        let mut has_freed = false;
        for event in pending.drain(..) {
            match event {
                Pending::Received {
                    flow,
                    buffer,
                    len_bytes,
                } => {
                    let data = self.buffers.filled(buffer, len_bytes);
                    self.calls.received(flow, data, handler);
                    self.buffers.give_back(buffer);
                    has_freed = true;
                }
                Pending::Filled(flow) => self.calls.filled(flow, handler),
                Pending::Connected(flow) => {
                    handler(Event::Connected { flow }, &mut self.calls);
                }
                Pending::PeerFinished(flow) => {
                    handler(Event::PeerFinished { flow }, &mut self.calls);
                }
                Pending::Local(Local::Knock(flow)) => {
                    let Some(found) = self.calls.get(flow) else {
                        continue;
                    };
                    let (listener, peer) = (found.listener, found.peer);
                    handler(
                        Event::Knock {
                            flow,
                            listener,
                            peer,
                        },
                        &mut self.calls,
                    );
                }
                Pending::Local(Local::Room(flow)) => {
                    if self.calls.get(flow).is_none() {
                        continue;
                    }
                    handler(Event::Sent { flow }, &mut self.calls);
                }
                Pending::Local(Local::Dead(flow, reason)) => {
                    handler(Event::Dead { flow, reason }, &mut self.calls);
                }
                Pending::File { index, result } => {
                    self.calls.file_ended(index, result, handler);
                }
            }
        }
        if has_freed {
            self.buffers.publish();
        }
        self.pending = pending;
    }

    fn calls(&mut self) -> &mut Self::Calls {
        &mut self.calls
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.forget_stale_places();
        let mut dirty = std::mem::take(&mut self.calls.dirty);
        for index in dirty.drain(..) {
            self.settle(index);
        }
        // What became dirty meanwhile comes at the next flush: nothing does that today.
        dirty.append(&mut self.calls.dirty);
        self.calls.dirty = dirty;
        self.start_files();
        if self.listeners.iter().any(|listener| !listener.is_armed) {
            self.arm_listeners();
        }
        self.calls.tell_waiting();
        if self.has_unsubmitted {
            self.enter()?;
        }
        Ok(())
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.sweep();
        if !self.calls.locals.is_empty() || !self.calls.dirty.is_empty() {
            return Ok(());
        }
        let mut timeout = timeout.unwrap_or(Duration::from_secs(1));
        if self.is_listening && self.listeners.iter().any(|listener| !listener.is_armed) {
            timeout = timeout.min(ACCEPT_PAUSE);
        }
        let timespec = Timespec::from(timeout);
        let arguments = SubmitArgs::new().timespec(&timespec);
        self.has_unsubmitted = false;
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => Ok(()),
            Err(error) if is_passing(&error) => Ok(()),
            Err(source) => Err(Error::Os {
                call: "io_uring_enter",
                source,
            }),
        }
    }

    fn watch(&mut self, wake: BorrowedFd<'_>) -> Result<(), Error> {
        let readable = u32::try_from(libc::POLLIN).unwrap_or(1);
        let poll = opcode::PollAdd::new(Fd(wake.as_raw_fd()), readable).multi(true);
        self.push(poll.build().user_data(Tag::Wake.encode(0)));
        self.enter()
    }

    fn stop_listening(&mut self) {
        self.is_listening = false;
        for index in 0..self.listeners.len() {
            let index = u32::try_from(index).unwrap_or(0);
            let cancel = opcode::AsyncCancel::new(Tag::Accept.encode(index)).build();
            self.push(cancel.user_data(Tag::Ignored.encode(index)));
        }
    }

    fn flows(&self) -> usize {
        self.calls.live
    }

    fn abort_all(&mut self) {
        for index in 0..self.calls.flows.len() {
            let id = self.calls.id(u32::try_from(index).unwrap_or(0));
            crate::api::Calls::abort(&mut self.calls, id);
        }
    }

    fn begin_departure(&mut self, group: u16) {
        for index in 0..self.calls.flows.len() {
            let flow = &mut self.calls.flows[index];
            let moves = matches!(flow.state, State::Open | State::Knocking);
            if flow.group != group || !moves || flow.is_departing {
                continue;
            }
            flow.is_departing = true;
            let index = u32::try_from(index).unwrap_or(0);
            self.calls.mark_dirty(index);
            self.departing.push(index);
        }
    }

    fn take_departed(&mut self) -> Option<(FlowId, u16, Self::Transfer)> {
        let mut at = 0;
        while let Some(&index) = self.departing.get(at) {
            let flow = &mut self.calls.flows[index as usize];
            if !flow.is_departing || !matches!(flow.state, State::Open | State::Knocking) {
                // It was closed meanwhile.
                self.departing.swap_remove(at);
                continue;
            }
            let is_free = flow.is_quiet() && flow.in_flight.is_empty() && flow.lent.is_none();
            if is_free && flow.state == State::Open {
                self.departing.swap_remove(at);
                let id = self.calls.id(index);
                let flow = &mut self.calls.flows[index as usize];
                let group = flow.group;
                let pending = std::mem::take(&mut flow.pending);
                self.calls.queued_bytes -= pending.len();
                let transfer = UringTransfer {
                    socket: flow.socket.take()?,
                    peer: flow.peer,
                    listener: flow.listener,
                    pending,
                    held_bytes: flow.held_bytes,
                    has_finished: flow.has_finished,
                };
                self.calls.free_slot(index);
                return Some((id, group, transfer));
            }
            at += 1;
        }
        None
    }

    fn is_departing(&self) -> bool {
        !self.departing.is_empty()
    }

    fn arrive(&mut self, group: u16, transfer: Self::Transfer) -> Option<FlowId> {
        let index = self.install(group, transfer, State::Open)?;
        self.calls.mark_dirty(index);
        // Whoever waited for room asks again.
        let id = self.calls.id(index);
        self.calls.locals.push_back(Local::Room(id));
        Some(id)
    }

    fn take_foreign(&mut self) -> Option<(u16, Self::Transfer)> {
        self.foreign.pop_front()
    }

    fn knock(&mut self, group: u16, transfer: Self::Transfer) {
        if let Some(index) = self.install(group, transfer, State::Knocking) {
            let id = self.calls.id(index);
            self.calls.locals.push_back(Local::Knock(id));
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The kernel forgets every request before the memory that they name goes.
        let any = io_uring::types::CancelBuilder::any();
        let _ = self.ring.submitter().register_sync_cancel(None, any);
        let _ = self.enter();
        self.calls.files.leak();
        for flow in &mut self.calls.flows {
            if flow.is_sending || flow.is_lent {
                // Still not done: rather lost than read after it was freed.
                std::mem::forget(std::mem::take(&mut flow.in_flight));
            }
            if flow.receive != Receive::Idle {
                std::mem::forget(flow.lent.take());
            }
        }
    }
}
