//! Exports: ranges of open devices under a name, with what is counted of each.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use dataplane::Time;
use dataplane::histogram::{Histogram, add};
use qos::{Admission, DeviceModel, Grouped, Objective, TenantSpec};

use crate::allow::{ClientIdentity, TenantAccess};
use crate::calibration::model_of;
use crate::config::{self, Backing, BlockConfig, ConfigError, DeviceSpec};
use crate::creation::to_make;
use crate::device::{Device, DeviceError};
use crate::nbd::ExportInfo;
use crate::nbd::handshake::Catalogue;

/// What one shard counts of one export. Only its thread writes.
#[derive(Debug, Default)]
pub struct ExportStats {
    /// Reads answered.
    pub reads: AtomicU64,
    /// Writes answered, with those of zeros and trims.
    pub writes: AtomicU64,
    /// Flushes answered.
    pub flushes: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
    /// Bytes written.
    pub written_bytes: AtomicU64,
    /// Requests answered with an error.
    pub errors: AtomicU64,
    /// Requests among `errors` that never reached the device: wrong, or not allowed.
    pub refused_requests: AtomicU64,
    /// Times that `allow` kept a client from the export.
    pub refused_clients: AtomicU64,
    /// From the whole request to its answer, in nanoseconds.
    pub read_ns: Histogram,
    /// From the whole request to its answer, in nanoseconds.
    pub write_ns: Histogram,
}

/// What was said of a tenant that asks for more than it reserved, on whichever shard.
#[derive(Default)]
pub(crate) enum Deficit {
    /// Nothing, or that it is over.
    #[default]
    Unsaid,
    /// That it asks for more.
    Said,
    /// As `Said`; since this time the tenant keeps to its reservation.
    Over(Time),
}

/// An export.
pub struct Export {
    /// The export's name.
    pub name: String,
    /// The device.
    pub device: Arc<Device>,
    /// Where on the device the export begins.
    pub offset_bytes: u64,
    /// What clients are told.
    pub info: ExportInfo,
    /// Who may connect.
    pub allow: TenantAccess,
    /// What the tenant was promised; `None`: best effort.
    pub objective: Option<Objective>,
    /// The number that the configuration gives to its NVMe namespace.
    pub namespace: Option<u32>,
    /// Counts of each shard. They go on after a reload that keeps name and device.
    pub stats: Arc<Vec<ExportStats>>,
    /// What was said of a tenant that asks for more than it reserved.
    pub(crate) deficit: Arc<Mutex<Deficit>>,
}

impl ExportStats {
    /// Counts a request that never reaches the device.
    pub(crate) fn refuse_request(&self) {
        add(&self.errors, 1);
        add(&self.refused_requests, 1);
    }
}

/// What tells an export apart, also from one of the same name before a reload: the name, and where
/// its device is in memory.
pub(crate) type Key = (String, usize);

fn key(name: &str, device: &Arc<Device>) -> Key {
    (name.to_owned(), Arc::as_ptr(device).addr())
}

impl Export {
    /// What tells it apart.
    pub(crate) fn key(&self) -> Key {
        key(&self.name, &self.device)
    }

    /// What tells the disk apart that clients see: the bytes of one place of one device, under a
    /// name. The disk may become shorter or longer.
    pub(crate) fn disk_key(&self) -> (Key, u64) {
        (self.key(), self.offset_bytes)
    }

    /// Whether a client that was told of this export may go on under `new`: the range is the same,
    /// and the client may do all that it might before.
    pub(crate) fn goes_on_as(&self, new: &Self) -> bool {
        self.disk_key() == new.disk_key()
            && self.info.size_bytes == new.info.size_bytes
            && (self.info.is_read_only || !new.info.is_read_only)
    }

    /// The tenant, for a scheduler.
    pub fn tenant_spec(&self) -> TenantSpec {
        TenantSpec {
            objective: self.objective,
            read_only: self.info.is_read_only,
        }
    }
}

