//! A watch of one group: the scheduler's tracepoints, given to [`throttle::SchedTrace`].

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use host::{CgroupReader, CgroupSample, CpuTimes, HostError, Roots};
use throttle::{BandwidthCounters, SchedTrace};

use crate::error::ThrottleError;
use crate::runtimes::words;
use crate::say::Say;
use crate::thread_status::ThreadStatus;
use crate::tracepoints::{Tracepoints, monotonic_ns};

/// Pages of each CPU's buffer, as a power of two: 1 MiB holds about 10,000 switches.
const PAGES_LOG2: u32 = 8;
/// How often the buffers are emptied. A host of 50,000 switches a second fills half of one
/// meanwhile.
const DRAIN_EVERY: Duration = Duration::from_millis(100);
/// How often threads that entered the group without being forked in it are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What was seen, and what was missed.
pub struct Collected {
    /// What the threads did.
    pub schedule: SchedTrace,
    /// The end of the watch, on the schedule's clock.
    pub end_ns: u64,
    /// Events that the kernel had no room for.
    pub lost: u64,
    /// What the limited group's counters advanced by meanwhile, where they can be read.
    pub counters: Option<BandwidthCounters>,
}

/// What is kept of each job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Jobs {
    /// Sums for each name of threads.
    Summed,
    /// Each job, so that the group can be simulated.
    Recorded,
}

/// Watches the group, and the counters of the one that limits it, for `duration`, or until
/// `goes_on`, which sees everything so far ten times a second, says no.
///
/// # Errors
/// The tracepoints cannot be read, or there is no such group at the beginning.
pub fn collect(
    group: &str,
    limited_by: &str,
    duration: Duration,
    jobs: Jobs,
    goes_on: &mut dyn FnMut(&Collected) -> bool,
    say: Say<'_>,
) -> Result<Collected, ThrottleError> {
    let roots = Roots::default();
    let mut tracepoints = Tracepoints::open(&roots, PAGES_LOG2)?;
    let mut limited = CgroupReader::open(&roots, limited_by).ok();
    let mut own = match group == limited_by {
        true => None,
        false => CgroupReader::open(&roots, group).ok(),
    };
    let mut sample = || {
        let limited = limited.as_mut()?.sample().ok()?;
        let own = own.as_mut().and_then(|own| own.sample().ok()?.cpu);
        Some(Sample { limited, own })
    };
    // At the moments between which the schedule is: the tracepoints take a tenth of a second to
    // open, and again to close.
    let before = sample();
    let start_ns = monotonic_ns();
    let mut seen = Collected {
        schedule: match jobs {
            Jobs::Summed => SchedTrace::new(start_ns),
            Jobs::Recorded => SchedTrace::recorder(start_ns),
        },
        end_ns: start_ns,
        lost: 0,
        counters: before.map(|before| difference(&before, &before)),
    };
    look(&roots, group, &mut seen.schedule)?;
    let (start, mut looked) = (Instant::now(), Instant::now());
    let (mut is_there, mut gone) = (true, Vec::new());
    while is_there && start.elapsed() < duration && goes_on(&seen) {
        std::thread::sleep(DRAIN_EVERY.min(duration.saturating_sub(start.elapsed())));
        if looked.elapsed() > LOOK_EVERY {
            match look(&roots, group, &mut seen.schedule) {
                Err(HostError::Absent { .. }) => {
                    say(&format!(
                        "The control group {group} vanished after {:.1} s; what was seen until then:",
                        start.elapsed().as_secs_f64()
                    ));
                    is_there = false;
                }
                looked => gone = looked?,
            }
            looked = Instant::now();
        }
        seen.counters = before
            .zip(sample())
            .map(|(before, now)| difference(&before, &now));
        seen.end_ns = tracepoints.drain(|time_ns, event| seen.schedule.take(time_ns, event));
        // Not earlier: what they did before they went was still to come.
        gone.drain(..)
            .for_each(|thread| seen.schedule.forget(thread));
        seen.lost = tracepoints.lost();
    }
    Ok(seen)
}

/// Takes in the threads that are in the group now; those that are no longer.
fn look(roots: &Roots, group: &str, schedule: &mut SchedTrace) -> Result<Vec<u32>, HostError> {
    let threads: HashSet<u32> = host::threads_below(roots, group)?.into_iter().collect();
    let gone = schedule.threads().filter(|known| !threads.contains(known));
    let gone = gone.collect();
    let new = threads.iter().filter(|thread| !schedule.is_named(**thread));
    let found: Vec<FoundThread> = new
        .map(|thread| FoundThread::read(roots, *thread))
        .collect();
    let beside = beside_workers(&found);
    for thread in &found {
        schedule.add(thread.id, &thread.name);
        let process = thread.status.map(|status| status.process);
        if let Some(process) = process.filter(|process| !beside.contains(process)) {
            schedule.set_process(thread.id, process);
        }
    }
    Ok(gone)
}

