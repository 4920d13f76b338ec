//! Floods and hoarders: memory stays bounded and other connections go on.

use super::script::{frame, parse_frame};
use super::{Frames, LOCAL, LOCAL_MAC, config};
use crate::api::FlowId;
use crate::tcp::wire::segment::{ACK, RST, SYN, Segment};
use crate::tcp::{Config, Event, Stack};

const PORT: u16 = 11_211;

struct World {
    stack: Stack,
    frames: Frames,
    events: Vec<Event>,
}

impl World {
    fn new(change: impl Fn(&mut Config)) -> World {
        let mut settings = config(LOCAL_MAC, &[(LOCAL, 24)]);
        settings.timestamps = false;
        change(&mut settings);
        let mut stack = Stack::new(settings, 0);
        stack.listen(None, PORT);
        World {
            stack,
            frames: Frames::default(),
            events: Vec::new(),
        }
    }

    fn receive(&mut self, segment: &Segment, payload: &[u8]) {
        let frame = frame(segment, payload);
        self.stack.receive(0, &frame, &mut self.frames);
        self.stack.flush(&mut self.frames);
        let mut events = Vec::new();
        self.stack.take_events(&mut events);
        self.events.append(&mut events);
    }

    fn syn(port: u16) -> Segment {
        Segment {
            source_port: port,
            destination_port: PORT,
            sequence: 99,
            flags: SYN,
            window: 60_000,
            ..Segment::default()
        }
    }

    /// Opens a connection, and gives it with the number that the peer sends next, acknowledged.
    fn open(&mut self, port: u16) -> (FlowId, Segment) {
        self.frames.sent.clear();
        self.receive(&World::syn(port), &[]);
        let answer = self.frames.sent.pop_back().expect("a SYN-ACK");
        let (answer, _) = parse_frame(&answer);
        let next = Segment {
            sequence: 100,
            acknowledgement: answer.sequence.wrapping_add(1),
            flags: ACK,
            ..World::syn(port)
        };
        self.receive(&next, &[]);
        let Some(Event::Knock { flow, .. }) = self.events.pop() else {
            panic!("no connection")
        };
        (flow, next)
    }

    fn echo(&mut self, flow: FlowId, next: &Segment) {
        self.frames.sent.clear();
        self.receive(next, b"hello");
        assert!(matches!(self.events.pop(), Some(Event::Received { .. })));
        assert_eq!(self.stack.send(flow, b"hello"), 5);
        self.stack.flush(&mut self.frames);
        let (_, payload) = parse_frame(self.frames.sent.back().unwrap());
        assert_eq!(payload, b"hello");
    }
}

#[test]
fn a_syn_flood_takes_no_memory_and_honest_peers_get_in() {
    let mut world = World::new(|settings| settings.backlog_max = 16);
    let (first, next) = world.open(1);
    for port in 10_000..60_000 {
        world.receive(&World::syn(port), &[]);
        world.frames.sent.clear();
    }
    assert_eq!(world.stack.connections(), 17);
    assert_eq!(world.stack.counters().cookies_sent, 50_000 - 16);
    let (second, second_next) = world.open(2);
    assert_eq!(world.stack.counters().cookies_accepted, 1);
    world.echo(second, &second_next);
    world.echo(first, &next);
}

#[test]
fn half_open_connections_go_away() {
    let mut world = World::new(|settings| settings.backlog_max = 100);
    for port in 1000..1100 {
        world.receive(&World::syn(port), &[]);
    }
    assert_eq!(world.stack.connections(), 100);
    for second in 1..130 {
        world.stack.expire(second * 1_000_000);
        world.stack.flush(&mut world.frames);
    }
    assert_eq!(world.stack.connections(), 0);
    assert_eq!(world.stack.context.embryos, 0);
}

#[test]
fn a_storm_of_resets_unsettles_nobody() {
    let mut world = World::new(|_| {});
    let (flow, next) = world.open(1);
    for number in 0..100_000u32 {
        let reset = Segment {
            sequence: number.wrapping_mul(50_021).wrapping_add(101),
            acknowledgement: 0,
            flags: RST,
            ..next
        };
        if reset.sequence != 100 {
            world.receive(&reset, &[]);
        }
    }
    assert!(world.stack.counters().challenges <= 1);
    world.echo(flow, &next);
}

