//! The shared rings of an isolated stack: both processes against any calls, any events and any
//! words in the shared memory. Nobody panics, the memory of each side is bounded, and without
//! foreign words neither side finds fault with the other.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use dataplane::Error;
use dataplane::api::{Calls, DeadReason, Event, FlowId, ListenerId};
use dataplane::backend::{Backend, Polled};
use dataplane::isolated::{ApplicationSide, Limits, Queued, Rings, StackSide};

use crate::bytes::Bytes;
use crate::seeds::kept;
use crate::target::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "rings",
    run,
    seeds: || kept("rings"),
    memory_max_bytes: 4 << 20,
};

const RING_BYTES: usize = 1 << 16;
const CONTROL_BYTES: u64 = 4096;
const LIMITS: Limits = Limits {
    flows_max: 4,
    queue_bytes: 50_000,
    pool_bytes: 120_000,
};

enum Happens {
    Knock(FlowId),
    Recv(FlowId, usize),
    Sent(FlowId),
    Finished(FlowId),
    Dead(FlowId),
}

/// A stack without a network.
#[derive(Default)]
struct Stack {
    events: VecDeque<Happens>,
    calls: StackCalls,
    bound: usize,
}

#[derive(Default)]
struct StackCalls {
    queued: BTreeMap<FlowIndex, usize>,
    held: BTreeMap<FlowIndex, usize>,
    memory_bytes: usize,
}

type FlowIndex = (u32, u32);

fn key(flow: FlowId) -> FlowIndex {
    (flow.index, flow.generation)
}

impl Calls for StackCalls {
    fn connect(&mut self, _: SocketAddr) -> Option<FlowId> {
        None
    }
    fn accept(&mut self, _: FlowId) {}
    fn reject(&mut self, _: FlowId) {}
    fn send(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let taken = data.len().min(self.memory_bytes);
        self.memory_bytes -= taken;
        let queued = self.queued.entry(key(flow)).or_default();
        *queued += taken;
        assert!(*queued <= LIMITS.queue_bytes);
        taken
    }
    fn send_space_bytes(&mut self, _: FlowId) -> usize {
        self.memory_bytes
    }
    fn recv_done(&mut self, flow: FlowId, len_bytes: usize) {
        let held = self.held.entry(key(flow)).or_default();
        *held = held.checked_sub(len_bytes).unwrap();
    }
    fn close(&mut self, _: FlowId) {}
    fn abort(&mut self, _: FlowId) {}
}

impl Queued for StackCalls {
    fn queued_bytes(&self, flow: FlowId) -> usize {
        self.queued.get(&key(flow)).copied().unwrap_or(0)
    }
}

impl Backend for Stack {
    type Calls = StackCalls;
    type Transfer = ();

