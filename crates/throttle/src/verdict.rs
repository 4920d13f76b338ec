//! Why a group is throttled, or why it is slow without being throttled: in sentences, each with its
//! evidence.

use serde::{Deserialize, Serialize};

use crate::bandwidth::Limit;
use crate::runtime::RuntimePool;
use crate::schedule::{Observed, ThreadNameStats};

/// Mean use from this share of the quota on is "too small a quota", not bursts: with random
/// arrivals a queue at 90 % is ten service times long (M/M/1).
pub(crate) const QUOTA_IS_SMALL: f64 = 0.9;
/// The same where nearly every period is throttled.
const QUOTA_IS_SMALL_AND_ALWAYS: f64 = 0.75;
/// Throttled in a smaller share of the periods than this is throttled seldom. A choice of this
/// crate.
const SELDOM: f64 = 0.05;
/// A wait for a CPU that a user notices beside a request of a millisecond.
const NOTICEABLE_WAIT_US: f64 = 1000.0;
/// All CPUs count as busy from this share on.
const SATURATED: f64 = 0.9;
/// The share of what is waited for, or used, from which on it is others' doing: most of it.
const MOST: f64 = 0.5;

/// What the counters of the group that has the quota advanced by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BandwidthCounters {
    /// CPU time: exact over seconds, where switches that the kernel did not report blur what the
    /// tracepoints saw. `None` of a group that is in the cpu hierarchy of cgroup v1 and not in that
    /// of cpuacct.
    pub cpu_s: Option<f64>,
    /// The same of the watched group, where it is another below that one.
    pub group_cpu_s: Option<f64>,
    /// Quota periods in which the group wanted to run.
    pub periods: u64,
    /// Those in which it was throttled.
    pub throttled_periods: u64,
    /// Time that its CPUs were throttled, summed.
    pub throttled_s: f64,
    /// CPU time taken from earlier periods, where the kernel counts it.
    pub burst_s: f64,
}

/// What is the matter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum Cause {
    /// No quota on the group or above it.
    NoLimit,
    /// Throttled, and mean use is about as large as the quota.
    QuotaBelowUse,
    /// Throttled, and most of what is used of the quota is used by others below the group that has
    /// it.
    Siblings {
        /// The group that has the quota.
        group: String,
    },
    /// Throttled because threads of one name woke together, more than the quota has cores.
    PoolWakesAtOnce {
        /// Their name.
        name: String,
        /// The most of them that wanted to run at once.
        runnable: usize,
    },
    /// Throttled because the garbage collector's or compiler's threads did.
    RuntimeThreads {
        /// Their name.
        name: String,
        /// The most of them that wanted to run at once.
        runnable: usize,
    },
    /// Not throttled; the CPUs are full.
    Saturated,
    /// Not throttled, CPUs are not full of this group, and yet it waits for them, mostly while
    /// others have them.
    Neighbours,
    /// The same, but it waits for its own threads: more of them want to run at once than there are
    /// CPUs.
    OwnThreads {
        /// The name of most of them.
        name: String,
        /// The most of that name that wanted to run at once.
        runnable: usize,
    },
    /// Not throttled, and it does not wait.
    Healthy,
}

/// A cause and the sentence that says it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The cause.
    pub cause: Cause,
    /// One sentence with its evidence.
    pub sentence: String,
}

