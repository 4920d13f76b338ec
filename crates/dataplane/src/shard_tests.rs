//! The loop on a backend without a network: what it obeys, and when shards end.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;

use super::*;
use crate::api::{Calls, FlowId};

/// A backend without a network: so many flows, and perhaps events that never end.
struct Fake {
    flows: Arc<AtomicUsize>,
    is_flooded: bool,
    polls_left: usize,
    calls: FakeCalls,
}

struct FakeCalls;

impl Calls for FakeCalls {
    fn connect(&mut self, _peer: SocketAddr) -> Option<FlowId> {
        None
    }
    fn accept(&mut self, _flow: FlowId) {}
    fn reject(&mut self, _flow: FlowId) {}
    fn send(&mut self, _flow: FlowId, _data: &[u8]) -> usize {
        0
    }
    fn send_space_bytes(&mut self, _flow: FlowId) -> usize {
        0
    }
    fn recv_done(&mut self, _flow: FlowId, _len_bytes: usize) {}
    fn close(&mut self, _flow: FlowId) {}
    fn abort(&mut self, _flow: FlowId) {}
}

impl Backend for Fake {
    type Calls = FakeCalls;
    type Transfer = ();

    fn poll(&mut self, _bound: usize) -> Result<Polled, Error> {
        self.polls_left -= 1;
        if self.polls_left == 0 {
            return Err(Error::Backend("no command came".into()));
        }
        let count = usize::from(self.is_flooded);
        Ok(Polled {
            events: count,
            backlog: count,
        })
    }
    fn deliver(&mut self, _handler: &mut impl FnMut(Event<'_>, &mut FakeCalls)) {}
    fn calls(&mut self) -> &mut FakeCalls {
        &mut self.calls
    }
    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        std::thread::sleep(timeout.unwrap_or_default().min(Duration::from_millis(1)));
        Ok(())
    }
    fn watch(&mut self, _wake: BorrowedFd<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn stop_listening(&mut self) {}
    fn flows(&self) -> usize {
        self.flows.load(Ordering::Relaxed)
    }
    fn abort_all(&mut self) {}
}

struct Nothing;

impl Application for Nothing {
    type FlowState = ();

    fn on_event<C: Calls>(&mut self, _event: Event<'_>, _context: &mut Context<'_, C>) {}
    fn detach(&mut self, _flow: FlowId) {}
    fn attach<C: Calls>(&mut self, _flow: FlowId, (): (), _context: &mut Context<'_, C>) {}
}

type FakePlane = Arc<Plane<Fake, Nothing>>;

fn start(
    plane: &FakePlane,
    id: u8,
    flows: &Arc<AtomicUsize>,
    is_flooded: bool,
) -> JoinHandle<Result<Nothing, Error>> {
    let plane = Arc::clone(plane);
    let backend = Fake {
        flows: Arc::clone(flows),
        is_flooded,
        polls_left: 1_000_000,
        calls: FakeCalls,
    };
    let config = ShardConfig {
        id,
        idle: IdlePolicy::Sleep,
        ..ShardConfig::default()
    };
    std::thread::spawn(move || Shard::new(config, backend, Nothing, plane)?.run())
}

/// Sets its timer again whenever it comes, without a delay.
struct Restless;

impl Application for Restless {
    type FlowState = ();

    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>) {
        if let Event::Timer { token } = event {
            context.set_timer(token, Duration::ZERO);
        }
    }
    fn on_batch_end<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        context.set_timer(1, Duration::ZERO);
    }
    fn detach(&mut self, _flow: FlowId) {}
    fn attach<C: Calls>(&mut self, _flow: FlowId, (): (), _context: &mut Context<'_, C>) {}
}

#[test]
fn a_timer_without_a_delay_does_not_keep_the_turn_from_ending() {
    let plane = Arc::new(Plane::new(1, 1).unwrap());
    let backend = Fake {
        flows: Arc::default(),
        is_flooded: false,
        polls_left: 1_000_000,
        calls: FakeCalls,
    };
    let shard = {
        let plane = Arc::clone(&plane);
        let config = ShardConfig::default();
        std::thread::spawn(move || {
            Shard::new(config, backend, Restless, plane)?
                .run()
                .map(drop)
        })
    };
    plane.drain(Duration::from_secs(60));
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !shard.is_finished() {
        assert!(std::time::Instant::now() < end, "the turn does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(shard.join().unwrap().is_ok());
}

#[test]
fn a_command_is_obeyed_under_a_load_that_never_ends() {
    let plane = Arc::new(Plane::new(1, 1).unwrap());
    let shard = start(&plane, 0, &Arc::default(), true);
    plane.drain(Duration::from_secs(60));
    assert!(shard.join().unwrap().is_ok());
}

#[test]
fn shards_that_drain_end_together() {
    let plane = Arc::new(Plane::new(2, 2).unwrap());
    let busy = Arc::new(AtomicUsize::new(1));
    let shards = [
        start(&plane, 0, &Arc::default(), false),
        start(&plane, 1, &busy, false),
    ];
    plane.drain(Duration::from_secs(60));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!shards[0].is_finished(), "frames may still come to it");
    busy.store(0, Ordering::Relaxed);
    for shard in shards {
        assert!(shard.join().unwrap().is_ok());
    }
}

#[test]
fn groups_move_one_resize_at_a_time() {
    let plane: FakePlane = Arc::new(Plane::with_groups(2, 2, 1).unwrap());
    assert!(plane.resize(2));
    assert!(plane.is_moving());
    assert!(!plane.resize(1), "the first move is not over");
    let shards = [0, 1].map(|id| start(&plane, id, &Arc::default(), false));
    while plane.is_moving() {
        std::thread::yield_now();
    }
    assert_eq!([0, 1].map(|group| plane.groups.owner(group)), [0, 1]);
    assert!(plane.resize(1));
    plane.drain(Duration::from_secs(60));
    for shard in shards {
        assert!(shard.join().unwrap().is_ok());
    }
    assert!(!plane.is_moving());
}

/// What happened, in order.
type Log = Arc<std::sync::Mutex<Vec<&'static str>>>;

fn note(log: &Log, what: &'static str) {
    log.lock().unwrap().push(what);
}

/// A backend, and an application, that write down their calls. One event comes in each turn.
struct Recorder {
    log: Log,
    calls: FakeCalls,
}

impl Backend for Recorder {
    type Calls = FakeCalls;
    type Transfer = ();

    fn poll(&mut self, _bound: usize) -> Result<Polled, Error> {
        note(&self.log, "poll");
        Ok(Polled {
            events: 1,
            backlog: 0,
        })
    }
    fn deliver(&mut self, handler: &mut impl FnMut(Event<'_>, &mut FakeCalls)) {
        let flow = FlowId {
            index: 0,
            generation: 0,
        };
        handler(Event::Sent { flow }, &mut self.calls);
    }
    fn calls(&mut self) -> &mut FakeCalls {
        &mut self.calls
    }
    fn flush(&mut self) -> Result<(), Error> {
        note(&self.log, "flush");
        Ok(())
    }
    fn sleep(&mut self, _timeout: Option<Duration>) -> Result<(), Error> {
        note(&self.log, "sleep");
        Ok(())
    }
    fn watch(&mut self, _wake: BorrowedFd<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn stop_listening(&mut self) {
        note(&self.log, "command");
    }
    fn flows(&self) -> usize {
        0
    }
    fn abort_all(&mut self) {}
}

impl Application for Log {
    type FlowState = ();

    fn on_event<C: Calls>(&mut self, event: Event<'_>, _context: &mut Context<'_, C>) {
        let is_timer = matches!(event, Event::Timer { .. });
        note(self, if is_timer { "timer" } else { "event" });
    }
    fn on_batch_end<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        note(self, "batch ends");
        context.set_timer(1, Duration::ZERO);
    }
    fn detach(&mut self, _flow: FlowId) {}
    fn attach<C: Calls>(&mut self, _flow: FlowId, (): (), _context: &mut Context<'_, C>) {}
}

#[test]
fn a_turn_has_its_steps_in_order() {
    let log = Log::default();
    let plane = Arc::new(Plane::new(1, 1).unwrap());
    plane.drain(Duration::from_secs(60));
    let backend = Recorder {
        log: Arc::clone(&log),
        calls: FakeCalls,
    };
    let config = ShardConfig {
        idle: IdlePolicy::Sleep,
        ..ShardConfig::default()
    };
    let shard = Shard::new(config, backend, Arc::clone(&log), plane).unwrap();
    assert!(shard.run().is_ok());
    let turn = ["poll", "event", "timer", "command", "batch ends", "flush"];
    // Once before the first turn the application may begin, and what it says at the end goes out.
    let expected = [&["batch ends"], &turn[..], &["flush"]].concat();
    assert_eq!(*log.lock().unwrap(), expected);
}
