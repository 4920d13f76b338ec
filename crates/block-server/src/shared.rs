//! What all shards of one server share.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dataplane::shard::ShardStats;
use serde::{Deserialize, Serialize};

use crate::counters::BlockCounters;
use crate::export::Exports;
use crate::lock::lock;
use crate::nvme::controller::Subsystem;
use crate::rates::Fare;
use crate::tls::ServerTls;

/// Notices about tenants that wait for the thread that says them.
const NOTICES_MAX: usize = 256;

/// What all shards of one server share.
pub struct Shared {
    exports: Mutex<Arc<Exports>>,
    /// How often the exports were replaced.
    reloads: AtomicU64,
    pub(crate) tls: Mutex<Option<ServerTls>>,
    /// One set of counters a shard.
    pub counters: Vec<BlockCounters>,
    /// Figures of the runtime.
    pub shards: Arc<Vec<ShardStats>>,
    /// How the tenants fare on each shard.
    pub(crate) tenants: Vec<Mutex<Vec<Fare>>>,
    /// Why the last reload was refused, if it was.
    not_reloaded: Mutex<Option<String>>,
    tls_failures: Mutex<Option<TlsFailures>>,
    notices: Mutex<VecDeque<(String, qos::DeviceNotice)>>,
    pub(crate) memory_bytes: usize,
    /// The NVMe subsystem, and the first listener that is for it.
    pub(crate) nvme: Option<(Arc<Subsystem>, u16)>,
    pub(crate) is_draining: AtomicBool,
    drain: Mutex<Option<Drain>>,
}

/// Connections that ended because TLS failed: the client or the server did not accept a
/// certificate, or what came was no TLS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFailures {
    /// How many, since the start.
    pub connections: u64,
    /// When the last one was, in seconds since 1970.
    pub last_unix_s: u64,
    /// Where its client is.
    pub last_address: Option<IpAddr>,
    /// What was wrong, as the TLS library says.
    pub last_reason: String,
}

/// The end of a server, which its requests may delay.
#[derive(Clone, Copy)]
pub(crate) struct Drain {
    pub(crate) began: SystemTime,
    /// Requests under way are given up then.
    pub(crate) until: Instant,
}

impl Shared {
    /// The exports, and memory for requests under way on all shards together.
    pub fn new(exports: Exports, shards: Arc<Vec<ShardStats>>, memory_bytes: usize) -> Self {
        Self {
            exports: Mutex::new(Arc::new(exports)),
            reloads: AtomicU64::new(0),
            tls: Mutex::default(),
            counters: shards.iter().map(|_| BlockCounters::default()).collect(),
            tenants: shards.iter().map(|_| Mutex::default()).collect(),
            not_reloaded: Mutex::default(),
            tls_failures: Mutex::default(),
            notices: Mutex::default(),
            memory_bytes: memory_bytes / shards.len().max(1),
            shards,
            nvme: None,
            is_draining: AtomicBool::new(false),
            drain: Mutex::default(),
        }
    }

    /// Serves NVMe/TCP, too: on the listeners from `first_listener`.
    #[must_use]
    pub fn with_nvme(mut self, subsystem: Subsystem, first_listener: u16) -> Self {
        self.nvme = Some((Arc::new(subsystem), first_listener));
        self
    }

    /// The NVMe subsystem, if there is one.
    pub fn nvme(&self) -> Option<&Arc<Subsystem>> {
        self.nvme.as_ref().map(|(subsystem, _)| subsystem)
    }

    /// The exports now.
    pub fn exports(&self) -> Arc<Exports> {
        Arc::clone(&lock(&self.exports))
    }

    /// New connections see these exports. Each shard ends connections of NBD whose export is gone,
    /// has another range, or is read-only now, before it reads another request. Hosts of NVMe/TCP
    /// are told of the change at the same time.
    pub fn set_exports(&self, exports: Exports) {
        if let Some(subsystem) = self.nvme() {
            subsystem.set_exports(&exports);
        }
        *lock(&self.exports) = Arc::new(exports);
        self.reloads.fetch_add(1, Ordering::Release);
    }

    /// How often the exports were replaced.
    pub(crate) fn reloads(&self) -> u64 {
        self.reloads.load(Ordering::Acquire)
    }

    /// New connections do this about TLS. By default there is none.
    pub fn set_tls(&self, tls: Option<ServerTls>) {
        *lock(&self.tls) = tls;
    }

    /// Something that somebody should know. Past a limit it is left out.
    pub(crate) fn push_notice(&self, notice: (String, qos::DeviceNotice)) {
        let mut notices = lock(&self.notices);
        if notices.len() < NOTICES_MAX {
            notices.push_back(notice);
        }
    }

    /// The next thing that somebody should know: about a tenant or a device, and what.
    pub fn take_notice(&self) -> Option<(String, qos::DeviceNotice)> {
        lock(&self.notices).pop_front()
    }

    /// The server ends: `/status` says so from now on. Requests under way have this time.
    pub fn begin_drain(&self, time: Duration) {
        *lock(&self.drain) = Some(Drain {
            began: SystemTime::now(),
            until: Instant::now() + time,
        });
    }

    /// The end of the server, once it has begun.
    pub(crate) fn drain(&self) -> Option<Drain> {
        *lock(&self.drain)
    }

    /// How a reload ended: `None`, or why it was refused.
    pub(crate) fn set_not_reloaded(&self, reason: Option<String>) {
        *lock(&self.not_reloaded) = reason;
    }

    /// Why the last reload was refused. `None`: it was not, or there was none.
    pub fn not_reloaded(&self) -> Option<String> {
        lock(&self.not_reloaded).clone()
    }

    /// TLS with a client failed. `reason`: as the TLS library says.
    pub(crate) fn tls_failed(&self, address: Option<IpAddr>, reason: String) {
        let mut failures = lock(&self.tls_failures);
        let before = failures.as_ref().map_or(0, |before| before.connections);
        let now = UNIX_EPOCH.elapsed().unwrap_or_default();
        *failures = Some(TlsFailures {
            connections: before + 1,
            last_unix_s: now.as_secs(),
            last_address: address,
            last_reason: reason,
        });
    }

    /// Connections that ended because TLS failed.
    pub(crate) fn tls_failures(&self) -> Option<TlsFailures> {
        lock(&self.tls_failures).clone()
    }

    /// How the tenants fare: by the export's name, one a shard.
    pub(crate) fn fares(&self) -> HashMap<String, Vec<Fare>> {
        let mut all: HashMap<String, Vec<Fare>> = HashMap::new();
        for shard in &self.tenants {
            for fare in lock(shard).iter() {
                all.entry(fare.export.clone())
                    .or_default()
                    .push(fare.clone());
            }
        }
        all
    }
}
