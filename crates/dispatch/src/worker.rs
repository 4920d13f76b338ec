//! A worker: takes orders from the queue, claims them, measures them on this host, and brings the
//! results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, AckKind, Message};
use async_nats::{Client, RequestErrorKind};
use futures_util::StreamExt as _;
use host::Roots;
use tuner::assignment::{self, EvaluationResult, Purpose};
use tuner::ledger::LedgerEvent;
use tuner::live::Live;
use tuner::process::Interrupt;
use tuner::protocol::{Hello, Instance, Reply, Ticket, WorkOrder, WorkerMessage};
use tuner::report::Failure;

use crate::allowed::is_allowed;
use crate::config::{OWN_LABELS, WorkerConfig};
use crate::connection::{COORDINATOR, STREAM, connect};
use crate::error::Error;
use crate::signing::{KEY_HEADER, SIGNATURE_HEADER, is_trusted};

/// How long to wait before the coordinator, or a queue, is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long one look into a queue waits for an order.
const LOOK: Duration = Duration::from_secs(2);

/// An answer that takes longer will not come; the client's own bound does not hold for what waits
/// to be sent.
const ASK_MAX: Duration = Duration::from_secs(10);

/// What is in the way where there is no connection.
const UNREACHED: &str = "NATS is not reached";

/// The longest pause after orders that failed through no fault of their configuration, or could not
/// be begun: a sick host must not drain the queue.
const SICK_MAX: Duration = Duration::from_secs(60);

/// Experiments of which is known what was said of them; of more, it may be said again.
const TOLD_MAX: usize = 1000;

/// Measures what the queue holds, until a signal.
///
/// First it undoes whatever an earlier worker on this host left when it was killed.
///
/// # Errors
/// The host cannot be restored or is in use; the configuration cannot be used.
pub fn run(
    config: &WorkerConfig,
    state_dir: &Path,
    interrupt: &Interrupt,
    report: fn(&str),
) -> Result<(), Error> {
    restore(state_dir, report)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    let ended = runtime.block_on(async {
        let hello = hello(config);
        let client = connect(&config.nats, &hello.name, report).await?;
        let mut worker = Worker {
            config,
            state_dir: state_dir.to_owned(),
            interrupt: interrupt.clone(),
            report,
            client,
            hello,
            lease: Duration::from_secs(30),
            sick: 0,
            told: BTreeMap::new(),
            rests_until: tokio::time::Instant::now(),
        };
        let ended = worker.work().await;
        // What was said last is still on its way.
        let _ = tokio::time::timeout(AGAIN, worker.client.flush()).await;
        ended
    });
    // A measurement that is under way has been told to end.
    runtime.shutdown_timeout(Duration::from_secs(60));
    ended
}

fn restore(state_dir: &Path, report: fn(&str)) -> Result<(), Error> {
    let undone = tuner::undo::undo(state_dir, &Roots::default(), false)?;
    if let Some(sentence) = undone.sentence() {
        report(&sentence);
    }
    match undone.is_complete() {
        true => Ok(()),
        false => Err(Error::NotRestored),
    }
}

fn hello(config: &WorkerConfig) -> Hello {
    let roots = Roots::default();
    let machine = host::Machine::describe(&roots);
    let hostname = || {
        let text = std::fs::read_to_string(roots.proc("sys/kernel/hostname"));
        text.map_or_else(|_| "worker".into(), |text| text.trim().to_owned())
    };
    let mut labels = config.labels.clone();
    let arch = std::env::consts::ARCH.to_owned();
    let own = [machine.kernel, machine.cpu_model, arch];
    labels.extend(OWN_LABELS.map(str::to_owned).into_iter().zip(own));
    Hello {
        name: config.name.clone().unwrap_or_else(hostname),
        labels,
        version: env!("CARGO_PKG_VERSION").into(),
        instance: Some(instance(&roots)),
    }
}

