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
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::BlockConfig;
    use crate::export;

    /// A calibrated device in memory with these tenants.
    fn config(directory: &Path, tenants: &str) -> BlockConfig {
        let calibration = directory.join("ram.json");
        let points = "[{\"p95_us\": 100.0, \"tokens_per_s\": 1000000.0}]";
        let text = format!(
            "{{\"write_cost\": 1000, \"curve\": {{\"mixed\": {points}, \"read_only\": {points}}}}}"
        );
        std::fs::write(&calibration, text).unwrap();
        let text = format!(
            "[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\ncalibration = \"{}\"\n{tenants}",
            calibration.display()
        );
        BlockConfig::parse(Path::new("b.toml"), &text).unwrap()
    }

    fn reader(name: &str, iops: u32) -> String {
        format!(
            "[[tenant]]\nexport = \"{name}\"\ndevice = \"ram\"\nread_only = true\n\
             objective = {{ p95_us = 5000, iops = {iops}, read_share = 1.0 }}\n"
        )
    }

    /// What is said while the first tenant's reads take so long, for thirty seconds: one each
    /// millisecond, if it is among those that count, on one shard after the other.
    fn said_while_reads_take(
        took_ns: u64,
        exports: &Arc<Exports>,
        shards: usize,
        counts: fn(u64) -> bool,
    ) -> Vec<String> {
        let mut all: Vec<(Tenants, u32)> = (0..shards)
            .map(|_| {
                let mut tenants = Tenants::new();
                tenants.sync(exports);
                let tenant = tenants.open(&exports[0]).unwrap();
                (tenants, tenant)
            })
            .collect();
        let request = NbdRequest {
            kind: RequestKind::Read,
            flags: 0,
            cookie: 0,
            offset: 0,
            len_bytes: 4096,
            payload_bytes: 0,
        };
        let (mut ready, mut resumable) = (VecDeque::new(), Vec::new());
        let mut said = Vec::new();
        for millisecond in 1..30_000 {
            let now = Time(millisecond * 1_000_000);
            for (number, (tenants, tenant)) in (0..).zip(&mut all) {
                if counts(millisecond) && millisecond % shards as u64 == number {
                    assert!(tenants.enqueue(*tenant, &request, 0, now));
                }
                tenants.round(now, &mut ready, &mut resumable);
                for _ in ready.drain(..) {
                    tenants.completed(*tenant, &request, took_ns, took_ns);
                }
                while let Some((name, notice)) = tenants.take_notice(now) {
                    said.push(crate::launch::text(&name, notice));
                }
            }
        }
        said
    }

    /// A device that is much slower than its calibration says: somebody is told, once.
    #[test]
    fn a_calibration_that_no_longer_holds_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path(), &reader("db", 2000));
        let exports = Arc::new(export::open(&config, &Vec::new(), 1).unwrap());
        let said = said_while_reads_take(900_000, &exports, 1, |_| true);
        assert_eq!(said.len(), 1, "{said:?}");
        let expected =
            "ram no longer behaves as calibrated: it is slower, with a 95th percentile of ";
        assert!(said[0].starts_with(expected), "{said:?}");
        let drift = exports[0].device.qos.status().drift.unwrap();
        assert_eq!(drift.calibrated_p95_us, 100.0);
    }

    /// A tenant that is in and out of its deficit every four seconds asks for too much once.
    #[test]
    fn a_deficit_is_said_once_until_it_is_over_for_ten_seconds() {
        let directory = tempfile::tempdir().unwrap();
        let greedy = "[[tenant]]\nexport = \"scan\"\ndevice = \"ram\"\nread_only = true\n";
        let config = config(directory.path(), &(reader("db", 450) + greedy));
        for shards in [1, 2] {
            let exports = Arc::new(export::open(&config, &Vec::new(), shards).unwrap());
            let said = said_while_reads_take(80_000, &exports, shards, |millisecond| {
                millisecond < 15_000 && millisecond % 4000 < 2000
            });
            assert_eq!(said.len(), 2, "{shards} shards: {said:?}");
            let expected = "db asks for more than its objective reserved, 45,000 tokens/s. Requests that wait: ";
            assert!(said[0].starts_with(expected), "{said:?}");
            assert!(
                said[0].contains("Give the tenant a larger `iops`"),
                "{said:?}"
            );
            assert_eq!(said[1], "db has stayed within its reservation for 10 s");
        }
    }

    /// What the device does by now is too little for what was promised: a reload of the same file
    /// is no new promise.
    #[test]
    fn a_reload_keeps_what_was_promised_on_a_device_that_has_aged() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path(), &reader("db", 2000).replace("5000", "150"));
        let exports = Arc::new(export::open(&config, &Vec::new(), 1).unwrap());
        said_while_reads_take(4_000_000, &exports, 1, |_| true);
        let model = exports[0].device.qos.model();
        let refused = qos::Admission::new(model).admit(&exports[0].tenant_spec());
        assert!(refused.is_err(), "the device has not aged");
        let again = export::open(&config, &exports, 1).unwrap();
        assert!(Arc::ptr_eq(&again[0], &exports[0]));
    }

    /// A start goes by the calibration, and a reload by what the device does by now.
    #[test]
    fn a_restart_refuses_what_a_reload_takes_on_a_device_that_is_faster() {
        let directory = tempfile::tempdir().unwrap();
        let config = |p95_us: &str| {
            let tenant = reader("db", 2000).replace("5000", p95_us);
            config(directory.path(), &tenant)
        };
        let exports = Arc::new(export::open(&config("150"), &Vec::new(), 1).unwrap());
        assert!(crate::plan::books(&config("150")).is_ok());
        assert!(export::open(&config("60"), &exports, 1).is_err());
        said_while_reads_take(20_000, &exports, 1, |_| true);
        assert!(export::open(&config("60"), &exports, 1).is_ok());
        let refused = crate::plan::books(&config("60")).err().unwrap().to_string();
        assert!(
            refused.contains("\"db\" does not fit the calibration: "),
            "{refused}"
        );
    }

    /// The device has 10,000 reads a second. Either tenant gets what the other one gives up, in
    /// whichever order they stand, and a new one what a removed one had. Two shards follow, one
    /// after the other.
    #[test]
    fn a_reload_moves_reservations_between_tenants() {
        let directory = tempfile::tempdir().unwrap();
        let mut shards = [Tenants::new(), Tenants::new()];
        let mut exports = Arc::new(Vec::new());
        for (text, expected) in [
            ([reader("a", 1000), reader("b", 9000)], [1000, 9000]),
            ([reader("a", 9000), reader("b", 1000)], [9000, 1000]),
            ([reader("a", 500), reader("b", 9500)], [500, 9500]),
            ([reader("a", 500), reader("c", 9500)], [500, 9500]),
        ] {
            let config = config(directory.path(), &text.concat());
            exports = Arc::new(export::open(&config, &exports, 2).unwrap());
            for tenants in &mut shards {
                tenants.sync(&exports);
                let fares = tenants.status(Time(0)).into_iter();
                let promised: Vec<u32> =
                    fares.map(|it| it.tenant.objective.unwrap().iops).collect();
                assert_eq!(promised, expected, "{text:?}");
                let of_device = exports[0].device.qos.status();
                assert_eq!(of_device.reserved_tokens_per_s, 1_000_000);
                assert_eq!(of_device.latency_critical, 2);
            }
            let of_device = exports[0].device.qos.status();
            assert_eq!(of_device.best_effort, 0, "{text:?}");
        }
    }

    /// A new calibration has other prices: what is reserved follows.
    #[test]
    fn a_reload_takes_a_new_calibration() {
        let directory = tempfile::tempdir().unwrap();
        let tenant = "[[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n\
                      objective = { p95_us = 5000, iops = 1000, read_share = 0.5 }\n";
        let config = config(directory.path(), tenant);
        let mut tenants = Tenants::new();
        let mut exports = Arc::new(Vec::new());
        let calibration = directory.path().join("ram.json");
        let first = std::fs::read_to_string(&calibration).unwrap();
        for (write_cost, reserved) in [(1000, 550_000), (500, 300_000), (1500, 800_000)] {
            let text = first.replace("1000,", &format!("{write_cost},"));
            std::fs::write(&calibration, text).unwrap();
            exports = Arc::new(export::open(&config, &exports, 1).unwrap());
            tenants.sync(&exports);
            let status = exports[0].device.qos.status();
            assert_eq!(status.reserved_tokens_per_s, reserved);
            assert_eq!(status.latency_critical, 1);
        }
        tenants.sync(&Arc::new(Vec::new()));
        assert_eq!(exports[0].device.qos.status().reserved_tokens_per_s, 0);
    }

    /// A device that no tenant names any more is let go of with its last connection, and can be
    /// opened again with its data.
    #[test]
    fn a_device_without_tenants_is_released() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let parse = |names: &[&str]| {
            let tables = names.iter().map(|name| {
                let path = at(name);
                format!(
                    "[[device]]\npath = {path:?}\ncreate = \"1MiB\"\n\
                     [[tenant]]\nexport = \"{name}\"\ndevice = {path:?}\n"
                )
            });
            BlockConfig::parse(Path::new("b.toml"), &tables.collect::<String>()).unwrap()
        };
        let mut tenants = Tenants::new();
        let open =
            |names: &[&str], old: &Exports| export::open(&parse(names), old, 1).map(Arc::new);
        let mut exports = open(&["a", "b", "c"], &Vec::new()).unwrap();
        tenants.sync(&exports);
        let session = tenants.open(&exports[0]).unwrap();
        let connected = Arc::clone(&exports[0]);
        exports = open(&["b"], &exports).unwrap();
        tenants.sync(&exports);
        let error = open(&["a", "b"], &exports).err().unwrap().to_string();
        assert!(error.contains("connections of a removed tenant"), "{error}");
        tenants.close(session);
        drop(connected);
        tenants.sync(&exports);
        for names in [&["a", "b", "c"][..], &["b"], &["c", "b"]] {
            exports = open(names, &exports).unwrap();
            tenants.sync(&exports);
            assert_eq!(tenants.served.len(), 3);
            let here: Vec<String> = tenants
                .status(Time(0))
                .into_iter()
                .map(|it| it.export)
                .collect();
            assert_eq!(here.len(), names.len(), "{here:?}");
        }
    }

    /// An export that is gone while a client uses it, and comes again.
    #[test]
    fn an_export_that_comes_again_is_a_tenant_again() {
        let directory = tempfile::tempdir().unwrap();
        let both = [reader("a", 1000), reader("b", 1000)];
        let mut tenants = Tenants::new();
        let mut exports = Arc::new(Vec::new());
        for (text, expected) in [
            (both.concat(), vec!["a", "b"]),
            (both[1].clone(), vec!["b"]),
            (both.concat(), vec!["a", "b"]),
        ] {
            let config = config(directory.path(), &text);
            exports = Arc::new(export::open(&config, &exports, 1).unwrap());
            tenants.sync(&exports);
            if exports.len() == 2 {
                tenants.open(&exports[0]).unwrap();
            }
            let fares = tenants.status(Time(0));
            let names: Vec<&str> = fares.iter().map(|fare| fare.export.as_str()).collect();
            assert_eq!(names, expected);
        }
    }

    /// The shard answers nobody meanwhile.
    #[test]
    fn a_reload_of_as_many_tenants_as_there_may_be_is_quick() {
        let directory = tempfile::tempdir().unwrap();
        let text: String = (0..qos::TENANTS_MAX)
            .map(|number| {
                format!("[[tenant]]\nexport = \"t{number}\"\ndevice = \"ram\"\nread_only = true\n")
            })
            .collect();
        let config = config(directory.path(), &text);
        let exports = Arc::new(export::open(&config, &Vec::new(), 1).unwrap());
        let mut tenants = Tenants::new();
        tenants.sync(&exports);
        let again = Arc::new(export::open(&config, &exports, 1).unwrap());
        let began = std::time::Instant::now();
        tenants.sync(&again);
        let took = began.elapsed();
        assert!(took.as_secs() < 1, "{took:?}");
        assert_eq!(tenants.status(Time(0)).len(), exports.len());
    }
}
