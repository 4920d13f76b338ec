//! What to set: a service's jobs, recorded or described, simulated under other limits and pool
//! sizes.
//!
//! A model's word only. It knows the CPU, not what threads wait for besides, and takes each job as
//! due when it was due in the recording. So it says how far it is off today, and what it recommends
//! is to be confirmed by load.

use std::collections::BTreeMap;

use paired_stats::{Interval, Pair, ratio_interval};
use serde::{Deserialize, Serialize};

use crate::bandwidth::Limit;
use crate::capacity::{CapacitySearch, Trial};
use crate::histogram::Cores;
use crate::runtime::RuntimePool;
use crate::simulation::{
    Job, LimitedHost, LimitedService, SimulationResult, ThreadPool, Work, simulate,
};
use crate::verdict::QUOTA_IS_SMALL;

/// The quantile that is predicted and compared.
pub const QUANTILE: f64 = 0.99;
/// Parts of a recording, or seeds of a description, that are simulated apart; intervals are over
/// them.
const RUNS: usize = 5;
const CONFIDENCE: f64 = 0.95;
/// Simulated time of a run of a described service, in seconds.
const RUN_S: f64 = 20.0;
/// A change that is this much worse than the best one, and smaller, is preferred.
const AS_GOOD: f64 = 1.1;
/// CPU is given back as long as the quantile is shown to be at most so much above today's.
const NOT_WORSE: f64 = 1.05;
/// Beyond this, up or down, the model does not describe the service.
pub const MODEL_ERROR_MAX: f64 = 1.5;
/// How close the load is found that a setting takes.
const LOAD_TOLERANCE: f64 = 0.05;
/// The most load that is tried, as a multiple of today's: a power of two, as the search doubles.
pub const LOAD_MAX: f64 = 32.0;

/// Quotas of shards, as multiples of the recommended one.
const SHARD_QUOTAS: [f64; 5] = [0.5, 1.0, 1.5, 2.0, 4.0];

/// No size is tried in which a pool's threads would be busy for more of the time.
const POOL_BUSY_MAX: f64 = 0.8;

/// Pools of which other sizes are tried: those that use most CPU time.
const POOLS_MAX: usize = 3;

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
    /// load keeps it; [`LOAD_MAX`] stands for at least that.
    pub load_within_objective: Option<f64>,
}

/// As many shards of one setting as take the load that all shards together take today.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sharding {
    /// How many.
    pub shards: usize,
    /// Their quotas' sum.
    pub cores: f64,
    /// One of them, with its load.
    pub each: Prediction,
}

/// Why nothing is recommended from the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unreliable {
    /// The service uses about all of its quota, or of its CPUs: jobs wait for one another without
    /// end, and no arrival is known that the service did not hold up.
    Saturated,
    /// The model's 99th percentile is too far from the recorded one.
    ModelIsOff,
}

/// What to set, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// The pool whose jobs are timed.
    pub pool: String,
    /// As things are.
    pub today: Prediction,
    /// The model's 99th percentile over the recorded one: what the model is off by, today.
    pub model_error: Option<Interval>,
    /// Why nothing is recommended from it, where nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreliable: Option<Unreliable>,
    /// Everything that was tried under today's load, best first.
    pub tried: Vec<Prediction>,
    /// The smallest change that is shown, in the model, to be better and about as good as the best
    /// one.
    pub recommended: Option<Prediction>,
    /// The smallest quota, with the recommended change, under which the model is no slower than
    /// today.
    pub give_back: Option<Prediction>,
    /// Numbers of shards for today's whole load within the objective, fewest cores first; empty
    /// without an objective and a number of shards today.
    pub sharding: Vec<Sharding>,
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

impl Advice {
    /// The best pool sizes under today's limit, where any are better than today's.
    #[must_use]
    pub fn pools(&self) -> Option<&Prediction> {
        self.tried
            .iter()
            .find(|p| p.setting.is_pools_alone(&self.today.setting))
            .filter(|pools| pools.ratio.is_some_and(|ratio| ratio.high < 1.0))
    }
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
    fn is_pools_alone(&self, today: &Self) -> bool {
        !self.threads.is_empty() && self.limit == today.limit
    }

