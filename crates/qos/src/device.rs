//! What the threads that serve one device share: the book of tenants behind a lock that only
//! admissions and a step every 100 ms take, and atomics for everything that a round needs.

mod control;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use self::control::Control;
use crate::account::{Account, Judged, Parked, Scales, position};
use crate::admission::Refused;
use crate::feedback::Seen;
use crate::notice::DeviceNotice;
use crate::word::Word;
use crate::{CalibrationDrift, DeviceModel, Objective, TenantSpec, rounded, tokens_of};

/// Schedulers of one device at most: one bit of a word each.
pub const THREADS_MAX: u32 = 64;

/// How often tokens are steered by the measured latency.
const STEP_NS: u64 = 100_000_000;
/// Steps between two lessons of the curve: a second.
const LESSON_STEPS: u32 = 10;
/// So long after the last write reads count as cheap: a flash device goes on working on writes
/// that it has answered.
const QUIET_NS: u64 = 1_000_000_000;
/// A best-effort tenant keeps the tokens of at most so long a pause between two rounds. Where there
/// is an objective, the objective is the limit: a longer burst alone would break it.
const PAUSE_MAX_NS: u64 = 10_000_000;
/// The least of those limits: a thread cannot be expected to run rounds more often.
const PAUSE_MIN_NS: u64 = 200_000;

/// A device, shared by the schedulers of its threads.
#[derive(Debug)]
pub struct SharedDevice {
    /// Schedulers at most. One alone needs no atomic operations.
    threads_max: u32,
    control: Mutex<Control>,
    /// Tokens a second of a best-effort tenant; of a latency-critical one beside its own.
    best_effort_each: AtomicU64,
    spare_each: AtomicU64,
    is_limited: AtomicBool,
    pause_ns: AtomicU64,
    /// Number of best-effort tenants.
    best_effort: Word,
    /// Millionths of tokens that anybody may take.
    bucket: Word,
    minted_ns: Word,
    /// When the first round was; `i64::MAX`: there was none.
    began_ns: Word,
    /// Millionths of tokens of the last mint for best-effort tenants with requests. The next mint
    /// hands them out. Until then latency-critical tenants of any thread may take back from them.
    income: Word,
    /// Millionths of tokens that a best-effort tenant has had since the start; that a
    /// latency-critical one has had beside its own.
    best_effort_sum: Word,
    spare_sum: Word,
    pub(crate) parked: Parked,
    /// A bit for each scheduler; for those with work; for those that ran a round since the bucket
    /// was emptied.
    members: AtomicU64,
    busy: AtomicU64,
    ran: AtomicU64,
    step_at_ns: AtomicU64,
    /// When somebody last wrote, to within a fraction of the time that counts as quiet.
    written_at_ns: AtomicU64,
    is_quiet: AtomicBool,
    /// Worst ratio of 95th percentile to objective since the last step, in millionths; 0: none.
    worst: AtomicU64,
    /// The most of a second's requests above the objective since the last step, in millionths.
    late: AtomicU64,
    /// Number of reads and their 95th percentile in microseconds, of the fullest window.
    lesson: AtomicU64,
    spent_tokens: Word,
}

/// How a device fares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceFigures {
    /// Tokens a second that are given out; `None`: nothing is limited, because no tenant has an
    /// objective.
    pub tokens_per_s: Option<u64>,
    /// Tokens a second that latency-critical tenants reserved.
    pub reserved_tokens_per_s: u64,
    /// Tokens a second of each best-effort tenant.
    pub best_effort_each_tokens_per_s: u64,
    /// Latency-critical tenants.
    pub latency_critical: u32,
    /// Best-effort tenants.
    pub best_effort: u32,
    /// The strictest objective, in microseconds.
    pub strictest_us: Option<u32>,
    /// Whether the read-only column counts now.
    pub is_read_only: bool,
    /// The share of the calibrated rate that the measured latency allows.
    pub factor: f64,
    /// Tokens of all requests so far.
    pub spent_tokens: u64,
    /// How the device differs from its calibration, if it does.
    pub drift: Option<CalibrationDrift>,
}

impl SharedDevice {
    /// A device without tenants. Without a model, objectives are refused and nothing is limited.
    pub fn new(model: Option<DeviceModel>) -> Self {
        Self::for_threads(model, THREADS_MAX)
    }

