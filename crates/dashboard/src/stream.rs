//! Server-sent events: a page is told that something changed, and reads again what it shows.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use serde_json::json;

use crate::reply::Refusal;
use crate::server::App;

/// How often a stream looks for a change: often enough to feel live, too rarely to cost anything.
const LOOK: Duration = Duration::from_millis(300);

/// Streams at once.
const LISTENERS_MAX: usize = 64;

/// The open streams.
#[derive(Default)]
pub(crate) struct Listeners {
    count: AtomicUsize,
    is_closed: AtomicBool,
}

impl Listeners {
    /// Ends every stream.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

/// Counts one stream until it is dropped.
struct Listener(Arc<App>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.listeners.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One event for every state that a reader has not seen: what is measured, and what keeps the coordinator from it.
pub(crate) async fn events(
    State(app): State<Arc<App>>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    if app.listeners.count.fetch_add(1, Ordering::Relaxed) >= LISTENERS_MAX {
        app.listeners.count.fetch_sub(1, Ordering::Relaxed);
        return Err(Refusal::new(
            StatusCode::TOO_MANY_REQUESTS,
            format!("{LISTENERS_MAX} pages are open already"),
        ));
    }
    let listener = Listener(app);
    let stream = futures_util::stream::unfold((listener, None), |(listener, seen)| async move {
        loop {
            let app = &listener.0;
            if app.listeners.is_closed.load(Ordering::Relaxed) {
                return None;
            }
            let revision = app.coordinator.store().revision();
            if seen != Some(revision) {
                let state = json!({
                    "revision": revision,
                    "progress": app.coordinator.progress(),
                    "trouble": app.coordinator.trouble(),
                });
                let event = Event::default().event("changed").data(state.to_string());
                return Some((Ok(event), (listener, Some(revision))));
            }
            tokio::time::sleep(LOOK).await;
        }
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}
