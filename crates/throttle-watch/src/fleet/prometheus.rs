//! The queries of `throttle fleet` to Prometheus, and what asking them has cost.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use http_client::{Client, Data, Error, Url};

pub(super) use http_client::Series;

use crate::error::ThrottleError;

/// Prometheus itself gives up after two minutes by default (`--query.timeout`).
const ANSWER_MAX: Duration = Duration::from_secs(130);

/// A server, and what asking it has cost.
pub(super) struct Prometheus {
    client: Client,
    pub(super) url: Url,
    at: Option<String>,
    /// What the server said beside its answers.
    pub(super) warnings: BTreeSet<String>,
    pub(super) queries: usize,
    pub(super) took: Duration,
}

impl Prometheus {
    /// `at`: as of then instead of now.
    pub(super) fn new(url: &str, at: Option<&str>) -> Result<Self, ThrottleError> {
        let parsed = Url::parse(url.trim_end_matches('/'));
        Ok(Self {
            client: Client::new(ANSWER_MAX),
            url: parsed.map_err(|reason| ThrottleError::PrometheusUrl {
                url: http_client::redact(url),
                reason,
            })?,
            at: at.map(str::to_owned),
            warnings: BTreeSet::new(),
            queries: 0,
            took: Duration::ZERO,
        })
    }

    /// The series of an instant vector whose values are finite: 0/0 of a group that did nothing is
    /// left out.
    pub(super) fn ask(&mut self, query: &str) -> Result<Vec<Series>, ThrottleError> {
        let start = Instant::now();
        let asked = self.client.prometheus(&self.url, query, self.at.as_deref());
        let answer = match asked {
            Err(Error::Refused {
                query,
                kind,
                message,
            }) => {
                let hint = if message.contains("too many samples") || kind == "timeout" {
                    "; take a shorter --window-s, or raise the server's --query.max-samples or --query.timeout"
                } else {
                    ""
                };
                return Err(ThrottleError::QueryRefused {
                    query,
                    kind,
                    message,
                    hint,
                });
            }
            Err(source @ Error::NoAnswer { .. }) => {
                return Err(ThrottleError::NoPrometheus { source });
            }
            asked => asked.map_err(ThrottleError::Prometheus)?,
        };
        self.queries += 1;
        self.took += start.elapsed();
        let Data::Vector(series) = answer.data else {
            return Err(ThrottleError::NoVector {
                query: query.to_owned(),
            });
        };
        self.warnings.extend(answer.warnings);
        let finite = series.into_iter().filter(|series| series.value.is_finite());
        Ok(finite.collect())
    }
}
