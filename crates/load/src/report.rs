//! What a run measured, of the service and of itself.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::neighbours::Neighbours;

/// An idle connection that wakes later than this for an arrival is late: a wake-up takes 50 µs, a scheduling slice of another
/// thread up to 3 ms. A choice of this crate.
const LATE_US: f64 = 1000.0;
/// It matters only beside what was measured: a tenth of the service's own 99th percentile.
const LATE_SHARE: f64 = 0.1;
/// It happens: what matters is one arrival in a hundred, and more than two.
const LATE_ARRIVALS: (f64, f64) = (0.01, 2.0);
/// Above this share of the CPUs it may use, the generator itself has none left.
const BUSY: f64 = 0.8;

/// What kinds of errors are called that came of an answer, or of waiting for one.
pub(crate) const STATUS: &str = "status ";
pub(crate) const NO_ANSWER: &str = "no answer in time";

/// Latencies from the scheduled arrival, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub latency_mean_us: f64,
    /// Median.
    pub latency_p50_us: f64,
    /// 90th percentile.
    pub latency_p90_us: f64,
    /// 99th percentile.
    pub latency_p99_us: f64,
    /// 99.9th percentile.
    pub latency_p999_us: f64,
    /// The longest.
    pub latency_max_us: f64,
}

impl Latency {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64;
        Self {
            latency_mean_us: histogram.mean(),
            latency_p50_us: at(0.5),
            latency_p90_us: at(0.9),
            latency_p99_us: at(0.99),
            latency_p999_us: at(0.999),
            latency_max_us: histogram.max() as f64,
        }
    }
}

/// Who was in the way of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// The generator used up its CPUs.
    Generator,
    /// The generator was ready and got no CPU in time.
    Neighbour,
}

/// What a run measured. Requests that were due and never sent, because every connection waited until the end, count as
/// errors, and with the time that they had waited by then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Requests that were due.
    pub due: u64,
    /// Those that were answered with a status below 400.
    pub requests: u64,
    /// Those that were not.
    pub errors: u64,
    /// What was wrong, and how often; at most 10 kinds.
    pub error_kinds: BTreeMap<String, u64>,
    /// From the start to the last answer.
    pub duration_s: f64,
    /// Answers a second.
    pub requests_per_s: f64,
    /// Latencies, of errors too.
    #[serde(flatten)]
    pub latency: Latency,
    /// Share of the requests that found every connection busy, and waited for one.
    pub waited_share: f64,
    /// How late idle connections woke for an arrival: 99th percentile.
    pub lateness_p99_us: f64,
    /// The generator's own CPU time.
    pub own_cpu_s: f64,
    /// What others did to the CPUs, where the service's control group is known.
    pub neighbours: Option<Neighbours>,
    /// Who was in the way, if somebody was.
    pub bottleneck: Option<Bottleneck>,
}

impl Report {
    /// Whose fault it is that the generator was late, if it was: `lateness` is that of idle connections in µs, `cpus` are
    /// those that it may use.
    pub(crate) fn judge(&mut self, lateness: &Histogram<u64>, cpus: usize) {
        self.lateness_p99_us = lateness.value_at_quantile(0.99) as f64;
        let limit_us = LATE_US.max(LATE_SHARE * self.latency.latency_p99_us);
        let late = lateness
            .iter_recorded()
            .filter(|step| step.value_iterated_to() as f64 > limit_us)
            .map(|step| step.count_at_value() as f64)
            .sum::<f64>();
        let (share, least) = LATE_ARRIVALS;
        let is_late = late > least && late >= share * lateness.len() as f64;
        let busy = self.own_cpu_s / (self.duration_s.max(1e-9) * cpus.max(1) as f64);
        self.bottleneck = (is_late || self.is_in_the_way()).then_some(if busy > BUSY {
            Bottleneck::Generator
        } else {
            Bottleneck::Neighbour
        });
    }

    /// The least that the 99th percentile of latency would have been without the bottleneck: the generator's lateness explains
    /// no more than itself; what neighbours took from the service explains everything.
    #[must_use]
    pub fn latency_p99_at_least_us(&self) -> f64 {
        match self.bottleneck {
            None => self.latency.latency_p99_us,
            Some(Bottleneck::Neighbour) if !self.is_in_the_way() => {
                (self.latency.latency_p99_us - self.lateness_p99_us).max(0.0)
            }
            Some(_) => 0.0,
        }
    }

    fn is_in_the_way(&self) -> bool {
        self.neighbours.is_some_and(|they| they.were_in_the_way())
    }

