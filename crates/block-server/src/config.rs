//! The configuration file: devices, and the tenants that they are exported to.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use qos::Objective;
use toml::Spanned;

use crate::addresses;
pub use crate::addresses::metrics_of;
use crate::allow::TenantAccess;
use crate::cores::{self, Core};
pub use crate::file::schema;
use crate::file::{CONNECTIONS, DRAIN_S, RawConfig, RawDevice, RawObjective, RawTenant, RawTls};
use crate::number::Whole;
pub use crate::number::{SIZE_HINT, parse_size};
use crate::nvme::config::NvmeSpec;
pub use crate::place::{ConfigError, NamedFile, Place};
pub use crate::reader::NBD_PORT;
use crate::reader::{Reader, text_of};

/// The largest file that the kernel knows, in whole TiB.
const CREATE_MAX_BYTES: u64 = (1 << 63) - (1 << 40);
const ONE_BYTE: (u64, &str) = (1, "1");
const ONE_TIB: (u64, &str) = (1 << 40, "1TiB");

/// What a device is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// A block device or a regular file.
    Path {
        /// The path of the file.
        path: PathBuf,
        /// A file that does not exist is made with this size.
        create_bytes: Option<u64>,
        /// Whether the new file gets its blocks at once.
        is_preallocated: bool,
        /// Whether the kernel's page cache is bypassed where the device allows.
        is_direct: bool,
    },
    /// Memory of the server: gone when the server ends.
    Memory {
        /// Bytes.
        size_bytes: u64,
    },
    /// A device that exists as a model only: objectives can be planned on it, and nothing is
    /// served.
    Simulated {
        /// Name of the model.
        model: String,
    },
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// By what tenants name the device: `name`, or the path.
    pub name: String,
    /// What the device is made of.
    pub backing: Backing,
    /// A file that says what the device can do, for tenants with objectives.
    pub calibration: Option<NamedFile>,
    /// Where the device stands in the file.
    pub place: Place,
    /// Where other keys of the device stand.
    pub keys: Vec<Place>,
}

impl DeviceSpec {
    /// Where a key of the device stands; the device's own line if the file does not have the key.
    pub fn place_of(&self, key: &'static str) -> Place {
        let own = self.keys.iter().find(|place| place.key == key);
        own.cloned().unwrap_or_else(|| Place {
            key,
            ..self.place.clone()
        })
    }
    /// The file that says what the device can do.
    pub fn calibration_path(&self) -> Option<&Path> {
        self.calibration.as_ref().map(|file| file.path.as_path())
    }
}

/// A tenant: a range of a device under a name.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantConfig {
    /// The export's name.
    pub export: String,
    /// The device's name.
    pub device: String,
    /// Where the range begins.
    pub offset_bytes: u64,
    /// How long the range is; `None`: up to the device's end.
    pub length_bytes: Option<u64>,
    /// Whether writing is refused.
    pub is_read_only: bool,
    /// Text for people.
    pub description: String,
    /// Who may connect.
    pub allow: TenantAccess,
    /// What the tenant was promised; `None`: best effort.
    pub objective: Option<Objective>,
    /// The number of its NVMe namespace, and where the file has it. `None`: a free one.
    pub namespace: Option<(u32, Place)>,
    /// Where the tenant stands in the file.
    pub place: Place,
    /// Where its range stands; without one, as `place`.
    pub range_place: Place,
    /// Where its objective stands; without one, as `place`.
    pub objective_place: Place,
}

impl TenantConfig {
    /// What the tenant was promised, for an admission.
    pub fn promise(&self) -> qos::TenantSpec {
        qos::TenantSpec {
            objective: self.objective,
            read_only: self.is_read_only,
        }
    }
}

/// TLS of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSpec {
    /// The server's certificate and the intermediate certificates (PEM).
    pub certificate: NamedFile,
    /// The key of the certificate (PEM).
    pub key: NamedFile,
    /// Clients need a certificate that one of these signed (PEM). `None`: clients need none.
    pub client_ca: Option<NamedFile>,
    /// Whether a client without TLS gets nothing.
    pub is_required: bool,
}

