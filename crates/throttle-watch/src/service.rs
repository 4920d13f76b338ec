//! A service with its limit and its host: recorded, or read from a file, to be simulated.

use std::path::Path;
use std::time::{Duration, Instant};

use host::Roots;
use serde::{Deserialize, Serialize};
use throttle::advice::AdviceInput;
use throttle::{Limit, LimitedHost, LimitedService};
use tuner::process::Interrupt;

use crate::collect::{Collected, Jobs};
use crate::connections::ClientConnections;
use crate::error::ThrottleError;
use crate::runtimes;
use crate::say::Say;
use crate::target::{ServiceTarget, ensure_own_limit, group_of, named};
use crate::watch::observe_group;

/// A condition, and what is said where it does not hold.
macro_rules! ensure {
    ($condition:expr, $($reason:tt)*) => {
        let holds: bool = $condition;
        if !holds {
            return Err(format!($($reason)*));
        }
    };
}

/// A recording that lost more than this share of its switches says little about demands.
const MISSED_SHARE: f64 = 0.05;

/// When the connections are looked at again: few requests take as long. A choice of this crate.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The most CPU time a period, in µs (kernel/sched/sched.h, MAX_BW: 44 bits).
const QUOTA_MAX_US: u64 = (1 << 44) - 1;
/// The most threads of a host (include/linux/threads.h, PID_MAX_LIMIT).
const THREADS_MAX: usize = 4 << 20;
/// Jobs a second, beyond which the simulator takes hours. A choice of this crate.
const JOBS_PER_S_MAX: f64 = 1e6;

/// The most CPU time of a job, in µs: an hour, as long as a recording may be.
const DEMAND_MAX_US: f64 = 3.6e9;
/// The longest recording that is taken in, in µs: a day.
const DURATION_MAX_US: f64 = 8.64e10;

/// A service with its limit and host, recorded or described.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownService {
    host: LimitedHost,
    limit: Limit,
    // A `Recording`, field by field: flattened, it would let misspelt keys pass.
    #[serde(default)]
    duration_us: f64,
    service: LimitedService,
    #[serde(default)]
    latencies_us: Vec<Vec<f64>>,
    #[serde(default)]
    left_out: u64,
}

