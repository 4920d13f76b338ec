//! Exports: ranges of open devices under a name, with what is counted of each.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use dataplane::histogram::{Histogram, add};
use qos::{Admission, DeviceModel, Grouped, Objective, TenantSpec};

use crate::allow::{Allow, Client};
use crate::calibration::model_of;
use crate::config::{self, Backing, Config, ConfigError, DeviceSpec};
use crate::creation::to_make;
use crate::device::{Device, DeviceError};
use crate::nbd::ExportInfo;
use crate::nbd::handshake::Catalogue;
use crate::tenants::Deficit;

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
    pub allow: Allow,
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
type Open = fn(&str, &Backing, qos::Device, bool) -> Result<Device, DeviceError>;

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
    config: &Config,
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
                let qos = qos::Device::for_threads(model, threads_max);
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
pub fn open(config: &Config, old: &Exports, shards: usize) -> Result<Exports, ConfigError> {
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
pub fn look(config: &Config) -> Result<(Exports, Vec<Arc<Device>>), ConfigError> {
    let devices = open_devices(config, &Vec::new(), 1, Device::look)?;
    let exports = exports_of(config, &devices, &Vec::new(), 1)?;
    let devices = devices.into_iter().map(|opened| opened.device);
    Ok((exports, devices.collect()))
}

fn exports_of(
    config: &Config,
    opened: &[Opened],
    old: &Exports,
    shards: usize,
) -> Result<Exports, ConfigError> {
    let mut exports: Exports = Vec::new();
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
    let is_kept = |tenant: &config::TenantSpec, device: &Arc<Device>| {
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
        let mut both = devices.iter().zip(&mut admissions);
        let found = both.find(|(device, _)| device.name == tenant.device);
        let Some((device, admission)) = found else {
            return Err(tenant.place.error("the device is gone"));
        };
        if device.size_bytes == 0 {
            return Err(tenant.place.error(format!(
                "{:?} has 0 bytes, so nothing can be exported. Give the file a size by `truncate -s SIZE FILE`, or \
                 remove it and set `create` of the device",
                device.name
            )));
        }
        let room = device.size_bytes.checked_sub(tenant.offset_bytes);
        let size_bytes = room
            .map(|room| tenant.length_bytes.unwrap_or(room))
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
            })?;
        let end = tenant.offset_bytes + size_bytes;
        let mut writable = exports.iter().filter(|_| !tenant.is_read_only);
        let clash = writable.find(|other| {
            !other.info.is_read_only
                && Arc::ptr_eq(&other.device, device)
                && other.offset_bytes < end
                && tenant.offset_bytes < other.offset_bytes + other.info.size_bytes
        });
        if let Some(other) = clash {
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
        exports.push(same.map(Arc::clone).unwrap_or_else(|| {
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
        }));
    }
    Ok(exports)
}

/// The exports as one client sees them.
pub struct Visible<'a> {
    /// All exports.
    pub exports: &'a Exports,
    /// Who the client is.
    pub client: Client<'a>,
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
mod tests {
    use std::path::Path;
    use std::sync::atomic::Ordering;

    use super::*;

    fn config(tenants: &str) -> Config {
        let text = format!(
            "[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n[[device]]\nname = \"other\"\n\
             memory = \"1MiB\"\n{tenants}"
        );
        Config::parse(Path::new("b.toml"), &text).unwrap()
    }

    fn tenant(name: &str, device: &str, rest: &str) -> String {
        format!("[[tenant]]\nexport = \"{name}\"\ndevice = \"{device}\"\n{rest}\n")
    }

    fn open_text(tenants: &str) -> Result<Exports, String> {
        open(&config(tenants), &Vec::new(), 1).map_err(|error| error.to_string())
    }

