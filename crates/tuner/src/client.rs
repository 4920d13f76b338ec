//! The client for a service's own addresses and for Prometheus.

use std::time::Duration;

/// Readiness probes and `apply` requests are local; longer than this is a refusal.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The client for a service's own addresses and for Prometheus.
pub(crate) fn client() -> http_client::Client {
    http_client::Client::new(REQUEST_TIMEOUT)
}
