//! CPU time and context switches of a process and all its descendants, as counters that never go
//! backwards although processes and threads come and go.
//!
//! A process's own time is its CPU clock (nanoseconds, ended threads included); where that cannot
//! be read, the run time in `/proc/PID/task/*/schedstat`, corrected upwards by the 10 ms ticks in
//! `/proc/PID/stat`. The time of ended children is what their parent has waited for (`cutime`,
//! `cstime`, in ticks) or what was last seen of them, whichever is more: the former knows children
//! that lived between two readings, the latter those that nobody waited for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cgroup_tree::processes_below;
use crate::clock::process_cpu_ns;
use crate::cpu_time::{CpuTimes, Split};
use crate::error::HostError;
use crate::process::{Stat, all_pids, thread_ids};
use crate::roots::{Roots, read_text};

/// A clock tick as `/proc` counts: USER_HZ is 100 (include/asm-generic/param.h) on every
/// architecture Slackline runs on.
pub(crate) const TICK_NS: u64 = 10_000_000;

/// Counters since the processes started. Only differences mean something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessSample {
    /// CPU time of all, ended ones included.
    pub cpu: CpuTimes,
    /// Switches because a thread waited for something. Those of a thread after its last reading are
    /// not counted.
    pub voluntary_switches: u64,
    /// Switches because a thread was preempted.
    pub involuntary_switches: u64,
    /// Processes now.
    pub processes: usize,
    /// Threads now.
    pub threads: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    voluntary: u64,
    involuntary: u64,
    run_ns: u64,
}

/// Time with its parts, in nanoseconds; the parts are only good for a ratio.
#[derive(Clone, Copy, Debug, Default)]
struct Time {
    total_ns: u64,
    user_ns: u64,
    system_ns: u64,
}

impl Time {
    fn add(&mut self, other: Self) {
        self.total_ns += other.total_ns;
        self.user_ns += other.user_ns;
        self.system_ns += other.system_ns;
    }
}

#[derive(Clone, Debug, Default)]
struct Member {
    start_time: u64,
    parent: u32,
    own: Time,
    waited_for: Time,
    lost_children: Time,
    threads: BTreeMap<u32, Thread>,
    ended_threads: Thread,
    correction_ns: u64,
}

impl Member {
    /// Its own time and that of its ended children.
    fn time(&self) -> Time {
        let mut time = self.own;
        let is_waited_more = self.waited_for.total_ns >= self.lost_children.total_ns;
        time.add(if is_waited_more {
            self.waited_for
        } else {
            self.lost_children
        });
        time
    }
}