/// All exports, in the order of the configuration.
pub type Exports = Vec<Arc<Export>>;

/// Exports in `old` whose clients may not go on under `new`, and why.
pub(crate) fn ended(old: &Exports, new: &Exports) -> Vec<String> {
    let names: HashSet<&str> = new.iter().map(|export| export.name.as_str()).collect();
    let new = by_key(new);
    let why = |export: &Export| match new.get(&export.key()) {
        None if names.contains(export.name.as_str()) => Some("on another device"),
        None => Some("gone"),
        Some(now) if export.goes_on_as(now) => None,
        Some(now) if export.offset_bytes != now.offset_bytes => Some("at another offset"),
        Some(now) if export.info.size_bytes > now.info.size_bytes => Some("shorter"),
        Some(now) if export.info.size_bytes < now.info.size_bytes => Some("longer"),
        Some(_) => Some("read-only"),
    };
    let ended = old.iter().filter_map(|export| {
        let why = why(export)?;
        Some(format!("{} ({why})", export.name))
    });
    ended.collect()
}

fn objective_of(export: &Export) -> String {
    export.objective.map_or_else(
        || "best effort".to_owned(),
        |it| {
            format!(
                "p95_us {}, iops {}, read_share {}",
                it.p95_us, it.iops, it.read_share
            )
        },
    )
}

/// What the same disk's export has otherwise now.
fn differences(old: &Export, new: &Export) -> Vec<String> {
    let mut found = Vec::new();
    if old.objective != new.objective {
        let (before, now) = (objective_of(old), objective_of(new));
        found.push(format!("objective from {before} to {now}"));
    }
    let range = |export: &Export| (export.offset_bytes, export.info.size_bytes);
    if range(old) != range(new) {
        let words = |export: &Export| {
            let (offset, size) = range(export);
            format!("{} bytes at {}", Grouped(size), Grouped(offset))
        };
        found.push(format!("range from {} to {}", words(old), words(new)));
    }
    let (was, is) = (old.info.is_read_only, new.info.is_read_only);
    if was != is {
        found.push(format!("read_only from {was} to {is}"));
    }
    for (key, has_changed) in [
        ("description", old.info.description != new.info.description),
        ("allow", old.allow != new.allow),
        ("namespace", old.namespace != new.namespace),
    ] {
        if has_changed {
            found.push(key.to_owned());
        }
    }
    found
}

/// Exports in `new` that are new or have changed, and how.
pub(crate) fn changed(old: &Exports, new: &Exports) -> Vec<String> {
    let old = by_key(old);
    let changed = new.iter().filter_map(|export| {
        let how = match old.get(&export.key()) {
            None => "new".to_owned(),
            Some(before) => differences(before, export).join(", "),
        };
        (!how.is_empty()).then(|| format!("{} ({how})", export.name))
    });
    changed.collect()
}

/// The exports by what tells them apart.
pub(crate) fn by_key(exports: &Exports) -> HashMap<Key, &Arc<Export>> {
    let keyed = exports.iter().map(|export| (export.key(), export));
    keyed.collect()
}

/// How devices are opened: a function such as [`Device::open`].
type Open = fn(&str, &Backing, qos::SharedDevice, bool) -> Result<Device, DeviceError>;

/// A device of a configuration.
struct Opened {
    device: Arc<Device>,
    /// What the calibration says, if the device is open already with another one.
    recalibrated: Option<Option<DeviceModel>>,
}

impl Opened {
    /// What the device is expected to do under the configuration.
    fn model(&self) -> Option<DeviceModel> {
        let changed = self.recalibrated.clone();
        changed.unwrap_or_else(|| self.device.qos.model())
    }
}

/// Whether an open device is the one that a configuration means.
fn is_meant(device: &Device, spec: &DeviceSpec) -> bool {
    match (&spec.backing, &device.backing) {
        (Backing::Path { path, .. }, Backing::Path { .. }) => device.is_at(path),
        (Backing::Memory { .. }, Backing::Memory { .. }) => device.name == spec.name,
        _ => false,
    }
}

