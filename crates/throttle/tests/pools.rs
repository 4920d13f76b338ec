//! What is advised to pools of processes, by who takes a request that waits.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use throttle::advice::{Advice, AdviceInput, Prediction, Unreliable, advise};
use throttle::{Job, JobQueue, Limit, LimitedHost, LimitedService, ThreadPool, Work, simulate};

const DURATION_S: f64 = 20.0;
const WORKERS: usize = 8;

/// Requests at random, each on a connection of one of the workers: nine of ten are short, and one
/// takes ten times as long.
fn jobs(per_s: f64, seed: u64) -> Vec<Job> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut jobs = Vec::new();
    let mut at_us = 0.0;
    while at_us < DURATION_S * 1e6 {
        at_us += -(1.0 - rng.random::<f64>()).ln() * 1e6 / per_s;
        let is_long = rng.random::<f64>() < 0.1;
        jobs.push(Job {
            at_us,
            cpu_us: if is_long { 7700.0 } else { 770.0 },
            process: rng.random_range(0..WORKERS),
        });
    }
    jobs
}

fn pool(name: &str, queue: JobQueue, jobs: Vec<Job>) -> LimitedService {
    LimitedService {
        pools: vec![ThreadPool {
            name: name.to_owned(),
            threads: WORKERS,
            processes: WORKERS,
            setting: None,
            set_by: None,
            queue,
            work: Work::Recorded(jobs),
        }],
    }
}

/// What is advised on two CPUs under a quota of one core.
fn advised(service: &LimitedService) -> Advice {
    let question = AdviceInput {
        service,
        duration_us: DURATION_S * 1e6,
        latencies_us: &[],
        host: LimitedHost::new(2),
        limit: Limit::cores(1.0),
        pool: 0,
        objective_us: None,
        shards: None,
    };
    advise(&question).unwrap()
}

/// What the model says of each pool size under today's limit.
fn by_size(advice: &Advice) -> BTreeMap<usize, &Prediction> {
    let of_size = |tried: &&Prediction| tried.setting.limit == advice.today.setting.limit;
    let tried = advice.tried.iter().filter(of_size);
    tried
        .filter_map(|tried| Some((*tried.setting.threads.values().next()?, tried)))
        .collect()
}

/// At the rates of gunicorn and PostgreSQL in the bench of pools.
#[test]
fn where_any_worker_takes_a_request_its_process_plays_no_part() {
    for (name, per_s) in [("gunicorn", 492.0), ("postgres", 450.0)] {
        let jobs = jobs(per_s, 1);
        let without = jobs.iter().map(|job| Job { process: 0, ..*job });
        let without = advised(&pool(name, JobQueue::Shared, without.collect()));
        let advice = advised(&pool(name, JobQueue::Shared, jobs));
        assert_eq!(advice, without, "{name}");
    }
}

#[test]
fn a_request_waits_for_the_process_of_its_connection() {
    for (name, per_s) in [("python*", 481.0), ("node", 511.0), ("nginx", 480.0)] {
        let jobs = jobs(per_s, 1);
        let own = advised(&pool(name, JobQueue::PerProcess, jobs.clone()));
        let shared = advised(&pool(name, JobQueue::Shared, jobs));
        let (own, shared) = (by_size(&own), by_size(&shared));
        for (size, times) in [(2, 1.1), (4, 1.0)] {
            let (own, shared) = (own[&size].p99_us, shared[&size].p99_us);
            assert!(own > times * shared, "{name}, {size}: {own} and {shared}");
        }
        // One process has one queue either way.
        assert_eq!(own[&1].p99_us, shared[&1].p99_us, "{name}");
    }
}

/// In the bench of pools, requests waited for seconds for two workers of Puma, which the model with
/// one queue recommended.
#[test]
fn a_smaller_pool_is_not_recommended_to_connections_of_their_own() {
    let sizes = |queue: JobQueue| {
        (1..=5).map(move |seed| {
            let advice = advised(&pool("puma srv tp *", queue, jobs(447.0, seed)));
            let recommended = advice.recommended.map(|best| best.setting.threads);
            recommended.and_then(|threads| threads.into_values().next())
        })
    };
    assert!(sizes(JobQueue::Shared).any(|size| size.is_some()));
    assert!(sizes(JobQueue::PerProcess).all(|size| size.is_none()));
}

#[test]
fn no_smaller_pool_is_tried_where_a_process_serves_one_connection() {
    let advice = advised(&pool("httpd", JobQueue::PerConnection, jobs(447.0, 1)));
    let changes_pool = |tried: &Prediction| !tried.setting.threads.is_empty();
    assert!(!advice.tried.iter().any(changes_pool), "{:?}", advice.tried);
    assert!(!advice.tried.is_empty(), "limits are tried");
}

#[test]
fn threads_of_one_process_share_its_queue() {
    let p99_us = |threads: usize, processes: usize| {
        let mut service = pool("puma srv tp *", JobQueue::PerProcess, jobs(447.0, 1));
        service.pools[0].threads = threads;
        service.pools[0].processes = processes;
        let limit = Limit::cores(2.0);
        let outcome = simulate(&service, &LimitedHost::new(2), &limit, DURATION_S, 1);
        outcome.latency_us(0, 0.99).unwrap()
    };
    let (one, two, eight) = (p99_us(8, 1), p99_us(8, 2), p99_us(8, 8));
    assert!(one <= two && two <= eight, "{one} {two} {eight}");
    let mut shared = pool("puma srv tp *", JobQueue::Shared, jobs(447.0, 1));
    shared.pools[0].processes = 1;
    let outcome = simulate(
        &shared,
        &LimitedHost::new(2),
        &Limit::cores(2.0),
        DURATION_S,
        1,
    );
    assert_eq!(outcome.latency_us(0, 0.99).unwrap(), one);
}

#[test]
fn a_saturated_pool_is_advised_nothing() {
    for queue in [
        JobQueue::Shared,
        JobQueue::PerProcess,
        JobQueue::PerConnection,
    ] {
        let advice = advised(&pool("python*", queue, jobs(690.0, 1)));
        assert_eq!(advice.unreliable, Some(Unreliable::Saturated), "{queue:?}");
    }
}

#[test]
fn more_processes_than_threads_are_no_error() {
    let mut service = pool("node", JobQueue::PerProcess, jobs(100.0, 1));
    service.pools[0].processes = usize::MAX;
    let limit = Limit::cores(1.0);
    let outcome = simulate(&service, &LimitedHost::new(2), &limit, DURATION_S, 1);
    assert!(outcome.latency_us(0, 0.99).is_some());
    assert!(!by_size(&advised(&service)).is_empty());
}
