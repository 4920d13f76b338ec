//! What a controller decides: a new setting, for whom, and why.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::energy_preference::EnergyPreference;
use crate::numbers::number;

/// Whom a setting is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A best-effort group, by its name.
    Group(String),
    /// A latency-critical service, by its name.
    Service(String),
    /// The whole machine.
    Machine,
}

/// One actuator's new setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActuatorSetting {
    /// The group stands still (frozen, or at the kernel's least quota), or runs.
    Off(bool),
    /// The kernel runs the group only when nobody else wants the CPU.
    CpuIdle(bool),
    /// The group's CPU weight, as in v2: 1 to 10,000, where 100 is usual.
    Weight(u64),
    /// CPU time per second; `None` for no limit.
    QuotaCores(Option<f64>),
    /// Cores of its own. The services keep the rest.
    Cores(u64),
    /// Ways of the last-level cache of its own.
    LlcWays(u64),
    /// Share of the memory bandwidth, percent.
    MemoryBandwidthPercent(u64),
    /// Highest frequency of the group's cores, as a share of the highest that the machine has.
    Frequency(f64),
    /// Outgoing traffic.
    EgressMbit(f64),
    /// The package's power cap, as a share of the highest.
    Power(f64),
    /// Memory beyond which the kernel reclaims from the group and slows it down.
    MemoryHighBytes(u64),
    /// Memory that is taken from it only if nobody else has any.
    MemoryLowBytes(u64),
    /// What it may read from the configured disk.
    IoReadBytesPerS(u64),
    /// What it may write to the configured disk.
    IoWriteBytesPerS(u64),
    /// Its share of a disk that others want, too: 1 to 10,000, where 100 is usual.
    IoWeight(u64),
    /// The cost model of the configured disk, by which I/O weights are shared out.
    IoCost(bool),
    /// The highest utilisation that the scheduler assumes of it, as a share of a CPU.
    UclampMax(f64),
    /// The lowest utilisation that the scheduler assumes of it, as a share of a CPU.
    UclampMin(f64),
    /// How much its cores prefer saving energy.
    EnergyPreference(EnergyPreference),
}

impl ActuatorSetting {
    /// The actuator's name, as metrics and tables have it.
    #[must_use]
    pub fn actuator(&self) -> &'static str {
        match self {
            Self::Off(_) => "off",
            Self::CpuIdle(_) => "cpu_idle",
            Self::Weight(_) => "weight",
            Self::QuotaCores(_) => "quota",
            Self::Cores(_) => "cpuset",
            Self::LlcWays(_) => "llc_ways",
            Self::MemoryBandwidthPercent(_) => "memory_bandwidth",
            Self::Frequency(_) => "frequency",
            Self::EgressMbit(_) => "egress",
            Self::Power(_) => "power",
            Self::MemoryHighBytes(_) => "memory_high",
            Self::MemoryLowBytes(_) => "memory_low",
            Self::IoReadBytesPerS(_) => "io_max_read",
            Self::IoWriteBytesPerS(_) => "io_max_write",
            Self::IoWeight(_) => "io_weight",
            Self::IoCost(_) => "io_cost",
            Self::UclampMax(_) => "uclamp_max",
            Self::UclampMin(_) => "uclamp_min",
            Self::EnergyPreference(_) => "epp",
        }
    }

    /// Whether it says how much CPU time, or which cores, somebody gets: what the policies decide.
    pub(crate) fn is_of_cpu_time(&self) -> bool {
        matches!(
            self,
            Self::Off(_)
                | Self::CpuIdle(_)
                | Self::Weight(_)
                | Self::QuotaCores(_)
                | Self::Cores(_)
                | Self::Frequency(_)
                | Self::EnergyPreference(_)
        )
    }
}

