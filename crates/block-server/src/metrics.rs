//! Figures for Prometheus (`/metrics`) and for `slackline serve-block status` (`/status`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, UNIX_EPOCH};

use dataplane::histogram::{Histogram, Snapshot};
use prometheus_text::{Exposition, Labels, MetricKind};
use qos::{CalibrationDrift, Objective, Operation};
use serde::{Deserialize, Serialize};

use crate::counters::BlockCounters;
use crate::export::{Export, ExportStats};
use crate::rates::Rates;
use crate::server::Shared;
pub use crate::shared::TlsFailures;

/// Largest bucket of a latency histogram: 2³⁰ ns is about a second.
const DOUBLINGS: u32 = 30;
/// Smallest bucket: 1 µs.
const FIRST_DOUBLING: u32 = 10;

/// What a running server says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Connections now.
    pub connections: u64,
    /// The server ends, and this is left. `None`: it serves.
    pub draining: Option<Draining>,
    /// Why the last reload was refused: the server has the configuration from before.
    pub not_reloaded: Option<String>,
    /// Connections that ended because TLS failed. `None`: there was none since the start.
    pub tls_failures: Option<TlsFailures>,
    /// Devices with a calibration.
    pub devices: Vec<DeviceStatus>,
    /// The tenants, in the order of the configuration.
    pub tenants: Vec<TenantStatus>,
}

/// What a server says of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draining {
    /// When the signal came, in seconds since 1970.
    pub since_unix_s: u64,
    /// Seconds until the server ends at the latest.
    pub left_s: u64,
    /// Requests under way.
    pub requests: u64,
}

/// What a running server says of a device with a calibration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The device's name in the configuration.
    pub device: String,
    /// Tokens a second at the strictest objective, as the measured latency allows. `None`: no
    /// tenant has an objective, and nothing is limited.
    pub tokens_per_s: Option<u64>,
    /// Tokens a second that tenants with objectives reserved.
    pub reserved_tokens_per_s: u64,
    /// How the device differs from its calibration, if it does.
    pub drift: Option<CalibrationDrift>,
}

/// What a running server says of one tenant. Latencies are since the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantStatus {
    /// The export's name.
    pub export: String,
    /// The number of the NVMe namespace. `None`: the export is no namespace.
    pub namespace: Option<u32>,
    /// The device.
    pub device: String,
    /// Bytes.
    pub size_bytes: u64,
    /// Whether writing is refused.
    pub is_read_only: bool,
    /// Reads answered.
    pub reads: u64,
    /// Writes answered, with those of zeros and trims.
    pub writes: u64,
    /// Flushes answered.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Requests among `errors` that never reached the device: wrong, or not allowed.
    pub refused_requests: u64,
    /// Times that `allow` kept an NBD client from the export.
    pub refused_clients: u64,
    /// A flush of the device failed, so that writes that were answered may be lost.
    pub has_lost_writes: bool,
    /// Requests completed in a second, over the last second.
    pub iops: f64,
    /// Tokens of the tenant's requests that went to the device, over the last second.
    pub spent_tokens_per_s: f64,
    /// Tokens of the tenant's requests that arrived, over the last second. Requests that the server
    /// has not read from the connection are not among them.
    pub asked_tokens_per_s: f64,
    /// Tokens that the tenant left to others, over the last second.
    pub given_tokens_per_s: f64,
    /// Tokens of others that the tenant used, over the last second.
    pub received_tokens_per_s: f64,
    /// Median latency of reads, in microseconds.
    pub read_p50_us: f64,
    /// 95th percentile of reads, in microseconds.
    pub read_p95_us: f64,
    /// Median latency of writes, in microseconds.
    pub write_p50_us: f64,
    /// 95th percentile of writes, in microseconds.
    pub write_p95_us: f64,
    /// What the tenant was promised; `None`: best effort.
    pub objective: Option<Objective>,
    /// Tokens a second that the objective reserves; 0 for best effort.
    pub reserved_tokens_per_s: u64,
    /// 95th percentile in the last full window of the scheduler, in microseconds, of requests of
    /// the kind `window_p95_of`. `None` before there were enough of them, and after 5 s without.
    pub window_p95_us: Option<f64>,
    /// Which requests `window_p95_us` and the objective are of: reads. Writes if the objective has
    /// no reads.
    pub window_p95_of: Operation,
    /// Tokens in hand; negative: the tenant asks for more than it reserved.
    pub credit_tokens: i64,
    /// Tokens of all requests that went to the device.
    pub spent_tokens: u64,
    /// Tokens of all requests that arrived.
    pub asked_tokens: u64,
    /// Tokens that the tenant left to others, and tokens of others that it used.
    pub given_tokens: u64,
    /// See `given_tokens`.
    pub received_tokens: u64,
    /// Requests that wait for tokens.
    pub queued: u32,
    /// Tokens of those requests.
    pub queued_tokens: u64,
    /// Whether the tenant's requests wait because it asks for more than it reserved.
    pub in_deficit: bool,
}