impl KnownService {
    /// Reads a recording, or a description in the same format.
    ///
    /// # Errors
    /// The file cannot be read, or does not describe a service that can be simulated.
    pub fn read(path: &Path) -> Result<Self, ThrottleError> {
        let text = std::fs::read_to_string(path).map_err(|source| ThrottleError::File {
            path: path.to_owned(),
            source,
        })?;
        let wrong = |source: serde_path_to_error::Error<serde_json::Error>| ThrottleError::Json {
            path: path.to_owned(),
            source: Box::new(source),
        };
        // The path of keys leads to the place; a line does not, where all is in one.
        let mut json = serde_json::Deserializer::from_str(&text);
        let known: Self = serde_path_to_error::deserialize(&mut json).map_err(wrong)?;
        json.end().map_err(|source| ThrottleError::Json {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        known.check().map_err(|reason| ThrottleError::Service {
            path: path.to_owned(),
            reason,
        })?;
        Ok(known)
    }

    /// Finds the group of a service, and records it for so many seconds.
    ///
    /// # Errors
    /// There is no such group, another group has the limit, or the tracepoints cannot be read.
    /// After a signal [`ThrottleError::Stopped`].
    pub fn record(
        target: &ServiceTarget,
        seconds: f64,
        interrupt: &Interrupt,
        say: Say<'_>,
    ) -> Result<(Self, String), ThrottleError> {
        let roots = Roots::default();
        let group = group_of(&roots, target)?;
        // Others may use it, too: their jobs belong to the recording.
        ensure_own_limit(&roots, &group, "for advice on")?;
        say(&format!("Recording {seconds} s of {}…", named(&group)));
        let pids = || host::processes_below(&roots, &group).unwrap_or_default();
        let mut connections = ClientConnections::default();
        connections.look(&roots, &pids());
        let mut looks_again_at = Some(Instant::now() + LOOK_AGAIN_AFTER);
        let mut goes_on = |_: &Collected| {
            if looks_again_at.is_some_and(|at| Instant::now() >= at) {
                looks_again_at = None;
                connections.look(&roots, &pids());
            }
            interrupt.signal().is_none()
        };
        let (report, collected) =
            observe_group(group.clone(), seconds, Jobs::Recorded, &mut goes_on, say)?;
        if let Some(signal) = interrupt.signal() {
            return Err(ThrottleError::Stopped { signal });
        }
        say(&report.verdict.sentence);
        let mut recording = collected.schedule.recording(collected.end_ns);
        let switches: u64 = report.observed.names.values().map(|by| by.waits).sum();
        let missed = report.observed.gaps + report.lost_events;
        if missed as f64 > MISSED_SHARE * switches as f64 {
            say(&format!(
                "{missed} of about {switches} switches were not seen: the jobs' CPU times are not exact."
            ));
        }
        let limit = report.limit.ok_or_else(|| ThrottleError::NoQuota {
            group: named(&group).to_owned(),
        })?;
        let pools = &mut recording.service.pools;
        connections.set_queues(&roots, pools);
        runtimes::name_worker_settings(&roots, &group, pools);
        let cores = limit.in_cores().unwrap_or(f64::INFINITY);
        runtimes::size_go_pools(&roots, &group, pools, cores, report.cpus);
        let known = Self {
            host: LimitedHost::new(report.cpus),
            limit,
            duration_us: recording.duration_us,
            service: recording.service,
            latencies_us: recording.latencies_us,
            left_out: recording.left_out,
        };
        Ok((known, group))
    }

    fn check(&self) -> Result<(), String> {
        ensure!(
            (1..=4096).contains(&self.host.cpus),
            "host.cpus must be between 1 and 4096"
        );
        ensure!(
            self.host.tick_us > 0 && self.host.turn_us > 0,
            "host.tick_us and host.turn_us must be above 0"
        );
        ensure!(
            (1000..=1_000_000).contains(&self.limit.period_us),
            "limit.period_us must be between 1000 and 1000000, as the kernel has it"
        );
        let quota_us = self.limit.quota_us.unwrap_or(0);
        ensure!(
            self.limit.quota_us.is_none() || (1000..=QUOTA_MAX_US).contains(&quota_us),
            "limit.quota_us must be between 1000 and {QUOTA_MAX_US}, as the kernel has it"
        );
        ensure!(
            self.limit.burst_us <= quota_us,
            "limit.burst_us may not be above limit.quota_us"
        );
        for (index, pool) in self.service.pools.iter().enumerate() {
            let at = || format!("service.pools[{index}] ({})", pool.name);
            ensure!(
                (1..=THREADS_MAX).contains(&pool.threads),
                "{}: threads must be above 0, and at most {THREADS_MAX}",
                at()
            );
            if let throttle::Work::Batches { every_us, .. } = &pool.work {
                ensure!(*every_us > 0.0, "{}: every_us must be above 0", at());
            }
            ensure!(
                (0.0..=JOBS_PER_S_MAX).contains(&jobs_per_s(&pool.work)),
                "{}: there may be 0 to {JOBS_PER_S_MAX} jobs a second",
                at()
            );
            ensure!(
                has_demands(&pool.work),
                "{}: the CPU time of a job must be between 0 and {DEMAND_MAX_US} µs",
                at()
            );
            if let throttle::Work::Recorded(jobs) = &pool.work {
                ensure!(
                    jobs.iter().all(|job| job.at_us >= 0.0),
                    "{}: at_us counts from the beginning: it must not be below 0",
                    at()
                );
                ensure!(
                    jobs.is_sorted_by(|a, b| a.at_us <= b.at_us),
                    "{}: the jobs must be in order of at_us",
                    at()
                );
                ensure!(
                    self.duration_us > 0.0 && self.duration_us <= DURATION_MAX_US,
                    "{}: recorded jobs need duration_us, above 0 and at most {DURATION_MAX_US}",
                    at()
                );
            }
        }
        Ok(())
    }

    /// What `throttle::advice` needs to know; without a name, of the pool of several threads that
    /// does most jobs.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn question(
        &self,
        pool: Option<&str>,
        objective_ms: Option<f64>,
    ) -> Result<AdviceInput<'_>, ThrottleError> {
        let pools = &self.service.pools;
        let names = || {
            let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
            names.join(", ")
        };
        let jobs = |index: &usize| match &pools[*index].work {
            throttle::Work::Recorded(jobs) => jobs.len() as f64,
            described => jobs_per_s(described),
        };
        let is_runtimes =
            |pool: &throttle::ThreadPool| throttle::RuntimePool::of(&pool.name).is_some();
        let index = match pool {
            Some(name) => pools
                .iter()
                .position(|pool| pool.name == name)
                .ok_or_else(|| ThrottleError::NoPool {
                    name: name.to_owned(),
                    known: names(),
                })?,
            // Requests are what the threads of a pool do most often; a single thread hands them
            // out.
            None => (0..pools.len())
                .max_by(|a, b| {
                    let key =
                        |index: &usize| pools[*index].threads > 1 && !is_runtimes(&pools[*index]);
                    key(a).cmp(&key(b)).then(jobs(a).total_cmp(&jobs(b)))
                })
                .ok_or(ThrottleError::NothingRan)?,
        };
        Ok(AdviceInput {
            service: &self.service,
            duration_us: self.duration_us,
            latencies_us: self.latencies_us.get(index).map_or(&[], Vec::as_slice),
            host: self.host,
            limit: self.limit,
            pool: index,
            objective_us: objective_ms.map(|ms| 1000.0 * ms),
            shards: None,
        })
    }
}