/// Judges what was seen of a group under `limit` on a host of so many CPUs.
///
/// The counters are those of the group that has the limit: `above`, where that is not the one that
/// was watched but one above it. `None` for counters that cannot be read: then what the tracepoints
/// saw decides alone.
#[must_use]
pub fn judge(
    observed: &Observed,
    limit: Option<&Limit>,
    above: Option<&str>,
    counters: Option<&BandwidthCounters>,
    cpus: usize,
) -> Verdict {
    let counted_s = counters.and_then(|counters| counters.cpu_s);
    let cpu_us = counted_s.map_or(observed.cpu_us, |counted_s| counted_s * 1e6);
    let used = cpu_us / observed.duration_us.max(1.0);
    let (name, by_name) = busiest(observed);
    let waits = mean_wait_us(observed);
    let Some((limit, quota)) = limit.and_then(|limit| Some((limit, limit.in_cores()?))) else {
        return Verdict {
            cause: Cause::NoLimit,
            sentence: format!(
                "Nothing to throttle: neither the group nor one above it has a CPU quota. It uses {used:.2} cores and waits \
                 {} for a CPU, on average.",
                time(waits)
            ),
        };
    };
    let over = observed.cores.share_above(quota);
    let throttled = counters.map_or(over > 0.0, |counters| counters.throttled_periods > 0);
    if !throttled {
        return unthrottled(observed, quota, cpus, used);
    }
    let evidence = evidence(limit, counters, over);
    let burst = if limit.burst_us == 0 {
        "no burst"
    } else {
        "its burst used up"
    };
    let of = above.map_or(String::new(), |group| format!(" of {group}"));
    let quota_text = format!("{quota:.2} cores of quota{of}, {burst}");
    let own_s = counters.and_then(|counters| counters.group_cpu_s);
    let own_us = own_s.map_or(observed.cpu_us, |own_s| own_s * 1e6);
    let own = own_us / observed.duration_us.max(1.0);
    if let Some(group) = above.filter(|_| own < MOST * used) {
        return Verdict {
            cause: Cause::Siblings {
                group: group.to_owned(),
            },
            sentence: format!(
                "Throttled by what else runs in {group}: of {used:.2} cores in use there {own:.2} are this group's, against \
                 {quota_text} ({evidence}; the group wants {:.1} threads on average, {} at most).",
                observed.runnable_mean, observed.runnable_max
            ),
        };
    }
    // A throttled period is one whose quota was used up, so "nearly all of them" is the same
    // finding; what a kernel books late keeps the mean a little below the quota even then.
    let nearly_always = counters.is_some_and(|counters| {
        counters.throttled_periods as f64 >= QUOTA_IS_SMALL * counters.periods as f64
    });
    if used >= QUOTA_IS_SMALL * quota
        || (nearly_always && used >= QUOTA_IS_SMALL_AND_ALWAYS * quota)
    {
        return Verdict {
            cause: Cause::QuotaBelowUse,
            sentence: format!(
                "The quota{of} is too small: {used:.2} cores in use of {quota:.2} ({evidence}). No pool size helps; raise the \
                 quota or lower the work."
            ),
        };
    }
    let seldom = counters.is_some_and(|counters| {
        (counters.throttled_periods as f64) < SELDOM * counters.periods as f64
    });
    let (cause, who) = burst_of_threads(&name, &by_name);
    Verdict {
        cause,
        sentence: format!(
            "{} at {:.0} % of the quota in use: {who}, against {quota_text} ({evidence}; the group wants {:.1} threads \
             on average, {} at most).",
            if seldom {
                "Seldom throttled,"
            } else {
                "Throttled"
            },
            100.0 * used / quota,
            observed.runnable_mean,
            observed.runnable_max
        ),
    }
}

/// How much it was throttled, or would have been as far as the tracepoints saw.
fn evidence(limit: &Limit, counters: Option<&BandwidthCounters>, over: f64) -> String {
    counters.map_or_else(
        || {
            format!(
                "{:.1} % of all windows of 10 ms are above the quota",
                over * 100.0
            )
        },
        |counters| {
            format!(
                "throttled in {} of {} periods of {} ms, {:.2} s in all",
                counters.throttled_periods,
                counters.periods,
                limit.period_us / 1000,
                counters.throttled_s
            )
        },
    )
}

/// Threads of one name that wake together, as a cause and in words.
fn burst_of_threads(name: &str, by_name: &ThreadNameStats) -> (Cause, String) {
    let runnable = by_name.runnable_max;
    match RuntimePool::of(name) {
        Some(pool) => (
            Cause::RuntimeThreads {
                name: name.to_owned(),
                runnable,
            },
            format!(
                "{runnable} threads named {name} ({}; {} sets their number) want to run at once",
                pool.what, pool.flag
            ),
        ),
        None => (
            Cause::PoolWakesAtOnce {
                name: name.to_owned(),
                runnable,
            },
            format!(
                "{} has {runnable} that want to run at once",
                by_name.describe(name)
            ),
        ),
    }
}

fn unthrottled(observed: &Observed, quota: f64, cpus: usize, used: f64) -> Verdict {
    let waits_us = mean_wait_us(observed);
    let waits = format!("wait {} for a CPU, on average", time(waits_us));
    let room = format!("{used:.2} of {quota:.2} cores in use");
    // It may be confined to some of the host's CPUs.
    let cpus = match observed.cpus {
        0 => cpus,
        ran_on => ran_on.min(cpus),
    };
    let (cause, sentence) = if waits_us < NOTICEABLE_WAIT_US {
        (
            Cause::Healthy,
            format!("Not throttled: {room}, and threads {waits}."),
        )
    } else if observed.cores.mean() >= SATURATED * cpus as f64 {
        (
            Cause::Saturated,
            format!(
                "Not throttled, saturated: {room} is all that {cpus} CPUs have, and threads wait {} for one, on average.",
                time(waits_us)
            ),
        )
    } else if observed.waited_for_others_us >= MOST * waited(observed).1 {
        (
            Cause::Neighbours,
            format!(
                "Not throttled, but threads {waits}, with {room} on {cpus} CPUs: others use them."
            ),
        )
    } else {
        let (name, by_name) = busiest(observed);
        let runnable = by_name.runnable_max;
        let sentence = format!(
            "Not throttled, but threads {waits}, with {room}: for each other. Up to {} of the group want to run at once on \
             {cpus} CPUs, {runnable} of them named {name}.",
            observed.runnable_max
        );
        (Cause::OwnThreads { name, runnable }, sentence)
    };
    Verdict { cause, sentence }
}