type Pick = fn(&ExportStats) -> u64;
type PickHistogram = fn(&ExportStats) -> &Histogram;

fn sum(export: &Export, pick: Pick) -> u64 {
    export.stats.iter().map(pick).fold(0, u64::wrapping_add)
}

fn merged(export: &Export, pick: PickHistogram) -> Snapshot {
    let mut all = Snapshot::default();
    for stats in export.stats.iter() {
        all.merge(&pick(stats).snapshot());
    }
    all
}

fn microseconds(snapshot: &Snapshot, quantile: f64) -> f64 {
    snapshot.quantile(quantile) as f64 / 1000.0
}

fn devices(exports: &[Arc<Export>]) -> Vec<DeviceStatus> {
    let mut found: Vec<DeviceStatus> = Vec::new();
    for export in exports {
        let device = &export.device;
        let is_known = found.iter().any(|known| known.device == device.name);
        if is_known || device.qos.model().is_none() {
            continue;
        }
        let status = device.qos.status();
        found.push(DeviceStatus {
            device: device.name.clone(),
            tokens_per_s: status.tokens_per_s,
            reserved_tokens_per_s: status.reserved_tokens_per_s,
            drift: status.drift,
        });
    }
    found
}

const COUNTS: [(&str, &str, Pick); 8] = [
    ("reads_total", "Reads answered.", |stats| {
        stats.reads.load(Ordering::Relaxed)
    }),
    (
        "writes_total",
        "Writes, zeros and trims answered.",
        |stats| stats.writes.load(Ordering::Relaxed),
    ),
    ("flushes_total", "Flushes answered.", |stats| {
        stats.flushes.load(Ordering::Relaxed)
    }),
    ("read_bytes_total", "Bytes read.", |stats| {
        stats.read_bytes.load(Ordering::Relaxed)
    }),
    ("written_bytes_total", "Bytes written.", |stats| {
        stats.written_bytes.load(Ordering::Relaxed)
    }),
    (
        "errors_total",
        "Requests answered with an error.",
        |stats| stats.errors.load(Ordering::Relaxed),
    ),
    (
        "refused_requests_total",
        "Requests that were refused before they reached the device.",
        |stats| stats.refused_requests.load(Ordering::Relaxed),
    ),
    (
        "refused_clients_total",
        "Times that `allow` kept an NBD client from the export.",
        |stats| stats.refused_clients.load(Ordering::Relaxed),
    ),
];

const HISTOGRAMS: [(&str, &str, PickHistogram); 2] = [
    (
        "read_latency_ns",
        "Reads: time from the last byte of the request to the answer, in nanoseconds.",
        |stats| &stats.read_ns,
    ),
    (
        "write_latency_ns",
        "Writes, zeros and trims: time from the last byte of the request to the answer, in nanoseconds.",
        |stats| &stats.write_ns,
    ),
];

fn device_metrics(page: &mut Exposition, devices: &[DeviceStatus]) {
    type Figure = fn(&DeviceStatus) -> Option<f64>;
    let figures: [(&str, &str, Figure); 3] = [
        (
            "device_tokens_per_second",
            "Tokens a second that the device takes at the strictest objective.",
            |device| device.tokens_per_s.map(|rate| rate as f64),
        ),
        (
            "device_reserved_tokens_per_second",
            "Tokens a second that tenants with objectives reserved.",
            |device| Some(device.reserved_tokens_per_s as f64),
        ),
        (
            "device_drifted",
            "1 while the device does not behave as calibrated.",
            |device| Some(f64::from(u8::from(device.drift.is_some()))),
        ),
    ];
    for (name, help, pick) in figures {
        let name = format!("slackline_block_{name}");
        let samples = devices.iter().filter_map(|device| {
            let labels = Labels::new().and("device", &device.device);
            Some((labels, pick(device)?))
        });
        page.family(&name, MetricKind::Gauge, help).samples(samples);
    }
}

impl Shared {
    fn connections(&self) -> u64 {
        let shards = self.shards.iter();
        shards
            .map(|shard| shard.flows.load(Ordering::Relaxed))
            .sum()
    }

