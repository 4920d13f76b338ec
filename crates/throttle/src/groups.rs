//! Many groups followed at once, for a short time now and then: what an agent on every host can
//! afford.
//!
//! One [`SchedTrace`] for each group that does anything; each event goes to the groups whose
//! threads it names.

use rustc_hash::FxHashMap;

use crate::histogram::WINDOW_NS;
use crate::schedule::{SchedEvent, SchedTrace, SwitchOut};

/// Upper bounds of the classes of [`Shares`]: cores in use in a window of 10 ms, as a share of what
/// the group may use. Tenths up to the limit, beyond which windows throttle; Twitter's services
/// went to several times theirs.
pub const SHARE_BOUNDS: [f64; 18] = [
    0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0,
];

/// A histogram of cores in use over windows of 10 ms, as shares of the cores that the group may
/// use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    /// Windows by class; the last has no upper bound.
    pub counts: [u64; SHARE_BOUNDS.len() + 1],
    /// The sum of all shares.
    pub sum: f64,
}

impl Shares {
    /// Counts windows with so many cores in use, of `of` cores.
    pub fn add(&mut self, windows: u64, cores: f64, of: f64) {
        // What rounding of nanoseconds adds is no throttling.
        let share = cores / of.max(1e-3);
        let class = SHARE_BOUNDS.partition_point(|bound| share > bound + 1e-6);
        self.counts[class] += windows;
        self.sum += windows as f64 * share;
    }

    /// How many windows there are.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// What was seen of one group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Cores in use in each whole window; empty of a group that did nothing.
    pub windows_cores: Vec<f64>,
    /// CPU time.
    pub cpu_us: f64,
    /// Time-averaged number of threads that ran or wanted to.
    pub runnable_mean: f64,
    /// The most of them at once.
    pub runnable_max: usize,
    /// Times a thread got a CPU after waiting for one.
    pub waits: u64,
    /// Time they waited, summed.
    pub waited_us: f64,
}

/// Follows the threads of many groups, which are known by number.
#[derive(Clone, Debug)]
pub struct Groups {
    start_ns: u64,
    of_thread: FxHashMap<u32, usize>,
    /// Who runs on each CPU, since when.
    on_cpu: FxHashMap<usize, (u32, u64)>,
    schedules: Vec<Option<SchedTrace>>,
}

impl Groups {
    /// Starts watching `count` groups at `start_ns`.
    #[must_use]
    pub fn new(start_ns: u64, count: usize) -> Self {
        Self {
            start_ns,
            of_thread: FxHashMap::default(),
            on_cpu: FxHashMap::default(),
            schedules: vec![None; count],
        }
    }

    /// Takes a thread into a group; it counts as sleeping until an event says otherwise.
    pub fn add(&mut self, thread: u32, group: usize) {
        if group < self.schedules.len() {
            self.of_thread.insert(thread, group);
        }
    }

    /// Takes in an event. Events come in order of time.
    pub fn take(&mut self, time_ns: u64, event: SchedEvent) {
        match event {
            SchedEvent::Switch {
                cpu,
                previous,
                left,
                next,
            } => {
                let groups = [previous, next].map(|thread| self.of_thread.get(&thread).copied());
                let before = self.on_cpu.insert(cpu, (next, time_ns));
                let before = before.map(|(thread, since_ns)| (cpu, thread, since_ns));
                self.give(time_ns, event, groups[0], &[previous, next], before);
                if groups[1] != groups[0] {
                    self.give(time_ns, event, groups[1], &[next], before);
                }
                if left == SwitchOut::Dead {
                    self.of_thread.remove(&previous);
                }
            }
            SchedEvent::Wakeup { thread } => {
                let group = self.of_thread.get(&thread).copied();
                self.give(time_ns, event, group, &[thread], None);
            }
            SchedEvent::Fork { parent, child } => {
                if let Some(group) = self.of_thread.get(&parent).copied() {
                    self.of_thread.insert(child, group);
                }
            }
        }
    }

