//! What every handler has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use coordinator::Coordinator;
use jiff::Timestamp;

use crate::access::{Access, Credential, Visitor};
use crate::audit::Audit;
use crate::clock::Clock;
use crate::explain::Models;
use crate::limits::Buckets;
use crate::listeners::Listeners;
use crate::proxy::Proxy;
use crate::role::Role;
use crate::sessions::Sessions;
use crate::tokens::Tokens;

/// The state, as a handler takes it.
pub(crate) type Here = State<Arc<App>>;
/// Who asks, as a handler takes it.
pub(crate) type Who = Extension<Visitor>;

/// What every handler has.
pub(crate) struct App {
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) access: Access,
    pub(crate) proxy: Proxy,
    pub(crate) tokens: Tokens,
    pub(crate) sessions: Sessions,
    /// The time by which sessions age.
    pub(crate) clock: Clock,
    pub(crate) audit: Audit,
    pub(crate) buckets: Buckets,
    /// Bounds how often a client's refusals are written down.
    pub(crate) noted: Buckets,
    pub(crate) answers: Answers,
    pub(crate) models: Models,
    pub(crate) listeners: Listeners,
    /// What a shell on this host calls to reach this server.
    pub(crate) command: String,
}

impl App {
    /// The name and role of a token, by its digest.
    pub(crate) fn token(&self, digest: &str) -> Option<(String, Role)> {
        if let Some((name, role)) = self.access.built_in(digest) {
            return Some((name.to_owned(), role));
        }
        let token = self.tokens.find(digest, Timestamp::now())?;
        Some((token.name, token.role))
    }

    /// Whether what a request was admitted by would still admit it.
    pub(crate) fn still_admits(&self, credential: &Credential) -> bool {
        match credential {
            Credential::Token(token) => self.token(token).is_some(),
            Credential::Session { csrf, token } => {
                self.sessions.is_open(csrf, self.clock.now()) && self.token(token).is_some()
            }
            Credential::Proxy => true,
        }
    }
}

/// Answers so far by the hundreds of their status, for `/metrics`.
#[derive(Default)]
pub(crate) struct Answers([AtomicU64; 5]);

impl Answers {
    pub(crate) fn count(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(count) = self.0.get(class) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// `2xx` and how many.
    pub(crate) fn by_class(&self) -> impl Iterator<Item = (String, u64)> {
        let each = (1..).zip(&self.0);
        each.map(|(class, count)| (format!("{class}xx"), count.load(Ordering::Relaxed)))
    }
}
