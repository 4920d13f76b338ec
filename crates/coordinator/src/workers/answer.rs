//! What workers are answered: who may work, who measures what, and whose result is taken.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tuner::assignment::EvaluationResult;
use tuner::protocol::{Hello, Instance, Reply, Ticket, WorkerMessage};

use super::{FORGOTTEN, GivenBack, Lease, Seen, Workers, has};
use crate::error::Error;
use crate::lock::lock;
use crate::store::Store;

/// What a worker gave back is spoken of for that long: longer than the longest pause of one that
/// goes on giving back (`dispatch::worker`).
const GIVEN_BACK: Duration = Duration::from_secs(180);

/// A worker keeps its name for that long after it was last heard of, however short the lease: one
/// that is idle says hello every two seconds (`dispatch::worker`).
const ALIVE_MIN: Duration = Duration::from_secs(3);

/// Workers that are shown; more may work.
const WORKERS_MAX: usize = 10_000;

/// So many results that were taken are remembered: a worker brings one again within seconds.
const TAKEN_MAX: usize = 1000;

impl Workers {
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

    pub(super) fn welcome(&self, hello: Hello) -> Reply {
        if let Some(why) = self.name_is_taken(&hello) {
            return Reply::Trouble(why);
        }
        let classes = lock(&self.classes);
        let classes = classes
            .iter()
            .filter(|(_, labels)| has(&hello, labels))
            .map(|(class, _)| class.clone())
            .collect();
        let at = Instant::now();
        let mut seen = lock(&self.seen);
        seen.retain(|_, seen| seen.at.elapsed() < FORGOTTEN);
        if seen.len() < WORKERS_MAX || seen.contains_key(&hello.name) {
            let before = seen.remove(&hello.name);
            let same = before.filter(|before| before.hello.instance == hello.instance);
            if same.is_none() {
                // Whoever started it again may have seen to what was wrong.
                for by_worker in lock(&self.given_back).values_mut() {
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
        let mut seen = lock(&self.seen);
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

    /// How long a worker that is silent keeps its name.
    fn alive(&self) -> Duration {
        self.lease.max(ALIVE_MIN)
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
        let is_taken = lock(&self.leases)
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
        if let Some(seen) = lock(&self.seen).get_mut(&worker) {
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
    pub(super) fn measures(&self, experiment: i64, worker: &str) {
        if let Some(by_worker) = lock(&self.given_back).get_mut(&experiment) {
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
            if lock(&self.taken).contains(&(ticket, attempt)) {
                return Ok(Reply::Accepted);
            }
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Ok(Reply::Refused);
        }
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let mut taken = lock(&self.taken);
        taken.truncate(TAKEN_MAX - 1);
        taken.push_front((ticket, attempt));
        drop(taken);
        lock(&self.leases).remove(&ticket);
        if has_measured {
            lock(&self.given_back).remove(&ticket.experiment);
        }
        Ok(Reply::Accepted)
    }

    /// Somebody else may measure it at once.
    pub(super) fn release(&self, ticket: Ticket, attempt: i64, why: Option<String>) {
        let worker = {
            let mut leases = lock(&self.leases);
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
        if let Some(seen) = lock(&self.seen).get_mut(&worker) {
            let text = format!("worker {worker:?} cannot measure experiment {experiment}: {why}");
            seen.complain(Some(experiment), text, GIVEN_BACK);
        }
        let mut given_back = lock(&self.given_back);
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

    /// Its lease begins anew.
    pub(super) fn heard_of(&self, ticket: Ticket, attempt: i64, worker: String) {
        let beat = Instant::now();
        let lease = Lease {
            attempt,
            worker,
            beat,
        };
        lock(&self.leases).insert(ticket, lease);
    }
}
