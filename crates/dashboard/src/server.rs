//! The routes, and the server around them.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post, put};
use coordinator::Coordinator;
use tokio::net::TcpListener;

use crate::access::{self, Access};
use crate::explain::Models;
use crate::limits::{self, Bucket};
use crate::{api, assets, openapi, pages, prometheus, stream};

/// How the server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests a second, on average.
    pub rate: f64,
}

impl Default for Options {
    /// More than the pages of a few people ask for, less than a core's worth.
    fn default() -> Self {
        Self { rate: 100.0 }
    }
}

/// What every handler has.
pub(crate) struct App {
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) access: Access,
    pub(crate) bucket: Bucket,
    pub(crate) models: Models,
    pub(crate) listeners: stream::Listeners,
}

/// Serves until `end` is ready, then finishes what has been asked.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    coordinator: Arc<Coordinator>,
    access: Access,
    options: Options,
    end: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let app = Arc::new(App {
        coordinator,
        access,
        bucket: Bucket::new(options.rate),
        models: Models::default(),
        listeners: stream::Listeners::default(),
    });
    let ending = Arc::clone(&app);
    let end = async move {
        end.await;
        // Open streams would keep the server from ending.
        ending.listeners.close();
    };
    axum::serve(listener, router(app))
        .with_graceful_shutdown(end)
        .await
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
        .route("/experiments/{id}/fork", post(api::fork))
        .route("/experiments/{id}/budget", put(api::set_budget))
        .route(
            "/experiments/{id}/queue",
            get(api::queue).post(api::enqueue),
        )
        .route("/experiments/{id}/export", get(api::export))
        .route("/experiments/{id}/points", get(api::points))
        .route("/experiments/{id}/model", get(api::model))
        .route("/experiments/{id}/model/pair", get(api::model_pair))
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
        .route("/specs/check", post(api::check))
        .route("/host", get(api::host))
        .route("/workers", get(api::workers))
        .route("/events", get(stream::events))
        .route("/openapi.json", get(openapi::serve))
        .fallback(api::nothing_here)
        .method_not_allowed_fallback(api::not_so);
    Router::new()
        .nest("/api/v1", api)
        .route("/metrics", get(prometheus::serve))
        .route("/assets/{name}", get(assets::asset))
        .route("/login", get(pages::login_form).post(access::sign_in))
        .route("/", get(pages::experiments))
        .route("/new", get(pages::new))
        .route("/host", get(pages::host))
        .route("/experiments/{id}", get(pages::experiment))
        .route(
            "/experiments/{id}/evaluations/{number}",
            get(pages::evaluation),
        )
        .route("/experiments/{id}/verification", get(pages::verification))
        .fallback(pages::nothing_here)
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
