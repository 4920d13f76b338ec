//! What one client can cost: requests a second, time for each, and how a page may be used by a browser.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::reply::Refusal;
use crate::server::App;

/// The largest body: a report of some thousand evaluations with their blocks can be imported.
pub(crate) const BODY_MAX_BYTES: usize = 64 << 20;

/// How long a request may take. (A model of some hundred evaluations is fitted in a few seconds.)
const TIME_MAX: Duration = Duration::from_secs(60);

/// A token bucket: so many requests a second on average, twice that at once.
pub(crate) struct Bucket {
    per_s: f64,
    state: Mutex<(f64, Instant)>,
}

impl Bucket {
    pub(crate) fn new(per_s: f64) -> Self {
        Self {
            per_s,
            state: Mutex::new((2.0 * per_s, Instant::now())),
        }
    }

    fn take(&self, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, since) = *state;
        let grown = now.saturating_duration_since(since).as_secs_f64() * self.per_s;
        let tokens = (tokens + grown).min(2.0 * self.per_s);
        *state = (if tokens >= 1.0 { tokens - 1.0 } else { tokens }, now);
        tokens >= 1.0
    }
}

/// Bounds every request, and tells browsers to keep what they see to themselves.
pub(crate) async fn bound(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let is_asset = request.uri().path().starts_with("/assets/");
    let mut response = if !is_asset && !app.bucket.take(Instant::now()) {
        Refusal::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too many requests; wait a second",
        )
        .into_response()
    } else {
        match tokio::time::timeout(TIME_MAX, next.run(request)).await {
            Ok(response) if response.status() == StatusCode::PAYLOAD_TOO_LARGE => Refusal::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is longer than {} MiB", BODY_MAX_BYTES >> 20),
            )
            .into_response(),
            Ok(response) => response,
            Err(_) => {
                Refusal::new(StatusCode::REQUEST_TIMEOUT, "this took too long").into_response()
            }
        }
    };
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
    set("referrer-policy", "no-referrer");
    set("x-content-type-options", "nosniff");
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_lets_through_what_it_says() {
        let bucket = Bucket::new(10.0);
        let start = Instant::now();
        let burst = (0..100).filter(|_| bucket.take(start)).count();
        assert_eq!(burst, 20);
        let later = |ms| start + Duration::from_millis(ms);
        let second = (1..=1000).filter(|ms| bucket.take(later(*ms))).count();
        assert!((9..=11).contains(&second), "{second}");
    }
}
