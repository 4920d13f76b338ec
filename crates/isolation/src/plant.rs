//! A modelled machine: a service whose tail depends on cores, cache, memory bandwidth, frequency
//! and network, and a best-effort antagonist that takes them. Everything it says is simulated.
//!
//! The shapes follow Heracles (ISCA 2015, figures 1 and 4) and Pegasus (ISCA 2014, figure 2):
//! latency is flat up to a knee and then steep; a saturated DRAM or link hurts at any load; idle
//! power is a large share of the peak's. The constants are chosen to give such curves; they are not
//! measured.

use std::collections::{BTreeMap, VecDeque};

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::{ActuatorSetting, Decision, Subject};
use crate::numbers::{number, whole};
use crate::observation::{GroupSeen, MachineObservation, MachineSeen, ServiceSeen};
use crate::tail::Tail;

/// Queueing above the knee: p99 = base (1 + K ρ / (1 − ρ)).
const KNEE: f64 = 0.15;
/// Beyond this use of the service's cores the queue grows without bound; the model goes on
/// linearly.
const RHO_MAX: f64 = 0.995;
/// Cores lost to wake-ups for each core of best-effort work under `cpu.idle`.
const IDLE_LOSS: f64 = 0.05;

/// The machine: by default two sockets of 18 cores, as in the papers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlantModel {
    /// Cores.
    pub cores: f64,
    /// Ways of the last-level cache.
    pub llc_ways: u64,
    /// Peak DRAM bandwidth.
    pub dram_gb_per_s: f64,
    /// Thermal design power.
    pub tdp_w: f64,
    /// Power of the idle machine.
    pub idle_w: f64,
    /// The network link.
    pub link_mbit_per_s: f64,
    /// Time from a decision to its effect.
    pub delay_s: f64,
    /// Relative noise of a latency, beside the sampling error.
    pub noise: f64,
    /// The latency-critical service.
    pub service: ServiceModel,
    /// The best-effort work; `None` for a machine of the service's own.
    pub antagonist: Option<Antagonist>,
}

impl Default for PlantModel {
    fn default() -> Self {
        Self {
            cores: 36.0,
            llc_ways: 20,
            dram_gb_per_s: 120.0,
            tdp_w: 290.0,
            idle_w: 110.0,
            link_mbit_per_s: 10_000.0,
            delay_s: 0.5,
            noise: 0.02,
            service: ServiceModel::default(),
            antagonist: Some(Antagonist::default()),
        }
    }
}

/// The service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServiceModel {
    /// Its name.
    pub name: String,
    /// p99 of an idle service.
    pub base_ms: f64,
    /// The objective; by default 5 % above the p99 of the service alone at its peak load.
    pub objective_ms: Option<f64>,
    /// Requests per second at the peak load.
    pub requests_per_s: f64,
    /// Cores that it uses at the peak load.
    pub cores: f64,
    /// Cache ways that it needs at the peak load.
    pub llc_ways: f64,
    /// How much slower it is without any cache, as a share.
    pub cache_sensitivity: f64,
    /// DRAM bandwidth at the peak load.
    pub dram_gb_per_s: f64,
    /// Outgoing traffic at the peak load.
    pub egress_mbit_per_s: f64,
    /// The objective's window.
    pub window_s: f64,
}

impl Default for ServiceModel {
    fn default() -> Self {
        Self::named("websearch")
            .unwrap_or_else(|| Self::of("websearch", [12.0, 2_000.0, 6.0, 0.4, 48.0, 500.0]))
    }
}

impl ServiceModel {
    fn of(
        name: &str,
        [
            base_ms,
            requests_per_s,
            llc_ways,
            cache_sensitivity,
            dram,
            egress,
        ]: [f64; 6],
    ) -> Self {
        Self {
            name: name.to_owned(),
            base_ms,
            objective_ms: None,
            requests_per_s,
            cores: 30.0,
            llc_ways,
            cache_sensitivity,
            dram_gb_per_s: dram,
            egress_mbit_per_s: egress,
            window_s: 15.0,
        }
    }

