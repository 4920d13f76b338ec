//! Starts the shards, waits for signals, and ends them.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::idle::IdlePolicy;
use dataplane::launch::{self, AddressInUse, Shards};
use dataplane::metrics::Page;
use dataplane::sandbox::{self, Opens, SandboxError};
use dataplane::shard::{Plane, ShardConfig};
use dataplane::uring::{self, Uring, UringConfig};
use qos::Grouped;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
pub use signal_hook::iterator::Signals;

use crate::audit::Audit;
use crate::calibration;
use crate::config::{BlockConfig, ConfigError, Place};
use crate::cores;
use crate::creation::to_make;
use crate::export;
use crate::holders::Holder;
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
/// What to do where a calibration no longer holds.
pub const CALIBRATE_AGAIN: &str =
    "Calibrate the device again. `calibrate` opens it exclusively, so stop this server before";
/// What a failed flush means, and what to do.
pub const LOST_WRITES: &str = "a flush failed, so writes that were answered may be lost. All flushes of the device fail until \
                               this server is restarted. Check the device before";
/// What to do where a tenant asks for more than it reserved.
pub const RESERVE_MORE: &str = "Give the tenant a larger `iops` if `slackline serve-block admit` says that this fits, \
                                or let its clients ask for less";
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

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum BlockLaunchError {
    /// The shards, or what they stand on.
    #[error(transparent)]
    Launch(#[from] launch::LaunchError),
    /// The configuration file, or a device that it names.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address of the configuration that the server cannot listen on.
    #[error("{}{source}{hint}", address_place(place.as_ref()))]
    Address {
        /// Where the address stands; `None`: it is the default.
        place: Option<Place>,
        /// Why not.
        source: Box<launch::LaunchError>,
        /// What to do.
        hint: &'static str,
    },
    /// A socket of systemd that the server may not serve at.
    #[error("the socket {address} that systemd opened {reason}")]
    SystemdSocket {
        /// The socket's address.
        address: SocketAddr,
        /// Why, and what to do.
        reason: String,
    },
}

impl From<dataplane::Error> for BlockLaunchError {
    fn from(error: dataplane::Error) -> Self {
        Self::Launch(error.into())
    }
}

impl From<SandboxError> for BlockLaunchError {
    fn from(error: SandboxError) -> Self {
        Self::Launch(error.into())
    }
}

impl BlockLaunchError {
    fn start(step: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| launch::LaunchError::Start(step, error).into()
    }

    /// Whether a privilege or a kernel feature is missing (exit code 3).
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::Launch(error) => error.is_missing_privilege(),
            Self::Address { source, .. } => source.is_missing_privilege(),
            Self::Config(_) | Self::SystemdSocket { .. } => false,
        }
    }
}

/// What the server says while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockNotice {
    /// Another process has an address, and where the configuration names the address. The default
    /// has no place.
    AddressInUse(AddressInUse, Option<Place>),
    /// Clients can connect to these addresses.
    Ready {
        /// Where NBD is served.
        addresses: Vec<SocketAddr>,
        /// Where NVMe/TCP is served.
        nvme: Vec<SocketAddr>,
        /// Where `/metrics` and `/status` are served.
        metrics: Option<SocketAddr>,
        /// Names of the exports.
        exports: Vec<String>,
    },
    /// The configuration was read again.
    Reloaded {
        /// Names of the exports that are served now.
        exports: Vec<String>,
        /// Exports that are new or have changed, and how.
        changed: Vec<String>,
        /// Exports whose NBD connections end, and why: the export is gone, has another range, or is
        /// read-only now.
        ended: Vec<String>,
        /// Why a restart would refuse the configuration.
        restart_refuses: Option<String>,
        /// Keys with another value that a restart is needed for.
        after_restart: Vec<&'static str>,
    },
    /// The configuration is wrong; the old one stays.
    NotReloaded(String),
    /// Something about a tenant or a device.
    Tenant(String),
    /// Something odd about the configuration or its files, which lets the server go on.
    Warning(String),
    /// Lines of the audit log are lost.
    AuditLog(String),
    /// A signal came: no new connections, and those that are idle are closed.
    Draining,
    /// The server ends. All requests were answered, unless the time for that was over.
    Drained {
        /// Whether the time was over.
        is_cut_off: bool,
    },
}

