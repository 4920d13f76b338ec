//! The scheduler of one thread: queues, credits and rounds (ReFlex, section 3.2.2, algorithm 1).
//!
//! A round costs as much as there is to do, not as there are tenants. A tenant that wants nothing
//! is *parked*: the device counts its tokens together with those of all parked tenants
//! ([`Device::mint`]). Tokens of the others are counted when a round comes to them, from the time
//! that has passed since.

mod round;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cost::Operation;
use crate::latency::Window;
use crate::notice::{Notice, Notices};
use crate::queue::{Pool, QUEUE_ENTRIES_MAX, Queue};
use crate::{Costs, Device, MICRO, Refused, TenantId, TenantSpec, TenantStatus, tokens_of};

/// A latency-critical tenant may take back what it left to others in so long a time at most. A
/// shared disk can be slow for several seconds.
const LENT_MAX_NS: u64 = 10_000_000_000;
/// A window of latencies is judged once it has so many reads and is so old.
const WINDOW_READS_MIN: u32 = 200;
const WINDOW_MIN_NS: u64 = 100_000_000;
/// An older window is judged with fewer.
const WINDOW_OLD_NS: u64 = 5_000_000_000;
const WINDOW_OLD_READS_MIN: u32 = 40;
/// After so long without a request the latencies before say nothing of the present.
const WINDOW_PAUSE_NS: u64 = WINDOW_OLD_NS;
/// A round is due after this share of the strictest objective (ReFlex, section 4.2: 5 %).
const PERIOD_SHARE: u64 = 20;
/// The shortest time between two rounds that is asked for.
const PERIOD_MIN_NS: u64 = 5_000;

/// A request of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<T> {
    /// What the request does.
    pub operation: Operation,
    /// Its data, in bytes; 0 for a flush.
    pub len_bytes: u32,
    /// What the caller knows the request by.
    pub token: T,
}

/// The tenant's queue is full: answer the request with an error, or ask later. The request is given
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tenant already has {QUEUE_ENTRIES_MAX} requests that wait")]
pub struct Full<T>(pub T);

/// A device has [`crate::THREADS_MAX`] schedulers already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a device can have 64 schedulers, one for each thread, and has them already")]
pub struct TooManyThreads;

#[derive(Debug)]
struct Tenant {
    id: TenantId,
    spec: TenantSpec,
    queue: Queue,
    /// Latency-critical: tokens in hand, negative in deficit. Best effort: saved tokens. In
    /// millionths.
    credit: i64,
    /// Latency-critical: what of its reservation others got and it may take back. In millionths.
    lent: i64,
    /// Tokens a second that it reserved.
    reserved: u64,
    /// When its credit was last counted; latency-critical only.
    counted_ns: u64,
    /// The scheduler's sum of tokens by then.
    counted: i64,
    is_parked: bool,
    /// In `ready`, in `waiting`.
    is_ready: bool,
    is_waiting: bool,
    in_deficit: bool,
    /// In deficit at any time of the window.
    window_in_deficit: bool,
    window_ns: u64,
    /// When a request was last counted in a window.
    counted_last_ns: u64,
    /// Latencies from the arrival of the requests.
    window: Window,
    /// Latency-critical: latencies from the submission to the device.
    on_device: Option<Window>,
    p95_us: Option<f64>,
    reads: u64,
    writes: u64,
    others: u64,
    spent_tokens: u64,
    given: i64,
    received: i64,
    refused: u64,
    deficits: u64,
}

/// The scheduler of one thread for one device. `T` is what the caller knows a request by.
#[derive(Debug)]
pub struct Scheduler<T> {
    device: Arc<Device>,
    costs: Costs,
    bit: u64,
    tenants: Vec<Option<Tenant>>,
    free: Vec<u32>,
    generation: u32,
    number: usize,
    /// Requests that wait, of all tenants.
    queued: u64,
    pool: Pool<T>,
    /// Latency-critical tenants that got a request.
    ready: Vec<u32>,
    /// Latency-critical tenants that wait for tokens, or have a deficit to make good.
    waiting: Vec<u32>,
    waiting_at: usize,
    /// Best-effort tenants with requests, the next one first.
    active: VecDeque<u32>,
    last_ns: u64,
    /// Millionths of tokens that a best-effort tenant has had since the start; that a
    /// latency-critical one has had beside its own.
    best_effort_sum: i64,
    spare_sum: i64,
    /// Millionths of tokens that best-effort requests cost, and that their tenants have saved.
    demand: i64,
    saved: i64,
    in_flight: u32,
    in_flight_max: u32,
    notices: Notices,
}

