//! Workers that exist only here: thousands of them in one process, each taking orders from a real
//! NATS, claiming them from a real coordinator and bringing results, with a simulated service in
//! between. For `cargo xtask bench workers`.
//!
//! `simulated_workers URL WORKERS SECONDS`: each evaluation takes that long.

#![expect(clippy::print_stdout, reason = "its count is its output")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, AckKind};
use async_nats::{Client, ConnectOptions};
use futures_util::StreamExt as _;
use tuner::assignment::{self, EvaluationResult};
use tuner::ledger::LedgerEvent;
use tuner::protocol::{Hello, Reply, WorkOrder, WorkerMessage};
use tuner::simulation::{Noise, SimulatedService, pooled_service};

/// Workers that share a connection.
const PER_CONNECTION: usize = 50;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, url, workers, seconds] = arguments.as_slice() else {
        return Err("usage: simulated_workers URL WORKERS SECONDS".into());
    };
    let (workers, seconds): (usize, f64) = (workers.parse()?, seconds.parse()?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(run(url, workers, seconds))
}

async fn run(url: &str, workers: usize, seconds: f64) -> Result<(), Failure> {
    let done = Arc::new(AtomicU64::new(0));
    let mut client: Option<Client> = None;
    for index in 0..workers {
        let shared = match &client {
            Some(client) if !index.is_multiple_of(PER_CONNECTION) => client.clone(),
            _ => {
                ConnectOptions::new()
                    .request_timeout(Some(Duration::from_secs(30)))
                    .connect(url)
                    .await?
            }
        };
        client = Some(shared.clone());
        let done = Arc::clone(&done);
        tokio::spawn(async move {
            // They do not all come in the same moment.
            tokio::time::sleep(Duration::from_millis(5 * index as u64)).await;
            loop {
                if let Err(error) = work(&shared, index, seconds, &done).await {
                    println!("worker {index}: {error}");
                    tokio::time::sleep(Duration::from_secs(5)).await;
                }
            }
        });
    }
    loop {
        tokio::time::sleep(Duration::from_secs(10)).await;
        println!("{} evaluations", done.load(Ordering::Relaxed));
    }
}

async fn ask(client: &Client, request: &WorkerMessage) -> Result<Reply, Failure> {
    let body = serde_json::to_vec(request)?;
    let answer = client.request("slackline.coordinator", body.into()).await?;
    Ok(serde_json::from_slice(&answer.payload)?)
}

async fn work(
    client: &Client,
    index: usize,
    seconds: f64,
    done: &AtomicU64,
) -> Result<(), Failure> {
    let name = format!("simulated {index}");
    let hello = WorkerMessage::Hello(Hello {
        name: name.clone(),
        labels: [("kind".to_owned(), "simulated".to_owned())].into(),
        version: String::new(),
        instance: None,
    });
    let Reply::Welcome { classes, lease_s } = ask(client, &hello).await? else {
        return Err("no welcome".into());
    };
    let Some(class) = classes.first() else {
        tokio::time::sleep(Duration::from_secs(2)).await;
        return Ok(());
    };
    let context = jetstream::new(client.clone());
    let consumer: PullConsumer = context
        .get_consumer_from_stream(class, "SLACKLINE_WORK")
        .await?;
    // Greets again as seldom as a lease allows.
    let end = tokio::time::Instant::now() + Duration::from_secs_f64(lease_s);
    while tokio::time::Instant::now() < end {
        let mut messages = consumer
            .fetch()
            .max_messages(1)
            .expires(Duration::from_secs(20))
            .messages()
            .await?;
        let Some(message) = messages.next().await else {
            continue;
        };
        let message = message?;
        let order: WorkOrder = serde_json::from_slice(&message.payload)?;
        let ticket = order.ticket;
        let claim = WorkerMessage::Claim {
            ticket,
            worker: name.clone(),
            made_ms: order.made_ms,
        };
        let attempt = match ask(client, &claim).await? {
            Reply::Granted { attempt } => attempt,
            Reply::Later => {
                message
                    .ack_with(AckKind::Nak(Some(Duration::from_secs(5))))
                    .await?;
                continue;
            }
            _ => {
                message.double_ack().await?;
                continue;
            }
        };
        // Between nine tenths and eleven tenths of it.
        let share = 0.9 + 0.2 * (ticket.number % 10) as f64 / 10.0;
        let beats = (seconds * share / (lease_s / 4.0)).ceil().max(1.0);
        for _ in 1..=beats_of(beats) {
            tokio::time::sleep(Duration::from_secs_f64(seconds * share / beats)).await;
            message.ack_with(AckKind::Progress).await?;
            let beat = WorkerMessage::Beat {
                ticket,
                attempt,
                worker: name.clone(),
                blocks: 0,
            };
            ask(client, &beat).await?;
        }
        let measured = Box::new(EvaluationResult {
            host: Some(name.clone()),
            output: None,
            ..simulated(&order)?
        });
        let result = WorkerMessage::Result {
            ticket,
            attempt,
            measured,
        };
        if ask(client, &result).await? == Reply::Accepted {
            done.fetch_add(1, Ordering::Relaxed);
        }
        message.double_ack().await?;
    }
    Ok(())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small number above 0"
)]
fn beats_of(beats: f64) -> u32 {
    beats as u32
}

fn simulated(order: &WorkOrder) -> Result<EvaluationResult, Failure> {
    let text = serde_json::to_string(&order.spec)?;
    let spec =
        tuner::spec::context(&host::Roots::default()).check(text, Path::new("simulated.json"))?;
    let control = spec.space.default_configuration();
    let seed = order.ticket.number as u64;
    let mut service = SimulatedService::new(seed, Noise::default(), control, pooled_service);
    Ok(assignment::measure(
        &spec,
        &order.assignment,
        &mut service,
        &mut |_: &LedgerEvent<'_>| (),
    )?)
}
