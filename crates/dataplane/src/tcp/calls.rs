//! What an application does with a stack: connect, send, receive, close.

use super::buffer::index;
use super::connection::{Connection, Flags, State};
use super::secrets::Ends;
use super::stack::{EPHEMERAL_FIRST, Stack};
use super::wire::Ip;
use super::wire::length32;
use crate::api::FlowId;

/// Why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No address of this stack has the peer's family.
    #[error("no local address for that family")]
    NoAddress,
    /// No queue of the interface leads to this stack.
    #[error("no queue of the interface leads to this shard")]
    NoQueue,
    /// The table of connections, or of neighbours, is full.
    #[error("the table of connections is full")]
    Full,
    /// All ports, or the chosen one, are in use with that peer.
    #[error("the port is in use")]
    PortInUse,
}

impl Stack {
    fn get(&self, flow: FlowId) -> Option<&Connection> {
        self.connections
            .get(index(flow.index))
            .filter(|found| found.generation == flow.generation && found.state != State::Free)
    }

    fn get_mut(
        &mut self,
        flow: FlowId,
    ) -> Option<(&mut Connection, &mut super::connection::Context)> {
        let connection = self.connections.get_mut(index(flow.index))?;
        let is_it = connection.generation == flow.generation && connection.state != State::Free;
        is_it.then_some((connection, &mut self.context))
    }

    /// Opens a connection from `local` to `remote`. A local port of 0 means any free port.
    ///
    /// # Errors
    /// The table is full, or no port is free.
    pub fn connect(&mut self, local: (Ip, u16), remote: (Ip, u16)) -> Result<FlowId, ConnectError> {
        let mut ends = Ends {
            local: local.0,
            local_port: local.1,
            remote: remote.0,
            remote_port: remote.1,
        };
        if ends.local.is_v4() != ends.remote.is_v4() || !self.context.is_own(&ends.local) {
            return Err(ConnectError::NoAddress);
        }
        if !self.arrive_by_own_group() {
            return Err(ConnectError::NoQueue);
        }
        if ends.local_port == 0 {
            ends.local_port = self.free_port(ends)?;
        } else if self.find(&ends).is_some() || self.is_elsewhere(&ends) {
            return Err(ConnectError::PortInUse);
        }
        let slot = self.create(&ends, None).ok_or(ConnectError::Full)?;
        let sequence = self.secrets.initial_sequence(&ends, self.context.now_us);
        let connection = &mut self.connections[index(slot)];
        connection.state = State::SynSent;
        connection.unacknowledged = sequence;
        connection.next = sequence;
        connection.flags.set(Flags::SYN_DUE);
        connection.flags.set(Flags::KNOWN);
        connection.list(&mut self.context);
        Ok(connection.id())
    }

    /// Opens a connection from one of the stack's addresses, in turn, with any free port. Addresses
    /// on the peer's link come first.
    ///
    /// # Errors
    /// The table is full, or no port is free.
    pub fn connect_from_any(&mut self, remote: (Ip, u16)) -> Result<FlowId, ConnectError> {
        let addresses = &self.context.config.addresses;
        let is_on_link = |(own, prefix): &(Ip, u8)| own.agrees(&remote.0, *prefix);
        let is_direct = addresses.iter().any(is_on_link);
        let count = addresses.len();
        let mut result = Err(ConnectError::NoAddress);
        for step in 0..count {
            let at = (self.next_source + step) % count;
            let candidate = self.context.config.addresses[at];
            let fits = candidate.0.is_v4() == remote.0.is_v4();
            if !fits || (is_direct && !is_on_link(&candidate)) {
                continue;
            }
            result = self.connect((candidate.0, 0), remote);
            if result != Err(ConnectError::PortInUse) {
                self.next_source = (at + 1) % count;
                break;
            }
        }
        result
    }

    /// A port of the dynamic range that is not in use with that peer (RFC 6056 §3.3.1).
    fn free_port(&mut self, mut ends: Ends) -> Result<u16, ConnectError> {
        for _ in EPHEMERAL_FIRST..=u16::MAX {
            ends.local_port = self.next_port;
            self.next_port = self.next_port.checked_add(1).unwrap_or(EPHEMERAL_FIRST);
            if self.find(&ends).is_none() && !self.is_elsewhere(&ends) {
                return Ok(ends.local_port);
            }
        }
        Err(ConnectError::PortInUse)
    }