/// Of a described pool; a recorded one has what it had.
fn jobs_per_s(work: &throttle::Work) -> f64 {
    match work {
        throttle::Work::Recorded(_) => 0.0,
        throttle::Work::Random { per_s, .. } => *per_s,
        throttle::Work::Batches { every_us, jobs, .. } => *jobs as f64 * 1e6 / every_us,
    }
}

/// Whether each of a pool's jobs has a CPU time that can be simulated.
fn has_demands(work: &throttle::Work) -> bool {
    let is_demand = |us: f64| (0.0..=DEMAND_MAX_US).contains(&us);
    match work {
        throttle::Work::Recorded(jobs) => jobs.iter().all(|job| is_demand(job.cpu_us)),
        throttle::Work::Random { demand, .. } | throttle::Work::Batches { demand, .. } => {
            is_demand(demand.mean_us())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(change: &str, to: &str) -> String {
        let text = r#"{"host":{"cpus":4,"tick_us":1000,"turn_us":3000},
            "limit":{"quota_us":100000,"period_us":100000,"burst_us":0},
            "service":{"pools":[]}}"#;
        assert!(text.contains(change), "{change}");
        text.replace(change, to)
    }

    fn error_of(text: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("service.json");
        std::fs::write(&path, text).unwrap();
        let error = KnownService::read(&path).unwrap_err().to_string();
        error.replace(&path.display().to_string(), "FILE")
    }

    #[test]
    fn a_description_that_cannot_be_simulated_is_refused_with_its_key() {
        for (change, to, said) in [
            (
                "\"cpus\":4",
                "\"cpus\":0",
                "host.cpus must be between 1 and 4096",
            ),
            (
                "\"burst_us\":0",
                "\"burst_us\":100001",
                "limit.burst_us may not be above limit.quota_us",
            ),
            (
                "\"quota_us\":100000",
                "\"quota_us\":1",
                "limit.quota_us must be between 1000 and 17592186044415, as the kernel has it",
            ),
        ] {
            assert_eq!(error_of(&described(change, to)), format!("FILE: {said}"));
        }
        let misspelt = error_of(&described("\"limit\"", "\"limits\""));
        assert!(misspelt.starts_with("FILE: "), "{misspelt}");
        assert!(misspelt.contains("limits"), "{misspelt}");
    }

    #[test]
    fn without_a_pool_there_is_no_question() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("service.json");
        std::fs::write(&path, described("\"cpus\":4", "\"cpus\":4")).unwrap();
        let known = KnownService::read(&path).unwrap();
        let error = known.question(None, None).err().unwrap().to_string();
        assert_eq!(
            error,
            "no thread of the group ran: is the service under load?"
        );
        let error = known.question(Some("web"), None).err().unwrap().to_string();
        assert!(error.starts_with("no pool is named \"web\""), "{error}");
    }
}
