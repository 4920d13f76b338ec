//! Answers: JSON, and refusals that say why.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use coordinator::Error;
use serde::Serialize;

/// Why a request was not fulfilled, as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Refusal {
    #[serde(skip)]
    status: StatusCode,
    error: String,
    /// The line of a specification.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// The key on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self {
            status,
            error: error.into(),
            line: None,
            key: None,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn text(&self) -> &str {
        &self.error
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::NotFound(_) => StatusCode::NOT_FOUND,
            Error::Conflict(_) => StatusCode::CONFLICT,
            Error::Invalid(_) | Error::Spec(_) => StatusCode::UNPROCESSABLE_ENTITY,
            // The host refuses: nothing is wrong with the request or the server.
            Error::Tuner(_) => StatusCode::CONFLICT,
            Error::Unavailable(_) | Error::Superseded => StatusCode::SERVICE_UNAVAILABLE,
            Error::Corrupt(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut refusal = Self::new(status, error.to_string());
        if let Error::Spec(error) = error {
            refusal.error = error.message;
            refusal.line = error.line;
            refusal.key = Some(error.key);
        }
        refusal
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(self)).into_response()
    }
}

/// The answer of most handlers.
pub(crate) type Reply<T> = Result<Json<T>, Refusal>;

/// Runs what may wait for the store or the host on a thread that may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(error) => Err(Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the request could not be finished: {error}"),
        )),
    }
}
