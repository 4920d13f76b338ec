//! Both sides over real rings, in front of a stack without a network.

use super::*;

/// Both sides.
struct Pair {
    application: ApplicationSide,
    stack: StackSide<Fake>,
    /// What the application has seen.
    seen: Vec<String>,
    received: BTreeMap<u32, Vec<u8>>,
}

impl Pair {
    fn new() -> Pair {
        Pair::with_ring(SMALL_RING)
    }

    fn with_ring(ring_bytes: usize) -> Pair {
        let rings = Rings::new(ring_bytes).unwrap();
        Pair {
            application: ApplicationSide::new(rings.try_clone().unwrap(), LIMITS).unwrap(),
            stack: StackSide::new(fake(), rings, LIMITS).unwrap(),
            seen: Vec::new(),
            received: BTreeMap::new(),
        }
    }

    /// With these flows, which have knocked and were accepted.
    fn open(flows: u32) -> Pair {
        let mut pair = Pair::new();
        for index in 0..flows {
            pair.happens(Happens::Knock(flow(index)));
        }
        pair.turn();
        pair.seen.clear();
        pair
    }

    fn happens(&mut self, event: Happens) {
        self.backend().events.push_back(event);
    }

    fn backend(&mut self) -> &mut Fake {
        self.stack.backend_mut()
    }

    fn calls(&mut self) -> &mut ApplicationCalls {
        self.application.calls()
    }

    fn stack_turn(&mut self) {
        self.stack.poll(64).unwrap();
        self.stack
            .deliver(&mut |_, _| panic!("an event past the ring"));
        self.stack.flush().unwrap();
    }

    fn application_turn(&mut self) {
        let polled = self.application.poll(64).unwrap();
        assert!(polled.events <= 64);
        let (seen, received) = (&mut self.seen, &mut self.received);
        self.application.deliver(&mut |event, calls| match event {
            Event::Knock {
                flow,
                peer,
                listener,
            } => {
                assert_eq!(peer, Some("[fd00::7]:999".parse().unwrap()));
                assert_eq!(listener, ListenerId(3));
                calls.accept(flow);
                seen.push(format!("knock {}", flow.index));
            }
            Event::Recv { flow, data } => {
                received.entry(flow.index).or_default().extend(data);
                calls.recv_done(flow, data.len());
            }
            Event::Sent { flow } => seen.push(format!("sent {}", flow.index)),
            Event::PeerFinished { flow } => seen.push(format!("finished {}", flow.index)),
            Event::Dead { flow, reason } => {
                assert_eq!(reason, DeadReason::Reset);
                seen.push(format!("dead {}", flow.index));
            }
            other => panic!("{other:?}"),
        });
        self.application.flush().unwrap();
    }

    /// The stack, the application and the stack once more.
    fn turn(&mut self) {
        self.stack_turn();
        self.application_turn();
        self.stack_turn();
    }
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (seed..seed + length)
        .map(|at| at.wrapping_mul(13).to_le_bytes()[0])
        .collect()
}

#[test]
fn requests_go_one_way_and_answers_the_other() {
    let mut pair = Pair::open(2);
    let large = bytes(1, 70_000);
    pair.happens(Happens::Recv(flow(0), b"get a".to_vec()));
    pair.happens(Happens::Recv(flow(1), large.clone()));
    for _ in 0..3 {
        pair.turn();
    }
    assert_eq!(pair.received[&0], b"get a");
    assert!(pair.received[&1] == large);
    assert_eq!(pair.backend().calls.done, [(0, 5), (1, 70_000)].into());
    let answer = bytes(5, 90_000);
    assert_eq!(pair.calls().send(flow(1), &answer), 90_000);
    assert_eq!(pair.calls().send_vectored(flow(0), &[b"VALUE", b" a"]), 7);
    for _ in 0..3 {
        pair.turn();
    }
    assert!(pair.backend().calls.queued[&1] == answer);
    assert_eq!(pair.backend().calls.queued[&0], b"VALUE a");
    pair.happens(Happens::Finished(flow(0)));
    pair.happens(Happens::Dead(flow(1)));
    pair.turn();
    assert_eq!(pair.seen, ["finished 0", "dead 1"]);
    assert_eq!(pair.application.flows(), 1);
    pair.calls().close(flow(0));
    pair.application_turn();
    pair.stack_turn();
    assert_eq!(pair.backend().calls.log, ["close 0"]);
    // A closed flow gets no more data, and its end.
    pair.happens(Happens::Recv(flow(0), b"late".to_vec()));
    pair.happens(Happens::Dead(flow(0)));
    pair.turn();
    assert_eq!(pair.received[&0], b"get a");
    assert_eq!(pair.seen.last().unwrap(), "dead 0");
    assert_eq!(pair.application.flows(), 0);
}