/// The whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockConfig {
    /// Addresses for NBD.
    pub listen: Vec<SocketAddr>,
    /// TLS of the server; `None`: none.
    pub tls: Option<TlsSpec>,
    /// Addresses and name for NVMe/TCP.
    pub nvme: Option<NvmeSpec>,
    /// The network beyond loopback is trusted: clients may connect from there without TLS.
    pub plaintext_beyond_loopback: bool,
    /// Where `/metrics` and `/status` are served.
    pub metrics: Option<SocketAddr>,
    /// CPUs, one shard each. Empty: one shard on any CPU.
    pub cores: Vec<Core>,
    /// Bytes for requests under way.
    pub memory_bytes: u64,
    /// Connections at most.
    pub connections_max: usize,
    /// A file to which admissions are appended, as JSON lines.
    pub audit_log: Option<PathBuf>,
    /// Seconds after SIGTERM in which connections may complete their requests.
    pub drain_s: u32,
    /// The devices.
    pub devices: Vec<DeviceSpec>,
    /// The tenants.
    pub tenants: Vec<TenantConfig>,
    /// Where keys of the whole server stand.
    pub keys: Vec<Place>,
    /// Where the addresses stand that the file has.
    pub addresses: Vec<(SocketAddr, Place)>,
}

impl RawDevice {
    fn is_preallocated(&self) -> bool {
        self.preallocate.as_ref().is_some_and(|it| *it.as_ref())
    }

