//! The keys of the configuration file, as they stand in it. The JSON Schema and the manual's page
//! of keys come from here.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::allow::RawAllow;
use crate::cores;
use crate::number::{Share, Whole};
use crate::nvme::NAMESPACES;
use crate::nvme::config::RawNvme;

/// As many connections as a process may have descriptors by default (`fs.nr_open` of sysctl, less
/// some for the rest).
const CONNECTIONS_MAX: u64 = 1_000_000;
pub(crate) const CONNECTIONS: usize = 16_384;
/// An hour.
const DRAIN_S_MAX: u64 = 3600;
pub(crate) const DRAIN_S: u32 = 10;
pub(crate) const LISTEN: &str = "127.0.0.1:10809";
pub(crate) const MEMORY: &str = "256MiB";

/// The configuration of `slackline serve-block`.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Blocks")]
#[serde(deny_unknown_fields)]
pub(crate) struct RawConfig {
    /// Addresses and ports for NBD. An empty list turns NBD off, and needs `nvme`.
    #[schemars(with = "Option<Vec<String>>", extend("default" = [LISTEN]))]
    pub(crate) listen: Option<Spanned<Vec<Spanned<String>>>>,
    /// Also serve NVMe/TCP.
    pub(crate) nvme: Option<RawNvme>,
    /// `true`: serve addresses beyond loopback without TLS. Everybody on the network can then read
    /// the data. NVMe/TCP and `metrics` beyond loopback need `true`.
    #[serde(default)]
    pub(crate) plaintext_beyond_loopback: bool,
    /// TLS for NBD. Without this table the server has no TLS.
    pub(crate) tls: Option<RawTls>,
    /// Address and port of `/metrics` (for Prometheus) and `/status` (for `serve-block status`). By
    /// default neither is served.
    #[schemars(with = "Option<String>")]
    pub(crate) metrics: Option<Spanned<String>>,
    /// CPUs, up to 64. Each CPU gets one shard. An empty list: one shard on any CPU.
    #[schemars(with = "Vec<cores::Cpu>", length(max = cores::CORES_MAX))]
    #[serde(default)]
    pub(crate) cores: Vec<Spanned<cores::Cpu>>,
    /// Memory for requests in flight, from `"64MiB"` to `"1TiB"`.
    #[schemars(with = "Option<String>", extend("default" = MEMORY))]
    pub(crate) memory: Option<Spanned<String>>,
    /// Largest number of connections of each shard.
    #[schemars(extend("default" = CONNECTIONS))]
    pub(crate) connections_max: Option<Whole<1, CONNECTIONS_MAX>>,
    /// Seconds after SIGTERM in which connections may complete their requests.
    #[schemars(extend("default" = DRAIN_S))]
    pub(crate) drain_s: Option<Whole<0, DRAIN_S_MAX>>,
    /// A file to which the server appends a JSON line for each tenant that is admitted, changed or
    /// removed, and for each configuration that is refused. By default no file.
    #[schemars(with = "Option<PathBuf>")]
    pub(crate) audit_log: Option<Spanned<PathBuf>>,
    /// The devices.
    #[schemars(with = "Vec<RawDevice>")]
    #[serde(default)]
    pub(crate) device: Vec<Spanned<RawDevice>>,
    /// The tenants. At least one is needed.
    #[schemars(with = "Vec<RawTenant>", length(min = 1))]
    #[serde(default)]
    pub(crate) tenant: Vec<Spanned<RawTenant>>,
}

/// TLS for NBD.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Tls")]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTls {
    /// A file (PEM) with the server's certificate and the intermediate certificates.
    #[schemars(with = "PathBuf")]
    pub(crate) certificate: Spanned<PathBuf>,
    /// A file (PEM) with the key of the certificate, without a passphrase.
    #[schemars(with = "PathBuf")]
    pub(crate) key: Spanned<PathBuf>,
    /// A file (PEM) with the certificate authority that must have signed each client's certificate.
    /// By default clients need no certificate.
    #[schemars(with = "Option<PathBuf>")]
    pub(crate) client_ca: Option<Spanned<PathBuf>>,
    /// `true`: refuse clients without TLS. `false`: also serve clients without TLS. Beyond
    /// loopback, `false` needs `plaintext_beyond_loopback = true`.
    #[serde(default = "is_required")]
    pub(crate) required: bool,
}

fn is_required() -> bool {
    true
}