    #[test]
    fn ranges_are_checked() {
        let first = tenant("a", "ram", "range = { length = \"512KiB\" }");
        let fits = tenant("b", "ram", "range = { offset = \"512KiB\" }");
        assert!(open_text(&format!("{first}{fits}")).is_ok());
        let overlaps = tenant("b", "ram", "range = { offset = \"511KiB\" }");
        let error = open_text(&format!("{first}{overlaps}")).err().unwrap();
        assert!(
            error.starts_with(
                "b.toml:14: tenant.range.offset: the range of \"b\", from byte 523,264"
            ),
            "{error}"
        );
        // One that only reads may see what the other writes.
        let reads = tenant("b", "ram", "read_only = true");
        assert!(open_text(&format!("{first}{reads}")).is_ok());
        for rest in [
            "range = { offset = \"1MiB\" }",
            "range = { offset = \"2MiB\" }",
            "range = { offset = \"1KiB\", length = \"1MiB\" }",
        ] {
            let error = open_text(&tenant("a", "ram", rest)).err().unwrap();
            assert!(
                error.contains("tenant.range.") && error.contains("bytes"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_empty_file_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "[[device]]\nname = \"d\"\npath = {:?}\n[[tenant]]\nexport = \"a\"\ndevice = \"d\"\n",
            file.path()
        );
        let config = Config::parse(Path::new("b.toml"), &text).unwrap();
        let error = look(&config).err().unwrap().to_string();
        let expected = "b.toml:5: tenant.export: \"d\" has 0 bytes, so nothing can be exported. ";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn nothing_is_made_of_a_wrong_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("disk");
        let text = |length: &str| {
            format!(
                "[[device]]\npath = {file:?}\ncreate = \"1MiB\"\n[[tenant]]\nexport = \"a\"\n\
                 device = {file:?}\nrange = {{ length = \"{length}\" }}\n"
            )
        };
        let parse = |text: &str| Config::parse(Path::new("b.toml"), text).unwrap();
        assert!(open(&parse(&text("2MiB")), &Vec::new(), 1).is_err());
        assert!(look(&parse(&text("1MiB"))).is_ok());
        assert!(!file.exists());
        let served = open(&parse(&text("1MiB")), &Vec::new(), 1).unwrap();
        assert!(file.exists());
        // Beside a server the file can be checked, and whatever is wrong is found.
        let held = |text: &str| look(&parse(text)).map(|(_, devices)| devices[0].held_by.is_some());
        assert!(held(&text("1MiB")).unwrap());
        assert!(held(&text("2MiB")).is_err());
        drop(served);
        assert!(!held(&text("1MiB")).unwrap());
    }

    #[test]
    fn a_reload_keeps_devices_and_counts() {
        let first = open_text(&tenant("a", "ram", "")).unwrap();
        let both = config(&format!(
            "{}{}",
            tenant("a", "ram", ""),
            tenant("b", "other", "")
        ));
        let second = open(&both, &first, 1).unwrap();
        assert!(Arc::ptr_eq(&first[0], &second[0]));
        let changed = config(&tenant("a", "ram", "read_only = true"));
        let third = open(&changed, &second, 1).unwrap();
        assert!(Arc::ptr_eq(&third[0].device, &first[0].device));
        assert!(third[0].info.is_read_only);
        // Clients of the first configuration are counted where the third one is looked at.
        add(&first[0].stats[0].reads, 1);
        assert_eq!(third[0].stats[0].reads.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_reload_ends_clients_of_what_is_gone_moved_or_read_only_now() {
        let half = "range = { length = \"512KiB\" }\n";
        let first = open_text(&tenant("a", "ram", half)).unwrap();
        for (name, device, rest, why) in [
            ("a", "ram", half.to_owned(), ""),
            ("a", "ram", format!("{half}description = \"x\""), ""),
            (
                "a",
                "ram",
                format!("{half}allow = {{ addresses = [\"::1\"] }}"),
                "",
            ),
            ("a", "ram", format!("{half}read_only = true"), "read-only"),
            ("a", "ram", String::new(), "longer"),
            ("a", "ram", half.replace("512", "256"), "shorter"),
            (
                "a",
                "ram",
                half.replace("{ l", "{ offset = \"1KiB\", l"),
                "at another offset",
            ),
            ("a", "other", half.to_owned(), "on another device"),
            ("b", "ram", half.to_owned(), "gone"),
        ] {
            let second = open(&config(&tenant(name, device, &rest)), &first, 1).unwrap();
            let expected = match why {
                "" => vec![],
                why => vec![format!("a ({why})")],
            };
            assert_eq!(ended(&first, &second), expected, "{name} {device} {rest}");
        }
        let reads = open(&config(&tenant("a", "ram", "read_only = true")), &first, 1).unwrap();
        let writes = open(&config(&tenant("a", "ram", "")), &reads, 1).unwrap();
        assert!(ended(&reads, &writes).is_empty());
        assert_eq!(
            changed(&reads, &writes),
            ["a (read_only from true to false)"]
        );
        assert_eq!(changed(&writes, &writes), Vec::<String>::new());
        assert_eq!(changed(&Vec::new(), &writes), ["a (new)"]);
        let moved = tenant("a", "ram", &format!("{half}description = \"x\""));
        let moved = open(&config(&moved), &writes, 1).unwrap();
        let how = &changed(&writes, &moved)[0];
        assert!(
            how.starts_with("a (range from ") && how.ends_with(", description)"),
            "{how}"
        );
    }

    /// The data of a device that is served are there after every reload, and what needs a restart
    /// is refused as such.
    #[test]
    fn a_served_device_is_kept_whatever_its_table_says() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let calibrate = |tokens_per_s: u32| {
            let points = format!("[{{\"p95_us\": 100.0, \"tokens_per_s\": {tokens_per_s}}}]");
            let curve = format!("{{\"mixed\": {points}, \"read_only\": {points}}}");
            let text = format!("{{\"write_cost\": 1000, \"curve\": {curve}}}");
            std::fs::write(at("curve"), text).unwrap();
        };
        let parse = |ram: &str, disk: &str| {
            let text = format!(
                "[[device]]\nname = \"ram\"\n{ram}\n[[device]]\nname = \"disk\"\npath = {:?}\n\
                 {disk}\n[[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n[[tenant]]\n\
                 export = \"b\"\ndevice = \"disk\"\n",
                at("disk")
            );
            Config::parse(Path::new("b.toml"), &text).unwrap()
        };
        let (ram, disk) = ("memory = \"1MiB\"", "create = \"1MiB\"");
        let first = open(&parse(ram, disk), &Vec::new(), 1).unwrap();
        let rate = |exports: &Exports, number: usize| {
            let model = exports[number].device.qos.model();
            model.map(|model| model.curve.read_only.max_tokens_per_s())
        };
        calibrate(5_000);
        let curve = format!("\ncalibration = {:?}", at("curve"));
        let with_curve = parse(&format!("{ram}{curve}"), &format!("{disk}{curve}"));
        for tokens_per_s in [5_000, 7_000] {
            calibrate(tokens_per_s);
            let next = open(&with_curve, &first, 1).unwrap();
            for number in [0, 1] {
                assert!(Arc::ptr_eq(&next[number].device, &first[number].device));
                assert_eq!(rate(&next, number), Some(tokens_per_s.into()));
            }
        }
        for (ram, disk, expected) in [
            (
                "memory = \"2MiB\"",
                disk,
                "b.toml:3: device.memory: differs",
            ),
            (ram, "create = \"2MiB\"", "b.toml:7: device.create: differs"),
            (
                ram,
                "create = \"1MiB\"\ndirect = false",
                "b.toml:8: device.direct: differs",
            ),
            (ram, "", "b.toml:6: device.create: differs"),
        ] {
            let error = open(&parse(ram, disk), &first, 1)
                .err()
                .unwrap()
                .to_string();
            assert!(error.starts_with(expected), "{error}");
            assert!(error.contains("needs a restart"), "{error}");
            assert_eq!(rate(&first, 0), Some(7_000.0), "nothing has changed");
        }
        open(&parse(ram, disk), &first, 1).unwrap();
        assert_eq!(rate(&first, 0), None);
        let missing = parse(&format!("{ram}\ncalibration = \"/no/curve\""), disk);
        let error = open(&missing, &first, 1).err().unwrap().to_string();
        let expected = "b.toml:4: device.calibration: /no/curve: No such file";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn addresses_outside_the_list_see_nothing() {
        let text = tenant("a", "ram", "allow = { addresses = [\"10.0.0.0/8\"] }");
        let exports = open_text(&text).unwrap();
        let at = |peer: &str| Visible {
            exports: &exports,
            client: Client::at(peer.parse().ok()),
            shard: 0,
        };
        assert_eq!(at("10.1.1.1").list().len(), 1);
        assert!(at("127.0.0.1").list().is_empty());
        assert!(at("10.1.1.1").find("").is_some());
        assert!(at("").find("b").is_none());
        let refused = &exports[0].stats[0].refused_clients;
        assert_eq!(refused.load(Ordering::Relaxed), 0);
        assert!(at("127.0.0.1").find("a").is_none());
        assert_eq!(refused.load(Ordering::Relaxed), 1);
    }
}
