//! A watch of one group: the scheduler's tracepoints, given to [`throttle::Schedule`].

use std::time::{Duration, Instant};

use host::{HostError, Roots};
use throttle::{Observed, Schedule};

use super::tracepoints::{Tracepoints, monotonic_ns};

/// Pages of each CPU's buffer, as a power of two: 1 MiB holds about 10,000 switches.
const PAGES_LOG2: u32 = 8;
/// How often the buffers are emptied. A host of 50,000 switches a second fills half of one meanwhile.
const DRAIN_EVERY: Duration = Duration::from_millis(100);
/// How often threads that entered the group without being forked in it are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What was seen, and what was missed.
pub(crate) struct Collected {
    pub(crate) observed: Observed,
    /// Events that the kernel had no room for.
    pub(crate) lost: u64,
}

/// Watches the group for `duration`, or until `stop` says so.
pub(crate) fn collect(
    group: &str,
    duration: Duration,
    stop: &dyn Fn() -> bool,
) -> anyhow::Result<Collected> {
    let roots = Roots::default();
    let mut tracepoints = Tracepoints::open(&roots, PAGES_LOG2)?;
    let mut schedule = Schedule::new(monotonic_ns());
    look(&roots, group, &mut schedule)?;
    let (start, mut looked) = (Instant::now(), Instant::now());
    let mut end_ns = 0;
    while start.elapsed() < duration && !stop() {
        std::thread::sleep(DRAIN_EVERY.min(duration.saturating_sub(start.elapsed())));
        if looked.elapsed() > LOOK_EVERY {
            match look(&roots, group, &mut schedule) {
                Err(HostError::Absent { .. }) => {
                    crate::message(&format!(
                        "The control group {group} vanished after {:.1} s; what was seen until then:",
                        start.elapsed().as_secs_f64()
                    ));
                    end_ns = tracepoints.drain(|time_ns, event| schedule.take(time_ns, event));
                    break;
                }
                looked => looked?,
            }
            looked = Instant::now();
        }
        end_ns = tracepoints.drain(|time_ns, event| schedule.take(time_ns, event));
    }
    Ok(Collected {
        observed: schedule.finish(end_ns),
        lost: tracepoints.lost(),
    })
}

/// Takes in the threads that are in the group now.
fn look(roots: &Roots, group: &str, schedule: &mut Schedule) -> Result<(), HostError> {
    for thread in host::threads_below(roots, group)? {
        if !schedule.has(thread) {
            let name = std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
            schedule.add(thread, name.trim());
        }
    }
    Ok(())
}
