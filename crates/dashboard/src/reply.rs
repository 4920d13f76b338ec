//! Answers: JSON, and refusals that say why, as problem details (RFC 9457).

use axum::Json;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use coordinator::Error;
use schemars::JsonSchema;
use serde::Serialize;

/// The media type of a refusal.
const PROBLEM: &str = "application/problem+json";

/// Why a request was not fulfilled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: StatusCode,
    detail: String,
    /// The line of a specification.
    line: Option<usize>,
    /// The key on it.
    key: Option<String>,
}

/// Problem details (RFC 9457).
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Refusal")]
pub(crate) struct Problem<'a> {
    /// Always `about:blank`.
    r#type: &'static str,
    /// The status in words.
    title: &'a str,
    /// The HTTP status.
    status: u16,
    /// Why the request was refused.
    detail: &'a str,
    /// The line of the specification, or of the imported report, with the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// The key of the specification, or of the imported report, with the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

/// More of a text that quotes a client helps nobody.
const DETAIL_CHARACTERS_MAX: usize = 4000;

impl Refusal {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        // It may quote what a client has sent.
        if let Some((end, _)) = detail.char_indices().nth(DETAIL_CHARACTERS_MAX) {
            detail.truncate(end);
            detail.push('…');
        }
        Self {
            status,
            // Nothing that was refused shows a password: an address may stand in any text.
            detail: http_client::redact(&detail),
            line: None,
            key: None,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn text(&self) -> &str {
        &self.detail
    }

    /// The text with the place in a specification, as the audit log has it.
    pub(crate) fn with_place(&self) -> String {
        let line = self.line.map(|line| format!("line {line}: "));
        let key = self.key.as_ref().filter(|key| !key.is_empty());
        let key = key.map(|key| format!("{key}: "));
        let place = [line, key].into_iter().flatten().collect::<String>();
        place + &self.detail
    }

    /// The refusal that a response carries. A response of an error that carries none, such as one
    /// that the router made, is described by its status.
    pub(crate) fn of(response: &Response) -> Option<Self> {
        let status = response.status();
        if let Some(refusal) = response.extensions().get::<Self>() {
            return Some(refusal.clone());
        }
        let is_error = status.is_client_error() || status.is_server_error();
        is_error.then(|| {
            let detail = match status {
                StatusCode::METHOD_NOT_ALLOWED => {
                    "this path does not accept this method; see /api/v1/openapi.json"
                }
                StatusCode::BAD_REQUEST => "the request is malformed",
                status => status.canonical_reason().unwrap_or("refused"),
            };
            Self::new(status, detail)
        })
    }
}

/// Whether somebody asks who reads pages: a browser says so.
pub(crate) fn wants_page(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.to_ascii_lowercase().contains("text/html"))
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::NotFound(_) => StatusCode::NOT_FOUND,
            Error::Gone(_) => StatusCode::GONE,
            Error::Conflict(_) => StatusCode::CONFLICT,
            Error::Invalid(_) | Error::Spec(_) => StatusCode::UNPROCESSABLE_ENTITY,
            // The host refuses: nothing is wrong with the request or the server.
            Error::Tuner(_) => StatusCode::CONFLICT,
            Error::Unavailable(_) | Error::Superseded => StatusCode::SERVICE_UNAVAILABLE,
            Error::Corrupt(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        match error {
            Error::Spec(error) => Self {
                line: error.line,
                key: Some(error.key),
                ..Self::new(status, error.message)
            },
            error => Self::new(status, error.to_string()),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let problem = Problem {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Refused"),
            status: self.status.as_u16(),
            detail: &self.detail,
            line: self.line,
            key: self.key.as_deref(),
        };
        let mut response = (self.status, Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
        response.extensions_mut().insert(self);
        response
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_shows_no_password_and_says_where_a_specification_is_wrong() {
        let error = tuner::SpecError {
            file: "a.toml".into(),
            line: Some(3),
            key: "metrics.x".into(),
            message: "http://me:s3cr3t@h/ is no server".into(),
        };
        let response = Refusal::from(Error::Spec(error)).into_response();
        assert_eq!(response.headers()[CONTENT_TYPE], PROBLEM);
        let refusal = Refusal::of(&response).unwrap();
        assert_eq!(refusal.text(), "http://…@h/ is no server");
        let said = "line 3: metrics.x: http://…@h/ is no server";
        assert_eq!(refusal.with_place(), said);
        assert_eq!(
            (refusal.line, refusal.key.as_deref()),
            (Some(3), Some("metrics.x"))
        );
    }

    #[test]
    fn an_error_of_the_router_is_described_and_a_success_is_not() {
        let mut response = Response::new(axum::body::Body::empty());
        assert_eq!(Refusal::of(&response), None);
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        let refusal = Refusal::of(&response).unwrap();
        assert_eq!(
            refusal.text(),
            "this path does not accept this method; see /api/v1/openapi.json"
        );
    }
}
