//! The tenants of one shard: whose requests are submitted when. The decisions are those of `qos`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use dataplane::{FlowId, Time};
use qos::{DeviceNotice, Operation, Scheduler, TenantId, TenantRequest as Order};

use crate::device::Device;
use crate::export::{Deficit, Export, Exports, Key, by_key};
use crate::lock::lock;
use crate::nbd::request::{NbdRequest, RequestKind};
use crate::rates::{Fare, Meter};

/// Connections of a tenant with this many waiting requests wait themselves. `qos` keeps 2,048.
const QUEUED_MAX: u32 = 1024;
/// So long a tenant has to keep to its reservation before that is said. A tenant at its limit is in
/// and out of its deficit several times a second.
const WITHIN_NS: u64 = 10_000_000_000;
/// What zeros and trims are charged at most: the device does not move their data.
const ZEROES_CHARGED_BYTES: u64 = 1 << 20;

/// One export on one shard.
struct Tenant {
    export: Arc<Export>,
    scheduler: usize,
    id: TenantId,
    /// Connections that use the tenant.
    sessions: u32,
    /// Requests that wait, and requests from submission to completion.
    queued: u32,
    under_way: u32,
    /// The configuration does not name the export any more.
    is_gone: bool,
    meter: Meter,
    /// Connections that wait until the queue is shorter.
    waiting: Vec<FlowId>,
}

/// A device with tenants, and its scheduler on one shard.
struct Served {
    device: Arc<Device>,
    scheduler: Scheduler<u32>,
    /// Which tenant each scheduler's tenant is.
    index_of: Vec<u32>,
    /// How many tenants the scheduler has. The last one takes the device along.
    tenants: u32,
}

/// The tenants of one shard.
pub(crate) struct Tenants {
    served: Vec<Option<Served>>,
    tenants: Vec<Option<Tenant>>,
    /// Which tenants are there, and places that are free.
    by_key: HashMap<Key, usize>,
    free: Vec<usize>,
    seen: Arc<Exports>,
    /// Notices that nobody has taken: the export, and what there is to say.
    notices: VecDeque<(String, DeviceNotice)>,
}

fn operation_of(kind: RequestKind) -> Option<Operation> {
    match kind {
        RequestKind::Read => Some(Operation::Read),
        RequestKind::Write | RequestKind::WriteZeroes | RequestKind::Trim => Some(Operation::Write),
        _ => None,
    }
}

/// What a request costs its tenant.
fn order(request: &NbdRequest, slot: u32) -> Order<u32> {
    let len_bytes = match request.kind {
        RequestKind::Read | RequestKind::Write => request.len_bytes,
        RequestKind::WriteZeroes | RequestKind::Trim => request.len_bytes.min(ZEROES_CHARGED_BYTES),
        _ => 0,
    };
    let operation = operation_of(request.kind).unwrap_or(Operation::Read);
    Order {
        operation,
        len_bytes: u32::try_from(len_bytes).unwrap_or(u32::MAX),
        token: slot,
    }
}

impl Tenants {
    /// No tenants: [`Tenants::sync`] adds them.
    pub(crate) fn new() -> Self {
        Self {
            served: Vec::new(),
            tenants: Vec::new(),
            by_key: HashMap::new(),
            free: Vec::new(),
            seen: Arc::new(Vec::new()),
            notices: VecDeque::new(),
        }
    }

    /// Adds, changes and removes tenants as the configuration says now.
    pub(crate) fn sync(&mut self, exports: &Arc<Exports>) {
        if !Arc::ptr_eq(&self.seen, exports) {
            self.seen = Arc::clone(exports);
            let wanted = by_key(exports);
            for served in self.served.iter_mut().flatten() {
                served.scheduler.follow_model();
            }
            for at in 0..self.tenants.len() {
                self.refresh(at, &wanted);
            }
            for export in exports.iter() {
                if !self.by_key.contains_key(&export.key()) {
                    self.add(export);
                }
            }
        }
        for at in 0..self.tenants.len() {
            self.forget_if_unused(at);
        }
    }

    /// Compares a tenant with the configuration, which was admitted as a whole.
    fn refresh(&mut self, at: usize, wanted: &HashMap<Key, &Arc<Export>>) {
        let Some(tenant) = &mut self.tenants[at] else {
            return;
        };
        let spec = match wanted.get(&tenant.export.key()) {
            Some(&export) => {
                tenant.is_gone = false;
                tenant.export = Arc::clone(export);
                export.tenant_spec()
            }
            None => {
                tenant.is_gone = true;
                qos::TenantSpec {
                    objective: None,
                    read_only: tenant.export.info.is_read_only,
                }
            }
        };
        if let Some(served) = &mut self.served[tenant.scheduler] {
            served.scheduler.change_tenant(tenant.id, spec);
        }
    }