impl<T> Scheduler<T> {
    /// A scheduler for one thread.
    ///
    /// # Errors
    /// The device has as many as it can have.
    pub fn new(device: Arc<Device>) -> Result<Self, TooManyThreads> {
        let bit = device.join().ok_or(TooManyThreads)?;
        Ok(Self {
            costs: device.costs(),
            device,
            bit,
            tenants: Vec::new(),
            free: Vec::new(),
            generation: 0,
            number: 0,
            queued: 0,
            pool: Pool::new(),
            ready: Vec::new(),
            waiting: Vec::new(),
            waiting_at: 0,
            active: VecDeque::new(),
            last_ns: 0,
            best_effort_sum: 0,
            spare_sum: 0,
            demand: 0,
            saved: 0,
            in_flight: 0,
            in_flight_max: u32::MAX,
            notices: Notices::new(),
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Submits no more requests while so many are in flight: between [`Scheduler::round`] and
    /// [`Scheduler::completed`]. Best-effort tenants then take turns. By default there is no limit.
    pub fn set_in_flight_max(&mut self, requests: u32) {
        self.in_flight_max = requests.max(1);
    }

    /// Adds a tenant and reserves its tokens and the memory of its queue.
    ///
    /// # Errors
    /// The tenant is refused; nothing has changed then.
    pub fn add_tenant(&mut self, spec: TenantSpec) -> Result<TenantId, Refused> {
        self.reserve_queue()?;
        let reserved = self.device.admit(&spec)?;
        Ok(self.insert(spec, reserved))
    }

    /// Adds a tenant that a [`crate::Admission`] has admitted.
    ///
    /// # Errors
    /// There is no memory for its queue; nothing has changed then.
    pub fn add_admitted(&mut self, spec: TenantSpec) -> Result<TenantId, Refused> {
        self.reserve_queue()?;
        let reserved = self.device.keep(None, &spec);
        Ok(self.insert(spec, reserved))
    }

    fn reserve_queue(&mut self) -> Result<(), Refused> {
        match self.pool.reserve(self.number + 1) {
            true => Ok(()),
            false => Err(Refused::NoMemory),
        }
    }

    fn insert(&mut self, spec: TenantSpec, reserved: u64) -> TenantId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.tenants.push(None);
            u32::try_from(self.tenants.len() - 1).unwrap_or(u32::MAX)
        });
        let id = TenantId::new(index, self.generation);
        self.generation = self.generation.wrapping_add(1);
        let tenant = Tenant {
            id,
            spec,
            queue: Queue::EMPTY,
            credit: 0,
            lent: 0,
            reserved,
            counted_ns: self.last_ns,
            counted: 0,
            is_parked: false,
            is_ready: false,
            is_waiting: false,
            in_deficit: false,
            window_in_deficit: false,
            window_ns: self.last_ns,
            counted_last_ns: self.last_ns,
            window: Window::default(),
            on_device: spec.objective.map(|_| Window::default()),
            p95_us: None,
            reads: 0,
            writes: 0,
            others: 0,
            spent_tokens: 0,
            given: 0,
            received: 0,
            refused: 0,
            deficits: 0,
        };
        self.tenants[index as usize] = Some(tenant);
        self.number += 1;
        // A request allocates nothing: every list has room for every tenant.
        let room = self.number;
        self.ready.reserve(room.saturating_sub(self.ready.len()));
        self.waiting
            .reserve(room.saturating_sub(self.waiting.len()));
        self.active.reserve(room.saturating_sub(self.active.len()));
        self.park(index);
        id
    }

    /// Removes a tenant. Its waiting requests go to `dropped`; those in flight may be completed
    /// later.
    pub fn remove_tenant(&mut self, id: TenantId, dropped: &mut impl FnMut(T)) {
        if self.tenant(id).is_none() {
            return;
        }
        let number = id.index();
        self.unpark(number, self.last_ns);
        let slot = self.tenants.get_mut(number as usize);
        let Some(mut tenant) = slot.and_then(Option::take) else {
            return;
        };
        self.queued -= u64::from(tenant.queue.len);
        if tenant.spec.objective.is_none() {
            self.demand -= micro(tenant.queue.tokens);
            self.saved -= tenant.credit;
        }
        while let Some((token, _)) = self.pool.pop(&mut tenant.queue) {
            dropped(token);
        }
        self.forget(number);
        self.free.push(number);
        self.number -= 1;
        self.device.release(&tenant.spec);
    }

