//! How many requests a percentile of latency stands on, and how many it needs.

use std::collections::BTreeSet;

use crate::evaluation::Block;
use crate::metrics::{SideMetrics, lookup};
use crate::spec::{Spec, requests_of};

/// How many requests have to lie beyond a percentile. Amazon `CloudWatch` has too few data for a
/// percentile p below 10 / (1 − p) samples, 1000 for the 99th (its user guide, "Percentile-based
/// alarms and low data samples").
const BEYOND: f64 = 10.0;

/// What a block's requests are too few for, in a sentence: the percentiles among these metrics that
/// a side of some block has from fewer requests than they need.
#[must_use]
pub fn too_few_requests<'a>(
    spec: &Spec,
    metrics: impl IntoIterator<Item = &'a str>,
    blocks: &[&Block],
) -> Option<String> {
    let metrics: BTreeSet<&str> = metrics.into_iter().collect();
    let mut short = Vec::new();
    for metric in metrics {
        let Some(percentile) = percentile(spec, metric) else {
            continue;
        };
        let needed = needed(percentile);
        let sides = blocks.iter().flat_map(|it| [&it.control, &it.experiment]);
        let counts = sides
            .filter(|side| side.contains_key(metric))
            .filter_map(|side| requests(side, metric));
        let least = counts.fold(f64::INFINITY, f64::min);
        if least < needed {
            short.push(format!(
                "{metric} needs {needed:.0} and had {least:.0} in a block"
            ));
        }
    }
    sentence(&short, "block", "evaluation.block_s")
}

/// The same of a run of `slackline load`, and of all percentiles of latency in its report.
#[must_use]
pub fn too_few_in_run(had: u64) -> Option<String> {
    let all = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p999", 99.9)];
    let short = all.map(|(name, percentile)| (name, needed(percentile)));
    let short = short
        .into_iter()
        .filter(|(_, needed)| (had as f64) < *needed);
    let short =
        short.map(|(name, needed)| format!("latency_{name}_us needs {needed:.0} and had {had}"));
    sentence(&short.collect::<Vec<_>>(), "run", "--duration-s")
}

/// How many requests a percentile needs.
fn needed(percentile: f64) -> f64 {
    (BEYOND * 100.0 / (100.0 - percentile)).round()
}

/// `stretch` is what the requests are of, and `setting` says how long that is.
fn sentence(short: &[String], stretch: &str, setting: &str) -> Option<String> {
    (!short.is_empty()).then(|| {
        format!(
            "Too few requests: {}. With fewer requests, the percentile is close to the maximum and varies much between {stretch}s: fewer \
             than ten requests lie above it. Make the {stretch}s longer (`{setting}`), or send more requests.",
            short.join("; ")
        )
    })
}

/// How many requests a latency of one side of a block stands on.
fn requests(side: &SideMetrics, metric: &str) -> Option<f64> {
    let own = side.get(&requests_of(metric)).copied();
    // Those that failed have a latency, too.
    let all = || Some(lookup(side, "requests")? + lookup(side, "errors").unwrap_or(0.0));
    own.or_else(all)
}

/// Which percentile of latency a metric is, by its specification or by its name
/// (`latency_p999_us` is 99.9); `None` of another metric.
fn percentile(spec: &Spec, metric: &str) -> Option<f64> {
    if let Some(known) = spec.metrics.get(metric) {
        return known.latency().map(|it| it.percentile());
    }
    let mut words = metric.split('_');
    let digits = words.find_map(|word| {
        let digits = word.strip_prefix('p')?;
        let is_number = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
        (is_number && digits != "100").then_some(digits)
    })?;
    let text = match digits.len() {
        1 | 2 => digits.to_owned(),
        _ => format!("{}.{}", &digits[..2], &digits[2..]),
    };
    let percentile: f64 = text.parse().ok()?;
    (percentile < 100.0).then_some(percentile)
}

#[cfg(test)]
mod tests {
    use host::Roots;

    use super::*;
    use crate::evaluation::SideOrder;

    fn spec(metrics: &str) -> Spec {
        let text = format!(
            r#"parameters = [{{ name = "x", type = "int", low = 0, high = 1, default = 0 }}]
target = {{ start = ["sleep", "9"] }}
workload = {{ command = ["wrk"], parse = "wrk" }}
objective = {{ metric = "cpu_s_per_request" }}
{metrics}"#
        );
        let checked = crate::spec::context(&Roots::default()).check(text, "x.toml".as_ref());
        checked.unwrap().written().clone()
    }

    fn block(metrics: &[(&str, f64)]) -> Block {
        let side: SideMetrics = metrics
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        Block {
            start_s: 0.0,
            order: SideOrder::Parallel,
            control: side.clone(),
            experiment: side,
        }
    }

    #[test]
    fn the_name_of_a_metric_says_which_percentile_it_is() {
        let spec = spec("");
        for (name, of) in [
            ("latency_p50_us", Some(50.0)),
            ("latency_p99_us", Some(99.0)),
            ("latency_p999_us", Some(99.9)),
            ("read_p9999_us", Some(99.99)),
            ("latency_max_us", None),
            ("latency_mean_us", None),
            ("requests_per_s", None),
            ("latency_p100_us", None),
        ] {
            assert_eq!(percentile(&spec, name), of, "{name}");
        }
    }

    #[test]
    fn a_percentile_with_fewer_than_ten_requests_beyond_it_is_named() {
        let spec = spec(r#"metrics = { tail = { push = { udp = "127.0.0.1:{port}" } } }"#);
        let few = block(&[
            ("requests", 60.0),
            ("errors", 4.0),
            ("latency_p50_us", 100.0),
            ("latency_p99_us", 900.0),
            ("tail", 900.0),
            ("tail_requests", 999.0),
        ]);
        let many = block(&[("requests", 1000.0), ("latency_p99_us", 900.0)]);
        let said = |metrics: &[&str], blocks: &[&Block]| {
            too_few_requests(&spec, metrics.iter().copied(), blocks)
        };
        assert_eq!(said(&["latency_p99_us"], &[&many]), None);
        assert_eq!(said(&["latency_p50_us", "requests"], &[&few]), None);
        // It was not measured.
        assert_eq!(said(&["latency_p999_us"], &[&few]), None);
        let told = said(&["latency_p99_us", "tail"], &[&many, &few]).unwrap();
        assert!(
            told.starts_with(
                "Too few requests: latency_p99_us needs 1000 and had 64 in a block; tail needs 1000 and had 999 in a block. "
            ),
            "{told}"
        );
    }

    #[test]
    fn a_run_of_the_load_generator_names_what_its_requests_are_too_few_for() {
        assert_eq!(too_few_in_run(10_000), None);
        let told = too_few_in_run(999).unwrap();
        assert!(
            told.starts_with(
                "Too few requests: latency_p99_us needs 1000 and had 999; latency_p999_us needs 10000 and had 999. "
            ) && told.contains("`--duration-s`"),
            "{told}"
        );
    }
}
