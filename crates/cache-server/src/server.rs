//! The application that each shard runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dataplane::{Application, Calls, Context, DeadReason, Event, FlowId};

use crate::answer::Answers;
use crate::connection::{Connection, Phase};
use crate::counters::count;
use crate::execute;
pub use crate::shared::SharedCache;

/// How often a shard looks for idle connections and expired items.
const TICK: Duration = Duration::from_millis(100);
/// Chunks that the crawler looks at each tick, at about 20 ns each: 40 µs, a tenth of a usual
/// objective.
const CRAWL_CHUNKS: usize = 2_000;
const TICK_TOKEN: u64 = 1;

/// The cache on one shard.
pub struct Cache {
    shared: Arc<SharedCache>,
    shard: usize,
    connections: Vec<Option<Connection>>,
    is_ticking: bool,
}

impl Cache {
    /// The application of one shard.
    pub fn new(shared: Arc<SharedCache>, shard: usize) -> Self {
        Self {
            shared,
            shard,
            connections: Vec::new(),
            is_ticking: false,
        }
    }

    fn place(&mut self, connection: Connection) {
        let index = connection.flow.index as usize;
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
    }

    /// Runs what `data` and earlier bytes hold.
    fn receive<C: Calls>(&mut self, flow: FlowId, data: &[u8], calls: &mut C) {
        let shared = &*self.shared;
        let slot = self
            .connections
            .get_mut(flow.index as usize)
            .and_then(Option::as_mut);
        let Some(connection) = slot.filter(|connection| connection.flow == flow) else {
            return;
        };
        let counters = &shared.counters[self.shard];
        count(&counters.bytes_read, data.len() as u64);
        let mut answers = Answers {
            calls,
            flow,
            counters,
        };
        let done = if connection.carry.is_empty() {
            let done = execute::run(shared, connection, &mut answers, data);
            connection.carry.extend_from_slice(&data[done..]);
            done
        } else {
            let mut carry = std::mem::take(&mut connection.carry);
            carry.extend_from_slice(data);
            let done = execute::run(shared, connection, &mut answers, &carry);
            carry.drain(..done);
            connection.carry = carry;
            done
        };
        if connection.carry.is_empty() && connection.carry.capacity() > 0 {
            // An idle connection holds no memory.
            connection.carry = Vec::new();
        }
        calls.recv_done(flow, done);
        let is_draining = shared.is_draining.load(Ordering::Relaxed);
        let ends = connection.is_closing
            || (is_draining && connection.is_idle())
            || (connection.has_finished && !connection.is_blocked);
        if ends {
            calls.close(flow);
        }
    }

    fn look_around<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        context.set_timer(TICK_TOKEN, TICK);
        let shared = Arc::clone(&self.shared);
        shared.tick();
        if self.shard == 0 {
            for partition in 0..shared.partitions() {
                shared
                    .lock(partition)
                    .crawl((CRAWL_CHUNKS / shared.partitions()).max(1));
            }
        }
        let timeout = shared.idle_timeout_s.load(Ordering::Relaxed);
        if timeout == 0 {
            return;
        }
        let now = shared.now();
        for connection in self.connections.iter().flatten() {
            if now.saturating_sub(connection.active_at) > timeout {
                count(&shared.counters[self.shard].idle_kicks, 1);
                context.calls.close(connection.flow);
            }
        }
    }
}

impl Application for Cache {
    type FlowState = Connection;

    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>) {
        match event {
            Event::Recv { flow, data } => self.receive(flow, data, context.calls),
            Event::Sent { flow } => self.receive(flow, &[], context.calls),
            Event::Knock { flow, .. } => {
                let counters = &self.shared.counters[self.shard];
                if self.shared.is_draining.load(Ordering::Relaxed) {
                    count(&counters.rejected_connections, 1);
                    context.calls.reject(flow);
                    return;
                }
                count(&counters.total_connections, 1);
                context.calls.accept(flow);
                self.place(Connection::new(flow, self.shared.now()));
            }
            Event::PeerFinished { flow } => {
                let slot = self
                    .connections
                    .get_mut(flow.index as usize)
                    .and_then(Option::as_mut);
                if let Some(connection) = slot.filter(|connection| connection.flow == flow) {
                    connection.has_finished = true;
                    if !connection.is_blocked {
                        context.calls.close(flow);
                    }
                }
            }
            Event::Dead { flow, reason } => {
                let slot = self.connections.get_mut(flow.index as usize);
                let Some(slot) = slot else { return };
                if slot
                    .as_ref()
                    .is_none_or(|connection| connection.flow != flow)
                {
                    return;
                }
                if let Some(Connection {
                    phase:
                        Phase::Value {
                            partition,
                            reserved,
                            ..
                        },
                    ..
                }) = slot.take()
                {
                    self.shared.lock(partition).abandon(reserved);
                }
                debug_assert!(reason != DeadReason::Os(libc::EBADF), "closed twice");
            }
            Event::Timer { .. } => self.look_around(context),
            Event::Connected { .. } | Event::Filled { .. } | Event::File { .. } => {}
        }
    }

    fn on_batch_end<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        if !self.is_ticking {
            self.is_ticking = true;
            self.look_around(context);
        }
    }

    fn on_drain<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        self.shared.is_draining.store(true, Ordering::Relaxed);
        for connection in self.connections.iter().flatten() {
            if connection.is_idle() {
                context.calls.close(connection.flow);
            }
        }
    }

    fn detach(&mut self, flow: FlowId) -> Connection {
        let now = self.shared.now();
        self.connections
            .get_mut(flow.index as usize)
            .and_then(Option::take)
            .unwrap_or_else(|| Connection::new(flow, now))
    }

    fn attach<C: Calls>(
        &mut self,
        flow: FlowId,
        mut state: Connection,
        context: &mut Context<'_, C>,
    ) {
        state.flow = flow;
        // It may have been on its way when the shard was told to drain.
        let is_draining = self.shared.is_draining.load(Ordering::Relaxed);
        if (state.has_finished && !state.is_blocked) || (is_draining && state.is_idle()) {
            context.calls.close(flow);
        }
        self.place(state);
    }
}
