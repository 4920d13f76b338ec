//! All connections of a port: segments with time stamps come in, latencies go out. No clock, no
//! input or output.

use rustc_hash::FxHashMap;

use crate::connection::{Connection, Tally};
use crate::distribution::Fine;
use crate::protocol::Protocol;
use crate::reading::Counts;
use crate::segment::{RST, SYN, Segment};

/// Connections that are followed at most: about 300 bytes each.
const CONNECTIONS_MAX: usize = 65_536;
/// How often what is idle is looked for, on the packets' clock.
const SWEEP_EVERY_NS: u64 = 1_000_000_000;
/// A connection without a packet for so long is forgotten.
const IDLE_NS: u64 = 300_000_000_000;
/// A request without an answer for so long is given up.
const UNANSWERED_NS: u64 = 60_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    client: u128,
    server: u128,
    client_port: u16,
}

/// What the connections gave since the last harvest.
#[derive(Debug)]
pub(crate) struct Harvest {
    pub(crate) latencies: Fine,
    pub(crate) counts: Counts,
    pub(crate) waiting: u64,
    pub(crate) oldest_waiting_ns: u64,
}

/// The connections of one port.
#[derive(Debug)]
pub(crate) struct Tracker {
    port: u16,
    protocol: Protocol,
    connections: FxHashMap<Key, Connection>,
    tally: Tally,
    harvests: u64,
    active: u64,
    swept_ns: u64,
    oldest_ns: Option<u64>,
}

impl Tracker {
    pub(crate) fn new(port: u16, protocol: Protocol) -> Self {
        Self {
            port,
            protocol,
            connections: FxHashMap::default(),
            tally: Tally::default(),
            harvests: 0,
            active: 0,
            swept_ns: 0,
            oldest_ns: None,
        }
    }

    /// Takes a segment in, seen at `time_ns`.
    pub(crate) fn take(&mut self, time_ns: u64, segment: &Segment<'_>) {
        self.tally.counts.packets += 1;
        let is_client = segment.destination.port == self.port;
        if is_client == (segment.source.port == self.port) {
            return;
        }
        let (client, server) = match is_client {
            true => (segment.source, segment.destination),
            false => (segment.destination, segment.source),
        };
        let key = Key {
            client: client.address,
            server: server.address,
            client_port: client.port,
        };
        let is_full = self.connections.len() >= CONNECTIONS_MAX;
        let connection = match self.connections.get_mut(&key) {
            Some(connection) => connection,
            // Nothing to follow: a connection begins with SYN, or else with a request. The end of
            // one may be seen twice.
            None if !segment.has(SYN)
                && (!is_client || segment.length == 0 || segment.has(RST)) =>
            {
                return;
            }
            None if is_full => {
                self.tally.counts.crowded_out += 1;
                return;
            }
            None => {
                let fresh = Connection::new(self.protocol);
                self.connections.entry(key).or_insert(fresh)
            }
        };
        if is_client && segment.length > 0 && connection.active_in != self.harvests {
            connection.active_in = self.harvests;
            self.active += 1;
        }
        if connection.take(time_ns, segment, is_client, &mut self.tally) {
            self.connections.remove(&key);
        }
    }

    /// Forgets the connections that are not among the sampled ones any more.
    pub(crate) fn retain(&mut self, is_sampled: impl Fn(u128, u16) -> bool) {
        // What is not looked at any more neither waits nor goes unanswered.
        let waiting = &mut self.tally.waiting;
        self.connections.retain(|key, connection| {
            let is_sampled = is_sampled(key.client, key.client_port);
            if !is_sampled {
                *waiting -= connection.waiting();
            }
            is_sampled
        });
    }

    /// Forgets everything that is under way.
    pub(crate) fn clear(&mut self) {
        self.connections.clear();
        self.tally.waiting = 0;
        self.oldest_ns = None;
    }

    /// What has been gathered since the last time, at `now_ns` on the packets' clock.
    pub(crate) fn harvest(&mut self, now_ns: u64) -> Harvest {
        if now_ns.saturating_sub(self.swept_ns) >= SWEEP_EVERY_NS {
            self.sweep(now_ns);
        }
        let waiting = self.tally.waiting;
        let tally = std::mem::replace(
            &mut self.tally,
            Tally {
                waiting,
                ..Tally::default()
            },
        );
        let connections = std::mem::take(&mut self.active);
        self.harvests += 1;
        Harvest {
            latencies: tally.latencies,
            counts: Counts {
                connections,
                ..tally.counts
            },
            waiting,
            oldest_waiting_ns: match self.oldest_ns {
                Some(oldest_ns) if waiting > 0 => now_ns.saturating_sub(oldest_ns),
                _ => 0,
            },
        }
    }

    fn sweep(&mut self, now_ns: u64) {
        self.swept_ns = now_ns;
        let (tally, mut oldest) = (&mut self.tally, None::<u64>);
        self.connections.retain(|_, connection| {
            let since = connection.oldest_ns();
            if since.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) > UNANSWERED_NS) {
                connection.give_up(tally);
            } else {
                oldest = oldest.into_iter().chain(since).min();
            }
            let is_idle = now_ns.saturating_sub(connection.last_ns) > IDLE_NS;
            if is_idle {
                connection.give_up(tally);
            }
            !is_idle
        });
        self.oldest_ns = oldest;
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