    /// That no request succeeded, and what became of them.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let kinds = self.error_kinds.iter();
        let kinds: Vec<String> = kinds.map(|(kind, n)| format!("{kind} ({n})")).collect();
        self.has_failed()
            .then(|| format!("no request succeeded: {}", kinds.join(", ")))
    }

    fn has_failed(&self) -> bool {
        self.requests == 0 && self.errors > 0
    }

    /// Whether nobody was reached: no status came, and nobody was waited for in vain, as an overloaded service may be.
    #[must_use]
    pub fn reached_nobody(&self) -> bool {
        let is_answer = |kind: &String| kind.starts_with(STATUS) || kind == NO_ANSWER;
        self.has_failed() && !self.error_kinds.keys().any(is_answer)
    }

    /// What to do about the bottleneck, in words.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let late = format!(
            "idle connections of the generator woke {:.1} ms late for one arrival in 100 (the service's 99th percentile: {:.1} ms)",
            self.lateness_p99_us / 1000.0,
            self.latency.latency_p99_us / 1000.0
        );
        if let Some(they) = self.neighbours.filter(Neighbours::were_in_the_way) {
            return Some(format!(
                "neighbours were in the service's way: they, or the hypervisor, took {:.0} % of the machine's CPU time, and {:.0} % was left",
                100.0 * they.used_share,
                100.0 * they.unused_share
            ));
        }
        self.bottleneck.map(|bottleneck| match bottleneck {
            Bottleneck::Generator => format!(
                "the load generator was the bottleneck: {late}; give it more CPUs, or ask for less"
            ),
            Bottleneck::Neighbour => format!(
                "something else took the load generator's CPUs: {late}; give it CPUs of its own"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_has_an_owner() {
        let mut report = Report {
            due: 10,
            requests: 10,
            errors: 0,
            error_kinds: BTreeMap::new(),
            duration_s: 1.0,
            requests_per_s: 10.0,
            latency: Latency {
                latency_p99_us: 5000.0,
                ..Latency::default()
            },
            waited_share: 0.0,
            lateness_p99_us: 0.0,
            neighbours: None,
            own_cpu_s: 0.95,
            bottleneck: None,
        };
        let lateness = |late: u64, us: u64| {
            let mut histogram = Histogram::new_with_max(1_000_000, 3).unwrap();
            histogram.record_n(us, late).unwrap();
            histogram.record_n(50, 200 - late).unwrap();
            histogram
        };
        report.judge(&lateness(5, 900), 1);
        assert_eq!(report.complaint(), None);
        // Two in 200 are one in a hundred, and may be chance.
        report.judge(&lateness(2, 3000), 1);
        assert_eq!(report.bottleneck, None);
        report.judge(&lateness(5, 3000), 1);
        assert_eq!(report.bottleneck, Some(Bottleneck::Generator));
        report.judge(&lateness(5, 3000), 2);
        assert_eq!(report.bottleneck, Some(Bottleneck::Neighbour));
        assert!(report.complaint().unwrap().contains("3.0 ms late"));
        assert!((report.latency_p99_at_least_us() - 2000.0).abs() < 10.0);
        // Beside a service that takes a second it does not matter.
        report.latency.latency_p99_us = 1e6;
        report.judge(&lateness(5, 3000), 2);
        assert_eq!(report.bottleneck, None);
        assert!((report.latency_p99_at_least_us() - 1e6).abs() < 1.0);
    }

    fn report() -> Report {
        serde_json::from_value(serde_json::json!({
            "due": 1, "requests": 1, "errors": 0, "error_kinds": {}, "duration_s": 1.0, "requests_per_s": 1.0,
            "latency_mean_us": 1e6, "latency_p50_us": 1e6, "latency_p90_us": 1e6, "latency_p99_us": 1e6,
            "latency_p999_us": 1e6, "latency_max_us": 1e6, "waited_share": 0.0, "lateness_p99_us": 0.0,
            "own_cpu_s": 0.1, "neighbours": null, "bottleneck": null
        }))
        .unwrap()
    }

    #[test]
    fn nobody_is_reached_where_no_answer_came_and_none_was_waited_for() {
        for (requests, kinds, has_failed, reached_nobody) in [
            (1, &[("connection refused", 3)][..], false, false),
            (0, &[("connection refused", 3)], true, true),
            // Overload looks like these.
            (
                0,
                &[("connection refused", 3), ("status 503", 1)],
                true,
                false,
            ),
            (0, &[("no answer in time", 4)], true, false),
            (0, &[], false, false),
        ] {
            let error_kinds = kinds.iter().map(|(kind, n)| ((*kind).to_owned(), *n));
            let report = Report {
                requests,
                errors: kinds.iter().map(|(_, n)| n).sum(),
                error_kinds: error_kinds.collect(),
                ..report()
            };
            assert_eq!(report.failure().is_some(), has_failed, "{kinds:?}");
            assert_eq!(report.reached_nobody(), reached_nobody, "{kinds:?}");
        }
    }

    #[test]
    fn neighbours_are_in_the_way_where_little_is_left() {
        let mut report = report();
        let on_time = Histogram::new_with_max(1_000_000, 3).unwrap();
        for (used_share, unused_share, expected) in [
            (0.3, 0.1, Some(Bottleneck::Neighbour)),
            (0.3, 0.5, None),
            (0.05, 0.0, None),
        ] {
            report.neighbours = Some(Neighbours {
                used_share,
                unused_share,
            });
            report.judge(&on_time, 2);
            assert_eq!(report.bottleneck, expected, "{used_share} {unused_share}");
        }
        report.neighbours = Some(Neighbours {
            used_share: 0.3,
            unused_share: 0.1,
        });
        report.judge(&on_time, 2);
        assert!(report.complaint().unwrap().contains("took 30 %"));
        assert!(report.latency_p99_at_least_us() < 1.0);
    }
}
