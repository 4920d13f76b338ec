//! What the scheduler's tracepoints say about a group of threads: cores in use, threads that want
//! to run, and how long they wait for a CPU, thread name by thread name.
//!
//! Pure: events come in with the kernel's time, findings go out. `sched_switch` and `sched_wakeup`
//! are exact where the group's own counters advance only with the scheduler's tick.

mod event;
mod observed;

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use rustc_hash::FxHashMap;

pub use self::event::{SchedEvent, SwitchOut};
pub use self::observed::{Observed, Recording, ThreadNameStats};
use crate::histogram::Cores;
use crate::limited_service::{Job, JobQueue, ThreadPool, Work};

/// A thread that used so much of what the busiest of its name did is busy.
const BUSY_SHARE: f64 = 0.1;
/// Jobs that are recorded at most, over all names.
pub const JOBS_MAX: usize = 1_000_000;
/// Names that are kept apart; further ones count as `(other)`.
pub const NAMES_MAX: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sleeping,
    Waiting { since_ns: u64 },
    Running,
}

/// Who runs on a CPU, since when.
#[derive(Clone, Copy, Debug)]
struct Running {
    thread: u32,
    since_ns: u64,
    /// Whether a thread of the group has run on this CPU.
    is_of_group: bool,
    /// Whether it has, and now somebody else does.
    is_taken: bool,
}

#[derive(Clone, Debug)]
struct Thread {
    name: usize,
    is_named: bool,
    /// Its process; 0 while it is not known.
    process: u32,
    cpu_ns: u64,
    state: State,
    /// Of its present job, while it does not sleep.
    woke_ns: u64,
    job_cpu_ns: u64,
}