    /// How many things it changes.
    fn size(&self, today: &Self) -> usize {
        self.threads.len()
            + usize::from(self.limit.quota_us != today.limit.quota_us)
            + usize::from(self.limit.period_us != today.limit.period_us)
            + usize::from(self.limit.burst_us != today.limit.burst_us)
    }
}

/// Simulates the service as it is and under each change that may help.
///
/// Without a quota there is nothing to advise: `None`.
///
/// ```
/// use throttle::{Demand, LimitedHost, Limit, ThreadPool, LimitedService, Work, advice};
/// let requests = Work::Random { per_s: 100.0, demand: Demand::Fixed { cpu_us: 500.0 } };
/// let flushes = Work::Batches { every_us: 1e6, jobs: 8, demand: Demand::Fixed { cpu_us: 30_000.0 } };
/// let service = LimitedService {
///     pools: vec![
///         ThreadPool { name: "worker".into(), threads: 8, processes: 0, setting: None, set_by: None, work: requests },
///         ThreadPool { name: "flusher".into(), threads: 8, processes: 0, setting: None, set_by: None, work: flushes },
///     ],
/// };
/// let question = advice::AdviceInput {
///     service: &service,
///     duration_us: 0.0,
///     latencies_us: &[],
///     host: LimitedHost::new(4),
///     limit: Limit::cores(1.0),
///     pool: 0,
///     objective_us: None,
///     shards: None,
/// };
/// let advice = advice::advise(&question).unwrap();
/// assert!(advice.today.throttled_share > 0.0);
/// assert!(advice.recommended.is_some());
/// ```
#[must_use]
pub fn advise(question: &AdviceInput<'_>) -> Option<Advice> {
    question.limit.in_cores()?;
    let parts = parts(question);
    let setting = CandidateSetting {
        limit: question.limit,
        threads: BTreeMap::new(),
        load: 1.0,
    };
    let outcomes = run(question, &parts, &setting);
    let today = prediction(question, setting.clone(), &outcomes, &outcomes);
    let predict = |setting: CandidateSetting| {
        let tried = run(question, &parts, &setting);
        prediction(question, setting, &tried, &outcomes)
    };
    let mut tried: Vec<Prediction> = changes(question, &setting)
        .into_iter()
        .map(predict)
        .collect();
    let by_p99 = |a: &Prediction, b: &Prediction| a.p99_us.total_cmp(&b.p99_us);
    tried.sort_by(by_p99);
    // Each pool's best size together, and with the best limit at the same quota.
    let mut threads = BTreeMap::new();
    for prediction in &tried {
        for (pool, size) in &prediction.setting.threads {
            threads.entry(pool.clone()).or_insert(*size);
        }
    }
    if threads.len() > 1 {
        tried.push(predict(CandidateSetting {
            threads,
            ..setting.clone()
        }));
        tried.sort_by(by_p99);
    }
    let best = |with_threads: bool| {
        tried.iter().find(|p| {
            p.setting.threads.is_empty() != with_threads
                && p.setting.limit.in_cores() == question.limit.in_cores()
        })
    };
    if let (Some(pools), Some(limit)) = (best(true), best(false)) {
        tried.push(predict(CandidateSetting {
            threads: pools.setting.threads.clone(),
            ..limit.setting.clone()
        }));
        tried.sort_by(by_p99);
    }
    let with_load = |mut prediction: Prediction| {
        if prediction.load_within_objective.is_none() {
            prediction.load_within_objective = load_within(question, &parts, &prediction.setting);
        }
        prediction
    };
    // What the service's owner can do by the pools alone.
    if let Some(pools) = tried
        .iter_mut()
        .find(|p| p.setting.is_pools_alone(&setting))
    {
        pools.load_within_objective = load_within(question, &parts, &pools.setting);
    }
    let today = with_load(today);
    let recommended = recommended(question, &tried, &setting).map(with_load);
    let from = recommended.as_ref().map_or(&setting, |p| &p.setting);
    let give_back = [0.5, 0.6, 0.7, 0.8, 0.9].into_iter().find_map(|share| {
        let limit = with_quota(&from.limit, share)?;
        let prediction = predict(CandidateSetting {
            limit,
            ..from.clone()
        });
        let ratio = prediction.ratio?;
        (ratio.high <= NOT_WORSE).then_some(prediction)
    });
    let known = |setting: &CandidateSetting| {
        let mut known = std::iter::once(&today).chain(&recommended);
        known.find(|p| p.setting == *setting).cloned()
    };
    let mut sharding: Vec<Sharding> = shard_settings(question, &setting, from)
        .into_iter()
        .map(|setting| known(&setting).unwrap_or_else(|| with_load(predict(setting))))
        .filter_map(|each| sharding(question, each))
        .collect();
    sharding.sort_by(|a, b| a.cores.total_cmp(&b.cores).then(a.shards.cmp(&b.shards)));
    let model_error = model_error(question, &outcomes);
    Some(Advice {
        pool: question.service.pools.get(question.pool)?.name.clone(),
        today,
        unreliable: unreliable(question, model_error.as_ref()),
        model_error,
        tried,
        recommended,
        give_back: give_back.map(with_load),
        sharding,
    })
}

