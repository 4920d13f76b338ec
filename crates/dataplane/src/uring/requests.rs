//! What the kernel is asked for: receives, sends, connects, operations on files, and their end.

use std::os::fd::AsRawFd as _;

use io_uring::types::Fd;
use io_uring::{opcode, squeue};

use super::completion::Tag;
use super::flows::{Flow, Local, Receive, State};
use super::ring::Uring;
use super::{buffers, socket};

impl Uring {
    /// Asks the kernel for what `index` needs next: a receive, a send, a cancellation, or its end.
    #[inline]
    pub(super) fn settle(&mut self, index: u32) {
        let flow = &mut self.calls.flows[index as usize];
        flow.is_dirty = false;
        match flow.state {
            State::Free | State::Knocking => return,
            State::Connecting => {
                self.start_connect(index);
                return;
            }
            State::Open => self.register(index),
            State::Closing { is_at_once, .. } => {
                if is_at_once || flow.queued_bytes() == 0 {
                    self.finish(index);
                    return;
                }
            }
        }
        self.settle_receive(index);
        self.settle_send(index);
    }

    /// Registers an open flow's socket, if that is wanted. Without it the descriptor is used.
    fn register(&mut self, index: u32) {
        let flow = &mut self.calls.flows[index as usize];
        if !self.config.registers_sockets || flow.is_registered {
            return;
        }
        if let Some(socket) = &flow.socket {
            let socket = [socket.as_raw_fd()];
            let updated = self.ring.submitter().register_files_update(index, &socket);
            flow.is_registered = updated.is_ok_and(|count| count == 1);
        }
    }

    /// Takes the sockets of flows that are gone off the registered ones. The kernel closes them.
    pub(super) fn forget_stale_places(&mut self) {
        while let Some(index) = self.calls.stale_places.pop() {
            let nobody = self.ring.submitter().register_files_update(index, &[-1]);
            debug_assert!(nobody.is_ok(), "{nobody:?}");
        }
    }

    fn settle_receive(&mut self, index: u32) {
        let window = self.config.receive_window_bytes;
        let flow = &mut self.calls.flows[index as usize];
        let is_open = flow.state == State::Open && !flow.has_finished;
        let wants = is_open && !flow.is_departing && flow.held_bytes < window;
        let Some((fd, flags)) = socket_of(flow, index) else {
            return;
        };
        match (flow.receive, &mut flow.lent) {
            // What is lent is filled whatever the window: it is the application's own memory.
            (Receive::Idle, Some(lent)) if is_open => {
                flow.receive = Receive::Lent;
                let room = &mut lent.buffer.bytes_mut()[lent.at..lent.end];
                let len = u32::try_from(room.len()).unwrap_or(u32::MAX);
                let receive = opcode::Recv::new(fd, room.as_mut_ptr(), len).build();
                let receive = receive.flags(flags);
                self.push(receive.user_data(Tag::ReceiveLent.encode(index)));
            }
            (Receive::Idle, None) if wants => {
                flow.receive = Receive::Armed;
                let receive = if flow.single_receives > 0 {
                    flow.single_receives -= 1;
                    opcode::Recv::new(fd, std::ptr::null_mut(), 0)
                        .buf_group(buffers::GROUP)
                        .build()
                        .flags(squeue::Flags::BUFFER_SELECT)
                } else {
                    opcode::RecvMulti::new(fd, buffers::GROUP).build()
                };
                let receive = receive.flags(flags);
                self.push(receive.user_data(Tag::Receive.encode(index)));
            }
            // What it receives until then is copied into what is lent.
            (Receive::Armed, Some(_)) => self.cancel_receive(index),
            (Receive::Armed, None) if !wants => self.cancel_receive(index),
            (Receive::Lent, _) if !is_open => self.cancel_receive(index),
            _ => {}
        }
    }

    /// Ends the receive that is under way. Its completion follows.
    fn cancel_receive(&mut self, index: u32) {
        let flow = &mut self.calls.flows[index as usize];
        let tag = match flow.receive {
            Receive::Armed => Tag::Receive,
            Receive::Lent => Tag::ReceiveLent,
            Receive::Idle | Receive::Cancelling => return,
        };
        flow.receive = Receive::Cancelling;
        let cancel = opcode::AsyncCancel::new(tag.encode(index)).build();
        self.push(cancel.user_data(Tag::Ignored.encode(index)));
    }

    fn settle_send(&mut self, index: u32) {
        let flow = &mut self.calls.flows[index as usize];
        if flow.is_sending || flow.is_lent {
            return;
        }
        if flow.in_flight.is_empty() {
            // What a departing flow has not begun to send goes with it.
            if flow.pending.is_empty() || flow.is_departing {
                return;
            }
            std::mem::swap(&mut flow.pending, &mut flow.in_flight);
            flow.taken_bytes = 0;
        }
        let Some((fd, flags)) = socket_of(flow, index) else {
            return;
        };
        let rest = &flow.in_flight[flow.taken_bytes..];
        let start = rest.as_ptr();
        let len = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        flow.is_sending = true;
        let zero_copy = self.config.zero_copy_from_bytes;
        let entry = if zero_copy.is_some_and(|from| rest.len() >= from) {
            flow.is_lent = true;
            opcode::SendZc::new(fd, start, len)
                .flags(libc::MSG_NOSIGNAL)
                .build()
        } else {
            opcode::Send::new(fd, start, len)
                .flags(libc::MSG_NOSIGNAL)
                .build()
        };
        let entry = entry.flags(flags);
        self.push(entry.user_data(Tag::Send.encode(index)));
    }

    fn start_connect(&mut self, index: u32) {
        let flow = &mut self.calls.flows[index as usize];
        let (None, Some(peer), Some(socket)) = (&flow.address, flow.peer, &flow.socket) else {
            return;
        };
        let address = flow.address.insert(socket::encode(peer));
        let connect = opcode::Connect::new(
            Fd(socket.as_raw_fd()),
            (&raw const address.0).cast(),
            address.1,
        );
        self.push(connect.build().user_data(Tag::Connect.encode(index)));
    }

    /// Brings a closing flow to its end as soon as the kernel knows no request of it.
    fn finish(&mut self, index: u32) {
        let id = self.calls.id(index);
        let flow = &mut self.calls.flows[index as usize];
        let State::Closing { reason, is_at_once } = flow.state else {
            return;
        };
        if flow.is_quiet() {
            self.calls.free_slot(index);
            self.calls.locals.push_back(Local::Dead(id, reason));
            return;
        }
        self.cancel_receive(index);
        if is_at_once {
            let flow = &self.calls.flows[index as usize];
            // A send or connect under way ends with an error.
            if let Some(socket) = &flow.socket {
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            }
        }
    }

    /// Hands queued operations on files to the kernel.
    pub(super) fn start_files(&mut self) {
        let mut queued = std::mem::take(&mut self.calls.files.queued);
        for index in queued.drain(..) {
            if let Some(request) = self.calls.files.request(index) {
                self.push(request.user_data(Tag::File.encode(index)));
            }
        }
        self.calls.files.queued = queued;
    }
}

/// How a request names the flow's socket: by its place among the registered ones, or by its
/// descriptor.
fn socket_of(flow: &Flow, index: u32) -> Option<(Fd, squeue::Flags)> {
    let socket = flow.socket.as_ref()?;
    match i32::try_from(index) {
        Ok(place) if flow.is_registered => Some((Fd(place), squeue::Flags::FIXED_FILE)),
        _ => Some((Fd(socket.as_raw_fd()), squeue::Flags::empty())),
    }
}