    fn forget_if_unused(&mut self, at: usize) {
        let slot = &mut self.tenants[at];
        let Some(tenant) = slot.take_if(|tenant| {
            tenant.is_gone && tenant.sessions == 0 && tenant.queued == 0 && tenant.under_way == 0
        }) else {
            return;
        };
        let place = &mut self.served[tenant.scheduler];
        if let Some(served) = place {
            served.scheduler.remove_tenant(tenant.id, &mut |_| {});
            served.tenants -= 1;
        }
        place.take_if(|served| served.tenants == 0);
        self.by_key.remove(&tenant.export.key());
        self.free.push(at);
    }

    fn scheduler_of(&mut self, device: &Arc<Device>) -> Option<usize> {
        let is_of = |place: &Option<Served>| {
            let served = place.as_ref();
            served.is_some_and(|served| Arc::ptr_eq(&served.device, device))
        };
        let known = self.served.iter().position(is_of);
        if known.is_some() {
            return known;
        }
        let served = Some(Served {
            device: Arc::clone(device),
            scheduler: Scheduler::new(Arc::clone(&device.qos)).ok()?,
            index_of: Vec::new(),
            tenants: 0,
        });
        if let Some(free) = self.served.iter().position(Option::is_none) {
            self.served[free] = served;
            return Some(free);
        }
        self.served.push(served);
        Some(self.served.len() - 1)
    }

