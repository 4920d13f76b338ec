//! The state of the server, of its host and of its workers.

use std::path::Path;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coordinator::{ClaimCounts, Coordinator, Error, Progress, WorkerView};
use schemars::JsonSchema;
use serde::Serialize;

use crate::app::{App, Here};
use crate::reply::{Reply, blocking};

/// The state of the server.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Status {
    /// Version of Slackline.
    version: &'static str,
    /// `true`: this server has the store's lock. `false`: it waits for another server to end.
    is_active: bool,
    /// What keeps the server from measuring.
    trouble: Option<String>,
    /// `true`: the queue is paused.
    queue_is_paused: bool,
    /// The progress of the experiment that is being measured.
    progress: Option<Progress>,
}

/// The state of the server's host.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Host")]
pub(crate) struct HostState {
    /// The progress of the experiment that is being measured.
    progress: Option<Progress>,
    /// What keeps the server from measuring.
    trouble: Option<String>,
    /// The place of the store, without a password.
    store: String,
    /// What is changed on the host now, in words.
    changed: Vec<String>,
    /// What Slackline can do on this host.
    probes: Vec<host::Probe>,
}

/// The workers on other hosts.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Workers")]
pub(crate) struct WorkersState {
    /// Workers that were heard of in the last hour, by name.
    workers: Vec<WorkerView>,
    /// The numbers of claims and results.
    counts: ClaimCounts,
}

/// Lets nothing new begin.
pub(crate) async fn pause_queue(State(app): Here) -> Reply<Status> {
    status_after(app, Coordinator::pause_queue).await
}

/// Lets the queue go on.
pub(crate) async fn resume_queue(State(app): Here) -> Reply<Status> {
    status_after(app, Coordinator::resume_queue).await
}

/// The state of the server.
pub(crate) async fn status(State(app): Here) -> Reply<Status> {
    status_after(app, |_| Ok(())).await
}

/// The state of the server after a change.
async fn status_after(
    app: Arc<App>,
    change: impl FnOnce(&Coordinator) -> Result<(), Error> + Send + 'static,
) -> Reply<Status> {
    blocking(move || {
        let coordinator = &app.coordinator;
        change(coordinator)?;
        Ok(Status {
            version: env!("CARGO_PKG_VERSION"),
            is_active: coordinator.is_active(),
            trouble: coordinator.trouble(),
            queue_is_paused: coordinator.store().is_queue_paused()?,
            progress: coordinator.progress(),
        })
    })
    .await
    .map(Json)
}

/// What of the host is changed, and what it can do.
pub(crate) async fn host(State(app): Here) -> Reply<HostState> {
    blocking(move || {
        Ok(HostState {
            progress: app.coordinator.progress(),
            trouble: app.coordinator.trouble(),
            store: app.coordinator.store().location().to_string(),
            changed: changed(app.coordinator.state_dir())?,
            probes: host::probe(&host::Roots::default()),
        })
    })
    .await
    .map(Json)
}

/// The workers on other hosts, and what came of what they claimed and brought.
pub(crate) async fn workers(State(app): Here) -> Json<WorkersState> {
    let workers = app.coordinator.workers();
    Json(WorkersState {
        workers: workers.list(),
        counts: workers.counts(),
    })
}

/// What is changed on this host now, in words.
pub(crate) fn changed(state_dir: &Path) -> Result<Vec<String>, Error> {
    Ok(host::Journal::peek(state_dir)?)
}