#[test]
fn a_flow_queues_no_more_than_its_credit_and_hears_when_half_is_free() {
    let mut pair = Pair::open(1);
    let data = bytes(0, 150_000);
    assert_eq!(pair.calls().send_space_bytes(flow(0)), 100_000);
    assert_eq!(pair.calls().send(flow(0), &data), 100_000);
    assert_eq!(pair.calls().send(flow(0), &data), 0);
    for _ in 0..4 {
        pair.turn();
    }
    assert!(pair.seen.is_empty());
    assert!(pair.backend().calls.queued[&0] == data[..100_000]);
    // A request tells what has left the queue meanwhile.
    pair.backend().calls.acknowledge(flow(0), 10_000);
    pair.happens(Happens::Recv(flow(0), b"x".to_vec()));
    pair.turn();
    assert_eq!(pair.calls().send_space_bytes(flow(0)), 10_000);
    assert!(pair.seen.is_empty());
    pair.backend().calls.acknowledge(flow(0), 40_000);
    pair.happens(Happens::Sent(flow(0)));
    pair.turn();
    assert_eq!(pair.seen, ["sent 0"]);
    assert_eq!(pair.calls().send_space_bytes(flow(0)), 50_000);
    // Who did not ask is not told.
    pair.happens(Happens::Sent(flow(0)));
    pair.turn();
    assert_eq!(pair.seen, ["sent 0"]);
    // Who asks when half has left the queue already is told at once.
    assert_eq!(pair.calls().send(flow(0), &data), 50_000);
    pair.backend().calls.acknowledge(flow(0), 50_000);
    pair.application_turn();
    pair.turn();
    assert_eq!(pair.seen, ["sent 0", "sent 0"]);
    assert_eq!(pair.calls().send_space_bytes(flow(0)), 50_000);
}

#[test]
fn all_flows_together_queue_no_more_than_the_pool_and_small_answers_find_room() {
    let mut pair = Pair::open(6);
    let data = bytes(0, 100_000);
    for index in 0..3 {
        assert_eq!(pair.calls().send(flow(index), &data), 100_000);
    }
    // Seven eighths are for large queues.
    assert_eq!(pair.calls().send(flow(3), &data), 50_000);
    assert_eq!(pair.calls().send(flow(4), &data), 8192);
    assert_eq!(pair.calls().send(flow(5), &data[..3000]), 3000);
    for _ in 0..20 {
        pair.turn();
    }
    let held: usize = pair.backend().calls.queued.values().map(Vec::len).sum();
    assert_eq!(held, 300_000 + 50_000 + 8192 + 3000);
    // The end of a flow gives its memory back, and the others try again some time later.
    pair.happens(Happens::Dead(flow(0)));
    pair.turn();
    std::thread::sleep(Duration::from_millis(12));
    pair.turn();
    assert_eq!(pair.seen, ["dead 0", "sent 3", "sent 4"]);
    assert_eq!(pair.calls().send(flow(4), &data), 88_808);
}

#[test]
fn what_the_stack_has_no_memory_for_waits_in_order_and_a_close_waits_for_it() {
    let mut pair = Pair::open(1);
    pair.backend().calls.memory_bytes = 10_000;
    let data = bytes(3, 50_000);
    assert_eq!(pair.calls().send(flow(0), &data[..30_000]), 30_000);
    assert_eq!(pair.calls().send(flow(0), &data[30_000..]), 20_000);
    pair.calls().close(flow(0));
    for _ in 0..3 {
        pair.turn();
    }
    let mut delivered = Vec::new();
    for round in 0..5 {
        let is_closed = pair.backend().calls.log.contains(&"close 0".to_owned());
        assert_eq!(is_closed, round == 4, "{round}");
        let calls = &mut pair.backend().calls;
        delivered.extend(calls.acknowledge(flow(0), 10_000));
        pair.happens(Happens::Sent(flow(0)));
        pair.turn();
    }
    assert_eq!(pair.backend().calls.log, ["close 0"]);
    assert!(delivered == data);
    // It closes once.
    pair.happens(Happens::Sent(flow(0)));
    pair.turn();
    assert_eq!(pair.backend().calls.log, ["close 0"]);
}

#[test]
fn what_waits_for_memory_gets_it_without_a_word_of_the_peer() {
    let mut pair = Pair::open(2);
    pair.backend().calls.memory_bytes = 1000;
    for index in 0..2 {
        assert_eq!(pair.calls().send(flow(index), &bytes(0, 40_000)), 40_000);
    }
    for _ in 0..3 {
        pair.turn();
    }
    assert_eq!(pair.backend().calls.queued[&0].len(), 1000);
    // Others give memory back; no event of these two comes.
    pair.backend().calls.memory_bytes = 50_000;
    std::thread::sleep(Duration::from_millis(12));
    pair.turn();
    assert_eq!(pair.backend().calls.queued[&0].len(), 40_000);
    assert_eq!(pair.backend().calls.queued[&1].len(), 11_000);
    pair.backend().calls.memory_bytes = 50_000;
    std::thread::sleep(Duration::from_millis(12));
    pair.turn();
    assert_eq!(pair.backend().calls.queued[&1].len(), 40_000);
}