type BlockPlane = Plane<Uring, BlockService>;

fn names(exports: &export::Exports) -> Vec<String> {
    exports.iter().map(|export| export.name.clone()).collect()
}

/// What a server would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Where NBD would be served.
    pub addresses: Vec<SocketAddr>,
    /// Where NVMe/TCP would be served.
    pub nvme: Vec<SocketAddr>,
    /// Name and device of each export.
    pub exports: Vec<(String, String)>,
    /// Files that would be made, with their bytes.
    pub files: Vec<(PathBuf, u64)>,
    /// What is odd, and lets a server start all the same.
    pub warnings: Vec<String>,
    /// Whether a tenant has an objective.
    pub has_objectives: bool,
    /// Names of devices that other processes hold, and these processes, as far as they are known.
    /// A running server keeps its devices at a reload; another one would not start.
    pub held: Vec<(String, Vec<Holder>)>,
}

/// Reads a configuration and looks at its devices, to see whether a server would start, or take the
/// configuration at SIGHUP. Nothing is changed or locked: files that do not exist are not made.
///
/// # Errors
/// What [`serve`] would say.
pub fn check(file: &Path) -> Result<Checked, BlockLaunchError> {
    let config = BlockConfig::read(file)?;
    cores::check(&config.cores)?;
    config.tls.as_ref().map(ServerTls::load).transpose()?;
    Audit::check(&config)?;
    memory::check(&config)?;
    // Without io_uring a server does not start.
    drop(Uring::new(UringConfig::default())?);
    let (exports, devices) = export::look(&config)?;
    let held = devices.iter().filter_map(|device| {
        let holders = device.held_by.clone()?;
        Some((device.name.clone(), holders))
    });
    let held = held.collect();
    let devices = config.devices.iter();
    let files = devices.filter_map(|spec| to_make(&spec.backing));
    Ok(Checked {
        exports: exports
            .iter()
            .map(|export| (export.name.clone(), export.device.name.clone()))
            .collect(),
        files: files
            .map(|(path, size_bytes)| (path.to_path_buf(), size_bytes))
            .collect(),
        held,
        warnings: calibration::warnings(&config),
        has_objectives: config
            .tenants
            .iter()
            .any(|tenant| tenant.objective.is_some()),
        nvme: config.nvme.map_or_else(Vec::new, |nvme| nvme.listen),
        addresses: config.listen,
    })
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

/// Sockets that clients connect to: first those for NBD, then those for NVMe/TCP.
struct Sockets {
    listeners: Vec<OwnedFd>,
    addresses: Vec<SocketAddr>,
    nvme: Vec<SocketAddr>,
}

/// The sockets of systemd, or those of the configuration. A socket of systemd is for NVMe/TCP if
/// its address is one of those in the configuration.
fn sockets(
    config: &BlockConfig,
    waits: &mut dyn FnMut(AddressInUse),
) -> Result<Sockets, BlockLaunchError> {
    let for_nvme = config.nvme.iter().flat_map(|spec| &spec.listen);
    let for_nvme: Vec<SocketAddr> = for_nvme.copied().collect();
    let inherited = uring::inherited()?.into_iter();
    let (mut nvme, mut nbd): (Vec<_>, Vec<_>) =
        inherited.partition(|(_, address)| for_nvme.contains(address));
    for &(_, address) in &nbd {
        config
            .may_serve_nbd_at(address)
            .map_err(|reason| BlockLaunchError::SystemdSocket { address, reason })?;
    }
    if nbd.is_empty() && nvme.is_empty() {
        for &address in &config.listen {
            nbd.push((listen(config, address, waits)?, address));
        }
    }
    for address in for_nvme {
        if !nvme.iter().any(|(_, open)| *open == address) {
            nvme.push((listen(config, address, waits)?, address));
        }
    }
    let (mut listeners, addresses): (Vec<_>, Vec<_>) = nbd.into_iter().unzip();
    let (own, nvme): (Vec<_>, Vec<_>) = nvme.into_iter().unzip();
    listeners.extend(own);
    Ok(Sockets {
        listeners,
        addresses,
        nvme,
    })
}

fn listen(
    config: &BlockConfig,
    address: SocketAddr,
    waits: &mut dyn FnMut(AddressInUse),
) -> Result<OwnedFd, BlockLaunchError> {
    launch::listen(address, waits).map_err(|error| at_address(config, Some(address), error))
}

/// Where an address comes from, as the beginning of a message about it. `None`: the file does not
/// name it, so it is the default.
pub fn address_place(place: Option<&Place>) -> String {
    match place {
        Some(place) => place.error("").to_string(),
        None => "listen (the default): ".to_owned(),
    }
}

/// Why an address cannot be listened on, at its place in the file.
fn at_address(
    config: &BlockConfig,
    address: Option<SocketAddr>,
    error: launch::LaunchError,
) -> BlockLaunchError {
    let kind = match &error {
        launch::LaunchError::Metrics(_, source)
        | launch::LaunchError::Dataplane(dataplane::Error::Listen { source, .. }) => source.kind(),
        _ => std::io::ErrorKind::Other,
    };
    let hint = match kind {
        std::io::ErrorKind::AddrInUse => ". `ss -ltnp` shows the process that has the address",
        std::io::ErrorKind::AddrNotAvailable => ". `ip address` shows the addresses of this host",
        _ => "",
    };
    BlockLaunchError::Address {
        place: address.and_then(|address| config.place_of_address(address).cloned()),
        source: Box::new(error),
        hint,
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

/// What to say of a tenant or a device.
pub(crate) fn text(name: &str, about: qos::DeviceNotice) -> String {
    match about {
        qos::DeviceNotice::Deficit {
            reserved,
            queued,
            queued_tokens,
            ..
        } => format!(
            "{name} asks for more than its objective reserved, {} tokens/s. Requests that wait: {}, of {} tokens. \
             {RESERVE_MORE}",
            Grouped(reserved),
            Grouped(queued.into()),
            Grouped(queued_tokens)
        ),
        qos::DeviceNotice::DeficitOver { .. } => {
            format!("{name} has stayed within its reservation for 10 s")
        }
        qos::DeviceNotice::CalibrationNoLongerHolds(drift) => {
            format!("{name} no longer behaves as calibrated: {drift}. {CALIBRATE_AGAIN}")
        }
        qos::DeviceNotice::CalibrationHolds => format!("{name} behaves as calibrated again"),
    }
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
mod tests {
    use super::*;
    use crate::device::Storage;

    /// The default is in no line of the file.
    #[test]
    fn an_address_that_cannot_be_had_is_named_with_its_place() {
        let tables = "[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n\
                      [[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n";
        let said = |listen: &str| {
            let text = format!("{listen}{tables}");
            let config = BlockConfig::parse(Path::new("b.toml"), &text).unwrap();
            let in_use = std::io::Error::from(std::io::ErrorKind::AddrInUse);
            let error = launch::LaunchError::Metrics(config.listen[0], in_use);
            at_address(&config, Some(config.listen[0]), error).to_string()
        };
        for (listen, expected) in [
            ("", "listen (the default): "),
            ("\nlisten = [\"127.0.0.1:10809\"]\n", "b.toml:2: listen: "),
        ] {
            let error = said(listen);
            assert!(
                error.starts_with(expected) && error.contains("`ss -ltnp`"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_device_that_may_have_lost_writes_is_named_once() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        let tenant = |name: &str, rest: &str| {
            format!("[[tenant]]\nexport = \"{name}\"\ndevice = \"d\"\n{rest}")
        };
        let text = format!(
            "[[device]]\nname = \"d\"\npath = {disk:?}\ncreate = \"1MiB\"\n{}{}",
            tenant("a", ""),
            tenant("b", "read_only = true\n")
        );
        let config = BlockConfig::parse(Path::new("b.toml"), &text).unwrap();
        let exports = export::open(&config, &Vec::new(), 1).unwrap();
        let mut said = Vec::new();
        assert!(lost_writes(&exports, &mut said).is_empty());
        let Storage::File(file) = &exports[0].device.storage else {
            panic!("no file");
        };
        file.lose_writes();
        let texts = lost_writes(&exports, &mut said);
        assert_eq!(texts, [format!("d: {LOST_WRITES}")]);
        assert!(lost_writes(&exports, &mut said).is_empty());
    }
}