    /// Gives a tenant another objective, which a [`crate::Admission`] has admitted, or none.
    pub fn change_tenant(&mut self, id: TenantId, spec: TenantSpec) {
        let Some(before) = self.tenant(id).map(|tenant| tenant.spec) else {
            return;
        };
        if before == spec {
            return;
        }
        let reserved = self.device.keep(Some(&before), &spec);
        let now_ns = self.last_ns;
        // Out of every list, and into those of its new kind.
        let number = id.index();
        self.unpark(number, now_ns);
        self.forget(number);
        let (best_effort_sum, spare_sum) = (self.best_effort_sum, self.spare_sum);
        let Some(Some(tenant)) = self.tenants.get_mut(number as usize) else {
            return;
        };
        if before.objective.is_none() {
            self.demand -= micro(tenant.queue.tokens);
            self.saved -= tenant.credit;
        }
        tenant.spec = spec;
        tenant.reserved = reserved;
        (tenant.credit, tenant.lent) = (0, 0);
        tenant.counted_ns = now_ns;
        (tenant.is_ready, tenant.is_waiting) = (false, false);
        tenant.in_deficit = false;
        tenant.on_device = spec.objective.map(|_| Window::default());
        tenant.begin_window(now_ns);
        tenant.p95_us = None;
        match spec.objective {
            Some(_) => {
                tenant.counted = spare_sum;
                if tenant.queue.is_empty() {
                    self.park(number);
                } else {
                    tenant.is_ready = true;
                    self.ready.push(number);
                }
            }
            None => {
                tenant.counted = best_effort_sum;
                self.demand += micro(tenant.queue.tokens);
                if tenant.queue.is_empty() {
                    self.park(number);
                } else {
                    self.active.push_back(number);
                }
            }
        }
    }

    /// Takes the prices of [`Device::set_model`]. Requests that wait keep theirs.
    pub fn follow_model(&mut self) {
        let costs = self.device.costs();
        if costs == self.costs {
            return;
        }
        self.costs = costs;
        for number in 0..u32::try_from(self.tenants.len()).unwrap_or(u32::MAX) {
            let Some(Some(tenant)) = self.tenants.get(number as usize) else {
                continue;
            };
            let (is_parked, reserved) = (tenant.is_parked, self.device.needed(&tenant.spec));
            self.unpark(number, self.last_ns);
            if let Some(Some(tenant)) = self.tenants.get_mut(number as usize) {
                tenant.reserved = reserved;
            }
            if is_parked {
                self.park(number);
            }
        }
    }

    /// Takes a tenant out of all lists.
    fn forget(&mut self, number: u32) {
        for list in [&mut self.ready, &mut self.waiting] {
            list.retain(|other| *other != number);
        }
        self.active.retain(|other| *other != number);
    }

    fn tenant(&self, id: TenantId) -> Option<&Tenant> {
        let tenant = self.tenants.get(id.index() as usize)?.as_ref();
        tenant.filter(|tenant| tenant.id == id)
    }

    fn tenant_mut(&mut self, id: TenantId) -> Option<&mut Tenant> {
        let tenant = self.tenants.get_mut(id.index() as usize)?.as_mut();
        tenant.filter(|tenant| tenant.id == id)
    }

    fn park(&mut self, index: u32) {
        let Some(Some(tenant)) = self.tenants.get_mut(index as usize) else {
            return;
        };
        if tenant.is_parked {
            return;
        }
        tenant.is_parked = true;
        match tenant.spec.objective {
            Some(_) => self.device.park_critical(tenant.reserved),
            None => self.device.park_best_effort(),
        }
    }

    /// Counts a tenant's tokens for itself again, from now on.
    fn unpark(&mut self, index: u32, now_ns: u64) {
        let Some(Some(tenant)) = self.tenants.get_mut(index as usize) else {
            return;
        };
        if !tenant.is_parked {
            return;
        }
        tenant.is_parked = false;
        let since_ns = now_ns.saturating_sub(self.last_ns);
        match tenant.spec.objective {
            Some(_) => {
                self.device.unpark_critical(tenant.reserved);
                let parked_ns = now_ns.saturating_sub(tenant.counted_ns).min(LENT_MAX_NS);
                tenant.lend(tokens_of(tenant.reserved, parked_ns));
                tenant.counted_ns = now_ns.max(self.last_ns);
                tenant.counted = self.spare_sum + tokens_of(self.device.spare_each(), since_ns);
            }
            None => {
                self.device.unpark_best_effort();
                let each = self.device.best_effort_each();
                let since_ns = since_ns.min(self.device.pause_ns());
                tenant.counted = self.best_effort_sum + tokens_of(each, since_ns);
            }
        }
    }

