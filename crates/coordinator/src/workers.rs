//! Workers as the coordinator sees them: who is there, who measures what, and whose result is
//! taken.
//!
//! The store's row of an assignment counts its attempts; only the present attempt's result is
//! taken, in the transaction that removes the row. Leases are kept in memory only: they keep a
//! second worker from starting what a first one is measuring, which is a matter of thrift. That a
//! result is taken once is a matter of the row.

mod answer;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::lock::lock;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tuner::protocol::{Hello, Ticket, WorkOrder};

/// A worker that was not heard of for that long is not shown any more.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// Where every worker has given an experiment back so many times in a row, none can measure it.
const GIVEN_BACK_MAX: usize = 3;

/// That has to go on for so many leases, 180 s of the usual ones: what passes sooner must not end
/// an experiment of weeks.
const GIVEN_BACK_LEASES: u32 = 6;

/// Brings orders to workers.
pub trait Bus: Sync {
    /// Puts an order into the queue of its class. One that still lies there is not put there twice.
    ///
    /// # Errors
    /// Why the queue cannot be reached now.
    fn publish(&self, class: &str, order: &WorkOrder) -> Result<(), String>;
}

/// The queue for workers that have these labels.
pub(crate) fn class_of(labels: &BTreeMap<String, String>) -> String {
    let mut hash = Sha256::new();
    for (name, value) in labels {
        for text in [name, value] {
            hash.update(text.len().to_le_bytes());
            hash.update(text);
        }
    }
    host::hex::encode(&hash.finalize()[..8])
}

/// A worker on another host.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Worker")]
pub struct WorkerView {
    /// Name of the worker.
    pub name: String,
    /// The worker's labels.
    pub labels: BTreeMap<String, String>,
    /// Version of Slackline.
    pub version: String,
    /// How long ago the worker was last heard of, in seconds.
    pub silent_s: f64,
    /// What the worker measures now.
    pub measures: Option<String>,
    /// What is wrong with the worker, and what to do. For example, a second worker of the same name
    /// was refused, or the worker gives its orders back.
    pub complaint: Option<String>,
}

/// The numbers of claims and results since the server's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClaimCounts {
    /// Claims that were granted.
    pub granted: u64,
    /// Claims that were declined: the order was withdrawn, or another worker measured it.
    pub declined: u64,
    /// Results that were accepted.
    pub accepted: u64,
    /// Results that were refused: of an earlier attempt, or of an order that was withdrawn.
    pub refused: u64,
}

struct Seen {
    hello: Hello,
    at: Instant,
    /// By the experiment that they are about; `None` is the worker itself.
    complaints: BTreeMap<Option<i64>, Complaint>,
}

/// What is wrong with a worker, until it is no news any more.
struct Complaint {
    text: String,
    until: Instant,
    is_told: bool,
}

impl Seen {
    fn complain(&mut self, about: Option<i64>, text: String, lasts: Duration) {
        let now = Instant::now();
        self.complaints.retain(|_, complaint| now < complaint.until);
        let before = self.complaints.get(&about);
        let is_told = before.is_some_and(|before| before.text == text && before.is_told);
        let complaint = Complaint {
            text,
            until: now + lasts,
            is_told,
        };
        self.complaints.insert(about, complaint);
    }

    fn complaint_about(&self, about: Option<i64>) -> Option<&Complaint> {
        let complaint = self.complaints.get(&about);
        complaint.filter(|complaint| Instant::now() < complaint.until)
    }

    /// What is to be seen first: what is wrong with itself, or else the last.
    fn complaint(&self) -> Option<&Complaint> {
        let last = self.complaints.iter().max_by_key(|(_, it)| it.until);
        self.complaint_about(None)
            .or_else(|| self.complaint_about(*last?.0))
    }
}

#[derive(Clone)]
struct GivenBack {
    count: usize,
    first: Instant,
    last: Instant,
    /// The last time.
    why: String,
}

struct Lease {
    attempt: i64,
    worker: String,
    beat: Instant,
}

