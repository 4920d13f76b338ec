//! Starts the shards, waits for signals, and ends them.

mod isolated;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dataplane::Backend;
use dataplane::batch::{BOUND_MAX, BatchPolicy};
use dataplane::elastic::Elastic;
use dataplane::groups::GROUPS;
use dataplane::idle::IdlePolicy;
use dataplane::isolated::{FOR_STACK_PROCESS, ProcessError, StackProcess};
use dataplane::launch::{self, AddressInUse, Shards};
use dataplane::metrics::Page;
use dataplane::sandbox::{self, Opens, SandboxError};
use dataplane::shard::{Command, Plane, ShardConfig, ShardStats};
use dataplane::uring::{self, Uring, UringConfig};
use dataplane::xdp::{Division, Interface, Program, SocketConfig, XdpBackend, XdpConfig, XdpMode};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

pub use isolated::{Isolation, serve_stack};

use crate::server::{Cache, SharedCache};
use crate::settings::{CacheSettings, SettingsError};
use crate::store::VALUE_MAX_BYTES;

/// A flow may queue two of the largest answers: one is always taken whole while the other is sent.
const SEND_QUEUE_BYTES: usize = 2 * (VALUE_MAX_BYTES + 64 * 1024);
/// Queues of an interface at most: shards are no more, and each queue has memory for frames.
const QUEUES_MAX: u32 = 255;
/// Frames of a queue each way at least: what comes in a millisecond of a million packets a second.
const FRAMES_MIN: u32 = 1024;
/// How often the elastic control plane looks at the shards.
const ELASTIC_TICK: Duration = Duration::from_millis(100);

/// How to serve.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// The network that clients come by.
    pub network: Network,
    /// With [`Network::Xdp`]: the TCP stack in a process of its own.
    pub isolation: Option<Isolation>,
    /// Addresses to listen on, beside sockets that systemd passes.
    pub listen: Vec<SocketAddr>,
    /// Bytes for items.
    pub memory_bytes: usize,
    /// CPUs, one shard each. Empty: one shard, on any CPU.
    pub cores: Vec<usize>,
    /// Connections at most.
    pub connections_max: usize,
    /// Bytes for answers that clients do not read, beside 4 KiB for each connection.
    pub send_memory_bytes: usize,
    /// A batch bound that never changes.
    pub fixed_batch: Option<usize>,
    /// What an idle shard does.
    pub idle: IdlePolicy,
    /// Where `/metrics` is served.
    pub metrics: Option<SocketAddr>,
    /// How long connections may go on after SIGTERM.
    pub drain: Duration,
    /// Settings that may change.
    pub settings: CacheSettings,
    /// A file with more of them, read again after SIGHUP.
    pub settings_file: Option<PathBuf>,
    /// Zero-copy for answers of so many bytes.
    pub zero_copy_from_bytes: Option<usize>,
    /// A kernel thread for submissions.
    pub submission_thread_idle: Option<Duration>,
    /// Whether capabilities and system calls are given up.
    pub is_sandboxed: bool,
}

/// The network that clients come by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// The kernel's, by io_uring.
    Kernel,
    /// An interface, by AF_XDP, with a TCP of our own. The kernel sees none of the frames of its
    /// queues meanwhile.
    Xdp {
        /// The interface.
        interface: String,
        /// One queue alone. `None`: all that there are.
        queue: Option<u32>,
    },
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum CacheLaunchError {
    /// The shards, or what they stand on.
    #[error(transparent)]
    Launch(#[from] launch::LaunchError),
    /// The settings file.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The process of the TCP stack.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// There is no TCP stack to isolate.
    #[error(
        "--isolate-stack puts the TCP stack of --net xdp:INTERFACE into a process of its own; with \
         --net kernel the kernel has it: leave --isolate-stack out, or name an interface"
    )]
    NothingToIsolate,
    /// Each shard has one TCP stack.
    #[error(
        "--stack-cores names {stacks} CPUs, and {shards} are needed: one for each CPU in --cores"
    )]
    StackCores {
        /// CPUs of stacks.
        stacks: usize,
        /// Shards.
        shards: usize,
    },
    /// Nothing to listen on.
    #[error("no address: give --listen, or start it by a systemd socket")]
    NoAddress,
    /// A queue of an interface has one shard.
    #[error(
        "--net xdp:{interface}:{queue} is one queue, which one CPU serves: name one CPU in --cores, \
         or write --net xdp:{interface} for all queues"
    )]
    ManyShards {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
}