    /// Puts a request into its tenant's queue. The next round submits it, or a later one.
    ///
    /// # Errors
    /// The queue is full, or there is no such tenant: the request comes back.
    pub fn enqueue(
        &mut self,
        id: TenantId,
        request: Request<T>,
        now_ns: u64,
    ) -> Result<(), Full<T>> {
        let number = id.index();
        let slot = self.tenants.get_mut(number as usize);
        let Some(tenant) = slot.and_then(Option::as_mut).filter(|slot| slot.id == id) else {
            return Err(Full(request.token));
        };
        let cost = self.costs.of(request.operation, request.len_bytes);
        if let Err(token) = self.pool.push(&mut tenant.queue, request.token, cost) {
            tenant.refused += 1;
            return Err(Full(token));
        }
        self.queued += 1;
        let is_parked = tenant.is_parked;
        if tenant.spec.objective.is_some() {
            if !tenant.is_ready {
                tenant.is_ready = true;
                self.ready.push(number);
            }
        } else {
            self.demand += micro(u64::from(cost));
            if tenant.queue.len == 1 {
                self.active.push_back(number);
            }
        }
        if is_parked {
            self.unpark(number, now_ns);
        }
        if request.operation == Operation::Write {
            self.device.wrote(now_ns);
        }
        Ok(())
    }

    fn has_work(&self) -> bool {
        self.queued > 0
    }

    /// When the next round is due, in nanoseconds from the last one. `None`: nothing waits, so the
    /// thread may sleep until there is a request.
    pub fn due_ns(&self) -> Option<u64> {
        let is_blocked = self.in_flight >= self.in_flight_max;
        if !self.has_work() || is_blocked {
            return None;
        }
        Some((self.device.pause_ns() / PERIOD_SHARE).max(PERIOD_MIN_NS))
    }

    /// Says that a request was completed. `latency_ns` counts from [`Scheduler::enqueue`], and
    /// `on_device_ns` from the [`Scheduler::round`] that submitted it. A request that moves no
    /// data, such as a flush, has no `operation`: no percentile counts it.
    pub fn completed(
        &mut self,
        id: TenantId,
        operation: Option<Operation>,
        latency_ns: u64,
        on_device_ns: u64,
    ) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let now_ns = self.last_ns;
        let device = Arc::clone(&self.device);
        let Some(tenant) = self.tenant_mut(id) else {
            return;
        };
        match operation {
            Some(Operation::Read) => tenant.reads += 1,
            Some(Operation::Write) => tenant.writes += 1,
            None => tenant.others += 1,
        }
        if operation != Some(tenant.spec.percentile_of()) {
            return;
        }
        if now_ns.saturating_sub(tenant.counted_last_ns) >= WINDOW_PAUSE_NS {
            tenant.begin_window(now_ns);
            tenant.p95_us = None;
        }
        tenant.counted_last_ns = now_ns;
        tenant.window.record(latency_ns);
        if let Some(on_device) = &mut tenant.on_device {
            on_device.record(on_device_ns);
        }
        let age_ns = now_ns.saturating_sub(tenant.window_ns);
        let reads = tenant.window.count();
        let is_full = (reads >= WINDOW_READS_MIN && age_ns >= WINDOW_MIN_NS)
            || (reads >= WINDOW_OLD_READS_MIN && age_ns >= WINDOW_OLD_NS);
        if !is_full {
            return;
        }
        tenant.p95_us = tenant.window.p95_us();
        // Who asks for more than it reserved waits for its own tokens. That is no sign of a slow
        // device, but the time on the device is a sign.
        let on_device_us = tenant.on_device.as_ref().and_then(Window::p95_us);
        let seen_us = match tenant.window_in_deficit {
            true => on_device_us,
            false => tenant.p95_us,
        };
        if let (Some(p95_us), Some(objective)) = (seen_us, tenant.spec.objective) {
            let ratio = p95_us / f64::from(objective.p95_us);
            device.report(ratio, reads, p95_us);
        }
        tenant.begin_window(now_ns);
    }

    /// How a tenant fares; `None`: there is no such tenant.
    pub fn status(&self, id: TenantId) -> Option<TenantStatus> {
        let tenant = self.tenant(id)?;
        let pause_ns = self.last_ns.saturating_sub(tenant.counted_last_ns);
        Some(TenantStatus {
            objective: tenant.spec.objective,
            p95_us: tenant.p95_us.filter(|_| pause_ns < WINDOW_PAUSE_NS),
            queued: tenant.queue.len,
            queued_tokens: tenant.queue.tokens,
            credit_tokens: tenant.credit.div_euclid(MICRO),
            reads: tenant.reads,
            writes: tenant.writes,
            others: tenant.others,
            spent_tokens: tenant.spent_tokens,
            given_tokens: (tenant.given / MICRO).unsigned_abs(),
            received_tokens: (tenant.received / MICRO).unsigned_abs(),
            refused: tenant.refused,
            in_deficit: tenant.in_deficit,
            deficits: tenant.deficits,
        })
    }

    /// Tenants of this scheduler.
    pub fn tenants(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.tenants.iter().flatten().map(|tenant| tenant.id)
    }

    /// The oldest notice about a tenant, or about the device, that nobody has taken.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.notices.pop().or_else(|| self.device.take_notice())
    }
}