    /// The services of the Heracles paper (section 5.1): `websearch`, `ml_cluster`, `memkeyval`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let model = match name {
            "websearch" => [12.0, 2_000.0, 6.0, 0.4, 48.0, 500.0],
            "ml_cluster" => [8.0, 1_500.0, 4.0, 0.3, 70.0, 200.0],
            "memkeyval" => [0.25, 300_000.0, 5.0, 0.5, 24.0, 8_500.0],
            _ => return None,
        };
        Some(Self::of(name, model))
    }
}

/// Best-effort work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Antagonist {
    /// Its name.
    pub name: String,
    /// DRAM bandwidth of each of its cores.
    pub dram_gb_per_core: f64,
    /// Share of the cache that it takes when nothing holds it back.
    pub cache_share: f64,
    /// How much slower it is without any cache, as a share.
    pub cache_sensitivity: f64,
    /// Outgoing traffic that it would send.
    pub egress_mbit_per_s: f64,
    /// Power of one of its cores beside that of the service, 1 for the same.
    pub power: f64,
}

impl Default for Antagonist {
    fn default() -> Self {
        Self::of("brain", [2.0, 0.5, 0.3, 0.0, 1.2])
    }
}

impl Antagonist {
    fn of(name: &str, [dram, cache_share, cache_sensitivity, egress, power]: [f64; 5]) -> Self {
        Self {
            name: name.to_owned(),
            dram_gb_per_core: dram,
            cache_share,
            cache_sensitivity,
            egress_mbit_per_s: egress,
            power,
        }
    }

    /// The antagonists of the Heracles paper (section 5.1).
    pub const NAMES: [&'static str; 6] = [
        "brain",
        "streetview",
        "stream-llc",
        "stream-dram",
        "cpu_pwr",
        "iperf",
    ];

    /// One of [`Antagonist::NAMES`].
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let model = match name {
            "brain" => [2.0, 0.5, 0.3, 0.0, 1.2],
            "streetview" => [5.0, 0.6, 0.2, 0.0, 1.0],
            "stream-llc" => [1.0, 0.9, 0.6, 0.0, 1.0],
            "stream-dram" => [10.0, 0.7, 0.0, 0.0, 1.0],
            "cpu_pwr" => [0.1, 0.0, 0.0, 0.0, 2.2],
            "iperf" => [0.5, 0.0, 0.0, 20_000.0, 0.5],
            _ => return None,
        };
        Some(Self::of(name, model))
    }
}

/// What is in force.
#[derive(Clone, Debug, Default)]
struct InForce {
    off: bool,
    idle: bool,
    quota_cores: Option<f64>,
    cores: Option<u64>,
    ways: Option<u64>,
    frequency: Option<f64>,
    egress_mbit: Option<f64>,
    power: Option<f64>,
    service_quota_cores: Option<f64>,
}

/// The modelled machine in one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment {
    pub(crate) latency_ms: f64,
    pub(crate) service_cores: f64,
    pub(crate) group_cores: f64,
    /// Work of the antagonist, as a share of what it does alone on the machine.
    pub(crate) progress: f64,
    pub(crate) power_w: f64,
    dram: f64,
    service_dram: f64,
    speed: f64,
    throttled: f64,
    waiting: f64,
    egress: f64,
}

/// The machine.
#[derive(Debug)]
pub struct Plant {
    model: PlantModel,
    in_force: InForce,
    under_way: VecDeque<(f64, Decision)>,
    window: VecDeque<(f64, Tail)>,
    rng: ChaCha8Rng,
    now_s: f64,
}

/// The name of the modelled best-effort group.
pub(crate) const GROUP: &str = "antagonist";

