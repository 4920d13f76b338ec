//! The latency of one service: a thread polls the source, the loop takes what is new and what the window holds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isolation::Tail;
use wire_latency::{
    Distribution, NoData, Slice, SourceSpec, Stopper, Surroundings, Window, WindowRules,
};

use crate::config::Objective;
use crate::error::IsolateError;

/// A source that has said nothing for this long, or for a window where windows are shorter, has no data.
const STALE_AFTER: Duration = Duration::from_secs(5);
/// Steps of the search for the share of slow requests: a share is found to a millionth.
const SHARE_STEPS: u32 = 20;

/// A source that is asked once a second is judged over this long at least: in a shorter window there may be no answer.
const ASKED_WINDOW_MIN: Duration = Duration::from_secs(3);

/// CPU time that reading packets may cost by default, in cores, of all services together: half of what the controller may use
/// in all. The loop itself needs the rest.
const WIRE_BUDGET_CORES: f64 = 0.0025;

/// What a source is told of a service, one of so many.
pub(crate) fn surroundings(
    pid: Option<u32>,
    objective: &Objective,
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

struct Shared {
    window: Window,
    fresh: Distribution,
    /// When a slice with a window of its own last counted as fresh.
    counted: Option<Instant>,
}

impl Shared {
    /// Adds what has not been counted yet. Of a source with a window of its own, such as a query of Prometheus, one answer
    /// a window counts: the answers between hold the same requests.
    fn add_fresh(&mut self, slice: &Slice, now: Instant) {
        if let Some(window) = slice.own_window {
            if self.counted.is_some_and(|last| now < last + window) {
                return;
            }
            self.counted = Some(now);
        }
        self.fresh.merge(&slice.distribution);
    }
}

/// A polled source.
pub(crate) struct Latency {
    shared: Arc<Mutex<Shared>>,
    ends: Arc<AtomicBool>,
    stopper: Option<Stopper>,
    objective: Objective,
    /// The source in a few words.
    pub(crate) description: String,
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
        objective: Objective,
        surroundings: &Surroundings,
        every: Duration,
    ) -> Result<Self, IsolateError> {
        let failed = |source| IsolateError::Source {
            service: service.to_owned(),
            source,
        };
        let mut source = wire_latency::open(spec, surroundings).map_err(failed)?;
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
        let shared = Arc::new(Mutex::new(Shared {
            window: Window::new(rules),
            fresh: Distribution::Empty,
            counted: None,
        }));
        let ends = Arc::new(AtomicBool::new(false));
        let latency = Self {
            shared: Arc::clone(&shared),
            ends: Arc::clone(&ends),
            stopper: source.stopper(),
            objective,
            description: source.describe(),
        };
        let body = move || {
            let mut begin = Instant::now();
            while !ends.load(Ordering::Relaxed) {
                let polled = source.poll(begin + every);
                let end = Instant::now();
                let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if let Ok(slice) = &polled {
                    shared.add_fresh(slice, end);
                }
                shared.window.push(begin, end, polled);
                drop(shared);
                std::thread::sleep((begin + every).saturating_duration_since(end));
                begin = end;
            }
        };
        std::thread::Builder::new()
            .name("latency".to_owned())
            .spawn(body)
            .map_err(|error| failed(wire_latency::Error::Thread(error)))?;
        Ok(latency)
    }

    /// What is new, and what the window holds. Never waits for the source.
    pub(crate) fn look(&self) -> Seen {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = std::mem::take(&mut shared.fresh);
        let window = shared.window.look(Instant::now());
        drop(shared);
        let fresh = tail(&fresh, &self.objective);
        match window {
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

impl Drop for Latency {
    /// The thread ends by itself; a command that runs is killed.
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(stopper) = &self.stopper {
            stopper.stop();
        }
    }
}

/// The tail of a distribution, with the number of requests above the objective where that can be told.
fn tail(distribution: &Distribution, objective: &Objective) -> Option<Tail> {
    let quantile = objective.percentile / 100.0;
    let requests = distribution.requests();
    let latency_us = distribution.quantile_us(quantile)?;
    let above = match distribution {
        Distribution::Fine(_) | Distribution::Buckets(_) => {
            let slow = share_above(distribution, 1000.0 * objective.latency_ms);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a share of a count"
            )]
            let above = (slow * requests as f64).round() as u64;
            Some(above.min(requests))
        }
        _ => None,
    };
    Some(Tail {
        quantile,
        latency_ms: latency_us / 1000.0,
        requests,
        above,
    })
}

/// The share of requests that took longer, by halving.
fn share_above(distribution: &Distribution, limit_us: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    if distribution
        .quantile_us(1.0)
        .is_none_or(|most| most <= limit_us)
    {
        return 0.0;
    }
    for _ in 0..SHARE_STEPS {
        let middle = f64::midpoint(low, high);
        match distribution.quantile_us(middle) {
            Some(value) if value <= limit_us => low = middle,
            _ => high = middle,
        }
    }
    1.0 - high
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
        let objective = Objective {
            percentile: 99.0,
            latency_ms: 5.0,
            window_s: 15.0,
        };
        let tail = tail(&Distribution::Fine(fine), &objective).unwrap();
        assert!((tail.latency_ms - 9.9).abs() < 0.05, "{tail:?}");
        assert!((498..=502).contains(&tail.above.unwrap()), "{tail:?}");
    }

    #[test]
    fn answers_with_a_window_of_their_own_count_once_a_window() {
        let mut shared = Shared {
            window: Window::new(WindowRules::default()),
            fresh: Distribution::Empty,
            counted: None,
        };
        let began = Instant::now();
        let slice = |own_window| {
            let mut fine = Fine::default();
            fine.record_times_ns(1000, 100);
            Slice {
                distribution: Distribution::Fine(fine),
                own_window,
                ..Slice::default()
            }
        };
        for second in 0..20 {
            let window = Some(Duration::from_secs(10));
            shared.add_fresh(&slice(window), began + Duration::from_secs(second));
        }
        assert_eq!(shared.fresh.requests(), 200);
        for second in 0..20 {
            shared.add_fresh(&slice(None), began + Duration::from_secs(second));
        }
        assert_eq!(shared.fresh.requests(), 2200);
    }

    #[test]
    fn a_figure_has_no_counts_and_nothing_has_no_tail() {
        let objective = Objective {
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
