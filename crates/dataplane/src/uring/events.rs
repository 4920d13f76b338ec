//! Completions of the kernel, turned into events.

use std::os::fd::AsFd as _;

use io_uring::cqueue;

use super::completion::{Pending, Tag};
use super::flows::{Lent, Local, Receive, State, UringCalls};
use super::ring::{ACCEPT_PAUSE, Uring, UringTransfer};
use super::socket;
use crate::api::{DeadReason, Event, FlowId, ListenerId, Time};
use crate::file::FileOperation;
use crate::groups::group_of;

impl UringCalls {
    /// Queues [`Local::Room`] for flows that waited for room and have it.
    pub(super) fn tell_waiting(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.waiting.get(at) {
            let flow = &self.flows[index as usize];
            let has_room = flow.state != State::Open || self.has_room(flow);
            if has_room {
                let is_open = flow.state == State::Open;
                let flow = &mut self.flows[index as usize];
                flow.is_waiting = false;
                flow.was_told_empty = flow.queued_bytes() == 0;
                self.waiting.swap_remove(at);
                if is_open {
                    let id = self.id(index);
                    self.locals.push_back(Local::Room(id));
                }
            } else {
                at += 1;
            }
        }
    }

    /// Hands received bytes over: into lent memory first, the rest as they are.
    pub(super) fn received(
        &mut self,
        flow: FlowId,
        mut data: &[u8],
        handler: &mut impl FnMut(Event<'_>, &mut Self),
    ) {
        while !data.is_empty() {
            let Some(found) = self.get(flow).filter(|found| found.state == State::Open) else {
                return;
            };
            if let Some(lent) = &mut found.lent {
                data = &data[lent.fill(data)..];
                if lent.at == lent.end {
                    self.filled(flow, handler);
                }
            } else {
                found.held_bytes += data.len();
                handler(Event::Recv { flow, data }, self);
                self.mark_if_over_window(flow);
                return;
            }
        }
    }

    /// Gives lent memory back, with what arrived in it.
    pub(super) fn filled(&mut self, flow: FlowId, handler: &mut impl FnMut(Event<'_>, &mut Self)) {
        let Some(found) = self.get(flow).filter(|found| found.state == State::Open) else {
            return;
        };
        if let Some(Lent {
            buffer,
            filled_bytes: len_bytes,
            ..
        }) = found.lent.take()
        {
            let event = Event::Filled {
                flow,
                buffer,
                len_bytes,
            };
            handler(event, self);
        }
    }

    /// Tells the application that an operation on a file has ended.
    pub(super) fn file_ended(
        &mut self,
        index: u32,
        result: i32,
        handler: &mut impl FnMut(Event<'_>, &mut Self),
    ) {
        let Some(operation) = self.files.finish(index) else {
            return;
        };
        let FileOperation {
            token,
            action,
            buffer,
            ..
        } = operation;
        let result = usize::try_from(result).map_err(|_| -result);
        let event = Event::File {
            token,
            action,
            result,
            buffer,
        };
        handler(event, self);
    }

    /// A flow whose application holds more than the window stops receiving at the next flush.
    pub(super) fn mark_if_over_window(&mut self, flow: FlowId) {
        let window = self.bounds.receive_window_bytes;
        if self
            .get(flow)
            .is_some_and(|found| found.held_bytes >= window || found.receive == Receive::Idle)
        {
            self.mark_dirty(flow.index);
        }
    }
}

impl Uring {
    /// Takes completions until `bound` events are pending.
    pub(super) fn collect(&mut self, bound: usize) {
        while self.pending.len() < bound {
            if let Some(local) = self.calls.locals.pop_front() {
                self.pending.push(Pending::Local(local));
                continue;
            }
            let Some(entry) = self.ring.completion().next() else {
                return;
            };
            let (tag, index) = Tag::decode(entry.user_data());
            match tag {
                Some(Tag::Receive) => self.on_receive(index, entry.result(), entry.flags()),
                Some(Tag::ReceiveLent) => self.on_receive_lent(index, entry.result()),
                Some(Tag::Send) => self.on_send(index, entry.result(), entry.flags()),
                Some(Tag::Accept) => self.on_accept(index, entry.result(), entry.flags()),
                Some(Tag::File) => {
                    let result = entry.result();
                    self.pending.push(Pending::File { index, result });
                }
                Some(Tag::Connect) => self.on_connect(index, entry.result()),
                Some(Tag::Wake | Tag::Ignored) | None => {}
            }
        }
    }

    fn on_receive(&mut self, index: u32, result: i32, flags: u32) {
        let buffer = cqueue::buffer_select(flags);
        let id = self.calls.id(index);
        let flow = &mut self.calls.flows[index as usize];
        if !cqueue::more(flags) {
            flow.receive = Receive::Idle;
            self.calls.mark_dirty(index);
        }
        match (usize::try_from(result), buffer) {
            (Ok(len_bytes), Some(buffer)) if len_bytes > 0 => {
                self.pending.push(Pending::Received {
                    flow: id,
                    buffer,
                    len_bytes,
                });
            }
            (Ok(_), buffer) => {
                if let Some(buffer) = buffer {
                    self.buffers.give_back(buffer);
                }
                let flow = &mut self.calls.flows[index as usize];
                flow.has_finished = true;
                if flow.state == State::Open {
                    self.pending.push(Pending::PeerFinished(id));
                }
            }
            // Cancelled by us, or no buffer was free: the next flush arms it again if it is wanted.
            (Err(_), _) if matches!(-result, libc::ECANCELED | libc::ENOBUFS | libc::EINTR) => {}
            (Err(_), _) => self.calls.begin_close(id, reason_of(-result), true),
        }
    }

    fn on_receive_lent(&mut self, index: u32, result: i32) {
        let id = self.calls.id(index);
        let flow = &mut self.calls.flows[index as usize];
        flow.receive = Receive::Idle;
        self.calls.mark_dirty(index);
        let flow = &mut self.calls.flows[index as usize];
        match usize::try_from(result) {
            Ok(0) => {
                flow.has_finished = true;
                if flow.state == State::Open {
                    self.pending.push(Pending::PeerFinished(id));
                }
            }
            Ok(len_bytes) => {
                if let Some(lent) = &mut flow.lent {
                    lent.advance(len_bytes);
                    self.pending.push(Pending::Filled(id));
                }
            }
            Err(_) if matches!(-result, libc::ECANCELED | libc::EAGAIN | libc::EINTR) => {}
            Err(_) => self.calls.begin_close(id, reason_of(-result), true),
        }
    }

    fn on_send(&mut self, index: u32, result: i32, flags: u32) {
        let sweep = self.calls.sweep;
        let id = self.calls.id(index);
        let flow = &mut self.calls.flows[index as usize];
        if cqueue::notif(flags) {
            flow.is_lent = false;
        } else {
            flow.is_sending = false;
            // Without a notification to come, the memory is ours again.
            flow.is_lent &= cqueue::more(flags);
            match usize::try_from(result) {
                Ok(len_bytes) => {
                    flow.taken_bytes += len_bytes;
                    flow.progress = sweep;
                    self.calls.queued_bytes -= len_bytes;
                }
                Err(_) if matches!(-result, libc::EAGAIN | libc::EINTR) => {}
                Err(_) => self.calls.begin_close(id, reason_of(-result), true),
            }
        }
        let flow = &mut self.calls.flows[index as usize];
        if !flow.is_sending && !flow.is_lent && flow.taken_bytes >= flow.in_flight.len() {
            let sent = std::mem::take(&mut flow.in_flight);
            flow.taken_bytes = 0;
            self.calls.keep(sent);
        }
        let flow = &self.calls.flows[index as usize];
        let has_more = !flow.in_flight.is_empty() || !flow.pending.is_empty();
        if has_more || flow.state != State::Open || flow.is_departing {
            self.calls.mark_dirty(index);
        }
    }

    fn on_accept(&mut self, index: u32, result: i32, flags: u32) {
        let listener = &mut self.listeners[index as usize];
        if !cqueue::more(flags) {
            listener.is_armed = false;
            listener.retry_at = Time::default();
        }
        if result < 0 {
            listener.retry_at = Time::now().after(ACCEPT_PAUSE);
            return;
        }
        let socket = socket::owned(result);
        let peer = socket::peer(socket.as_fd());
        let group = group_of(peer, u32::try_from(result).unwrap_or(0));
        let transfer = UringTransfer {
            socket,
            peer,
            listener: ListenerId(u16::try_from(index).unwrap_or(0)),
            pending: Vec::new(),
            held_bytes: 0,
            has_finished: false,
        };
        if self
            .config
            .owns_group
            .as_ref()
            .is_some_and(|owns| !owns(group))
        {
            self.foreign.push_back((group, transfer));
        } else if let Some(index) = self.install(group, transfer, State::Knocking) {
            self.pending
                .push(Pending::Local(Local::Knock(self.calls.id(index))));
        }
    }

    fn on_connect(&mut self, index: u32, result: i32) {
        let id = self.calls.id(index);
        let flow = &mut self.calls.flows[index as usize];
        flow.address = None;
        match flow.state {
            State::Connecting if result == 0 => {
                flow.state = State::Open;
                self.calls.mark_dirty(index);
                self.pending.push(Pending::Connected(id));
            }
            State::Connecting => self.calls.begin_close(id, reason_of(-result), true),
            _ => self.calls.mark_dirty(index),
        }
    }

    /// Puts a connection into the table. Without room it is closed.
    pub(super) fn install(
        &mut self,
        group: u16,
        transfer: UringTransfer,
        state: State,
    ) -> Option<u32> {
        let Some(index) = self.calls.take_slot() else {
            socket::reset_on_close(&transfer.socket);
            return None;
        };
        self.calls.queued_bytes += transfer.pending.len();
        let sweep = self.calls.sweep;
        let flow = &mut self.calls.flows[index as usize];
        flow.state = state;
        flow.socket = Some(transfer.socket);
        flow.peer = transfer.peer;
        flow.listener = transfer.listener;
        flow.group = group;
        flow.pending = transfer.pending;
        flow.held_bytes = transfer.held_bytes;
        flow.has_finished = transfer.has_finished;
        flow.progress = sweep;
        Some(index)
    }
}

fn reason_of(errno: i32) -> DeadReason {
    match errno {
        libc::ECONNRESET | libc::EPIPE | libc::ECONNREFUSED => DeadReason::Reset,
        libc::ETIMEDOUT => DeadReason::TimedOut,
        libc::ECANCELED => DeadReason::Aborted,
        errno => DeadReason::Os(errno),
    }
}
