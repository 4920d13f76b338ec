//! The scheduler of one thread: queues, credits and rounds (ReFlex, section 3.2.2, algorithm 1).
//!
//! A round costs as much as there is to do, not as there are tenants. A tenant that wants nothing
//! is *parked*: the device counts its tokens together with those of all parked tenants
//! ([`SharedDevice::mint`]). Tokens of the others are counted when a round comes to them, from the
//! time that has passed since.
//!
//! A tenant whose connections are on several threads has an instance in the scheduler of each: a
//! queue and counters. What the instances share is an [`Account`].

mod round;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::account::Account;
use crate::cost::Operation;
use crate::latency::LatencyWindow;
use crate::notice::{DeviceNotice, Notices};
use crate::queue::{Pool, QUEUE_ENTRIES_MAX, Queue};
use crate::{Costs, MICRO, Refused, SharedDevice, TenantFigures, TenantId, TenantSpec};

/// A round is due after this share of the strictest objective (ReFlex, section 4.2: 5 %).
const PERIOD_SHARE: u64 = 20;
/// The shortest time between two rounds that is asked for.
const PERIOD_MIN_NS: u64 = 5_000;

/// A request of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantRequest<T> {
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

/// A device has its schedulers already: [`crate::THREADS_MAX`], or those of
/// [`SharedDevice::for_threads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device has as many schedulers as it can have, one for each thread")]
pub struct TooManyThreads;

/// A tenant, or the instance of it on this thread.
#[derive(Debug)]
struct Tenant {
    id: TenantId,
    /// What this thread knows the tenant as. Another thread may have followed a change already.
    spec: TenantSpec,
    account: Arc<Account>,
    queue: Queue,
    /// Best effort: saved tokens, in millionths.
    credit: i64,
    /// The account counts this instance as one with requests.
    is_busy: bool,
    /// In `ready`, in `waiting`.
    is_ready: bool,
    is_waiting: bool,
    reads: u64,
    writes: u64,
    others: u64,
    spent_tokens: u64,
    given: i64,
    received: i64,
    refused: u64,
}

/// The scheduler of one thread for one device. `T` is what the caller knows a request by.
#[derive(Debug)]
pub struct Scheduler<T> {
    device: Arc<SharedDevice>,
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
    /// Millionths of tokens that best-effort requests cost, and that their tenants have saved.
    demand: i64,
    saved: i64,
    in_flight: u32,
    in_flight_max: u32,
    notices: Notices,
    /// Where a window is counted that is judged.
    scratch: LatencyWindow,
}

