//! Several queues and several shards: a queue is a flow group, and moves with its connections.
//!
//! A shard sends by a socket of its own, and receives by those of the queues that it has. When a
//! queue moves, its connections go first. Meanwhile its frames wait in its ring. Then the receiving
//! half of the queue's socket follows, with the connections of which no application knows.

use std::collections::VecDeque;

use super::socket::{Frame, Receiver};
use crate::api::FlowId;
use crate::tcp::{Moved, Stack};

/// Connections that leave in one turn at most, so that others are not kept waiting.
const DEPARTED_PER_TURN: usize = 64;
/// Frames that other shards have handed over and that wait here. Further ones are lost.
const INBOX_MAX: usize = 4096;

/// What goes from one shard to another.
#[derive(Debug)]
pub enum XdpTransfer {
    /// A connection.
    Flow(Box<Moved>),
    /// A queue, after its connections.
    Queue(Box<Queue>),
    /// A frame that came by a queue of another shard.
    Frame(Box<[u8]>),
}

/// A queue on its way.
#[derive(Debug)]
pub struct Queue {
    receiver: Receiver,
    /// Connections that no application knows: not yet, or no longer.
    unknown: Vec<Moved>,
}

/// A queue that leaves.
#[derive(Debug)]
struct Departure {
    group: u16,
    /// Places of connections that are still here, or are gone.
    slots: Vec<u32>,
    queue: Box<Queue>,
}

/// The queues of a shard.
#[derive(Debug, Default)]
pub(super) struct Queues {
    receivers: Vec<(u16, Receiver)>,
    /// The receiver that is asked first in the next turn.
    first: usize,
    departures: VecDeque<Departure>,
    departed: usize,
    inbox: VecDeque<(u16, Box<[u8]>)>,
}

impl Queues {
    /// A queue leads here from now on.
    pub(super) fn add(&mut self, group: u16, receiver: Receiver, stack: &mut Stack) {
        self.receivers.push((group, receiver));
        stack.own_group(group, true);
    }

    /// Takes at most `bound` frames, the queues in turns. Returns how many still wait.
    pub(super) fn receive(&mut self, bound: u32, batch: &mut Vec<Frame>) -> usize {
        self.departed = 0;
        let count = self.receivers.len();
        let (mut left, mut backlog) = (bound, 0);
        for step in 0..count {
            let number = (self.first + step) % count;
            let receiver = &mut self.receivers[number].1;
            if left == 0 {
                backlog += receiver.waiting() as usize;
                continue;
            }
            let before = batch.len();
            let mut waiting = receiver.receive(left, number, batch);
            // A packet's last frame belongs to its first.
            while batch.last().is_some_and(|frame| frame.is_continued) && waiting > 0 {
                waiting = receiver.receive(1, number, batch);
            }
            let taken = u32::try_from(batch.len() - before).unwrap_or(u32::MAX);
            left = left.saturating_sub(taken);
            backlog += waiting as usize;
        }
        if count > 0 {
            self.first = (self.first + 1) % count;
        }
        backlog
    }

    /// A received frame's bytes.
    pub(super) fn bytes(&self, frame: &Frame) -> &[u8] {
        self.receivers
            .get(frame.receiver)
            .map_or(&[], |(_, receiver)| receiver.bytes(frame))
    }

    /// The group by whose queue a frame came.
    pub(super) fn group(&self, frame: &Frame) -> u16 {
        self.receivers
            .get(frame.receiver)
            .map_or(0, |(group, _)| *group)
    }

    /// Gives received frames back to the kernel.
    pub(super) fn give_back(&mut self, batch: &[Frame]) {
        if batch.is_empty() {
            return;
        }
        for (number, (_, receiver)) in self.receivers.iter_mut().enumerate() {
            receiver.give_back(batch, number);
        }
    }

    /// The sockets that frames come by.
    pub(super) fn receivers(&self) -> impl Iterator<Item = &Receiver> {
        self.receivers.iter().map(|(_, receiver)| receiver)
    }

    /// Keeps a frame that another shard has handed over.
    pub(super) fn keep(&mut self, group: u16, frame: Box<[u8]>) {
        if self.inbox.len() < INBOX_MAX {
            self.inbox.push_back((group, frame));
        }
    }

    /// Next frame that another shard has handed over.
    pub(super) fn take_kept(&mut self) -> Option<(u16, Box<[u8]>)> {
        self.inbox.pop_front()
    }

    /// Frames that other shards have handed over and that wait.
    pub(super) fn kept(&self) -> usize {
        self.inbox.len()
    }

    /// Whether a queue is about to leave.
    pub(super) fn is_departing(&self) -> bool {
        !self.departures.is_empty()
    }

    /// Begins to move a queue away. No frame of it may be in the hands of the stack.
    pub(super) fn begin_departure(&mut self, group: u16, stack: &mut Stack) {
        let found = self.receivers.iter().position(|(own, _)| *own == group);
        let Some(at) = found else { return };
        let (_, receiver) = self.receivers.remove(at);
        stack.own_group(group, false);
        self.departures.push_back(Departure {
            group,
            slots: stack.flows_of(group),
            queue: Box::new(Queue {
                receiver,
                unknown: Vec::new(),
            }),
        });
    }

    /// Next connection that is free to leave.
    pub(super) fn take_departed(&mut self, stack: &mut Stack) -> Option<(FlowId, u16, Moved)> {
        let departure = self.departures.front_mut()?;
        // The application has to hear of everything that happened here.
        while stack.events() == 0 && self.departed < DEPARTED_PER_TURN {
            let slot = departure.slots.pop()?;
            self.departed += 1;
            match stack.depart(slot, departure.group) {
                Some((Some(flow), moved)) => return Some((flow, departure.group, moved)),
                Some((None, moved)) => departure.queue.unknown.push(moved),
                None => {}
            }
        }
        None
    }

    /// Next queue whose connections have left.
    pub(super) fn take_departed_queue(&mut self) -> Option<(u16, Box<Queue>)> {
        if !self.departures.front()?.slots.is_empty() {
            return None;
        }
        let departure = self.departures.pop_front()?;
        Some((departure.group, departure.queue))
    }

    /// Takes a queue whose connections have arrived.
    pub(super) fn arrive(&mut self, group: u16, queue: Queue, stack: &mut Stack) {
        for moved in queue.unknown {
            stack.arrive(moved);
        }
        self.add(group, queue.receiver, stack);
    }
}
