//! Any bytes at all, as a client of the cache: text and meta protocol against the real store. What
//! the bytes mean must not depend on how they were cut, or on when there is room for answers.

use std::net::SocketAddr;
use std::sync::Arc;

use cache_server::server::{Cache, SharedCache};
use dataplane::shard::ShardStats;
use dataplane::timers::Timers;
use dataplane::{Application as _, Calls, Context, Event, FlowId, ListenerId, Time};

use crate::seeds::kept;
use crate::target::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "memcached",
    run,
    seeds: || kept("memcached"),
    memory_max_bytes: 64 << 20,
};

const MEMORY_BYTES: usize = 16 << 20;
/// Room for two of the largest answers, as a server gives.
const ROOM_BYTES: usize = 2 * ((1 << 20) + (64 << 10));
const FLOW: FlowId = FlowId {
    index: 0,
    generation: 0,
};

/// One connection's calls.
struct Wire {
    answers: Vec<u8>,
    room: usize,
    is_closed: bool,
}

impl Calls for Wire {
    fn connect(&mut self, _: SocketAddr) -> Option<FlowId> {
        None
    }

    fn accept(&mut self, _: FlowId) {}

    fn reject(&mut self, _: FlowId) {
        self.is_closed = true;
    }

    fn send(&mut self, flow: FlowId, data: &[u8]) -> usize {
        assert_eq!(flow, FLOW);
        assert!(data.len() <= self.room, "an answer without room");
        self.room -= data.len();
        self.answers.extend_from_slice(data);
        data.len()
    }

    fn send_space_bytes(&mut self, _: FlowId) -> usize {
        self.room
    }

    fn recv_done(&mut self, _: FlowId, _: usize) {}

    fn close(&mut self, _: FlowId) {
        self.is_closed = true;
    }

    fn abort(&mut self, _: FlowId) {
        self.is_closed = true;
    }
}

/// Feeds the bytes in pieces to a fresh cache. Gives all answers, and whether it hung up.
fn serve(bytes: &[u8], piece: usize, reads_late: bool) -> (Vec<u8>, bool) {
    let stats = Arc::new(vec![ShardStats::default()]);
    let shared = Arc::new(SharedCache::new(MEMORY_BYTES, stats, 1));
    let mut cache = Cache::new(Arc::clone(&shared), 0);
    let mut wire = Wire {
        answers: Vec::new(),
        room: ROOM_BYTES,
        is_closed: false,
    };
    let mut timers = Timers::default();
    let mut tell = |event: Event<'_>, wire: &mut Wire| {
        cache.on_event(event, &mut Context::new(wire, &mut timers, Time::default()));
    };
    let listener = ListenerId(0);
    tell(
        Event::Knock {
            flow: FLOW,
            listener,
            peer: None,
        },
        &mut wire,
    );
    for data in bytes.chunks(piece) {
        tell(Event::Recv { flow: FLOW, data }, &mut wire);
        // The client reads, at once or only when there was no room: the cache goes on.
        while !wire.is_closed
            && wire.room < ROOM_BYTES
            && (!reads_late || wire.room < ROOM_BYTES / 2)
        {
            wire.room = ROOM_BYTES;
            tell(Event::Sent { flow: FLOW }, &mut wire);
        }
        if wire.is_closed {
            break;
        }
    }
    tell(
        Event::Dead {
            flow: FLOW,
            reason: dataplane::DeadReason::Closed,
        },
        &mut wire,
    );
    let (_, memory_bytes) = shared.store_stats();
    assert!(memory_bytes <= MEMORY_BYTES, "{memory_bytes}");
    (wire.answers, wire.is_closed)
}

fn run(data: &[u8]) -> bool {
    let Some((&how, bytes)) = data.split_first() else {
        return false;
    };
    let whole = serve(bytes, bytes.len().max(1), false);
    // Figures of `stats` differ from run to run.
    if bytes.windows(5).any(|word| word == b"stats") {
        return !whole.0.is_empty();
    }
    let pieces = serve(bytes, usize::from(how & 0x7f).max(1), how & 0x80 != 0);
    assert_eq!(whole.1, pieces.1);
    assert!(
        whole.0 == pieces.0,
        "whole: {:?}\npieces: {:?}",
        String::from_utf8_lossy(&whole.0),
        String::from_utf8_lossy(&pieces.0)
    );
    !whole.0.is_empty()
}
