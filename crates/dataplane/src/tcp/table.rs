//! The table of connections: each has a place here, and a claim in the directory that several
//! stacks share.

use super::buffer::index;
use super::connection::{Connection, State};
use super::frames::own_mss;
use super::secrets::Ends;
use super::stack::Stack;
use super::wire::ethernet::Mac;
use super::wire::length32;

impl Stack {
    /// The place of the connection with these ends.
    #[inline]
    pub(super) fn find(&self, ends: &Ends) -> Option<u32> {
        let hash = self.secrets.table_hash(ends);
        self.table
            .find(hash, |slot| self.connections[index(*slot)].ends == *ends)
            .copied()
    }

    /// A new connection's place in the table.
    pub(super) fn create(&mut self, ends: &Ends, mac: Option<Mac>) -> Option<u32> {
        if self.free.is_empty() && self.connections.len() >= self.context.config.connections_max {
            self.reuse_oldest_waiting();
            if self.free.is_empty() {
                self.context.counters.table_full += 1;
                return None;
            }
        }
        let group = self.claim(ends)?;
        let context = &mut self.context;
        let next_hop = context.next_hop(&ends.remote);
        let Some(neighbour) = context.neighbours.acquire(next_hop, context.now_ms) else {
            self.unclaim(ends);
            return None;
        };
        if let Some(mac) = mac {
            context.neighbours.suggest(neighbour, mac, context.now_ms);
        }
        let slot = if let Some(slot) = self.free.pop() {
            let generation = self.connections[index(slot)].generation.wrapping_add(1);
            self.connections[index(slot)] = Connection::new(*ends, slot, generation, neighbour);
            slot
        } else {
            let slot = length32(self.connections.len());
            self.connections
                .push(Connection::new(*ends, slot, 0, neighbour));
            slot
        };
        let connection = &mut self.connections[index(slot)];
        connection.mss = own_mss(context, &ends.remote);
        connection.group = group;
        self.insert(slot);
        Some(slot)
    }

    /// Puts a connection into the table.
    pub(super) fn insert(&mut self, slot: u32) {
        let (connections, secrets) = (&self.connections, &self.secrets);
        let hash_of = |slot: &u32| secrets.table_hash(&connections[index(*slot)].ends);
        self.table.insert_unique(hash_of(&slot), slot, hash_of);
    }

    /// Takes a connection's place out of the table, and makes it free for another one.
    pub(super) fn unlist(&mut self, slot: u32) {
        let connection = &self.connections[index(slot)];
        if connection.state == State::TimeWait {
            self.context.time_waits = self.context.time_waits.saturating_sub(1);
        }
        let hash = self.secrets.table_hash(&connection.ends);
        // The place may still be on the list of those with output: `flush` takes it off, and
        // meanwhile it is not reused as listed.
        if let Ok(entry) = self.table.find_entry(hash, |found| *found == slot) {
            entry.remove();
        }
        self.free.push(slot);
    }

    /// A full table gives up the connection that has been in TIME-WAIT for longest.
    fn reuse_oldest_waiting(&mut self) {
        while let Some((slot, generation)) = self.context.waiting.pop_front() {
            let connection = &self.connections[index(slot)];
            if connection.state == State::TimeWait && connection.generation == generation {
                self.remove(slot);
                return;
            }
        }
    }

    pub(super) fn remove(&mut self, slot: u32) {
        if self.connections[index(slot)].state == State::Free {
            return;
        }
        self.unlist(slot);
        self.unclaim(&self.connections[index(slot)].ends);
        let connection = &mut self.connections[index(slot)];
        connection.release(&mut self.context);
        self.context.neighbours.release(connection.neighbour);
        connection.state = State::Free;
    }

    /// The group of a new connection. `None` if another stack has the connection's place.
    fn claim(&self, ends: &Ends) -> Option<u16> {
        let Some(share) = &self.share else {
            return Some(0);
        };
        let hash = self.secrets.table_hash(ends);
        share
            .directory
            .claim(hash, share.arrival, |group| share.owns(group))
    }

    /// The connection of a claim is gone.
    pub(super) fn unclaim(&self, ends: &Ends) {
        if let Some(share) = &self.share {
            share.directory.release(self.secrets.table_hash(ends));
        }
    }
}
