//! What the machine did to the generator and to the service: the nested checks beside each
//! request's times.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use host::{CgroupReader, HostError, MachineCpu, ProcessTree, Roots};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Others that used more than this share of the machine's CPU time …
const OTHERS: f64 = 0.1;
/// … while less than this share was left unused, were in the service's way. Choices of this crate.
const UNUSED: f64 = 0.2;

/// Who is loaded, where the service runs on this machine and is known. The generator then runs at
/// real-time priority, so that the service does not hold back its own load, and who else took CPU
/// is reckoned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ServiceOnHost {
    /// Not known, or elsewhere.
    #[default]
    Unknown,
    /// On this machine, with others that are not in its way though they use CPU, as where two
    /// services are compared.
    AmongOthers,
    /// All processes of a control group.
    Group(String),
    /// A process and its descendants.
    Process(u32),
}

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

/// What went over a thread's connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) received_bytes: u64,
    pub(crate) opened: u64,
    /// Requests that were sent a second time: the first connection was closed as idle meanwhile.
    pub(crate) resent: u64,
}

/// Counters of a thread and its machine at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// CPU time of the thread.
    pub(crate) cpu_ns: u64,
    /// How long the thread could have run and had no CPU.
    pub(crate) run_queue_ns: u64,
    pub(crate) machine: MachineCpu,
    /// CPU time of the service and of this process, where the service's group is known.
    pub(crate) known_s: Option<f64>,
}

/// Reads them, for the thread that made it.
#[derive(Debug)]
pub(crate) struct Sampler {
    roots: Roots,
    group: Option<CgroupReader>,
    schedstat: Option<File>,
}

impl Sampler {
    pub(crate) fn of(service: &ServiceOnHost) -> Result<Self, HostError> {
        let roots = Roots::default();
        let group = match service {
            ServiceOnHost::Group(group) => Some(CgroupReader::open(&roots, group)?),
            // To find all descendants takes too long for a thread that is to be on time.
            _ => None,
        };
        // Absent from kernels without CONFIG_SCHED_INFO.
        let schedstat = File::open(roots.proc("thread-self/schedstat")).ok();
        Ok(Self {
            roots,
            group,
            schedstat,
        })
    }

    /// How long the thread could have run in all, and had no CPU; 0 where the kernel does not tell,
    /// which accuses nobody.
    pub(crate) fn run_queue_ns(&self) -> u64 {
        // proc_pid_schedstat(5): time on a CPU, time waiting for one, in nanoseconds, and how often
        // it ran.
        let mut buffer = [0; 64];
        let Some(file) = &self.schedstat else {
            return 0;
        };
        let length = file.read_at(&mut buffer, 0).unwrap_or(0);
        let text = std::str::from_utf8(&buffer[..length]).unwrap_or_default();
        let number = text.split_ascii_whitespace().nth(1);
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// The counters now.
    pub(crate) fn read(&mut self) -> Sample {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let cpu = Duration::try_from(cpu).unwrap_or_default();
        let group = self.group.as_mut();
        let service_s = group.and_then(|group| Some(group.cpu().ok()?.total_s()));
        Sample {
            cpu_ns: u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX),
            run_queue_ns: self.run_queue_ns(),
            machine: MachineCpu::read(&self.roots).unwrap_or_default(),
            known_s: service_s.map(|service_s| service_s + host::own_cpu_s()),
        }
    }
}

impl Sample {
    /// Share of the machine's CPU time since `before` that the hypervisor took.
    pub(crate) fn stolen_share(&self, before: &Self) -> f64 {
        let cpus = self.machine.since(before.machine);
        cpus.stolen_s / cpus.all_s.max(f64::MIN_POSITIVE)
    }

    pub(crate) fn neighbours(&self, before: &Self) -> Option<Neighbours> {
        let known_s = self.known_s? - before.known_s?;
        Some(neighbours(self.machine.since(before.machine), known_s))
    }
}