/// The workers of a coordinator.
pub struct Workers {
    lease: Duration,
    is_there: AtomicBool,
    seen: Mutex<BTreeMap<String, Seen>>,
    leases: Mutex<HashMap<Ticket, Lease>>,
    classes: Mutex<BTreeMap<String, BTreeMap<String, String>>>,
    sessions: Mutex<BTreeMap<i64, Thread>>,
    /// For each experiment and worker, what it gave back since anything of the experiment was
    /// measured.
    given_back: Mutex<BTreeMap<i64, BTreeMap<String, GivenBack>>>,
    /// The last attempts whose results were taken, for those that bring them again.
    taken: Mutex<VecDeque<(Ticket, i64)>>,
    granted: AtomicU64,
    declined: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
}

impl Workers {
    pub(crate) fn new() -> Self {
        Self {
            lease: Duration::from_secs(30),
            is_there: AtomicBool::new(false),
            seen: Mutex::default(),
            leases: Mutex::default(),
            classes: Mutex::default(),
            sessions: Mutex::default(),
            given_back: Mutex::default(),
            taken: Mutex::default(),
            granted: AtomicU64::new(0),
            declined: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_lease(&mut self, lease: Duration) {
        self.lease = lease;
        self.is_there = AtomicBool::new(true);
    }

    /// There is a bus, so experiments on workers can be made.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// Workers that were heard of in the last hour, by name.
    pub fn list(&self) -> Vec<WorkerView> {
        let leases = lock(&self.leases);
        let measures: BTreeMap<&str, String> = leases
            .iter()
            .filter(|(_, lease)| lease.beat.elapsed() < self.lease)
            .map(|(ticket, lease)| (lease.worker.as_str(), ticket.to_string()))
            .collect();
        let seen = lock(&self.seen);
        let view = |seen: &Seen| WorkerView {
            name: seen.hello.name.clone(),
            labels: seen.hello.labels.clone(),
            version: seen.hello.version.clone(),
            silent_s: seen.at.elapsed().as_secs_f64(),
            measures: measures.get(seen.hello.name.as_str()).cloned(),
            complaint: seen.complaint().map(|it| it.text.clone()),
        };
        seen.values().map(view).collect()
    }

    /// What is wrong with workers now.
    pub fn complaints(&self) -> Vec<String> {
        let seen = lock(&self.seen);
        let complaints = seen.values().filter_map(Seen::complaint);
        complaints.map(|complaint| complaint.text.clone()).collect()
    }

    /// What is wrong with workers now and was not asked for here before.
    pub(crate) fn new_complaints(&self) -> Vec<String> {
        let mut new = Vec::new();
        for seen in lock(&self.seen).values_mut() {
            for complaint in seen.complaints.values_mut() {
                if !std::mem::replace(&mut complaint.is_told, true) {
                    new.push(complaint.text.clone());
                }
            }
        }
        new
    }

    /// What is wrong with a worker that has these labels, as far as it is about an experiment.
    pub(crate) fn complaint_with(
        &self,
        id: i64,
        labels: &BTreeMap<String, String>,
    ) -> Option<String> {
        let seen = lock(&self.seen);
        let mut with = seen.values().filter(|seen| has(&seen.hello, labels));
        with.find_map(|seen| {
            let about = |about| seen.complaint_about(about);
            Some(about(None).or_else(|| about(Some(id)))?.text.clone())
        })
    }

    /// What came of claims and results.
    pub fn counts(&self) -> ClaimCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClaimCounts {
            granted: of(&self.granted),
            declined: of(&self.declined),
            accepted: of(&self.accepted),
            refused: of(&self.refused),
        }
    }

    /// How many workers that were heard of lately have these labels.
    pub(crate) fn count_with(&self, labels: &BTreeMap<String, String>) -> usize {
        let seen = lock(&self.seen);
        seen.values()
            .filter(|seen| self.is_here(seen, labels))
            .count()
    }

    pub(crate) fn open_class(&self, labels: &BTreeMap<String, String>) -> String {
        let class = class_of(labels);
        lock(&self.classes).insert(class.clone(), labels.clone());
        class
    }

    /// Nobody is known to measure it.
    pub(crate) fn is_idle(&self, ticket: Ticket) -> bool {
        lock(&self.leases)
            .get(&ticket)
            .is_none_or(|lease| lease.beat.elapsed() > self.lease)
    }

    pub(crate) fn begin_session(&self, id: i64, thread: Thread) -> bool {
        let mut sessions = lock(&self.sessions);
        let is_new = !sessions.contains_key(&id);
        if is_new {
            sessions.insert(id, thread);
            lock(&self.given_back).remove(&id);
        }
        is_new
    }

    /// The thread of a session that was begun is this one.
    pub(crate) fn enter_session(&self, id: i64) {
        lock(&self.sessions).insert(id, std::thread::current());
    }

    pub(crate) fn end_session(&self, id: i64) {
        lock(&self.sessions).remove(&id);
    }

    pub(crate) fn sessions(&self) -> usize {
        lock(&self.sessions).len()
    }

    /// Something happened to that experiment.
    fn wake(&self, id: i64) {
        if let Some(thread) = lock(&self.sessions).get(&id) {
            thread.unpark();
        }
    }

    pub(crate) fn wake_all(&self) {
        for thread in lock(&self.sessions).values() {
            thread.unpark();
        }
    }

    /// Why no worker can measure an experiment, where there are workers with these labels and all
    /// of them have long said so, those that are cut off for the moment included, and none measures
    /// it.
    pub(crate) fn given_back_by_all(
        &self,
        id: i64,
        labels: &BTreeMap<String, String>,
    ) -> Option<String> {
        let by_worker = lock(&self.given_back).get(&id)?.clone();
        if self.is_measured(id) {
            return None;
        }
        let mut reason = None;
        for name in self.known_with(labels) {
            let GivenBack { why, .. } = by_worker.get(&name).filter(|it| self.is_final(it))?;
            reason = Some(format!("{name:?}: {why}"));
        }
        reason
    }

    /// Workers with these labels that may be able to measure an experiment: those that have not
    /// long said that they are not.
    pub(crate) fn able_with(&self, id: i64, labels: &BTreeMap<String, String>) -> Vec<String> {
        let by_worker = lock(&self.given_back).get(&id).cloned();
        let by_worker = by_worker.unwrap_or_default();
        let mut known = self.known_with(labels);
        known.retain(|name| !by_worker.get(name).is_some_and(|it| self.is_final(it)));
        known
    }

    /// Workers with these labels, those that are cut off for the moment included.
    fn known_with(&self, labels: &BTreeMap<String, String>) -> Vec<String> {
        let seen = lock(&self.seen);
        let known = seen
            .values()
            .filter(|seen| seen.at.elapsed() < FORGOTTEN && has(&seen.hello, labels));
        known.map(|seen| seen.hello.name.clone()).collect()
    }

    fn is_final(&self, given_back: &GivenBack) -> bool {
        given_back.count >= GIVEN_BACK_MAX
            && given_back.last - given_back.first >= self.lease * GIVEN_BACK_LEASES
    }

    /// Whether a worker that is heard of measures something of an experiment.
    pub(crate) fn is_measured(&self, id: i64) -> bool {
        let leases = lock(&self.leases);
        leases
            .iter()
            .any(|(ticket, lease)| ticket.experiment == id && lease.beat.elapsed() < self.lease)
    }

    /// Whether it was heard of lately, and has these labels.
    fn is_here(&self, seen: &Seen, labels: &BTreeMap<String, String>) -> bool {
        seen.at.elapsed() < self.lease * 2 && has(&seen.hello, labels)
    }

    /// Forgets leases of what is over.
    pub(crate) fn forget(&self, ticket: Ticket) {
        lock(&self.leases).remove(&ticket);
    }
}

fn has(hello: &Hello, labels: &BTreeMap<String, String>) -> bool {
    labels
        .iter()
        .all(|(name, value)| hello.labels.get(name) == Some(value))
}

#[cfg(test)]
mod tests;
