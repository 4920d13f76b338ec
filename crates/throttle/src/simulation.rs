//! A service under a CPU limit, event by event: CPUs with their run queues and ticks, pools of
//! threads, jobs that arrive whether or not the service keeps up, one by one or many at once
//! (garbage collection).
//!
//! What it leaves out, on purpose: neighbours, wake-up costs, caches, and weights within the group.
//! Its error against real runs is in `docs/results/`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand::Rng;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::bandwidth::{BandwidthPool as Bandwidth, Limit, SLACK_NS};
use crate::histogram::Cores;
use crate::limited_service::{Demand, JobQueue, LimitedHost, LimitedService, ThreadPool, Work};

/// What became of a simulated run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SimulationResult {
    /// For each pool, the time from arrival to end of each job, in order of their end.
    pub latencies_us: Vec<Vec<f64>>,
    /// For each pool, the time since its arrival of each job that had not ended when the run did.
    pub unfinished_us: Vec<Vec<f64>>,
    /// Quota periods, and those in which some CPU was throttled.
    pub periods: u64,
    /// See `periods`.
    pub throttled_periods: u64,
    /// Time that CPUs were throttled, summed over CPUs.
    pub throttled_us: f64,
    /// CPU time used.
    pub used_us: f64,
    /// Cores in use over windows of 10 ms.
    pub cores: Cores,
}

impl SimulationResult {
    /// A quantile of a pool's latencies; `None` where none of its jobs ended.
    #[must_use]
    pub fn latency_us(&self, pool: usize, quantile: f64) -> Option<f64> {
        paired_stats::quantile(self.latencies_us.get(pool)?, quantile)
    }
}

/// Runs `service` under `limit` for `duration_s` of simulated time; the first tenth counts for
/// nothing.
///
/// ```
/// use throttle::{Demand, JobQueue, LimitedHost, Limit, ThreadPool, LimitedService, Work, simulate};
/// let work = Work::Random { per_s: 100.0, demand: Demand::Fixed { cpu_us: 5000.0 } };
/// let queue = JobQueue::Shared;
/// let pools = vec![ThreadPool { name: "worker".into(), threads: 8, processes: 0, setting: None, set_by: None, queue, work }];
/// let service = LimitedService { pools };
/// let free = simulate(&service, &LimitedHost::new(4), &Limit::cores(4.0), 20.0, 1);
/// let tight = simulate(&service, &LimitedHost::new(4), &Limit::cores(0.6), 20.0, 1);
/// assert_eq!(free.throttled_periods, 0);
/// assert!(tight.throttled_periods > 0);
/// assert!(tight.latency_us(0, 0.99) > free.latency_us(0, 0.99));
/// ```
#[must_use]
pub fn simulate(
    service: &LimitedService,
    host: &LimitedHost,
    limit: &Limit,
    duration_s: f64,
    seed: u64,
) -> SimulationResult {
    let mut run = Run::new(service, host, limit, duration_s, seed);
    while run.step() {}
    run.finish()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    Refill,
    Slack,
    Tick(usize),
    /// The running thread of a CPU may be done; the number tells an outdated one.
    Done(usize, u64),
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    pool: usize,
    line: usize,
    remaining_ns: u64,
    arrived_ns: u64,
}

/// A queue of a pool, and the threads that take jobs from it.
#[derive(Clone, Debug)]
struct Line {
    idle_threads: usize,
    /// Jobs for which no thread was idle: arrival and CPU time.
    waiting: VecDeque<(u64, u64)>,
}

impl Line {
    /// One for the pool, or one for each of its processes.
    fn of(pool: &ThreadPool) -> Vec<Self> {
        let lines = match pool.queue {
            JobQueue::Shared => 1,
            JobQueue::PerProcess | JobQueue::PerConnection => {
                pool.processes.min(pool.threads).max(1)
            }
        };
        let line = |index: usize| Self {
            idle_threads: pool.threads / lines + usize::from(index < pool.threads % lines),
            waiting: VecDeque::new(),
        };
        (0..lines).map(line).collect()
    }

