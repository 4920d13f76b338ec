//! Several stacks on one interface: each frame comes by any queue, and queues move with their
//! connections.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;

use super::pair::{Random, Trouble};
use super::{Frames, LOCAL, LOCAL_MAC, REMOTE, REMOTE_MAC, arp_frame, config};
use crate::api::FlowId;
use crate::tcp::wire::arp::ArpOperation;
use crate::tcp::{Config, Data, Directory, Event, Stack};

const PORT: u16 = 11_211;
const GROUPS: u16 = 2;
const CONNECTIONS: usize = 8;

/// A server of two stacks, one group each at first.
struct Server {
    stacks: Vec<Stack>,
    frames: Vec<Frames>,
    /// What each connection has to send back, and whether its peer has finished.
    echoes: Vec<HashMap<FlowId, (VecDeque<u8>, bool)>>,
    /// The stack that has each group.
    owners: Vec<usize>,
}

impl Server {
    fn new(change: &dyn Fn(&mut Config), now_us: u64) -> Server {
        let directory = Arc::new(Directory::new(CONNECTIONS));
        let stacks = (0..GROUPS).map(|group| {
            let mut config = config(LOCAL_MAC, &[(LOCAL, 24)]);
            change(&mut config);
            let mut stack = Stack::new(config, now_us);
            stack.listen(None, PORT);
            stack.share(Arc::clone(&directory), GROUPS.into());
            stack.own_group(group, true);
            stack
        });
        Server {
            stacks: stacks.collect(),
            frames: (0..GROUPS).map(|_| Frames::default()).collect(),
            echoes: (0..GROUPS).map(|_| HashMap::new()).collect(),
            owners: (0..GROUPS.into()).collect(),
        }
    }

    /// A frame comes by a group's queue, and goes on to the stack that has its connection.
    fn receive(&mut self, group: u16, frame: &[u8]) {
        let mut left = VecDeque::from([(group, Box::from(frame), false)]);
        let mut steps = 0;
        while let Some((group, frame, is_handed_over)) = left.pop_front() {
            let at = self.owners[usize::from(group)];
            self.stacks[at].arrive_by(group, is_handed_over);
            self.stacks[at].receive(0, &frame, &mut self.frames[at]);
            self.work(at, &frame);
            while let Some((group, frame)) = self.stacks[at].take_foreign() {
                left.push_back((group, frame, true));
            }
            steps += 1;
            assert!(steps < 10, "a frame goes round and round");
        }
    }

    fn work(&mut self, at: usize, frame: &[u8]) {
        let stack = &mut self.stacks[at];
        let mut events = Vec::new();
        stack.take_events(&mut events);
        for event in events {
            match event {
                Event::Knock { flow, .. } => {
                    let before = self.echoes[at].insert(flow, Default::default());
                    assert!(before.is_none());
                }
                Event::Received { flow, data } => {
                    let bytes = match &data {
                        Data::Frame { start, length, .. } => &frame[*start..start + length],
                        Data::Owned(bytes) => bytes,
                    };
                    self.echoes[at].get_mut(&flow).unwrap().0.extend(bytes);
                    stack.receive_done(flow, bytes.len());
                }
                Event::Finished { flow } => self.echoes[at].get_mut(&flow).unwrap().1 = true,
                Event::Dead { flow, reason } => {
                    assert_eq!(reason, crate::api::DeadReason::Closed);
                    self.echoes[at].remove(&flow);
                }
                Event::Connected { .. } | Event::Sent { .. } => {}
            }
        }
        for (flow, (left, has_finished)) in &mut self.echoes[at] {
            let taken = stack.send(*flow, left.make_contiguous());
            left.drain(..taken);
            if left.is_empty() && *has_finished {
                stack.close(*flow);
            }
        }
        stack.flush(&mut self.frames[at]);
        self.collect(at);
    }

    /// Events of the flush itself.
    fn collect(&mut self, at: usize) {
        if self.stacks[at].events() > 0 {
            self.work(at, &[]);
        }
    }

    /// Gives a group to another stack, with its connections.
    fn move_group(&mut self, group: u16, to: usize) {
        let from = std::mem::replace(&mut self.owners[usize::from(group)], to);
        if from == to {
            return;
        }
        self.stacks[from].own_group(group, false);
        for slot in self.stacks[from].flows_of(group) {
            let Some((flow, moved)) = self.stacks[from].depart(slot, group) else {
                continue;
            };
            let arrived = self.stacks[to].arrive(moved).unwrap();
            if let Some(flow) = flow {
                let echo = self.echoes[from].remove(&flow).unwrap();
                self.echoes[to].insert(arrived, echo);
            }
        }
        self.stacks[to].own_group(group, true);
        assert_eq!(self.stacks[from].flows_of(group), []);
    }
}

