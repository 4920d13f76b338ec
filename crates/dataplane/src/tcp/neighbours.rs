//! Hardware addresses of neighbours: ARP's and neighbour discovery's cache (RFC 1122 §2.3.2, RFC
//! 4861 §7.3).

use std::collections::HashMap;

use super::buffer::index;
use super::wire::Ip;
use super::wire::ethernet::Mac;

/// Neighbours at most. A full cache forgets one that no connection uses.
const NEIGHBOURS_MAX: usize = 65_536;
/// Connections that wait for one neighbour at most. Others send again after their timeout.
const WAITING_MAX: usize = 1024;
/// A neighbour that was silent for this long is asked again.
const STALE_MS: u32 = 30_000;
/// Time between two questions (RFC 4861 §10, RETRANS_TIMER).
const RETRY_MS: u32 = 1000;
/// Questions before a neighbour counts as gone (RFC 4861 §10, MAX_MULTICAST_SOLICIT).
const TRIES_MAX: u8 = 3;

/// A neighbour's number.
pub(crate) type NeighbourId = u32;

/// What is known of a neighbour.
#[derive(Debug)]
struct Neighbour {
    ip: Ip,
    mac: Option<Mac>,
    /// When the hardware address was last known to be right.
    confirmed_ms: u32,
    /// When the last question went out, and how many did since the last confirmation.
    asked_ms: u32,
    tries: u8,
    users: u32,
    waiting: Vec<u32>,
}

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    entries: Vec<Neighbour>,
    by_ip: HashMap<Ip, NeighbourId>,
    free: Vec<NeighbourId>,
}

/// What to do for a packet to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Send it there.
    Send(Mac),
    /// Send it there, and ask whether the neighbour still has that address.
    SendAndAsk(Mac),
    /// Ask everybody. The packet waits.
    Ask,
    /// The packet waits for the answer to an earlier question.
    Wait,
}

impl Neighbours {
    /// The neighbour's number, for one more connection. `None` if the cache is full.
    pub(crate) fn acquire(&mut self, ip: Ip, now_ms: u32) -> Option<NeighbourId> {
        if let Some(&id) = self.by_ip.get(&ip) {
            self.entries[index(id)].users += 1;
            return Some(id);
        }
        let fresh = Neighbour {
            ip,
            mac: None,
            confirmed_ms: now_ms,
            asked_ms: now_ms.wrapping_sub(RETRY_MS),
            tries: 0,
            users: 1,
            waiting: Vec::new(),
        };
        let id = if let Some(id) = self.free.pop() {
            self.entries[index(id)] = fresh;
            id
        } else if self.entries.len() < NEIGHBOURS_MAX {
            self.entries.push(fresh);
            super::wire::length32(self.entries.len() - 1)
        } else {
            return None;
        };
        self.by_ip.insert(ip, id);
        Some(id)
    }

    /// One connection less uses the neighbour.
    pub(crate) fn release(&mut self, id: NeighbourId) {
        let Some(entry) = self.entries.get_mut(index(id)) else {
            return;
        };
        entry.users = entry.users.saturating_sub(1);
        if entry.users == 0 {
            self.by_ip.remove(&entry.ip);
            entry.waiting = Vec::new();
            self.free.push(id);
        }
    }

    /// The neighbour's address.
    pub(crate) fn ip(&self, id: NeighbourId) -> Option<Ip> {
        Some(self.entries.get(index(id))?.ip)
    }

    /// Whether a connection uses this neighbour.
    #[cfg(test)]
    pub(crate) fn knows(&self, ip: &Ip) -> bool {
        self.by_ip.contains_key(ip)
    }

    /// The neighbour's hardware address, if it is known.
    pub(crate) fn mac(&self, id: NeighbourId) -> Option<Mac> {
        self.entries.get(index(id))?.mac
    }

    /// Where a packet to the neighbour goes.
    pub(crate) fn route(&mut self, id: NeighbourId, now_ms: u32) -> Route {
        let Some(entry) = self.entries.get_mut(index(id)) else {
            return Route::Wait;
        };
        let silent_ms = now_ms.wrapping_sub(entry.confirmed_ms);
        if let Some(mac) = entry.mac
            && silent_ms < STALE_MS
        {
            return Route::Send(mac);
        }
        if now_ms.wrapping_sub(entry.asked_ms) < RETRY_MS {
            return entry.mac.map_or(Route::Wait, Route::Send);
        }
        if entry.mac.is_some() && entry.tries >= TRIES_MAX {
            entry.mac = None;
        }
        entry.asked_ms = now_ms;
        entry.tries = entry.tries.saturating_add(1);
        entry.mac.map_or(Route::Ask, Route::SendAndAsk)
    }

    /// A connection waits until the neighbour is known.
    pub(crate) fn wait(&mut self, id: NeighbourId, connection: u32) {
        if let Some(entry) = self.entries.get_mut(index(id))
            && entry.waiting.len() < WAITING_MAX
        {
            entry.waiting.push(connection);
        }
    }