    /// The next job, and a thread for it, where there are both.
    fn begin(&mut self) -> Option<(u64, u64)> {
        if self.idle_threads == 0 {
            return None;
        }
        let job = self.waiting.pop_front()?;
        self.idle_threads -= 1;
        Some(job)
    }
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    running: Option<Thread>,
    queue: VecDeque<Thread>,
    throttled_since_ns: Option<u64>,
    /// Since when the running thread's time has not been counted, and since when it has its turn.
    counted_ns: u64,
    turn_ns: u64,
    /// Changes whenever another thread runs.
    number: u64,
    has_tick: bool,
}

struct Run<'a> {
    service: &'a LimitedService,
    host: &'a LimitedHost,
    bandwidth: Bandwidth,
    period_ns: u64,
    cpus: Vec<Cpu>,
    locals_ns: Vec<i64>,
    /// The queues of each pool.
    lines: Vec<Vec<Line>>,
    /// Of each pool, how many jobs have arrived.
    arrived: Vec<usize>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    now_ns: u64,
    end_ns: u64,
    warm_ns: u64,
    slack_is_due: bool,
    rng: ChaCha8Rng,
    outcome: SimulationResult,
}

impl<'a> Run<'a> {
    fn new(
        service: &'a LimitedService,
        host: &'a LimitedHost,
        limit: &Limit,
        duration_s: f64,
        seed: u64,
    ) -> Self {
        let end_ns = crate::rounded(duration_s * 1e9);
        let mut run = Self {
            service,
            host,
            bandwidth: Bandwidth::new(limit),
            period_ns: limit.period_us * 1000,
            cpus: vec![Cpu::default(); host.cpus],
            locals_ns: vec![0; host.cpus],
            lines: service.pools.iter().map(Line::of).collect(),
            arrived: vec![0; service.pools.len()],
            events: BinaryHeap::new(),
            sequence: 0,
            now_ns: 0,
            end_ns,
            warm_ns: end_ns / 10,
            slack_is_due: false,
            rng: ChaCha8Rng::seed_from_u64(seed),
            outcome: SimulationResult {
                latencies_us: vec![Vec::new(); service.pools.len()],
                ..SimulationResult::default()
            },
        };
        (0..service.pools.len()).for_each(|pool| run.next_arrival(pool));
        run.at(run.period_ns, Event::Refill);
        run
    }

    fn at(&mut self, after_ns: u64, event: Event) {
        self.sequence += 1;
        let time_ns = self.now_ns.saturating_add(after_ns);
        self.events.push(Reverse((time_ns, self.sequence, event)));
    }

    fn next_arrival(&mut self, pool: usize) {
        let after_ns = match &self.service.pools[pool].work {
            Work::Random { per_s, .. } if *per_s > 0.0 => {
                us_to_ns(exponential(&mut self.rng, 1e6 / per_s))
            }
            Work::Random { .. } => return,
            // The first batch comes at any time.
            Work::Batches { every_us, .. } if self.arrived[pool] == 0 => {
                us_to_ns(every_us * self.rng.random::<f64>())
            }
            Work::Batches { every_us, .. } => us_to_ns(*every_us),
            Work::Recorded(jobs) => match jobs.get(self.arrived[pool]) {
                Some(job) => us_to_ns(job.at_us).saturating_sub(self.now_ns),
                None => return,
            },
        };
        self.at(after_ns, Event::Arrival(pool));
    }

    /// Takes in the job, or the batch, that arrives now.
    fn arrive(&mut self, pool: usize) {
        let lines = self.lines[pool].len();
        let (jobs, demand) = match &self.service.pools[pool].work {
            Work::Random { demand, .. } => (1, demand),
            Work::Batches { jobs, demand, .. } => (*jobs, demand),
            Work::Recorded(jobs) => {
                let job = jobs.get(self.arrived[pool]);
                let demand_ns = job.map_or(1, |job| us_to_ns(job.cpu_us).max(1));
                // Where there are fewer processes than today, they share the connections.
                let line = job.map_or(0, |job| job.process % lines);
                self.arrived[pool] += 1;
                let waiting = &mut self.lines[pool][line].waiting;
                waiting.push_back((self.now_ns, demand_ns));
                return;
            }
        };
        for _ in 0..jobs {
            let demand_ns = draw_ns(demand, &mut self.rng);
            // A connection, and with it a process, at random.
            let line = match lines {
                1 => 0,
                lines => self.rng.random_range(0..lines),
            };
            let waiting = &mut self.lines[pool][line].waiting;
            waiting.push_back((self.now_ns, demand_ns));
        }
        self.arrived[pool] += jobs;
    }

