//! The services of this host: which there are, what limits them, what their counters say, what the
//! tracepoints saw.

use std::collections::HashMap;

use host::{
    CgroupReader, CgroupSample, Hierarchies, HostError, Roots, ServiceGroup, TightestQuota,
};
use throttle::{Group, Shares};

use crate::names::Names;

/// One service.
pub(crate) struct Service {
    pub(crate) found: ServiceGroup,
    /// What limits it: itself or an ancestor.
    pub(crate) limit: Option<TightestQuota>,
    pub(crate) traced: Traced,
    usage: CgroupReader,
    /// The group that has the limit counts what it throttles.
    limited: Option<CgroupReader>,
}

/// Sums over all times that it was traced.
#[derive(Default)]
pub(crate) struct Traced {
    pub(crate) seconds: f64,
    pub(crate) shares: Shares,
    pub(crate) runnable_s: f64,
    pub(crate) waits: u64,
    pub(crate) waited_s: f64,
    /// Of the last time only.
    pub(crate) runnable_per_core: f64,
    pub(crate) threads: usize,
}

/// What a service's counters say.
pub(crate) struct Counted {
    pub(crate) usage: CgroupSample,
    /// Of the group that has the limit.
    pub(crate) limited: Option<CgroupSample>,
}

impl Service {
    /// Reads its counters; `None` of one that has vanished, or whose files are not as expected.
    pub(crate) fn count(&mut self) -> Option<Counted> {
        let usage = self.usage.sample().ok()?;
        let limited = match (&self.limit, &mut self.limited) {
            (None, _) => None,
            (Some(_), None) => Some(usage),
            (Some(_), Some(reader)) => reader.sample().ok(),
        };
        Some(Counted { usage, limited })
    }

    /// Cores that it may use.
    pub(crate) fn cores(&self, cpus: usize) -> f64 {
        self.limit
            .as_ref()
            .map_or(cpus as f64, |limit| limit.quota.cores())
    }
}

/// All services of this host, up to a bound.
pub(crate) struct Services {
    pub(crate) all: Vec<Service>,
    /// Groups that are services and were left out because there are too many.
    pub(crate) left_out: usize,
    pub(crate) cpus: usize,
    roots: Roots,
    hierarchies: Hierarchies,
    names: Names,
    max: usize,
}

impl Services {
    /// Finds the services of now.
    pub(crate) fn find(roots: Roots, names: Names, max: usize) -> Result<Self, HostError> {
        let mut services = Self {
            all: Vec::new(),
            left_out: 0,
            cpus: host::online_cpus(&roots)?.len(),
            hierarchies: Hierarchies::of(&roots),
            roots,
            names,
            max,
        };
        services.look_again()?;
        Ok(services)
    }

    /// Takes in what is new and lets go what has vanished; limits are read again. Those that are
    /// known stay, so that groups that come and go do not push out others.
    pub(crate) fn look_again(&mut self) -> Result<(), HostError> {
        self.hierarchies = Hierarchies::of(&self.roots);
        let found = host::service_groups(&self.hierarchies, &|group| self.names.of(group))?;
        let mut known: HashMap<String, Traced> = std::mem::take(&mut self.all)
            .into_iter()
            .map(|service| (service.found.group, service.traced))
            .collect();
        let (old, new): (Vec<_>, Vec<_>) = found
            .into_iter()
            .partition(|found| known.contains_key(&found.group));
        self.left_out = (old.len() + new.len()).saturating_sub(self.max);
        for found in old.into_iter().chain(new).take(self.max) {
            let traced = known.remove(&found.group).unwrap_or_default();
            // One that vanished since it was found is no error.
            if let Ok(service) = self.open(found, traced) {
                self.all.push(service);
            }
        }
        Ok(())
    }

    fn open(&self, found: ServiceGroup, traced: Traced) -> Result<Service, HostError> {
        let limit = host::tightest_quota_in(&self.hierarchies, &found.group)?;
        let other = limit
            .as_ref()
            .filter(|limit| limit.group != found.group)
            .map(|limit| CgroupReader::open_in(&self.hierarchies, &limit.group))
            .transpose()?;
        Ok(Service {
            usage: CgroupReader::open_in(&self.hierarchies, &found.group)?,
            limited: other,
            limit,
            found,
            traced,
        })
    }

    /// The threads of each service; those of one that has vanished are none.
    pub(crate) fn threads(&mut self, mut take: impl FnMut(u32, usize)) {
        for (number, service) in self.all.iter_mut().enumerate() {
            let threads = service.found.threads(&self.hierarchies).unwrap_or_default();
            service.traced.threads = threads.len();
            for thread in threads {
                take(thread, number);
            }
        }
    }

    /// Adds what the tracepoints saw in so many windows, which together took `seconds`.
    pub(crate) fn add(&mut self, seen: &[Group], windows: u64, seconds: f64) {
        for (service, seen) in self.all.iter_mut().zip(seen) {
            let cores = service.cores(self.cpus);
            let traced = &mut service.traced;
            traced.seconds += seconds;
            traced.runnable_s += seen.runnable_mean * seconds;
            traced.runnable_per_core = seen.runnable_mean / cores.max(1e-3);
            traced.waits += seen.waits;
            traced.waited_s += seen.waited_us / 1e6;
            if seen.windows_cores.is_empty() {
                traced.shares.add(windows, 0.0, cores);
            }
            for window in &seen.windows_cores {
                traced.shares.add(1, *window, cores);
            }
        }
    }
}
