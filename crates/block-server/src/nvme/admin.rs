//! Commands of an admin queue.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::command::{FABRICS, Status, SubmissionEntry};
use super::controller::NvmeController;
use super::features::{FeatureValue, Features, HOST_ID, HOST_ID_BYTES};
use super::identify::{self, EVENTS_MAX, IDENTIFY_BYTES, NAMESPACE_EVENTS, VERSION};
use super::view::AdminView;
use super::{QUEUE_ENTRIES, log_page};

const GET_LOG: u8 = 0x02;
const IDENTIFY: u8 = 0x06;
const ABORT: u8 = 0x08;
const SET_FEATURES: u8 = 0x09;
const GET_FEATURES: u8 = 0x0a;
const EVENT_REQUEST: u8 = 0x0c;
const KEEP_ALIVE: u8 = 0x18;

const PROPERTY_SET: u8 = 0x00;
const PROPERTY_GET: u8 = 0x04;

const CAPABILITIES_AT: u32 = 0x00;
const VERSION_AT: u32 = 0x08;
const CONFIGURATION_AT: u32 = 0x14;
const STATUS_AT: u32 = 0x1c;

const READY: u32 = 1 << 0;
const FATAL: u32 = 1 << 1;
const SHUTDOWN_COMPLETE: u32 = 2 << 2;

/// An event of the type Notice: the attributes of a namespace changed. The log page that tells
/// which is in the third byte.
const NAMESPACE_CHANGED: u32 = 0x0004_0002;
/// The largest log page that is answered at once.
const LOG_BYTES: usize = 128 << 10;

/// What a command is answered with.
#[derive(Debug, PartialEq, Eq)]
pub enum AdminAnswer {
    /// A result.
    Done(u64),
    /// Data, and a completion.
    Data(Vec<u8>),
    /// An error.
    Failed(Status),
    /// An event, when there is one.
    Later,
}

/// An admin queue.
pub struct Admin {
    /// The controller.
    pub controller: Arc<NvmeController>,
    configuration: u32,
    status: u32,
    features: Features,
    /// Event requests that wait, by their numbers.
    requests: VecDeque<u16>,
    /// Requests that the host wants back.
    aborted: VecDeque<u16>,
    /// Namespaces that changed since the host last read which.
    changed: BTreeSet<u32>,
    /// The host was told and has not read the log page yet.
    is_told: bool,
}

/// Bytes of data that a command gives at most. The memory is reserved before it is carried out.
pub fn data_bytes(entry: &SubmissionEntry) -> usize {
    match entry.opcode() {
        IDENTIFY => IDENTIFY_BYTES,
        GET_LOG => log_bytes(entry).min(LOG_BYTES),
        GET_FEATURES if entry.0[40] == HOST_ID => HOST_ID_BYTES,
        _ => 0,
    }
}

fn log_bytes(entry: &SubmissionEntry) -> usize {
    let dwords = u64::from(entry.dword(10) >> 16) | u64::from(entry.dword(11) & 0xffff) << 16;
    usize::try_from(4 * (dwords + 1)).unwrap_or(usize::MAX)
}

impl Admin {
    /// The queue of a new controller.
    pub fn new(controller: Arc<NvmeController>) -> Self {
        Self {
            controller,
            configuration: 0,
            status: 0,
            features: Features::default(),
            requests: VecDeque::new(),
            aborted: VecDeque::new(),
            changed: BTreeSet::new(),
            is_told: false,
        }
    }

    /// Carries out a command.
    pub fn execute(&mut self, entry: &SubmissionEntry, view: &AdminView<'_>) -> AdminAnswer {
        if entry.has_wrong_flags() {
            return AdminAnswer::Failed(Status::INVALID_FIELD);
        }
        if entry.opcode() == FABRICS {
            return self.fabrics(entry);
        }
        if self.status & READY == 0 {
            return AdminAnswer::Failed(Status::SEQUENCE);
        }
        let answer = match entry.opcode() {
            IDENTIFY => identify::identify(view, &self.controller, entry.0[40], entry.namespace())
                .map(AdminAnswer::Data),
            GET_LOG => self.log(entry, view),
            SET_FEATURES => {
                let set = self.features.set(&self.controller, entry);
                set.map(|result| AdminAnswer::Done(result.into()))
            }
            GET_FEATURES => self
                .features
                .get(&self.controller, entry)
                .map(AdminAnswer::from),
            KEEP_ALIVE => Ok(AdminAnswer::Done(0)),
            EVENT_REQUEST if self.requests.len() > usize::from(EVENTS_MAX) => {
                Err(Status::EVENT_LIMIT)
            }
            EVENT_REQUEST => {
                self.requests.push_back(entry.cid());
                Ok(AdminAnswer::Later)
            }
            ABORT if !self.controller.is_discovery => Ok(self.abort(entry)),
            _ => Err(Status::INVALID_OPCODE),
        };
        answer.unwrap_or_else(AdminAnswer::Failed)
    }

