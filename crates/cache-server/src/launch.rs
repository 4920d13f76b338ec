//! Starts the shards, waits for signals, and ends them.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use dataplane::Shard;
use dataplane::batch::{BOUND_MAX, BatchPolicy};
use dataplane::elastic::Elastic;
use dataplane::idle::IdlePolicy;
use dataplane::metrics::Page;
use dataplane::sandbox::{self, SandboxError};
use dataplane::shard::{Command, Plane, ShardConfig};
use dataplane::uring::{self, Uring, UringConfig};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::server::{Cache, Shared};
use crate::settings::{Settings, SettingsError};
use crate::store::VALUE_MAX_BYTES;

/// A flow may queue two of the largest answers: one is always taken whole while the other is sent.
const SEND_QUEUE_BYTES: usize = 2 * (VALUE_MAX_BYTES + 64 * 1024);
/// How often the elastic control plane looks at the shards.
const ELASTIC_TICK: Duration = Duration::from_millis(100);

/// How to serve.
#[derive(Debug, Clone)]
pub struct Options {
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
    pub settings: Settings,
    /// A file with more of them, read again after SIGHUP.
    pub settings_file: Option<PathBuf>,
    /// Zero-copy for answers of so many bytes.
    pub zero_copy_from_bytes: Option<usize>,
    /// A kernel thread for submissions.
    pub submission_thread_idle: Option<Duration>,
    /// Whether capabilities and system calls are given up.
    pub is_sandboxed: bool,
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The runtime.
    #[error(transparent)]
    Dataplane(#[from] dataplane::Error),
    /// The settings file.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Giving up privileges.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The address for metrics.
    #[error("--metrics {0}: {1}")]
    Metrics(SocketAddr, std::io::Error),
    /// Nothing to listen on.
    #[error("no address: give --listen, or start it by a systemd socket")]
    NoAddress,
    /// A thread or a signal handler cannot be set up.
    #[error("{0}: {1}")]
    Start(&'static str, std::io::Error),
    /// A shard's thread ended by a panic.
    #[error("shard {0} ended by a panic")]
    Panic(usize),
}

impl LaunchError {
    /// Whether a privilege or a kernel feature is missing (exit code 3).
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::Dataplane(error) => error.is_missing_privilege(),
            Self::Sandbox(_) => true,
            Self::Metrics(_, error) => error.kind() == std::io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }
}

/// What the server says while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Clients can connect to these addresses.
    Ready(Vec<SocketAddr>),
    /// The settings were read again.
    Reloaded(Settings),
    /// The settings file is wrong; the old settings stay.
    NotReloaded(String),
    /// A signal came: no new connections, and those that are idle are closed.
    Draining,
    /// So many shards own connections now.
    Shards(u8),
}

fn policy(options: &Options, settings: Settings) -> BatchPolicy {
    match (options.fixed_batch, settings.objective) {
        (Some(bound), _) => BatchPolicy::Fixed(bound),
        (None, Some(objective)) => BatchPolicy::Objective(objective),
        (None, None) => BatchPolicy::Fixed(BOUND_MAX),
    }
}

type CachePlane = Plane<Uring, Cache>;
type Outcome = (usize, Result<(), dataplane::Error>);

/// Serves until a signal ends it; gives the signal. `notice` hears what happens.
///
/// # Errors
/// [`LaunchError`]: nothing is left behind.
pub fn serve(options: &Options, notice: &mut dyn FnMut(Notice)) -> Result<i32, LaunchError> {
    let settings = match &options.settings_file {
        Some(path) => options.settings.read(path)?,
        None => options.settings,
    };
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| LaunchError::Start("signals cannot be caught", error))?;
    let (listeners, addresses) = sockets(options)?;
    let shards = u8::try_from(options.cores.len().max(1)).unwrap_or(u8::MAX);
    let plane = Arc::new(CachePlane::new(shards, 1)?);
    let shared = Shared::new(
        options.memory_bytes,
        Arc::clone(&plane.stats),
        options.connections_max,
    );
    let shared = Arc::new(shared);
    shared
        .idle_timeout_s
        .store(settings.idle_timeout_s, Ordering::Relaxed);
    let metrics = match options.metrics {
        Some(address) => {
            let bound = TcpListener::bind(address);
            Some(bound.map_err(|error| LaunchError::Metrics(address, error))?)
        }
        None => None,
    };
    let (ended, outcomes) = mpsc::channel::<Outcome>();
    let mut listeners = Some(listeners);
    for shard in 0..usize::from(shards) {
        let listeners = listeners.take().unwrap_or_default();
        start_shard(
            options,
            settings,
            &plane,
            &shared,
            (shard, listeners),
            &ended,
        )?;
    }
    if let Some(listener) = metrics {
        let shared = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || {
                dataplane::metrics::serve(&listener, |path| {
                    (path == "/metrics").then(|| Page::metrics(shared.metrics_page()))
                });
            })
            .map_err(|error| {
                LaunchError::Start("the thread for metrics cannot be started", error)
            })?;
    }
    if options.is_sandboxed {
        let reloads = options.settings_file.is_some();
        let extra = if reloads { sandbox::FOR_RELOAD } else { &[] };
        sandbox::restrict_system_calls(extra)?;
    }
    notice(Notice::Ready(addresses));
    attend(options, &plane, &shared, &mut signals, &outcomes, notice)
}

