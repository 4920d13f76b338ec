//! The scheduler's tracepoints of all CPUs, put in order of time.

use host::Roots;
use perf_events::{Field, Record, Ring, Tracefs, TracepointFormat, TracepointSample};
use throttle::{SchedEvent, SwitchOut};

use crate::error::ThrottleError;

/// States of `prev_state` below TASK_REPORT_MAX; none of them means that the thread still wants to
/// run (include/linux/sched.h).
const NOT_RUNNABLE: u64 = 0xff;
/// Those that mean that it has ended, EXIT_DEAD and EXIT_ZOMBIE.
const DEAD: u64 = 0x30;

/// Switches, wake-ups and forks on every CPU.
pub struct Tracepoints {
    layout: Layout,
    rings: Vec<Ring>,
    /// Read, but not yet handed over.
    waiting: Vec<(u64, SchedEvent)>,
    lost: u64,
}

impl Tracepoints {
    /// Opens them; each CPU gets a buffer of 2^`pages_log2` pages. From here on events come.
    ///
    /// # Errors
    /// The CPUs cannot be read, or the kernel gives no tracepoints.
    pub fn open(roots: &Roots, pages_log2: u32) -> Result<Self, ThrottleError> {
        let layout = Layout::read()?;
        let tracepoints = [
            &layout.switch,
            &layout.wakeup,
            &layout.wakeup_new,
            &layout.fork,
        ];
        let cpus = host::online_cpus(roots)?;
        let rings = cpus
            .iter()
            .map(|cpu| Ring::open(*cpu, &tracepoints, pages_log2))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            layout,
            rings,
            waiting: Vec::new(),
            lost: 0,
        })
    }

    /// Stops the events, or lets them come again.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_enabled(&mut self, enabled: bool) -> Result<(), perf_events::Error> {
        self.rings
            .iter()
            .try_for_each(|ring| ring.set_enabled(enabled))
    }

    /// Hands over every event up to now, in order of time; the time up to which that is
    /// (CLOCK_MONOTONIC, ns).
    pub fn drain(&mut self, mut take: impl FnMut(u64, SchedEvent)) -> u64 {
        // Whatever happened before now is in the rings; what comes while they are emptied waits for
        // the next time.
        let end_ns = monotonic_ns();
        let (layout, waiting, lost) = (&self.layout, &mut self.waiting, &mut self.lost);
        for ring in &mut self.rings {
            ring.drain(|record| match record {
                Record::Sample(sample) => {
                    waiting.extend(layout.event(&sample).map(|event| (sample.time_ns, event)));
                }
                Record::Lost(count) => *lost += count,
                _ => {}
            });
        }
        waiting.sort_by_key(|(time_ns, _)| *time_ns);
        let due = waiting.partition_point(|(time_ns, _)| *time_ns <= end_ns);
        for (time_ns, event) in waiting.drain(..due) {
            take(time_ns, event);
        }
        end_ns
    }

    /// Events that the kernel had no room for.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

struct Layout {
    switch: TracepointFormat,
    previous: Field,
    state: Field,
    next: Field,
    wakeup: TracepointFormat,
    woken: Field,
    wakeup_new: TracepointFormat,
    woken_new: Field,
    fork: TracepointFormat,
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

    fn event(&self, sample: &TracepointSample<'_>) -> Option<SchedEvent> {
        let id = sample.id()?;
        let thread = |field: &Field| u32::try_from(field.unsigned(sample.raw)?).ok();
        if id == self.switch.id {
            let left = match self.state.unsigned(sample.raw)? & NOT_RUNNABLE {
                0 => SwitchOut::Runnable,
                state if state & DEAD != 0 => SwitchOut::Dead,
                _ => SwitchOut::Sleeping,
            };
            return Some(SchedEvent::Switch {
                cpu: usize::try_from(sample.cpu).ok()?,
                previous: thread(&self.previous)?,
                left,
                next: thread(&self.next)?,
            });
        }
        if id == self.wakeup.id {
            return Some(SchedEvent::Wakeup {
                thread: thread(&self.woken)?,
            });
        }
        if id == self.wakeup_new.id {
            return Some(SchedEvent::Wakeup {
                thread: thread(&self.woken_new)?,
            });
        }
        if id == self.fork.id {
            return Some(SchedEvent::Fork {
                parent: thread(&self.parent)?,
                child: thread(&self.child)?,
            });
        }
        None
    }
}

/// CLOCK_MONOTONIC, the clock of the events.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    number(now.tv_sec) * 1_000_000_000 + number(now.tv_nsec)
}
