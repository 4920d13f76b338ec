//! The loop of one shard: reclaim, deliver, commands, timers, receive, run to completion, send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::api::{Application, Context, Event, Time};
use crate::backend::{Backend, Polled};
use crate::batch::{BatchController, BatchObservation, BatchPolicy};
use crate::error::Error;
use crate::groups::{GROUPS, GroupTable};
use crate::histogram::{Histogram, Snapshot, add};
use crate::idle::{IdlePolicy, IdleSpin, TRIAL, TRIALS, Wakes};
pub use crate::mailbox::{Command, Mailbox};
use crate::timers::Timers;

/// Turns between two steps of the batch controller: enough for a 99th percentile of turns.
const STEP_TURNS: u32 = 512;
/// Longest sleep, so that a shard's figures of idle time are never older.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Turns for which commands wait at most while events are pending: under a load that never ends, a
/// flow group could not leave otherwise.
const DEFERRED_TURNS_MAX: u32 = 4;

/// How a shard runs.
#[derive(Debug, Clone, Copy)]
pub struct ShardConfig {
    /// The shard's number, from 0.
    pub id: u8,
    /// The CPU to which the shard's thread is bound.
    pub cpu: Option<usize>,
    /// How the batch bound is chosen.
    pub batch: BatchPolicy,
    /// What the shard does while idle.
    pub idle: IdlePolicy,
}

impl Default for ShardConfig {
    fn default() -> Self {
        Self {
            id: 0,
            cpu: None,
            batch: BatchPolicy::Fixed(crate::batch::BOUND_MAX),
            idle: IdlePolicy::Learn,
        }
    }
}

/// Figures of one shard, written by its thread, read by any.
#[derive(Debug, Default)]
pub struct ShardStats {
    /// Events of each turn that had any.
    pub batch_events: Histogram,
    /// Length of a turn from its first event to its send, divided by its events, in nanoseconds.
    pub service_ns: Histogram,
    /// Time from arrival to answer of each event, in nanoseconds: from the poll before the event
    /// was seen to the end of the turn, and the wait of events that the bound left out.
    pub sojourn_ns: Histogram,
    /// The whole turn, in nanoseconds.
    pub turn_ns: Histogram,
    /// The batch bound now.
    pub bound: AtomicU64,
    /// Turns that reached the bound.
    pub full_turns: AtomicU64,
    /// Time spent in turns with events, in nanoseconds.
    pub busy_ns: AtomicU64,
    /// Time spent spinning, in nanoseconds.
    pub spin_ns: AtomicU64,
    /// Sleeps in the kernel.
    pub sleeps: AtomicU64,
    /// How long the shard spins now before it sleeps, in nanoseconds (`u64::MAX`: for ever).
    pub spin_limit_ns: AtomicU64,
    /// What a wake-up from a sleep takes, in nanoseconds.
    pub wake_ns: AtomicU64,
    /// Flows now.
    pub flows: AtomicU64,
    /// Flows that arrived from other shards.
    pub arrived: AtomicU64,
    /// Flows that went to other shards.
    pub departed: AtomicU64,
    /// New connections and frames that were handed over to the shard that owns their group.
    pub handed_over: AtomicU64,
    /// Those that this shard's mailbox had no room for.
    pub refused: AtomicU64,
}

/// The mailbox of a shard with backend `B` and application `A`.
pub type MailboxOf<B, A> = Mailbox<<B as Backend>::Transfer, <A as Application>::FlowState>;

/// What the shards of one program share: nothing on the way of a request.
pub struct Plane<B: Backend, A: Application> {
    /// Each shard's mailbox, by its number.
    pub mailboxes: Vec<MailboxOf<B, A>>,
    /// Each shard's figures.
    pub stats: Arc<Vec<ShardStats>>,
    /// Which shard owns each flow group.
    pub groups: GroupTable,
    /// Groups and flows that are on their way from one shard to another.
    moving: AtomicUsize,
    /// Whether each shard drains and has no flow.
    empty: Vec<AtomicBool>,
}

