//! A server on one backend: its shards, signals, metrics and reloads.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dataplane::Backend;
use dataplane::batch::{BOUND_MAX, BatchPolicy};
use dataplane::elastic::Elastic;
use dataplane::isolated::{FOR_STACK_PROCESS, StackProcess};
use dataplane::launch::{self, AddressInUse, Shards};
use dataplane::metrics::Page;
use dataplane::sandbox::{self, Opens};
use dataplane::shard::{Command, Plane, ShardConfig, ShardStats};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::error::CacheLaunchError;
use super::options::{CacheOptions, shards};
use crate::server::Cache;
use crate::settings::CacheSettings;
use crate::shared::SharedCache;

/// How often the elastic control plane looks at the shards.
const ELASTIC_TICK: Duration = Duration::from_millis(100);

/// What the server says while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheNotice {
    /// Another process has an address.
    AddressInUse(AddressInUse),
    /// Clients can connect to these addresses.
    Ready(Vec<SocketAddr>),
    /// The settings were read again.
    Reloaded(CacheSettings),
    /// The settings file is wrong; the old settings stay.
    NotReloaded(String),
    /// A signal came: no new connections, and those that are idle are closed.
    Draining,
    /// So many shards own connections now.
    Shards(u8),
}

fn policy(options: &CacheOptions, settings: CacheSettings) -> BatchPolicy {
    match (options.fixed_batch, settings.objective) {
        (Some(bound), _) => BatchPolicy::Fixed(bound),
        (None, Some(objective)) => BatchPolicy::Objective(objective),
        (None, None) => BatchPolicy::Fixed(BOUND_MAX),
    }
}

/// A server on one backend.
pub(super) struct Server<'a, B: Backend> {
    pub(super) options: &'a CacheOptions,
    settings: CacheSettings,
    addresses: Vec<SocketAddr>,
    signals: Signals,
    metrics: Option<TcpListener>,
    pub(super) plane: Arc<Plane<B, Cache>>,
    shared: Arc<SharedCache>,
    pub(super) shards: Shards<B, Cache>,
    /// The process of the TCP stack, where it has one of its own.
    pub(super) stack: Option<StackProcess>,
}

