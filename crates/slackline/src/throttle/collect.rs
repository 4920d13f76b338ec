//! A watch of one group: the scheduler's tracepoints, given to [`throttle::Schedule`].

use std::time::{Duration, Instant};

use host::{HostError, Roots};
use throttle::Schedule;

use super::tracepoints::{Tracepoints, monotonic_ns};

/// Pages of each CPU's buffer, as a power of two: 1 MiB holds about 10,000 switches.
const PAGES_LOG2: u32 = 8;
/// How often the buffers are emptied. A host of 50,000 switches a second fills half of one meanwhile.
const DRAIN_EVERY: Duration = Duration::from_millis(100);
/// How often threads that entered the group without being forked in it are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What was seen, and what was missed.
pub(crate) struct Collected {
    pub(crate) schedule: Schedule,
    /// The end of the watch, on the schedule's clock.
    pub(crate) end_ns: u64,
    /// Events that the kernel had no room for.
    pub(crate) lost: u64,
}

/// What is kept of each job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jobs {
    Summed,
    Recorded,
}

/// Watches the group for `duration`, or until `goes_on`, which sees everything so far every [`DRAIN_EVERY`], says no.
pub(crate) fn collect(
    group: &str,
    duration: Duration,
    jobs: Jobs,
    goes_on: &mut dyn FnMut(&Collected) -> anyhow::Result<bool>,
) -> anyhow::Result<Collected> {
    let roots = Roots::default();
    let mut tracepoints = Tracepoints::open(&roots, PAGES_LOG2)?;
    let start_ns = monotonic_ns();
    let mut seen = Collected {
        schedule: match jobs {
            Jobs::Summed => Schedule::new(start_ns),
            Jobs::Recorded => Schedule::recorder(start_ns),
        },
        end_ns: start_ns,
        lost: 0,
    };
    look(&roots, group, &mut seen.schedule)?;
    let (start, mut looked) = (Instant::now(), Instant::now());
    let mut is_there = true;
    while is_there && start.elapsed() < duration && goes_on(&seen)? {
        std::thread::sleep(DRAIN_EVERY.min(duration.saturating_sub(start.elapsed())));
        if looked.elapsed() > LOOK_EVERY {
            match look(&roots, group, &mut seen.schedule) {
                Err(HostError::Absent { .. }) => {
                    crate::message(&format!(
                        "The control group {group} vanished after {:.1} s; what was seen until then:",
                        start.elapsed().as_secs_f64()
                    ));
                    is_there = false;
                }
                looked => looked?,
            }
            looked = Instant::now();
        }
        seen.end_ns = tracepoints.drain(|time_ns, event| seen.schedule.take(time_ns, event));
        seen.lost = tracepoints.lost();
    }
    Ok(seen)
}

/// Takes in the threads that are in the group now.
fn look(roots: &Roots, group: &str, schedule: &mut Schedule) -> Result<(), HostError> {
    for thread in host::threads_below(roots, group)? {
        if !schedule.is_named(thread) {
            let name = std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
            schedule.add(thread, name.trim());
        }
    }
    Ok(())
}
