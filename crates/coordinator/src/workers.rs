//! Workers as the coordinator sees them: who is there, who measures what, and whose result is
//! taken.
//!
//! The store's row of an assignment counts its attempts; only the present attempt's result is
//! taken, in the transaction that removes the row. Leases are kept in memory only: they keep a
//! second worker from starting what a first one is measuring, which is a matter of thrift. That a
//! result is taken once is a matter of the row.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tuner::assignment::EvaluationResult;
use tuner::protocol::{Hello, Instance, Reply, Ticket, WorkOrder, WorkerMessage};

use crate::error::Error;
use crate::store::Store;

/// A worker that was not heard of for that long is not shown any more.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// What a worker gave back is spoken of for that long: longer than the longest pause of one that
/// goes on giving back (`dispatch::worker`).
const GIVEN_BACK: Duration = Duration::from_secs(180);

/// Where every worker has given an experiment back so many times in a row, none can measure it.
const GIVEN_BACK_MAX: usize = 3;

/// That has to go on for so many leases, 180 s of the usual ones: what passes sooner must not end
/// an experiment of weeks.
const GIVEN_BACK_LEASES: u32 = 6;

/// A worker keeps its name for that long after it was last heard of, however short the lease: one
/// that is idle says hello every two seconds (`dispatch::worker`).
const ALIVE_MIN: Duration = Duration::from_secs(3);

/// Workers that are shown; more may work.
const WORKERS_MAX: usize = 10_000;

/// So many results that were taken are remembered: a worker brings one again within seconds.
const TAKEN_MAX: usize = 1000;

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
    let hash = hash.finalize();
    hash.iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A worker, for those who look at it.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerView {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Version of Slackline.
    pub version: String,
    /// How long ago it was heard of.
    pub silent_s: f64,
    /// What it measures.
    pub measures: Option<String>,
    /// What is wrong with it, and what to do: another one of its name was refused lately, or it
    /// gives back what it is to measure.
    pub complaint: Option<String>,
}