impl From<dataplane::Error> for CacheLaunchError {
    fn from(error: dataplane::Error) -> Self {
        Self::Launch(error.into())
    }
}

impl From<SandboxError> for CacheLaunchError {
    fn from(error: SandboxError) -> Self {
        Self::Launch(error.into())
    }
}

impl CacheLaunchError {
    /// Whether a privilege or a kernel feature is missing (exit code 3).
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::Launch(error) => error.is_missing_privilege(),
            Self::Process(error) => error.is_missing_privilege(),
            Self::Settings(_)
            | Self::NothingToIsolate
            | Self::StackCores { .. }
            | Self::NoAddress
            | Self::ManyShards { .. } => false,
        }
    }
}

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

/// Serves until a signal ends it; gives the signal. `notice` hears what happens.
///
/// # Errors
/// [`CacheLaunchError`]: nothing is left behind.
pub fn serve(
    options: &CacheOptions,
    notice: &mut dyn FnMut(CacheNotice),
) -> Result<i32, CacheLaunchError> {
    let settings = match &options.settings_file {
        Some(path) => options.settings.read(path)?,
        None => options.settings,
    };
    match (&options.network, &options.isolation) {
        (Network::Kernel, Some(_)) => Err(CacheLaunchError::NothingToIsolate),
        (Network::Kernel, None) => {
            let (listeners, addresses) = sockets(options, notice)?;
            let mut server = Server::new(options, settings, addresses, GROUPS, notice)?;
            server.start_uring(listeners)?;
            server.run(notice)
        }
        (Network::Xdp { .. }, Some(isolation)) => {
            isolated::serve(options, isolation, settings, notice)
        }
        (Network::Xdp { interface, queue }, None) => {
            let queues = XdpQueues::find(options, interface, *queue)?;
            let addresses = options.listen.clone();
            let groups = queues.count as usize;
            let mut server = Server::new(options, settings, addresses, groups, notice)?;
            server.start_xdp(&queues)?;
            server.run(notice)
        }
    }
}

/// Shards of a server.
fn shards(options: &CacheOptions) -> u8 {
    u8::try_from(options.cores.len().max(1)).unwrap_or(u8::MAX)
}

/// A server on one backend.
struct Server<'a, B: Backend> {
    options: &'a CacheOptions,
    settings: CacheSettings,
    addresses: Vec<SocketAddr>,
    signals: Signals,
    metrics: Option<TcpListener>,
    plane: Arc<Plane<B, Cache>>,
    shared: Arc<SharedCache>,
    shards: Shards<B, Cache>,
    /// The process of the TCP stack, where it has one of its own.
    stack: Option<StackProcess>,
}

impl<'a, B: Backend + 'static> Server<'a, B> {
    fn new(
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

    fn shard_config(&self, shard: u8) -> ShardConfig {
        ShardConfig {
            id: shard,
            cpu: self.options.cores.get(usize::from(shard)).copied(),
            batch: policy(self.options, self.settings),
            idle: self.options.idle,
        }
    }

    fn cache(&self, shard: u8) -> Cache {
        Cache::new(Arc::clone(&self.shared), shard.into())
    }

    /// Serves metrics, gives up privileges, and looks after signals and shards until the end.
    fn run(mut self, notice: &mut dyn FnMut(CacheNotice)) -> Result<i32, CacheLaunchError> {
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

impl Server<'_, Uring> {
    fn start_uring(&mut self, listeners: Vec<OwnedFd>) -> Result<(), CacheLaunchError> {
        let options = self.options;
        let shards = self.plane.mailboxes.len();
        let mut listeners = Some(listeners);
        for shard in 0..u8::try_from(shards).unwrap_or(u8::MAX) {
            let owners = Arc::clone(&self.plane);
            let owns = move |group| owners.groups.owner(group) == shard;
            let backend = UringConfig {
                // The first shard accepts for all.
                listeners: listeners.take().unwrap_or_default(),
                flows_max: options.connections_max,
                send_queue_bytes: SEND_QUEUE_BYTES,
                send_memory_bytes: options.send_memory_bytes / shards,
                zero_copy_from_bytes: options.zero_copy_from_bytes,
                submission_thread_idle: options.submission_thread_idle,
                owns_group: (shards > 1).then(|| Box::new(owns) as uring::OwnsGroup),
                ..UringConfig::default()
            };
            let cache = self.cache(shard);
            let config = self.shard_config(shard);
            self.shards
                .start(config, move || Ok((Uring::new(backend)?, cache)))?;
        }
        Ok(())
    }
}

impl Server<'_, XdpBackend> {
    fn start_xdp(&mut self, queues: &XdpQueues) -> Result<(), CacheLaunchError> {
        let memory_max_bytes = self.options.send_memory_bytes / self.plane.mailboxes.len();
        let owner = |group| self.plane.groups.owner(group);
        let backends = queues.open(self.options, memory_max_bytes, &owner)?;
        for (shard, backend) in (0..).zip(backends) {
            let cache = self.cache(shard);
            self.shards
                .start(self.shard_config(shard), move || Ok((backend, cache)))?;
        }
        Ok(())
    }
}