impl Plant {
    /// The machine before anything was decided. The same seed gives the same noise.
    #[must_use]
    pub fn new(model: PlantModel, seed: u64) -> Self {
        Self {
            model,
            in_force: InForce::default(),
            under_way: VecDeque::new(),
            window: VecDeque::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            now_s: 0.0,
        }
    }

    /// The objective in force.
    #[must_use]
    pub fn objective_ms(&self) -> f64 {
        let service = &self.model.service;
        service.objective_ms.unwrap_or_else(|| {
            let rho = service.cores / self.model.cores;
            1.05 * service.base_ms * (1.0 + KNEE * rho / (1.0 - rho))
        })
    }

    /// Puts decisions on their way: they are in force after the model's delay.
    pub fn apply(&mut self, decisions: &[Decision]) {
        let at_s = self.now_s + self.model.delay_s;
        let under_way = decisions.iter().map(|decision| (at_s, decision.clone()));
        self.under_way.extend(under_way);
    }

    pub(crate) fn put_in_force(&mut self) {
        while let Some((at_s, _)) = self.under_way.front()
            && *at_s <= self.now_s + 1e-9
        {
            let Some((_, decision)) = self.under_way.pop_front() else {
                return;
            };
            let now = &mut self.in_force;
            match (&decision.subject, decision.setting) {
                (Subject::Service(_), ActuatorSetting::QuotaCores(cores)) => {
                    now.service_quota_cores = cores
                }
                (_, ActuatorSetting::Off(off)) => now.off = off,
                (_, ActuatorSetting::CpuIdle(idle)) => now.idle = idle,
                (_, ActuatorSetting::QuotaCores(cores)) => now.quota_cores = cores,
                (_, ActuatorSetting::Cores(cores)) => now.cores = Some(cores),
                (_, ActuatorSetting::LlcWays(ways)) => now.ways = Some(ways),
                (_, ActuatorSetting::Frequency(share)) => now.frequency = Some(share),
                (_, ActuatorSetting::EgressMbit(rate)) => now.egress_mbit = Some(rate),
                (_, ActuatorSetting::Power(share)) => now.power = Some(share),
                // The model has no weights, memory limits, disks and utilisation clamps.
                _ => {}
            }
        }
    }

