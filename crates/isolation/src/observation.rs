//! What a controller sees of a machine in one step.

use crate::tail::Tail;

/// One look at the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineObservation {
    /// The latency-critical services.
    pub services: Vec<ServiceSeen>,
    /// The best-effort groups.
    pub groups: Vec<GroupSeen>,
    /// The machine itself.
    pub machine: MachineSeen,
}

/// A latency-critical service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceSeen {
    /// Its name in the configuration.
    pub name: String,
    /// Whether it runs.
    pub is_running: bool,
    /// The latency that its tail has to stay below.
    pub objective_ms: f64,
    /// The tail since the last step; `None` without fresh data.
    pub fresh: Option<Tail>,
    /// The tail over the objective's window; `None` where the source has no data or stale data.
    pub window: Option<Tail>,
    /// The window's length.
    pub window_s: f64,
    /// Load as a share of the peak load, where it is known.
    pub load: Option<f64>,
    /// Load in requests, where it is known.
    pub requests_per_s: Option<f64>,
    /// CPU time per second.
    pub cpu_cores: f64,
    /// The service's quota; `None` without one.
    pub quota_cores: Option<f64>,
    /// Share of its quota periods in which it was throttled.
    pub throttled_share: f64,
    /// Seconds that its threads waited for a CPU, per second that they ran; `None` where the kernel
    /// does not count.
    pub waiting_share: Option<f64>,
    /// Share of the time in which a thread stood still for memory or a disk (PSI); `None` where the
    /// kernel does not count.
    pub stalled_share: Option<f64>,
    /// DRAM bandwidth, where it is measured.
    pub dram_gb_per_s: Option<f64>,
    /// Outgoing network traffic, where it is measured.
    pub egress_mbit_per_s: Option<f64>,
    /// Its actuators that somebody else writes: what a controller says of them is not carried out.
    pub foreign: Vec<&'static str>,
}

impl ServiceSeen {
    /// A running service of which no latency is known.
    #[must_use]
    pub fn without_data(name: &str, objective_ms: f64) -> Self {
        Self {
            name: name.to_owned(),
            is_running: true,
            objective_ms,
            fresh: None,
            window: None,
            window_s: 15.0,
            load: None,
            requests_per_s: None,
            cpu_cores: 0.0,
            quota_cores: None,
            throttled_share: 0.0,
            waiting_share: None,
            stalled_share: None,
            dram_gb_per_s: None,
            egress_mbit_per_s: None,
            foreign: Vec::new(),
        }
    }

    /// The slack over the window.
    #[must_use]
    pub fn slack(&self) -> Option<f64> {
        self.window.map(|tail| tail.slack(self.objective_ms))
    }
}

/// A best-effort group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSeen {
    /// Its name in the configuration.
    pub name: String,
    /// Whether it exists and has processes.
    pub is_running: bool,
    /// CPU time per second.
    pub cpu_cores: f64,
    /// Units of work that it got done per second, where it says.
    pub progress_per_s: Option<f64>,
    /// Its actuators that somebody else writes: what a controller says of them is not carried out.
    pub foreign: Vec<&'static str>,
}

impl GroupSeen {
    /// A group that uses so many cores.
    #[must_use]
    pub fn running(name: &str, cpu_cores: f64) -> Self {
        Self {
            name: name.to_owned(),
            is_running: true,
            cpu_cores,
            progress_per_s: None,
            foreign: Vec::new(),
        }
    }
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineSeen {
    /// Cores.
    pub cores: f64,
    /// Cores in use, by all.
    pub busy_cores: f64,
    /// Ways of the last-level cache that can be given to a group; `None` without resctrl.
    pub llc_ways: Option<u64>,
    /// DRAM bandwidth in use and its peak; `None` where it is not measured.
    pub dram_gb_per_s: Option<(f64, f64)>,
    /// Package power and the thermal design power; `None` without RAPL.
    pub power_w: Option<(f64, f64)>,
    /// The power cap in force.
    pub power_cap_w: Option<f64>,
    /// The frequency of the services' cores and the one they are guaranteed; `None` without
    /// cpufreq.
    pub frequency_mhz: Option<(f64, f64)>,
    /// The network link's rate; `None` where none is configured.
    pub link_mbit_per_s: Option<f64>,
}

impl MachineObservation {
    /// A machine of so many cores with nothing on it.
    #[must_use]
    pub fn of_cores(cores: f64) -> Self {
        Self {
            machine: MachineSeen {
                cores,
                ..MachineSeen::default()
            },
            ..Self::default()
        }
    }

    /// The least slack of all services; `None` where a service has no data.
    #[must_use]
    pub fn least_slack(&self) -> Option<f64> {
        let slacks: Option<Vec<f64>> = self.services.iter().map(ServiceSeen::slack).collect();
        slacks?.into_iter().reduce(f64::min)
    }

    /// The highest load of all services; cores in use by the services where no load is known.
    #[must_use]
    pub fn load(&self) -> f64 {
        let loads = self.services.iter().map(|service| {
            let by_cpu = service.cpu_cores / self.machine.cores.max(1.0);
            service.load.unwrap_or(by_cpu)
        });
        loads.fold(0.0, f64::max)
    }

    /// The load on a scale of its own, to tell loads apart: requests of all services, or else
    /// [`MachineObservation::load`].
    #[must_use]
    pub fn demand(&self) -> f64 {
        let requests: Option<f64> = self
            .services
            .iter()
            .map(|service| service.requests_per_s)
            .sum();
        requests
            .filter(|_| !self.services.is_empty())
            .unwrap_or_else(|| self.load())
    }

    /// Cores that the services use.
    #[must_use]
    pub fn service_cores(&self) -> f64 {
        self.services.iter().map(|service| service.cpu_cores).sum()
    }

    /// Cores that the best-effort groups use.
    #[must_use]
    pub fn group_cores(&self) -> f64 {
        self.groups.iter().map(|group| group.cpu_cores).sum()
    }

    /// Whether somebody else writes one of these actuators of a group that runs.
    #[must_use]
    pub fn is_foreign(&self, actuators: &[&str]) -> bool {
        let mut foreign = self.running_groups().flat_map(|group| &group.foreign);
        foreign.any(|actuator| actuators.contains(actuator))
    }

    /// What somebody else writes, in words.
    pub(crate) fn foreign_in_words(&self) -> String {
        let of_groups = self.running_groups().flat_map(|group| {
            let all = group.foreign.iter();
            all.map(move |actuator| format!("{actuator} of group {}", group.name))
        });
        let of_services = self.services.iter().flat_map(|service| {
            let all = service.foreign.iter();
            all.map(move |actuator| format!("{actuator} of service {}", service.name))
        });
        of_groups.chain(of_services).collect::<Vec<_>>().join(", ")
    }

    /// The groups that run.
    pub fn running_groups(&self) -> impl Iterator<Item = &GroupSeen> {
        self.groups.iter().filter(|group| group.is_running)
    }
}