    /// As [`SharedDevice::new`], with so many schedulers at most, and no more than [`THREADS_MAX`].
    /// For one thread a round is cheaper.
    pub fn for_threads(model: Option<DeviceModel>, threads_max: u32) -> Self {
        let threads_max = threads_max.clamp(1, THREADS_MAX);
        let device = Self {
            threads_max,
            control: Mutex::new(Control::new(model)),
            best_effort_each: AtomicU64::new(0),
            spare_each: AtomicU64::new(0),
            is_limited: AtomicBool::new(false),
            pause_ns: AtomicU64::new(PAUSE_MAX_NS),
            best_effort: Word::default(),
            bucket: Word::default(),
            minted_ns: Word::default(),
            began_ns: Word::new(i64::MAX),
            income: Word::default(),
            best_effort_sum: Word::default(),
            spare_sum: Word::default(),
            parked: Parked::new(threads_max == 1),
            members: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            ran: AtomicU64::new(0),
            step_at_ns: AtomicU64::new(0),
            written_at_ns: AtomicU64::new(0),
            is_quiet: AtomicBool::new(false),
            worst: AtomicU64::new(0),
            late: AtomicU64::new(0),
            lesson: AtomicU64::new(0),
            spent_tokens: Word::default(),
        };
        device.publish(&device.control());
        device
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        // Every change is complete before anything can panic.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes how tokens are shared to all rounds.
    fn publish(&self, control: &Control) {
        let shares = control
            .admission
            .shares(control.feedback.factor(), self.is_quiet.load(Relaxed));
        self.best_effort_each
            .store(shares.best_effort_each, Relaxed);
        self.spare_each.store(shares.spare_each, Relaxed);
        self.best_effort
            .set(i64::from(control.admission.best_effort()));
        self.is_limited.store(shares.rate.is_some(), Relaxed);
        let pause_ns = shares.strictest_us.map_or(PAUSE_MAX_NS, |p95_us| {
            (u64::from(p95_us) * 1000).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS)
        });
        self.pause_ns.store(pause_ns, Relaxed);
    }