/// The first key whose change an open device cannot follow.
fn key_of_restart(device: &Device, spec: &DeviceSpec) -> Option<&'static str> {
    if device.name != spec.name {
        return Some("device.name");
    }
    match (&device.backing, &spec.backing) {
        (
            Backing::Path {
                create_bytes,
                is_preallocated,
                is_direct,
                ..
            },
            Backing::Path {
                create_bytes: new_bytes,
                is_preallocated: new_preallocated,
                is_direct: new_direct,
                ..
            },
        ) => [
            ("device.create", create_bytes != new_bytes),
            ("device.preallocate", is_preallocated != new_preallocated),
            ("device.direct", is_direct != new_direct),
        ]
        .into_iter()
        .find_map(|(key, has_changed)| has_changed.then_some(key)),
        (old, new) => (old != new).then_some("device.memory"),
    }
}

/// What makes a file that does not exist.
fn hint_to_create(backing: &Backing) -> &'static str {
    match backing {
        Backing::Path {
            path,
            create_bytes: None,
            ..
        } if !path.starts_with("/dev")
            && path
                .symlink_metadata()
                .is_err_and(|it| it.kind() == ErrorKind::NotFound) =>
        {
            ". To have the file made at the start, give its size, as in create = \"100GiB\""
        }
        _ => "",
    }
}

fn open_devices(
    config: &BlockConfig,
    old: &Exports,
    shards: usize,
    open: Open,
) -> Result<Vec<Opened>, ConfigError> {
    let threads_max = u32::try_from(shards).unwrap_or(u32::MAX);
    let mut devices: Vec<Opened> = Vec::new();
    for spec in &config.devices {
        let mut tenants = config.tenants.iter();
        let is_writable = tenants.any(|tenant| tenant.device == spec.name && !tenant.is_read_only);
        let mut known = old.iter().map(|export| &export.device);
        let known = known.find(|device| is_meant(device, spec));
        if let Some(key) = known.and_then(|device| key_of_restart(device, spec)) {
            return Err(spec.place_of(key).error(
                "differs from what the device was opened with, and a change needs a restart: \
                 restart the server, or put the old value back",
            ));
        }
        let model = match &spec.backing {
            Backing::Simulated { .. } => None,
            _ => model_of(spec)?,
        };
        let recalibrated = known
            .filter(|device| device.qos.calibration() != model)
            .map(|_| model.clone());
        let device = match known {
            Some(device) if is_writable && !device.is_writable => {
                return Err(spec.place.error(
                    "is open for reading only, because all its tenants were read-only: restart \
                     the server to change that",
                ));
            }
            Some(device) => Arc::clone(device),
            None => {
                let qos = qos::SharedDevice::for_threads(model, threads_max);
                let opened = open(&spec.name, &spec.backing, qos, is_writable);
                Arc::new(opened.map_err(|error| {
                    let hint = hint_to_create(&spec.backing);
                    spec.place.error(format!("{error}{hint}"))
                })?)
            }
        };
        if let Some(other) = devices.iter().find(|other| other.device.is_same(&device)) {
            let text = format!("is the same as device {:?}", other.device.name);
            return Err(spec.place.error(text));
        }
        devices.push(Opened {
            device,
            recalibrated,
        });
    }
    Ok(devices)
}

/// Opens what a configuration names. Devices and counts of `old` are kept where they are the same.
/// A kept device follows its calibration.
///
/// # Errors
/// A device cannot be opened, or a range does not fit: the line of the file is named.
pub fn open(config: &BlockConfig, old: &Exports, shards: usize) -> Result<Exports, ConfigError> {
    let mut backings = config.devices.iter().map(|spec| &spec.backing);
    if backings.any(|backing| to_make(backing).is_some()) {
        // What is wrong is found before a file is made.
        let devices = open_devices(config, old, shards, Device::plan)?;
        exports_of(config, &devices, old, shards)?;
    }
    let devices = open_devices(config, old, shards, Device::open)?;
    let exports = exports_of(config, &devices, old, shards)?;
    for opened in devices {
        if let Some(model) = opened.recalibrated {
            opened.device.qos.set_model(model);
        }
    }
    Ok(exports)
}

