//! The batched calls of the backend.

use std::net::SocketAddr;

use crate::api::{Calls, FlowId};
use crate::isolated::Queued;
use crate::tcp::Stack;
use crate::tcp::wire::Ip;

/// The batched calls: they reach the stack at once, and the wire with
/// [`Backend::flush`](crate::Backend::flush).
#[derive(Debug)]
pub struct XdpCalls {
    pub(super) stack: Stack,
}

impl Calls for XdpCalls {
    fn connect(&mut self, peer: SocketAddr) -> Option<FlowId> {
        let remote = Ip::from(peer.ip());
        self.stack.connect_from_any((remote, peer.port())).ok()
    }

    fn accept(&mut self, _flow: FlowId) {}

    fn reject(&mut self, flow: FlowId) {
        self.stack.reject(flow);
    }

    fn send(&mut self, flow: FlowId, data: &[u8]) -> usize {
        self.stack.send(flow, data)
    }

    fn send_space_bytes(&mut self, flow: FlowId) -> usize {
        self.stack.send_space_bytes(flow)
    }

    fn recv_done(&mut self, flow: FlowId, len_bytes: usize) {
        self.stack.receive_done(flow, len_bytes);
    }

    fn close(&mut self, flow: FlowId) {
        self.stack.close(flow);
    }

    fn abort(&mut self, flow: FlowId) {
        self.stack.abort(flow);
    }
}

impl Queued for XdpCalls {
    fn queued_bytes(&self, flow: FlowId) -> usize {
        self.stack.queued_bytes(flow)
    }
}