/// The threads that wanted to run most at once; ties go to those that used more CPU time.
fn busiest(observed: &Observed) -> (String, ThreadNameStats) {
    observed
        .names
        .iter()
        .max_by(|a, b| {
            let key = |by: &ThreadNameStats| (by.runnable_max, by.cpu_us);
            key(a.1)
                .partial_cmp(&key(b.1))
                .unwrap_or(std::cmp::Ordering::Equal)
                .then(b.0.cmp(a.0))
        })
        .map(|(name, by_name)| (name.clone(), by_name.clone()))
        .unwrap_or_default()
}

fn mean_wait_us(observed: &Observed) -> f64 {
    let (waits, waited_us) = waited(observed);
    waited_us / waits.max(1) as f64
}

/// How often its threads waited for a CPU, and how long in all.
fn waited(observed: &Observed) -> (u64, f64) {
    observed.names.values().fold((0, 0.0), |(waits, us), by| {
        (waits + by.waits, us + by.waited_us)
    })
}

fn time(us: f64) -> String {
    if us < 1000.0 {
        format!("{us:.0} µs")
    } else {
        format!("{:.1} ms", us / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::WINDOW_NS;

    /// Ten seconds with so many cores in every window, and threads of one name.
    fn observed(cores: usize, share_busy: f64, name: &str, by_name: ThreadNameStats) -> Observed {
        let mut histogram = crate::Cores::default();
        let busy = crate::rounded(1000.0 * share_busy);
        for _ in 0..cores {
            histogram.add(0, busy * WINDOW_NS);
        }
        histogram.close(1000 * WINDOW_NS);
        Observed {
            duration_us: 1e7,
            cpu_us: 1e7 * cores as f64 * share_busy,
            cores: histogram,
            runnable_mean: 2.0,
            runnable_max: by_name.runnable_max,
            cpus: 8,
            waited_for_others_us: 0.9 * by_name.waited_us,
            gaps: 0,
            names: [(name.to_owned(), by_name)].into(),
        }
    }

    fn pool(runnable_max: usize, waited_us: f64) -> ThreadNameStats {
        ThreadNameStats {
            threads: 40,
            waits: 1,
            waited_us,
            runnable_max,
            ..ThreadNameStats::default()
        }
    }

    const THROTTLED: BandwidthCounters = BandwidthCounters {
        cpu_s: Some(8.0),
        group_cpu_s: None,
        periods: 100,
        throttled_periods: 30,
        throttled_s: 1.5,
        burst_s: 0.0,
    };

    fn cause(observed: &Observed, quota: Option<f64>, counters: &BandwidthCounters) -> Cause {
        let limit = quota.map(Limit::cores);
        judge(observed, limit.as_ref(), None, Some(counters), 8).cause
    }

    #[test]
    fn each_cause_has_its_evidence() {
        let burst = observed(8, 0.1, "http-worker", pool(32, 5000.0));
        assert!(matches!(
            cause(&burst, Some(2.0), &THROTTLED),
            Cause::PoolWakesAtOnce { name, runnable: 32 } if name == "http-worker"
        ));
        let sentence = judge(&burst, Some(&Limit::cores(2.0)), None, Some(&THROTTLED), 8).sentence;
        assert_eq!(
            sentence,
            "Throttled at 40 % of the quota in use: a pool of 40 threads named http-worker has 32 that want to run at once, \
             against 2.00 cores of quota, no burst (throttled in 30 of 100 periods of 100 ms, 1.50 s in all; the group wants \
             2.0 threads on average, 32 at most)."
        );
        let once = BandwidthCounters {
            throttled_periods: 1,
            ..THROTTLED
        };
        let seldom = judge(&burst, Some(&Limit::cores(2.0)), None, Some(&once), 8);
        assert!(
            seldom
                .sentence
                .starts_with("Seldom throttled, at 40 % of the quota in use: a pool of"),
            "{}",
            seldom.sentence
        );
        let gc = observed(8, 0.1, "GC Thread#3", pool(13, 5000.0));
        assert!(matches!(
            cause(&gc, Some(2.0), &THROTTLED),
            Cause::RuntimeThreads { .. }
        ));
        let busy = |cores: f64, counters: BandwidthCounters| BandwidthCounters {
            cpu_s: Some(10.0 * cores),
            ..counters
        };
        let full = observed(2, 1.0, "worker", pool(4, 5000.0));
        assert_eq!(
            cause(&full, Some(2.0), &busy(2.0, THROTTLED)),
            Cause::QuotaBelowUse
        );
        let always = BandwidthCounters {
            throttled_periods: 95,
            ..THROTTLED
        };
        assert_eq!(
            cause(
                &observed(2, 0.85, "worker", pool(4, 5000.0)),
                Some(2.0),
                &busy(1.7, always)
            ),
            Cause::QuotaBelowUse
        );
        // What the tracepoints saw stands in for CPU time that is not counted.
        let uncounted = BandwidthCounters {
            cpu_s: None,
            ..THROTTLED
        };
        assert_eq!(cause(&full, Some(2.0), &uncounted), Cause::QuotaBelowUse);
        let none = BandwidthCounters {
            throttled_periods: 0,
            ..THROTTLED
        };
        assert_eq!(
            cause(&observed(8, 1.0, "w", pool(9, 5000.0)), Some(9.0), &none),
            Cause::Saturated
        );
        assert_eq!(cause(&burst, Some(9.0), &none), Cause::Neighbours);
        let alone = Observed {
            waited_for_others_us: 0.0,
            ..burst.clone()
        };
        let alone = judge(&alone, Some(&Limit::cores(9.0)), None, Some(&none), 8);
        assert!(
            matches!(alone.cause, Cause::OwnThreads { runnable: 32, .. }),
            "{alone:?}"
        );
        assert!(
            alone.sentence.ends_with(
                "for each other. Up to 32 of the group want to run at once on 8 CPUs, 32 of them named http-worker."
            ),
            "{}",
            alone.sentence
        );
        let confined = Observed {
            cpus: 2,
            ..observed(2, 0.95, "w", pool(9, 5000.0))
        };
        assert_eq!(cause(&confined, Some(9.0), &none), Cause::Saturated);
        assert_eq!(
            cause(&observed(1, 0.1, "w", pool(1, 20.0)), Some(9.0), &none),
            Cause::Healthy
        );
        assert_eq!(cause(&burst, None, &none), Cause::NoLimit);
    }

    #[test]
    fn a_group_that_uses_little_of_a_quota_above_it_is_not_blamed() {
        let limit = Limit::cores(2.0);
        let victim = observed(8, 0.005, "worker", pool(2, 5000.0));
        let of = |counters: &BandwidthCounters, observed: &Observed| {
            judge(observed, Some(&limit), Some("slice"), Some(counters), 8)
        };
        assert_eq!(
            of(&THROTTLED, &victim).sentence,
            "Throttled by what else runs in slice: of 0.80 cores in use there 0.04 are this group's, against 2.00 cores of \
             quota of slice, no burst (throttled in 30 of 100 periods of 100 ms, 1.50 s in all; the group wants 2.0 threads \
             on average, 2 at most)."
        );
        let full = BandwidthCounters {
            cpu_s: Some(20.0),
            ..THROTTLED
        };
        assert!(matches!(of(&full, &victim).cause, Cause::Siblings { group } if group == "slice"));
        // The one that uses it is.
        let hog = observed(8, 0.1, "worker", pool(32, 5000.0));
        let hog = of(&THROTTLED, &hog);
        assert!(
            matches!(hog.cause, Cause::PoolWakesAtOnce { .. }),
            "{hog:?}"
        );
        assert!(hog.sentence.contains("2.00 cores of quota of slice, no"));
        // Even where the tracepoints missed most of it: its own counter did not.
        let own = BandwidthCounters {
            group_cpu_s: Some(7.6),
            ..THROTTLED
        };
        let missed = of(&own, &victim).cause;
        assert!(!matches!(missed, Cause::Siblings { .. }), "{missed:?}");
    }

    #[test]
    fn an_empty_observation_is_healthy_or_without_limit() {
        let nothing = Observed::default();
        assert_eq!(
            judge(&nothing, Some(&Limit::cores(1.0)), None, None, 2).cause,
            Cause::Healthy
        );
        assert_eq!(judge(&nothing, None, None, None, 2).cause, Cause::NoLimit);
    }
}