    /// Both ends of a connection.
    pub fn ends(&self, flow: FlowId) -> Option<Ends> {
        self.get(flow).map(|connection| connection.ends)
    }

    /// Whether the connection exists and the application has not closed it.
    pub fn is_open(&self, flow: FlowId) -> bool {
        self.get(flow)
            .is_some_and(|connection| !connection.flags.has(Flags::CLOSED))
    }

    /// Queues data, and gives the number of bytes that were taken. Less than all were taken when
    /// the connection's queue, or the stack's memory, is full: [`super::Event::Sent`] follows.
    pub fn send(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let Some((connection, context)) = self.get_mut(flow) else {
            return 0;
        };
        let is_closing =
            connection.flags.has(Flags::FIN_WANTED) || connection.flags.has(Flags::RESET_DUE);
        if is_closing || !connection.state.may_send() {
            return 0;
        }
        let length_max = context.config.send_queue_max_bytes;
        let taken = connection.queue.push(&mut context.pool, data, length_max);
        if taken < data.len() {
            connection.wait_for_room(context);
        }
        if taken > 0 {
            connection.list(context);
        }
        taken
    }

    /// Bytes that [`Stack::send`] takes now. If that is less than half of the connection's queue,
    /// [`super::Event::Sent`] follows.
    pub fn send_space_bytes(&mut self, flow: FlowId) -> usize {
        let Some((connection, context)) = self.get_mut(flow) else {
            return 0;
        };
        let max = context.config.send_queue_max_bytes;
        let space = connection.queue.space(&context.pool, max);
        if space < max / 2 {
            connection.wait_for_room(context);
        }
        index(space)
    }

    /// Bytes that a connection has queued and that its peer has not acknowledged.
    pub fn queued_bytes(&self, flow: FlowId) -> usize {
        self.get(flow)
            .map_or(0, |connection| index(connection.queue.len()))
    }

    /// The application is done with received bytes: the window opens by so many.
    pub fn receive_done(&mut self, flow: FlowId, bytes: usize) {
        if let Some((connection, context)) = self.get_mut(flow) {
            connection.held_bytes = connection.held_bytes.saturating_sub(length32(bytes));
            // Only a window that has become small is worth a segment of its own.
            let left = connection
                .receive_edge
                .wrapping_sub(connection.receive_next);
            if left <= context.config.receive_window_bytes / 2 {
                connection.flags.set(Flags::WINDOW_OPENED);
                connection.list(context);
            }
        }
    }

    /// Sends a FIN after what is queued. Data of the peer is still received.
    pub fn finish(&mut self, flow: FlowId) {
        let Some((connection, context)) = self.get_mut(flow) else {
            return;
        };
        match connection.state {
            State::Established | State::SynReceived => connection.state = State::FinWait1,
            State::CloseWait => connection.state = State::LastAck,
            _ => return,
        }
        connection.flags.set(Flags::FIN_WANTED);
        connection.list(context);
    }

    /// Closes a connection after what is queued was sent. The application receives no more data.
    pub fn close(&mut self, flow: FlowId) {
        let Some((connection, context)) = self.get_mut(flow) else {
            return;
        };
        if connection.state == State::SynSent {
            self.abort(flow);
            return;
        }
        connection.flags.set(Flags::CLOSED);
        if connection.state == State::FinWait2 {
            connection.arm_idle(context, context.config.time_wait_ms);
        }
        self.finish(flow);
    }

    /// Ends a connection with an RST.
    pub fn abort(&mut self, flow: FlowId) {
        let Some((connection, context)) = self.get_mut(flow) else {
            return;
        };
        connection.flags.set(Flags::CLOSED);
        if matches!(connection.state, State::SynSent | State::TimeWait) {
            connection.tell_dead(context, crate::api::DeadReason::Aborted);
            let slot = connection.slot;
            self.remove(slot);
            return;
        }
        connection.flags.set(Flags::RESET_DUE);
        connection.list(context);
    }

    /// Ends a connection that has knocked. The application hears no more of it.
    pub fn reject(&mut self, flow: FlowId) {
        if let Some((connection, _)) = self.get_mut(flow) {
            connection.flags.clear(Flags::KNOWN);
        }
        self.abort(flow);
    }

    /// Ends all connections with RSTs.
    pub fn abort_all(&mut self) {
        let flows: Vec<FlowId> = self
            .connections
            .iter()
            .filter(|connection| connection.state != State::Free)
            .map(Connection::id)
            .collect();
        for flow in flows {
            self.abort(flow);
        }
    }
}