    /// A neighbour has told its hardware address. Only neighbours that are in use are remembered
    /// (RFC 826's merge rule). Returns the connections that waited.
    pub(crate) fn learn(&mut self, ip: Ip, mac: Mac, now_ms: u32) -> Vec<u32> {
        let Some(&id) = self.by_ip.get(&ip) else {
            return Vec::new();
        };
        if mac.is_group() {
            return Vec::new();
        }
        let entry = &mut self.entries[index(id)];
        entry.mac = Some(mac);
        entry.confirmed_ms = now_ms;
        entry.tries = 0;
        std::mem::take(&mut entry.waiting)
    }

    /// A frame of the neighbour came from `mac`. An address that is known already stays.
    pub(crate) fn suggest(&mut self, id: NeighbourId, mac: Mac, now_ms: u32) {
        if let Some(entry) = self.entries.get_mut(index(id))
            && entry.mac.is_none()
            && !mac.is_group()
        {
            entry.mac = Some(mac);
            entry.confirmed_ms = now_ms;
            entry.tries = 0;
        }
    }

    /// A connection has made progress, so packets reach the neighbour (RFC 4861 §7.3.1). A segment
    /// that brings nothing new confirms nothing: the peer may be sending it again because no
    /// packet reaches the peer.
    pub(crate) fn confirm(&mut self, id: NeighbourId, now_ms: u32) {
        if let Some(entry) = self.entries.get_mut(index(id)) {
            entry.confirmed_ms = now_ms;
            entry.tries = 0;
        }
    }

    /// A connection has had several timeouts in a row. The address is forgotten, unless a
    /// connection has made progress meanwhile. Linux doubts a route as early
    /// (`tcp_retries1` of tcp(7)).
    pub(crate) fn doubt(&mut self, id: NeighbourId, now_ms: u32) {
        if let Some(entry) = self.entries.get_mut(index(id))
            && now_ms.wrapping_sub(entry.confirmed_ms) >= RETRY_MS
        {
            entry.mac = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Ip = Ip::v4([10, 7, 0, 1]);
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    #[test]
    fn asks_once_a_second_until_there_is_an_answer() {
        let mut cache = Neighbours::default();
        let id = cache.acquire(PEER, 0).unwrap();
        assert_eq!(cache.route(id, 0), Route::Ask);
        cache.wait(id, 9);
        assert_eq!(cache.route(id, 10), Route::Wait);
        assert_eq!(cache.route(id, 1000), Route::Ask);
        assert_eq!(cache.learn(PEER, MAC, 1001), [9]);
        assert_eq!(cache.route(id, 1002), Route::Send(MAC));
    }

    #[test]
    fn a_silent_neighbour_is_asked_again_and_then_forgotten() {
        let mut cache = Neighbours::default();
        let id = cache.acquire(PEER, 0).unwrap();
        cache.suggest(id, MAC, 0);
        assert_eq!(cache.route(id, 29_999), Route::Send(MAC));
        assert_eq!(cache.route(id, 30_000), Route::SendAndAsk(MAC));
        assert_eq!(cache.route(id, 30_500), Route::Send(MAC));
        assert_eq!(cache.route(id, 31_000), Route::SendAndAsk(MAC));
        assert_eq!(cache.route(id, 32_000), Route::SendAndAsk(MAC));
        assert_eq!(cache.route(id, 33_000), Route::Ask);
        cache.confirm(id, 33_001);
        assert_eq!(cache.route(id, 33_002), Route::Wait, "no address yet");
        cache.suggest(id, MAC, 33_001);
        assert_eq!(cache.route(id, 33_002), Route::Send(MAC));
    }

    #[test]
    fn an_address_in_doubt_is_asked_for_unless_there_was_progress() {
        let mut cache = Neighbours::default();
        let id = cache.acquire(PEER, 0).unwrap();
        cache.suggest(id, MAC, 0);
        cache.suggest(id, Mac([2, 0, 0, 0, 0, 9]), 10);
        assert_eq!(cache.route(id, 10), Route::Send(MAC));
        cache.confirm(id, 5000);
        cache.doubt(id, 5999);
        assert_eq!(cache.route(id, 5999), Route::Send(MAC));
        cache.doubt(id, 6000);
        assert_eq!(cache.route(id, 6000), Route::Ask);
    }

    #[test]
    fn strangers_are_not_remembered() {
        let mut cache = Neighbours::default();
        for last in 0..=255 {
            cache.learn(Ip::v4([10, 7, 1, last]), MAC, 0);
        }
        assert!(cache.entries.is_empty());
        let id = cache.acquire(PEER, 0).unwrap();
        assert_eq!(cache.acquire(PEER, 0), Some(id));
        cache.release(id);
        assert_eq!(cache.by_ip.len(), 1);
        cache.release(id);
        assert!(cache.by_ip.is_empty());
    }

    #[test]
    fn a_group_address_is_no_neighbours() {
        let mut cache = Neighbours::default();
        let id = cache.acquire(PEER, 0).unwrap();
        cache.route(id, 0);
        cache.learn(PEER, Mac::BROADCAST, 1);
        assert_eq!(cache.route(id, 2), Route::Wait);
    }
}