    fn step(&mut self) -> bool {
        let Some(Reverse((time_ns, _, event))) = self.events.pop() else {
            return false;
        };
        if time_ns >= self.end_ns {
            return false;
        }
        self.now_ns = time_ns;
        match event {
            Event::Arrival(pool) => {
                self.arrive(pool);
                self.next_arrival(pool);
                self.serve(pool);
            }
            Event::Refill => {
                self.at(self.period_ns, Event::Refill);
                self.count_all();
                let released = self.bandwidth.refill(&mut self.locals_ns);
                self.release(released);
            }
            Event::Slack => {
                self.slack_is_due = false;
                let released = self.bandwidth.distribute(&mut self.locals_ns);
                self.release(released);
            }
            Event::Tick(cpu) => self.tick(cpu),
            Event::Done(cpu, number) => {
                if self.cpus[cpu].number == number {
                    self.count(cpu);
                    self.done(cpu);
                }
            }
        }
        true
    }

    /// Gives waiting jobs to idle threads.
    fn serve(&mut self, pool: usize) {
        for line in 0..self.lines[pool].len() {
            while let Some((arrived_ns, remaining_ns)) = self.lines[pool][line].begin() {
                self.wake(Thread {
                    pool,
                    line,
                    remaining_ns,
                    arrived_ns,
                });
            }
        }
    }

    /// An idle CPU if there is one, else the shortest queue: as `select_idle_sibling` and the load
    /// balancer would have it.
    fn wake(&mut self, thread: Thread) {
        let load = |cpu: &Cpu| {
            (
                cpu.throttled_since_ns.is_some(),
                cpu.queue.len() + usize::from(cpu.running.is_some()),
            )
        };
        let Some(cpu) = (0..self.cpus.len()).min_by_key(|&cpu| load(&self.cpus[cpu])) else {
            return;
        };
        self.cpus[cpu].queue.push_back(thread);
        if self.cpus[cpu].running.is_none() && self.cpus[cpu].throttled_since_ns.is_none() {
            self.run_next(cpu);
        }
    }

    /// Counts the time that a CPU's thread has run since it was last counted.
    fn count(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        let ran_ns = self.now_ns - state.counted_ns;
        let since_ns = std::mem::replace(&mut state.counted_ns, self.now_ns);
        if let Some(thread) = &mut state.running {
            thread.remaining_ns = thread.remaining_ns.saturating_sub(ran_ns);
            self.locals_ns[cpu] -= i64::try_from(ran_ns).unwrap_or(i64::MAX);
            if since_ns >= self.warm_ns {
                self.outcome.used_us += ran_ns as f64 / 1000.0;
                self.outcome
                    .cores
                    .add(since_ns - self.warm_ns, self.now_ns - self.warm_ns);
            }
        }
    }

    fn count_all(&mut self) {
        (0..self.cpus.len()).for_each(|cpu| self.count(cpu));
    }

    /// Takes the next thread of the CPU's queue, or of the longest other one; throttles or idles.
    fn run_next(&mut self, cpu: usize) {
        self.cpus[cpu].number += 1;
        self.cpus[cpu].counted_ns = self.now_ns;
        self.cpus[cpu].turn_ns = self.now_ns;
        if self.cpus[cpu].queue.is_empty() {
            let busiest = (0..self.cpus.len())
                .filter(|&other| self.cpus[other].throttled_since_ns.is_none())
                .max_by_key(|&other| self.cpus[other].queue.len());
            if let Some(stolen) = busiest.and_then(|busiest| self.cpus[busiest].queue.pop_back()) {
                self.cpus[cpu].queue.push_back(stolen);
            }
        }
        if self.cpus[cpu].queue.is_empty() {
            let mut local_ns = self.locals_ns[cpu];
            if self.bandwidth.give_back(&mut local_ns) && !self.slack_is_due {
                self.slack_is_due = true;
                self.at(SLACK_NS, Event::Slack);
            }
            self.locals_ns[cpu] = local_ns;
            return;
        }
        if self.locals_ns[cpu] <= 0 && !self.bandwidth.assign(&mut self.locals_ns[cpu]) {
            self.cpus[cpu].throttled_since_ns = Some(self.now_ns);
            self.bandwidth.throttle(cpu);
            return;
        }
        let Some(thread) = self.cpus[cpu].queue.pop_front() else {
            return;
        };
        self.cpus[cpu].running = Some(thread);
        self.at(thread.remaining_ns, Event::Done(cpu, self.cpus[cpu].number));
        if !self.cpus[cpu].has_tick {
            self.cpus[cpu].has_tick = true;
            let tick_ns = self.host.tick_us * 1000;
            // All CPUs share the clock's grid.
            self.at(tick_ns - self.now_ns % tick_ns, Event::Tick(cpu));
        }
    }

