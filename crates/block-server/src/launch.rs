//! Starts the shards, waits for signals, and ends them.

mod check;
mod error;
mod notice;
mod sockets;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::idle::IdlePolicy;
use dataplane::launch::{self, AddressInUse, Shards};
use dataplane::metrics::Page;
use dataplane::sandbox::{self, Opens};
use dataplane::shard::{Plane, ShardConfig};
use dataplane::uring::{self, Uring, UringConfig};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
pub use signal_hook::iterator::Signals;

pub use self::check::{Checked, check};
pub use self::error::{BlockLaunchError, address_place};
pub(crate) use self::notice::text;
pub use self::notice::{BlockNotice, CALIBRATE_AGAIN, LOST_WRITES, RESERVE_MORE};
use self::sockets::{Sockets, at_address, sockets};
use crate::audit::Audit;
use crate::calibration;
use crate::config::BlockConfig;
use crate::cores;
use crate::export;
use crate::memory;
use crate::nvme::controller::Subsystem;
use crate::plan;
use crate::server::{BlockService, Shared};
use crate::tls::ServerTls;

/// Bytes that one connection may queue for sending: a few large answers.
const SEND_QUEUE_BYTES: usize = 1 << 20;
/// Bytes of a connection that wait for memory.
const RECEIVE_WINDOW_BYTES: usize = 256 << 10;
/// How often signals are looked for.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two looks at the devices: a second.
const LOOK_TICKS: u64 = 10;
/// System calls of a server of disks, beyond those of every server: holes are looked for, and a
/// reload opens devices.
const CALLS: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_ioctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// How to serve.
#[derive(Debug, Clone)]
pub struct BlockServerOptions {
    /// The configuration file. SIGHUP has it read again.
    pub config: PathBuf,
    /// What an idle shard does.
    pub idle: IdlePolicy,
    /// Whether capabilities and system calls are given up.
    pub is_sandboxed: bool,
}

type BlockPlane = Plane<Uring, BlockService>;

fn names(exports: &export::Exports) -> Vec<String> {
    exports.iter().map(|export| export.name.clone()).collect()
}

/// Catches the signals that a server understands, from now on. Without that SIGHUP would end the
/// process.
///
/// # Errors
/// The kernel's refusal.
pub fn catch_signals() -> Result<Signals, BlockLaunchError> {
    Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(BlockLaunchError::start("signals cannot be caught"))
}

/// Serves until a signal ends it; gives the signal. `notice` hears what happens.
///
/// # Errors
/// [`BlockLaunchError`]: nothing is left behind.
pub fn serve(
    options: &BlockServerOptions,
    mut signals: Signals,
    notice: &mut dyn FnMut(BlockNotice),
) -> Result<i32, BlockLaunchError> {
    let config = BlockConfig::read(&options.config)?;
    let mut audit = Audit::open(&config)?;
    let mut waits = |held: AddressInUse| {
        let place = config.place_of_address(held.0).cloned();
        notice(BlockNotice::AddressInUse(held, place));
    };
    let mut started = start(options, &config, &mut waits).inspect_err(|error| {
        audit.refused(&error.to_string());
    })?;
    let exports = started.shared.exports();
    audit.changed(&Vec::new(), &exports);
    notice(BlockNotice::Ready {
        addresses: std::mem::take(&mut started.addresses),
        nvme: std::mem::take(&mut started.nvme),
        metrics: config.metrics,
        exports: names(&exports),
    });
    for warning in calibration::warnings(&config) {
        notice(BlockNotice::Warning(warning));
    }
    attend(
        options,
        &config,
        &mut signals,
        &mut started,
        &mut audit,
        notice,
    )
}

/// A server that clients can connect to.
struct Started {
    plane: Arc<BlockPlane>,
    shared: Arc<Shared>,
    running: Shards<Uring, BlockService>,
    addresses: Vec<SocketAddr>,
    nvme: Vec<SocketAddr>,
}

