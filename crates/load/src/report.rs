//! What a run measured, of the service and of itself.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::counts::{Counts, NO_ANSWER, NO_PORT, STATUS, Times};
use crate::machine::Neighbours;
use crate::second::{Disturbance, are_many, had_no_cpu};

/// A loop that waits for less than this share of the time is at its limit: a closed loop, or an
/// open one whose requests wait for connections, then measures its generator.
const BUSY: f64 = 0.9;
/// So much of the plan has to be left where seconds were disturbed.
const KEPT: f64 = 0.5;

/// Latencies from the scheduled arrival, in microseconds; of a closed loop, from the sending.
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
    fn of(histogram: &Histogram<u64>) -> Self {
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

/// The parts of a request's latency, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// From the scheduled arrival to the sending: median.
    pub scheduled_to_sent_p50_us: f64,
    /// 99th percentile.
    pub scheduled_to_sent_p99_us: f64,
    /// The longest.
    pub scheduled_to_sent_max_us: f64,
    /// From the sending to the end of the answer: mean.
    pub sent_to_answered_mean_us: f64,
    /// Median.
    pub sent_to_answered_p50_us: f64,
    /// 99th percentile.
    pub sent_to_answered_p99_us: f64,
    /// The longest.
    pub sent_to_answered_max_us: f64,
    /// How long a request waited for a free connection: 99th percentile.
    pub connection_wait_p99_us: f64,
}

impl Parts {
    fn of(times: &Times) -> Self {
        let at =
            |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64;
        Self {
            scheduled_to_sent_p50_us: at(&times.sent, 0.5),
            scheduled_to_sent_p99_us: at(&times.sent, 0.99),
            scheduled_to_sent_max_us: times.sent.max() as f64,
            sent_to_answered_mean_us: times.answered.mean(),
            sent_to_answered_p50_us: at(&times.answered, 0.5),
            sent_to_answered_p99_us: at(&times.answered, 0.99),
            sent_to_answered_max_us: times.answered.max() as f64,
            connection_wait_p99_us: at(&times.connection, 0.99),
        }
    }
}

/// Who limited what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// Requests were due, a connection was free, and the generator had not sent: it is too slow for
    /// this load.
    Generator,
    /// The generator or the service was ready, and something else had the CPU.
    Neighbour,
    /// Every connection waited for an answer: the service is at its limit, or there are too few
    /// connections.
    Service,
    /// At one time the generator, at another the service.
    GeneratorAndService,
}

/// A second that something outside disturbed, and that was repeated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DisturbedSecond {
    /// Where it began, in seconds from the start of the run.
    pub at_s: f64,
    /// What disturbed it.
    #[serde(flatten)]
    pub cause: Disturbance,
}

/// What a run measured. Requests that were due and never sent, because every connection waited
/// until the end, count as errors, and with the time that they had waited by then. Counts are of
/// the whole run; times are of the seconds that nothing disturbed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Requests that were due.
    pub due: u64,
    /// Those that were answered with a status below 400.
    pub requests: u64,
    /// Those that were not.
    pub errors: u64,
    /// What was wrong, and how often; at most 10 kinds besides the statuses.
    pub error_kinds: BTreeMap<String, u64>,
    /// From the start to the last answer.
    pub duration_s: f64,
    /// Answers a second; of a closed loop, in the seconds that nothing disturbed.
    pub requests_per_s: f64,
    /// Bytes that were received a second.
    pub bytes_per_s: f64,
    /// Latencies, of errors too.
    #[serde(flatten)]
    pub latency: Latency,
    /// Requests that they are of.
    #[serde(default)]
    pub latency_requests: u64,
    /// What they consist of.
    #[serde(flatten)]
    pub parts: Parts,
    /// Share of the requests that found every connection busy, and waited for one.
    pub waited_share: f64,
    /// How late the generator itself was, in sending and in reading together: 99th percentile.
    pub lateness_p99_us: f64,
    /// The generator's own CPU time.
    pub own_cpu_s: f64,
    /// How much of it the generator polled and nothing had come.
    #[serde(default)]
    pub own_polled_s: f64,
    /// What is left of the CPU time without that, for one request.
    pub own_cpu_per_request_us: f64,
    /// Share of the time in which the generator had something to do, its busiest thread's being 1
    /// at most.
    pub own_busy_share: f64,
    /// How long its threads could have run, and had no CPU.
    pub run_queue_s: f64,
    /// Share of the machine's CPU time that the hypervisor took.
    pub stolen_share: f64,
    /// Seconds that were disturbed: set aside and repeated. At most 100 of each thread.
    pub disturbed: Vec<DisturbedSecond>,
    /// How long they were together, of one thread.
    pub disturbed_s: f64,
    /// Connections that were opened.
    pub connections_opened: u64,
    /// Requests that were sent twice, because the server had closed an idle connection meanwhile.
    pub resent: u64,
    /// What others did to the CPUs, where the service is known.
    pub neighbours: Option<Neighbours>,
    /// Who was in the way, if somebody was.
    pub bottleneck: Option<Bottleneck>,
}

