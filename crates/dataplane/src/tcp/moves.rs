//! A connection moves from one stack to another, with all that it has.

use super::buffer::index;
use super::connection::{Connection, Flags, State};
use super::stack::Stack;
use super::wire::Ip;
use super::wire::ethernet::Mac;
use super::wire::length32;
use crate::api::FlowId;

/// A connection on its way.
#[derive(Debug)]
pub struct Moved {
    connection: Connection,
    neighbour: Option<Ip>,
    mac: Option<Mac>,
}

impl Stack {
    /// The places of a flow group's connections.
    pub(crate) fn flows_of(&self, group: u16) -> Vec<u32> {
        let all = self.connections.iter();
        all.filter(|connection| connection.state != State::Free && connection.group == group)
            .map(|connection| connection.slot)
            .collect()
    }

    /// Takes a connection of this group out, with its identifier if the application knows it. No
    /// event of the connection may be waiting. `None` if it is gone.
    pub(crate) fn depart(&mut self, slot: u32, group: u16) -> Option<(Option<FlowId>, Moved)> {
        let found = self.connections.get_mut(index(slot))?;
        if found.state == State::Free || found.group != group {
            return None;
        }
        let flow = found.flags.has(Flags::KNOWN).then(|| found.id());
        self.unlist(slot);
        let found = &mut self.connections[index(slot)];
        let empty = Connection::new(found.ends, slot, found.generation, found.neighbour);
        let connection = std::mem::replace(found, empty);
        let context = &mut self.context;
        context.pool.release(connection.data_bytes());
        context.wheel.clear(slot);
        if connection.flags.has(Flags::EMBRYO) {
            context.embryos = context.embryos.saturating_sub(1);
        }
        let moved = Moved {
            neighbour: context.neighbours.ip(connection.neighbour),
            mac: context.neighbours.mac(connection.neighbour),
            connection,
        };
        context.neighbours.release(moved.connection.neighbour);
        Some((flow, moved))
    }

    /// Takes a connection from another stack with the same settings and secrets. `None` if the
    /// cache of neighbours is full: then the connection is lost. The table may grow beyond its
    /// bound, but takes no new connections then.
    pub(crate) fn arrive(&mut self, moved: Moved) -> Option<FlowId> {
        let Moved {
            mut connection,
            neighbour,
            mac,
        } = moved;
        let context = &mut self.context;
        let next_hop = neighbour.unwrap_or_else(|| context.next_hop(&connection.ends.remote));
        let Some(neighbour) = context.neighbours.acquire(next_hop, context.now_ms) else {
            self.unclaim(&connection.ends);
            return None;
        };
        if let Some(mac) = mac {
            context.neighbours.suggest(neighbour, mac, context.now_ms);
        }
        connection.neighbour = neighbour;
        (connection.slot, connection.generation) = match self.free.pop() {
            Some(slot) => (
                slot,
                self.connections[index(slot)].generation.wrapping_add(1),
            ),
            None => (length32(self.connections.len()), 0),
        };
        context.pool.take_over(connection.data_bytes());
        if connection.flags.has(Flags::EMBRYO) {
            context.embryos += 1;
        }
        if connection.state == State::TimeWait {
            context
                .waiting
                .push_back((connection.slot, connection.generation));
            context.time_waits += 1;
        }
        if connection.flags.take(Flags::BLOCKED) {
            connection.wait_for_room(context);
        }
        connection.reschedule(context);
        connection.flags.clear(Flags::LISTED);
        connection.list(context);
        let flow = connection.id();
        let at = index(connection.slot);
        if at == self.connections.len() {
            self.connections.push(connection);
        } else {
            self.connections[at] = connection;
        }
        self.insert(flow.index);
        Some(flow)
    }
}