/// What came of claims and results since the coordinator's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClaimCounts {
    /// Claims that were granted.
    pub granted: u64,
    /// Claims of what nobody needed any more, or somebody else was measuring.
    pub declined: u64,
    /// Results that were taken.
    pub accepted: u64,
    /// Results of earlier attempts, or of what was withdrawn.
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

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let leases = held(&self.leases);
        let measures: BTreeMap<&str, String> = leases
            .iter()
            .filter(|(_, lease)| lease.beat.elapsed() < self.lease)
            .map(|(ticket, lease)| (lease.worker.as_str(), ticket.to_string()))
            .collect();
        let seen = held(&self.seen);
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
        let seen = held(&self.seen);
        let complaints = seen.values().filter_map(Seen::complaint);
        complaints.map(|complaint| complaint.text.clone()).collect()
    }

    /// What is wrong with workers now and was not asked for here before.
    pub(crate) fn new_complaints(&self) -> Vec<String> {
        let mut new = Vec::new();
        for seen in held(&self.seen).values_mut() {
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
        let seen = held(&self.seen);
        let mut with = seen.values().filter(|seen| has(&seen.hello, labels));
        with.find_map(|seen| {
            let about = |about| seen.complaint_about(about);
            Some(about(None).or_else(|| about(Some(id)))?.text.clone())
        })
    }

    /// How long a worker that is silent keeps its name.
    fn alive(&self) -> Duration {
        self.lease.max(ALIVE_MIN)
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
        let seen = held(&self.seen);
        seen.values()
            .filter(|seen| self.is_here(seen, labels))
            .count()
    }

    pub(crate) fn open_class(&self, labels: &BTreeMap<String, String>) -> String {
        let class = class_of(labels);
        held(&self.classes).insert(class.clone(), labels.clone());
        class
    }

    /// Nobody is known to measure it.
    pub(crate) fn is_idle(&self, ticket: Ticket) -> bool {
        held(&self.leases)
            .get(&ticket)
            .is_none_or(|lease| lease.beat.elapsed() > self.lease)
    }

    pub(crate) fn begin_session(&self, id: i64, thread: Thread) -> bool {
        let mut sessions = held(&self.sessions);
        let is_new = !sessions.contains_key(&id);
        if is_new {
            sessions.insert(id, thread);
            held(&self.given_back).remove(&id);
        }
        is_new
    }

    /// The thread of a session that was begun is this one.
    pub(crate) fn enter_session(&self, id: i64) {
        held(&self.sessions).insert(id, std::thread::current());
    }

    pub(crate) fn end_session(&self, id: i64) {
        held(&self.sessions).remove(&id);
    }

    pub(crate) fn sessions(&self) -> usize {
        held(&self.sessions).len()
    }

    /// Something happened to that experiment.
    fn wake(&self, id: i64) {
        if let Some(thread) = held(&self.sessions).get(&id) {
            thread.unpark();
        }
    }

    pub(crate) fn wake_all(&self) {
        for thread in held(&self.sessions).values() {
            thread.unpark();
        }
    }

    /// Answers a worker. Nothing is granted or taken before its row is committed.
    pub(crate) fn answer(&self, store: &Store, request: WorkerMessage) -> Reply {
        let answered = match request {
            WorkerMessage::Hello(hello) => Ok(self.welcome(hello)),
            WorkerMessage::Claim {
                ticket,
                worker,
                made_ms,
            } => self.claim(store, ticket, worker, made_ms),
            WorkerMessage::Beat {
                ticket,
                attempt,
                worker,
                blocks,
            } => self.beat(store, ticket, attempt, worker, blocks),
            WorkerMessage::Release {
                ticket,
                attempt,
                why,
            } => {
                self.release(ticket, attempt, why);
                Ok(Reply::Accepted)
            }
            WorkerMessage::Result {
                ticket,
                attempt,
                measured,
            } => self.take(store, ticket, attempt, *measured),
        };
        answered.unwrap_or_else(|error| Reply::Trouble(error.to_string()))
    }

    /// As [`answer`](Self::answer), and tells the experiment.
    pub(crate) fn answer_and_wake(&self, store: &Store, request: WorkerMessage) -> Reply {
        let experiment = match &request {
            WorkerMessage::Result { ticket, .. } | WorkerMessage::Release { ticket, .. } => {
                Some(ticket.experiment)
            }
            _ => None,
        };
        let reply = self.answer(store, request);
        if let Some(id) = experiment {
            self.wake(id);
        }
        reply
    }

    fn welcome(&self, hello: Hello) -> Reply {
        if let Some(why) = self.name_is_taken(&hello) {
            return Reply::Trouble(why);
        }
        let classes = held(&self.classes);
        let classes = classes
            .iter()
            .filter(|(_, labels)| has(&hello, labels))
            .map(|(class, _)| class.clone())
            .collect();
        let at = Instant::now();
        let mut seen = held(&self.seen);
        seen.retain(|_, seen| seen.at.elapsed() < FORGOTTEN);
        if seen.len() < WORKERS_MAX || seen.contains_key(&hello.name) {
            let before = seen.remove(&hello.name);
            let same = before.filter(|before| before.hello.instance == hello.instance);
            if same.is_none() {
                // Whoever started it again may have seen to what was wrong.
                for by_worker in held(&self.given_back).values_mut() {
                    by_worker.remove(&hello.name);
                }
            }
            let complaints = same.map(|same| same.complaints);
            let now = Seen {
                hello,
                at,
                complaints: complaints.unwrap_or_default(),
            };
            seen.insert(now.hello.name.clone(), now);
        }
        drop(seen);
        Reply::Welcome {
            classes,
            lease_s: self.lease.as_secs_f64(),
        }
    }

    /// Why a worker may not work under its name: another process has it and is alive. One that was
    /// started later on the same host takes it over, as it does when it was killed and started
    /// again; where both live, the first is the one to be told.
    fn name_is_taken(&self, hello: &Hello) -> Option<String> {
        let mut seen = held(&self.seen);
        let holder = seen.get_mut(&hello.name)?;
        let (has, wants): (&Instance, &Instance) =
            (holder.hello.instance.as_ref()?, hello.instance.as_ref()?);
        if has == wants || wants.follows(has) || holder.at.elapsed() > self.alive() {
            return None;
        }
        let place = match has.is_beside(wants) {
            true => "started later on this host",
            false => "on another host",
        };
        let complaint = format!(
            "two workers are named {:?}; one is refused while the other is alive: give one of them a `name` of its own in its \
             worker.toml",
            hello.name
        );
        holder.complain(None, complaint, self.alive() * 2);
        Some(format!(
            "another worker named {:?} is alive, {place}. If the other worker has just ended, wait: this worker goes on within \
             {:.0} s. Otherwise give it another `name` in its worker.toml",
            hello.name,
            self.alive().as_secs_f64().ceil()
        ))
    }

    fn claim(
        &self,
        store: &Store,
        ticket: Ticket,
        worker: String,
        made_ms: Option<i64>,
    ) -> Result<Reply, Error> {
        if let Some(made_ms) = made_ms
            && store.made_ms(ticket.experiment)? != Some(made_ms)
        {
            // Of an earlier store that had this NATS: its order makes way for ours.
            self.declined.fetch_add(1, Ordering::Relaxed);
            return Ok(Reply::Gone);
        }
        let is_taken = held(&self.leases)
            .get(&ticket)
            .is_some_and(|lease| lease.worker != worker && lease.beat.elapsed() < self.lease);
        // The lease of what was withdrawn may still be there.
        if is_taken && store.attempt(ticket)?.is_some() {
            self.declined.fetch_add(1, Ordering::Relaxed);
            return Ok(Reply::Later);
        }
        let Some(attempt) = store.claim(ticket, &worker)? else {
            self.declined.fetch_add(1, Ordering::Relaxed);
            return Ok(Reply::Gone);
        };
        self.granted.fetch_add(1, Ordering::Relaxed);
        self.heard_of(ticket, attempt, worker);
        Ok(Reply::Granted { attempt })
    }

    fn beat(
        &self,
        store: &Store,
        ticket: Ticket,
        attempt: i64,
        worker: String,
        blocks: usize,
    ) -> Result<Reply, Error> {
        if let Some(seen) = held(&self.seen).get_mut(&worker) {
            seen.at = Instant::now();
        }
        // The row, not the lease: it may have been withdrawn.
        if store.attempt(ticket)?.map(|(attempt, _)| attempt) != Some(attempt) {
            return Ok(Reply::Stop);
        }
        if blocks > 0 {
            self.measures(ticket.experiment, &worker);
        }
        self.heard_of(ticket, attempt, worker);
        Ok(Reply::GoOn)
    }

    /// A worker can measure an experiment, whatever it said before.
    fn measures(&self, experiment: i64, worker: &str) {
        if let Some(by_worker) = held(&self.given_back).get_mut(&experiment) {
            by_worker.remove(worker);
        }
    }

    fn take(
        &self,
        store: &Store,
        ticket: Ticket,
        attempt: i64,
        measured: EvaluationResult,
    ) -> Result<Reply, Error> {
        let has_measured = measured.failure.is_none();
        if !store.finish(ticket, attempt, measured)? {
            // The answer was lost on its way.
            if held(&self.taken).contains(&(ticket, attempt)) {
                return Ok(Reply::Accepted);
            }
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Ok(Reply::Refused);
        }
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let mut taken = held(&self.taken);
        taken.truncate(TAKEN_MAX - 1);
        taken.push_front((ticket, attempt));
        drop(taken);
        held(&self.leases).remove(&ticket);
        if has_measured {
            held(&self.given_back).remove(&ticket.experiment);
        }
        Ok(Reply::Accepted)
    }

    /// Somebody else may measure it at once.
    fn release(&self, ticket: Ticket, attempt: i64, why: Option<String>) {
        let worker = {
            let mut leases = held(&self.leases);
            let is_of = |lease: &&Lease| lease.attempt == attempt;
            let Some(lease) = leases.get(&ticket).filter(is_of) else {
                return;
            };
            let worker = lease.worker.clone();
            leases.remove(&ticket);
            worker
        };
        let Some(why) = why else { return };
        let experiment = ticket.experiment;
        if let Some(seen) = held(&self.seen).get_mut(&worker) {
            let text = format!("worker {worker:?} cannot measure experiment {experiment}: {why}");
            seen.complain(Some(experiment), text, GIVEN_BACK);
        }
        let mut given_back = held(&self.given_back);
        let by_worker = given_back.entry(experiment).or_default();
        let now = Instant::now();
        let of_worker = by_worker.entry(worker).or_insert_with(|| GivenBack {
            count: 0,
            first: now,
            last: now,
            why: String::new(),
        });
        of_worker.count += 1;
        of_worker.last = now;
        of_worker.why = why;
    }

    /// Why no worker can measure an experiment, where there are workers with these labels and all
    /// of them have long said so, those that are cut off for the moment included, and none measures
    /// it.
    pub(crate) fn given_back_by_all(
        &self,
        id: i64,
        labels: &BTreeMap<String, String>,
    ) -> Option<String> {
        let by_worker = held(&self.given_back).get(&id)?.clone();
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
        let by_worker = held(&self.given_back).get(&id).cloned();
        let by_worker = by_worker.unwrap_or_default();
        let mut known = self.known_with(labels);
        known.retain(|name| !by_worker.get(name).is_some_and(|it| self.is_final(it)));
        known
    }

    /// Workers with these labels, those that are cut off for the moment included.
    fn known_with(&self, labels: &BTreeMap<String, String>) -> Vec<String> {
        let seen = held(&self.seen);
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
        let leases = held(&self.leases);
        leases
            .iter()
            .any(|(ticket, lease)| ticket.experiment == id && lease.beat.elapsed() < self.lease)
    }

    /// Whether it was heard of lately, and has these labels.
    fn is_here(&self, seen: &Seen, labels: &BTreeMap<String, String>) -> bool {
        seen.at.elapsed() < self.lease * 2 && has(&seen.hello, labels)
    }

    /// Its lease begins anew.
    fn heard_of(&self, ticket: Ticket, attempt: i64, worker: String) {
        let beat = Instant::now();
        let lease = Lease {
            attempt,
            worker,
            beat,
        };
        held(&self.leases).insert(ticket, lease);
    }

    /// Forgets leases of what is over.
    pub(crate) fn forget(&self, ticket: Ticket) {
        held(&self.leases).remove(&ticket);
    }
}