/// Who we are among all workers that have our name.
fn instance(roots: &Roots) -> Instance {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let ns = now.tv_sec.saturating_mul(1_000_000_000) + now.tv_nsec;
    Instance {
        boot_id: host::boot_id(roots),
        started_ns: u64::try_from(ns).unwrap_or(0),
    }
}

struct Worker<'a> {
    config: &'a WorkerConfig,
    state_dir: PathBuf,
    interrupt: Interrupt,
    report: fn(&str),
    client: Client,
    hello: Hello,
    lease: Duration,
    /// Orders in a row that failed through no fault of their configuration, or could not be begun.
    sick: u32,
    /// Why it could not measure experiments, as it was said last.
    told: BTreeMap<i64, String>,
    /// No order is taken before; the coordinator is greeted all the same.
    rests_until: tokio::time::Instant,
}

impl Worker<'_> {
    async fn work(&mut self) -> Result<(), Error> {
        let mut turn = 0;
        let mut said = String::new();
        // What is in the way of each queue, as it was said last.
        let mut of_queues: BTreeMap<String, String> = BTreeMap::new();
        let mut is_welcome = false;
        while self.interrupt.signal().is_none() {
            let classes = match self.ask(&WorkerMessage::Hello(self.hello.clone())).await {
                Ok(Reply::Welcome { classes, lease_s }) => {
                    self.lease = Duration::from_secs_f64(lease_s.clamp(1.0, 3600.0));
                    if !is_welcome {
                        let name = &self.hello.name;
                        (self.report)(&format!("worker {name:?} waits for orders"));
                    } else if !said.is_empty() {
                        (self.report)("the server answers");
                    }
                    is_welcome = true;
                    said.clear();
                    classes
                }
                Ok(Reply::Trouble(message)) | Err(message) => {
                    if said != message {
                        (self.report)(&format!("waits for the server: {message}"));
                        said = message;
                    }
                    self.pause(AGAIN).await;
                    continue;
                }
                Ok(_) => Vec::new(),
            };
            if classes.is_empty() || tokio::time::Instant::now() < self.rests_until {
                self.pause(AGAIN).await;
                continue;
            }
            turn += 1;
            let class = &classes[turn % classes.len()];
            // Of several queues, none is waited for long.
            let wait = LOOK / u32::try_from(classes.len()).unwrap_or(1);
            match self.take(class, wait.max(Duration::from_millis(100))).await {
                Ok(message) => {
                    if of_queues.remove(class).is_some() {
                        (self.report)("the queue answers");
                    }
                    if let Some(message) = message {
                        self.attend(message).await?;
                    }
                }
                Err(message) => {
                    if of_queues.get(class) != Some(&message) {
                        (self.report)(&format!("the queue: {message}"));
                        of_queues.insert(class.clone(), message);
                    }
                    self.pause(AGAIN).await;
                }
            }
        }
        Ok(())
    }

    /// Waits, but not beyond a signal.
    async fn pause(&self, duration: Duration) {
        let end = tokio::time::Instant::now() + duration;
        while self.interrupt.signal().is_none() && tokio::time::Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(50).min(duration)).await;
        }
    }

    /// Asks the coordinator. While NATS is away nothing is asked: the client would keep all of it,
    /// and send it when it is back.
    async fn ask(&self, request: &WorkerMessage) -> Result<Reply, String> {
        if !self.is_connected() {
            return Err(UNREACHED.into());
        }
        let asked = tokio::time::timeout(ASK_MAX, self.ask_now(request)).await;
        asked.unwrap_or_else(|_| Err(UNREACHED.into()))
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Keeps an order from being delivered to others.
    async fn keep(&self, message: &Message) {
        if self.is_connected() {
            let _ = message.ack_with(AckKind::Progress).await;
        }
    }

    async fn ask_now(&self, request: &WorkerMessage) -> Result<Reply, String> {
        let body = serde_json::to_vec(request).map_err(|error| error.to_string())?;
        let most = self.client.server_info().max_payload;
        if most > 0 && body.len() > most {
            return Err(format!(
                "{} bytes are more than NATS's max_payload of {most}",
                body.len()
            ));
        }
        let answer = self.client.request(COORDINATOR, body.into()).await;
        let answer = answer.map_err(|error| {
            if !self.is_connected() {
                UNREACHED.to_owned()
            } else if error.kind() == RequestErrorKind::NoResponders {
                "none is there: does `slackline serve --workers` run, on this NATS?".to_owned()
            } else {
                error.to_string()
            }
        })?;
        serde_json::from_slice(&answer.payload).map_err(|error| error.to_string())
    }

    /// One order of a class, if one lies there.
    async fn take(&self, class: &str, wait: Duration) -> Result<Option<Message>, String> {
        let look = async {
            let context = jetstream::new(self.client.clone());
            let consumer: PullConsumer = context
                .get_consumer_from_stream(class, STREAM)
                .await
                .map_err(|error| error.to_string())?;
            let mut messages = consumer
                .fetch()
                .max_messages(1)
                .expires(wait)
                .messages()
                .await
                .map_err(|error| error.to_string())?;
            match messages.next().await {
                Some(Ok(message)) => Ok(Some(message)),
                Some(Err(error)) => Err(error.to_string()),
                None => Ok(None),
            }
        };
        match tokio::time::timeout(wait + Duration::from_secs(10), look).await {
            Ok(taken) => taken,
            Err(_) => Err("NATS does not answer".into()),
        }
    }

    /// Claims an order, measures it, brings the result. An order that is not acknowledged is
    /// delivered again.
    async fn attend(&mut self, message: Message) -> Result<(), Error> {
        let Ok(order) = serde_json::from_slice::<WorkOrder>(&message.payload) else {
            self.refuse(&message).await;
            return Ok(());
        };
        let Some(attempt) = self.claim(&message, order.ticket, order.made_ms).await else {
            return Ok(());
        };
        let ticket = order.ticket;
        let header = |name: &str| {
            let headers = message.headers.as_ref()?;
            Some(headers.get(name)?.as_str().to_owned())
        };
        let is_trusted = is_trusted(
            self.config,
            header(KEY_HEADER).as_deref(),
            header(SIGNATURE_HEADER).as_deref(),
            &message.payload,
        );
        let blocks = Arc::new(AtomicUsize::new(0));
        let measuring = Measuring {
            order,
            allow: (!is_trusted).then(|| self.config.allow.clone()),
            state_dir: self.state_dir.clone(),
            interrupt: self.interrupt.clone(),
            blocks: Arc::clone(&blocks),
        };
        let mut measuring = tokio::task::spawn_blocking(move || measuring.run());
        let measured = loop {
            tokio::select! {
                ended = &mut measuring => break ended,
                () = tokio::time::sleep(self.lease / 4) => {
                    self.keep(&message).await;
                    let beat = WorkerMessage::Beat {
                        ticket,
                        attempt,
                        worker: self.hello.name.clone(),
                        blocks: blocks.load(Ordering::Relaxed),
                    };
                    // Whoever is cut off goes on: the link may come back before somebody else
                    // claims it.
                    if self.ask(&beat).await == Ok(Reply::Stop) {
                        self.interrupt.kill_evaluation();
                    }
                    // A coordinator that was started meanwhile knows nobody.
                    let _ = self.ask(&WorkerMessage::Hello(self.hello.clone())).await;
                }
            }
        };
        self.interrupt.evaluation_is_over();
        let (measured, is_restored) = match measured {
            Ok(measured) => measured,
            Err(_) => (Err("the worker's thread panicked".into()), false),
        };
        match measured {
            Ok(measured) if measured.signal.is_some() => {
                self.give_back(&message, ticket, attempt, None).await;
            }
            Ok(mut measured) => {
                measured.host = Some(self.hello.name.clone());
                match (measured.failure, &measured.reason) {
                    (Some(_), Some(reason)) => self.tell(ticket, "could ", reason),
                    _ => drop(self.told.remove(&ticket.experiment)),
                }
                let is_sick = measured.failure.is_some();
                self.bring(&message, ticket, attempt, measured).await;
                self.rest(is_sick);
            }
            Err(why) => {
                self.tell(ticket, "can", &why);
                self.give_back(&message, ticket, attempt, Some(why)).await;
                self.rest(true);
            }
        }
        match is_restored {
            true => Ok(()),
            false => Err(Error::NotRestored),
        }
    }

    /// Gives back an order that is not understood, which another worker may be able to: what it is
    /// stands in its subject.
    async fn refuse(&mut self, message: &Message) {
        let version = &self.hello.version;
        let why = format!(
            "version {version} of Slackline does not understand the order: does the server have the same version?"
        );
        let numbers = message.subject.rsplitn(5, '.').collect::<Vec<_>>();
        let numbers = numbers.iter().take(4).rev().copied().collect::<Vec<_>>();
        let Ok(ticket) = numbers.join(".").parse::<Ticket>() else {
            (self.report)(&why);
            let _ = message.ack_with(AckKind::Nak(Some(self.lease))).await;
            return;
        };
        if let Some(attempt) = self.claim(message, ticket, None).await {
            self.tell(ticket, "can", &why);
            self.give_back(message, ticket, attempt, Some(why)).await;
            self.rest(true);
        }
    }

    /// Says why something of an experiment was not measured, once until that changes.
    fn tell(&mut self, ticket: Ticket, can: &str, why: &str) {
        let before = self.told.get(&ticket.experiment);
        if before.is_some_and(|before| before == why) {
            return;
        }
        (self.report)(&format!("{ticket} {can}not be measured here: {why}"));
        if self.told.len() >= TOLD_MAX {
            self.told.clear();
        }
        self.told.insert(ticket.experiment, why.to_owned());
    }

    /// Leaves an order to others.
    async fn give_back(
        &self,
        message: &Message,
        ticket: Ticket,
        attempt: i64,
        why: Option<String>,
    ) {
        let release = WorkerMessage::Release {
            ticket,
            attempt,
            why,
        };
        let _ = self.ask(&release).await;
        let _ = message.ack_with(AckKind::Nak(None)).await;
    }

    /// Takes no order for a while, the longer the more of them went wrong in a row.
    fn rest(&mut self, is_sick: bool) {
        self.sick = if is_sick { self.sick + 1 } else { 0 };
        if is_sick {
            let pause = Duration::from_secs(1) * 2_u32.pow(self.sick.min(6) - 1);
            self.rests_until = tokio::time::Instant::now() + pause.min(SICK_MAX);
        }
    }

    /// The attempt under which it may be measured; `None` where it is not to be.
    async fn claim(&self, message: &Message, ticket: Ticket, made_ms: Option<i64>) -> Option<i64> {
        let claim = WorkerMessage::Claim {
            ticket,
            worker: self.hello.name.clone(),
            made_ms,
        };
        while self.interrupt.signal().is_none() {
            match self.ask(&claim).await {
                Ok(Reply::Granted { attempt }) => return Some(attempt),
                Ok(Reply::Gone) => {
                    let _ = message.double_ack().await;
                    return None;
                }
                Ok(Reply::Later) => {
                    let _ = message.ack_with(AckKind::Nak(Some(self.lease))).await;
                    return None;
                }
                _ => {
                    self.keep(message).await;
                    self.pause(AGAIN).await;
                }
            }
        }
        let _ = message.ack_with(AckKind::Nak(None)).await;
        None
    }

    /// Brings a result until the coordinator has written it down, or does not want it. After a
    /// signal that is tried once; then the order is left to others, at once.
    async fn bring(
        &self,
        message: &Message,
        ticket: Ticket,
        attempt: i64,
        measured: EvaluationResult,
    ) {
        let mut result = WorkerMessage::Result {
            ticket,
            attempt,
            measured: Box::new(measured),
        };
        let size = serde_json::to_vec(&result).map_or(0, |body| body.len());
        let most = self.client.server_info().max_payload;
        if most > 0 && size > most {
            let reason = format!(
                "the result has {size} bytes, more than NATS's max_payload of {most}: raise that, or measure fewer blocks"
            );
            if ticket.verification > 0 {
                self.give_back(message, ticket, attempt, Some(reason)).await;
                return;
            }
            let mut failed = EvaluationResult::failed(reason);
            failed.host = Some(self.hello.name.clone());
            result = WorkerMessage::Result {
                ticket,
                attempt,
                measured: Box::new(failed),
            };
        }
        loop {
            match self.ask(&result).await {
                Ok(reply @ (Reply::Accepted | Reply::Refused)) => {
                    if reply == Reply::Refused {
                        (self.report)(&format!(
                            "the result of {ticket} came too late: somebody else has measured it, or nobody wants it"
                        ));
                    }
                    // Where this is lost, the order comes again, and its claim is answered with
                    // "gone".
                    let _ = message.double_ack().await;
                    return;
                }
                _ if self.interrupt.signal().is_some() => break,
                _ => {
                    self.keep(message).await;
                    self.pause(AGAIN).await;
                }
            }
        }
        self.give_back(message, ticket, attempt, None).await;
    }
}

