//! The subsystem: its namespaces, and the controllers of hosts.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sha2::{Digest as _, Sha256};

use super::command::Status;
use super::numbers::{self, Namespaces, Numbers};
use super::{IO_QUEUES, Structure};
use crate::config::{BlockConfig, ConfigError};
use crate::export::{Export, Exports};
use crate::lock::lock;

/// Numbers above this have a meaning of their own (Fabrics 1.1, "Connect Command": CNTLID).
const CONTROLLER_MAX: u16 = 0xffef;
/// Entries of a controller's error log.
pub const ERRORS_KEPT: usize = 16;

/// An entry of the error log.
#[derive(Debug, Clone, Copy)]
pub struct ErrorEntry {
    /// How many errors there had been with this one.
    pub count: u64,
    /// The queue.
    pub queue: u16,
    /// The command.
    pub cid: u16,
    /// What it ended with.
    pub status: Status,
    /// The first block.
    pub block: u64,
    /// The namespace.
    pub namespace: u32,
}

/// A controller: what a host's admin queue and I/O queues have in common, on whatever shard.
#[derive(Debug)]
pub struct NvmeController {
    /// The controller's number.
    pub id: u16,
    /// The host's qualified name.
    pub host_nqn: String,
    /// The host's identifier.
    pub host_id: [u8; 16],
    /// Whether this is a controller of the discovery subsystem.
    pub is_discovery: bool,
    /// The host has enabled the controller.
    pub is_enabled: AtomicBool,
    /// The association has ended: all its connections end.
    pub is_dead: AtomicBool,
    /// Writes are answered when they are on stable storage (feature Volatile Write Cache is off).
    pub is_write_through: AtomicBool,
    /// When the host last sent a command, by the monotonic clock.
    pub heard_ns: AtomicU64,
    /// Milliseconds after which a silent host counts as gone; 0: never.
    pub keep_alive_ms: AtomicU32,
    /// I/O queues that exist, a bit each.
    queues: AtomicU64,
    errors: Mutex<(u64, VecDeque<ErrorEntry>)>,
}

impl NvmeController {
    /// Takes an I/O queue's number, from 1. False: it is taken.
    pub fn take_queue(&self, queue: u16) -> bool {
        let bit = 1 << (queue.saturating_sub(1) % IO_QUEUES);
        self.queues.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Gives an I/O queue's number back.
    pub fn give_queue(&self, queue: u16) {
        let bit: u64 = 1 << (queue.saturating_sub(1) % IO_QUEUES);
        self.queues.fetch_and(!bit, Ordering::AcqRel);
    }

    /// Ends the association.
    pub fn kill(&self) {
        self.is_enabled.store(false, Ordering::Release);
        self.is_dead.store(true, Ordering::Release);
    }

    /// Whether the association has ended.
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// Whether the host has been silent for longer than its keep-alive timer allows. As Linux' own
    /// target does, this lets it be late by as long again.
    pub fn is_silent(&self, now_ns: u64) -> bool {
        let limit_ms = self.keep_alive_ms.load(Ordering::Relaxed);
        let heard_ns = self.heard_ns.load(Ordering::Relaxed);
        let silent_ms = now_ns.saturating_sub(heard_ns) / 1_000_000;
        limit_ms > 0 && silent_ms > 2 * u64::from(limit_ms)
    }

    /// Remembers an error.
    pub fn note_error(&self, mut entry: ErrorEntry) {
        let (count, kept) = &mut *lock(&self.errors);
        *count += 1;
        entry.count = *count;
        kept.truncate(ERRORS_KEPT - 1);
        kept.push_front(entry);
    }

    /// How many errors there were, and the newest of them.
    pub fn errors(&self) -> (u64, Vec<ErrorEntry>) {
        let (count, kept) = &*lock(&self.errors);
        (*count, kept.iter().copied().collect())
    }
}

#[derive(Default)]
struct Registry {
    controllers: HashMap<u16, Arc<NvmeController>>,
    last: u16,
}

/// The subsystem of one server.
pub struct Subsystem {
    /// The subsystem's qualified name.
    pub nqn: String,
    /// Where it is served.
    pub addresses: Vec<SocketAddr>,
    registry: Mutex<Registry>,
    numbers: Mutex<Numbers>,
}

/// Who wants a controller.
pub struct NvmeHost {
    /// The host's qualified name.
    pub nqn: String,
    /// The host's identifier.
    pub id: [u8; 16],
    /// Milliseconds of its keep-alive timer.
    pub keep_alive_ms: u32,
    /// Whether it wants a discovery controller.
    pub is_discovery: bool,
}

impl Subsystem {
    /// A subsystem without controllers.
    pub fn new(nqn: &str, addresses: Vec<SocketAddr>, exports: &Exports) -> Self {
        let new = Self {
            nqn: nqn.to_owned(),
            addresses,
            registry: Mutex::default(),
            numbers: Mutex::default(),
        };
        new.set_exports(exports);
        new
    }

