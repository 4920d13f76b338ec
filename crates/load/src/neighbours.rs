//! Who else used the CPUs: known where the service's control group is.

use host::{CgroupReader, HostError, MachineCpu, Roots};
use serde::{Deserialize, Serialize};

/// Others that used more than this share of the machine's CPU time …
const OTHERS: f64 = 0.1;
/// … while less than this share was left unused, were in the service's way. Choices of this crate.
const UNUSED: f64 = 0.2;

/// What others than the service and the generator did to the machine's CPUs during a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Neighbours {
    /// Share of all CPU time that others used, or that the hypervisor took.
    pub used_share: f64,
    /// Share that nobody used.
    pub unused_share: f64,
}

impl Neighbours {
    /// Whether they were in the way: used much where little was left.
    #[must_use]
    pub fn were_in_the_way(&self) -> bool {
        self.used_share > OTHERS && self.unused_share < UNUSED
    }
}

/// The counters at the start of a run.
pub(crate) struct Watch {
    roots: Roots,
    service: CgroupReader,
    service_s: f64,
    cpus: MachineCpu,
    own_s: f64,
}

impl Watch {
    pub(crate) fn start(group: &str) -> Result<Self, HostError> {
        let roots = Roots::default();
        let mut service = CgroupReader::open(&roots, group)?;
        Ok(Self {
            service_s: service.cpu()?.total_s(),
            cpus: MachineCpu::read(&roots)?,
            own_s: host::own_cpu_s(),
            service,
            roots,
        })
    }

    pub(crate) fn end(mut self) -> Result<Neighbours, HostError> {
        let cpus = MachineCpu::read(&self.roots)?.since(self.cpus);
        let known_s =
            self.service.cpu()?.total_s() - self.service_s + host::own_cpu_s() - self.own_s;
        let all_s = cpus.all_s.max(f64::MIN_POSITIVE);
        Ok(Neighbours {
            used_share: ((cpus.used_s + cpus.stolen_s - known_s) / all_s).max(0.0),
            unused_share: cpus.idle_s / all_s,
        })
    }
}