    /// Whether a tenant would be admitted.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, spec: &TenantSpec) -> Result<(), Refused> {
        self.control().admission.check(spec)
    }

    /// Whether one scheduler has the device to itself.
    pub(crate) fn is_alone(&self) -> bool {
        self.threads_max == 1
    }

    /// Admits a tenant that one scheduler has to itself.
    pub(crate) fn admit(&self, spec: &TenantSpec, now_ns: u64) -> Result<Arc<Account>, Refused> {
        let mut control = self.control();
        control.admission.admit(spec)?;
        self.publish(&control);
        Ok(self.open(&control, (*spec, None), now_ns))
    }

    /// The account of a tenant that was admitted elsewhere. The first scheduler that names it opens
    /// the account, and the reservation counts from then on; others join.
    pub(crate) fn join_account(&self, name: &str, spec: &TenantSpec, now_ns: u64) -> Arc<Account> {
        let mut control = self.control();
        if let Some(account) = control.accounts.get(name).map(Arc::clone) {
            account.book().instances += 1;
            self.change_locked(&mut control, &account, spec, now_ns);
            return account;
        }
        control.admission.keep(spec);
        self.publish(&control);
        let account = self.open(&control, (*spec, Some(name.into())), now_ns);
        control.accounts.insert(name.into(), Arc::clone(&account));
        account
    }

    fn open(
        &self,
        control: &Control,
        (spec, name): (TenantSpec, Option<Box<str>>),
        now_ns: u64,
    ) -> Arc<Account> {
        let reserved = control.needed(&spec);
        let account = Account::new(self.is_alone(), (spec, name), reserved, now_ns);
        account.book().instances = 1;
        self.parked.count(account.state(), 1);
        Arc::new(account)
    }

    /// Gives a tenant another objective that was admitted elsewhere. Schedulers that follow later
    /// find it changed.
    pub(crate) fn change(&self, account: &Account, spec: &TenantSpec, now_ns: u64) {
        self.change_locked(&mut self.control(), account, spec, now_ns);
    }

    fn change_locked(
        &self,
        control: &mut Control,
        account: &Account,
        spec: &TenantSpec,
        now_ns: u64,
    ) {
        let mut book = account.book();
        if book.spec == *spec {
            return;
        }
        control.admission.release(&book.spec);
        control.admission.keep(spec);
        book.spec = *spec;
        self.publish(control);
        let reserved = control.needed(spec);
        account.become_tenant(&self.parked, (spec, reserved), &self.scales(), now_ns);
    }

    /// A scheduler's tenant is gone. With the last one the reservation is.
    pub(crate) fn leave_account(&self, account: &Account) {
        let mut control = self.control();
        let mut book = account.book();
        book.instances -= 1;
        if book.instances > 0 {
            return;
        }
        account.end(&self.parked);
        if let Some(name) = &book.name {
            control.accounts.remove(name);
        }
        control.admission.release(&book.spec);
        self.publish(&control);
    }

    /// Reserves what the tenant's objective costs now.
    pub(crate) fn reprice(&self, account: &Account) {
        let control = self.control();
        let spec = account.book().spec;
        account.reprice(&self.parked, &spec, control.needed(&spec));
    }

    /// The model with the curve as learnt so far. The next start begins with the calibration again.
    pub fn model(&self) -> Option<DeviceModel> {
        self.control().admission.model().cloned()
    }

    /// Tokens a second that an objective reserves.
    pub fn needed(&self, objective: &Objective) -> u64 {
        self.control().admission.needed(objective)
    }

    /// The model that the device was given last, without what was learnt since.
    pub fn calibration(&self) -> Option<DeviceModel> {
        self.control().calibration.clone()
    }

    /// Replaces the model, and begins to learn anew. The tenants stay, also where the new model has
    /// too little for them. Each scheduler takes new prices by
    /// [`Scheduler::follow_model`](crate::Scheduler::follow_model).
    pub fn set_model(&self, model: Option<DeviceModel>) {
        let mut control = self.control();
        control.calibrate(model);
        for measured in [&self.worst, &self.late, &self.lesson] {
            measured.store(0, Relaxed);
        }
        self.publish(&control);
    }

    /// How the device fares.
    pub fn status(&self) -> DeviceFigures {
        let control = self.control();
        let shares = control
            .admission
            .shares(control.feedback.factor(), self.is_quiet.load(Relaxed));
        DeviceFigures {
            tokens_per_s: shares.rate,
            reserved_tokens_per_s: shares.reserved,
            best_effort_each_tokens_per_s: shares.best_effort_each,
            latency_critical: control.admission.latency_critical(),
            best_effort: control.admission.best_effort(),
            strictest_us: shares.strictest_us,
            is_read_only: shares.is_read_only,
            factor: control.feedback.factor(),
            spent_tokens: self.spent_tokens.get().unsigned_abs(),
            drift: control.drift,
        }
    }

    /// The oldest notice about the device that nobody has taken.
    pub fn take_notice(&self) -> Option<DeviceNotice> {
        self.control().notices.pop()
    }

    /// A number for one more scheduler, as a bit.
    pub(crate) fn join(&self) -> Option<u64> {
        let mut members = self.members.load(Relaxed);
        loop {
            let number = members.trailing_ones();
            if number >= self.threads_max {
                return None;
            }
            let bit = 1_u64 << number;
            match self
                .members
                .compare_exchange_weak(members, members | bit, Relaxed, Relaxed)
            {
                Ok(_) => return Some(bit),
                Err(now) => members = now,
            }
        }
    }

    pub(crate) fn leave(&self, bit: u64) {
        for word in [&self.members, &self.busy, &self.ran] {
            word.fetch_and(!bit, Relaxed);
        }
    }

    pub(crate) fn costs(&self) -> crate::Costs {
        let control = self.control();
        // Without a model costs only share turns: a write is as dear as a read.
        control
            .admission
            .model()
            .map_or(crate::Costs::new(crate::READ_COST), |model| model.costs)
    }

    pub(crate) fn best_effort_each(&self) -> u64 {
        self.best_effort_each.load(Relaxed)
    }

    pub(crate) fn spare_each(&self) -> u64 {
        self.spare_each.load(Relaxed)
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Relaxed)
    }

    pub(crate) fn pause_ns(&self) -> u64 {
        self.pause_ns.load(Relaxed)
    }

    pub(crate) fn scales(&self) -> Scales {
        Scales {
            spare: self.spare_sum.get(),
            best_effort: self.best_effort_sum.get(),
            began_ns: self.began_ns.get(),
        }
    }

    /// Marks that a scheduler has work, so that the bucket waits for its round.
    pub(crate) fn begin_round(&self, bit: u64) {
        if !self.is_alone() && self.busy.load(Relaxed) & bit == 0 {
            self.busy.fetch_or(bit, Relaxed);
        }
    }

    /// Mints what the time since the last call of any thread makes. Shares of parked tenants go
    /// into the bucket.
    pub(crate) fn mint(&self, now_ns: u64) {
        let (is_alone, now) = (self.is_alone(), position(now_ns));
        let before = self.minted_ns.raise(is_alone, now);
        let time_ns = now.saturating_sub(before).max(0).unsigned_abs();
        if time_ns == 0 {
            return;
        }
        if before == 0 {
            self.began_ns.set(now);
        }
        let time_ns = time_ns.min(self.pause_ns());
        let count = |word: &Word| word.get().max(0).unsigned_abs();
        let parked = count(&self.parked.best_effort);
        let active = count(&self.best_effort).saturating_sub(parked);
        let each = self.best_effort_each();
        let spare = self.spare_each();
        let left =
            count(&self.parked.reserved) + count(&self.parked.critical) * spare + parked * each;
        self.put(tokens_of(left, time_ns));
        self.spare_sum.add(is_alone, tokens_of(spare, time_ns));
        let income = tokens_of(each * active, time_ns);
        let earlier = self.income.replace(is_alone, income);
        match position(active) {
            0 => self.put(earlier),
            active => {
                self.best_effort_sum.add(is_alone, earlier / active);
            }
        }
    }

    /// Adds millionths of tokens to the bucket.
    fn put(&self, micro: i64) {
        self.bucket.add(self.is_alone(), micro.max(0));
    }

    /// Takes at most so many millionths of tokens from the bucket.
    pub(crate) fn take(&self, wanted: i64) -> i64 {
        self.bucket.take(self.is_alone(), wanted, 0)
    }

    /// Takes at most so many millionths of tokens of what best-effort tenants are about to get.
    pub(crate) fn take_income(&self, wanted: i64) -> i64 {
        self.income.take(self.is_alone(), wanted, 0)
    }

    /// Ends a round. The bucket is emptied once every scheduler with work has run one; what this
    /// round left over goes in afterwards, so that a single thread can use it in its next round. A
    /// thread without work is not waited for.
    ///
    /// Relaxed operations are enough. If two threads end a round at once, the bucket is emptied
    /// once more or once less: a token may be lost, and none is made.
    pub(crate) fn end_round(&self, bit: u64, left: i64, is_idle: bool) {
        if self.is_alone() || self.have_all_run(bit, is_idle) {
            self.bucket.set(0);
        }
        self.put(left);
    }

    fn have_all_run(&self, bit: u64, is_idle: bool) -> bool {
        if is_idle {
            self.busy.fetch_and(!bit, Relaxed);
        }
        let ran = self.ran.load(Relaxed) | bit;
        let busy = self.busy.load(Relaxed);
        let have_all_run = ran & busy == busy;
        if have_all_run {
            self.ran.store(0, Relaxed);
        } else {
            self.ran.fetch_or(bit, Relaxed);
        }
        have_all_run
    }

    /// Says that a tenant writes.
    pub(crate) fn wrote(&self, now_ns: u64) {
        // Rounded, so that threads do not fight for the line.
        if now_ns.saturating_sub(self.written_at_ns.load(Relaxed)) > QUIET_NS / 16 {
            self.written_at_ns.store(now_ns, Relaxed);
        }
        if self.is_quiet.load(Relaxed) {
            let control = self.control();
            self.is_quiet.store(false, Relaxed);
            self.publish(&control);
        }
    }

    /// Reports a full window of a latency-critical tenant.
    pub(crate) fn report(&self, judged: &Judged, objective_us: f64) {
        let Some(p95_us) = judged.seen_us else { return };
        self.worst
            .fetch_max(rounded(p95_us / objective_us * 1e6), Relaxed);
        self.late.fetch_max(rounded(judged.late_s * 1e6), Relaxed);
        let p95_us = rounded(p95_us).min(u64::from(u32::MAX));
        self.lesson
            .fetch_max(u64::from(judged.requests) << 32 | p95_us, Relaxed);
    }

    pub(crate) fn spent(&self, tokens: u64) {
        self.spent_tokens.add(self.is_alone(), position(tokens));
    }

    /// Steers the rate, once every 100 ms by whichever thread comes first.
    pub(crate) fn step(&self, now_ns: u64) {
        let due = self.step_at_ns.load(Relaxed);
        if now_ns < due {
            return;
        }
        let exchanged = self
            .step_at_ns
            .compare_exchange(due, now_ns + STEP_NS, Relaxed, Relaxed);
        if exchanged.is_err() {
            return;
        }
        // A thread in the data path waits for nobody.
        let Ok(mut control) = self.control.try_lock() else {
            return;
        };
        let worst = self.worst.swap(0, Relaxed);
        let late = self.late.swap(0, Relaxed);
        control.feedback.step(Seen {
            worst: (worst > 0).then(|| worst as f64 / 1e6),
            late_s: late as f64 / 1e6,
        });
        let written_ns = self.written_at_ns.load(Relaxed);
        self.is_quiet
            .store(now_ns.saturating_sub(written_ns) > QUIET_NS, Relaxed);
        control.steps += 1;
        if control.steps.is_multiple_of(LESSON_STEPS) {
            let lesson = self.lesson.swap(0, Relaxed);
            control.learn(
                now_ns,
                lesson,
                self.spent_tokens.get().unsigned_abs(),
                self.is_quiet.load(Relaxed),
            );
        }
        self.publish(&control);
    }
}
