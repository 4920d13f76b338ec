//! What one request can cost, in bytes and time, and how a page may be used by a browser.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access::Visitor;
use crate::app::App;
use crate::connections::Broken;
use crate::reply::{Refusal, wants_page};

/// The largest body: a report of some thousand evaluations with their blocks can be imported.
pub(crate) const BODY_MAX_BYTES: usize = 64 << 20;

/// How long a request may take. (A model of some hundred evaluations is fitted in a few seconds.)
const TIME_MAX: Duration = Duration::from_secs(60);

/// Whether a request announces a body of more than twice the limit: nobody waits for such a body.
/// The first part of a shorter one is read, because a client that is cut off while it sends may not
/// see the answer.
fn is_far_too_long(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH).and_then(|it| it.to_str().ok());
    // hyper takes only numbers.
    let length = length.and_then(|it| it.parse::<u64>().ok());
    length.is_some_and(|length| length > 2 * BODY_MAX_BYTES as u64)
}

/// Bounds every request, tells browsers to keep what they see to themselves, and counts answers.
pub(crate) async fn bound(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let is_for_people = !request.uri().path().starts_with("/api/") && wants_page(request.headers());
    let too_long = || {
        let why = format!("the body is longer than {} MiB", BODY_MAX_BYTES >> 20);
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, why).into_response()
    };
    let broken = request.extensions().get::<Broken>().cloned();
    let broken = || broken.as_ref().and_then(Broken::why);
    let answer = async {
        match is_far_too_long(request.headers()) {
            true => too_long(),
            false => next.run(request).await,
        }
    };
    let answered = tokio::time::timeout(TIME_MAX, answer).await;
    let mut response = match (answered, broken()) {
        (Ok(_), Some((status, why))) => Refusal::new(status, why).into_response(),
        (Ok(response), None) if response.status() == StatusCode::PAYLOAD_TOO_LARGE => too_long(),
        (Ok(response), None) => response,
        (Err(_), _) => Refusal::new(StatusCode::REQUEST_TIMEOUT, "the server did not finish this request in time: look whether the change was made before you send it again").into_response(),
    };
    if let Some(refusal) = Refusal::of(&response) {
        let visitor = response.extensions().get::<Visitor>().cloned();
        response = described(response, refusal, is_for_people, visitor.as_ref());
    }
    app.answers.count(response.status());
    let headers = response.headers_mut();
    let mut set = |name: &'static str, value: &'static str| {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    };
    set("cache-control", "no-store");
    set(
        "content-security-policy",
        "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    );
    // Not "no-referrer": browsers then send a form with `Origin: null`, even to its own server.
    set("referrer-policy", "same-origin");
    set("x-content-type-options", "nosniff");
    response
}

/// An error as whoever asked reads it: a page for people, problem details for programs.
fn described(
    response: Response,
    refusal: Refusal,
    is_for_people: bool,
    visitor: Option<&Visitor>,
) -> Response {
    let is_page = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    if is_page {
        return response;
    }
    let keep = ["retry-after", "www-authenticate", "allow", "set-cookie"];
    let kept: Vec<(HeaderName, HeaderValue)> = response
        .headers()
        .iter()
        .filter(|(name, _)| keep.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let mut described = if is_for_people {
        crate::pages::refused(&refusal, visitor)
    } else {
        refusal.into_response()
    };
    described.headers_mut().extend(kept);
    described
}
