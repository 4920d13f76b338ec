//! The latency of one service as controllers take it: the tail of what is new, and of what the
//! window holds.

use std::time::Duration;

use isolation::Tail;
use wire_latency::{Distribution, Monitor, NoData, SourceSpec, Surroundings, WindowRules};

use crate::config::LatencyObjective;
use crate::error::IsolateError;

/// A source that has said nothing for this long, or for a window where windows are shorter, has no
/// data.
const STALE_AFTER: Duration = Duration::from_secs(5);
/// A source that is asked once a second is judged over this long at least: in a shorter window
/// there may be no answer.
const ASKED_WINDOW_MIN: Duration = Duration::from_secs(3);

/// CPU time that reading packets may cost by default, in cores, of all services together: half of
/// what the controller may use in all. The loop itself needs the rest.
const WIRE_BUDGET_CORES: f64 = 0.0025;

/// What a source is told of a service, one of so many.
pub(crate) fn surroundings(
    pid: Option<u32>,
    objective: &LatencyObjective,
    services: usize,
) -> Surroundings {
    #[expect(clippy::cast_precision_loss, reason = "a few services")]
    let services = services.max(1) as f64;
    Surroundings {
        pid,
        percentile: objective.percentile,
        cpu_budget_cores: WIRE_BUDGET_CORES / services,
    }
}

/// A polled source.
pub(crate) struct Latency {
    monitor: Monitor,
    objective: LatencyObjective,
}

/// What a look gives.
pub(crate) struct Seen {
    /// The requests since the last look.
    pub(crate) fresh: Option<Tail>,
    /// The requests of the window, or why there is no figure.
    pub(crate) window: Result<Tail, NoData>,
    /// Requests per second over the window.
    pub(crate) requests_per_s: Option<f64>,
}

impl Latency {
    /// Opens the source and polls it every `every`.
    pub(crate) fn start(
        service: &str,
        spec: &SourceSpec,
        objective: LatencyObjective,
        surroundings: &Surroundings,
        every: Duration,
    ) -> Result<Self, IsolateError> {
        let length = Duration::from_secs_f64(objective.window_s);
        let least = if spec.is_asked() {
            ASKED_WINDOW_MIN
        } else {
            Duration::ZERO
        };
        let rules = WindowRules {
            length: length.max(least),
            // The controller weighs how many there are.
            minimum_requests: 1,
            stale_after: STALE_AFTER.min(length.max(least)),
        };
        let monitor = Monitor::start(spec, surroundings, rules, every);
        Ok(Self {
            monitor: monitor.map_err(|source| IsolateError::Source {
                service: service.to_owned(),
                source,
            })?,
            objective,
        })
    }

    /// The source in a few words.
    pub(crate) fn description(&self) -> &str {
        self.monitor.description()
    }

    /// What is new, and what the window holds. Never waits for the source.
    pub(crate) fn look(&self) -> Seen {
        let fresh = tail(&self.monitor.take_fresh(), &self.objective);
        match self.monitor.look() {
            Ok(reading) => Seen {
                fresh,
                requests_per_s: Some(reading.requests_per_s()),
                window: tail(&reading.distribution, &self.objective).ok_or(NoData::Starting),
            },
            // Nobody asked: that is known.
            Err(NoData::Idle { .. }) => Seen {
                fresh,
                requests_per_s: Some(0.0),
                window: Ok(Tail {
                    quantile: self.objective.percentile / 100.0,
                    latency_ms: 0.0,
                    requests: 0,
                    above: Some(0),
                }),
            },
            Err(no_data) => Seen {
                fresh: None,
                requests_per_s: None,
                window: Err(no_data),
            },
        }
    }
}

/// The tail of a distribution, with the number of requests above the objective where that can be
/// told.
fn tail(distribution: &Distribution, objective: &LatencyObjective) -> Option<Tail> {
    let quantile = objective.percentile / 100.0;
    let requests = distribution.requests();
    let latency_us = distribution.quantile_us(quantile)?;
    Some(Tail {
        quantile,
        latency_ms: latency_us / 1000.0,
        requests,
        above: distribution.above(1000.0 * objective.latency_ms),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire_latency::Fine;

    #[test]
    fn slow_requests_are_counted() {
        let mut fine = Fine::default();
        for request in 1..=1000_u64 {
            fine.record_ns(request * 10_000);
        }
        let objective = LatencyObjective {
            percentile: 99.0,
            latency_ms: 5.0,
            window_s: 15.0,
        };
        let tail = tail(&Distribution::Fine(fine), &objective).unwrap();
        assert!((tail.latency_ms - 9.9).abs() < 0.05, "{tail:?}");
        assert!((498..=502).contains(&tail.above.unwrap()), "{tail:?}");
    }

    #[test]
    fn a_figure_has_no_counts_and_nothing_has_no_tail() {
        let objective = LatencyObjective {
            percentile: 99.0,
            latency_ms: 5.0,
            window_s: 15.0,
        };
        let figure = Distribution::Figure {
            quantile: 0.99,
            value_us: 4000.0,
            requests: 10,
        };
        assert_eq!(tail(&figure, &objective).unwrap().above, None);
        assert!(tail(&Distribution::Empty, &objective).is_none());
    }
}