    fn poll(&mut self, bound: usize) -> Result<Polled, Error> {
        self.bound = bound;
        Ok(Polled {
            events: self.events.len().min(bound),
            backlog: 0,
        })
    }
    fn deliver(&mut self, handler: &mut impl FnMut(Event<'_>, &mut StackCalls)) {
        for _ in 0..self.bound {
            let Some(event) = self.events.pop_front() else {
                return;
            };
            let data;
            let event = match event {
                Happens::Knock(flow) => Event::Knock {
                    flow,
                    listener: ListenerId(0),
                    peer: None,
                },
                Happens::Recv(flow, length) => {
                    *self.calls.held.entry(key(flow)).or_default() += length;
                    data = vec![b'r'; length];
                    Event::Recv { flow, data: &data }
                }
                Happens::Sent(flow) => {
                    let freed = self.calls.queued.remove(&key(flow)).unwrap_or(0);
                    self.calls.memory_bytes += freed;
                    Event::Sent { flow }
                }
                Happens::Finished(flow) => Event::PeerFinished { flow },
                Happens::Dead(flow) => {
                    let freed = self.calls.queued.remove(&key(flow)).unwrap_or(0);
                    self.calls.memory_bytes += freed;
                    Event::Dead {
                        flow,
                        reason: DeadReason::Reset,
                    }
                }
            };
            handler(event, &mut self.calls);
        }
    }
    fn calls(&mut self) -> &mut StackCalls {
        &mut self.calls
    }
    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn sleep(&mut self, _: Option<Duration>) -> Result<(), Error> {
        Ok(())
    }
    fn watch(&mut self, _: BorrowedFd<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn stop_listening(&mut self) {}
    fn flows(&self) -> usize {
        0
    }
    fn abort_all(&mut self) {}
}

/// A place and a word of a hostile process: positions, the first records, or anywhere.
fn write_foreign(memory: &File, bytes: &mut Bytes<'_>) {
    let what = bytes.byte();
    let ring = u64::from(what & 1);
    let data = CONTROL_BYTES + ring * RING_BYTES as u64;
    let place = match what >> 1 & 3 {
        0 => ring * CONTROL_BYTES / 2,
        1 => ring * CONTROL_BYTES / 2 + 128,
        2 => data + u64::from(bytes.u16_le()) / 8 * 8 % RING_BYTES as u64,
        _ => data + u64::from(bytes.byte()) * 8,
    };
    let word = match what >> 3 & 3 {
        0 => bytes.u64_le(),
        1 => u64::from(bytes.byte()),
        2 => u64::from(bytes.u16_le()) << 32 | u64::from(bytes.byte()),
        _ => u64::from(bytes.u16_le()),
    };
    memory.write_all_at(&word.to_ne_bytes(), place).unwrap();
}

fn run(data: &[u8]) -> bool {
    let mut bytes = Bytes(data);
    let rings = Rings::new(RING_BYTES).unwrap();
    let memory = File::from(rings.memory().try_clone_to_owned().unwrap());
    let mut application = ApplicationSide::new(rings.try_clone().unwrap(), LIMITS).unwrap();
    let stack = Stack {
        calls: StackCalls {
            memory_bytes: usize::from(bytes.u16_le()),
            ..StackCalls::default()
        },
        ..Stack::default()
    };
    let mut stack = StackSide::new(stack, rings, LIMITS).unwrap();
    let mut events = VecDeque::new();
    // The stack's flows: generation, and whether it is there.
    let mut flows = [(0_u32, false); 4];
    let mut is_foreign = false;
    while !bytes.0.is_empty() {
        let step = bytes.byte();
        let index = usize::from(step >> 4 & 3);
        let (generation, is_there) = flows[index];
        let flow = FlowId {
            index: u32::try_from(index).unwrap(),
            generation,
        };
        match step & 15 {
            0 => {
                is_foreign = true;
                write_foreign(&memory, &mut bytes);
            }
            1 | 2 if !is_there => {
                let flow = FlowId {
                    generation: generation + 1,
                    ..flow
                };
                flows[index] = (generation + 1, true);
                events.push_back(Happens::Knock(flow));
            }
            1..=3 => events.push_back(Happens::Recv(flow, usize::from(bytes.u16_le()))),
            4 => events.push_back(Happens::Sent(flow)),
            5 => events.push_back(Happens::Finished(flow)),
            6 if is_there => {
                flows[index].1 = false;
                events.push_back(Happens::Dead(flow));
            }
            7 | 8 => {
                let sent = vec![b's'; usize::from(bytes.u16_le())];
                application.calls().send(flow, &sent);
            }
            9 => drop(application.calls().send_space_bytes(flow)),
            10 => application.calls().close(flow),
            11 => application.calls().abort(flow),
            12 => {
                // The events of this turn.
                let mut turn = std::mem::take(&mut events);
                let result = turn_of_stack(&mut stack, &mut turn);
                if check(result, is_foreign) {
                    return false;
                }
            }
            _ => {
                let polled = application.poll(64);
                application.deliver(&mut |event, calls| match event {
                    Event::Knock { flow, .. } if step & 0x80 != 0 => calls.reject(flow),
                    Event::Recv { flow, data } => calls.recv_done(flow, data.len()),
                    _ => {}
                });
                let result = polled.and_then(|_| application.flush());
                if check(result, is_foreign) {
                    return false;
                }
                assert!(application.flows() <= LIMITS.flows_max);
            }
        }
    }
    true
}

fn turn_of_stack(
    stack: &mut StackSide<Stack>,
    events: &mut VecDeque<Happens>,
) -> Result<(), Error> {
    stack.backend_mut().events.append(events);
    stack.poll(64)?;
    stack.deliver(&mut |_, _| panic!("an event past the ring"));
    stack.flush()
}

/// Whether a side found fault with the other one: only foreign words are a reason for that.
fn check(result: Result<(), Error>, is_foreign: bool) -> bool {
    let Err(error) = result else { return false };
    assert!(matches!(error, Error::Rings { .. }), "{error}");
    assert!(is_foreign, "{error}");
    true
}
