//! The requests that a controller has seen since it last acted.

use crate::alarm::{Signals, highest};
use crate::numbers::number;
use crate::tail::Tail;

/// The requests since the last act.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evidence {
    requests: u64,
    above: u64,
    has_counts: bool,
    weighted_ms: f64,
    /// The highest that the fast loop's signals were.
    pub(crate) worst: Signals,
}

impl Evidence {
    pub(crate) fn add(&mut self, tail: &Tail, signals: Signals) {
        self.has_counts = tail.above.is_some() && (self.requests == 0 || self.has_counts);
        self.requests += tail.requests;
        self.above += tail.above.unwrap_or(0);
        self.weighted_ms += number(tail.requests) * tail.latency_ms;
        self.worst = highest(self.worst, signals);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests == 0
    }

    pub(crate) fn tail(&self, quantile: f64) -> Tail {
        Tail {
            quantile,
            latency_ms: self.weighted_ms / number(self.requests.max(1)),
            requests: self.requests,
            above: self.has_counts.then_some(self.above),
        }
    }
}
