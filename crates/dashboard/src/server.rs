//! The routes, and the server around them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use coordinator::Coordinator;
use jiff::Timestamp;
use tokio::net::TcpListener;

use crate::access::{self, Access, Credential, Role};
use crate::audit::{Audit, Entry};
use crate::clock::Clock;
use crate::connections::{self, Bounds};
use crate::explain::Models;
use crate::limits::{self, Buckets};
use crate::proxy::Proxy;
use crate::reply::{Refusal, blocking};
use crate::sessions::Sessions;
use crate::tokens::{TokenFile, Tokens};
use crate::{api, assets, openapi, pages, prometheus, stream};

/// Refusals of one client that are written down, a second.
const REFUSALS_NOTED_PER_S: f64 = 1.0;

/// How the server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests a second of one client, on average.
    pub rate: f64,
    /// How connections are bounded.
    pub bounds: Bounds,
    /// A reverse proxy that names users.
    pub proxy: Proxy,
    /// Takes the lines of the server's log.
    pub report: fn(&str),
    /// What a shell on this host calls to reach this server: `slackline`, with the state directory
    /// where that is not the default.
    pub command: String,
}

impl Default for Options {
    /// More than the pages of a few people ask for, less than a core's worth.
    fn default() -> Self {
        Self {
            rate: 100.0,
            bounds: Bounds::of_descriptors(1024),
            proxy: Proxy::default(),
            report: |_| (),
            command: "slackline".to_owned(),
        }
    }
}

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
    pub(crate) listeners: stream::Listeners,
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

/// Serves until `end` is ready, then finishes what has been asked.
pub async fn serve(
    listener: TcpListener,
    coordinator: Arc<Coordinator>,
    access: Access,
    options: Options,
    end: impl Future<Output = ()> + Send + 'static,
) {
    let state_dir = coordinator.state_dir().to_owned();
    let clock = Clock::start(Timestamp::now(), Instant::now());
    let app = Arc::new(App {
        access,
        proxy: options.proxy,
        tokens: Tokens::of(TokenFile::of(&state_dir), options.report),
        sessions: Sessions::of(&state_dir, clock.now(), options.report),
        clock,
        audit: Audit::of(&state_dir, options.report),
        buckets: Buckets::new(options.rate),
        noted: Buckets::new(REFUSALS_NOTED_PER_S),
        answers: Answers::default(),
        models: Models::default(),
        listeners: stream::Listeners::default(),
        command: options.command,
        coordinator,
    });
    let audit = Audit::of(&state_dir, options.report);
    app.coordinator.tell_of_own_acts(move |id, entry| {
        let action = match entry.kind.as_str() {
            "promoted" => "promote",
            _ => "rollback",
        };
        audit.note(Entry {
            at: entry.at,
            experiment: Some(id),
            detail: Some(entry.text.clone()),
            ..Entry::new(action, Some(crate::audit::ITSELF), None, 200)
        });
    });
    let ending = Arc::clone(&app);
    let end = async move {
        end.await;
        // Open streams would keep the server from ending.
        ending.listeners.close();
    };
    connections::serve(listener, router(app), options.bounds, end).await;
}

/// The process answers.
async fn alive() -> &'static str {
    "ok\n"
}

/// The store answers, and this coordinator has it.
async fn ready(State(app): State<Arc<App>>) -> Response {
    let asked = blocking(move || {
        let coordinator = &app.coordinator;
        let is_ready = coordinator.is_active() && coordinator.is_alive();
        Ok(is_ready && coordinator.trouble().is_none())
    });
    match asked.await {
        Ok(true) => "ready\n".into_response(),
        // Why stands on the pages: nobody has to be signed in here.
        _ => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "not ready").into_response(),
    }
}

fn router(app: Arc<App>) -> Router {
    let api = Router::new()
        .route("/experiments", get(api::list).post(api::create))
        .route("/experiments/import", post(api::import))
        .route("/experiments/{id}", get(api::show).delete(api::delete))
        .route("/experiments/{id}/pause", post(api::pause))
        .route("/experiments/{id}/resume", post(api::resume))
        .route("/experiments/{id}/stop", post(api::stop))
        .route("/experiments/{id}/verify", post(api::verify))
        .route("/experiments/{id}/promote", post(api::promote))
        .route("/experiments/{id}/rollback", post(api::roll_back))
        .route("/experiments/{id}/forget-rest", post(api::forget_rest))
        .route("/experiments/{id}/fork", post(api::fork))
        .route("/experiments/{id}/budget", put(api::set_budget))
        .route("/experiments/{id}/note", put(api::note))
        .route(
            "/experiments/{id}/queue",
            get(api::queue).post(api::enqueue),
        )
        .route("/experiments/{id}/export", get(api::export))
        .route("/experiments/{id}/points", get(api::points))
        .route("/experiments/{id}/model", get(api::model))
        .route("/experiments/{id}/model/pair", get(api::model_pair))
        .route("/experiments/{id}/rounds", get(api::rounds))
        .route("/experiments/{id}/verification", get(api::verification))
        .route("/experiments/{id}/evaluations", get(api::evaluations))
        .route(
            "/experiments/{id}/evaluations/{number}",
            get(api::evaluation),
        )
        .route(
            "/experiments/{id}/evaluations/{number}/kill",
            post(api::kill),
        )
        .route(
            "/experiments/{id}/evaluations/{number}/note",
            put(api::note_evaluation),
        )
        .route("/specs/check", post(api::check))
        .route("/host", get(api::host))
        .route("/promotions", get(api::promotions))
        .route("/workers", get(api::workers))
        .route("/status", get(api::status))
        .route("/audit", get(api::audit))
        .route("/queue/pause", post(api::pause_queue))
        .route("/queue/resume", post(api::resume_queue))
        .route("/events", get(stream::events))
        .route("/openapi.json", get(openapi::serve))
        .fallback(api::nothing_here)
        .method_not_allowed_fallback(api::not_so);
    Router::new()
        .nest("/api/v1", api)
        .route("/metrics", get(prometheus::serve))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/assets/{*name}", get(assets::asset))
        .route("/login", get(pages::login_form).post(access::sign_in))
        .route("/logout", post(access::sign_out))
        .route("/audit", get(pages::audit))
        .route("/", get(pages::experiments))
        .route("/new", get(pages::new))
        .route("/host", get(pages::host))
        .route("/compare", get(pages::compare))
        .route("/promotions", get(pages::promotions))
        .route("/experiments/{id}", get(pages::experiment))
        .route(
            "/experiments/{id}/evaluations/{number}",
            get(pages::evaluation),
        )
        .route("/experiments/{id}/verification", get(pages::verification))
        .fallback(pages::nothing_here)
        .method_not_allowed_fallback(api::not_so)
        .layer(axum::middleware::from_fn(openapi::known_parameters))
        .layer(axum::middleware::from_fn_with_state(
            Arc::clone(&app),
            access::admit,
        ))
        .layer(axum::middleware::from_fn_with_state(
            Arc::clone(&app),
            limits::bound,
        ))
        .layer(DefaultBodyLimit::max(limits::BODY_MAX_BYTES))
        .with_state(app)
}
