//! How a connection begins: it is accepted, and its client chooses an export.

use std::net::IpAddr;

use dataplane::histogram::add;
use dataplane::{Calls, FlowId, ListenerId};

use crate::allow::ClientIdentity;
use crate::connection::{Connection, Phase, Session};
use crate::export::Visible;
use crate::lock::lock;
use crate::nbd::handshake::{self, HandshakeStep, TlsPolicy};
use crate::nvme::queue::Queue;
use crate::server::BlockService;
use crate::tls::{ServerTls, Tls};

impl BlockService {
    pub(crate) fn knock<C: Calls>(
        &mut self,
        flow: FlowId,
        listener: ListenerId,
        peer: Option<IpAddr>,
        calls: &mut C,
    ) {
        if self.is_draining() {
            add(&self.counters().rejected, 1);
            calls.reject(flow);
            return;
        }
        add(&self.counters().connections, 1);
        calls.accept(flow);
        let policy = match &*lock(&self.shared.tls) {
            None => TlsPolicy::None,
            Some(tls) if tls.is_required => TlsPolicy::Required,
            Some(_) => TlsPolicy::Offered,
        };
        let mut connection = Connection::new(flow, peer, policy);
        match &self.shared.nvme {
            Some((subsystem, first)) if listener.0 >= *first => {
                let queue = Queue::new(subsystem.namespaces());
                connection.phase = Phase::Nvme(Box::new(queue));
            }
            _ => connection.say(calls, &handshake::greeting()),
        }
        self.place(connection);
    }

    pub(crate) fn negotiate<C: Calls>(
        &mut self,
        connection: &mut Connection,
        bytes: &[u8],
        calls: &mut C,
    ) -> (usize, bool) {
        if connection.holds_memory() {
            // The client reads no replies.
            connection.is_blocked = true;
            return (0, false);
        }
        let Phase::Handshake(handshake) = &mut connection.phase else {
            return (0, false);
        };
        let exports = self.shared.exports();
        let visible = Visible {
            exports: &exports,
            client: ClientIdentity::with(
                connection.peer,
                connection.tls.as_deref_mut().and_then(Tls::client),
            ),
            shard: self.shard,
        };
        self.scratch.clear();
        let (used, step) = handshake.step(bytes, &visible, &mut self.scratch);
        if !self.scratch.is_empty() {
            connection.say(calls, &self.scratch);
        }
        match step {
            HandshakeStep::Wait => (used, false),
            HandshakeStep::Next => (used, true),
            HandshakeStep::StartTls => {
                if let Phase::Handshake(handshake) = &mut connection.phase {
                    handshake.on_tls();
                }
                // What the client sent before its first record might be somebody else's.
                let is_clean = used == bytes.len();
                let tls = lock(&self.shared.tls).as_ref().and_then(ServerTls::begin);
                connection.tls = tls.filter(|_| is_clean).map(Box::new);
                connection.is_closing = connection.tls.is_none();
                (used, false)
            }
            HandshakeStep::Close => {
                connection.is_closing = true;
                (used, false)
            }
            HandshakeStep::Begin(chosen) => {
                let Some(tenant) = self.tenants.open(&chosen.export) else {
                    connection.is_closing = true;
                    return (used, false);
                };
                add(&self.counters().sessions, 1);
                connection.stalled_looks = 0;
                connection.session = Some(Session {
                    export: chosen.export,
                    tenant,
                    style: chosen.style,
                    has_allocation: chosen.has_allocation,
                });
                connection.phase = Phase::Request;
                (used, true)
            }
        }
    }
}