    fn keys(&self, reader: &Reader<'_>) -> Vec<Place> {
        [
            reader.place_of(self.name.as_ref(), "device.name"),
            reader.place_of(self.create.as_ref(), "device.create"),
            reader.place_of(self.preallocate.as_ref(), "device.preallocate"),
            reader.place_of(self.direct.as_ref(), "device.direct"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl RawObjective {
    fn objective(&self) -> Objective {
        Objective {
            p95_us: self.p95_us.small(),
            iops: self.iops.small(),
            read_share: self.read_share.0,
        }
    }
}

impl Reader<'_> {
    fn device(&self, device: &Spanned<RawDevice>) -> Result<DeviceSpec, ConfigError> {
        let raw = device.as_ref();
        let at_table = |key| self.place(device, key);
        if let Some(model) = &raw.simulated {
            return self.simulated(device, model);
        }
        let (backing, place, default_name) = match (&raw.path, &raw.memory) {
            (Some(path), None) => {
                let place = self.place(path, "device.path");
                let create = |create| {
                    let most = (CREATE_MAX_BYTES, "8388607TiB");
                    self.size_within(create, "device.create", ONE_BYTE, most)
                };
                let create_bytes = raw.create.as_ref().map(create).transpose()?;
                if raw.is_preallocated() && create_bytes.is_none() {
                    return Err(at_table("device.preallocate")
                        .error("is only for a file that is made: give its size as `create`"));
                }
                let backing = Backing::Path {
                    path: path.as_ref().clone(),
                    create_bytes,
                    is_preallocated: raw.is_preallocated(),
                    is_direct: raw.direct.as_ref().is_none_or(|it| *it.as_ref()),
                };
                (backing, place, Some(path.as_ref().display().to_string()))
            }
            (None, Some(memory)) => {
                let place = self.place(memory, "device.memory");
                let size_bytes = self.size_within(memory, "device.memory", ONE_BYTE, ONE_TIB)?;
                if raw.create.is_some() || raw.is_preallocated() || raw.direct.is_some() {
                    return Err(place.error(
                        "`create`, `preallocate` and `direct` are for devices with a `path`",
                    ));
                }
                (Backing::Memory { size_bytes }, place, None)
            }
            (Some(_), Some(_)) => {
                let text = "a device has either `path` or `memory`, not both";
                return Err(at_table("device").error(text));
            }
            (None, None) => {
                return Err(at_table("device").error(
                    "a device needs `path`, for a block device or a file, or `memory`, for a size",
                ));
            }
        };
        let name = raw.name.as_ref();
        let name = name
            .map(|name| self.text(name, "device.name", 1))
            .transpose()?;
        let name = name.or(default_name).ok_or_else(|| {
            place.error("a device in memory needs a `name` by which tenants refer to the device")
        })?;
        Ok(DeviceSpec {
            name,
            backing,
            calibration: raw.calibration.as_ref().map(|path| NamedFile {
                path: path.as_ref().clone(),
                place: self.place(path, "device.calibration"),
            }),
            place,
            keys: raw.keys(self),
        })
    }

    fn simulated(
        &self,
        device: &Spanned<RawDevice>,
        model: &Spanned<String>,
    ) -> Result<DeviceSpec, ConfigError> {
        let raw = device.as_ref();
        let place = self.place(model, "device.simulated");
        let is_alone = raw.path.is_none()
            && raw.memory.is_none()
            && raw.create.is_none()
            && raw.calibration.is_none()
            && raw.direct.is_none()
            && !raw.is_preallocated();
        if !is_alone {
            return Err(place.error("a simulated device has a `name` beside it, and nothing else"));
        }
        let model = model.as_ref();
        if qos::simulated::model(model).is_none() {
            return Err(place.error(format!(
                "there is no simulated device {model:?}; there is: p3600"
            )));
        }
        let name = raw.name.as_ref();
        let name = name
            .map(|name| self.text(name, "device.name", 1))
            .transpose()?;
        Ok(DeviceSpec {
            name: name.unwrap_or_else(|| model.clone()),
            backing: Backing::Simulated {
                model: model.clone(),
            },
            calibration: None,
            place,
            keys: raw.keys(self),
        })
    }

    fn tenant(
        &self,
        tenant: &Spanned<RawTenant>,
        has_client_ca: bool,
    ) -> Result<TenantConfig, ConfigError> {
        let raw = tenant.as_ref();
        let export = self.text(&raw.export, "tenant.export", 1)?;
        let place = self.place(&raw.export, "tenant.export");
        let description = raw.description.as_ref();
        let description = description.map(|text| self.text(text, "tenant.description", 0));
        let range = raw.range.as_ref();
        let size =
            |text: Option<&Spanned<String>>, key| text.map(|text| self.size(text, key)).transpose();
        let offset = range.and_then(|range| range.offset.as_ref());
        let offset_bytes = size(offset, "tenant.range.offset")?.unwrap_or(0);
        let length = range.and_then(|range| range.length.as_ref());
        let length_bytes = size(length, "tenant.range.length")?;
        if let (Some(0), Some(length)) = (length_bytes, length) {
            return Err(self
                .place(length, "tenant.range.length")
                .error("must be above 0"));
        }
        let range_place = self
            .place_of(length, "tenant.range.length")
            .or_else(|| self.place_of(offset, "tenant.range.offset"));
        let objective = raw.objective.as_ref();
        if let Some(objective) = objective
            && raw.read_only
            && objective.as_ref().objective().writes()
        {
            let text = "a read-only tenant writes nothing: set read_share = 1.0";
            return Err(self.place(objective, "tenant.objective").error(text));
        }
        let namespace = raw.namespace.as_ref();
        Ok(TenantConfig {
            namespace: namespace.map(|number| {
                let place = self.place(number, "tenant.namespace");
                (number.as_ref().small(), place)
            }),
            objective: objective.map(|objective| objective.as_ref().objective()),
            objective_place: objective.map_or_else(
                || place.clone(),
                |objective| self.place(objective, "tenant.objective"),
            ),
            export,
            device: raw.device.as_ref().clone(),
            offset_bytes,
            length_bytes,
            is_read_only: raw.read_only,
            description: description.transpose()?.unwrap_or_default(),
            allow: raw.allow.read(self, has_client_ca)?,
            range_place: range_place.unwrap_or_else(|| place.clone()),
            place,
        })
    }

    fn tls(&self, raw: &RawTls) -> TlsSpec {
        let named = |path: &Spanned<PathBuf>, key| NamedFile {
            path: path.as_ref().clone(),
            place: self.place(path, key),
        };
        let client_ca = raw.client_ca.as_ref();
        TlsSpec {
            certificate: named(&raw.certificate, "tls.certificate"),
            key: named(&raw.key, "tls.key"),
            client_ca: client_ca.map(|path| named(path, "tls.client_ca")),
            is_required: raw.required,
        }
    }

    fn listen(&self, raw: &RawConfig) -> Result<Vec<SocketAddr>, ConfigError> {
        let Some(listen) = &raw.listen else {
            return Ok(vec![SocketAddr::from(([127, 0, 0, 1], NBD_PORT))]);
        };
        if listen.as_ref().is_empty() && raw.nvme.is_none() {
            return Err(self.place(listen, "listen").error(format!(
                "is empty, and there is no `nvme`, so no client could connect: name an address, or \
                 leave the key out to listen at 127.0.0.1:{NBD_PORT}"
            )));
        }
        let mut addresses = Vec::new();
        for text in listen.as_ref() {
            let has_tls = raw.tls.as_ref().is_some_and(|tls| tls.required);
            let is_safe = has_tls || raw.plaintext_beyond_loopback;
            addresses.push(self.listen_address(text, "listen", is_safe)?);
        }
        Ok(addresses)
    }

    fn devices(&self, raw: &RawConfig) -> Result<Vec<DeviceSpec>, ConfigError> {
        let mut devices: Vec<DeviceSpec> = Vec::new();
        for device in &raw.device {
            let device = self.device(device)?;
            if let Some(other) = devices.iter().find(|other| other.name == device.name) {
                let text = format!(
                    "a second device {:?}; the first is in line {}",
                    device.name, other.place.line
                );
                return Err(device.place.error(text));
            }
            devices.push(device);
        }
        Ok(devices)
    }

    fn tenants(
        &self,
        raw: &RawConfig,
        devices: &[DeviceSpec],
    ) -> Result<Vec<TenantConfig>, ConfigError> {
        let mut tenants: Vec<TenantConfig> = Vec::new();
        let mut lines = HashMap::new();
        let mut numbers = HashMap::new();
        let has_client_ca = raw.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        for raw in &raw.tenant {
            let tenant = self.tenant(raw, has_client_ca)?;
            if let Some(line) = lines.insert(tenant.export.clone(), tenant.place.line) {
                let text = format!(
                    "a second export {:?}; the first is in line {line}",
                    tenant.export
                );
                return Err(tenant.place.error(text));
            }
            if let Some((number, place)) = &tenant.namespace
                && let Some(line) = numbers.insert(*number, place.line)
            {
                let text = format!("a second namespace {number}; the first is in line {line}");
                return Err(place.error(text));
            }
            if !devices.iter().any(|device| device.name == tenant.device) {
                let place = self.place(&raw.as_ref().device, "tenant.device");
                let names: Vec<&str> = devices.iter().map(|device| &*device.name).collect();
                let there_are = match &names[..] {
                    [] => "add a [[device]]".to_owned(),
                    names => format!("there are: {}", names.join(", ")),
                };
                return Err(place.error(format!(
                    "there is no device {:?}; {there_are}",
                    tenant.device
                )));
            }
            tenants.push(tenant);
        }
        if tenants.is_empty() {
            return Err(self.error("exports nothing: add a [[device]] and a [[tenant]]"));
        }
        Ok(tenants)
    }

    fn config(&self, raw: &RawConfig) -> Result<BlockConfig, ConfigError> {
        let devices = self.devices(raw)?;
        let tenants = self.tenants(raw, &devices)?;
        let memory_bytes = match &raw.memory {
            None => 256 << 20,
            // One request may have 32 MiB.
            Some(memory) => self.size_within(memory, "memory", (64 << 20, "64MiB"), ONE_TIB)?,
        };
        let metrics = raw.metrics.as_ref();
        let nvme = raw.nvme.iter().flat_map(|nvme| &nvme.listen);
        let named = [
            raw.listen
                .iter()
                .flat_map(|listen| listen.as_ref())
                .map(|text| ("listen", text))
                .collect::<Vec<_>>(),
            nvme.map(|text| ("nvme.listen", text)).collect(),
            metrics.map(|text| ("metrics", text)).into_iter().collect(),
        ];
        let named: Vec<_> = named.into_iter().flatten().collect();
        addresses::ensure_distinct(self, named.iter().copied())?;
        let addresses = named.iter().filter_map(|&(key, text)| {
            let address = text.as_ref().parse().ok()?;
            Some((address, self.place(text, key)))
        });
        Ok(BlockConfig {
            addresses: addresses.collect(),
            listen: self.listen(raw)?,
            tls: raw.tls.as_ref().map(|tls| self.tls(tls)),
            nvme: raw
                .nvme
                .as_ref()
                .map(|nvme| nvme.read(self, raw.plaintext_beyond_loopback))
                .transpose()?,
            plaintext_beyond_loopback: raw.plaintext_beyond_loopback,
            metrics: metrics
                .map(|text| self.listen_address(text, "metrics", raw.plaintext_beyond_loopback))
                .transpose()?,
            cores: cores::read(self, &raw.cores)?,
            memory_bytes,
            connections_max: raw.connections_max.map_or(CONNECTIONS, Whole::size),
            audit_log: raw.audit_log.as_ref().map(|it| it.as_ref().clone()),
            drain_s: raw.drain_s.map_or(DRAIN_S, Whole::small),
            devices,
            tenants,
            keys: [
                self.place_of(raw.audit_log.as_ref(), "audit_log"),
                self.place_of(raw.memory.as_ref(), "memory"),
            ]
            .into_iter()
            .flatten()
            .collect(),
        })
    }
}

impl BlockConfig {
    /// Keys whose value differs in `new`, and which a server reads at its start only.
    pub fn changed_at_restart_only(&self, new: &Self) -> Vec<&'static str> {
        let cpus = |config: &Self| -> Vec<usize> {
            let cores = config.cores.iter();
            cores.map(|core| core.cpu).collect()
        };
        let keys = [
            ("listen", self.listen != new.listen),
            ("nvme", self.nvme != new.nvme),
            ("metrics", self.metrics != new.metrics),
            ("cores", cpus(self) != cpus(new)),
            ("memory", self.memory_bytes != new.memory_bytes),
            (
                "connections_max",
                self.connections_max != new.connections_max,
            ),
            ("drain_s", self.drain_s != new.drain_s),
            ("audit_log", self.audit_log != new.audit_log),
        ];
        let changed = keys.into_iter().filter(|(_, has_changed)| *has_changed);
        changed.map(|(key, _)| key).collect()
    }

    /// Where a key of the whole server stands, of those in [`BlockConfig::keys`].
    pub fn place_of(&self, key: &str) -> Option<&Place> {
        self.keys.iter().find(|place| place.key == key)
    }

    /// Where the file names an address.
    pub(crate) fn place_of_address(&self, address: SocketAddr) -> Option<&Place> {
        let mut places = self.addresses.iter();
        let (_, place) = places.find(|(named, _)| *named == address)?;
        Some(place)
    }

    /// Whether NBD may be served at an address that the configuration does not name.
    ///
    /// # Errors
    /// The address is beyond loopback, TLS is not required, and nobody said that the network there
    /// is trusted.
    pub(crate) fn may_serve_nbd_at(&self, address: SocketAddr) -> Result<(), String> {
        let has_tls = self.tls.as_ref().is_some_and(|tls| tls.is_required);
        addresses::check_nbd(address, has_tls || self.plaintext_beyond_loopback)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is wrong: the line and the key are named.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(file, &text_of(file)?)
    }

    /// As [`BlockConfig::read`], of a text.
    ///
    /// # Errors
    /// The text is wrong.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let reader = Reader::new(file, text);
        reader.config(&reader.parse(text)?)
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