/// Whether the model can be a base for recommendations.
fn unreliable(question: &AdviceInput<'_>, model_error: Option<&Interval>) -> Option<Unreliable> {
    let pools = question.service.pools.iter();
    let used: f64 = pools
        .map(|pool| pool.work.mean_cores(question.duration_us / 1e6))
        .sum();
    let quota = question.limit.in_cores().unwrap_or(f64::INFINITY);
    let all = quota.min(question.host.cpus as f64);
    // A described service is what its author says: its load is not held up by the quota.
    let is_recorded = question.duration_us > 0.0;
    if is_recorded && used >= QUOTA_IS_SMALL * all {
        return Some(Unreliable::Saturated);
    }
    let is_off =
        |error: &Interval| !(1.0 / MODEL_ERROR_MAX..MODEL_ERROR_MAX).contains(&error.estimate);
    model_error
        .is_some_and(is_off)
        .then_some(Unreliable::ModelIsOff)
}

/// Shards that are worth a look: of today's setting and of the recommended one, with other quotas
/// within the host.
fn shard_settings(
    question: &AdviceInput<'_>,
    today: &CandidateSetting,
    recommended: &CandidateSetting,
) -> Vec<CandidateSetting> {
    if question.shards.is_none() || question.objective_us.is_none() {
        return Vec::new();
    }
    let with_share = |share: f64| {
        let limit = with_quota(&recommended.limit, share)?;
        let fits = limit.in_cores()? <= question.host.cpus as f64;
        fits.then(|| CandidateSetting {
            limit,
            ..recommended.clone()
        })
    };
    let mut settings: Vec<CandidateSetting> =
        SHARD_QUOTAS.into_iter().filter_map(with_share).collect();
    if !settings.contains(today) {
        settings.push(today.clone());
    }
    settings
}

fn sharding(question: &AdviceInput<'_>, each: Prediction) -> Option<Sharding> {
    let load = each.load_within_objective.filter(|load| *load > 0.0)?;
    let shards = crate::rounded((question.shards? as f64 / load).ceil()).max(1);
    let quota = each.setting.limit.in_cores()?;
    Some(Sharding {
        shards: usize::try_from(shards).ok()?,
        cores: shards as f64 * quota,
        each,
    })
}