/// One connection's stream at the client.
#[derive(Clone, Copy, Default)]
struct Stream {
    sent: usize,
    received: usize,
    is_dead: bool,
}

fn byte(offset: usize, flow: FlowId) -> u8 {
    u8::try_from((offset * 31 + offset / 251 + flow.index as usize * 97) % 256).unwrap()
}

fn client_works(
    stack: &mut Stack,
    frames: &mut Frames,
    streams: &mut HashMap<FlowId, Stream>,
    total: usize,
    frame: &[u8],
) {
    let mut events = Vec::new();
    stack.take_events(&mut events);
    for event in events {
        match event {
            Event::Received { flow, data } => {
                let bytes = match &data {
                    Data::Frame { start, length, .. } => &frame[*start..start + length],
                    Data::Owned(bytes) => bytes,
                };
                let stream = streams.get_mut(&flow).unwrap();
                for found in bytes {
                    assert_eq!(*found, byte(stream.received, flow));
                    stream.received += 1;
                }
                stack.receive_done(flow, bytes.len());
                if stream.received == total {
                    stack.close(flow);
                }
            }
            Event::Dead { flow, reason } => {
                assert_eq!(reason, crate::api::DeadReason::Closed);
                streams.get_mut(&flow).unwrap().is_dead = true;
            }
            _ => {}
        }
    }
    for (flow, stream) in streams {
        while stream.sent < total {
            let length = (total - stream.sent).min(5000);
            let bytes: Vec<u8> = (stream.sent..stream.sent + length)
                .map(|at| byte(at, *flow))
                .collect();
            let taken = stack.send(*flow, &bytes);
            stream.sent += taken;
            if taken < length {
                break;
            }
        }
    }
    stack.flush(frames);
}

/// Connections send `total` bytes each, and get them back.
fn exchange(seed: u64, total: usize, trouble: Trouble, astray: u32, change: &dyn Fn(&mut Config)) {
    let mut random = Random(seed | 1);
    let mut now_us = 5_000_000;
    let start_us = now_us;
    let mut server = Server::new(change, now_us);
    let mut config = config(REMOTE_MAC, &[(REMOTE, 24)]);
    change(&mut config);
    let mut client = Stack::new(config, now_us);
    let mut frames = Frames::default();
    let mut streams: HashMap<FlowId, Stream> = (0..CONNECTIONS)
        .map(|_| client.connect((REMOTE, 0), (LOCAL, PORT)).unwrap())
        .map(|flow| (flow, Stream::default()))
        .collect();
    // Frames on their way, by time of arrival. The group is the server's queue.
    let mut network: BTreeMap<(u64, u64), (Option<u16>, Vec<u8>)> = BTreeMap::new();
    let mut number = 0;
    while streams.values().any(|stream| !stream.is_dead)
        || server.echoes.iter().any(|echoes| !echoes.is_empty())
    {
        client_works(&mut client, &mut frames, &mut streams, total, &[]);
        let mut sent: Vec<(Option<u16>, Vec<u8>)> = Vec::new();
        for frame in frames.sent.drain(..) {
            // The low bit of the client's port, as a device would hash it.
            let mut group = u16::from(frame.get(35).unwrap_or(&0) & 1);
            if random.below(10_000) < astray {
                group = 1 - group;
            }
            sent.push((Some(group), frame));
        }
        for at in 0..server.stacks.len() {
            server.work(at, &[]);
            sent.extend(server.frames[at].sent.drain(..).map(|frame| (None, frame)));
        }
        for (group, frame) in sent {
            let mut copies = 1;
            if random.below(10_000) < trouble.loss {
                copies = 0;
            } else if random.below(10_000) < trouble.duplication {
                copies = 2;
            }
            for _ in 0..copies {
                let is_late = random.below(10_000) < trouble.reordering;
                let delay_us = 100 + u64::from(is_late) * u64::from(random.below(3000));
                number += 1;
                network.insert((now_us + delay_us, number), (group, frame.clone()));
            }
        }
        let next_ms = (now_us / 1000 + 1) * 1000;
        let arrival = network.first_key_value().map(|((at, _), _)| *at);
        now_us = arrival.map_or(next_ms, |at| at.min(next_ms)).max(now_us);
        while let Some(entry) = network.first_entry()
            && entry.key().0 <= now_us
        {
            let (group, frame) = entry.remove();
            server
                .stacks
                .iter_mut()
                .for_each(|stack| stack.expire(now_us));
            client.expire(now_us);
            if let Some(group) = group {
                server.receive(group, &frame);
            } else {
                client.receive(0, &frame, &mut frames);
                client_works(&mut client, &mut frames, &mut streams, total, &frame);
            }
            if random.below(100) == 0 {
                let group = u16::from(random.below(2) == 1);
                let to = usize::try_from(random.below(2)).unwrap();
                (0..2).for_each(|at| server.collect(at));
                server.move_group(group, to);
            }
        }
        server
            .stacks
            .iter_mut()
            .for_each(|stack| stack.expire(now_us));
        client.expire(now_us);
        assert!(now_us - start_us < 600_000_000_000, "stuck");
    }
    assert!(streams.values().all(|stream| stream.received == total));
    for stack in &mut server.stacks {
        // Nothing reaches anybody any more. A SYN that came twice may have left half a connection,
        // which the patient settings keep for half an hour. Keep-alive ends others after two hours.
        for minute in 1..=60 {
            stack.expire(now_us + minute * 60_000_000);
        }
        assert_eq!(stack.connections(), 0);
        assert_eq!(stack.open_connections(), 0);
        assert_eq!(stack.context.time_waits, 0);
        assert_eq!(stack.context.embryos, 0);
        assert_eq!(stack.context.pool.used_bytes(), 0, "memory came back");
        assert!(!stack.context.neighbours.knows(&REMOTE));
    }
    let directory = server.stacks[0].directory().unwrap();
    assert_eq!(directory.connections(), 0, "every place was given up");
}