fn start(
    options: &BlockServerOptions,
    config: &BlockConfig,
    waits: &mut dyn FnMut(AddressInUse),
) -> Result<Started, BlockLaunchError> {
    let shards = u8::try_from(config.cores.len().max(1)).unwrap_or(u8::MAX);
    cores::check(&config.cores)?;
    let tls = config.tls.as_ref().map(ServerTls::load).transpose()?;
    memory::check(config)?;
    let exports = export::open(config, &Vec::new(), shards.into())?;
    let Sockets {
        listeners,
        addresses,
        nvme,
    } = sockets(config, waits)?;
    let plane = Arc::new(BlockPlane::new(shards, shards)?);
    let memory_bytes = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
    let subsystem = config
        .nvme
        .as_ref()
        .map(|spec| Subsystem::new(&spec.subsystem, nvme.clone(), &exports));
    let mut shared = Shared::new(exports, Arc::clone(&plane.stats), memory_bytes);
    if let Some(subsystem) = subsystem {
        let first = u16::try_from(addresses.len()).unwrap_or(u16::MAX);
        shared = shared.with_nvme(subsystem, first);
    }
    shared.set_tls(tls);
    let shared = Arc::new(shared);
    let metrics = launch::metrics_listener(config.metrics, waits)
        .map_err(|error| at_address(config, config.metrics, error))?;
    let mut running = Shards::new(Arc::clone(&plane), options.is_sandboxed);
    let mut listeners = Some(listeners);
    for shard in 0..shards {
        let listeners = listeners.take().unwrap_or_default();
        let backend = backend(config, &plane, shard, listeners);
        let shard_config = ShardConfig {
            id: shard,
            cpu: config.cores.get(usize::from(shard)).map(|core| core.cpu),
            idle: options.idle,
            ..ShardConfig::default()
        };
        let block = BlockService::new(Arc::clone(&shared), shard.into());
        running.start(shard_config, move || Ok((Uring::new(backend)?, block)))?;
    }
    if let Some(listener) = metrics {
        let shared = Arc::clone(&shared);
        launch::serve_pages(listener, move |path| page(&shared, path))?;
    }
    if options.is_sandboxed {
        sandbox::restrict_system_calls(CALLS, Opens::Nothing)?;
    }
    Ok(Started {
        plane,
        shared,
        running,
        addresses,
        nvme,
    })
}

fn page(shared: &Shared, path: &str) -> Option<Page> {
    match path {
        "/metrics" => Some(Page::metrics(shared.metrics_page())),
        "/status" => serde_json::to_string(&shared.status()).ok().map(Page::json),
        _ => None,
    }
}

/// The network of a shard. The first shard has all listeners.
fn backend(
    config: &BlockConfig,
    plane: &Arc<BlockPlane>,
    shard: u8,
    listeners: Vec<OwnedFd>,
) -> UringConfig {
    let shards = plane.mailboxes.len();
    let owners = Arc::clone(plane);
    let owns = move |group| owners.groups.owner(group) == shard;
    let memory_bytes = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
    UringConfig {
        listeners,
        flows_max: config.connections_max,
        receive_window_bytes: RECEIVE_WINDOW_BYTES,
        send_queue_bytes: SEND_QUEUE_BYTES,
        send_memory_bytes: memory_bytes / shards,
        owns_group: (shards > 1).then(|| Box::new(owns) as uring::OwnsGroup),
        ..UringConfig::default()
    }
}