impl<B: Backend, A: Application> Plane<B, A> {
    /// A plane for `shards` shards, of which the first `active` own flow groups.
    ///
    /// # Errors
    /// The mailboxes cannot be made.
    pub fn new(shards: u8, active: u8) -> Result<Self, Error> {
        Self::with_groups(GROUPS, shards, active)
    }

    /// As [`Plane::new`], with `groups` flow groups: a backend may have its own.
    ///
    /// # Errors
    /// The mailboxes cannot be made.
    pub fn with_groups(groups: usize, shards: u8, active: u8) -> Result<Self, Error> {
        Ok(Self {
            mailboxes: (0..shards)
                .map(|_| Mailbox::new())
                .collect::<Result<_, _>>()?,
            stats: Arc::new((0..shards).map(|_| ShardStats::default()).collect()),
            groups: GroupTable::spread(groups, active.min(shards)),
            moving: AtomicUsize::new(0),
            empty: (0..shards).map(|_| AtomicBool::new(false)).collect(),
        })
    }

    /// Moves flow groups so that the first `active` shards own all of them. Nothing is lost: flows
    /// move when no event of theirs is pending. False if groups are still moving: then nothing is
    /// done.
    pub fn resize(&self, active: u8) -> bool {
        if self.is_moving() {
            return false;
        }
        for (group, to) in self.groups.moves_to(active) {
            let from = usize::from(self.groups.owner(group));
            if let Some(mailbox) = self.mailboxes.get(from) {
                self.moving.fetch_add(1, Ordering::AcqRel);
                // The shard itself changes the table, in order with its own accepts.
                let _ = mailbox.send(Command::Depart { group, to });
            }
        }
        true
    }

    /// Whether groups or flows are on their way from one shard to another.
    pub fn is_moving(&self) -> bool {
        self.moving.load(Ordering::Acquire) > 0
    }

    fn depart(&self, to: u8, command: Command<B::Transfer, A::FlowState>) {
        self.moving.fetch_add(1, Ordering::AcqRel);
        let _ = self.mailboxes[usize::from(to)].send(command);
    }

    fn arrived(&self, count: usize) {
        self.moving.fetch_sub(count, Ordering::AcqRel);
    }

    /// A shard that drains says whether it has no flow. Gives whether all may end. They end
    /// together: what one receives may be for another.
    fn may_end(&self, shard: u8, is_empty: bool) -> bool {
        self.empty[usize::from(shard)].store(is_empty, Ordering::Release);
        let all = is_empty
            && !self.is_moving()
            && self.empty.iter().all(|empty| empty.load(Ordering::Acquire));
        if all {
            self.mailboxes.iter().for_each(Mailbox::wake);
        }
        all
    }

    /// Tells all shards to end when their flows are gone, or after `deadline`.
    pub fn drain(&self, deadline: Duration) {
        for mailbox in &self.mailboxes {
            let _ = mailbox.send(Command::Drain(deadline));
        }
    }
}

/// One shard: a backend, an application, and the loop.
pub struct Shard<B: Backend, A: Application> {
    config: ShardConfig,
    backend: B,
    application: A,
    plane: Arc<Plane<B, A>>,
    timers: Timers,
    batch: BatchController,
    idle: IdleSpin,
    drain_until: Option<Time>,
    /// Group and taker of each departure that is under way.
    departures: Vec<(u16, u8)>,
    last_poll: Time,
    idle_since: Option<Time>,
    /// The shard slept since then.
    has_slept: bool,
    turns: u32,
    /// Turns since commands were looked at.
    deferred_turns: u32,
    step_base: StepBase,
}

/// The counts at the last step of the batch controller.
#[derive(Default)]
struct StepBase {
    sojourn: Snapshot,
    turn: Snapshot,
    full_turns: u64,
}