    /// `before`: which thread had which CPU since when.
    fn give(
        &mut self,
        time_ns: u64,
        event: SchedEvent,
        group: Option<usize>,
        threads: &[u32],
        before: Option<(usize, u32, u64)>,
    ) {
        let Some(group) = group else {
            return;
        };
        let schedule = self.schedules[group].get_or_insert_with(|| SchedTrace::new(self.start_ns));
        for thread in threads {
            if !schedule.is_named(*thread) && self.of_thread.get(thread) == Some(&group) {
                schedule.add(*thread, "");
            }
        }
        if let Some((cpu, thread, since_ns)) = before {
            schedule.set_on_cpu(cpu, thread, since_ns);
        }
        schedule.take(time_ns, event);
    }

    /// Ends the watch: what was seen of each group, in order of their numbers.
    #[must_use]
    pub fn finish(self, end_ns: u64) -> Vec<Group> {
        let schedules = self.schedules.into_iter();
        let group = |schedule: Option<SchedTrace>| {
            let Some(schedule) = schedule else {
                return Group::default();
            };
            let (observed, windows_cores) = schedule.finish_with_windows(end_ns);
            let waits = observed.names.values().map(|by| (by.waits, by.waited_us));
            let (waits, waited_us) =
                waits.fold((0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            Group {
                windows_cores,
                cpu_us: observed.cpu_us,
                runnable_mean: observed.runnable_mean,
                runnable_max: observed.runnable_max,
                waits,
                waited_us,
            }
        };
        schedules.map(group).collect()
    }

    /// Whole windows between the start and `end_ns`.
    #[must_use]
    pub fn windows(&self, end_ns: u64) -> u64 {
        end_ns.saturating_sub(self.start_ns) / WINDOW_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn switch(cpu: usize, previous: u32, next: u32) -> SchedEvent {
        SchedEvent::Switch {
            cpu,
            previous,
            left: SwitchOut::Sleeping,
            next,
        }
    }

    #[test]
    fn each_group_gets_what_its_threads_did() {
        let mut groups = Groups::new(0, 3);
        groups.add(1, 0);
        groups.add(2, 1);
        groups.take(0, SchedEvent::Wakeup { thread: 1 });
        groups.take(10 * MS, switch(0, 0, 1));
        // From a thread of one group straight to one of another.
        groups.take(20 * MS, switch(0, 1, 2));
        groups.take(40 * MS, switch(0, 2, 0));
        assert_eq!(groups.windows(50 * MS), 5);
        let seen = groups.finish(50 * MS);
        assert_eq!(seen[0].windows_cores, [0.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(seen[1].windows_cores, [0.0, 0.0, 1.0, 1.0, 0.0]);
        assert_eq!((seen[0].waits, seen[0].waited_us), (1, 10_000.0));
        assert!((seen[0].runnable_mean - 0.4).abs() < 1e-9);
        assert_eq!(seen[2], Group::default());
    }

    #[test]
    fn a_stretch_whose_beginning_was_not_seen_is_not_counted() {
        let mut groups = Groups::new(0, 1);
        groups.add(1, 0);
        groups.take(0, switch(0, 0, 1));
        groups.take(10 * MS, switch(0, 1, 0));
        // Strangers use the CPU; that 1 got it is not seen.
        groups.take(40 * MS, switch(0, 0, 7));
        groups.take(50 * MS, switch(0, 1, 0));
        let seen = groups.finish(100 * MS);
        assert_eq!(seen[0].cpu_us, 10_000.0);
    }

    #[test]
    fn children_join_their_parents_group() {
        let mut groups = Groups::new(0, 1);
        groups.add(1, 0);
        groups.take(
            0,
            SchedEvent::Fork {
                parent: 1,
                child: 9,
            },
        );
        groups.take(0, switch(1, 0, 9));
        groups.take(5 * MS, switch(1, 9, 0));
        let seen = groups.finish(10 * MS);
        assert_eq!((seen[0].cpu_us, seen[0].runnable_max), (5000.0, 1));
    }

    #[test]
    fn shares_are_classed_by_what_the_group_may_use() {
        let mut shares = Shares::default();
        shares.add(2, 0.5, 0.5);
        shares.add(1, 0.500_1, 0.5);
        shares.add(3, 0.0, 0.5);
        shares.add(1, 100.0, 0.5);
        assert_eq!(shares.counts[9], 2);
        assert_eq!(shares.counts[10], 1);
        assert_eq!((shares.counts[0], shares.counts[18]), (3, 1));
        assert_eq!(shares.windows(), 7);
    }
}