/// Looks after signals and shards until the end.
fn attend(
    options: &BlockServerOptions,
    config: &BlockConfig,
    signals: &mut Signals,
    started: &mut Started,
    audit: &mut Audit,
    notice: &mut dyn FnMut(BlockNotice),
) -> Result<i32, BlockLaunchError> {
    let mut ended_by = None;
    let mut said = Vec::new();
    let mut ticks: u64 = 0;
    while started.running.wait(TICK)? {
        ticks += 1;
        if ticks.is_multiple_of(LOOK_TICKS) {
            for text in lost_writes(&started.shared.exports(), &mut said) {
                notice(BlockNotice::Tenant(text));
            }
        }
        while let Some((name, about)) = started.shared.take_notice() {
            notice(BlockNotice::Tenant(text(&name, about)));
        }
        if let Some(trouble) = audit.take_trouble() {
            notice(BlockNotice::AuditLog(trouble));
        }
        for signal in signals.pending() {
            if signal == SIGHUP {
                let (reloaded, odd) = reload(options, config, &started.shared, audit);
                notice(reloaded);
                for trouble in troubles(&started.shared.exports()).into_iter().chain(odd) {
                    notice(BlockNotice::Warning(trouble));
                }
            } else if ended_by.is_some() {
                // Asked twice: at once.
                return Ok(signal);
            } else {
                ended_by = Some(signal);
                notice(BlockNotice::Draining);
                let time = Duration::from_secs(config.drain_s.into());
                started.shared.begin_drain(time);
                started.plane.drain(time);
            }
        }
    }
    if let Some(drain) = started.shared.drain() {
        notice(BlockNotice::Drained {
            is_cut_off: Instant::now() >= drain.until,
        });
    }
    Ok(ended_by.unwrap_or(SIGTERM))
}

/// What has happened to the files of devices, each said once.
fn troubles(exports: &export::Exports) -> Vec<String> {
    let mut troubles: Vec<String> = Vec::new();
    for trouble in exports.iter().filter_map(|export| export.device.trouble()) {
        if !troubles.contains(&trouble) {
            troubles.push(trouble);
        }
    }
    troubles
}

/// What to say of devices that a flush has failed on. Those in `said` were named before.
fn lost_writes(exports: &export::Exports, said: &mut Vec<String>) -> Vec<String> {
    let mut texts = Vec::new();
    for export in exports {
        let name = &export.device.name;
        if export.device.has_lost_writes() && !said.contains(name) {
            said.push(name.clone());
            texts.push(format!("{name}: {LOST_WRITES}"));
        }
    }
    texts
}

/// Reads the configuration again. Keys of [`BlockConfig::changed_at_restart_only`] keep the value
/// that they had in `at_start`. Returns what came of it, and what is odd about the configuration.
fn reload(
    options: &BlockServerOptions,
    at_start: &BlockConfig,
    shared: &Shared,
    audit: &mut Audit,
) -> (BlockNotice, Vec<String>) {
    let old = shared.exports();
    let config = BlockConfig::read(&options.config);
    let odd = config.as_ref().map(calibration::warnings);
    let odd = odd.unwrap_or_default();
    let opened = config.and_then(|config| {
        let tls = config.tls.as_ref().map(ServerTls::load).transpose()?;
        Audit::check_is_alone(&config)?;
        memory::check(&config)?;
        if let Some(subsystem) = shared.nvme() {
            subsystem.check(&config)?;
        }
        let exports = export::open(&config, &old, shared.shards.len())?;
        // A start begins with the calibration, and not with the curve that was learnt.
        let restart_refuses = plan::books(&config).err().map(|error| error.to_string());
        let after_restart = at_start.changed_at_restart_only(&config);
        Ok((exports, tls, after_restart, restart_refuses))
    });
    let notice = match opened {
        Ok((exports, tls, after_restart, restart_refuses)) => {
            let reloaded = BlockNotice::Reloaded {
                exports: names(&exports),
                changed: export::changed(&old, &exports),
                ended: export::ended(&old, &exports),
                restart_refuses,
                after_restart,
            };
            shared.set_tls(tls);
            audit.changed(&old, &exports);
            shared.set_exports(exports);
            shared.set_not_reloaded(None);
            reloaded
        }
        Err(error) => {
            let reason = error.to_string();
            audit.refused(&reason);
            shared.set_not_reloaded(Some(reason.clone()));
            BlockNotice::NotReloaded(reason)
        }
    };
    (notice, odd)
}

#[cfg(test)]
#[path = "launch_tests.rs"]
mod tests;
