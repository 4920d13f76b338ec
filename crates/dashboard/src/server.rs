//! The routes, and the server around them.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use coordinator::Coordinator;
use jiff::Timestamp;
use tokio::net::TcpListener;

use crate::access::Access;
use crate::app::{Answers, App};
use crate::audit::{Audit, Entry};
use crate::clock::Clock;
use crate::connections::{self, Bounds};
use crate::explain::Models;
use crate::limits::Buckets;
use crate::listeners::Listeners;
use crate::proxy::Proxy;
use crate::reply::{Refusal, blocking};
use crate::sessions::Sessions;
use crate::tokens::{TokenFile, Tokens};
use crate::{admission, api, assets, bound, openapi, pages, prometheus, stream};

/// Refusals of one client that are written down, a second.
const REFUSALS_NOTED_PER_S: f64 = 1.0;

/// How the server behaves.
#[derive(Clone, Debug)]
pub struct DashboardOptions {
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

impl Default for DashboardOptions {
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

/// Serves until `end` is ready, then finishes what has been asked.
pub async fn serve(
    listener: TcpListener,
    coordinator: Arc<Coordinator>,
    access: Access,
    options: DashboardOptions,
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
        listeners: Listeners::default(),
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
        .route("/login", get(pages::login_form).post(admission::sign_in))
        .route("/logout", post(admission::sign_out))
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
            admission::admit,
        ))
        .layer(axum::middleware::from_fn_with_state(
            Arc::clone(&app),
            bound::bound,
        ))
        .layer(DefaultBodyLimit::max(bound::BODY_MAX_BYTES))
        .with_state(app)
}