    fn draining(&self) -> Option<Draining> {
        let drain = self.drain()?;
        let since = drain.began.duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = drain.until.saturating_duration_since(Instant::now());
        let requests = |shard: &BlockCounters| shard.requests.load(Ordering::Relaxed);
        Some(Draining {
            since_unix_s: since.as_secs(),
            left_s: left
                .as_millis()
                .div_ceil(1000)
                .try_into()
                .unwrap_or(u64::MAX),
            requests: self.counters.iter().map(requests).sum(),
        })
    }

    /// What `/status` says.
    pub fn status(&self) -> ServerStatus {
        let exports = self.exports();
        let fares = self.fares();
        let namespaces = self.nvme().map(|subsystem| subsystem.namespaces());
        let namespaces: HashMap<_, u32> = namespaces
            .iter()
            .flat_map(|namespaces| namespaces.iter())
            .map(|(&number, export)| (export.key(), number))
            .collect();
        let tenants = exports.iter().map(|export| {
            let reads = merged(export, |stats| &stats.read_ns);
            let writes = merged(export, |stats| &stats.write_ns);
            let fares = fares.get(&export.name).map_or(&[][..], Vec::as_slice);
            let shards: Vec<&qos::TenantFigures> = fares.iter().map(|fare| &fare.tenant).collect();
            let rates = fares.iter().map(|fare| fare.rates);
            let rates = rates.fold(Rates::default(), Rates::and);
            let whole = |pick: fn(&qos::TenantFigures) -> u64| {
                shards.iter().map(|&shard| pick(shard)).sum()
            };
            TenantStatus {
                objective: export.objective,
                reserved_tokens_per_s: export
                    .objective
                    .map_or(0, |objective| export.device.qos.needed(&objective)),
                window_p95_of: export.tenant_spec().percentile_of(),
                window_p95_us: shards
                    .iter()
                    .filter_map(|shard| shard.p95_us)
                    .reduce(f64::max),
                credit_tokens: match export.objective {
                    // Each shard says what all have together.
                    Some(_) => shards.first().map_or(0, |shard| shard.credit_tokens),
                    None => shards.iter().map(|shard| shard.credit_tokens).sum(),
                },
                spent_tokens: whole(|shard| shard.spent_tokens),
                asked_tokens: whole(qos::TenantFigures::asked_tokens),
                given_tokens: whole(|shard| shard.given_tokens),
                received_tokens: whole(|shard| shard.received_tokens),
                queued: shards.iter().map(|shard| shard.queued).sum(),
                queued_tokens: whole(|shard| shard.queued_tokens),
                in_deficit: shards.iter().any(|shard| shard.in_deficit),
                export: export.name.clone(),
                namespace: namespaces.get(&export.key()).copied(),
                device: export.device.name.clone(),
                size_bytes: export.info.size_bytes,
                is_read_only: export.info.is_read_only,
                reads: sum(export, |stats| stats.reads.load(Ordering::Relaxed)),
                writes: sum(export, |stats| stats.writes.load(Ordering::Relaxed)),
                flushes: sum(export, |stats| stats.flushes.load(Ordering::Relaxed)),
                read_bytes: sum(export, |stats| stats.read_bytes.load(Ordering::Relaxed)),
                written_bytes: sum(export, |stats| stats.written_bytes.load(Ordering::Relaxed)),
                errors: sum(export, |stats| stats.errors.load(Ordering::Relaxed)),
                refused_requests: sum(export, |stats| {
                    stats.refused_requests.load(Ordering::Relaxed)
                }),
                refused_clients: sum(export, |stats| {
                    stats.refused_clients.load(Ordering::Relaxed)
                }),
                has_lost_writes: export.device.has_lost_writes(),
                iops: rates.iops,
                spent_tokens_per_s: rates.spent_tokens_per_s,
                asked_tokens_per_s: rates.asked_tokens_per_s,
                given_tokens_per_s: rates.given_tokens_per_s,
                received_tokens_per_s: rates.received_tokens_per_s,
                read_p50_us: microseconds(&reads, 0.5),
                read_p95_us: microseconds(&reads, 0.95),
                write_p50_us: microseconds(&writes, 0.5),
                write_p95_us: microseconds(&writes, 0.95),
            }
        });
        ServerStatus {
            connections: self.connections(),
            draining: self.draining(),
            not_reloaded: self.not_reloaded(),
            tls_failures: self.tls_failures(),
            devices: devices(&exports),
            tenants: tenants.collect(),
        }
    }