impl<B: Backend, A: Application> Shard<B, A> {
    /// A shard of `plane`, on the thread that is to be the shard: call [`Shard::run`] there, too.
    /// Everything that needs a privilege has happened afterwards.
    ///
    /// # Errors
    /// The CPU does not exist, or the mailbox cannot be watched.
    pub fn new(
        config: ShardConfig,
        mut backend: B,
        application: A,
        plane: Arc<Plane<B, A>>,
    ) -> Result<Self, Error> {
        if let Some(cpu) = config.cpu {
            bind(cpu)?;
        }
        backend.watch(plane.mailboxes[usize::from(config.id)].wake_fd())?;
        // The kernel may end a sleep up to 50 µs late to save wake-ups: longer than a turn. Where
        // it refuses, timers are that late.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        Ok(Self {
            config,
            backend,
            application,
            plane,
            timers: Timers::default(),
            batch: BatchController::new(config.batch),
            idle: IdleSpin::new(config.idle, Wakes::default()),
            drain_until: None,
            departures: Vec::new(),
            last_poll: Time::default(),
            idle_since: None,
            has_slept: false,
            turns: 0,
            deferred_turns: 0,
            step_base: StepBase::default(),
        })
    }

    /// Runs until the shard was told to drain and has done so. Gives back the application.
    ///
    /// # Errors
    /// The network is gone for good.
    pub fn run(mut self) -> Result<A, Error> {
        let plane = Arc::clone(&self.plane);
        let id = usize::from(self.config.id);
        let stats = &plane.stats[id];
        stats
            .bound
            .store(self.batch.bound() as u64, Ordering::Relaxed);
        self.time_wakes()?;
        stats.wake_ns.store(self.idle.wake_ns(), Ordering::Relaxed);
        self.last_poll = Time::now();
        self.with_context(self.last_poll, |application, context| {
            application.on_batch_end(context);
        });
        loop {
            let now = Time::now();
            let polled = self.backend.poll(self.batch.bound())?;
            let mut worked = polled.events > 0;
            self.deliver(now);
            worked |= self.expire(now);
            // A command waits while events are pending, so that a flow that moves has none.
            self.deferred_turns += 1;
            if polled.backlog == 0 || self.deferred_turns >= DEFERRED_TURNS_MAX {
                self.deferred_turns = 0;
                worked |= self.obey(&plane, now);
            }
            if worked {
                self.with_context(now, |application, context| {
                    application.on_batch_end(context);
                });
            }
            self.backend.flush()?;
            self.hand_over(&plane);
            if worked {
                self.account(stats, polled, now);
                self.last_poll = now;
            } else if self.rest(stats, now)? {
                // The turn after a sleep has waited for nothing.
                self.last_poll = Time::now();
            } else {
                self.last_poll = now;
            }
            if self.is_drained(&plane, self.last_poll) {
                self.backend.flush()?;
                return Ok(self.application);
            }
        }
    }

    /// Finds out what a wake-up takes, before there is anything to do.
    fn time_wakes(&mut self) -> Result<(), Error> {
        if self.config.idle != IdlePolicy::Learn {
            return Ok(());
        }
        for _ in 0..TRIALS {
            let before = Time::now();
            self.backend.sleep(Some(TRIAL))?;
            let end = Time::now();
            if end < before.after(TRIAL) {
                // Something arrived.
                return Ok(());
            }
            self.idle.woke(end.since_ns(before.after(TRIAL)));
        }
        Ok(())
    }

    fn deliver(&mut self, now: Time) {
        let Self {
            backend,
            application,
            timers,
            ..
        } = self;
        backend.deliver(&mut |event, calls| {
            application.on_event(event, &mut Context { calls, timers, now });
        });
    }

    fn with_context(&mut self, now: Time, act: impl FnOnce(&mut A, &mut Context<'_, B::Calls>)) {
        let mut context = Context {
            calls: self.backend.calls(),
            timers: &mut self.timers,
            now,
        };
        act(&mut self.application, &mut context);
    }

    fn expire(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(token) = self.timers.expired(now) {
            any = true;
            self.with_context(now, |application, context| {
                application.on_event(Event::Timer { token }, context);
            });
        }
        any
    }

    /// Carries out commands. At most one batch of them a turn.
    fn obey(&mut self, plane: &Plane<B, A>, now: Time) -> bool {
        let mailbox = &plane.mailboxes[usize::from(self.config.id)];
        let stats = &plane.stats[usize::from(self.config.id)];
        let mut any = false;
        for _ in 0..crate::batch::BOUND_MAX {
            let Some(command) = mailbox.take() else { break };
            any = true;
            match command {
                Command::Depart { group, to } => {
                    plane.groups.give(group, to);
                    self.backend.begin_departure(group);
                    self.departures.push((group, to));
                }
                Command::Arrive {
                    group,
                    transfer,
                    state,
                } => {
                    add(&stats.arrived, 1);
                    if let Some(flow) = self.backend.arrive(group, transfer) {
                        self.with_context(now, |application, context| {
                            application.attach(flow, state, context);
                        });
                    }
                    plane.arrived(1);
                }
                Command::Group { group, transfer } => {
                    self.backend.arrive_group(group, transfer);
                    plane.arrived(1);
                }
                Command::Knock { group, transfer } => {
                    // The group may have moved on meanwhile: hand_over sends the flow after it.
                    self.backend.knock(group, transfer);
                }
                Command::Batch(policy) => {
                    self.batch.set_policy(policy);
                    stats
                        .bound
                        .store(self.batch.bound() as u64, Ordering::Relaxed);
                }
                Command::Idle(policy) => self.idle = self.idle.clone().with_policy(policy),
                Command::Drain(time) => {
                    self.drain_until = Some(now.after(time));
                    self.backend.stop_listening();
                    self.with_context(now, |application, context| application.on_drain(context));
                }
            }
        }
        any
    }

    /// Sends flows that are free to leave, and connections of other shards' groups, on their way.
    fn hand_over(&mut self, plane: &Plane<B, A>) {
        while let Some((group, transfer)) = self.backend.take_foreign() {
            let owner = usize::from(plane.groups.owner(group));
            // A knock that finds the mailbox full is dropped: that closes a connection, or loses a
            // frame.
            add(&plane.stats[usize::from(self.config.id)].handed_over, 1);
            let knock = Command::Knock { group, transfer };
            if plane.mailboxes[owner].send(knock).is_some() {
                plane.stats[owner].refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        if self.departures.is_empty() {
            return;
        }
        while let Some((flow, group, transfer)) = self.backend.take_departed() {
            let state = self.application.detach(flow);
            let to = self.taker(plane, group);
            add(&plane.stats[usize::from(self.config.id)].departed, 1);
            plane.depart(
                to,
                Command::Arrive {
                    group,
                    transfer,
                    state,
                },
            );
        }
        while let Some((group, transfer)) = self.backend.take_departed_group() {
            let to = self.taker(plane, group);
            plane.depart(to, Command::Group { group, transfer });
        }
        if !self.backend.is_departing() {
            plane.arrived(self.departures.len());
            self.departures.clear();
        }
    }

    /// The shard that takes a departing group.
    fn taker(&self, plane: &Plane<B, A>, group: u16) -> u8 {
        let mut departures = self.departures.iter().rev();
        let departure = departures.find(|(moving, _)| *moving == group);
        departure.map_or_else(|| plane.groups.owner(group), |&(_, to)| to)
    }

    fn account(&mut self, stats: &ShardStats, polled: Polled, began: Time) {
        let end = Time::now();
        if let Some(since) = self.idle_since.take() {
            let has_slept = std::mem::take(&mut self.has_slept);
            self.idle.record(began.since_ns(since), has_slept);
        }
        let turn_ns = end.since_ns(began);
        add(&stats.busy_ns, turn_ns);
        if polled.events > 0 {
            let events = polled.events as u64;
            let each_ns = turn_ns / events;
            stats.batch_events.record(events, 1);
            stats.service_ns.record(each_ns, events);
            stats.turn_ns.record(turn_ns, 1);
            let waited_ns = end.since_ns(self.last_poll) + polled.backlog as u64 * each_ns;
            stats.sojourn_ns.record(waited_ns, events);
            if polled.events >= self.batch.bound() {
                add(&stats.full_turns, 1);
            }
        }
        stats
            .flows
            .store(self.backend.flows() as u64, Ordering::Relaxed);
        self.turns += 1;
        if self.turns >= STEP_TURNS {
            self.step(stats);
        }
    }

    fn step(&mut self, stats: &ShardStats) {
        let sojourn = stats.sojourn_ns.snapshot();
        let turn = stats.turn_ns.snapshot();
        let full_turns = stats.full_turns.load(Ordering::Relaxed);
        let full = full_turns.wrapping_sub(self.step_base.full_turns);
        let observation = BatchObservation {
            tail_ns: sojourn.since(&self.step_base.sojourn).quantile(0.99),
            turn_ns: turn.since(&self.step_base.turn).quantile(0.99),
            full_share: full as f64 / f64::from(self.turns),
        };
        let bound = self.batch.step(observation);
        stats.bound.store(bound as u64, Ordering::Relaxed);
        self.turns = 0;
        self.step_base = StepBase {
            sojourn,
            turn,
            full_turns,
        };
    }

    /// Nothing was done: spins on, or sleeps. Gives whether it slept.
    fn rest(&mut self, stats: &ShardStats, now: Time) -> Result<bool, Error> {
        let since = *self.idle_since.get_or_insert(now);
        let limit = self.idle.spin();
        let limit_ns = limit.map_or(u64::MAX, |limit| {
            u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
        });
        stats.spin_limit_ns.store(limit_ns, Ordering::Relaxed);
        let until = [self.timers.next(), self.drain_until]
            .into_iter()
            .flatten()
            .min();
        let is_due = until.is_some_and(|until| self.idle.spins_until(until.since_ns(now)));
        if now.since_ns(since) < limit_ns || is_due || self.backend.is_departing() {
            add(&stats.spin_ns, now.since_ns(self.last_poll));
            std::hint::spin_loop();
            return Ok(false);
        }
        let timeout = until.map_or(SLEEP_MAX, |until| {
            Duration::from_nanos(until.since_ns(now)).min(SLEEP_MAX)
        });
        stats
            .flows
            .store(self.backend.flows() as u64, Ordering::Relaxed);
        add(&stats.sleeps, 1);
        let before = Time::now();
        self.backend.sleep(Some(timeout))?;
        self.has_slept = true;
        let (end, due) = (Time::now(), before.after(timeout));
        if end > due {
            // Nothing came, and the timeout says when the sleep was to end.
            self.idle.woke(end.since_ns(due));
            stats.wake_ns.store(self.idle.wake_ns(), Ordering::Relaxed);
        }
        Ok(true)
    }

    fn is_drained(&mut self, plane: &Plane<B, A>, now: Time) -> bool {
        let Some(until) = self.drain_until else {
            return false;
        };
        if now >= until {
            self.backend.abort_all();
        }
        plane.may_end(self.config.id, self.backend.flows() == 0) || now >= until
    }
}

/// Binds the calling thread to a CPU.
///
/// # Errors
/// The CPU does not exist or may not be used.
pub fn bind(cpu: usize) -> Result<(), Error> {
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        let source = std::io::ErrorKind::InvalidInput.into();
        return Err(Error::Cpu { cpu, source });
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| Error::Cpu {
        cpu,
        source: error.into(),
    })
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