#[test]
fn a_full_table_refuses_and_reuses_what_only_waits() {
    let mut world = World::new(|settings| {
        settings.connections_max = 4;
        settings.backlog_max = 4;
    });
    let opened: Vec<_> = (1..=4).map(|port| world.open(port)).collect();
    world.frames.sent.clear();
    world.receive(&World::syn(5), &[]);
    assert!(world.frames.sent.is_empty());
    assert_eq!(world.stack.counters().table_full, 1);
    // One closes first: its place waits, and is given to the next.
    let (flow, next) = opened[0];
    world.stack.close(flow);
    world.stack.flush(&mut world.frames);
    let fin = Segment {
        acknowledgement: next.acknowledgement.wrapping_add(1),
        flags: ACK | crate::tcp::wire::segment::FIN,
        ..next
    };
    world.receive(&fin, &[]);
    assert_eq!(world.stack.connections(), 4);
    world.events.clear();
    let (flow, next) = world.open(6);
    world.echo(flow, &next);
    let (flow, next) = opened[3];
    world.echo(flow, &next);
}

#[test]
fn readers_that_do_not_read_are_bounded_together() {
    let mut world = World::new(|settings| {
        settings.memory_max_bytes = 1 << 20;
        settings.send_queue_max_bytes = 256 << 10;
    });
    let slow: Vec<_> = (1..=20).map(|port| world.open(port).0).collect();
    let answer = vec![7; 100_000];
    let taken: usize = slow
        .iter()
        .map(|flow| world.stack.send(*flow, &answer))
        .sum();
    assert!(taken <= 1 << 20);
    assert!(world.stack.context.pool.used_bytes() <= 1 << 20);
    // One that is aborted makes room for another.
    for flow in &slow {
        world.stack.abort(*flow);
    }
    world.stack.flush(&mut world.frames);
    assert_eq!(world.stack.context.pool.used_bytes(), 0);
    let (flow, next) = world.open(99);
    world.echo(flow, &next);
}

/// Four peers that acknowledge and keep their windows closed for 20 s. How many were given up.
fn given_up(memory_bytes: usize) -> usize {
    let mut world = World::new(|settings| {
        settings.memory_max_bytes = memory_bytes;
        settings.send_queue_max_bytes = 512 << 10;
    });
    let slow: Vec<_> = (1..=4).map(|port| world.open(port)).collect();
    for (flow, _) in &slow {
        assert_eq!(world.stack.send(*flow, &vec![7; 100_000]), 100_000);
    }
    let (other, _) = world.open(99);
    let mut dead = 0;
    for step in 0..200_u64 {
        world.stack.expire(step * 100_000);
        world.stack.flush(&mut world.frames);
        let answers: Vec<Segment> = world
            .frames
            .sent
            .drain(..)
            .map(|frame| {
                let (segment, payload) = parse_frame(&frame);
                let length = u32::try_from(payload.len()).unwrap();
                Segment {
                    sequence: 100,
                    acknowledgement: segment.sequence.wrapping_add(length),
                    flags: ACK,
                    window: 0,
                    ..World::syn(segment.destination_port)
                }
            })
            .collect();
        for answer in answers.iter().filter(|answer| answer.source_port != 99) {
            world.receive(answer, &[]);
        }
        let is_dead = |event: &Event| matches!(event, Event::Dead { .. });
        dead += world.events.drain(..).filter(is_dead).count();
        // A small answer always has room.
        assert!(world.stack.send_space_bytes(other) >= 3000);
    }
    dead
}

#[test]
fn who_reads_nothing_is_given_up_only_while_memory_is_short() {
    assert_eq!(given_up(1 << 30), 0, "as long as they like");
    // Each holds 128 KiB: with one of them gone, memory is not short.
    assert_eq!(given_up(1 << 20), 1);
}

#[test]
fn an_idle_connection_is_small() {
    let mut world = World::new(|settings| settings.backlog_max = 20_000);
    for port in 1..=10_000 {
        let (flow, next) = world.open(port);
        if port == 1 {
            world.echo(flow, &next);
        }
    }
    let each = world.stack.memory_bytes() / world.stack.connections();
    assert!(each <= 512, "{each} bytes a connection");
}

#[test]
fn a_full_sink_loses_nothing() {
    let mut world = World::new(|_| {});
    let (flow, next) = world.open(1);
    world.frames.sent.clear();
    world.frames.room = Some(1);
    world.stack.send(flow, &[1; 4000]);
    let mut bytes = 0;
    for _ in 0..8 {
        world.stack.flush(&mut world.frames);
        assert!(world.frames.sent.len() <= 1);
        for sent in world.frames.sent.drain(..) {
            bytes += parse_frame(&sent).1.len();
        }
    }
    assert_eq!(bytes, 4000);
    assert!(!world.stack.has_output());
    let _ = next;
}