/// A thread that was found in the group.
struct FoundThread {
    id: u32,
    name: String,
    status: Option<ThreadStatus>,
    /// It is a process that serves no request, by its command line.
    is_helper: bool,
}

impl FoundThread {
    fn read(roots: &Roots, id: u32) -> Self {
        let read = |file: &str| std::fs::read(roots.proc(format!("{id}/{file}"))).ok();
        let name = read("comm").unwrap_or_default();
        let status = ThreadStatus::read(roots, id);
        let is_process = status.is_some_and(|status| status.process == id);
        let command = is_process.then(|| read("cmdline")).flatten();
        let command = words(&command.unwrap_or_default()).join(" ");
        Self {
            id,
            name: String::from_utf8_lossy(&name).trim().to_owned(),
            status,
            is_helper: throttle::is_helper(&command),
        }
    }
}

/// The processes that are no workers: helpers, and each one that has started several others of its
/// name, as the master of a pool of processes has. They are not counted with the pool.
fn beside_workers(found: &[FoundThread]) -> HashSet<u32> {
    let names: HashMap<u32, &str> = found.iter().map(|it| (it.id, it.name.as_str())).collect();
    let mut workers_of: HashMap<u32, usize> = HashMap::new();
    let mut beside = HashSet::new();
    for thread in found {
        let Some(status) = thread.status.filter(|status| status.process == thread.id) else {
            continue;
        };
        if thread.is_helper {
            beside.insert(thread.id);
        } else if names.get(&status.parent) == Some(&thread.name.as_str()) {
            *workers_of.entry(status.parent).or_default() += 1;
        }
    }
    beside.extend(
        workers_of
            .into_iter()
            .filter(|(_, workers)| *workers > 1)
            .map(|(master, _)| master),
    );
    beside
}

/// The counters of the group that has the limit, and the CPU time of the watched one, if that is
/// another.
#[derive(Clone, Copy)]
struct Sample {
    limited: CgroupSample,
    own: Option<CpuTimes>,
}

/// What the counters advanced by; one that went backwards (a group made anew) counts as not having
/// moved.
fn difference(before: &Sample, after: &Sample) -> BandwidthCounters {
    let used_s = |before: Option<CpuTimes>, after: Option<CpuTimes>| {
        let (before, after) = before.zip(after)?;
        Some((after.total_s() - before.total_s()).max(0.0))
    };
    let group_cpu_s = used_s(before.own, after.own);
    let (before, after) = (&before.limited, &after.limited);
    BandwidthCounters {
        cpu_s: used_s(before.cpu, after.cpu),
        group_cpu_s,
        periods: after.periods.saturating_sub(before.periods),
        throttled_periods: after
            .throttled_periods
            .saturating_sub(before.throttled_periods),
        throttled_s: (after.throttled_s - before.throttled_s).max(0.0),
        burst_s: (after.burst_s - before.burst_s).max(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a group that is limited itself.
    fn sample(periods: u64, throttled_s: f64, cpu: Option<CpuTimes>) -> Sample {
        let limited = CgroupSample {
            periods,
            throttled_periods: periods / 2,
            throttled_s,
            cpu,
            ..CgroupSample::default()
        };
        Sample { limited, own: None }
    }

    #[test]
    fn counters_that_went_backwards_count_as_not_having_moved() {
        let cpu = Some(CpuTimes::default());
        let (less, more) = (sample(10, 1.0, cpu), sample(30, 1.5, cpu));
        let found = difference(&less, &more);
        assert_eq!((found.periods, found.throttled_periods), (20, 10));
        let none = BandwidthCounters {
            cpu_s: Some(0.0),
            ..BandwidthCounters::default()
        };
        assert_eq!(difference(&more, &less), none);
    }

    fn process(id: u32, parent: u32, name: &str) -> FoundThread {
        FoundThread {
            id,
            name: name.to_owned(),
            status: Some(ThreadStatus {
                process: id,
                parent,
            }),
            is_helper: false,
        }
    }

    #[test]
    fn masters_and_helpers_are_no_workers() {
        let mut found = vec![
            process(10, 1, "gunicorn"),
            process(11, 10, "gunicorn"),
            process(12, 10, "gunicorn"),
            // A thread of a worker is no worker of its own.
            FoundThread {
                id: 13,
                ..process(11, 10, "gunicorn")
            },
            // Who starts a single one may work, too.
            process(20, 1, "app"),
            process(21, 20, "app"),
            // Who starts others of another name is in another pool.
            process(30, 1, "uvicorn"),
            process(31, 30, "python3"),
            process(32, 30, "python3"),
        ];
        assert_eq!(beside_workers(&found), [10].into());
        found.push(FoundThread {
            is_helper: true,
            ..process(33, 30, "python3")
        });
        assert_eq!(beside_workers(&found), [10, 33].into());
    }

    #[test]
    fn without_cpu_time_the_periods_are_counted() {
        let found = difference(&sample(10, 0.0, None), &sample(30, 0.0, None));
        assert_eq!(
            (found.cpu_s, found.periods, found.throttled_periods),
            (None, 20, 10)
        );
    }
}
