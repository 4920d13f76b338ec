//! A tail latency with its sampling error: a p99 of 200 requests is not a p99 of 20,000.

use paired_stats::share_bound;
use serde::{Deserialize, Serialize};

use crate::numbers::number;

/// Standard deviations by which a violation has to stand out. One-sided 1 %.
const VIOLATED_Z: f64 = 2.33;
/// Standard deviations by which a tail has to be within its objective. One-sided 10 %: an error
/// costs one window.
const WITHIN_Z: f64 = 1.28;

/// The tail latency of one service in one window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    /// The percentile, as a share: 0.99.
    pub quantile: f64,
    /// The latency at that percentile.
    pub latency_ms: f64,
    /// Requests that the figure stands on.
    pub requests: u64,
    /// Requests of these that took longer than the objective, where the source can tell.
    pub above: Option<u64>,
}

/// What a tail says about its objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TailVerdict {
    /// The objective is violated, beyond the sampling error.
    Violated,
    /// Too few requests to tell.
    Unclear,
    /// The objective is kept, beyond the sampling error.
    Within,
}

impl Tail {
    /// The slack: (objective − latency) / objective. Negative for a violation.
    #[must_use]
    pub fn slack(&self, objective_ms: f64) -> f64 {
        (objective_ms - self.latency_ms) / objective_ms.max(f64::MIN_POSITIVE)
    }

    /// Whether the objective is kept or violated, beyond the sampling error.
    ///
    /// With [`Tail::above`] the share of slow requests is compared with the allowed share by
    /// Wilson's bounds. Without it the latency is compared, with the standard error of a quantile
    /// of an exponential tail.
    #[must_use]
    pub fn verdict(&self, objective_ms: f64) -> TailVerdict {
        if self.requests == 0 {
            return TailVerdict::Unclear;
        }
        let is_within = match self.above {
            Some(above) => share_bound(above, self.requests, WITHIN_Z) < 1.0 - self.quantile,
            None => self.latency_ms * (1.0 + WITHIN_Z * self.relative_error()) < objective_ms,
        };
        match (self.is_violated(objective_ms, VIOLATED_Z), is_within) {
            (true, _) => TailVerdict::Violated,
            (_, true) => TailVerdict::Within,
            _ => TailVerdict::Unclear,
        }
    }

    /// Whether the objective is violated by more than `z` standard deviations.
    #[must_use]
    pub fn is_violated(&self, objective_ms: f64, z: f64) -> bool {
        match self.above {
            _ if self.requests == 0 => false,
            Some(above) => share_bound(above, self.requests, -z) > 1.0 - self.quantile,
            None => self.latency_ms > objective_ms * (1.0 + z * self.relative_error()),
        }
    }

    /// Standard error of the quantile, relative to it, of a tail that falls exponentially: the
    /// quantile q of n requests has the standard error sqrt(q / ((1 − q) n)) in units of the tail's
    /// scale, and lies ln(1 / (1 − q)) scales out.
    #[must_use]
    pub fn relative_error(&self) -> f64 {
        let beyond = (1.0 - self.quantile).max(1e-9);
        let scales = (1.0 / beyond).ln().max(0.1);
        (self.quantile / (beyond * number(self.requests.max(1)))).sqrt() / scales
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(requests: u64, above: Option<u64>, latency_ms: f64) -> Tail {
        Tail {
            quantile: 0.99,
            latency_ms,
            requests,
            above,
        }
    }

    #[test]
    fn few_requests_say_little_and_many_say_much() {
        // 2 % above an allowed 1 %.
        assert_eq!(tail(50, Some(1), 6.0).verdict(5.0), TailVerdict::Unclear);
        assert_eq!(
            tail(20_000, Some(400), 6.0).verdict(5.0),
            TailVerdict::Violated
        );
        // None above: 100 requests do not show that fewer than 1 % are.
        assert_eq!(tail(100, Some(0), 1.0).verdict(5.0), TailVerdict::Unclear);
        assert_eq!(tail(400, Some(0), 1.0).verdict(5.0), TailVerdict::Within);
        assert_eq!(tail(0, None, 1.0).verdict(5.0), TailVerdict::Unclear);
    }

    #[test]
    fn a_latency_without_counts_has_its_error_too() {
        assert!((tail(200, None, 1.0).relative_error() - 0.1528).abs() < 1e-3);
        assert!((tail(20_000, None, 1.0).relative_error() - 0.01528).abs() < 1e-4);
        assert_eq!(tail(200, None, 5.5).verdict(5.0), TailVerdict::Unclear);
        assert_eq!(tail(20_000, None, 5.5).verdict(5.0), TailVerdict::Violated);
        assert_eq!(tail(20_000, None, 4.5).verdict(5.0), TailVerdict::Within);
    }

    #[test]
    fn slack_is_the_share_of_the_objective_that_is_left() {
        assert!((tail(1, None, 4.0).slack(5.0) - 0.2).abs() < 1e-12);
        assert!((tail(1, None, 10.0).slack(5.0) + 1.0).abs() < 1e-12);
    }
}