/// The proportional share of a process's memory, or its resident set.
fn memory_of(roots: &Roots, pid: u32) -> Option<u64> {
    let kib = |file: &str, key: &str| -> Option<u64> {
        let text = read_text(&roots.proc(format!("{pid}/{file}"))).ok()??;
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    let kib = kib("smaps_rollup", "Pss:").or_else(|| kib("status", "VmRSS:"))?;
    Some(kib * 1024)
}

#[derive(Clone, Debug)]
enum Root {
    Process(u32),
    Group(String),
}

/// A process and its descendants, or the processes of a control group. Reading often catches more
/// of short-lived threads' switches; CPU time is complete at any rate, to within one tick per ended
/// process.
#[derive(Clone, Debug)]
pub struct ProcessTree {
    root: Root,
    members: BTreeMap<u32, Member>,
    /// Of members whose parent was not there any more when they ended.
    orphans: Time,
    ended_voluntary: u64,
    ended_involuntary: u64,
    split: Split,
}

impl ProcessTree {
    /// The tree below `pid`; nothing is read yet.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        Self::below(Root::Process(pid))
    }

    /// The processes of a control group and of those below it; nothing is read yet.
    #[must_use]
    pub fn of_group(group: &str) -> Self {
        Self::below(Root::Group(group.to_owned()))
    }

    fn below(root: Root) -> Self {
        Self {
            root,
            members: BTreeMap::new(),
            orphans: Time::default(),
            ended_voluntary: 0,
            ended_involuntary: 0,
            split: Split::default(),
        }
    }

    /// Memory of the processes that the last reading found, in bytes: each page counts once, shared
    /// by the processes that map it (`Pss` of `smaps_rollup`, proc(5)). Where that cannot be read,
    /// the resident set counts. `None` where no process is left, or none can be read.
    #[must_use]
    pub fn memory_bytes(&self, roots: &Roots) -> Option<u64> {
        let known = self.members.keys().filter_map(|pid| memory_of(roots, *pid));
        let sum: u64 = known.sum();
        (sum > 0).then_some(sum)
    }

    /// Reads the counters.
    ///
    /// # Errors
    ///
    /// [`HostError::NoSuchProcess`] once the process itself is gone, [`HostError::Absent`] once the
    /// group is, [`HostError::Read`], [`HostError::Parse`].
    pub fn read(&mut self, roots: &Roots) -> Result<ProcessSample, HostError> {
        let alive = match &self.root {
            Root::Process(pid) => self.find(roots, *pid)?,
            Root::Group(group) => {
                let mut alive = BTreeMap::new();
                for pid in processes_below(roots, group)? {
                    // Processes end while the list is read.
                    alive.extend(Stat::read(roots, pid)?.map(|stat| (pid, stat)));
                }
                alive
            }
        };
        let mut vanished = Vec::new();
        self.members.retain(|pid, member| {
            let stays = alive
                .get(pid)
                .is_some_and(|stat| stat.start_time == member.start_time);
            if !stays {
                vanished.push((*pid, member.clone()));
            }
            stays
        });
        self.bury(vanished);
        let mut sample = ProcessSample::default();
        for (pid, stat) in &alive {
            let member = self.members.entry(*pid).or_insert_with(|| Member {
                start_time: stat.start_time,
                ..Member::default()
            });
            member.update(roots, *pid, stat);
            sample.threads += usize::try_from(stat.threads).unwrap_or(usize::MAX);
        }
        sample.processes = alive.len();
        let mut time = self.orphans;
        let (mut voluntary, mut involuntary) = (self.ended_voluntary, self.ended_involuntary);
        for member in self.members.values() {
            time.add(member.time());
            let (member_voluntary, member_involuntary) = member.switches();
            voluntary += member_voluntary;
            involuntary += member_involuntary;
        }
        sample.voluntary_switches = voluntary;
        sample.involuntary_switches = involuntary;
        sample.cpu = self.split.next(time.total_ns, time.user_ns, time.system_ns);
        Ok(sample)
    }

    /// The living members: descendants, and known ones whose parent has ended.
    fn find(&self, roots: &Roots, first: u32) -> Result<BTreeMap<u32, Stat>, HostError> {
        let gone = HostError::NoSuchProcess { pid: first };
        let Some(root) = Stat::read(roots, first)? else {
            return Err(gone);
        };
        if self
            .members
            .get(&first)
            .is_some_and(|known| known.start_time != root.start_time)
        {
            return Err(gone);
        }
        let mut others = BTreeMap::new();
        for pid in all_pids(roots)? {
            // Processes end while the list is read.
            if let Some(stat) = Stat::read(roots, pid)? {
                others.insert(pid, stat);
            }
        }
        let mut found = BTreeMap::from([(first, root)]);
        others.remove(&first);
        loop {
            let is_known = |pid: &u32, stat: &Stat| {
                self.members
                    .get(pid)
                    .is_some_and(|known| known.start_time == stat.start_time)
            };
            let next: Vec<u32> = others
                .iter()
                .filter(|(pid, stat)| found.contains_key(&stat.parent) || is_known(pid, stat))
                .map(|(pid, _)| *pid)
                .collect();
            if next.is_empty() {
                return Ok(found);
            }
            for pid in next {
                found.extend(others.remove(&pid).map(|stat| (pid, stat)));
            }
        }
    }

    /// Keeps the counters of members that have ended. Where a parent ended together with its child,
    /// the child's time goes up with the parent's.
    fn bury(&mut self, vanished: Vec<(u32, Member)>) {
        let mut left: BTreeMap<u32, Member> = vanished.into_iter().collect();
        // Children before parents: take one that is nobody's parent among those left.
        while let Some(pid) = left
            .keys()
            .copied()
            .find(|pid| !left.values().any(|other| other.parent == *pid))
            .or_else(
                // A cycle of parents cannot be (a reused pid could look like one).
                || left.keys().next().copied(),
            )
        {
            let Some(member) = left.remove(&pid) else {
                break;
            };
            let (voluntary, involuntary) = member.switches();
            self.ended_voluntary += voluntary;
            self.ended_involuntary += involuntary;
            let time = member.time();
            match left
                .get_mut(&member.parent)
                .or_else(|| self.members.get_mut(&member.parent))
            {
                Some(parent) => parent.lost_children.add(time),
                None => self.orphans.add(time),
            }
        }
    }
}

