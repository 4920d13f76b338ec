//! A service in question, the settings that are tried, and what the model says of one.

use std::collections::BTreeMap;

use paired_stats::Interval;
use serde::{Deserialize, Serialize};

use crate::bandwidth::Limit;
use crate::histogram::Cores;
use crate::limited_service::{LimitedHost, LimitedService};
use crate::runtime::RuntimePool;

/// Limit, pool sizes and load under which a service is simulated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateSetting {
    /// The limit.
    pub limit: Limit,
    /// Threads of the pools that are not as they are today, by name.
    pub threads: BTreeMap<String, usize>,
    /// Load, as a multiple of today's.
    pub load: f64,
}

/// What the model says of a setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The setting.
    pub setting: CandidateSetting,
    /// The 99th percentile of a job's time from waking to sleeping, over all runs.
    pub p99_us: f64,
    /// The 99th percentiles of all pools' jobs, by name: a smaller pool takes longer for what it
    /// does.
    pub pools_p99_us: BTreeMap<String, f64>,
    /// `p99_us` as a multiple of today's in the model; `None` where some run has no jobs.
    pub ratio: Option<Interval>,
    /// Share of the quota periods in which the group is throttled.
    pub throttled_share: f64,
    /// Cores in use over windows of 10 ms, in the model.
    pub cores: Cores,
    /// Load within the objective, as a multiple of today's, where an objective was given and some
    /// load keeps it; [`LOAD_MAX`](super::LOAD_MAX) stands for at least that.
    pub load_within_objective: Option<f64>,
}

/// A service with what is known of it.
#[derive(Clone, Debug)]
pub struct AdviceInput<'a> {
    /// Its jobs.
    pub service: &'a LimitedService,
    /// How long they were recorded, for recorded ones.
    pub duration_us: f64,
    /// How long each of the timed pool's recorded jobs took in truth.
    pub latencies_us: &'a [f64],
    /// Where it runs.
    pub host: LimitedHost,
    /// Its limit today.
    pub limit: Limit,
    /// The pool whose jobs are timed: an index into the service's pools.
    pub pool: usize,
    /// The objective for the 99th percentile of its jobs.
    pub objective_us: Option<f64>,
    /// How many such shards share the whole load today.
    pub shards: Option<usize>,
}

impl CandidateSetting {
    /// What it changes, in words, with today's values.
    #[must_use]
    pub fn changes(&self, question: &AdviceInput<'_>) -> String {
        let mut parts = Vec::new();
        for (name, threads) in &self.threads {
            let now = question
                .service
                .pools
                .iter()
                .find(|pool| pool.name == *name);
            let by = now
                .and_then(|pool| pool.set_by.as_deref().or(pool.setting.as_deref()))
                .or_else(|| RuntimePool::of(name).map(|runtimes| runtimes.flag));
            let by = by.map_or(String::new(), |by| format!(" by {by}"));
            let noun = match now.is_some_and(|pool| pool.processes > 1) {
                true => "processes",
                false => "threads",
            };
            let now = now.map_or(0, |pool| pool.threads);
            parts.push(format!("{threads} {name} {noun}{by} (now {now})"));
        }
        let (limit, now) = (&self.limit, &question.limit);
        if let (Some(cores), Some(before)) = (limit.in_cores(), now.in_cores())
            && (cores - before).abs() > 1e-9
        {
            parts.push(format!("quota {cores:.2} cores (now {before:.2})"));
        }
        let milliseconds = |us: u64| us as f64 / 1000.0;
        if limit.period_us != now.period_us {
            let (period, before) = (milliseconds(limit.period_us), milliseconds(now.period_us));
            parts.push(format!("period {period} ms (now {before})"));
        }
        if limit.burst_us != now.burst_us {
            let (burst, before) = (milliseconds(limit.burst_us), milliseconds(now.burst_us));
            parts.push(format!("burst {burst} ms (now {before})"));
        }
        if parts.is_empty() {
            "as it is".to_owned()
        } else {
            parts.join(", ")
        }
    }

    /// Whether it changes pool sizes and nothing else.
    pub(super) fn is_pools_alone(&self, today: &Self) -> bool {
        !self.threads.is_empty() && self.limit == today.limit
    }

    /// How many things it changes.
    pub(super) fn size(&self, today: &Self) -> usize {
        self.threads.len()
            + usize::from(self.limit.quota_us != today.limit.quota_us)
            + usize::from(self.limit.period_us != today.limit.period_us)
            + usize::from(self.limit.burst_us != today.limit.burst_us)
    }
}
