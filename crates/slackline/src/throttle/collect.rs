//! The scheduler's tracepoints, CPU by CPU, put in order of time and given to [`throttle::Schedule`].

use std::time::{Duration, Instant};

use anyhow::Context as _;
use host::Roots;
use perf_events::{Field, Format, Record, Ring, Sample, Tracefs};
use throttle::{Event, Observed, Schedule};

/// Pages of each CPU's buffer, as a power of two: 1 MiB holds about 10,000 switches.
const PAGES_LOG2: u32 = 8;
/// How often the buffers are emptied. A host of 50,000 switches a second fills half of one meanwhile.
const DRAIN_EVERY: Duration = Duration::from_millis(100);
/// How often threads that entered the group without being forked in it are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// States of `prev_state` below TASK_REPORT_MAX; none of them means that the thread still wants to run
/// (include/linux/sched.h).
const NOT_RUNNABLE: u64 = 0xff;

/// What was seen, and what was missed.
pub(crate) struct Collected {
    pub(crate) observed: Observed,
    /// Events that the kernel had no room for.
    pub(crate) lost: u64,
}

struct Layout {
    switch: Format,
    previous: Field,
    state: Field,
    next: Field,
    wakeup: Format,
    woken: Field,
    wakeup_new: Format,
    woken_new: Field,
    fork: Format,
    parent: Field,
    child: Field,
}

impl Layout {
    fn read() -> Result<Self, perf_events::Error> {
        let tracefs = Tracefs::open()?;
        let switch = tracefs.format("sched", "sched_switch")?;
        let wakeup = tracefs.format("sched", "sched_wakeup")?;
        let wakeup_new = tracefs.format("sched", "sched_wakeup_new")?;
        let fork = tracefs.format("sched", "sched_process_fork")?;
        Ok(Self {
            previous: switch.field("prev_pid")?,
            state: switch.field("prev_state")?,
            next: switch.field("next_pid")?,
            woken: wakeup.field("pid")?,
            woken_new: wakeup_new.field("pid")?,
            parent: fork.field("parent_pid")?,
            child: fork.field("child_pid")?,
            switch,
            wakeup,
            wakeup_new,
            fork,
        })
    }

    fn event(&self, sample: &Sample<'_>) -> Option<Event> {
        let id = sample.id()?;
        let thread = |field: &Field| u32::try_from(field.unsigned(sample.raw)?).ok();
        if id == self.switch.id {
            return Some(Event::Switch {
                cpu: usize::try_from(sample.cpu).ok()?,
                previous: thread(&self.previous)?,
                previous_is_runnable: self.state.unsigned(sample.raw)? & NOT_RUNNABLE == 0,
                next: thread(&self.next)?,
            });
        }
        if id == self.wakeup.id {
            return Some(Event::Wakeup {
                thread: thread(&self.woken)?,
            });
        }
        if id == self.wakeup_new.id {
            return Some(Event::Wakeup {
                thread: thread(&self.woken_new)?,
            });
        }
        if id == self.fork.id {
            return Some(Event::Fork {
                parent: thread(&self.parent)?,
                child: thread(&self.child)?,
            });
        }
        None
    }
}

/// Watches the group for `duration`, or until `stop` says so.
pub(crate) fn collect(
    group: &str,
    duration: Duration,
    stop: &dyn Fn() -> bool,
) -> anyhow::Result<Collected> {
    let roots = Roots::default();
    let layout = Layout::read()?;
    let tracepoints = [
        &layout.switch,
        &layout.wakeup,
        &layout.wakeup_new,
        &layout.fork,
    ];
    let cpus = host::online_cpus(&roots)?;
    let mut rings = cpus
        .iter()
        .map(|cpu| Ring::open(*cpu, &tracepoints, PAGES_LOG2))
        .collect::<Result<Vec<_>, _>>()?;
    let mut schedule = Schedule::new(monotonic_ns());
    look(&roots, group, &mut schedule)?;
    let (start, mut looked) = (Instant::now(), Instant::now());
    let mut waiting: Vec<(u64, Event)> = Vec::new();
    let mut lost = 0;
    let mut end_ns = 0;
    while start.elapsed() < duration && !stop() {
        std::thread::sleep(DRAIN_EVERY.min(duration.saturating_sub(start.elapsed())));
        if looked.elapsed() > LOOK_EVERY {
            look(&roots, group, &mut schedule)?;
            looked = Instant::now();
        }
        // Whatever happened before now is in the rings; what comes while they are emptied waits for the next time.
        end_ns = monotonic_ns();
        for ring in &mut rings {
            ring.drain(|record| match record {
                Record::Sample(sample) => {
                    waiting.extend(layout.event(&sample).map(|event| (sample.time_ns, event)));
                }
                Record::Lost(count) => lost += count,
                Record::Tick(_) | Record::Other => {}
            });
        }
        waiting.sort_by_key(|(time_ns, _)| *time_ns);
        let due = waiting.partition_point(|(time_ns, _)| *time_ns <= end_ns);
        for (time_ns, event) in waiting.drain(..due) {
            schedule.take(time_ns, event);
        }
    }
    Ok(Collected {
        observed: schedule.finish(end_ns),
        lost,
    })
}

/// Takes in the threads that are in the group now.
fn look(roots: &Roots, group: &str, schedule: &mut Schedule) -> anyhow::Result<()> {
    for thread in host::threads_below(roots, group).with_context(|| format!("cgroup {group}"))? {
        if !schedule.has(thread) {
            let name = std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
            schedule.add(thread, name.trim());
        }
    }
    Ok(())
}

fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    number(now.tv_sec) * 1_000_000_000 + number(now.tv_nsec)
}
