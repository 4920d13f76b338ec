//! Server-sent events: a page is told that something changed, and reads again what it shows.
//!
//! A stream ends with what admitted it: a token that is revoked or expires, or a session that ends.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use serde_json::json;

use crate::access::Visitor;
use crate::readers;
use crate::reply::Refusal;
use crate::server::App;

/// How often a stream looks for a change, and for its own end: often enough to feel live, too
/// rarely to cost anything.
const LOOK: Duration = Duration::from_millis(300);

/// Streams at once.
const STREAMS_MAX: usize = 256;
/// Of one token or user: a browser has one for all its tabs, so these are many browsers.
const STREAMS_OF_ONE_MAX: usize = 32;

/// The open streams.
#[derive(Default)]
pub(crate) struct Listeners {
    by_name: Mutex<HashMap<String, usize>>,
    is_closed: AtomicBool,
}

impl Listeners {
    /// Ends every stream.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Counts one more stream of a client, if it may have one.
    fn open(&self, name: &str) -> Result<(), String> {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let own = by_name.get(name).copied().unwrap_or(0);
        if own >= STREAMS_OF_ONE_MAX {
            return Err(format!(
                "{name} has {STREAMS_OF_ONE_MAX} event streams open already: close some, or give each program a token of its own"
            ));
        }
        if by_name.values().sum::<usize>() >= STREAMS_MAX {
            return Err(format!(
                "{STREAMS_MAX} event streams are open already: try again later"
            ));
        }
        by_name.insert(name.to_owned(), own + 1);
        Ok(())
    }

    fn end(&self, name: &str) {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = by_name.get_mut(name) {
            *own = own.saturating_sub(1);
        }
        by_name.retain(|_, own| *own > 0);
    }
}

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
        self.app.listeners.is_closed.load(Ordering::Relaxed)
    }

    fn is_admitted(&self) -> bool {
        self.app.still_admits(&self.visitor.credential)
    }
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
                let state = json!({
                    "revision": revision,
                    "progress": app.coordinator.progress(),
                    "trouble": app.coordinator.trouble(),
                });
                let state = readers::masks(listener.visitor.role).value(state);
                let event = Event::default().event("changed").data(state.to_string());
                return Some((Ok(event), Some((listener, Some(revision)))));
            }
            tokio::time::sleep(LOOK).await;
        }
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_takes_no_stream_of_another() {
        let listeners = Listeners::default();
        for _ in 0..STREAMS_OF_ONE_MAX {
            listeners.open("reader").unwrap();
        }
        let why = listeners.open("reader").unwrap_err();
        assert!(why.starts_with("reader has 32 event streams open"), "{why}");
        listeners.open("owner").unwrap();
        listeners.end("reader");
        listeners.open("reader").unwrap();
        for index in 0.. {
            if let Err(why) = listeners.open(&format!("client {index}")) {
                assert!(why.contains("256 event streams"), "{why}");
                assert_eq!(index, STREAMS_MAX - STREAMS_OF_ONE_MAX - 1);
                break;
            }
        }
    }
}