impl fmt::Display for ActuatorSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off(true) => f.write_str("off"),
            Self::Off(false) => f.write_str("on"),
            Self::CpuIdle(true) => f.write_str("cpu.idle"),
            Self::CpuIdle(false) => f.write_str("not cpu.idle"),
            Self::Weight(weight) => write!(f, "weight {weight}"),
            Self::QuotaCores(None) => f.write_str("no quota"),
            Self::QuotaCores(Some(cores)) => write!(f, "quota {cores:.2} cores"),
            Self::Cores(1) => f.write_str("1 core"),
            Self::Cores(cores) => write!(f, "{cores} cores"),
            Self::LlcWays(1) => f.write_str("1 cache way"),
            Self::LlcWays(ways) => write!(f, "{ways} cache ways"),
            Self::MemoryBandwidthPercent(percent) => write!(f, "{percent} % memory bandwidth"),
            Self::Frequency(share) => write!(f, "frequency {:.0} %", 100.0 * share),
            Self::EgressMbit(rate) => write!(f, "egress {rate:.0} Mbit/s"),
            Self::Power(share) => write!(f, "power {:.0} %", 100.0 * share),
            Self::MemoryHighBytes(bytes) => write!(f, "memory.high {} MiB", bytes >> 20),
            Self::MemoryLowBytes(bytes) => write!(f, "memory.low {} MiB", bytes >> 20),
            Self::IoReadBytesPerS(rate) => write!(f, "reads {:.1} MB/s", number(*rate) / 1e6),
            Self::IoWriteBytesPerS(rate) => write!(f, "writes {:.1} MB/s", number(*rate) / 1e6),
            Self::IoWeight(weight) => write!(f, "I/O weight {weight}"),
            Self::IoCost(true) => f.write_str("io.cost on"),
            Self::IoCost(false) => f.write_str("io.cost off"),
            Self::UclampMax(share) => write!(f, "uclamp.max {:.0} %", 100.0 * share),
            Self::UclampMin(share) => write!(f, "uclamp.min {:.0} %", 100.0 * share),
            Self::EnergyPreference(preference) => write!(f, "EPP {preference}"),
        }
    }
}

/// Why. The names are the values of a metric's label, so there are few.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The policy's first setting.
    #[default]
    Start,
    /// There is slack: more for best-effort work, or less for the service.
    Slack,
    /// The slack is too small to go on.
    LittleSlack,
    /// The objective is violated.
    Violation,
    /// The last act did harm, so it is undone.
    Revert,
    /// At this load so much did harm before.
    Remembered,
    /// A fast signal (waiting threads, throttling) rose.
    FastAlarm,
    /// The fast alarm was false.
    AlarmOver,
    /// Nothing is known of a service's latency.
    NoData,
    /// A service does not run.
    ServiceGone,
    /// The service violates its objective without any best-effort work.
    OverloadedByService,
    /// The load is too high for best-effort work.
    HighLoad,
    /// The load allows best-effort work again.
    LoadFell,
    /// The wait after a violation is over.
    CooldownOver,
    /// Memory bandwidth is near its peak.
    MemoryBandwidth,
    /// More cache did not help, or did harm.
    Cache,
    /// Package power is near its limit.
    PowerLimit,
    /// The network link is nearly full.
    Network,
    /// A rule on CPU use alone.
    CpuUse,
    /// The service was throttled more than its target.
    Throttled,
    /// The service was throttled less than its target.
    NotThrottled,
    /// The clock jumped: what was measured before does not count.
    ClockJump,
    /// Somebody else writes a setting that the policy counts on.
    NotInForce,
}

impl Reason {
    /// The name, as in JSON and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Slack => "slack",
            Self::LittleSlack => "little_slack",
            Self::Violation => "violation",
            Self::Revert => "revert",
            Self::Remembered => "remembered",
            Self::FastAlarm => "fast_alarm",
            Self::AlarmOver => "alarm_over",
            Self::NoData => "no_data",
            Self::ServiceGone => "service_gone",
            Self::OverloadedByService => "overloaded_by_service",
            Self::HighLoad => "high_load",
            Self::LoadFell => "load_fell",
            Self::CooldownOver => "cooldown_over",
            Self::MemoryBandwidth => "memory_bandwidth",
            Self::Cache => "cache",
            Self::PowerLimit => "power_limit",
            Self::Network => "network",
            Self::CpuUse => "cpu_use",
            Self::Throttled => "throttled",
            Self::NotThrottled => "not_throttled",
            Self::ClockJump => "clock_jump",
            Self::NotInForce => "not_in_force",
        }
    }
}

/// A new setting, for whom, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// For whom.
    pub subject: Subject,
    /// The new setting.
    pub setting: ActuatorSetting,
    /// The reason.
    pub reason: Reason,
}

impl Decision {
    /// A decision about a best-effort group.
    #[must_use]
    pub fn group(name: &str, setting: ActuatorSetting, reason: Reason) -> Self {
        Self {
            subject: Subject::Group(name.to_owned()),
            setting,
            reason,
        }
    }

    /// A decision about a service.
    #[must_use]
    pub fn service(name: &str, setting: ActuatorSetting, reason: Reason) -> Self {
        Self {
            subject: Subject::Service(name.to_owned()),
            setting,
            reason,
        }
    }

    /// A decision about the machine.
    #[must_use]
    pub fn machine(setting: ActuatorSetting, reason: Reason) -> Self {
        Self {
            subject: Subject::Machine,
            setting,
            reason,
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            Subject::Group(name) => write!(f, "group {name}")?,
            Subject::Service(name) => write!(f, "service {name}")?,
            Subject::Machine => f.write_str("machine")?,
        }
        write!(f, ": {} ({})", self.setting, self.reason.name())
    }
}