/// What is known of a run besides its counts.
pub(crate) struct Circumstances {
    pub(crate) is_closed_loop: bool,
    pub(crate) threads: usize,
    /// How long the plan was.
    pub(crate) planned_s: f64,
    pub(crate) duration_s: f64,
    pub(crate) neighbours: Option<Neighbours>,
    pub(crate) stolen_share: f64,
}

impl LoadReport {
    pub(crate) fn of(mut counts: Counts, run: &Circumstances) -> Self {
        let threads = run.threads.max(1) as f64;
        let kept_s = counts.kept.length_ns as f64 / 1e9 / threads;
        let is_short = counts.disturbed_s > 0.0 && kept_s < KEPT * run.planned_s;
        // Where the hypervisor takes its share all the time, there is no other second to be had.
        let only_stolen = counts
            .disturbed
            .iter()
            .all(|second| matches!(second.cause, Disturbance::Steal { .. }));
        if is_short {
            let aside = std::mem::replace(&mut counts.aside, Times::new());
            counts.kept.merge(&aside);
        }
        let error_kinds = counts.error_kinds();
        let errors = error_kinds.values().sum();
        let due = counts.requests + errors;
        let kept_s = counts.kept.length_ns as f64 / 1e9 / threads;
        let duration_s = run.duration_s.max(1e-9);
        let own_cpu_s = counts.cpu_ns as f64 / 1e9;
        let own_polled_s = counts.polled_ns as f64 / 1e9;
        let mut report = Self {
            due,
            requests: counts.requests,
            errors,
            error_kinds,
            duration_s: run.duration_s,
            requests_per_s: if run.is_closed_loop && kept_s > 0.0 {
                counts.kept.good as f64 / kept_s
            } else {
                counts.requests as f64 / duration_s
            },
            bytes_per_s: counts.traffic.received_bytes as f64 / duration_s,
            latency: Latency::of(&counts.kept.latency),
            latency_requests: counts.kept.latency.len(),
            parts: Parts::of(&counts.kept),
            waited_share: counts.waited as f64 / due.max(1) as f64,
            lateness_p99_us: counts.kept.own.value_at_quantile(0.99) as f64,
            own_cpu_s,
            own_polled_s,
            own_cpu_per_request_us: 1e6 * (own_cpu_s - own_polled_s).max(0.0) / due.max(1) as f64,
            own_busy_share: counts.busy_ns as f64 / counts.wall_ns.max(1) as f64,
            run_queue_s: counts.run_queue_ns as f64 / 1e9,
            stolen_share: run.stolen_share,
            disturbed: counts
                .disturbed
                .iter()
                .map(|second| DisturbedSecond {
                    at_s: second.at_s,
                    cause: second.cause,
                })
                .collect(),
            disturbed_s: counts.disturbed_s / threads,
            connections_opened: counts.traffic.opened,
            resent: counts.traffic.resent,
            neighbours: run.neighbours,
            bottleneck: None,
        };
        report.bottleneck = if is_short && !only_stolen {
            Some(Bottleneck::Neighbour)
        } else {
            report.judge(&counts, run.is_closed_loop)
        };
        report
    }

    fn judge(&self, counts: &Counts, is_closed_loop: bool) -> Option<Bottleneck> {
        if self.is_in_the_way() {
            return Some(Bottleneck::Neighbour);
        }
        let no_port = self.error_kinds.get(NO_PORT).copied().unwrap_or(0);
        if are_many(no_port, self.due) {
            return Some(Bottleneck::Generator);
        }
        let had_no_cpu = had_no_cpu(counts.busy_ns, counts.run_queue_ns);
        let saturated = || match (self.own_busy_share > BUSY, had_no_cpu) {
            (true, true) => Bottleneck::Neighbour,
            (true, false) => Bottleneck::Generator,
            (false, _) => Bottleneck::Service,
        };
        if is_closed_loop {
            return Some(saturated());
        }
        let kept = &counts.kept;
        let requests = kept.own.len();
        let is_late = are_many(kept.late(&kept.own), requests);
        let waits = are_many(kept.late(&kept.connection), requests);
        match (is_late, waits) {
            (true, _) if had_no_cpu => Some(Bottleneck::Neighbour),
            // A generator without time left leaves answers unread, so that no connection is free.
            (true, true) if self.own_busy_share > BUSY => Some(Bottleneck::Generator),
            (true, true) => Some(Bottleneck::GeneratorAndService),
            (true, false) => Some(Bottleneck::Generator),
            // Every request waits in an overload, so that the generator's own part of the wait
            // looks small. Whoever has no time left is the limit then, as in a closed loop.
            (false, true) => Some(saturated()),
            (false, false) => None,
        }
    }

