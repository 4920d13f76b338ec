//! An application that sends back what arrives, for an example and for tests.

use std::collections::HashMap;

use dataplane::{Application, Calls, Context, Event, FlowId};

/// Echoes everything, however slowly the peer reads: bytes without room wait here, and are not
/// done.
#[derive(Default)]
pub(crate) struct Echo {
    unsent: HashMap<FlowId, Vec<u8>>,
    /// The most bytes of one connection that had no room.
    pub(crate) unsent_max: usize,
}

impl Application for Echo {
    type FlowState = Vec<u8>;

    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>) {
        let calls = &mut *context.calls;
        match event {
            Event::Knock { flow, .. } => calls.accept(flow),
            Event::Recv { flow, data } => {
                let waits = !self.unsent.is_empty() && self.unsent.contains_key(&flow);
                let sent = if waits { 0 } else { calls.send(flow, data) };
                calls.recv_done(flow, sent);
                if sent < data.len() {
                    let unsent = self.unsent.entry(flow).or_default();
                    unsent.extend_from_slice(&data[sent..]);
                    self.unsent_max = self.unsent_max.max(unsent.len());
                }
            }
            Event::Sent { flow } => {
                let Some(mut unsent) = self.unsent.remove(&flow) else {
                    return;
                };
                let sent = calls.send(flow, &unsent);
                calls.recv_done(flow, sent);
                unsent.drain(..sent);
                if !unsent.is_empty() {
                    self.unsent.insert(flow, unsent);
                }
            }
            Event::PeerFinished { flow } => calls.close(flow),
            Event::Dead { flow, .. } => drop(self.unsent.remove(&flow)),
            Event::Connected { .. }
            | Event::Filled { .. }
            | Event::Timer { .. }
            | Event::File { .. } => {}
        }
    }

    fn detach(&mut self, flow: FlowId) -> Vec<u8> {
        self.unsent.remove(&flow).unwrap_or_default()
    }

    fn attach<C: Calls>(&mut self, flow: FlowId, unsent: Vec<u8>, _: &mut Context<'_, C>) {
        self.unsent
            .extend((!unsent.is_empty()).then_some((flow, unsent)));
    }
}
