//! What was seen of a group of threads.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::histogram::Cores;
use crate::limited_service::LimitedService;

/// What threads of one name did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadNameStats {
    /// The most threads of this name at one time.
    pub threads: usize,
    /// Processes that these threads belong to, as far as they are known; at the end.
    #[serde(default)]
    pub processes: usize,
    /// Threads that used at least a tenth of the CPU time of the busiest one; at the end.
    #[serde(default)]
    pub busy: usize,
    /// CPU time.
    pub cpu_us: f64,
    /// Times a thread of it got a CPU after waiting for one.
    pub waits: u64,
    /// Time it waited, summed.
    pub waited_us: f64,
    /// The longest wait.
    pub waited_max_us: f64,
    /// The most threads of it that wanted to run at once.
    pub runnable_max: usize,
    /// The most threads of it that woke within one window.
    pub woken_at_once_max: usize,
}

impl ThreadNameStats {
    /// A pool may be of processes, as cluster workers, PHP-FPM's children and PostgreSQL's backends
    /// are.
    #[must_use]
    pub fn is_of_processes(&self) -> bool {
        self.processes > 1
    }

    /// How many of the pool can work at once: its threads; of a pool of processes those that do
    /// something, or one in each process. Node.js has four threads or more in each process, which
    /// sleep.
    #[must_use]
    pub fn size(&self) -> usize {
        match self.is_of_processes() {
            true => self.processes.max(self.busy).min(self.threads),
            false => self.threads,
        }
    }

    /// What the pool is, for a sentence: `a pool of 8 processes named node (one busy thread each)`.
    #[must_use]
    pub fn describe(&self, name: &str) -> String {
        let (threads, processes, busy) = (self.threads, self.processes, self.busy);
        if !self.is_of_processes() {
            return format!("a pool of {threads} threads named {name}");
        }
        let inside = match busy {
            busy if busy == processes => "one busy thread each".to_owned(),
            busy => format!("{busy} busy threads of {threads}"),
        };
        format!("a pool of {processes} processes named {name} ({inside})")
    }
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// How long it was watched.
    pub duration_us: f64,
    /// CPU time of the group.
    pub cpu_us: f64,
    /// Cores in use over windows of 10 ms.
    pub cores: Cores,
    /// Time-averaged number of threads that ran or wanted to.
    pub runnable_mean: f64,
    /// The most of them at once.
    pub runnable_max: usize,
    /// CPUs on which threads of the group ran.
    #[serde(default)]
    pub cpus: usize,
    /// The part of the group's waiting, summed over its threads, in which one of these CPUs ran
    /// somebody else's thread instead: one such CPU keeps one thread waiting.
    #[serde(default)]
    pub waited_for_others_us: f64,
    /// Switches to threads of the group that were not seen, where no wake-up tells either when the
    /// thread got its CPU: kernels leave some out, mostly from idleness (`perf sched` calls them
    /// state machine bugs). Such a stretch is not counted.
    pub gaps: u64,
    /// By thread name.
    pub names: HashMap<String, ThreadNameStats>,
}

/// The jobs of the threads that were watched, as [`simulate`](crate::simulate) takes them, and how
/// long each took.
///
/// A service that is described in its place needs no more than `service`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// How long it was recorded.
    #[serde(default)]
    pub duration_us: f64,
    /// A pool for each thread name, the one that used most CPU time first.
    pub service: LimitedService,
    /// For each pool, the time from waking to sleeping again of each job that ended.
    #[serde(default)]
    pub latencies_us: Vec<Vec<f64>>,
    /// Jobs beyond [`JOBS_MAX`](super::JOBS_MAX), which are missing.
    #[serde(default)]
    pub left_out: u64,
}