    /// The page of `/metrics`.
    pub fn metrics_page(&self) -> String {
        let mut page = Exposition::new();
        let exports = self.exports();
        let labels = |export: &Export| Labels::new().and("export", &export.name);
        for (name, help, pick) in COUNTS {
            let name = format!("slackline_block_{name}");
            let samples = exports.iter().map(|it| (labels(it), sum(it, pick)));
            page.family(&name, MetricKind::Counter, help)
                .samples(samples);
        }
        for (name, help, pick) in HISTOGRAMS {
            let name = format!("slackline_block_{name}");
            let mut family = page.family(&name, MetricKind::Histogram, help);
            for export in exports.iter() {
                let snapshot = merged(export, pick);
                let doublings = FIRST_DOUBLING..=DOUBLINGS;
                dataplane::metrics::histogram(&mut family, &labels(export), &snapshot, doublings);
            }
        }
        self.tenant_metrics(&mut page);
        self.connection_metrics(&mut page);
        dataplane::metrics::shards(&mut page, &self.shards);
        page.into_text()
    }

    fn tenant_metrics(&self, page: &mut Exposition) {
        type Figure = fn(&TenantStatus) -> Option<f64>;
        let figures: [(&str, MetricKind, &str, Figure); 9] = [
            (
                "objective_p95_us",
                MetricKind::Gauge,
                "The objective: the limit for the 95th percentile, in microseconds.",
                |tenant| tenant.objective.map(|objective| objective.p95_us.into()),
            ),
            (
                "window_p95_us",
                MetricKind::Gauge,
                "95th percentile of the last window, in microseconds: of reads, or of writes if the objective has no reads.",
                |tenant| tenant.window_p95_us,
            ),
            (
                "spent_tokens_total",
                MetricKind::Counter,
                "Tokens of the tenant's requests that went to the device.",
                |tenant| Some(tenant.spent_tokens as f64),
            ),
            (
                "asked_tokens_total",
                MetricKind::Counter,
                "Tokens of the tenant's requests that arrived.",
                |tenant| Some(tenant.asked_tokens as f64),
            ),
            (
                "given_tokens_total",
                MetricKind::Counter,
                "Reserved tokens that the tenant left to others.",
                |tenant| Some(tenant.given_tokens as f64),
            ),
            (
                "received_tokens_total",
                MetricKind::Counter,
                "Tokens beyond its own share that the tenant used.",
                |tenant| Some(tenant.received_tokens as f64),
            ),
            (
                "queued",
                MetricKind::Gauge,
                "Requests that have arrived completely and wait in the queue of the tenant.",
                |tenant| Some(tenant.queued.into()),
            ),
            (
                "lost_writes",
                MetricKind::Gauge,
                "1 after a flush of the tenant's device failed: writes that were answered may be lost.",
                |tenant| Some(f64::from(u8::from(tenant.has_lost_writes))),
            ),
            (
                "in_deficit",
                MetricKind::Gauge,
                "1 while the tenant asks for more than it reserved.",
                |tenant| Some(f64::from(u8::from(tenant.in_deficit))),
            ),
        ];
        let status = self.status();
        device_metrics(page, &status.devices);
        for (name, kind, help, pick) in figures {
            let name = format!("slackline_block_{name}");
            let samples = status.tenants.iter().filter_map(|tenant| {
                let labels = Labels::new().and("export", &tenant.export);
                Some((labels, pick(tenant)?))
            });
            page.family(&name, kind, help).samples(samples);
        }
    }

    fn connection_metrics(&self, page: &mut Exposition) {
        let total =
            |pick: fn(&BlockCounters) -> u64| -> u64 { self.counters.iter().map(pick).sum() };
        let rows = [
            (
                "connections_total",
                "Connections accepted.",
                total(|c| c.connections.load(Ordering::Relaxed)),
            ),
            (
                "sessions_total",
                "Connections that got an export.",
                total(|c| c.sessions.load(Ordering::Relaxed)),
            ),
            (
                "rejected_connections_total",
                "Connections refused because the server was draining.",
                total(|c| c.rejected.load(Ordering::Relaxed)),
            ),
            (
                "malformed_total",
                "Connections closed because they sent bytes that are no request.",
                total(|c| c.malformed.load(Ordering::Relaxed)),
            ),
            (
                "tls_failures_total",
                "Connections ended because TLS failed. `slackline_block_malformed_total` counts them, too.",
                self.tls_failures()
                    .map_or(0, |failures| failures.connections),
            ),
            (
                "stalled_total",
                "Connections ended because they delayed others or never chose an export.",
                total(|c| c.stalled.load(Ordering::Relaxed)),
            ),
        ];
        for (name, help, value) in rows {
            let name = format!("slackline_block_{name}");
            page.single(&name, MetricKind::Counter, help, value);
        }
        if let Some(subsystem) = self.nvme() {
            page.single(
                "slackline_block_nvme_controllers",
                MetricKind::Gauge,
                "NVMe controllers of connected hosts.",
                subsystem.controllers(),
            );
        }
    }
}
