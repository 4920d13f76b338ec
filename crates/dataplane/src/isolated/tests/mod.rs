//! A stack without a network for the tests: both sides over real rings (`pair`), and each side with
//! a hostile one at the other end (`hostile`).

mod hostile;
mod pair;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::*;
use crate::api::{Calls, DeadReason, Event, FlowId, ListenerId};
use crate::backend::{Backend, Polled};

const SMALL_RING: usize = 1 << 16;
const LIMITS: Limits = Limits {
    flows_max: 8,
    queue_bytes: 100_000,
    pool_bytes: 400_000,
};

fn flow(index: u32) -> FlowId {
    FlowId {
        index,
        generation: 40 + index,
    }
}

/// An event of the stack without a network.
#[derive(Debug, Clone)]
enum Happens {
    Knock(FlowId),
    Recv(FlowId, Vec<u8>),
    Sent(FlowId),
    Finished(FlowId),
    Dead(FlowId),
}

/// A stack without a network: what it is told, and what it has to tell.
#[derive(Debug, Default)]
struct Fake {
    events: VecDeque<Happens>,
    calls: FakeCalls,
    is_listening: bool,
    has_aborted_all: bool,
    /// The bound of the last poll.
    bound: usize,
}

#[derive(Debug, Default)]
struct FakeCalls {
    queued: BTreeMap<u32, Vec<u8>>,
    /// Bytes for which there is memory.
    memory_bytes: usize,
    done: BTreeMap<u32, usize>,
    log: Vec<String>,
}

impl FakeCalls {
    /// The peer acknowledges so much, and has it.
    fn acknowledge(&mut self, flow: FlowId, bytes: usize) -> Vec<u8> {
        let queued = self.queued.entry(flow.index).or_default();
        let taken = queued.drain(..bytes.min(queued.len())).collect::<Vec<_>>();
        self.memory_bytes += taken.len();
        taken
    }
}

impl Calls for FakeCalls {
    fn connect(&mut self, _peer: SocketAddr) -> Option<FlowId> {
        None
    }
    fn accept(&mut self, _flow: FlowId) {}
    fn reject(&mut self, flow: FlowId) {
        self.log.push(format!("reject {}", flow.index));
    }
    fn send(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let taken = data.len().min(self.memory_bytes);
        self.memory_bytes -= taken;
        let queued = self.queued.entry(flow.index).or_default();
        queued.extend_from_slice(&data[..taken]);
        taken
    }
    fn send_space_bytes(&mut self, flow: FlowId) -> usize {
        self.log.push(format!("space {}", flow.index));
        self.memory_bytes
    }
    fn recv_done(&mut self, flow: FlowId, len_bytes: usize) {
        *self.done.entry(flow.index).or_default() += len_bytes;
    }
    fn close(&mut self, flow: FlowId) {
        self.log.push(format!("close {}", flow.index));
    }
    fn abort(&mut self, flow: FlowId) {
        self.log.push(format!("abort {}", flow.index));
    }
}

impl Queued for FakeCalls {
    fn queued_bytes(&self, flow: FlowId) -> usize {
        self.queued.get(&flow.index).map_or(0, Vec::len)
    }
}

impl Backend for Fake {
    type Calls = FakeCalls;
    type Transfer = ();

    fn poll(&mut self, bound: usize) -> Result<Polled, Error> {
        self.bound = bound;
        Ok(Polled {
            events: self.events.len().min(bound),
            backlog: 0,
        })
    }
    fn deliver(&mut self, handler: &mut impl FnMut(Event<'_>, &mut FakeCalls)) {
        for _ in 0..self.bound {
            let Some(event) = self.events.pop_front() else {
                return;
            };
            let event = match &event {
                Happens::Knock(flow) => Event::Knock {
                    flow: *flow,
                    listener: ListenerId(3),
                    peer: Some("[fd00::7]:999".parse().unwrap()),
                },
                Happens::Recv(flow, data) => Event::Recv { flow: *flow, data },
                Happens::Sent(flow) => Event::Sent { flow: *flow },
                Happens::Finished(flow) => Event::PeerFinished { flow: *flow },
                Happens::Dead(flow) => Event::Dead {
                    flow: *flow,
                    reason: DeadReason::Reset,
                },
            };
            handler(event, &mut self.calls);
        }
    }
    fn calls(&mut self) -> &mut FakeCalls {
        &mut self.calls
    }
    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn sleep(&mut self, _timeout: Option<Duration>) -> Result<(), Error> {
        Ok(())
    }
    fn watch(&mut self, _wake: BorrowedFd<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn stop_listening(&mut self) {
        self.is_listening = false;
    }
    fn flows(&self) -> usize {
        0
    }
    fn abort_all(&mut self) {
        self.has_aborted_all = true;
    }
}

fn fake() -> Fake {
    Fake {
        calls: FakeCalls {
            memory_bytes: usize::MAX / 2,
            ..FakeCalls::default()
        },
        is_listening: true,
        ..Fake::default()
    }
}
