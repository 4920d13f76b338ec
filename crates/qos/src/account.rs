//! What a tenant has on a device. A tenant may have an instance on each thread, because its
//! connections do. All instances mint into one account and spend from it, so that the reservation
//! counts once, wherever the requests come in.
//!
//! Tokens are shared by the position on a scale, not by the time of a clock: how far a thread
//! raises [`Account::minted_ns`], so many tokens it mints. What two threads raise never overlaps.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::latency::{Counts, LatencyWindow};
use crate::word::Word;
use crate::{TenantSpec, tokens_of};

/// A latency-critical tenant may take back what it left to others in so long a time at most. A
/// shared disk can be slow for several seconds.
const LENT_MAX_NS: u64 = 10_000_000_000;
/// A latency-critical tenant's credit grows for at most so long between two visits.
const CREDIT_MAX_NS: u64 = 1_000_000_000;
/// A window of latencies is judged once it has so many reads and is so old.
const WINDOW_READS_MIN: i64 = 200;
const WINDOW_MIN_NS: i64 = 100_000_000;
/// An older window is judged with fewer.
const WINDOW_OLD_NS: i64 = 5_000_000_000;
const WINDOW_OLD_READS_MIN: i64 = 40;
/// After so long without a request the latencies before say nothing of the present.
const WINDOW_PAUSE_NS: i64 = WINDOW_OLD_NS;

/// A time as a position on a scale.
pub(crate) fn position(time_ns: u64) -> i64 {
    i64::try_from(time_ns).unwrap_or(i64::MAX)
}

/// Who has work, and what parked tenants leave to others: one word, so that a thread that parks the
/// account and one that unparks it agree on the reservation that they count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct State(u64);

impl State {
    const BUSY: u64 = 0xffff;
    const OWES: u64 = 1 << 16;
    const CRITICAL: u64 = 1 << 17;
    const RESERVED_SHIFT: u32 = 18;

    fn new(spec: &TenantSpec, reserved: u64) -> Self {
        let kind = match spec.objective {
            Some(_) => Self::CRITICAL,
            None => 0,
        };
        let most = u64::MAX >> Self::RESERVED_SHIFT;
        Self(reserved.min(most) << Self::RESERVED_SHIFT | kind)
    }

    /// The same reservation, for as many instances with work.
    fn with_busy_of(self, other: Self) -> Self {
        Self(self.0 | other.0 & Self::BUSY)
    }

    /// Instances with requests.
    fn busy(self) -> u64 {
        self.0 & Self::BUSY
    }

    /// Nobody has requests, and the tenant has given away what it does not need.
    pub(crate) fn is_parked(self) -> bool {
        self.0 & (Self::BUSY | Self::OWES) == 0
    }

    /// No debt is to be made good.
    pub(crate) fn is_settled(self) -> bool {
        self.0 & Self::OWES == 0
    }

    pub(crate) fn is_critical(self) -> bool {
        self.0 & Self::CRITICAL != 0
    }

    pub(crate) fn reserved(self) -> u64 {
        self.0 >> Self::RESERVED_SHIFT
    }
}

/// What only admissions look at.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) spec: TenantSpec,
    /// By which other threads find the account.
    pub(crate) name: Option<Box<str>>,
    pub(crate) instances: u32,
}

/// How far the device has come: millionths of tokens that each tenant has had since the start.
pub(crate) struct Scales {
    /// Beside its own, a latency-critical one; a best-effort one.
    pub(crate) spare: i64,
    pub(crate) best_effort: i64,
    /// When the first round was.
    pub(crate) began_ns: i64,
}

/// What tenants leave to others that want nothing on any thread.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    is_alone: bool,
    /// Reserved tokens a second. Two threads may add and subtract in the other order: the sums are
    /// below zero for a moment then.
    pub(crate) reserved: Word,
    pub(crate) critical: Word,
    pub(crate) best_effort: Word,
}

impl Parked {
    /// Nobody is parked. `is_alone`: one thread has the device to itself.
    pub(crate) fn new(is_alone: bool) -> Self {
        Self {
            is_alone,
            ..Self::default()
        }
    }