impl<'a, B: Backend + 'static> Server<'a, B> {
    pub(super) fn new(
        options: &'a CacheOptions,
        settings: CacheSettings,
        addresses: Vec<SocketAddr>,
        groups: usize,
        notice: &mut dyn FnMut(CacheNotice),
    ) -> Result<Self, CacheLaunchError> {
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
            .map_err(|error| launch::LaunchError::Start("signals cannot be caught", error))?;
        // One shard owns all connections until the load needs another.
        let plane = Arc::new(Plane::with_groups(groups, shards(options), 1)?);
        let shared = SharedCache::new(
            options.memory_bytes,
            Arc::clone(&plane.stats),
            options.connections_max,
        );
        shared
            .idle_timeout_s
            .store(settings.idle_timeout_s, Ordering::Relaxed);
        Ok(Self {
            options,
            settings,
            addresses,
            signals,
            metrics: launch::metrics_listener(options.metrics, &mut |held| {
                notice(CacheNotice::AddressInUse(held));
            })?,
            shards: Shards::new(Arc::clone(&plane), options.is_sandboxed),
            plane,
            shared: Arc::new(shared),
            stack: None,
        })
    }

    pub(super) fn shard_config(&self, shard: u8) -> ShardConfig {
        ShardConfig {
            id: shard,
            cpu: self.options.cores.get(usize::from(shard)).copied(),
            batch: policy(self.options, self.settings),
            idle: self.options.idle,
        }
    }

    pub(super) fn cache(&self, shard: u8) -> Cache {
        Cache::new(Arc::clone(&self.shared), shard.into())
    }

    /// Serves metrics, gives up privileges, and looks after signals and shards until the end.
    pub(super) fn run(
        mut self,
        notice: &mut dyn FnMut(CacheNotice),
    ) -> Result<i32, CacheLaunchError> {
        let options = self.options;
        let reloads = options.settings_file.is_some();
        if options.is_sandboxed {
            match reloads {
                // A reload may have to read a file of another user.
                true => sandbox::drop_capabilities_except_reading()?,
                false => sandbox::drop_capabilities()?,
            }
        }
        if let Some(listener) = self.metrics.take() {
            let shared = Arc::clone(&self.shared);
            launch::serve_pages(listener, move |path| {
                (path == "/metrics").then(|| Page::metrics(shared.metrics_page()))
            })?;
        }
        if options.is_sandboxed {
            let opens = match reloads {
                true => Opens::ForReading,
                false => Opens::Nothing,
            };
            let stack = match self.stack {
                Some(_) => FOR_STACK_PROCESS,
                None => &[],
            };
            sandbox::restrict_system_calls(stack, opens)?;
        }
        if let Some(stack) = &self.stack {
            stack.begin()?;
        }
        notice(CacheNotice::Ready(std::mem::take(&mut self.addresses)));
        let mut ended_by = None;
        let mut balance = Balance::new(self.plane.mailboxes.len());
        while self.shards.wait(ELASTIC_TICK)? {
            if let Some(stack) = &self.stack {
                stack.check()?;
            }
            for signal in self.signals.pending() {
                if signal == SIGHUP {
                    self.reload(notice);
                } else if ended_by.is_some() {
                    // Asked twice: at once.
                    return Ok(signal);
                } else {
                    ended_by = Some(signal);
                    notice(CacheNotice::Draining);
                    self.plane.drain(options.drain);
                }
            }
            // What moves now has to arrive first. With a stack of its own, nothing moves.
            if ended_by.is_none()
                && self.stack.is_none()
                && !self.plane.is_moving()
                && let Some(active) = balance.step(&self.plane.stats)
            {
                self.plane.resize(active);
                notice(CacheNotice::Shards(active));
            }
        }
        Ok(ended_by.unwrap_or(SIGTERM))
    }

    fn reload(&self, notice: &mut dyn FnMut(CacheNotice)) {
        let Some(path) = &self.options.settings_file else {
            notice(CacheNotice::NotReloaded(
                "there is no --settings file to read".into(),
            ));
            return;
        };
        match self.options.settings.read(path) {
            Ok(settings) => {
                self.shared
                    .idle_timeout_s
                    .store(settings.idle_timeout_s, Ordering::Relaxed);
                for mailbox in &self.plane.mailboxes {
                    let _ = mailbox.send(Command::Batch(policy(self.options, settings)));
                }
                notice(CacheNotice::Reloaded(settings));
            }
            Err(error) => notice(CacheNotice::NotReloaded(error.to_string())),
        }
    }
}

/// Tells when shards are added or given back.
struct Balance {
    elastic: Elastic,
    busy_before: Vec<u64>,
    looked_at: Instant,
}

impl Balance {
    fn new(shards: usize) -> Self {
        Self {
            elastic: Elastic::new(u8::try_from(shards).unwrap_or(u8::MAX)),
            busy_before: vec![0; shards],
            looked_at: Instant::now(),
        }
    }

    /// The number of shards that own connections from now on, where it changes.
    fn step(&mut self, stats: &[ShardStats]) -> Option<u8> {
        if stats.len() == 1 {
            return None;
        }
        let elapsed = self.looked_at.elapsed().as_nanos() as f64;
        self.looked_at = Instant::now();
        let busy: Vec<f64> = stats
            .iter()
            .zip(&mut self.busy_before)
            .map(|(stats, before)| {
                let now = stats.busy_ns.load(Ordering::Relaxed);
                let spent = now.wrapping_sub(std::mem::replace(before, now));
                spent as f64 / elapsed
            })
            .collect();
        let was = self.elastic.active();
        let active = self.elastic.step(&busy);
        (active != was).then_some(active)
    }
}
