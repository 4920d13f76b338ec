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
