//! One check for every report: do its numbers fit each other?
//!
//! A report that contradicts itself was read wrongly, or its tool counted wrongly. Neither may
//! become a measurement.

use std::collections::BTreeMap;

/// How far `requests` may be from rate × duration, as a share. Tools round both, and some leave the
/// time for connecting out of one of them.
const COUNT_TOLERANCE: f64 = 0.05;
/// Times are printed with two decimals of a second at the least (redis-benchmark: `completed in
/// 0.10 seconds`).
const DURATION_RESOLUTION_S: f64 = 0.01;
/// How far two latencies may be in the wrong order, as a share: sysbench and HdrHistogram give the
/// upper end of a bucket, which is up to 2 % above the largest value in it.
const LATENCY_TOLERANCE: f64 = 0.03;

/// Percentiles in their order, each with the share of the requests that took at least as long.
const RISING: [(&str, f64); 7] = [
    ("latency_p50_us", 0.5),
    ("latency_p75_us", 0.25),
    ("latency_p90_us", 0.1),
    ("latency_p95_us", 0.05),
    ("latency_p99_us", 0.01),
    ("latency_p999_us", 0.001),
    ("latency_max_us", 0.0),
];

/// The first contradiction among the metrics of one report, with the two numbers. `resolution_us`
/// is the step in which the tool prints times.
pub(super) fn contradiction(metrics: &BTreeMap<String, f64>, resolution_us: f64) -> Option<String> {
    let get = |name: &str| metrics.get(name).copied();
    counts(get("requests"), get("requests_per_s"), get("duration_s"))
        .or_else(|| latencies(metrics, resolution_us))
}

fn counts(requests: Option<f64>, per_s: Option<f64>, duration_s: Option<f64>) -> Option<String> {
    let (requests, per_s, duration_s) = (requests?, per_s?, duration_s?);
    let expected = per_s * duration_s;
    let slack = COUNT_TOLERANCE * requests.max(expected) + per_s * DURATION_RESOLUTION_S + 1.0;
    ((requests - expected).abs() > slack).then(|| {
        format!(
            "requests is {requests}, but requests_per_s × duration_s is {per_s} × {duration_s} = {expected:.0}"
        )
    })
}

fn latencies(metrics: &BTreeMap<String, f64>, resolution_us: f64) -> Option<String> {
    let known: Vec<(&str, f64, f64)> = RISING
        .iter()
        .filter_map(|(name, share)| Some((*name, *share, *metrics.get(*name)?)))
        .collect();
    let exceeds = |low: f64, high: f64| low > high * (1.0 + LATENCY_TOLERANCE) + resolution_us;
    for pair in known.windows(2) {
        if let [(low, _, low_us), (high, _, high_us)] = pair
            && exceeds(*low_us, *high_us)
        {
            return Some(format!(
                "{low} is {low_us}, above {high}, which is {high_us}"
            ));
        }
    }
    let mean_us = *metrics.get("latency_mean_us")?;
    if let Some(max_us) = metrics.get("latency_max_us")
        && exceeds(mean_us, *max_us)
    {
        return Some(format!(
            "latency_mean_us is {mean_us}, above latency_max_us, which is {max_us}"
        ));
    }
    // Markov's inequality: if half of the requests took 10 ms or more, the mean is 5 ms or more.
    let longest = known
        .into_iter()
        .find(|(_, share, us)| exceeds(share * us, mean_us));
    longest.map(|(name, _, us)| {
        format!("latency_mean_us is {mean_us}, too low for {name}, which is {us}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(metrics: &[(&str, f64)]) -> Option<String> {
        let metrics = metrics
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value));
        contradiction(&metrics.collect(), 10.0)
    }

    #[test]
    fn numbers_that_fit_pass() {
        assert_eq!(check(&[]), None);
        assert_eq!(
            check(&[
                ("requests", 1000.0),
                ("requests_per_s", 99.0),
                ("duration_s", 10.0),
                ("latency_mean_us", 500.0),
                ("latency_p50_us", 400.0),
                ("latency_p99_us", 3000.0),
                ("latency_max_us", 3000.0),
            ]),
            None
        );
        // Redis: 1,000 requests "in 0.02 seconds" at 40,000 a second.
        assert_eq!(
            check(&[
                ("requests", 1000.0),
                ("requests_per_s", 40_000.0),
                ("duration_s", 0.02)
            ]),
            None
        );
        // Whole buckets: all requests took as long as the slowest one.
        assert_eq!(
            check(&[("latency_mean_us", 1000.0), ("latency_max_us", 990.0)]),
            None
        );
    }

    #[test]
    fn each_contradiction_is_told_with_both_numbers() {
        let told = |metrics: &[(&str, f64)]| check(metrics).unwrap();
        assert_eq!(
            told(&[
                ("requests", 1e6),
                ("requests_per_s", 20000.0),
                ("duration_s", 90.0)
            ]),
            "requests is 1000000, but requests_per_s × duration_s is 20000 × 90 = 1800000"
        );
        assert_eq!(
            told(&[("latency_mean_us", 90.0e3), ("latency_max_us", 50.0e3)]),
            "latency_mean_us is 90000, above latency_max_us, which is 50000"
        );
        assert_eq!(
            told(&[("latency_p95_us", 900.0), ("latency_p99_us", 500.0)]),
            "latency_p95_us is 900, above latency_p99_us, which is 500"
        );
        assert_eq!(
            told(&[("latency_mean_us", 5.0), ("latency_p50_us", 5000.0)]),
            "latency_mean_us is 5, too low for latency_p50_us, which is 5000"
        );
    }
}