impl<T> Scheduler<T> {
    /// A scheduler for one thread.
    ///
    /// # Errors
    /// The device has as many as it can have.
    pub fn new(device: Arc<SharedDevice>) -> Result<Self, TooManyThreads> {
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
            demand: 0,
            saved: 0,
            in_flight: 0,
            in_flight_max: u32::MAX,
            notices: Notices::new(),
            scratch: LatencyWindow::default(),
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<SharedDevice> {
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
        let account = self.device.admit(&spec, self.last_ns)?;
        Ok(self.insert(spec, account))
    }

    /// Adds a tenant that a [`crate::Admission`] has admitted. Schedulers of one device that name
    /// the same tenant share one reservation.
    ///
    /// # Errors
    /// There is no memory for its queue; nothing has changed then.
    pub fn add_admitted(&mut self, name: &str, spec: TenantSpec) -> Result<TenantId, Refused> {
        self.reserve_queue()?;
        let account = self.device.join_account(name, &spec, self.last_ns);
        Ok(self.insert(spec, account))
    }

    fn reserve_queue(&mut self) -> Result<(), Refused> {
        match self.pool.reserve(self.number + 1) {
            true => Ok(()),
            false => Err(Refused::NoMemory),
        }
    }

    fn insert(&mut self, spec: TenantSpec, account: Arc<Account>) -> TenantId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.tenants.push(None);
            u32::try_from(self.tenants.len() - 1).unwrap_or(u32::MAX)
        });
        let id = TenantId::new(index, self.generation);
        self.generation = self.generation.wrapping_add(1);
        let tenant = Tenant {
            id,
            spec,
            account,
            queue: Queue::EMPTY,
            credit: 0,
            is_busy: false,
            is_ready: false,
            is_waiting: false,
            reads: 0,
            writes: 0,
            others: 0,
            spent_tokens: 0,
            given: 0,
            received: 0,
            refused: 0,
        };
        self.tenants[index as usize] = Some(tenant);
        self.number += 1;
        // A request allocates nothing: every list has room for every tenant.
        let room = self.number;
        self.ready.reserve(room.saturating_sub(self.ready.len()));
        self.waiting
            .reserve(room.saturating_sub(self.waiting.len()));
        self.active.reserve(room.saturating_sub(self.active.len()));
        id
    }

    /// Removes a tenant. Its waiting requests go to `dropped`; those in flight may be completed
    /// later.
    pub fn remove_tenant(&mut self, id: TenantId, dropped: &mut impl FnMut(T)) {
        if self.tenant(id).is_none() {
            return;
        }
        let number = id.index();
        let slot = self.tenants.get_mut(number as usize);
        let Some(mut tenant) = slot.and_then(Option::take) else {
            return;
        };
        // A debt that is still to be made good is no other instance's to wait for.
        match tenant.is_busy {
            true => tenant.account.leave(&self.device.parked, false),
            false => tenant.account.settle(&self.device.parked),
        }
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
        self.device.leave_account(&tenant.account);
    }

    /// Gives a tenant another objective, which a [`crate::Admission`] has admitted, or none. Where
    /// schedulers share the tenant, each has to be told.
    pub fn change_tenant(&mut self, id: TenantId, spec: TenantSpec) {
        let slot = self.tenants.get_mut(id.index() as usize);
        let Some(tenant) = slot.and_then(Option::as_mut).filter(|slot| slot.id == id) else {
            return;
        };
        self.device.change(&tenant.account, &spec, self.last_ns);
        let before = std::mem::replace(&mut tenant.spec, spec);
        if before == spec {
            return;
        }
        // Out of every list, and into those of its new kind.
        (tenant.is_ready, tenant.is_waiting) = (false, false);
        tenant.account.settle(&self.device.parked);
        let (tokens, saved) = (micro(tenant.queue.tokens), tenant.credit);
        tenant.credit = 0;
        let is_idle = tenant.queue.is_empty();
        tenant.is_ready = !is_idle && spec.objective.is_some();
        let number = id.index();
        self.forget(number);
        if before.objective.is_none() {
            self.demand -= tokens;
            self.saved -= saved;
        }
        if spec.objective.is_none() {
            self.demand += tokens;
        }
        match spec.objective {
            _ if is_idle => {}
            Some(_) => self.ready.push(number),
            None => self.active.push_back(number),
        }
    }

    /// Takes the prices of [`SharedDevice::set_model`]. Requests that wait keep theirs.
    pub fn follow_model(&mut self) {
        let costs = self.device.costs();
        if costs == self.costs {
            return;
        }
        self.costs = costs;
        for tenant in self.tenants.iter().flatten() {
            self.device.reprice(&tenant.account);
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

    /// Puts a request into its tenant's queue. The next round submits it, or a later one.
    ///
    /// # Errors
    /// The queue is full, or there is no such tenant: the request comes back.
    pub fn enqueue(
        &mut self,
        id: TenantId,
        request: TenantRequest<T>,
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
        if !tenant.is_busy {
            tenant.is_busy = true;
            let (parked, scales) = (&self.device.parked, self.device.scales());
            tenant.account.enter(parked, &scales, now_ns);
        }
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
        let slot = self.tenants.get_mut(id.index() as usize);
        let Some(tenant) = slot.and_then(Option::as_mut).filter(|slot| slot.id == id) else {
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
        let latencies = (latency_ns, on_device_ns);
        let objective = tenant.spec.objective;
        let objective_us = objective.map_or(f64::INFINITY, |objective| objective.p95_us.into());
        let judged =
            tenant
                .account
                .completed(self.last_ns, latencies, objective_us, &mut self.scratch);
        if let Some(judged) = judged
            && objective.is_some()
        {
            self.device.report(&judged, objective_us);
        }
    }

    /// How a tenant fares; `None`: there is no such tenant.
    pub fn status(&self, id: TenantId) -> Option<TenantFigures> {
        let tenant = self.tenant(id)?;
        let account = &tenant.account;
        let credit = match tenant.spec.objective {
            Some(_) => account.credit(),
            None => tenant.credit,
        };
        Some(TenantFigures {
            objective: tenant.spec.objective,
            p95_us: account.p95_us(self.last_ns),
            queued: tenant.queue.len,
            queued_tokens: tenant.queue.tokens,
            credit_tokens: credit.div_euclid(MICRO),
            reads: tenant.reads,
            writes: tenant.writes,
            others: tenant.others,
            spent_tokens: tenant.spent_tokens,
            given_tokens: (tenant.given / MICRO).unsigned_abs(),
            received_tokens: (tenant.received / MICRO).unsigned_abs(),
            refused: tenant.refused,
            in_deficit: account.in_deficit(),
            deficits: account.deficits(),
        })
    }

    /// Tenants of this scheduler.
    pub fn tenants(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.tenants.iter().flatten().map(|tenant| tenant.id)
    }

    /// The oldest notice about a tenant, or about the device, that nobody has taken.
    pub fn take_notice(&mut self) -> Option<DeviceNotice> {
        self.notices.pop().or_else(|| self.device.take_notice())
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
            let request = TenantRequest {
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
        let device = Arc::new(SharedDevice::new(Some(crate::simulated::p3600_model())));
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