    /// Adds an account in this state to the sums, or subtracts it: `sign` is 1 or −1.
    pub(crate) fn count(&self, state: State, sign: i64) {
        if !state.is_parked() {
            return;
        }
        let number = match state.is_critical() {
            true => &self.critical,
            false => &self.best_effort,
        };
        number.add(self.is_alone, sign);
        if state.reserved() > 0 {
            let tokens = sign * position(state.reserved());
            self.reserved.add(self.is_alone, tokens);
        }
    }
}

/// A window that has been judged.
pub(crate) struct Judged {
    /// The percentile that says how the device is, in microseconds.
    pub(crate) seen_us: Option<f64>,
    /// The share of requests above the objective, times the window's length in seconds, of which
    /// the last second counts.
    pub(crate) late_s: f64,
    pub(crate) requests: u32,
}

/// What the instances of one tenant share. Tokens are in millionths.
#[derive(Debug)]
pub(crate) struct Account {
    is_alone: bool,
    book: Mutex<Book>,
    /// A [`State`]. Who changes it publishes, by release, what it wrote into the scales before: a
    /// thread that finds the account unparked, by acquire, must not mint the parked time again.
    state: AtomicU64,
    /// Latency-critical: up to which time the reservation has been minted.
    minted_ns: Word,
    /// Up to where the account has claimed the device's sum of spare tokens, and that of
    /// best-effort ones.
    spare_claimed: Word,
    best_effort_claimed: Word,
    /// Latency-critical: tokens in hand, negative in deficit.
    credit: Word,
    /// Latency-critical: what of its reservation others got and it may take back.
    lent: Word,
    in_deficit: AtomicBool,
    deficits: Word,
    /// In deficit at any time of the window.
    window_in_deficit: AtomicBool,
    window_ns: Word,
    /// When a request was last counted in a window.
    counted_ns: Word,
    /// Latencies from the arrival of the requests.
    latencies: Counts,
    /// Latency-critical: latencies from the submission to the device.
    on_device: OnceLock<Counts>,
    /// The bits of the last window's 95th percentile in microseconds; 0: none.
    p95_us: AtomicU64,
}

impl Account {
    /// An account without instances, which counts as parked: [`Parked::count`].
    pub(crate) fn new(
        is_alone: bool,
        (spec, name): (TenantSpec, Option<Box<str>>),
        reserved: u64,
        now_ns: u64,
    ) -> Self {
        let now = position(now_ns);
        let book = Book {
            spec,
            name,
            instances: 0,
        };
        Self {
            is_alone,
            book: Mutex::new(book),
            state: AtomicU64::new(State::new(&spec, reserved).0),
            minted_ns: Word::new(now),
            spare_claimed: Word::default(),
            best_effort_claimed: Word::default(),
            credit: Word::default(),
            lent: Word::default(),
            in_deficit: AtomicBool::new(false),
            deficits: Word::default(),
            window_in_deficit: AtomicBool::new(false),
            window_ns: Word::new(now),
            counted_ns: Word::new(now),
            latencies: Counts::default(),
            on_device: match spec.objective {
                Some(_) => OnceLock::from(Counts::default()),
                None => OnceLock::new(),
            },
            p95_us: AtomicU64::new(0),
        }
    }

    /// Who takes this lock has the device's already.
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> State {
        State(self.state.load(Acquire))
    }

    fn change(&self, parked: &Parked, change: impl Fn(State) -> State) {
        let mut before = self.state();
        loop {
            let after = change(before);
            if after == before {
                return;
            }
            if self.is_alone {
                self.state.store(after.0, Release);
            } else if let Err(now) = self
                .state
                .compare_exchange_weak(before.0, after.0, AcqRel, Acquire)
            {
                before = State(now);
                continue;
            }
            parked.count(before, -1);
            parked.count(after, 1);
            return;
        }
    }