/// The sockets of systemd, and those of `--listen`.
fn sockets(options: &Options) -> Result<(Vec<OwnedFd>, Vec<SocketAddr>), LaunchError> {
    let (mut listeners, mut addresses): (Vec<_>, Vec<_>) = uring::inherited()?.into_iter().unzip();
    // With sockets of systemd, the default address is not wanted.
    let own = if listeners.is_empty() {
        &options.listen[..]
    } else {
        &[]
    };
    for &address in own {
        listeners.push(uring::listen(address)?);
        addresses.push(address);
    }
    if listeners.is_empty() {
        return Err(LaunchError::NoAddress);
    }
    Ok((listeners, addresses))
}

fn start_shard(
    options: &Options,
    settings: Settings,
    plane: &Arc<CachePlane>,
    shared: &Arc<Shared>,
    (shard, listeners): (usize, Vec<OwnedFd>),
    ended: &mpsc::Sender<Outcome>,
) -> Result<(), LaunchError> {
    let id = u8::try_from(shard).unwrap_or(0);
    let config = ShardConfig {
        id,
        cpu: options.cores.get(shard).copied(),
        batch: policy(options, settings),
        idle: options.idle,
    };
    let shards = plane.mailboxes.len();
    let owners = Arc::clone(plane);
    let backend = UringConfig {
        listeners,
        flows_max: options.connections_max,
        send_queue_bytes: SEND_QUEUE_BYTES,
        send_memory_bytes: options.send_memory_bytes / shards,
        zero_copy_from_bytes: options.zero_copy_from_bytes,
        submission_thread_idle: options.submission_thread_idle,
        owns_group: (shards > 1)
            .then(|| Box::new(move |group| owners.groups.owner(group) == id) as uring::OwnsGroup),
        ..UringConfig::default()
    };
    let (plane, shared, ended) = (Arc::clone(plane), Arc::clone(shared), ended.clone());
    let is_sandboxed = options.is_sandboxed;
    let (ready, is_ready) = mpsc::channel();
    std::thread::Builder::new()
        .name(format!("shard-{shard}"))
        .spawn(move || {
            let run = || -> Result<(), LaunchError> {
                if let Some(cpu) = config.cpu {
                    dataplane::shard::bind(cpu)?;
                }
                let uring = Uring::new(backend)?;
                if is_sandboxed {
                    sandbox::drop_capabilities()?;
                }
                let _ = ready.send(Ok(()));
                Shard::new(config, uring, Cache::new(shared, shard), plane).run()?;
                Ok(())
            };
            let outcome = match run() {
                Ok(()) => Ok(()),
                Err(LaunchError::Dataplane(error)) => {
                    let text = error.to_string();
                    let _ = ready.send(Err(LaunchError::Dataplane(error)));
                    Err(dataplane::Error::Backend(text))
                }
                Err(error) => {
                    let text = error.to_string();
                    let _ = ready.send(Err(error));
                    Err(dataplane::Error::Backend(text))
                }
            };
            let _ = ended.send((shard, outcome));
        })
        .map_err(|error| LaunchError::Start("a shard's thread cannot be started", error))?;
    is_ready.recv().unwrap_or(Err(LaunchError::Panic(shard)))
}

/// Looks after signals and shards until the end.
fn attend(
    options: &Options,
    plane: &CachePlane,
    shared: &Shared,
    signals: &mut signal_hook::iterator::Signals,
    outcomes: &mpsc::Receiver<Outcome>,
    notice: &mut dyn FnMut(Notice),
) -> Result<i32, LaunchError> {
    let shards = plane.mailboxes.len();
    let mut left = shards;
    let mut ended_by = None;
    let mut elastic = Elastic::new(u8::try_from(shards).unwrap_or(u8::MAX));
    let mut busy_before = vec![0; shards];
    let mut looked_at = std::time::Instant::now();
    while left > 0 {
        match outcomes.recv_timeout(ELASTIC_TICK) {
            Ok((_, Ok(()))) => left -= 1,
            Ok((_, Err(error))) => return Err(error.into()),
            Err(_) => {}
        }
        for signal in signals.pending() {
            if signal == SIGHUP {
                reload(options, plane, shared, notice);
            } else if ended_by.is_some() {
                // Asked twice: at once.
                return Ok(signal);
            } else {
                ended_by = Some(signal);
                notice(Notice::Draining);
                plane.drain(options.drain);
            }
        }
        if shards > 1 && ended_by.is_none() {
            let elapsed = looked_at.elapsed().as_nanos() as f64;
            looked_at = std::time::Instant::now();
            let busy: Vec<f64> = plane
                .stats
                .iter()
                .zip(&mut busy_before)
                .map(|(stats, before)| {
                    let now = stats.busy_ns.load(Ordering::Relaxed);
                    let spent = now.wrapping_sub(std::mem::replace(before, now));
                    spent as f64 / elapsed
                })
                .collect();
            let was = elastic.active();
            let active = elastic.step(&busy);
            if active != was {
                plane.resize(active);
                notice(Notice::Shards(active));
            }
        }
    }
    Ok(ended_by.unwrap_or(SIGTERM))
}

fn reload(options: &Options, plane: &CachePlane, shared: &Shared, notice: &mut dyn FnMut(Notice)) {
    let Some(path) = &options.settings_file else {
        notice(Notice::NotReloaded(
            "there is no --settings file to read".into(),
        ));
        return;
    };
    match options.settings.read(path) {
        Ok(settings) => {
            shared
                .idle_timeout_s
                .store(settings.idle_timeout_s, Ordering::Relaxed);
            for mailbox in &plane.mailboxes {
                let _ = mailbox.send(Command::Batch(policy(options, settings)));
            }
            notice(Notice::Reloaded(settings));
        }
        Err(error) => notice(Notice::NotReloaded(error.to_string())),
    }
}