/// Queues of an interface: `count` of them, from `first` on.
struct XdpQueues {
    interface: Interface,
    first: u32,
    count: u32,
}

impl XdpQueues {
    /// The queue that was named, or all queues of the interface.
    fn find(
        options: &CacheOptions,
        interface: &str,
        queue: Option<u32>,
    ) -> Result<Self, CacheLaunchError> {
        if let Some(queue) = queue
            && options.cores.len() > 1
        {
            let interface = interface.to_owned();
            return Err(CacheLaunchError::ManyShards { interface, queue });
        }
        let interface = Interface::find(interface).map_err(dataplane::Error::from)?;
        let count = match queue {
            Some(_) => 1,
            None => interface.queues.receive.min(QUEUES_MAX),
        };
        Ok(Self {
            interface,
            first: queue.unwrap_or(0),
            count,
        })
    }

    /// Takes the queues from the kernel, for one backend a shard. `owner` says which shard has a
    /// queue at first.
    fn open(
        &self,
        options: &CacheOptions,
        memory_max_bytes: usize,
        owner: &dyn Fn(u16) -> u8,
    ) -> Result<Vec<XdpBackend>, CacheLaunchError> {
        let (interface, shards) = (&self.interface, shards(options));
        interface
            .check_queue(self.first)
            .and_then(|()| interface.check_shards(shards))
            .map_err(dataplane::Error::from)?;
        let defaults = SocketConfig::default();
        // Many queues for few shards have fewer frames each.
        let frames = defaults.frames * u32::from(shards) / self.count;
        let config = XdpConfig {
            socket: SocketConfig {
                queue: self.first,
                frames: frames.clamp(FRAMES_MIN, defaults.frames),
                ..defaults
            },
            listen: options.listen.clone(),
            connections_max: options.connections_max,
            extra_addresses: Vec::new(),
        };
        config.check(interface).map_err(dataplane::Error::from)?;
        let change = |stack: &mut dataplane::tcp::Config| {
            stack.memory_max_bytes = memory_max_bytes;
            stack.send_queue_max_bytes = u32::try_from(SEND_QUEUE_BYTES).unwrap_or(u32::MAX);
        };
        let division = Division {
            queues: self.count,
            shards,
            owner,
        };
        let backends = Program::attach(interface, self.first + self.count, XdpMode::Auto)
            .and_then(|program| {
                let program = Arc::new(program);
                XdpBackend::open_all(interface, &config, &program, division, &change)
            })
            .map_err(dataplane::Error::from)?;
        Ok(backends)
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

/// The sockets of systemd, and those of `--listen`.
fn sockets(
    options: &CacheOptions,
    notice: &mut dyn FnMut(CacheNotice),
) -> Result<(Vec<OwnedFd>, Vec<SocketAddr>), CacheLaunchError> {
    let (mut listeners, mut addresses): (Vec<_>, Vec<_>) = uring::inherited()?.into_iter().unzip();
    // With sockets of systemd, the default address is not wanted.
    let own = if listeners.is_empty() {
        &options.listen[..]
    } else {
        &[]
    };
    for &address in own {
        let mut waits = |held| notice(CacheNotice::AddressInUse(held));
        listeners.push(launch::listen(address, &mut waits)?);
        addresses.push(address);
    }
    if listeners.is_empty() {
        return Err(CacheLaunchError::NoAddress);
    }
    Ok((listeners, addresses))
}
