//! What to set: a service's jobs, recorded or described, simulated under other limits and pool
//! sizes.
//!
//! A model's word only. It knows the CPU, not what threads wait for besides, and takes each job as
//! due when it was due in the recording. So it says how far it is off today, and what it recommends
//! is to be confirmed by load.

mod candidates;
mod model;
mod setting;

use std::collections::BTreeMap;

use paired_stats::Interval;
use serde::{Deserialize, Serialize};

use self::candidates::{changes, shard_settings, with_quota};
pub use self::model::{LOAD_MAX, QUANTILE};
use self::model::{load_within, model_error, parts, prediction, run};
pub use self::setting::{AdviceInput, CandidateSetting, Prediction};
use crate::verdict::QUOTA_IS_SMALL;

/// A change that is this much worse than the best one, and smaller, is preferred.
const AS_GOOD: f64 = 1.1;
/// CPU is given back as long as the quantile is shown to be at most so much above today's.
const NOT_WORSE: f64 = 1.05;
/// Beyond this, up or down, the model does not describe the service.
pub const MODEL_ERROR_MAX: f64 = 1.5;

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

/// Simulates the service as it is and under each change that may help.
///
/// Without a quota there is nothing to advise: `None`.
///
/// ```
/// use throttle::{Demand, JobQueue, LimitedHost, Limit, ThreadPool, LimitedService, Work, advice};
/// let requests = Work::Random { per_s: 100.0, demand: Demand::Fixed { cpu_us: 500.0 } };
/// let flushes = Work::Batches { every_us: 1e6, jobs: 8, demand: Demand::Fixed { cpu_us: 30_000.0 } };
/// let pool = |name: &str, work| ThreadPool {
///     name: name.into(), threads: 8, processes: 0, setting: None, set_by: None, queue: JobQueue::Shared, work,
/// };
/// let service = LimitedService { pools: vec![pool("worker", requests), pool("flusher", flushes)] };
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