fn neighbours(cpus: MachineCpu, known_s: f64) -> Neighbours {
    let all_s = cpus.all_s.max(f64::MIN_POSITIVE);
    Neighbours {
        used_share: ((cpus.used_s + cpus.stolen_s - known_s) / all_s).max(0.0),
        unused_share: cpus.idle_s / all_s,
    }
}

/// The counters at the start of a run.
pub(crate) struct Watch {
    roots: Roots,
    service: Option<ServiceReader>,
    service_s: f64,
    cpus: MachineCpu,
    own_s: f64,
}

enum ServiceReader {
    Group(CgroupReader),
    Processes(Box<ProcessTree>),
}

impl ServiceReader {
    /// Of a group of cgroup v1 that is in the hierarchy of cpu and not in that of cpuacct, the
    /// kernel counts no CPU time: then its processes are counted.
    fn of_group(roots: &Roots, group: &str) -> Result<Self, HostError> {
        let mut reader = CgroupReader::open(roots, group)?;
        match reader.cpu() {
            Err(HostError::Absent { .. }) => {
                let processes = ProcessTree::of_group(group);
                Ok(Self::Processes(Box::new(processes)))
            }
            cpu => cpu.map(|_| Self::Group(reader)),
        }
    }

    fn cpu_s(&mut self, roots: &Roots) -> Result<f64, HostError> {
        Ok(match self {
            Self::Group(group) => group.cpu()?.total_s(),
            Self::Processes(tree) => tree.read(roots)?.cpu.total_s(),
        })
    }
}

impl Watch {
    pub(crate) fn start(service: &ServiceOnHost) -> Result<Self, HostError> {
        let roots = Roots::default();
        let mut service = match service {
            ServiceOnHost::Unknown | ServiceOnHost::AmongOthers => None,
            ServiceOnHost::Group(group) => Some(ServiceReader::of_group(&roots, group)?),
            ServiceOnHost::Process(pid) => {
                Some(ServiceReader::Processes(Box::new(ProcessTree::of(*pid))))
            }
        };
        let service_s = service.as_mut().map(|service| service.cpu_s(&roots));
        Ok(Self {
            service_s: service_s.transpose()?.unwrap_or(0.0),
            cpus: MachineCpu::read(&roots).unwrap_or_default(),
            own_s: host::own_cpu_s(),
            service,
            roots,
        })
    }

    /// Who else used the CPUs, and the share that the hypervisor took.
    pub(crate) fn end(mut self) -> (Option<Neighbours>, f64) {
        let cpus = MachineCpu::read(&self.roots).unwrap_or_default();
        let cpus = cpus.since(self.cpus);
        let stolen_share = cpus.stolen_s / cpus.all_s.max(f64::MIN_POSITIVE);
        // A service that has ended meanwhile used what cannot be told any more.
        let service_s = self.service.as_mut().map(|it| it.cpu_s(&self.roots));
        let they = match service_s {
            Some(Ok(service_s)) => {
                let own_s = host::own_cpu_s() - self.own_s;
                Some(neighbours(cpus, service_s - self.service_s + own_s))
            }
            _ => None,
        };
        (they, stolen_share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_counts_no_cpu_time_is_counted_by_its_processes() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = dir.path().join("sys/fs/cgroup").join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        let roots = Roots::at(dir.path());
        assert!(ServiceReader::of_group(&roots, "web").is_err());
        write("cpu/web/cpu.stat", "nr_periods 0\n");
        write("cpu/web/cgroup.procs", "");
        write("cpuacct/cpuacct.usage", "1000000000\n");
        let mut reader = ServiceReader::of_group(&roots, "web").unwrap();
        assert!(matches!(reader, ServiceReader::Processes(_)));
        assert!(reader.cpu_s(&roots).unwrap().abs() < 1e-9);
        write("cpuacct/web/cpuacct.usage", "2000000000\n");
        write("cpuacct/web/cpuacct.stat", "user 150\nsystem 50\n");
        let mut reader = ServiceReader::of_group(&roots, "web").unwrap();
        assert!(matches!(reader, ServiceReader::Group(_)));
        assert!((reader.cpu_s(&roots).unwrap() - 2.0).abs() < 1e-9);
    }
}