fn recommended(
    question: &AdviceInput<'_>,
    tried: &[Prediction],
    today: &CandidateSetting,
) -> Option<Prediction> {
    let is_better = |p: &&Prediction| {
        p.setting.limit.in_cores() == question.limit.in_cores()
            && p.ratio.is_some_and(|ratio| ratio.high < 1.0)
    };
    let best = tried.iter().find(is_better)?;
    tried
        .iter()
        .filter(is_better)
        .take_while(|p| p.p99_us <= best.p99_us * AS_GOOD)
        .min_by_key(|p| p.setting.size(today))
        .cloned()
}

/// Every change that is tried by itself.
fn changes(question: &AdviceInput<'_>, today: &CandidateSetting) -> Vec<CandidateSetting> {
    let mut settings = Vec::new();
    let mut limited = |limit: Option<Limit>| {
        if let Some(limit) = limit.filter(|limit| *limit != today.limit) {
            settings.push(CandidateSetting {
                limit,
                ..today.clone()
            });
        }
    };
    let now = question.limit;
    let quota_us = now.quota_us.unwrap_or(0);
    for share in [0.25, 0.5, 1.0] {
        // A burst may not exceed the quota (kernel/sched/core.c, tg_set_cfs_bandwidth).
        let burst_us = crate::rounded(quota_us as f64 * share);
        limited(Some(Limit { burst_us, ..now }));
    }
    for share in [0.5, 0.75, 1.25, 1.5, 2.0] {
        limited(with_quota(&now, share));
    }
    for period_us in [10_000, 50_000, 200_000] {
        limited(with_period(&now, period_us));
    }
    let cores = crate::rounded(now.in_cores().unwrap_or(1.0).ceil()).max(1);
    let cores = usize::try_from(cores).unwrap_or(usize::MAX);
    let mut pools: Vec<(f64, &ThreadPool)> = question
        .service
        .pools
        .iter()
        .map(|pool| (pool.work.mean_cores(question.duration_us / 1e6), pool))
        .collect();
    pools.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, pool) in pools.into_iter().take(POOLS_MAX) {
        // Less than the quota, too: several pools share it.
        let needed = pool.work.mean_cores(question.duration_us / 1e6) / POOL_BUSY_MAX;
        let sizes = [cores / 4, cores / 2, cores, 2 * cores, 4 * cores];
        let mut sizes: Vec<usize> = sizes
            .into_iter()
            .chain([pool.threads / 2])
            .filter(|size| *size >= 1 && *size as f64 >= needed && *size < pool.threads)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        settings.extend(sizes.into_iter().map(|size| CandidateSetting {
            threads: [(pool.name.clone(), size)].into(),
            ..today.clone()
        }));
    }
    settings
}

/// The limit with another quota, as far as the kernel takes it (1 ms at least); the burst stays
/// within it.
fn with_quota(limit: &Limit, share: f64) -> Option<Limit> {
    let quota_us = crate::rounded(limit.quota_us? as f64 * share);
    (quota_us >= 1000).then(|| Limit {
        quota_us: Some(quota_us),
        burst_us: limit.burst_us.min(quota_us),
        ..*limit
    })
}

/// The same cores in another period.
fn with_period(limit: &Limit, period_us: u64) -> Option<Limit> {
    let share = period_us as f64 / limit.period_us as f64;
    let quota_us = crate::rounded(limit.quota_us? as f64 * share);
    (quota_us >= 1000).then_some(Limit {
        quota_us: Some(quota_us),
        period_us,
        burst_us: limit.burst_us.min(quota_us),
    })
}

/// The service in parts that are simulated apart, each with its length in seconds.
fn parts(question: &AdviceInput<'_>) -> Vec<(LimitedService, f64)> {
    let is_recorded = |pool: &ThreadPool| matches!(pool.work, Work::Recorded(_));
    if !question.service.pools.iter().any(is_recorded) {
        return vec![(question.service.clone(), RUN_S); RUNS];
    }
    let length_us = question.duration_us / RUNS as f64;
    (0..RUNS)
        .map(|part| {
            let from_us = part as f64 * length_us;
            let service = with_jobs(question.service, |jobs| {
                let within = |job: &&Job| (from_us..from_us + length_us).contains(&job.at_us);
                let shifted = |job: &Job| Job {
                    at_us: job.at_us - from_us,
                    ..*job
                };
                jobs.iter().filter(within).map(shifted).collect()
            });
            (service, length_us / 1e6)
        })
        .collect()
}