    /// An instance has a first request.
    pub(crate) fn enter(&self, parked: &Parked, scales: &Scales, now_ns: u64) {
        let state = self.state();
        if state.is_parked() {
            // What was minted until now went to others. The scales come before the state.
            if state.is_critical() {
                // Before the device's first round nobody got anything.
                let began_ns = scales.began_ns.min(position(now_ns));
                self.minted_ns.raise(self.is_alone, began_ns);
                let since_ns = self.raise_to(now_ns);
                self.lend(tokens_of(state.reserved(), since_ns.min(LENT_MAX_NS)));
            }
            self.skip(scales);
        }
        self.change(parked, |state| State(state.0 + 1));
    }

    fn skip(&self, scales: &Scales) {
        self.spare_claimed.raise(self.is_alone, scales.spare);
        self.best_effort_claimed
            .raise(self.is_alone, scales.best_effort);
    }

    fn raise_to(&self, now_ns: u64) -> u64 {
        let now = position(now_ns);
        let before = self.minted_ns.raise(self.is_alone, now);
        now.saturating_sub(before).max(0).unsigned_abs()
    }

    /// An instance has no more requests. `owes`: the account stays unparked until it has made good
    /// a debt, which any instance may find ([`Account::settle`]).
    pub(crate) fn leave(&self, parked: &Parked, owes: bool) {
        self.change(parked, |state| {
            let debt = if owes { State::OWES } else { 0 };
            State((state.0 - 1) & !State::OWES | debt)
        });
    }

    pub(crate) fn settle(&self, parked: &Parked) {
        self.change(parked, |state| State(state.0 & !State::OWES));
    }

    /// Another objective, another price of it, or none. A debt is forgotten, and what was lent.
    pub(crate) fn become_tenant(
        &self,
        parked: &Parked,
        (spec, reserved): (&TenantSpec, u64),
        scales: &Scales,
        now_ns: u64,
    ) {
        self.credit.set(0);
        self.lent.set(0);
        self.raise_to(now_ns);
        self.skip(scales);
        self.in_deficit.store(false, Relaxed);
        if spec.objective.is_some() {
            self.on_device.get_or_init(Counts::default);
        }
        self.begin_window(position(now_ns));
        self.p95_us.store(0, Relaxed);
        self.reprice(parked, spec, reserved);
    }

    /// Another price of the same objective.
    pub(crate) fn reprice(&self, parked: &Parked, spec: &TenantSpec, reserved: u64) {
        let new = State::new(spec, reserved);
        self.change(parked, |state| new.with_busy_of(state));
    }

    /// The last instance is gone.
    pub(crate) fn end(&self, parked: &Parked) {
        parked.count(self.state(), -1);
    }

    /// Mints what the reservation makes until now, with the account's part of the spare tokens.
    /// Gives the credit.
    pub(crate) fn mint(&self, now_ns: u64, spare_sum: i64) -> i64 {
        let since_ns = self.raise_to(now_ns);
        let spare = spare_sum - self.spare_claimed.raise(self.is_alone, spare_sum);
        let minted = tokens_of(self.state().reserved(), since_ns.min(CREDIT_MAX_NS));
        self.credit.add(self.is_alone, minted + spare.max(0))
    }

    /// Takes at most `wanted` tokens of the credit above `floor`.
    pub(crate) fn spend(&self, wanted: i64, floor: i64) -> i64 {
        self.credit.take(self.is_alone, wanted, floor)
    }

    /// Adds to the credit, and gives it.
    pub(crate) fn earn(&self, tokens: i64) -> i64 {
        self.credit.add(self.is_alone, tokens)
    }

    pub(crate) fn credit(&self) -> i64 {
        self.credit.get()
    }

    /// Remembers what others got of the reservation.
    pub(crate) fn lend(&self, tokens: i64) {
        if tokens == 0 {
            return;
        }
        let most = tokens_of(self.state().reserved(), LENT_MAX_NS);
        let lend = |lent: i64| lent.saturating_add(tokens).min(most);
        self.lent.update(self.is_alone, lend);
    }

    /// Takes at most `wanted` of what was lent. What cannot be had goes back by [`Account::lend`].
    pub(crate) fn reclaim(&self, wanted: i64) -> i64 {
        self.lent.take(self.is_alone, wanted, 0)
    }