impl Thread {
    fn new(name: usize, is_named: bool) -> Self {
        Self {
            name,
            is_named,
            process: 0,
            cpu_ns: 0,
            state: State::Sleeping,
            woke_ns: 0,
            job_cpu_ns: 0,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Name {
    sums: ThreadNameStats,
    /// Threads of now, and those of them that only have it from their parents so far.
    threads: usize,
    unnamed: usize,
    runnable: usize,
    woken: usize,
    window: u64,
    jobs: Vec<Job>,
    latencies_us: Vec<f64>,
}

impl Name {
    /// Counts the threads of now with those that have the name from their parents.
    fn count_all(&mut self) {
        self.sums.threads = self.sums.threads.max(self.threads);
    }
}

/// Follows the threads of a group.
#[derive(Clone, Debug)]
pub struct SchedTrace {
    start_ns: u64,
    now_ns: u64,
    threads: FxHashMap<u32, Thread>,
    names: Vec<Name>,
    name_numbers: HashMap<String, usize>,
    runnable: usize,
    runnable_max: usize,
    runnable_integral_ns: f64,
    cpu_ns: u64,
    cores: Cores,
    cpus: FxHashMap<usize, Running>,
    /// Threads that wait for a CPU.
    waiting: usize,
    /// CPUs that are taken.
    taken: usize,
    waited_for_others_ns: f64,
    gaps: u64,
    /// `None`: jobs are not recorded.
    room_for_jobs: Option<usize>,
    left_out: u64,
}

impl SchedTrace {
    /// Starts watching at `start_ns`, of a group of which no thread is known yet.
    #[must_use]
    pub fn new(start_ns: u64) -> Self {
        Self {
            start_ns,
            now_ns: start_ns,
            threads: FxHashMap::default(),
            names: Vec::new(),
            name_numbers: HashMap::new(),
            runnable: 0,
            runnable_max: 0,
            runnable_integral_ns: 0.0,
            cpu_ns: 0,
            cores: Cores::default(),
            cpus: FxHashMap::default(),
            waiting: 0,
            taken: 0,
            waited_for_others_ns: 0.0,
            gaps: 0,
            room_for_jobs: None,
            left_out: 0,
        }
    }

    /// As [`SchedTrace::new`], and every job is kept for [`SchedTrace::recording`].
    #[must_use]
    pub fn recorder(start_ns: u64) -> Self {
        Self {
            room_for_jobs: Some(JOBS_MAX),
            ..Self::new(start_ns)
        }
    }

    /// Takes a thread into the group, by the name that the kernel has for it; it counts as sleeping
    /// until an event says otherwise. One that was forked in the group, and counted by its parent's
    /// name, counts by its own instead.
    pub fn add(&mut self, thread: u32, name: &str) {
        if self.is_named(thread) {
            return;
        }
        let number = self.number_of(&pool_name(name));
        match self.threads.get_mut(&thread) {
            None => {
                self.threads.insert(thread, Thread::new(number, true));
            }
            Some(known) => {
                let before = std::mem::replace(&mut known.name, number);
                known.is_named = true;
                let runs = usize::from(known.state != State::Sleeping);
                self.names[before].threads -= 1;
                self.names[before].unnamed -= 1;
                self.names[before].runnable -= runs;
                self.names[number].runnable += runs;
            }
        }
        let name = &mut self.names[number];
        name.threads += 1;
        // Those without a name of their own may yet get another one.
        name.sums.threads = name.sums.threads.max(name.threads - name.unnamed);
    }

    /// Says which process a thread of the group belongs to.
    pub fn set_process(&mut self, thread: u32, process: u32) {
        if let Some(thread) = self.threads.get_mut(&thread) {
            thread.process = process;
        }
    }

    /// Counts each name's processes and busy threads.
    fn count_processes(&mut self) {
        let mut of_names: Vec<Vec<&Thread>> = vec![Vec::new(); self.names.len()];
        for thread in self.threads.values() {
            of_names[thread.name].push(thread);
        }
        for (name, threads) in self.names.iter_mut().zip(of_names) {
            let processes: HashSet<u32> = threads.iter().map(|thread| thread.process).collect();
            name.sums.processes = processes.iter().filter(|process| **process != 0).count();
            let most_ns = threads
                .iter()
                .map(|thread| thread.cpu_ns)
                .max()
                .unwrap_or(0);
            let least_ns = (BUSY_SHARE * most_ns as f64).max(1.0);
            let is_busy = |thread: &&&Thread| thread.cpu_ns as f64 >= least_ns;
            name.sums.busy = threads.iter().filter(is_busy).count();
        }
    }

    /// The threads of the group.
    pub fn threads(&self) -> impl Iterator<Item = u32> {
        self.threads.keys().copied()
    }

    /// Lets a thread go that has ended or left the group.
    pub fn forget(&mut self, thread: u32) {
        let on_cpu = self.cpus.iter().find(|(_, on)| on.thread == thread);
        let on_cpu = on_cpu.map(|(cpu, on)| (*cpu, on.since_ns));
        if let Some((_, since_ns)) = on_cpu {
            self.ran(thread, since_ns, self.now_ns);
        }
        let Some(gone) = self.threads.remove(&thread) else {
            return;
        };
        if let Some((cpu, _)) = on_cpu {
            self.put(cpu, thread, self.now_ns, true);
        }
        let name = &mut self.names[gone.name];
        if !gone.is_named {
            name.count_all();
            name.unnamed -= 1;
        }
        name.threads -= 1;
        if gone.state != State::Sleeping {
            name.runnable -= 1;
            self.runnable -= 1;
            self.waiting -= usize::from(gone.state != State::Running);
            self.record(gone.name, Job::of(&gone, self.start_ns), None);
        }
    }

    fn number_of(&mut self, name: &str) -> usize {
        let kept = if self.names.len() < NAMES_MAX || self.name_numbers.contains_key(name) {
            name
        } else {
            "(other)"
        };
        if let Some(number) = self.name_numbers.get(kept) {
            return *number;
        }
        let number = self.names.len();
        self.names.push(Name::default());
        self.name_numbers.insert(kept.to_owned(), number);
        number
    }

    /// Whether a thread belongs to the group by a name of its own.
    #[must_use]
    pub fn is_named(&self, thread: u32) -> bool {
        self.threads
            .get(&thread)
            .is_some_and(|thread| thread.is_named)
    }

    /// Takes in an event. Events come in order of time, up to the reordering between CPUs, which is
    /// cut off at zero length.
    pub fn take(&mut self, time_ns: u64, event: SchedEvent) {
        self.advance(time_ns);
        match event {
            SchedEvent::Switch {
                cpu,
                previous,
                left,
                next,
            } => {
                let was_of_group = self.threads.contains_key(&previous);
                let before = self.put(cpu, next, self.now_ns, was_of_group);
                let since_ns = match before {
                    None => self.start_ns,
                    Some(before) if before.thread == previous => before.since_ns,
                    Some(before) => self.bridge(previous, before.since_ns),
                };
                self.leave(previous, since_ns, left == SwitchOut::Runnable);
                if left == SwitchOut::Dead {
                    self.forget(previous);
                }
                self.enter(next);
            }
            SchedEvent::Wakeup { thread } => self.wake(thread),
            SchedEvent::Fork { parent, child } => {
                // One that is known was found in the group before its fork was read.
                if let Some(number) = self.threads.get(&parent).map(|thread| thread.name)
                    && let Entry::Vacant(vacant) = self.threads.entry(child)
                {
                    vacant.insert(Thread::new(number, false));
                    self.names[number].threads += 1;
                    self.names[number].unnamed += 1;
                }
            }
        }
        self.runnable_max = self.runnable_max.max(self.runnable);
    }

    fn advance(&mut self, time_ns: u64) {
        let time_ns = time_ns.max(self.now_ns);
        let passed_ns = (time_ns - self.now_ns) as f64;
        self.runnable_integral_ns += self.runnable as f64 * passed_ns;
        self.waited_for_others_ns += self.waiting.min(self.taken) as f64 * passed_ns;
        self.now_ns = time_ns;
    }

    /// Notes who runs on a CPU from now on; who did before.
    fn put(
        &mut self,
        cpu: usize,
        thread: u32,
        since_ns: u64,
        was_of_group: bool,
    ) -> Option<Running> {
        let before = self.cpus.get(&cpu).copied();
        let is_member = self.threads.contains_key(&thread);
        let is_of_group =
            is_member || was_of_group || before.is_some_and(|before| before.is_of_group);
        let is_taken = is_of_group && !is_member && thread != 0;
        self.taken += usize::from(is_taken);
        self.taken -= usize::from(before.is_some_and(|before| before.is_taken));
        let running = Running {
            thread,
            since_ns,
            is_of_group,
            is_taken,
        };
        self.cpus.insert(cpu, running)
    }

    /// When a thread got a CPU that had another one, or none, since `since_ns`, where the switch to
    /// it was not seen: when it was woken, if that was later. Otherwise nothing tells, and it
    /// counts as just now: giving it all the time since the CPU's last switch overstated the
    /// group's use by 40 % where this did by 3 % (a JVM at 0.4 cores, Linux 6.18).
    fn bridge(&mut self, id: u32, since_ns: u64) -> u64 {
        match self.threads.get(&id).map(|thread| thread.state) {
            Some(State::Waiting { since_ns: woken_ns }) if woken_ns >= since_ns => woken_ns,
            Some(_) => {
                self.gaps += 1;
                self.now_ns
            }
            None => since_ns,
        }
    }

    /// Says who runs on a CPU, to one who is not given the switches between strangers.
    pub(crate) fn set_on_cpu(&mut self, cpu: usize, thread: u32, since_ns: u64) {
        let since_ns = since_ns.max(self.start_ns);
        self.put(cpu, thread, since_ns, false);
    }

    fn wake(&mut self, id: u32) {
        let window = self.now_ns / crate::WINDOW_NS;
        let Some(thread) = self.threads.get_mut(&id) else {
            return;
        };
        if thread.state != State::Sleeping {
            return;
        }
        thread.state = State::Waiting {
            since_ns: self.now_ns,
        };
        thread.woke_ns = self.now_ns;
        thread.job_cpu_ns = 0;
        let name = &mut self.names[thread.name];
        if name.window != window {
            name.window = window;
            name.woken = 0;
        }
        name.woken += 1;
        name.sums.woken_at_once_max = name.sums.woken_at_once_max.max(name.woken);
        name.runnable += 1;
        name.sums.runnable_max = name.sums.runnable_max.max(name.runnable);
        self.runnable += 1;
        self.waiting += 1;
    }

    fn enter(&mut self, id: u32) {
        // A wake-up that was lost, or came before the watch began.
        self.wake(id);
        let Some(thread) = self.threads.get_mut(&id) else {
            return;
        };
        if let State::Waiting { since_ns } = thread.state {
            let waited_us = (self.now_ns - since_ns) as f64 / 1000.0;
            let sums = &mut self.names[thread.name].sums;
            sums.waits += 1;
            sums.waited_us += waited_us;
            sums.waited_max_us = sums.waited_max_us.max(waited_us);
            thread.state = State::Running;
            self.waiting -= 1;
        }
    }

    fn leave(&mut self, id: u32, since_ns: u64, is_runnable: bool) {
        // It ran since before the watch began, or its way onto the CPU was not seen.
        let was_asleep = self.is_asleep(id);
        self.wake(id);
        self.ran(id, since_ns, self.now_ns);
        let Some(thread) = self.threads.get_mut(&id) else {
            return;
        };
        if was_asleep {
            thread.woke_ns = since_ns;
        }
        self.waiting -= usize::from(thread.state != State::Running);
        if is_runnable {
            self.waiting += 1;
            thread.state = State::Waiting {
                since_ns: self.now_ns,
            };
        } else {
            thread.state = State::Sleeping;
            let (job, name) = (Job::of(thread, self.start_ns), thread.name);
            let latency_us = (self.now_ns - thread.woke_ns) as f64 / 1000.0;
            self.names[name].runnable -= 1;
            self.runnable -= 1;
            self.record(name, job, Some(latency_us));
        }
    }

    fn is_asleep(&self, id: u32) -> bool {
        let thread = self.threads.get(&id);
        thread.is_some_and(|thread| thread.state == State::Sleeping)
    }

    fn record(&mut self, name: usize, job: Job, latency_us: Option<f64>) {
        let Some(room) = &mut self.room_for_jobs else {
            return;
        };
        if *room == 0 {
            self.left_out += 1;
            return;
        }
        *room -= 1;
        self.names[name].jobs.push(job);
        self.names[name].latencies_us.extend(latency_us);
    }

    fn ran(&mut self, id: u32, from_ns: u64, to_ns: u64) {
        let Some(thread) = self.threads.get_mut(&id) else {
            return;
        };
        thread.job_cpu_ns += to_ns - from_ns;
        thread.cpu_ns += to_ns - from_ns;
        self.cpu_ns += to_ns - from_ns;
        self.names[thread.name].sums.cpu_us += (to_ns - from_ns) as f64 / 1000.0;
        self.cores
            .add(from_ns - self.start_ns, to_ns - self.start_ns);
    }

    /// As [`SchedTrace::finish`], with the cores in use in each whole window.
    #[must_use]
    pub fn finish_with_windows(mut self, end_ns: u64) -> (Observed, Vec<f64>) {
        self.close(end_ns);
        let windows = self
            .cores
            .windows_until(self.now_ns - self.start_ns)
            .collect();
        let end_ns = self.now_ns;
        (self.finish(end_ns), windows)
    }

    /// Cores in use in the last `count` windows before `end_ns`, oldest first; what still runs is
    /// not in it yet.
    #[must_use]
    pub fn recent_cores(&self, end_ns: u64, count: usize) -> Vec<f64> {
        let until_ns = end_ns.saturating_sub(self.start_ns);
        self.cores.last_windows(until_ns, count).collect()
    }

    /// What still runs is counted up to `end_ns`.
    fn close(&mut self, end_ns: u64) {
        self.advance(end_ns);
        let mut cpus = std::mem::take(&mut self.cpus);
        for running in cpus.values_mut() {
            self.ran(running.thread, running.since_ns, self.now_ns);
            running.since_ns = self.now_ns;
        }
        self.cpus = cpus;
    }

    /// The jobs so far; those that had not ended by `end_ns` with the CPU time that they took by
    /// then.
    #[must_use]
    pub fn recording(mut self, end_ns: u64) -> Recording {
        self.close(end_ns);
        let open: Vec<(usize, Job)> = self
            .threads
            .values()
            .filter(|thread| thread.state != State::Sleeping && thread.job_cpu_ns > 0)
            .map(|thread| (thread.name, Job::of(thread, self.start_ns)))
            .collect();
        for (name, job) in open {
            self.record(name, job, None);
        }
        self.names.iter_mut().for_each(Name::count_all);
        self.count_processes();
        let mut pools: Vec<(f64, ThreadPool, Vec<f64>)> = Vec::new();
        for (name, number) in std::mem::take(&mut self.name_numbers) {
            let of_name = &mut self.names[number];
            let mut jobs = std::mem::take(&mut of_name.jobs);
            if jobs.is_empty() {
                continue;
            }
            jobs.sort_by(|a, b| a.at_us.total_cmp(&b.at_us));
            Job::number_processes(&mut jobs);
            let pool = ThreadPool {
                name,
                threads: of_name.sums.size(),
                processes: of_name.sums.processes,
                setting: None,
                set_by: None,
                queue: JobQueue::Shared,
                work: Work::Recorded(jobs),
            };
            let latencies_us = std::mem::take(&mut of_name.latencies_us);
            pools.push((of_name.sums.cpu_us, pool, latencies_us));
        }
        pools.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.name.cmp(&b.1.name)));
        let mut recording = Recording {
            duration_us: (self.now_ns - self.start_ns) as f64 / 1000.0,
            left_out: self.left_out,
            ..Recording::default()
        };
        for (_, pool, latencies_us) in pools {
            recording.service.pools.push(pool);
            recording.latencies_us.push(latencies_us);
        }
        recording
    }

    /// Ends the watch.
    #[must_use]
    pub fn finish(mut self, end_ns: u64) -> Observed {
        self.close(end_ns);
        let end_ns = self.now_ns;
        let duration_ns = end_ns - self.start_ns;
        self.cores.close(duration_ns);
        self.names.iter_mut().for_each(Name::count_all);
        self.count_processes();
        let mut names = HashMap::new();
        for (name, number) in self.name_numbers {
            names.insert(name, std::mem::take(&mut self.names[number].sums));
        }
        Observed {
            duration_us: duration_ns as f64 / 1000.0,
            cpu_us: self.cpu_ns as f64 / 1000.0,
            cores: self.cores,
            runnable_mean: self.runnable_integral_ns / (duration_ns as f64).max(1.0),
            runnable_max: self.runnable_max,
            cpus: self.cpus.values().filter(|cpu| cpu.is_of_group).count(),
            waited_for_others_us: self.waited_for_others_ns / 1000.0,
            gaps: self.gaps,
            names,
        }
    }
}

/// What numbered threads of one pool have in common: `GC Thread#3` and `GC Thread#12` are both
/// `GC Thread#*`.
#[must_use]
pub fn pool_name(name: &str) -> Cow<'_, str> {
    let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    if stem.is_empty() || stem == name {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(format!("{stem}*"))
    }
}

impl Job {
    fn of(thread: &Thread, start_ns: u64) -> Self {
        Self {
            at_us: thread.woke_ns.saturating_sub(start_ns) as f64 / 1000.0,
            cpu_us: thread.job_cpu_ns as f64 / 1000.0,
            process: thread.process as usize,
        }
    }
}

#[cfg(test)]
mod tests;
