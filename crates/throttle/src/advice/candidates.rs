//! The settings that are worth a try.

use super::setting::{AdviceInput, CandidateSetting};
use crate::bandwidth::Limit;
use crate::limited_service::{JobQueue, ThreadPool};

/// Quotas of shards, as multiples of the recommended one.
const SHARD_QUOTAS: [f64; 5] = [0.5, 1.0, 1.5, 2.0, 4.0];

/// No size is tried in which a pool's threads would be busy for more of the time.
const POOL_BUSY_MAX: f64 = 0.8;

/// Pools of which other sizes are tried: those that use most CPU time.
const POOLS_MAX: usize = 3;

/// Every change that is tried by itself.
pub(super) fn changes(
    question: &AdviceInput<'_>,
    today: &CandidateSetting,
) -> Vec<CandidateSetting> {
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
        .filter(|pool| pool.queue != JobQueue::PerConnection)
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
pub(super) fn with_quota(limit: &Limit, share: f64) -> Option<Limit> {
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

/// Shards that are worth a look: of today's setting and of the recommended one, with other quotas
/// within the host.
pub(super) fn shard_settings(
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