    /// What the machine does at this load, without noise.
    pub(crate) fn moment(&self, load: f64) -> Moment {
        let (model, service, now) = (&self.model, &self.model.service, &self.in_force);
        let antagonist = model.antagonist.as_ref().filter(|_| !now.off);
        // Cores that the two have.
        let wanted = service.cores * load;
        let quota = now.quota_cores.unwrap_or(model.cores);
        let (group_cores, mut capacity) = match (antagonist, now.cores) {
            (None, _) => (0.0, model.cores),
            (Some(_), Some(cores)) => {
                let own = number(cores).min(model.cores - 1.0);
                (own.min(quota), model.cores - own)
            }
            (Some(_), None) if now.idle => {
                let left = (model.cores - wanted).max(0.0).min(quota);
                (left, model.cores - IDLE_LOSS * left)
            }
            (Some(_), None) => {
                let left = (model.cores - wanted.min(model.cores / 2.0)).min(quota);
                (left, model.cores - left)
            }
        };
        capacity = capacity
            .min(now.service_quota_cores.unwrap_or(model.cores))
            .max(0.01);
        let (frequency, power_w) = self.power(wanted.min(capacity), group_cores, antagonist);
        // Cache and memory slow the service down.
        let ways = number(model.llc_ways);
        let taken = match (antagonist, now.ways) {
            (None, _) => 0.0,
            (Some(_), Some(own)) => number(own),
            (Some(antagonist), None) => {
                antagonist.cache_share * ways * (group_cores / 4.0).min(1.0)
            }
        };
        let needed = service.llc_ways * (0.5 + 0.5 * load);
        let missing = ((needed - (ways - taken)) / needed.max(0.1)).clamp(0.0, 1.0);
        let service_dram = service.dram_gb_per_s * load * (1.0 + missing);
        let group_dram =
            antagonist.map_or(0.0, |antagonist| antagonist.dram_gb_per_core * group_cores);
        let dram_wanted = service_dram + group_dram;
        let full = dram_wanted / model.dram_gb_per_s;
        // Latency of memory rises from 80 % on, and steeply where more is wanted than there is.
        let memory = 1.0 + (full - 0.8).max(0.0) * 0.5 + (full - 1.0).max(0.0) * 3.0;
        let inflation = (1.0 + service.cache_sensitivity * missing) * memory;
        let rho = wanted * inflation / (capacity * frequency);
        let bounded = rho.min(RHO_MAX);
        let queue = KNEE * bounded / (1.0 - bounded) + 200.0 * (rho - RHO_MAX).max(0.0);
        // The network: what does not fit into the link waits.
        let own_egress = service.egress_mbit_per_s * load;
        let other = antagonist.map_or(0.0, |antagonist| {
            let allowed = now.egress_mbit.unwrap_or(f64::INFINITY);
            let possible = antagonist.egress_mbit_per_s * (group_cores / 2.0).min(1.0);
            possible.min(allowed)
        });
        let crowded = ((own_egress + other) / model.link_mbit_per_s - 0.95).max(0.0);
        let latency_ms =
            service.base_ms * inflation / frequency * (1.0 + queue) * (1.0 + 20.0 * crowded);
        let work = |antagonist: &Antagonist| {
            let cached = now.ways.map_or(1.0, |own| {
                let useful = (number(own) / (0.3 * ways)).min(1.0);
                1.0 - antagonist.cache_sensitivity * (1.0 - useful)
            });
            let sent = match antagonist.egress_mbit_per_s {
                rate if rate > 0.0 => (other / rate.min(model.link_mbit_per_s)).min(1.0),
                _ => 1.0,
            };
            let fed = (1.0 / full.max(1.0)).min(1.0);
            group_cores / model.cores
                * frequency
                * now.frequency.unwrap_or(1.0)
                * cached
                * fed
                * sent
        };
        Moment {
            latency_ms,
            service_cores: (wanted * inflation / frequency).min(capacity),
            group_cores,
            progress: antagonist.map_or(0.0, work),
            power_w,
            dram: dram_wanted.min(model.dram_gb_per_s),
            service_dram,
            speed: frequency,
            throttled: if now.service_quota_cores.is_some() {
                (rho - 0.8).clamp(0.0, 1.0)
            } else {
                0.0
            },
            waiting: 0.02 * bounded / (1.0 - bounded),
            egress: own_egress,
        }
    }

    /// Frequency of the service's cores, as a share, and the package power: dynamic power goes with
    /// the cube of the frequency, and all cores slow down where the cap is reached.
    fn power(&self, service: f64, group: f64, antagonist: Option<&Antagonist>) -> (f64, f64) {
        let model = &self.model;
        let per_core = (model.tdp_w - model.idle_w) / model.cores;
        let share = self.in_force.frequency.unwrap_or(1.0);
        let weight = antagonist.map_or(1.0, |antagonist| antagonist.power);
        let wanted = per_core * (service + group * weight * share.powi(3));
        let cap = model.tdp_w * self.in_force.power.unwrap_or(1.0);
        let allowed = (cap - model.idle_w).max(0.02 * cap);
        let frequency = (allowed / wanted.max(1e-9)).cbrt().clamp(0.3, 1.0);
        (frequency, model.idle_w + wanted * frequency.powi(3))
    }