    fn fabrics(&mut self, entry: &SubmissionEntry) -> AdminAnswer {
        let (offset, is_long) = (entry.dword(11), entry.0[40] & 7 == 1);
        match entry.fabrics_type() {
            PROPERTY_GET => match (offset, is_long) {
                (CAPABILITIES_AT, true) => AdminAnswer::Done(capabilities()),
                (VERSION_AT, false) => AdminAnswer::Done(VERSION.into()),
                (CONFIGURATION_AT, false) => AdminAnswer::Done(self.configuration.into()),
                (STATUS_AT, false) => AdminAnswer::Done(self.status.into()),
                _ => AdminAnswer::Failed(Status::INVALID_FIELD),
            },
            PROPERTY_SET if offset == CONFIGURATION_AT && !is_long => {
                self.configure(entry.dword(12));
                AdminAnswer::Done(0)
            }
            PROPERTY_SET => AdminAnswer::Failed(Status::INVALID_FIELD),
            // A second Connect.
            1 => AdminAnswer::Failed(Status::SEQUENCE),
            _ => AdminAnswer::Failed(Status::INVALID_OPCODE),
        }
    }

    /// The host writes the configuration: it enables, disables or shuts down.
    fn configure(&mut self, value: u32) {
        let (was, is) = (self.configuration & 1, value & 1);
        let shuts_down = value >> 14 & 3 != 0;
        self.configuration = value;
        if was == 0 && is == 1 {
            // Page size, command set and arbitration have one value each; sizes of entries matter
            // where there are I/O queues.
            let is_plain = value >> 4 & 0x3ff == 0;
            let has_sizes = self.controller.is_discovery || value >> 16 & 0xff == 0x46;
            self.status = if is_plain && has_sizes { READY } else { FATAL };
        }
        if was == 1 && is == 0 {
            self.status = 0;
            self.reset();
        }
        if shuts_down {
            self.status = self.status & !READY | SHUTDOWN_COMPLETE;
            self.reset();
        } else {
            self.status &= !SHUTDOWN_COMPLETE;
        }
        let is_enabled = self.status & READY != 0;
        let enabled = &self.controller.is_enabled;
        enabled.store(is_enabled, Ordering::Release);
    }

    fn reset(&mut self) {
        self.requests.clear();
        self.features = Features::default();
        self.changed.clear();
        self.is_told = false;
    }

    fn log(
        &mut self,
        entry: &SubmissionEntry,
        view: &AdminView<'_>,
    ) -> Result<AdminAnswer, Status> {
        let which = entry.0[40];
        let keeps_event = entry.0[41] & 0x80 != 0;
        let len_bytes = log_bytes(entry);
        if len_bytes > LOG_BYTES.min(view.transfer_bytes) {
            return Err(Status::INVALID_FIELD);
        }
        let page = log_page::page(
            view,
            &self.controller,
            &self.changed,
            (which, entry.namespace()),
        )?;
        let offset = usize::try_from(entry.u64_at(48)).unwrap_or(usize::MAX);
        if !offset.is_multiple_of(4) || offset > page.len() {
            return Err(Status::INVALID_FIELD);
        }
        if which == log_page::CHANGED && !keeps_event {
            self.changed.clear();
            self.is_told = false;
        }
        let mut part: Vec<u8> = page[offset..].iter().copied().take(len_bytes).collect();
        part.resize(len_bytes, 0);
        Ok(AdminAnswer::Data(part))
    }

    /// Event requests can be aborted. Other commands are too fast for that.
    fn abort(&mut self, entry: &SubmissionEntry) -> AdminAnswer {
        let (queue, cid) = (entry.u16_at(40), entry.u16_at(42));
        let found = self.requests.iter().position(|&request| request == cid);
        match found.filter(|_| queue == 0) {
            Some(at) => {
                self.requests.remove(at);
                self.aborted.push_back(cid);
                AdminAnswer::Done(0)
            }
            None => AdminAnswer::Done(1),
        }
    }

    /// These namespaces have changed.
    pub fn changed(&mut self, numbers: impl IntoIterator<Item = u32>) {
        self.changed.extend(numbers);
    }

    /// The next event request that is to be answered: its number, the result, the status.
    pub fn take_event(&mut self) -> Option<(u16, u32, Status)> {
        if let Some(cid) = self.aborted.pop_front() {
            return Some((cid, 0, Status::ABORTED));
        }
        let is_wanted = self.features.events & NAMESPACE_EVENTS != 0;
        if self.changed.is_empty() || self.is_told || !is_wanted {
            return None;
        }
        let cid = self.requests.pop_front()?;
        self.is_told = true;
        Some((cid, NAMESPACE_CHANGED, Status::SUCCESS))
    }
}

impl From<FeatureValue> for AdminAnswer {
    fn from(value: FeatureValue) -> Self {
        match value {
            FeatureValue::Number(number) => Self::Done(number.into()),
            FeatureValue::Data(data) => Self::Data(data),
        }
    }
}

/// Controller Capabilities: queues are contiguous, 7.5 s to get ready, the NVM command set.
fn capabilities() -> u64 {
    let entries = u64::from(QUEUE_ENTRIES) - 1;
    entries | 1 << 16 | 15 << 24 | 1 << 37
}
