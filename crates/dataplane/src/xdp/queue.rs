//! One queue of the interface: its socket, the frames of the batch, and what moves to other shards.

use std::sync::{Arc, Mutex};

use super::socket::{Frame, Socket};
use crate::api::FlowId;
use crate::tcp::{Concern, Counters, Data, Event, Stack};

/// Marks a packet that lies in memory of its own: it was put together from several frames, or
/// another queue has received it.
const KEPT: u32 = 1 << 31;
/// A packet of several frames is this large at most.
const PACKET_MAX_BYTES: usize = 1 << 16;

/// A queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) socket: Socket,
    batch: Vec<Frame>,
    kept: Vec<Vec<u8>>,
    passed: Vec<(Concern, Vec<u8>)>,
    pub(super) events: Vec<Event>,
    pub(super) published: Arc<Mutex<Counters>>,
    /// Its flows are still on their way: nothing is received meanwhile.
    pub(super) is_held: bool,
}

impl Queue {
    pub(super) fn new(socket: Socket) -> Queue {
        Queue {
            socket,
            batch: Vec::with_capacity(256),
            kept: Vec::new(),
            passed: Vec::new(),
            events: Vec::new(),
            published: Arc::default(),
            is_held: false,
        }
    }

    /// Takes up to `most` frames. Gives how many were taken, and how many are left.
    pub(super) fn receive(&mut self, most: u32, stack: &mut Stack, is_last: bool) -> (u32, u32) {
        let before = self.batch.len();
        let mut left = self.socket.receiver.receive(most, &mut self.batch);
        // A packet's last frame belongs to its first.
        while self.batch.last().is_some_and(|frame| frame.is_continued) && left > 0 {
            left = self.socket.receiver.receive(1, &mut self.batch);
        }
        let mut at = before;
        while at < self.batch.len() {
            at += self.take_packet(at, stack, is_last);
        }
        let taken = self.batch.len() - before;
        (u32::try_from(taken).unwrap_or(u32::MAX), left)
    }

    /// Takes one packet that begins at `at` in the batch. Returns the frames that it has.
    fn take_packet(&mut self, at: usize, stack: &mut Stack, is_last: bool) -> usize {
        let Some(first) = self.batch.get(at) else {
            return 1;
        };
        let Socket {
            receiver, sender, ..
        } = &mut self.socket;
        if !first.is_continued {
            let index = u32::try_from(at).unwrap_or(0);
            let bytes = receiver.bytes(first);
            let concern = stack.offer(index, bytes, is_last, sender);
            if concern != Concern::This && !is_last {
                self.passed.push((concern, bytes.to_vec()));
            }
            return 1;
        }
        let mut packet = Vec::with_capacity(PACKET_MAX_BYTES);
        let mut count = 0;
        for frame in self.batch.iter().skip(at) {
            count += 1;
            if packet.len() < PACKET_MAX_BYTES {
                packet.extend_from_slice(receiver.bytes(frame));
            }
            if !frame.is_continued {
                break;
            }
        }
        let concern = stack.offer(kept_index(&self.kept), &packet, is_last, sender);
        if concern != Concern::This && !is_last {
            self.passed.push((concern, packet));
        } else {
            self.kept.push(packet);
        }
        count
    }

    /// Next frame that concerns other queues.
    pub(super) fn take_passed(&mut self) -> Option<(Concern, Vec<u8>)> {
        self.passed.pop()
    }

    /// Offers a segment that another queue has received. False if its connection is not here.
    pub(super) fn offer(&mut self, stack: &mut Stack, frame: &[u8], is_last: bool) -> bool {
        let index = kept_index(&self.kept);
        let sender = &mut self.socket.sender;
        if stack.offer(index, frame, is_last, sender) == Concern::Unknown {
            return false;
        }
        self.kept.push(frame.to_vec());
        true
    }

    /// Where an event's data lies.
    pub(super) fn data<'a>(&'a self, data: &'a Data) -> &'a [u8] {
        match data {
            Data::Owned(bytes) => bytes,
            Data::Frame {
                frame_index,
                start,
                length,
            } => {
                let packet = if frame_index & KEPT != 0 {
                    let at = (frame_index & !KEPT) as usize;
                    self.kept.get(at).map_or(&[][..], Vec::as_slice)
                } else {
                    self.batch
                        .get(*frame_index as usize)
                        .map_or(&[][..], |frame| self.socket.receiver.bytes(frame))
                };
                packet.get(*start..start + length).unwrap_or(&[])
            }
        }
    }

    /// The batch is done: its frames go back to the kernel.
    pub(super) fn give_back(&mut self) {
        self.socket.receiver.give_back(&self.batch);
        self.batch.clear();
        self.kept.clear();
    }
}

/// The number of the next packet in memory of its own.
fn kept_index(kept: &[Vec<u8>]) -> u32 {
    KEPT | u32::try_from(kept.len()).unwrap_or(0)
}

/// A queue and its stack.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) queue: Queue,
    pub(super) stack: Stack,
}

/// What goes from one shard to another.
#[derive(Debug)]
pub struct XdpTransfer(Content);

#[derive(Debug)]
enum Content {
    Arrival(Arrival),
    /// A frame that another shard's queue has received. So many stacks are left that may have its
    /// connection; 0: all take it as news.
    Frame(Vec<u8>, usize),
}

/// What arrives with a queue, in this order.
#[derive(Debug)]
pub(super) enum Arrival {
    Queue(Box<Moved>),
    /// A flow of the queue, for the application's sake.
    Flow(FlowId),
    /// All flows are here.
    Begin,
}

impl XdpTransfer {
    pub(super) fn queue(moved: Box<Moved>) -> Self {
        Self(Content::Arrival(Arrival::Queue(moved)))
    }

    pub(super) fn flow(flow: FlowId) -> Self {
        Self(Content::Arrival(Arrival::Flow(flow)))
    }

    pub(super) fn begin() -> Self {
        Self(Content::Arrival(Arrival::Begin))
    }

    pub(super) fn news(frame: Vec<u8>) -> Self {
        Self(Content::Frame(frame, 0))
    }

    pub(super) fn stray(frame: Vec<u8>, left: usize) -> Self {
        Self(Content::Frame(frame, left))
    }

    pub(super) fn into_arrival(self) -> Option<Arrival> {
        match self.0 {
            Content::Arrival(arrival) => Some(arrival),
            Content::Frame(..) => None,
        }
    }

    pub(super) fn into_frame(self) -> Option<(Vec<u8>, usize)> {
        match self.0 {
            Content::Frame(frame, left) => Some((frame, left)),
            Content::Arrival(_) => None,
        }
    }
}