    fn tick(&mut self, cpu: usize) {
        self.count(cpu);
        let Some(thread) = self.cpus[cpu].running else {
            self.cpus[cpu].has_tick = false;
            return;
        };
        self.at(self.host.tick_us * 1000, Event::Tick(cpu));
        let has_runtime =
            self.locals_ns[cpu] > 0 || self.bandwidth.assign(&mut self.locals_ns[cpu]);
        let turn_is_over = self.now_ns - self.cpus[cpu].turn_ns >= self.host.turn_us * 1000
            && !self.cpus[cpu].queue.is_empty();
        if has_runtime && !turn_is_over {
            return;
        }
        self.cpus[cpu].running = None;
        if has_runtime {
            self.cpus[cpu].queue.push_back(thread);
        } else {
            self.cpus[cpu].queue.push_front(thread);
        }
        self.run_next(cpu);
    }

    fn done(&mut self, cpu: usize) {
        if let Some(thread) = self.cpus[cpu].running.take() {
            let pool = thread.pool;
            if thread.arrived_ns >= self.warm_ns {
                self.outcome.latencies_us[pool]
                    .push((self.now_ns - thread.arrived_ns) as f64 / 1000.0);
            }
            // The same thread goes on with the next job, on the CPU where it is.
            let line = &mut self.lines[pool][thread.line];
            match line.waiting.pop_front() {
                Some((arrived_ns, remaining_ns)) => self.cpus[cpu].queue.push_front(Thread {
                    remaining_ns,
                    arrived_ns,
                    ..thread
                }),
                None => line.idle_threads += 1,
            }
        }
        self.run_next(cpu);
    }

    fn release(&mut self, cpus: Vec<usize>) {
        for cpu in cpus {
            if let Some(since_ns) = self.cpus[cpu].throttled_since_ns.take() {
                let since_ns = since_ns.max(self.warm_ns);
                self.outcome.throttled_us += self.now_ns.saturating_sub(since_ns) as f64 / 1000.0;
            }
            self.run_next(cpu);
        }
    }

    fn finish(mut self) -> SimulationResult {
        self.outcome.periods = self.bandwidth.periods;
        self.outcome.throttled_periods = self.bandwidth.throttled_periods;
        let waiting = self.lines.iter().enumerate();
        let waiting = waiting.flat_map(|(pool, lines)| {
            let jobs = lines.iter().flat_map(|line| &line.waiting);
            jobs.map(move |job| (pool, job.0))
        });
        let threads = self
            .cpus
            .iter()
            .flat_map(|cpu| cpu.queue.iter().chain(&cpu.running));
        let begun = threads.map(|thread| (thread.pool, thread.arrived_ns));
        let mut unfinished_us = vec![Vec::new(); self.lines.len()];
        for (pool, arrived_ns) in waiting.chain(begun) {
            unfinished_us[pool].push((self.end_ns - arrived_ns) as f64 / 1000.0);
        }
        self.outcome.unfinished_us = unfinished_us;
        self.outcome.cores.close(self.end_ns - self.warm_ns);
        self.outcome
    }
}

fn us_to_ns(us: f64) -> u64 {
    crate::rounded(us * 1000.0)
}

fn draw_ns(demand: &Demand, rng: &mut ChaCha8Rng) -> u64 {
    let us = match demand {
        Demand::Fixed { cpu_us } => *cpu_us,
        Demand::Exponential { mean_us } => exponential(rng, *mean_us),
    };
    us_to_ns(us).max(1)
}

fn exponential(rng: &mut ChaCha8Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.random::<f64>()).ln()
}