/// A device. Give exactly one of `path`, `memory` and `simulated`.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Device")]
#[serde(deny_unknown_fields)]
pub(crate) struct RawDevice {
    /// The name by which tenants refer to the device. By default the value of `path` or
    /// `simulated`. Required with `memory`.
    #[schemars(with = "Option<String>")]
    pub(crate) name: Option<Spanned<String>>,
    /// A block device, or a file.
    #[schemars(with = "Option<PathBuf>")]
    pub(crate) path: Option<Spanned<PathBuf>>,
    /// Create the file of `path` with this size if it does not exist, such as `"100GiB"`. A file
    /// that exists keeps its size.
    #[schemars(with = "Option<String>")]
    pub(crate) create: Option<Spanned<String>>,
    /// `true`: the new file of `create` takes its whole space at once.
    #[schemars(with = "Option<bool>", extend("default" = false))]
    pub(crate) preallocate: Option<Spanned<bool>>,
    /// `true`: bypass the page cache (`O_DIRECT`) for aligned requests.
    #[schemars(with = "Option<bool>", extend("default" = true))]
    pub(crate) direct: Option<Spanned<bool>>,
    /// The device is memory of the server, of this size, such as `"4GiB"`. The data are lost when
    /// the server ends.
    #[schemars(with = "Option<String>")]
    pub(crate) memory: Option<Spanned<String>>,
    /// A model of a device, for planning with `serve-block admit` only: `"p3600"`.
    #[schemars(with = "Option<String>")]
    pub(crate) simulated: Option<Spanned<String>>,
    /// The file that `serve-block calibrate --json` wrote for this device. Tenants with an
    /// objective need it.
    #[schemars(with = "Option<PathBuf>")]
    pub(crate) calibration: Option<Spanned<PathBuf>>,
}

/// A tenant: a range of a device that is exported under a name.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Tenant")]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTenant {
    /// The name of the export, which clients ask for.
    #[schemars(with = "String")]
    pub(crate) export: Spanned<String>,
    /// The `name` or `path` of a device of this file.
    #[schemars(with = "String")]
    pub(crate) device: Spanned<String>,
    /// The part of the device that the tenant gets. By default the whole device.
    pub(crate) range: Option<RawRange>,
    /// `true`: clients cannot write.
    #[serde(default)]
    pub(crate) read_only: bool,
    /// A text that clients see in the list of exports.
    #[schemars(with = "Option<String>")]
    pub(crate) description: Option<Spanned<String>>,
    /// The clients that may use the tenant. By default all clients.
    #[serde(default)]
    pub(crate) allow: RawAllow,
    /// The latency objective. A tenant without one is best effort.
    #[schemars(with = "Option<RawObjective>")]
    pub(crate) objective: Option<Spanned<RawObjective>>,
    /// The number of the tenant's namespace over NVMe/TCP. With this key, the number stays the same
    /// after a restart. By default the namespace gets a free number.
    #[schemars(with = "Option<Namespace>")]
    pub(crate) namespace: Option<Spanned<Namespace>>,
}

pub(crate) type Namespace = Whole<1, { NAMESPACES as u64 }>;

/// A latency objective. The server reserves the tokens that the tenant needs for this objective.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Objective")]
#[serde(deny_unknown_fields)]
pub(crate) struct RawObjective {
    /// Limit for the 95th percentile of the latency of the tenant's reads, in microseconds. For a
    /// tenant that only writes: of its writes.
    pub(crate) p95_us: Whole<1, { qos::P95_US_MAX as u64 }>,
    /// Highest rate at which the objective holds, in requests of 4 KiB a second.
    pub(crate) iops: Whole<1, { qos::IOPS_MAX as u64 }>,
    /// Share of reads among these requests.
    pub(crate) read_share: Share,
}

/// A range of a device.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Range")]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRange {
    /// Where the range begins, such as `"0"` or `"200GiB"`.
    #[schemars(with = "Option<String>", extend("default" = "0"))]
    pub(crate) offset: Option<Spanned<String>>,
    /// The length of the range, such as `"200GiB"`. By default up to the end of the device.
    #[schemars(with = "Option<String>")]
    pub(crate) length: Option<Spanned<String>>,
}

/// The JSON Schema of the configuration file.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(RawConfig).to_value()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::config::{BlockConfig, parse_size};

    #[test]
    fn the_schema_has_the_defaults_of_the_server() {
        let text = "[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n[[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n";
        let config = BlockConfig::parse(Path::new("b.toml"), text).unwrap();
        let schema = schema();
        let default = |key: &str| schema["properties"][key]["default"].clone();
        let listen: Vec<String> = config.listen.iter().map(ToString::to_string).collect();
        assert_eq!(default("listen"), json!(listen));
        let memory = default("memory").as_str().and_then(parse_size);
        assert_eq!(memory, Some(config.memory_bytes));
        assert_eq!(default("connections_max"), json!(config.connections_max));
        assert_eq!(default("drain_s"), json!(config.drain_s));
    }
}