    /// Lets `seconds` pass at this load, and looks.
    pub fn pass(&mut self, seconds: f64, load: f64) -> MachineObservation {
        self.now_s += seconds;
        self.put_in_force();
        let moment = self.moment(load);
        let fresh = self.tail(&moment, load, seconds);
        self.window.push_back((self.now_s, fresh));
        let window_s = self.model.service.window_s;
        while self
            .window
            .front()
            .is_some_and(|(at_s, _)| *at_s < self.now_s - window_s)
        {
            self.window.pop_front();
        }
        let requests: u64 = self.window.iter().map(|(_, tail)| tail.requests).sum();
        let weighted = |(_, tail): &(f64, Tail)| number(tail.requests) * tail.latency_ms;
        let window = Tail {
            latency_ms: self.window.iter().map(weighted).sum::<f64>() / number(requests.max(1)),
            requests,
            above: Some(self.window.iter().filter_map(|(_, tail)| tail.above).sum()),
            ..fresh
        };
        let model = &self.model;
        MachineObservation {
            services: vec![ServiceSeen {
                fresh: Some(fresh),
                window: Some(window),
                window_s,
                load: Some(load),
                cpu_cores: moment.service_cores,
                quota_cores: self.in_force.service_quota_cores,
                throttled_share: moment.throttled,
                waiting_share: Some(moment.waiting),
                dram_gb_per_s: Some(moment.service_dram),
                egress_mbit_per_s: Some(moment.egress),
                ..ServiceSeen::without_data(&model.service.name, self.objective_ms())
            }],
            groups: model
                .antagonist
                .iter()
                .map(|_| GroupSeen {
                    progress_per_s: Some(moment.progress),
                    ..GroupSeen::running(GROUP, moment.group_cores)
                })
                .collect(),
            machine: MachineSeen {
                cores: model.cores,
                busy_cores: moment.service_cores + moment.group_cores,
                llc_ways: Some(model.llc_ways),
                dram_gb_per_s: Some((moment.dram, model.dram_gb_per_s)),
                power_w: Some((moment.power_w, model.tdp_w)),
                power_cap_w: self.in_force.power.map(|share| share * model.tdp_w),
                frequency_mhz: Some((2300.0 * moment.speed, 2300.0 * 0.99)),
                link_mbit_per_s: Some(model.link_mbit_per_s),
            },
        }
    }

    /// What is measured of the latency: requests of an exponential tail, and noise.
    fn tail(&mut self, moment: &Moment, load: f64, seconds: f64) -> Tail {
        let requests = whole(self.model.service.requests_per_s * load * seconds);
        let clean = Tail {
            quantile: 0.99,
            latency_ms: moment.latency_ms,
            requests,
            above: None,
        };
        let drift = (self.model.noise * self.normal()).exp();
        // P(latency > objective) of a tail that falls exponentially and has its p99 at
        // `latency_ms`.
        let slow = 0.01_f64
            .powf(self.objective_ms() / (moment.latency_ms * drift))
            .min(1.0);
        let n = number(requests);
        let deviation = (n * slow * (1.0 - slow)).sqrt();
        let above = whole(n * slow + deviation * self.normal()).min(requests);
        let error = clean.relative_error() * self.normal();
        Tail {
            latency_ms: moment.latency_ms * drift * error.exp(),
            above: Some(above),
            ..clean
        }
    }

    /// A standard normal number (Box and Muller).
    fn normal(&mut self) -> f64 {
        let (a, b): (f64, f64) = (self.rng.random(), self.rng.random());
        (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    /// Work that has been put on its way and is not in force yet, for bounds in tests.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// The settings that are in force, by actuator, for pictures.
    #[must_use]
    pub fn in_force(&self) -> BTreeMap<&'static str, f64> {
        let now = &self.in_force;
        let mut shown = BTreeMap::from([("off", f64::from(u8::from(now.off)))]);
        let optional = [
            ("quota", now.quota_cores),
            ("cpuset", now.cores.map(number)),
            ("llc_ways", now.ways.map(number)),
            ("power", now.power),
            ("service_quota", now.service_quota_cores),
        ];
        shown.extend(
            optional
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        shown
    }
}