    /// Whether each tenant of a configuration may have the number that the file gives the tenant.
    ///
    /// # Errors
    /// The number has meant another disk since the start: the line of the file is named.
    pub fn check(&self, config: &BlockConfig) -> Result<(), ConfigError> {
        lock(&self.numbers).check(&self.nqn, config)
    }

    /// These are the exports from now on.
    pub fn set_exports(&self, exports: &Exports) {
        lock(&self.numbers).set(&self.nqn, exports);
    }

    /// The namespaces now.
    pub fn namespaces(&self) -> Arc<Namespaces> {
        lock(&self.numbers).now()
    }

    /// Controllers now.
    pub fn controllers(&self) -> usize {
        lock(&self.registry).controllers.len()
    }

    /// Makes a controller. `None`: there can be no more.
    pub fn admit(&self, host: NvmeHost, now_ns: u64) -> Option<Arc<NvmeController>> {
        let registry = &mut *lock(&self.registry);
        if registry.controllers.len() >= usize::from(CONTROLLER_MAX) {
            return None;
        }
        loop {
            registry.last = registry.last % CONTROLLER_MAX + 1;
            if !registry.controllers.contains_key(&registry.last) {
                break;
            }
        }
        let controller = Arc::new(NvmeController {
            id: registry.last,
            host_nqn: host.nqn,
            host_id: host.id,
            is_discovery: host.is_discovery,
            is_enabled: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            is_write_through: AtomicBool::new(false),
            heard_ns: AtomicU64::new(now_ns),
            keep_alive_ms: AtomicU32::new(host.keep_alive_ms),
            queues: AtomicU64::new(0),
            errors: Mutex::default(),
        });
        registry
            .controllers
            .insert(controller.id, Arc::clone(&controller));
        Some(controller)
    }

    /// The controller with this number.
    pub fn find(&self, id: u16) -> Option<Arc<NvmeController>> {
        lock(&self.registry).controllers.get(&id).map(Arc::clone)
    }

    /// The admin queue of a controller is gone, and the controller with it.
    pub fn remove(&self, controller: &NvmeController) {
        controller.kill();
        lock(&self.registry).controllers.remove(&controller.id);
    }

    /// The serial number: the same for all controllers, and as long as the subsystem has its name.
    pub fn serial(&self) -> String {
        let digest = Sha256::digest(self.nqn.as_bytes());
        digest[..10]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// The UUID of a namespace.
    pub fn uuid(&self, export: &Export) -> [u8; 16] {
        numbers::uuid(&self.nqn, export)
    }

    /// The discovery log page for a host: a record of the subsystem for each address.
    pub fn discovery_log(&self) -> Vec<u8> {
        let mut page = Structure::new(1024 * (1 + self.addresses.len()));
        // The addresses do not change while the server runs: neither does the generation.
        page.u64(0, 1).u64(8, self.addresses.len() as u64);
        for (index, address) in self.addresses.iter().enumerate() {
            let at = 1024 * (index + 1);
            let family = match address.ip() {
                IpAddr::V4(_) => 1,
                IpAddr::V6(_) => 2,
            };
            // TCP; an NVM subsystem; no secure channel.
            page.u8(at, 3)
                .u8(at + 1, family)
                .u8(at + 2, 2)
                .u8(at + 3, 2);
            page.u16(at + 4, u16::try_from(index + 1).unwrap_or(u16::MAX));
            // Controllers are made as hosts connect; the least size of an admin queue.
            page.u16(at + 6, 0xffff).u16(at + 8, 32);
            page.text(at + 32, 32, &address.port().to_string());
            page.set(at + 256, self.nqn.as_bytes());
            page.text(at + 512, 256, &address.ip().to_string());
        }
        page.bytes()
    }
}