#[test]
fn while_the_application_is_behind_no_frame_is_taken() {
    let mut pair = Pair::open(1);
    let piece = bytes(9, 10_000);
    for _ in 0..20 {
        pair.happens(Happens::Recv(flow(0), piece.clone()));
    }
    pair.stack_turn();
    assert_eq!(pair.backend().bound, 64);
    pair.stack_turn();
    assert_eq!(pair.backend().bound, 0, "the ring of events is full");
    // Commands are still obeyed.
    pair.calls().close(flow(0));
    pair.application.flush().unwrap();
    pair.stack_turn();
    assert_eq!(pair.backend().calls.log, ["close 0"]);
    for _ in 0..10 {
        pair.turn();
    }
    assert_eq!(pair.backend().bound, 64);
}

#[test]
fn what_was_received_while_the_ring_was_full_comes_whole() {
    let mut pair = Pair::open(1);
    let mut expected = Vec::new();
    for seed in 0..40 {
        let piece = bytes(seed, 7_777);
        expected.extend_from_slice(&piece);
        pair.happens(Happens::Recv(flow(0), piece));
    }
    for _ in 0..40 {
        pair.turn();
    }
    assert!(pair.received[&0] == expected);
    assert_eq!(pair.backend().calls.done[&0], expected.len());
}

#[test]
fn while_the_stack_is_behind_the_application_gets_no_events() {
    let mut pair = Pair::open(2);
    let data = bytes(2, 90_000);
    pair.happens(Happens::Recv(flow(1), b"x".to_vec()));
    pair.stack_turn();
    assert_eq!(pair.calls().send(flow(0), &data), 90_000);
    pair.application.flush().unwrap();
    pair.application_turn();
    assert!(pair.received.is_empty());
    for _ in 0..3 {
        pair.stack_turn();
        pair.application_turn();
    }
    assert_eq!(pair.received[&1], b"x");
    assert!(pair.backend().calls.queued[&0] == data);
}

#[test]
fn a_rejected_flow_is_forgotten_by_both() {
    let mut pair = Pair::new();
    pair.happens(Happens::Knock(flow(2)));
    pair.happens(Happens::Recv(flow(2), b"x".to_vec()));
    pair.stack_turn();
    pair.application.poll(64).unwrap();
    let mut events = 0;
    pair.application.deliver(&mut |event, calls| {
        let Event::Knock { flow, .. } = event else {
            panic!("{event:?}")
        };
        events += 1;
        calls.reject(flow);
    });
    pair.application.flush().unwrap();
    assert_eq!((events, pair.application.flows()), (1, 0));
    pair.stack_turn();
    assert_eq!(pair.backend().calls.log, ["reject 2"]);
    // Its place is free for another one.
    let next = FlowId {
        index: 2,
        generation: 43,
    };
    pair.happens(Happens::Knock(next));
    pair.turn();
    assert_eq!(pair.application.flows(), 1);
    // Calls for the one before do nothing.
    let calls = pair.calls();
    assert_eq!(calls.send(flow(2), b"x"), 0);
    assert_eq!(calls.send_space_bytes(flow(2)), 0);
    calls.close(flow(2));
    calls.abort(flow(2));
    calls.recv_done(flow(2), 1);
    assert_eq!(calls.connect("10.0.0.1:1".parse().unwrap()), None);
    pair.application_turn();
    pair.stack_turn();
    assert_eq!(pair.backend().calls.log, ["reject 2"]);
}

#[test]
fn what_concerns_all_flows_reaches_the_stack() {
    let mut pair = Pair::open(2);
    pair.application.stop_listening();
    pair.application.abort_all();
    pair.application_turn();
    pair.stack_turn();
    assert!(!pair.backend().is_listening);
    assert!(pair.backend().has_aborted_all);
    // A flow of its own ends at once, too.
    let mut pair = Pair::open(1);
    pair.calls().abort(flow(0));
    pair.application_turn();
    pair.stack_turn();
    assert_eq!(pair.backend().calls.log, ["abort 0"]);
}

#[test]
fn a_side_that_sleeps_is_woken() {
    let rings = Rings::new(SMALL_RING).unwrap();
    let mut application = ApplicationSide::new(rings.try_clone().unwrap(), LIMITS).unwrap();
    let mut stack = StackSide::new(fake(), rings, LIMITS).unwrap();
    let second = Some(Duration::from_secs(20));
    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            application.sleep(second).unwrap();
            application.poll(64).unwrap().events
        });
        std::thread::sleep(Duration::from_millis(50));
        stack
            .backend_mut()
            .events
            .push_back(Happens::Knock(flow(0)));
        stack.poll(64).unwrap();
        stack.deliver(&mut |_, _| ());
        assert_eq!(sleeper.join().unwrap(), 1);
    });
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_ring_has_a_size_that_works() {
    for wrong in [0, 4096, SMALL_RING / 2, SMALL_RING + 8, 3 * SMALL_RING] {
        let error = Rings::new(wrong).unwrap_err().to_string();
        assert!(error.contains("a power of two from 65536 on"), "{error}");
    }
}