    /// An instance's part of the account's best-effort tokens. An instance that is the only one
    /// with requests takes all. Others take what they want of an even share, so that none starves,
    /// and what the account has beyond `saved_max`.
    pub(crate) fn claim(&self, best_effort_sum: i64, wanted: i64, saved_max: i64) -> i64 {
        let busy = position(self.state().busy());
        let claimed = |claimed: i64| {
            let there = (best_effort_sum - claimed).max(0);
            claimed
                + match busy {
                    0 | 1 => there,
                    busy => wanted
                        .clamp(0, there.min(there / busy + 1))
                        .max(there - saved_max),
                }
        };
        let (before, after) = self.best_effort_claimed.update(self.is_alone, claimed);
        after - before
    }

    /// Says that requests wait for tokens, or no longer do. True: that is new.
    pub(crate) fn set_in_deficit(&self, in_deficit: bool) -> bool {
        if in_deficit {
            self.window_in_deficit.store(true, Relaxed);
        }
        // Of two threads that see the change, one says it.
        let is_new = self.in_deficit() != in_deficit
            && self.in_deficit.swap(in_deficit, Relaxed) != in_deficit;
        if is_new && in_deficit {
            self.deficits.add(self.is_alone, 1);
        }
        is_new
    }

    pub(crate) fn in_deficit(&self) -> bool {
        self.in_deficit.load(Relaxed)
    }

    pub(crate) fn deficits(&self) -> u64 {
        self.deficits.get().unsigned_abs()
    }

    fn begin_window(&self, now: i64) {
        self.latencies.clear();
        if let Some(on_device) = self.on_device.get() {
            on_device.clear();
        }
        self.window_ns.set(now);
        self.window_in_deficit.store(self.in_deficit(), Relaxed);
    }

    /// Counts a latency. The thread whose request makes the window full judges it by the objective,
    /// with `scratch` to count in.
    pub(crate) fn completed(
        &self,
        now_ns: u64,
        (latency_ns, on_device_ns): (u64, u64),
        objective_us: f64,
        scratch: &mut LatencyWindow,
    ) -> Option<Judged> {
        let (is_alone, now) = (self.is_alone, position(now_ns));
        let counted = self.counted_ns.raise(is_alone, now);
        if now.saturating_sub(counted) >= WINDOW_PAUSE_NS {
            self.begin_window(now);
            self.p95_us.store(0, Relaxed);
        }
        self.latencies.record(is_alone, latency_ns);
        if let Some(on_device) = self.on_device.get() {
            on_device.record(is_alone, on_device_ns);
        }
        let (requests, since) = (self.latencies.count(), self.window_ns.get());
        let age = now.saturating_sub(since);
        let is_full = (requests >= WINDOW_READS_MIN && age >= WINDOW_MIN_NS)
            || (requests >= WINDOW_OLD_READS_MIN && age >= WINDOW_OLD_NS);
        if !is_full || self.window_ns.raise(is_alone, now) != since {
            return None;
        }
        self.latencies.drain(is_alone, scratch);
        let (p95_us, requests) = (scratch.p95_us(), scratch.count());
        self.p95_us.store(p95_us.unwrap_or(0.0).to_bits(), Relaxed);
        // Who asks for more than it reserved waits for its own tokens. That is no sign of a slow
        // device, but the time on the device is a sign.
        let mut seen = (p95_us, scratch.share_above(objective_us));
        if let Some(on_device) = self.on_device.get() {
            on_device.drain(is_alone, scratch);
            if self.window_in_deficit.load(Relaxed) {
                seen = (scratch.p95_us(), scratch.share_above(objective_us));
            }
        }
        self.window_in_deficit.store(self.in_deficit(), Relaxed);
        let (seen_us, late_share) = seen;
        Some(Judged {
            seen_us,
            late_s: late_share * (age as f64 / 1e9).min(1.0),
            requests,
        })
    }

    /// The 95th percentile in the last full window, in microseconds, if it is not too old.
    pub(crate) fn p95_us(&self, now_ns: u64) -> Option<f64> {
        let pause = position(now_ns).saturating_sub(self.counted_ns.get());
        let p95_us = f64::from_bits(self.p95_us.load(Relaxed));
        (p95_us > 0.0 && pause < WINDOW_PAUSE_NS).then_some(p95_us)
    }
}