    /// Whether the times are the service's: nothing but the service limited them.
    #[must_use]
    pub fn is_of_service(&self) -> bool {
        matches!(self.bottleneck, None | Some(Bottleneck::Service))
    }

    /// The least that the 99th percentile of latency would have been without the bottleneck: the
    /// generator's lateness explains no more than itself; what neighbours took from the service
    /// explains everything.
    #[must_use]
    pub fn latency_p99_at_least_us(&self) -> f64 {
        match self.bottleneck {
            None | Some(Bottleneck::Service) => self.latency.latency_p99_us,
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

    /// Whether nobody was reached: no status came, and nobody was waited for in vain, as an
    /// overloaded service may be.
    #[must_use]
    pub fn reached_nobody(&self) -> bool {
        let is_answer = |kind: &String| kind.starts_with(STATUS) || kind == NO_ANSWER;
        self.has_failed() && !self.error_kinds.keys().any(is_answer)
    }

    /// Why the numbers are not the service's, and what to do about it, in words.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let late = format!(
            "it was {:.1} ms late for one request in 100 while a connection was free (99th percentile of latency: {:.1} ms), and busy for \
             {:.0} % of the time",
            self.lateness_p99_us / 1000.0,
            self.latency.latency_p99_us / 1000.0,
            100.0 * self.own_busy_share
        );
        let poll = match self.own_polled_s > 0.0 {
            true => "",
            false => "let it poll on a CPU of its own (--busy-poll), ",
        };
        let more = format!(
            "{poll}give it more CPUs (--threads; in an experiment workload.cpus, apart from target.cpus), or ask for less"
        );
        Some(match self.bottleneck? {
            Bottleneck::Service => return None,
            Bottleneck::Generator if self.error_kinds.contains_key(NO_PORT) => format!(
                "the load generator was the bottleneck: it ran out of local ports after {} connections; raise --requests-per-connection, or \
                 ask for less",
                self.connections_opened
            ),
            Bottleneck::Generator => {
                format!("the load generator was the bottleneck: {late}; {more}")
            }
            Bottleneck::GeneratorAndService => format!(
                "the load generator was the bottleneck, and the service too: {late}; one request in 100 waited {:.1} ms for a free \
                 connection; {more}",
                self.parts.connection_wait_p99_us / 1000.0
            ),
            Bottleneck::Neighbour => self.neighbour(),
        })
    }

    fn neighbour(&self) -> String {
        let apart = "give it a CPU of its own (in an experiment workload.cpus, apart from target.cpus), or name the service \
                     (--unit, --cgroup or --pid): the generator then takes real-time priority";
        if let Some(they) = self.neighbours.filter(Neighbours::were_in_the_way) {
            return format!(
                "neighbours were in the service's way: they, or the hypervisor, took {:.0} % of the machine's CPU time, and {:.0} % was left",
                100.0 * they.used_share,
                100.0 * they.unused_share
            );
        }
        let is_steal = |second: &DisturbedSecond| matches!(second.cause, Disturbance::Steal { .. });
        if !self.disturbed.iter().all(is_steal) {
            return format!(
                "something else took the CPUs in {:.1} of {:.1} seconds ({}); {apart}",
                self.disturbed_s,
                self.duration_s,
                self.causes()
            );
        }
        format!(
            "something else took the load generator's CPU for {:.0} ms: it was {:.1} ms late for one request in 100 (99th percentile of \
             latency: {:.1} ms); {apart}",
            1000.0 * self.run_queue_s,
            self.lateness_p99_us / 1000.0,
            self.latency.latency_p99_us / 1000.0
        )
    }

    /// The causes of disturbed seconds, at most three of them.
    fn causes(&self) -> String {
        let causes = self.disturbed.iter().take(3);
        let causes: Vec<String> = causes.map(|second| second.cause.to_string()).collect();
        let more = if self.disturbed.len() > 3 {
            ", …"
        } else {
            ""
        };
        format!("{}{more}", causes.join(", "))
    }

    /// What a reader should know of numbers that are the service's: that it was at its limit, and
    /// what was repeated.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.bottleneck == Some(Bottleneck::Service) && self.waited_share > 0.0 {
            remarks.push(format!(
                "the service was the bottleneck, or there were too few connections: {:.1} % of the requests waited for a free connection, one \
                 in 100 for {:.1} ms or more, while an answer took {:.1} ms on average; latencies include that wait",
                100.0 * self.waited_share,
                self.parts.connection_wait_p99_us / 1000.0,
                self.parts.sent_to_answered_mean_us / 1000.0
            ));
        }
        if !self.disturbed.is_empty() && self.is_of_service() {
            remarks.push(format!(
                "{:.1} s were disturbed ({})",
                self.disturbed_s,
                self.causes()
            ));
        }
        remarks
    }
}