fn patient(config: &mut Config) {
    config.retries_max = 30;
    config.syn_retries_max = 30;
}

#[test]
fn a_connection_is_served_whichever_queue_its_frames_take() {
    exchange(3, 100_000, Trouble::default(), 5000, &|_| {});
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nothing_is_lost_when_queues_move(
        seed in any::<u64>(),
        total in 1usize..60_000,
        loss in 0u32..300,
        reordering in 0u32..500,
        duplication in 0u32..300,
        astray in 0u32..5000,
        has_backlog in any::<bool>(),
    ) {
        // A cookie knows its connection by the first segment alone: that one has to come first.
        let is_bad = u32::from(has_backlog);
        let trouble = Trouble {
            loss: loss * is_bad,
            reordering: reordering * is_bad,
            duplication,
            corruption: 0,
        };
        exchange(seed, total, trouble, astray, &|config| {
            patient(config);
            if !has_backlog {
                // Cookies open all connections.
                config.backlog_max = 0;
            }
        });
    }
}

/// Two stacks, of which the first has both groups.
fn two() -> (Server, Frames) {
    let mut server = Server::new(&|_| {}, 5_000_000);
    server.move_group(1, 0);
    (server, Frames::default())
}

#[test]
fn what_one_stack_hears_of_a_neighbour_all_hear_once() {
    let (mut server, mut frames) = two();
    for (frame, heard_by_others) in [
        (arp_frame(ArpOperation::Reply, LOCAL), true),
        (arp_frame(ArpOperation::Request, REMOTE), true),
        (arp_frame(ArpOperation::Request, LOCAL), false),
    ] {
        let stack = &mut server.stacks[1];
        stack.arrive_by(0, false);
        stack.receive(0, &frame, &mut frames);
        let groups: Vec<u16> = std::iter::from_fn(|| stack.take_foreign())
            .map(|(group, _)| group)
            .collect();
        assert_eq!(groups, if heard_by_others { &[0, 1][..] } else { &[] });
        stack.arrive_by(0, true);
        stack.receive(0, &frame, &mut frames);
        assert!(stack.take_foreign().is_none());
    }
}

#[test]
fn a_stack_without_a_queue_opens_no_connection() {
    let (mut server, _) = two();
    let error = server.stacks[1].connect((LOCAL, 0), (REMOTE, 80));
    assert_eq!(error, Err(crate::tcp::ConnectError::NoQueue));
    assert!(server.stacks[0].connect((LOCAL, 0), (REMOTE, 80)).is_ok());
}

#[test]
fn the_answer_to_a_cookie_may_come_by_another_queue() {
    let mut server = Server::new(&|config| config.backlog_max = 0, 5_000_000);
    let mut client = Stack::new(config(REMOTE_MAC, &[(REMOTE, 24)]), 5_000_000);
    let mut frames = Frames::default();
    let flow = client.connect((REMOTE, 0), (LOCAL, PORT)).unwrap();
    client.flush(&mut frames);
    // The client asks for the hardware address first.
    server.receive(0, &frames.sent.pop_front().unwrap());
    client.receive(0, &server.frames[0].sent.pop_front().unwrap(), &mut frames);
    client.flush(&mut frames);
    server.receive(0, &frames.sent.pop_front().unwrap());
    let answer = server.frames[0].sent.pop_front().unwrap();
    assert_eq!(server.stacks[0].counters().cookies_sent, 1);
    client.receive(0, &answer, &mut frames);
    client.send(flow, b"x");
    client.flush(&mut frames);
    while let Some(frame) = frames.sent.pop_front() {
        server.receive(1, &frame);
    }
    assert_eq!(server.stacks[1].counters().cookies_accepted, 1);
    assert_eq!(server.stacks[1].connections(), 1);
}
