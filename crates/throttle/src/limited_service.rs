//! A service under a CPU limit, as the simulation takes it: its host, its pools of threads, and
//! their jobs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The host under the group.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitedHost {
    /// CPUs that the group may use.
    pub cpus: usize,
    /// The scheduler's tick, which notices that runtime is used up: 4 ms at CONFIG_HZ=250.
    #[serde(default = "tick_us")]
    pub tick_us: u64,
    /// How long a thread runs before another one's turn (`base_slice_ns`, 3 ms).
    #[serde(default = "turn_us")]
    pub turn_us: u64,
}

impl LimitedHost {
    /// So many CPUs with Debian's and Ubuntu's tick, 250 Hz.
    #[must_use]
    pub fn new(cpus: usize) -> Self {
        Self {
            cpus,
            tick_us: tick_us(),
            turn_us: turn_us(),
        }
    }
}

fn tick_us() -> u64 {
    4000
}

fn turn_us() -> u64 {
    3000
}

/// CPU time that a piece of work takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Demand {
    /// Always the same.
    Fixed {
        /// CPU time.
        cpu_us: f64,
    },
    /// Exponential.
    Exponential {
        /// Its mean.
        mean_us: f64,
    },
}

impl Demand {
    /// Its mean, in microseconds.
    #[must_use]
    pub fn mean_us(&self) -> f64 {
        match self {
            Self::Fixed { cpu_us } => *cpu_us,
            Self::Exponential { mean_us } => *mean_us,
        }
    }
}

/// A pool of threads and its jobs, first come first served. A job is what a thread does from waking
/// to sleeping again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadPool {
    /// What its threads are called.
    pub name: String,
    /// How many there are.
    pub threads: usize,
    /// Processes that they belong to, where the pool is one of processes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub processes: usize,
    /// Where the service's owner sets their number, in words: `pm.max_children`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// The environment variable that says so to the program (Go's `GOMAXPROCS`), where one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_by: Option<String>,
    /// Who takes a job that waits.
    #[serde(default, skip_serializing_if = "JobQueue::is_shared")]
    pub queue: JobQueue,
    /// Their jobs.
    pub work: Work,
}

impl ThreadPool {
    /// Makes the pool as large as that; its processes keep their numbers of threads.
    pub(crate) fn resize(&mut self, threads: usize) {
        if self.processes > 1 {
            let processes = threads
                .saturating_mul(self.processes)
                .div_ceil(self.threads.max(1));
            self.processes = processes.max(1);
        }
        self.threads = threads;
    }
}

/// Which threads of a pool may take a job that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobQueue {
    /// Any that is idle: the processes accept a connection for each request, or the clients have
    /// their own pool of connections, one for each process.
    #[default]
    Shared,
    /// Those of one process: each process holds several connections, and their requests are its
    /// own, as with event loops.
    PerProcess,
    /// Those of one process, which serves a single connection as long as it is open. In a smaller
    /// pool, connections would wait for one another.
    PerConnection,
}

impl JobQueue {
    fn is_shared(&self) -> bool {
        *self == Self::Shared
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Where a pool's jobs come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Work {
    /// They arrive at random (Poisson).
    Random {
        /// Arrivals a second.
        per_s: f64,
        /// CPU time of one.
        demand: Demand,
    },
    /// Many come at once, again and again: a garbage collection, a flush, a request that fans out.
    Batches {
        /// Time from one batch to the next.
        every_us: f64,
        /// Jobs in a batch.
        jobs: usize,
        /// CPU time of one.
        demand: Demand,
    },
    /// They were recorded.
    Recorded(Vec<Job>),
}

impl Work {
    /// Mean CPU use over `duration_s`, in cores.
    #[must_use]
    pub fn mean_cores(&self, duration_s: f64) -> f64 {
        match self {
            Self::Random { per_s, demand } => per_s * demand.mean_us() / 1e6,
            Self::Batches {
                every_us,
                jobs,
                demand,
            } => *jobs as f64 * demand.mean_us() / every_us,
            Self::Recorded(jobs) => {
                jobs.iter().map(|job| job.cpu_us).sum::<f64>() / (1e6 * duration_s)
            }
        }
    }
}

/// A recorded job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// When a thread was woken for it, since the beginning.
    pub at_us: f64,
    /// CPU time that it took.
    pub cpu_us: f64,
    /// The process whose thread did it, counted from 0 within the pool.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub process: usize,
}

impl Job {
    /// Numbers the processes of a pool's jobs from 0, in the order of their ids. A process that is
    /// not known (0) comes last.
    pub(crate) fn number_processes(jobs: &mut [Self]) {
        let ids: BTreeSet<usize> = jobs.iter().map(|job| job.process).collect();
        let known = ids.into_iter().filter(|id| *id != 0);
        let numbers: BTreeMap<usize, usize> = known.zip(0..).collect();
        for job in jobs {
            job.process = numbers.get(&job.process).copied().unwrap_or(numbers.len());
        }
    }
}

/// A service: what runs in the group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitedService {
    /// Pools of threads and their jobs.
    pub pools: Vec<ThreadPool>,
}