fn with_jobs(service: &LimitedService, of: impl Fn(&[Job]) -> Vec<Job>) -> LimitedService {
    let mut service = service.clone();
    for pool in &mut service.pools {
        if let Work::Recorded(jobs) = &mut pool.work {
            *jobs = of(jobs);
        }
    }
    service
}

fn run(
    question: &AdviceInput<'_>,
    parts: &[(LimitedService, f64)],
    setting: &CandidateSetting,
) -> Vec<SimulationResult> {
    let simulated = |part: usize| {
        let (service, length_s) = &parts[part];
        let mut service = loaded(service, setting.load, 1e6 * length_s);
        for pool in &mut service.pools {
            if let Some(threads) = setting.threads.get(&pool.name) {
                pool.threads = *threads;
            }
        }
        let (host, limit) = (&question.host, &setting.limit);
        simulate(&service, host, limit, *length_s, part as u64)
    };
    std::thread::scope(|scope| {
        let simulated = &simulated;
        let runs: Vec<_> = (0..parts.len())
            .map(|part| scope.spawn(move || simulated(part)))
            .collect();
        runs.into_iter()
            .map(|run| {
                run.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

/// The service under a multiple of its load: of recorded jobs, copies that come a part of the
/// recording later.
fn loaded(service: &LimitedService, load: f64, length_us: f64) -> LimitedService {
    if load == 1.0 {
        return service.clone();
    }
    let mut service = with_jobs(service, |jobs| {
        let mut more = Vec::new();
        let mut left = load;
        while left > 0.0 {
            // Golden-ratio shifts spread the copies evenly, however many there are (Weyl's
            // sequence).
            let shift_us = length_us * ((load - left) * 0.618_033_988_75).fract();
            let mut kept = 0.0;
            for job in jobs {
                kept += left.min(1.0);
                if kept >= 1.0 {
                    kept -= 1.0;
                    more.push(Job {
                        at_us: (job.at_us + shift_us) % length_us,
                        ..*job
                    });
                }
            }
            left -= 1.0;
        }
        more.sort_by(|a, b| a.at_us.total_cmp(&b.at_us));
        more
    });
    for pool in &mut service.pools {
        match &mut pool.work {
            Work::Random { per_s, .. } => *per_s *= load,
            Work::Batches { every_us, .. } => *every_us /= load,
            Work::Recorded(_) => {}
        }
    }
    service
}

fn prediction(
    question: &AdviceInput<'_>,
    setting: CandidateSetting,
    outcomes: &[SimulationResult],
    today: &[SimulationResult],
) -> Prediction {
    let (throttled, periods) = outcomes
        .iter()
        .fold((0, 0), |(throttled, periods), outcome| {
            (
                throttled + outcome.throttled_periods,
                periods + outcome.periods,
            )
        });
    let mut cores = Cores::default();
    for outcome in outcomes {
        cores.merge(&outcome.cores);
    }
    Prediction {
        setting,
        cores,
        p99_us: p99_us(question.pool, outcomes),
        pools_p99_us: question
            .service
            .pools
            .iter()
            .enumerate()
            .map(|(index, pool)| (pool.name.clone(), p99_us(index, outcomes)))
            .filter(|(_, p99_us)| p99_us.is_finite())
            .collect(),
        ratio: ratio(question, outcomes, today),
        throttled_share: throttled as f64 / periods.max(1) as f64,
        load_within_objective: None,
    }
}

fn latencies_us(pool: usize, outcomes: &[SimulationResult]) -> impl Iterator<Item = &f64> {
    outcomes
        .iter()
        .filter_map(move |outcome| outcome.latencies_us.get(pool))
        .flatten()
}

fn p99_us(pool: usize, outcomes: &[SimulationResult]) -> f64 {
    let all: Vec<f64> = latencies_us(pool, outcomes).copied().collect();
    // No job ended at all: nothing is worse.
    paired_stats::quantile(&all, QUANTILE).unwrap_or(f64::INFINITY)
}

fn ratio(
    question: &AdviceInput<'_>,
    outcomes: &[SimulationResult],
    today: &[SimulationResult],
) -> Option<Interval> {
    let pairs: Option<Vec<Pair>> = outcomes
        .iter()
        .zip(today)
        .map(|(outcome, today)| {
            Some(Pair {
                control: today.latency_us(question.pool, QUANTILE)?,
                experiment: outcome.latency_us(question.pool, QUANTILE)?,
            })
        })
        .collect();
    ratio_interval(&pairs?, CONFIDENCE).ok()
}

/// The model's quantile over the recorded one; the recorded jobs are those of the whole time, so
/// the interval is that of the model's parts.
fn model_error(question: &AdviceInput<'_>, today: &[SimulationResult]) -> Option<Interval> {
    let recorded = paired_stats::quantile(question.latencies_us, QUANTILE)?;
    let pairs: Option<Vec<Pair>> = today
        .iter()
        .map(|outcome| {
            Some(Pair {
                control: recorded,
                experiment: outcome.latency_us(question.pool, QUANTILE)?,
            })
        })
        .collect();
    let interval = ratio_interval(&pairs?, CONFIDENCE).ok()?;
    Some(Interval {
        estimate: p99_us(question.pool, today) / recorded,
        ..interval
    })
}

/// The most load, as a multiple of today's, that is carried on and on with the objective kept.
fn load_within(
    question: &AdviceInput<'_>,
    parts: &[(LimitedService, f64)],
    setting: &CandidateSetting,
) -> Option<f64> {
    let objective_us = question.objective_us?;
    let mut search = CapacitySearch::new(1.0, LOAD_TOLERANCE);
    while let Some(load) = search.next().filter(|load| *load <= LOAD_MAX) {
        let outcomes = run(
            question,
            parts,
            &CandidateSetting {
                load,
                ..setting.clone()
            },
        );
        // Of jobs that have not ended, those that are late already are known to be.
        let late = outcomes
            .iter()
            .filter_map(|outcome| outcome.unfinished_us.get(question.pool))
            .flatten()
            .filter(|since_us| **since_us > objective_us);
        let ended = latencies_us(question.pool, &outcomes);
        let all: Vec<f64> = ended.chain(late).copied().collect();
        let p99_us = paired_stats::quantile(&all, QUANTILE).unwrap_or(f64::INFINITY);
        let held = p99_us <= objective_us && !is_overloaded(question, setting, load);
        // A simulation needs no second opinion.
        search.take(held);
        search.take(held);
    }
    let has_held = |trial: &Trial| trial.held && trial.per_s >= LOAD_MAX;
    let at_least = search.trials().iter().any(has_held).then_some(LOAD_MAX);
    search.capacity().or(at_least)
}

/// Whether the timed pool falls behind for good, which a short run shows late where the objective
/// is long: it has no fewer jobs than its threads, or what others leave of the CPUs and the quota,
/// can do.
fn is_overloaded(question: &AdviceInput<'_>, setting: &CandidateSetting, load: f64) -> bool {
    let pools = question.service.pools.iter().enumerate();
    let wanted = pools.map(|(index, pool)| {
        let cores = load * pool.work.mean_cores(question.duration_us / 1e6);
        let threads = setting.threads.get(&pool.name).unwrap_or(&pool.threads);
        (index, cores, *threads as f64)
    });
    let cpus = question.host.cpus as f64;
    let most = setting
        .limit
        .in_cores()
        .map_or(cpus, |quota| quota.min(cpus));
    let mut all = 0.0;
    for (index, cores, threads) in wanted {
        if index == question.pool && cores >= threads {
            return true;
        }
        all += cores.min(threads);
    }
    all >= most
}
