//! A watch of one group: the scheduler's tracepoints, given to [`throttle::SchedTrace`].

use std::collections::HashSet;
use std::time::{Duration, Instant};

use host::{CgroupReader, CgroupSample, CpuTimes, HostError, Roots};
use throttle::{BandwidthCounters, SchedTrace};

use crate::error::ThrottleError;
use crate::say::Say;
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
    for thread in threads {
        if !schedule.is_named(thread) {
            let name = std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
            schedule.add(thread, name.trim());
            if let Some(process) = process_of(thread) {
                schedule.set_process(thread, process);
            }
        }
    }
    Ok(gone)
}

/// The process that a thread belongs to (proc_pid_status(5), `Tgid`).
fn process_of(thread: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
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

    #[test]
    fn without_cpu_time_the_periods_are_counted() {
        let found = difference(&sample(10, 0.0, None), &sample(30, 0.0, None));
        assert_eq!(
            (found.cpu_s, found.periods, found.throttled_periods),
            (None, 20, 10)
        );
    }
}
