//! A service simulated under a setting, and what comes of it beside today.

use paired_stats::{Interval, Pair, ratio_interval};

use super::setting::{AdviceInput, CandidateSetting, Prediction};
use crate::capacity::{CapacitySearch, Trial};
use crate::histogram::Cores;
use crate::limited_service::{Job, LimitedService, ThreadPool, Work};
use crate::simulation::{SimulationResult, simulate};

/// The quantile that is predicted and compared.
pub const QUANTILE: f64 = 0.99;
/// Parts of a recording, or seeds of a description, that are simulated apart; intervals are over
/// them.
const RUNS: usize = 5;
const CONFIDENCE: f64 = 0.95;
/// Simulated time of a run of a described service, in seconds.
const RUN_S: f64 = 20.0;
/// How close the load is found that a setting takes.
const LOAD_TOLERANCE: f64 = 0.05;
/// The most load that is tried, as a multiple of today's: a power of two, as the search doubles.
pub const LOAD_MAX: f64 = 32.0;

/// The service in parts that are simulated apart, each with its length in seconds.
pub(super) fn parts(question: &AdviceInput<'_>) -> Vec<(LimitedService, f64)> {
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

pub(super) fn run(
    question: &AdviceInput<'_>,
    parts: &[(LimitedService, f64)],
    setting: &CandidateSetting,
) -> Vec<SimulationResult> {
    let simulated = |part: usize| {
        let (service, length_s) = &parts[part];
        let mut service = loaded(service, setting.load, 1e6 * length_s);
        for pool in &mut service.pools {
            if let Some(threads) = setting.threads.get(&pool.name) {
                pool.resize(*threads);
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

pub(super) fn prediction(
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
pub(super) fn model_error(
    question: &AdviceInput<'_>,
    today: &[SimulationResult],
) -> Option<Interval> {
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
pub(super) fn load_within(
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
