//! The stack: what it has, and what it says of itself.

use std::collections::VecDeque;

use hashbrown::HashTable;

use super::Event;
use super::buffer::{Pool, index};
use super::config::{Config, Counters};
use super::connection::{Connection, Context};
use super::control::RateLimit;
use super::directory::Share;
use super::neighbours::Neighbours;
use super::secrets::Secrets;
use super::sequence::low32;
use super::timers::Wheel;
use super::wire::{Ip, length16};

/// First port for connections that this side opens (RFC 6335 §6).
pub(super) const EPHEMERAL_FIRST: u16 = 49_152;

/// A listening port.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) ip: Option<Ip>,
    pub(super) port: u16,
}

/// A TCP/IP stack of one shard. It reads no clock and does no I/O.
#[derive(Debug)]
pub struct Stack {
    pub(super) context: Context,
    pub(super) connections: Vec<Connection>,
    pub(super) free: Vec<u32>,
    pub(super) table: HashTable<u32>,
    pub(super) secrets: Secrets,
    /// What this stack shares with others on the same interface.
    pub(super) share: Option<Box<Share>>,
    pub(super) listeners: Vec<Listener>,
    pub(super) is_listening: bool,
    pub(super) expired: Vec<u32>,
    pub(super) replies: RateLimit,
    pub(super) cookies_until_ms: Option<u32>,
    pub(super) next_port: u16,
    /// The address from which the next connection is opened.
    pub(super) next_source: usize,
}

impl Stack {
    /// A stack with these settings. `now_us` is any clock that does not go back.
    pub fn new(config: Config, now_us: u64) -> Stack {
        let connections_max = config.connections_max;
        let now_ms = low32(now_us / 1000);
        let secrets = Secrets::new(config.secret);
        let offset = low32(config.secret.0 ^ config.secret.1.rotate_left(17));
        Stack {
            connections: Vec::with_capacity(connections_max),
            free: Vec::new(),
            table: HashTable::with_capacity(connections_max),
            secrets,
            share: None,
            listeners: Vec::new(),
            is_listening: true,
            expired: Vec::new(),
            replies: RateLimit::default(),
            cookies_until_ms: None,
            next_port: EPHEMERAL_FIRST + length16(index(offset & 0x3fff)),
            next_source: 0,
            context: Context {
                wheel: Wheel::new(now_ms, connections_max),
                pool: Pool::new(config.memory_max_bytes),
                neighbours: Neighbours::default(),
                events: Vec::new(),
                listed: Vec::new(),
                counters: Counters::default(),
                embryos: 0,
                timestamp_offset: offset,
                waiting: VecDeque::new(),
                time_waits: 0,
                starved: Vec::new(),
                now_us,
                now_ms,
                config,
            },
        }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.context.config
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.context.counters
    }

    /// Connections, those in TIME-WAIT included.
    pub fn connections(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Connections that are not in TIME-WAIT.
    pub fn open_connections(&self) -> usize {
        self.connections().saturating_sub(self.context.time_waits)
    }

    /// Memory that is in use, in bytes: table, timers and data.
    pub fn memory_bytes(&self) -> usize {
        self.connections.len() * size_of::<Connection>()
            + self.table.len() * (size_of::<u32>() + 1)
            + self.context.wheel.memory_bytes()
            + self.context.pool.used_bytes()
    }

    /// Takes the events since the last call. `into` must be empty, and its memory is used again.
    pub fn take_events(&mut self, into: &mut Vec<Event>) {
        std::mem::swap(&mut self.context.events, into);
    }

    /// Number of events that wait.
    pub fn events(&self) -> usize {
        self.context.events.len()
    }
}