/// As [`open`], but nothing is made and nothing is locked: to see whether a server would start.
/// Gives the devices, too, with the processes that hold them now.
///
/// # Errors
/// See [`open`].
pub fn look(config: &BlockConfig) -> Result<(Exports, Vec<Arc<Device>>), ConfigError> {
    let devices = open_devices(config, &Vec::new(), 1, Device::look)?;
    let exports = exports_of(config, &devices, &Vec::new(), 1)?;
    let devices = devices.into_iter().map(|opened| opened.device);
    Ok((exports, devices.collect()))
}

/// How many bytes of its device an export has.
fn length_of(tenant: &config::TenantConfig, device: &Device) -> Result<u64, ConfigError> {
    let room = device.size_bytes.checked_sub(tenant.offset_bytes);
    room.map(|room| tenant.length_bytes.unwrap_or(room))
        .filter(|&length| room.is_some_and(|room| length <= room && length > 0))
        .ok_or_else(|| {
            let end = tenant.length_bytes.map_or_else(
                || format!("begins at byte {}", Grouped(tenant.offset_bytes)),
                |length| {
                    let end = tenant.offset_bytes.saturating_add(length);
                    format!("ends at byte {}", Grouped(end))
                },
            );
            tenant.range_place.error(format!(
                "the range of {:?} {end}, and {:?} has {} bytes",
                tenant.export,
                device.name,
                Grouped(device.size_bytes)
            ))
        })
}

/// What may be written is not written through another export; `writable` has those of the device.
fn check_apart(
    tenant: &config::TenantConfig,
    size_bytes: u64,
    writable: &BTreeMap<u64, Arc<Export>>,
) -> Result<(), ConfigError> {
    let end = tenant.offset_bytes + size_bytes;
    let last_before_end = writable.range(..end).next_back();
    let clash = last_before_end.filter(|(_, other)| {
        !tenant.is_read_only && tenant.offset_bytes < other.offset_bytes + other.info.size_bytes
    });
    if let Some((_, other)) = clash {
        return Err(tenant.range_place.error(format!(
            "the range of {:?}, from byte {} to {}, overlaps that of {:?}, from byte {} to {}, and both may write",
            tenant.export,
            Grouped(tenant.offset_bytes),
            Grouped(end),
            other.name,
            Grouped(other.offset_bytes),
            Grouped(other.offset_bytes + other.info.size_bytes)
        )));
    }
    Ok(())
}