    fn add(&mut self, export: &Arc<Export>) -> Option<usize> {
        let scheduler = self.scheduler_of(&export.device)?;
        let served = self.served[scheduler].as_mut()?;
        let spec = export.tenant_spec();
        // The tenants of all shards share the export's reservation.
        let id = served.scheduler.add_admitted(&export.name, spec).ok();
        let tenant = Tenant {
            export: Arc::clone(export),
            scheduler,
            id: id?,
            sessions: 0,
            queued: 0,
            under_way: 0,
            is_gone: false,
            meter: Meter::default(),
            waiting: Vec::new(),
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.tenants.push(None);
            self.tenants.len() - 1
        });
        let index = tenant.id.index() as usize;
        served.tenants += 1;
        let index_of = &mut served.index_of;
        if index_of.len() <= index {
            index_of.resize(index + 1, u32::MAX);
        }
        index_of[index] = u32::try_from(at).unwrap_or(u32::MAX);
        self.tenants[at] = Some(tenant);
        self.by_key.insert(export.key(), at);
        Some(at)
    }

    /// A connection begins to use an export. `None`: there can be no more tenants.
    pub(crate) fn open(&mut self, export: &Arc<Export>) -> Option<u32> {
        let at = match self.by_key.get(&export.key()) {
            Some(&at) => at,
            None => self.add(export)?,
        };
        self.tenants[at].as_mut()?.sessions += 1;
        u32::try_from(at).ok()
    }

    /// A connection is gone.
    pub(crate) fn close(&mut self, tenant: u32) {
        if let Some(Some(tenant)) = self.tenants.get_mut(tenant as usize) {
            tenant.sessions -= 1;
        }
    }

    /// Whether the tenant's queue has room. If not, the connection is among those that
    /// [`Tenants::round`] lets go on.
    pub(crate) fn has_room(&mut self, tenant: u32, flow: FlowId) -> bool {
        let Some(Some(tenant)) = self.tenants.get_mut(tenant as usize) else {
            return false;
        };
        let has_room = tenant.queued < QUEUED_MAX;
        if !has_room && !tenant.waiting.contains(&flow) {
            tenant.waiting.push(flow);
        }
        has_room
    }

    /// Puts a request into its tenant's queue. False: the queue is full.
    pub(crate) fn enqueue(
        &mut self,
        tenant: u32,
        request: &NbdRequest,
        slot: u32,
        now: Time,
    ) -> bool {
        let Some(Some(tenant)) = self.tenants.get_mut(tenant as usize) else {
            return false;
        };
        let Some(served) = &mut self.served[tenant.scheduler] else {
            return false;
        };
        let queued = served
            .scheduler
            .enqueue(tenant.id, order(request, slot), now.0);
        let is_in = queued.is_ok();
        tenant.queued += u32::from(is_in);
        is_in
    }

    /// What may be submitted now goes to `ready`, and connections that wait no longer to
    /// `resumable`.
    pub(crate) fn round(
        &mut self,
        now: Time,
        ready: &mut VecDeque<u32>,
        resumable: &mut Vec<FlowId>,
    ) {
        let Self {
            served, tenants, ..
        } = self;
        for served in served.iter_mut().flatten() {
            let index_of = &served.index_of;
            served.scheduler.round(now.0, &mut |id, slot| {
                ready.push_back(slot);
                let at = index_of.get(id.index() as usize).copied();
                let at = at.map_or(usize::MAX, |at| at as usize);
                if let Some(Some(tenant)) = tenants.get_mut(at) {
                    tenant.queued = tenant.queued.saturating_sub(1);
                    tenant.under_way += 1;
                    if tenant.queued < QUEUED_MAX / 2 {
                        resumable.append(&mut tenant.waiting);
                    }
                }
            });
        }
    }

    /// When the next round is due, in nanoseconds. `None`: nothing waits for tokens.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let served = self.served.iter().flatten();
        served.filter_map(|served| served.scheduler.due_ns()).min()
    }

    /// A submitted request has ended.
    pub(crate) fn completed(
        &mut self,
        tenant: u32,
        request: &NbdRequest,
        took_ns: u64,
        on_device_ns: u64,
    ) {
        let Some(Some(tenant)) = self.tenants.get_mut(tenant as usize) else {
            return;
        };
        tenant.under_way = tenant.under_way.saturating_sub(1);
        if let Some(served) = &mut self.served[tenant.scheduler] {
            let operation = operation_of(request.kind);
            let scheduler = &mut served.scheduler;
            scheduler.completed(tenant.id, operation, took_ns, on_device_ns);
        }
    }

    /// How each tenant of the configuration fares, with rates since the last call.
    pub(crate) fn status(&mut self, now: Time) -> Vec<Fare> {
        let Self {
            served, tenants, ..
        } = self;
        let tenants = tenants.iter_mut().flatten();
        tenants
            .filter(|tenant| !tenant.is_gone)
            .filter_map(|tenant| {
                let served = served[tenant.scheduler].as_ref()?;
                let status = served.scheduler.status(tenant.id)?;
                Some(Fare {
                    export: tenant.export.name.clone(),
                    rates: tenant.meter.rates(now, &status),
                    tenant: status,
                })
            })
            .collect()
    }

    /// The next thing that somebody should know: about an export or a device, and what.
    pub(crate) fn take_notice(&mut self, now: Time) -> Option<(String, DeviceNotice)> {
        if self.notices.is_empty() {
            self.gather_notices(now);
        }
        self.notices.pop_front()
    }

    fn gather_notices(&mut self, now: Time) {
        for served in self.served.iter_mut().flatten() {
            let device = &served.device;
            while let Some(notice) = served.scheduler.take_notice() {
                let (DeviceNotice::Deficit { tenant, .. } | DeviceNotice::DeficitOver { tenant }) =
                    notice
                else {
                    self.notices.push_back((device.name.clone(), notice));
                    continue;
                };
                let mut tenants = self.tenants.iter().flatten();
                let found = tenants
                    .find(|other| other.id == tenant && Arc::ptr_eq(&other.export.device, device));
                let Some(found) = found else { continue };
                let mut deficit = lock(&found.export.deficit);
                *deficit = match (&*deficit, notice) {
                    (Deficit::Unsaid, DeviceNotice::Deficit { .. }) => {
                        let name = found.export.name.clone();
                        self.notices.push_back((name, notice));
                        Deficit::Said
                    }
                    (Deficit::Unsaid, _) => Deficit::Unsaid,
                    (_, DeviceNotice::Deficit { .. }) => Deficit::Said,
                    _ => Deficit::Over(now),
                };
            }
        }
        for tenant in self.tenants.iter().flatten() {
            let mut deficit = lock(&tenant.export.deficit);
            if let Deficit::Over(since) = *deficit
                && now.since_ns(since) >= WITHIN_NS
            {
                *deficit = Deficit::Unsaid;
                let over = DeviceNotice::DeficitOver { tenant: tenant.id };
                self.notices.push_back((tenant.export.name.clone(), over));
            }
        }
    }
}

#[cfg(test)]
#[path = "tenants_tests.rs"]
mod tests;
