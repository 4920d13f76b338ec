//! Server-sent events: a page is told that something changed, and reads again what it shows.
//!
//! A stream ends with what admitted it: a token that is revoked or expires, or a session that ends.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use coordinator::Progress;
use futures_util::Stream;
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::Visitor;
use crate::app::App;
use crate::readers;
use crate::reply::Refusal;

/// How often a stream looks for a change, and for its own end: often enough to feel live, too
/// rarely to cost anything.
const LOOK: Duration = Duration::from_millis(300);

/// Counts one stream until it is dropped.
struct Listener {
    app: Arc<App>,
    visitor: Visitor,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.app.listeners.end(&self.visitor.name);
    }
}

impl Listener {
    fn is_closed(&self) -> bool {
        self.app.listeners.is_closed()
    }

    fn is_admitted(&self) -> bool {
        self.app.still_admits(&self.visitor.credential)
    }
}

/// The data of an event `changed`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Changed {
    /// A number that grows with every change of the store.
    revision: u64,
    /// The progress of the experiment that is being measured.
    progress: Option<Progress>,
    /// What keeps the server from measuring.
    trouble: Option<String>,
}

/// One event for every state that a reader has not seen: what is measured, and what keeps the
/// coordinator from it.
pub(crate) async fn events(
    State(app): State<Arc<App>>,
    Extension(visitor): Extension<Visitor>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let opened = app.listeners.open(&visitor.name);
    opened.map_err(|why| Refusal::new(StatusCode::TOO_MANY_REQUESTS, why))?;
    let listener = Listener { app, visitor };
    let stream = futures_util::stream::unfold(Some((listener, None)), |open| async move {
        let (listener, seen) = open?;
        loop {
            if listener.is_closed() {
                return None;
            }
            if !listener.is_admitted() {
                // Without a word the browser would ask again, be refused, and fill the audit log.
                let event = Event::default().event("ended").data("{}");
                return Some((Ok(event), None));
            }
            let app = &listener.app;
            let revision = app.coordinator.store().revision();
            if seen != Some(revision) {
                let state = Changed {
                    revision,
                    progress: app.coordinator.progress(),
                    trouble: app.coordinator.trouble(),
                };
                let state = readers::masks(listener.visitor.role).value(state);
                let event = Event::default().event("changed").data(state.to_string());
                return Some((Ok(event), Some((listener, Some(revision)))));
            }
            tokio::time::sleep(LOOK).await;
        }
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}