fn exports_of(
    config: &BlockConfig,
    opened: &[Opened],
    old: &Exports,
    shards: usize,
) -> Result<Exports, ConfigError> {
    let mut exports: Exports = Vec::new();
    // Ranges of each device that may be written, by their beginnings: which export each is of. They
    // do not overlap.
    let mut writable: Vec<BTreeMap<u64, Arc<Export>>> = vec![BTreeMap::new(); opened.len()];
    let devices: Vec<&Arc<Device>> = opened.iter().map(|opened| &opened.device).collect();
    let models = opened.iter().map(Opened::model);
    let mut admissions: Vec<Admission> = models.map(Admission::new).collect();
    let is_recalibrated = |device: &Arc<Device>| {
        let mut opened = opened.iter();
        opened.any(|it| it.recalibrated.is_some() && Arc::ptr_eq(&it.device, device))
    };
    let old = by_key(old);
    let before = |export: &str, device: &Arc<Device>| old.get(&key(export, device)).copied();
    // What was promised before stays promised, also where the device does less by now. Another
    // calibration is asked again, as at a start.
    let is_kept = |tenant: &config::TenantConfig, device: &Arc<Device>| {
        !is_recalibrated(device)
            && before(&tenant.export, device)
                .is_some_and(|other| other.tenant_spec() == tenant.promise())
    };
    for tenant in &config.tenants {
        let mut both = devices.iter().zip(&mut admissions);
        if let Some((device, admission)) = both.find(|(device, _)| device.name == tenant.device)
            && is_kept(tenant, device)
        {
            admission.keep(&tenant.promise());
        }
    }
    for tenant in &config.tenants {
        let mut all = devices.iter();
        let Some(number) = all.position(|device| device.name == tenant.device) else {
            return Err(tenant.place.error("the device is gone"));
        };
        let (device, admission) = (devices[number], &mut admissions[number]);
        if device.size_bytes == 0 {
            return Err(tenant.place.error(format!(
                "{:?} has 0 bytes, so nothing can be exported. Give the file a size by `truncate -s SIZE FILE`, or \
                 remove it and set `create` of the device",
                device.name
            )));
        }
        let size_bytes = length_of(tenant, device)?;
        check_apart(tenant, size_bytes, &writable[number])?;
        if !is_kept(tenant, device) {
            admission.admit(&tenant.promise()).map_err(|refused| {
                tenant
                    .objective_place
                    .error(format!("{:?} is refused: {refused}", tenant.export))
            })?;
        }
        let info = ExportInfo {
            size_bytes,
            is_read_only: tenant.is_read_only,
            preferred_block_bytes: device.preferred_block_bytes(),
            description: tenant.description.clone(),
        };
        let namespace = tenant.namespace.as_ref().map(|(number, _)| *number);
        let same = before(&tenant.export, device).filter(|other| {
            other.offset_bytes == tenant.offset_bytes
                && other.info == info
                && other.allow == tenant.allow
                && other.objective == tenant.objective
                && other.namespace == namespace
        });
        let other = before(&tenant.export, device);
        let stats = other.map(|other| Arc::clone(&other.stats));
        let deficit = other.map(|other| Arc::clone(&other.deficit));
        let new_stats = || (0..shards).map(|_| ExportStats::default()).collect();
        let export = same.map(Arc::clone).unwrap_or_else(|| {
            Arc::new(Export {
                name: tenant.export.clone(),
                device: Arc::clone(device),
                offset_bytes: tenant.offset_bytes,
                info,
                allow: tenant.allow.clone(),
                objective: tenant.objective,
                namespace,
                stats: stats.unwrap_or_else(|| Arc::new(new_stats())),
                deficit: deficit.unwrap_or_default(),
            })
        });
        if !tenant.is_read_only {
            writable[number].insert(tenant.offset_bytes, Arc::clone(&export));
        }
        exports.push(export);
    }
    Ok(exports)
}

/// The exports as one client sees them.
pub struct Visible<'a> {
    /// All exports.
    pub exports: &'a Exports,
    /// Who the client is.
    pub client: ClientIdentity<'a>,
    /// The shard that serves the client.
    pub shard: usize,
}

impl Visible<'_> {
    fn may_use(&self, export: &Export) -> bool {
        export.allow.admits(self.client)
    }
}

impl Catalogue for Visible<'_> {
    type Export = Arc<Export>;

    fn list(&self) -> Vec<(String, String)> {
        self.exports
            .iter()
            .filter(|export| self.may_use(export))
            .map(|export| (export.name.clone(), export.info.description.clone()))
            .collect()
    }

    /// The empty name means the only export, where there is one only.
    fn find(&self, name: &str) -> Option<Arc<Export>> {
        let found = match (name, &self.exports[..]) {
            ("", [only]) => Some(only),
            _ => self.exports.iter().find(|export| export.name == name),
        };
        let export = found?;
        if !self.may_use(export) {
            add(&export.stats[self.shard].refused_clients, 1);
            return None;
        }
        Some(Arc::clone(export))
    }

    fn describe(&self, export: &Arc<Export>) -> ExportInfo {
        export.info.clone()
    }

    fn name(&self, export: &Arc<Export>) -> String {
        export.name.clone()
    }
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