impl Tenant {
    fn begin_window(&mut self, now_ns: u64) {
        self.window.clear();
        if let Some(on_device) = &mut self.on_device {
            on_device.clear();
        }
        self.window_ns = now_ns;
        self.window_in_deficit = self.in_deficit;
    }
}

impl<T> Drop for Scheduler<T> {
    fn drop(&mut self) {
        let ids: Vec<TenantId> = self.tenants().collect();
        for id in ids {
            self.remove_tenant(id, &mut drop);
        }
        self.device.leave(self.bit);
    }
}

fn micro(tokens: u64) -> i64 {
    i64::try_from(tokens)
        .unwrap_or(i64::MAX)
        .saturating_mul(MICRO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Objective;

    const MS: u64 = 1_000_000;

    /// A request each millisecond, with its latency.
    fn serve(
        scheduler: &mut Scheduler<()>,
        id: TenantId,
        times_ms: std::ops::Range<u64>,
        (operation, latency_us): (Option<Operation>, u64),
    ) {
        for at in times_ms {
            let request = Request {
                operation: operation.unwrap_or(Operation::Read),
                len_bytes: 0,
                token: (),
            };
            scheduler.enqueue(id, request, at * MS).unwrap();
            scheduler.round(at * MS, &mut |_, ()| {});
            scheduler.completed(id, operation, latency_us * 1000, latency_us * 1000);
        }
    }

    #[test]
    fn a_percentile_is_of_reads_and_of_now() {
        let device = Arc::new(Device::new(Some(crate::simulated::p3600_model())));
        let mut scheduler = Scheduler::new(device).unwrap();
        let tenant = |read_share| {
            TenantSpec::latency_critical(Objective {
                p95_us: 500,
                iops: 2000,
                read_share,
            })
        };
        let id = scheduler.add_tenant(tenant(0.9)).unwrap();
        let p95_us = |scheduler: &Scheduler<()>| scheduler.status(id).unwrap().p95_us;
        let (read, write) = (Some(Operation::Read), Some(Operation::Write));
        serve(&mut scheduler, id, 1..300, (write, 9000));
        serve(&mut scheduler, id, 300..600, (None, 9000));
        assert_eq!(p95_us(&scheduler), None);
        serve(&mut scheduler, id, 600..900, (read, 300));
        assert!((290.0..315.0).contains(&p95_us(&scheduler).unwrap()));
        // The last requests wait for a full window, and do not count after a pause.
        let at = |scheduler: &mut Scheduler<()>, time_ms: u64| {
            scheduler.round(time_ms * MS, &mut |_, ()| {});
            p95_us(scheduler)
        };
        assert!(at(&mut scheduler, 5800).is_some());
        assert_eq!(at(&mut scheduler, 5900), None);
        serve(&mut scheduler, id, 90_000..90_150, (read, 100));
        assert_eq!(p95_us(&scheduler), None);
        serve(&mut scheduler, id, 90_150..90_300, (read, 100));
        assert!(p95_us(&scheduler).unwrap() < 110.0);
        // An objective without reads is about writes.
        scheduler.change_tenant(id, tenant(0.0));
        serve(&mut scheduler, id, 91_000..91_300, (read, 100));
        assert_eq!(p95_us(&scheduler), None);
        serve(&mut scheduler, id, 92_000..92_300, (write, 100));
        assert!(p95_us(&scheduler).is_some());
    }
}
