//! The coordinator's end: orders go into the work queue, workers' questions to whoever answers
//! them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, HeaderMap};
use futures_util::StreamExt as _;
use tokio::sync::Semaphore;
use tuner::protocol::{Reply, WorkOrder, WorkerMessage};

use crate::config::ServerConfig;
use crate::connection::{COORDINATOR, STREAM, WORK, connect};
use crate::error::Error;
use crate::signing::{KEY_HEADER, SIGNATURE_HEADER, Signer};

/// Questions that are being answered at once; the others wait in NATS's own buffers.
const ANSWERS_AT_ONCE: usize = 64;

/// How long the queue may take to store an order.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Orders that may be under way in one class; far above what workers there are.
const UNDER_WAY_MAX: i64 = 100_000;

/// The coordinator's end of NATS, with a runtime of its own.
pub struct CoordinatorEndpoint {
    runtime: tokio::runtime::Runtime,
    client: Client,
    signer: Signer,
    lease: Duration,
    /// Classes whose consumer is known to be there.
    classes: Mutex<BTreeSet<String>>,
}

impl CoordinatorEndpoint {
    /// Connects, now or as soon as NATS is there. What is in the way is reported.
    ///
    /// # Errors
    /// The configuration cannot be used, or the signing key cannot be read.
    pub fn open(config: &ServerConfig, state_dir: &Path, report: fn(&str)) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(16)
            .thread_name("nats")
            .enable_all()
            .build()
            .map_err(Error::Runtime)?;
        let client = runtime.block_on(connect(&config.nats, "slackline coordinator", report))?;
        Ok(Self {
            client,
            signer: Signer::at(state_dir)?,
            lease: config.lease(),
            classes: Mutex::default(),
            runtime,
        })
    }

    /// The public key, for workers' configurations.
    pub fn public_key(&self) -> String {
        self.signer.public()
    }

    /// Has workers' questions answered, from now on.
    pub fn answer(&self, answer: Arc<dyn Fn(WorkerMessage) -> Reply + Send + Sync>) {
        let client = self.client.clone();
        self.runtime.spawn(async move {
            let at_once = Arc::new(Semaphore::new(ANSWERS_AT_ONCE));
            loop {
                let Ok(mut questions) = client.subscribe(COORDINATOR).await else {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                };
                while let Some(question) = questions.next().await {
                    let Some(to) = question.reply else { continue };
                    let Ok(place) = Arc::clone(&at_once).acquire_owned().await else {
                        return;
                    };
                    let (answer, client) = (Arc::clone(&answer), client.clone());
                    tokio::spawn(async move {
                        let answered = tokio::task::spawn_blocking(move || {
                            match serde_json::from_slice(&question.payload) {
                                Ok(request) => answer(request),
                                Err(error) => Reply::Trouble(format!(
                                    "not understood ({error}): do worker and server have the same version?"
                                )),
                            }
                        });
                        if let Ok(reply) = answered.await
                            && let Ok(body) = serde_json::to_vec(&reply)
                        {
                            // Whoever gets no answer asks again.
                            let _ = client.publish(to, body.into()).await;
                        }
                        drop(place);
                    });
                }
            }
        });
    }

    /// Puts an order into the queue of its class. One that still lies there is not put there twice.
    ///
    /// # Errors
    /// Why the queue cannot be reached now.
    pub fn publish(&self, class: &str, order: &WorkOrder) -> Result<(), String> {
        let put = self.put(class, order);
        let put = async { tokio::time::timeout(PUBLISH_TIMEOUT, put).await };
        let put = match self.runtime.block_on(put) {
            Ok(put) => put,
            Err(_) => Err("it does not answer".into()),
        };
        if put.is_err() {
            // Its queue may have gone with its disk.
            self.known().remove(class);
        }
        put
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.classes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn put(&self, class: &str, order: &WorkOrder) -> Result<(), String> {
        let context = jetstream::new(self.client.clone());
        if !self.known().contains(class) {
            self.make_class(&context, class).await?;
            self.known().insert(class.to_owned());
        }
        let body = serde_json::to_vec(order).map_err(|error| error.to_string())?;
        let mut headers = HeaderMap::new();
        headers.insert(KEY_HEADER, self.signer.public().as_str());
        headers.insert(SIGNATURE_HEADER, self.signer.sign(&body).as_str());
        let subject = format!("{WORK}.{class}.{}", order.ticket);
        let put = context
            .publish_with_headers(subject, headers, body.into())
            .await
            .map_err(|error| error.to_string())?
            .await;
        match put {
            Ok(_) => Ok(()),
            // One message a subject: it lies there already.
            Err(error) if text(&error).contains("maximum messages per subject") => Ok(()),
            Err(error) => Err(text(&error)),
        }
    }

    /// The queue itself, and the consumer through which the workers of a class take from it.
    async fn make_class(&self, context: &Context, class: &str) -> Result<(), String> {
        let stream: Stream = context
            .get_or_create_stream(Config {
                name: STREAM.into(),
                subjects: vec![format!("{WORK}.>")],
                retention: RetentionPolicy::WorkQueue,
                storage: StorageType::File,
                discard: DiscardPolicy::New,
                max_messages_per_subject: 1,
                discard_new_per_subject: true,
                ..Config::default()
            })
            .await
            .map_err(|error| text(&error))?;
        stream
            .create_consumer(pull::Config {
                durable_name: Some(class.to_owned()),
                filter_subject: format!("{WORK}.{class}.>"),
                ack_policy: AckPolicy::Explicit,
                ack_wait: self.lease,
                max_deliver: -1,
                max_ack_pending: UNDER_WAY_MAX,
                ..pull::Config::default()
            })
            .await
            .map_err(|error| text(&error))?;
        Ok(())
    }
}

/// With its causes: the client's own text stops at "other error".
fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