/// One order while it is measured, in a thread of its own.
struct Measuring {
    order: WorkOrder,
    /// What an order without a known signature may do.
    allow: Option<crate::config::Allow>,
    state_dir: PathBuf,
    interrupt: Interrupt,
    blocks: Arc<AtomicUsize>,
}

impl Measuring {
    /// What came of it, or why it cannot be begun on this host; and whether the host is as it was.
    fn run(self) -> (Result<EvaluationResult, String>, bool) {
        let roots = Roots::default();
        let path = self.order.dir.join("experiment.json");
        let spec = serde_json::to_string(&self.order.spec)
            .map_err(|error| error.to_string())
            .and_then(|text| {
                tuner::spec::context(&roots)
                    .check(text, &path)
                    .map_err(|error| error.to_string())
            });
        let spec = match spec {
            Ok(spec) => spec,
            Err(message) => return (Err(message), true),
        };
        if let Some(allow) = &self.allow
            && let Err(message) = is_allowed(allow, &self.order, &spec)
        {
            return (Err(message), true);
        }
        let mut live = match Live::new(&spec, &self.state_dir, self.interrupt.clone()) {
            Ok(live) => live,
            Err(error) => return (Err(error.to_string()), true),
        };
        if !live.left_over().is_empty() {
            drop(live);
            if restore(&self.state_dir, |_| ()).is_err() {
                return (Err("the host could not be restored".into()), false);
            }
            live = match Live::new(&spec, &self.state_dir, self.interrupt.clone()) {
                Ok(live) => live,
                Err(error) => return (Err(error.to_string()), true),
            };
        }
        let mut count = |event: &LedgerEvent<'_>| {
            if let LedgerEvent::Block { done, .. } = event {
                self.blocks.store(*done, Ordering::Relaxed);
            }
        };
        let measured = assignment::measure(&spec, &self.order.assignment, &mut live, &mut count);
        let restored = live.restore();
        let measured = measured.unwrap_or_else(|error| EvaluationResult::failed(error.to_string()));
        let purpose = self.order.assignment.purpose;
        match restored {
            Ok(restored) => (or_why_not(measured, purpose), restored.is_complete()),
            Err(error) => (Err(error.to_string()), false),
        }
    }
}

/// What was measured, or why another host is to measure it: where the harness failed before the
/// first block, it may not there. A verification's runs are few, and what claims rest on: no
/// failure of this host may be a finding.
fn or_why_not(measured: EvaluationResult, purpose: Purpose) -> Result<EvaluationResult, String> {
    let is_for_others = match purpose {
        Purpose::Search => measured.failure == Some(Failure::Harness) && measured.blocks.is_empty(),
        Purpose::Verification => measured.failure.is_some(),
    };
    match is_for_others {
        true => Err(measured.reason.unwrap_or_default()),
        false => Ok(measured),
    }
}

#[cfg(test)]
mod tests;