fn has(hello: &Hello, labels: &BTreeMap<String, String>) -> bool {
    labels
        .iter()
        .all(|(name, value)| hello.labels.get(name) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_its_labels_and_nothing_else() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
            class_of(&pairs.collect())
        };
        assert_eq!(of(&[("a", "1"), ("b", "2")]), of(&[("b", "2"), ("a", "1")]));
        assert_ne!(of(&[("a", "1")]), of(&[("a", "2")]));
        assert_ne!(of(&[("a", "1b")]), of(&[("a1", "b")]));
        assert_eq!(of(&[]).len(), 16);
    }

    fn ticket(experiment: i64, number: usize) -> Ticket {
        Ticket {
            experiment,
            verification: 0,
            arm: 0,
            number,
        }
    }

    fn workers_named(names: &[&str], lease: Duration) -> Workers {
        let mut workers = Workers::new();
        workers.set_lease(lease);
        for name in names {
            greet(&workers, name, 1);
        }
        workers
    }

    fn greet(workers: &Workers, name: &str, started_ns: u64) {
        let welcome = workers.welcome(Hello {
            name: name.into(),
            labels: BTreeMap::new(),
            version: String::new(),
            instance: Some(Instance {
                boot_id: "a".into(),
                started_ns,
            }),
        });
        assert!(matches!(welcome, Reply::Welcome { .. }));
    }

    fn give_back(workers: &Workers, worker: &str, times: usize) {
        for _ in 0..times {
            workers.heard_of(ticket(1, 1), 1, worker.into());
            workers.release(ticket(1, 1), 1, Some("no".into()));
        }
    }

    #[test]
    fn none_can_measure_only_where_all_have_long_said_so_and_nobody_measures() {
        let lease = Duration::from_millis(20);
        let labels = BTreeMap::new();
        let workers = workers_named(&["bad", "good"], lease);
        let none_can = || workers.given_back_by_all(1, &labels);
        give_back(&workers, "bad", 3);
        // Longer than it takes to be no more thought of as here.
        std::thread::sleep(lease * GIVEN_BACK_LEASES);
        give_back(&workers, "bad", 1);
        assert_eq!(none_can(), None, "the other is cut off, or says nothing");
        give_back(&workers, "good", 3);
        assert_eq!(none_can(), None, "that one has just begun to");
        std::thread::sleep(lease * GIVEN_BACK_LEASES);
        give_back(&workers, "good", 1);
        workers.heard_of(ticket(1, 2), 1, "unknown since the start".into());
        assert_eq!(none_can(), None, "somebody measures it");
        workers.forget(ticket(1, 2));
        assert_eq!(none_can().as_deref(), Some("\"good\": no"));
        assert_eq!(workers.able_with(1, &labels), Vec::<String>::new());
        greet(&workers, "good", 2);
        assert_eq!(none_can(), None, "it was started again");
        give_back(&workers, "good", 3);
        std::thread::sleep(lease * GIVEN_BACK_LEASES);
        give_back(&workers, "good", 1);
        assert!(none_can().is_some());
        workers.measures(1, "good");
        assert_eq!(none_can(), None, "a block of it was measured");
        assert_eq!(workers.able_with(1, &labels), ["good"]);
    }

    #[test]
    fn what_is_wrong_is_said_once_and_of_its_experiment_only() {
        let workers = workers_named(&["w"], Duration::from_secs(30));
        let give_back = |experiment, why: &str| {
            workers.heard_of(ticket(experiment, 1), 1, "w".into());
            workers.release(ticket(experiment, 1), 1, Some(why.into()));
        };
        let said = |experiment: i64, why: &str| {
            format!("worker \"w\" cannot measure experiment {experiment}: {why}")
        };
        give_back(1, "no control");
        give_back(2, "no file");
        let with = |id| workers.complaint_with(id, &BTreeMap::new());
        assert_eq!(with(1), Some(said(1, "no control")));
        assert_eq!(with(2), Some(said(2, "no file")));
        assert_eq!(with(3), None);
        assert_eq!(workers.complaints(), [said(2, "no file")], "the last");
        assert_eq!(workers.new_complaints().len(), 2);
        give_back(1, "no control");
        give_back(2, "another");
        assert_eq!(workers.new_complaints(), [said(2, "another")]);
    }
}