impl Member {
    fn update(&mut self, roots: &Roots, pid: u32, stat: &Stat) {
        self.parent = stat.parent;
        self.update_threads(roots, pid);
        let (user_ns, system_ns) = (stat.user_ticks * TICK_NS, stat.system_ticks * TICK_NS);
        let clock_ns = if roots.is_real() {
            process_cpu_ns(pid)
        } else {
            None
        };
        let fine_ns = clock_ns.unwrap_or_else(|| {
            self.ended_threads.run_ns
                + self
                    .threads
                    .values()
                    .map(|thread| thread.run_ns)
                    .sum::<u64>()
        });
        // Ticks are rounded down, so where they show more, threads have ended unseen.
        self.correction_ns = self
            .correction_ns
            .max((user_ns + system_ns).saturating_sub(fine_ns));
        let total_ns = self.own.total_ns.max(
            fine_ns
                + if clock_ns.is_some() {
                    0
                } else {
                    self.correction_ns
                },
        );
        self.own = Time {
            total_ns,
            user_ns,
            system_ns,
        };
        let (user_ns, system_ns) = (
            stat.children_user_ticks * TICK_NS,
            stat.children_system_ticks * TICK_NS,
        );
        self.waited_for = Time {
            total_ns: user_ns + system_ns,
            user_ns,
            system_ns,
        };
    }

    fn update_threads(&mut self, roots: &Roots, pid: u32) {
        let mut living = BTreeMap::new();
        for id in thread_ids(roots, pid).unwrap_or_default() {
            if let Some(thread) = read_thread(roots, pid, id) {
                living.insert(id, thread);
            }
        }
        for (id, old) in std::mem::take(&mut self.threads) {
            // A counter below the one before belongs to another thread with the same id.
            let is_same = living
                .get(&id)
                .is_some_and(|new| new.voluntary >= old.voluntary && new.run_ns >= old.run_ns);
            if !is_same {
                self.ended_threads.voluntary += old.voluntary;
                self.ended_threads.involuntary += old.involuntary;
                self.ended_threads.run_ns += old.run_ns;
            }
        }
        self.threads = living;
    }

    fn switches(&self) -> (u64, u64) {
        self.threads.values().fold(
            (self.ended_threads.voluntary, self.ended_threads.involuntary),
            |sum, thread| (sum.0 + thread.voluntary, sum.1 + thread.involuntary),
        )
    }
}

/// `None` where the thread has ended; a file that this kernel lacks counts as 0.
fn read_thread(roots: &Roots, pid: u32, id: u32) -> Option<Thread> {
    let status = read_text(&roots.proc(format!("{pid}/task/{id}/status"))).ok()??;
    let field = |name: &str| {
        let rest = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        rest.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
    };
    // Documentation/scheduler/sched-stats.rst: time on the CPU in ns, time waiting, slices.
    let schedstat = read_text(&roots.proc(format!("{pid}/task/{id}/schedstat")))
        .ok()
        .flatten()
        .unwrap_or_default();
    let run_ns = schedstat
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0);
    Some(Thread {
        voluntary: field("voluntary_ctxt_switches"),
        involuntary: field("nonvoluntary_ctxt_switches"),
        run_ns,
    })
}

#[cfg(test)]
mod tests;
