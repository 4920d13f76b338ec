//! A fleet that does not exist, of services that do: recorded shapes at several sizes, as
//! OpenMetrics text that `promtool tsdb create-blocks-from openmetrics` makes a database of. Used
//! by `cargo xtask bench fleet` and by the tests.

use std::io::{self, Write};

/// When the simulated time begins: the first second of one of Prometheus' blocks of two hours.
pub(crate) const START_S: u64 = 1_750_003_200;

/// The series that `slackline throttle fleet` asks for.
const USED: [&str; 9] = [
    "slackline_cpu_usage_seconds_total",
    "slackline_cpu_limit_cores",
    "slackline_cpu_periods_total",
    "slackline_cpu_throttled_periods_total",
    "slackline_traced_seconds_total",
    "slackline_runnable_thread_seconds_total",
    "slackline_run_queue_wait_seconds_total",
    "slackline_run_queue_waits_total",
    "slackline_cpu_use_of_limit_bucket",
];

/// What one real service did.
pub(crate) struct Shape {
    pub(crate) name: String,
    pub(crate) series: Vec<Recorded>,
}

pub(crate) struct Recorded {
    pub(crate) metric: String,
    /// The upper bound of a histogram's class.
    bound: Option<String>,
    /// At the end.
    pub(crate) value: f64,
    pub(crate) per_s: f64,
}

/// Whether a metric is a value of now, and no counter.
pub(crate) fn is_gauge(metric: &str) -> bool {
    metric.ends_with("_cores")
}

/// Reads what `xtask/bench/fleet/record.py` wrote: two scrapes, each below a line `# at N s, …`.
pub(crate) fn shapes(text: &str) -> Vec<Shape> {
    let mut shapes: Vec<Shape> = Vec::new();
    let mut first = std::collections::HashMap::new();
    let mut at_s = 0.0;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# at ") {
            at_s = rest
                .split(' ')
                .next()
                .and_then(|s| s.parse().ok())
                .unwrap_or(0.0);
            continue;
        }
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let value: f64 = value.parse().unwrap_or(0.0);
        if at_s == 0.0 {
            first.insert(series, value);
            continue;
        }
        let Some((metric, labels)) = series.split_once('{') else {
            continue;
        };
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let name = label("service").unwrap_or_default();
        let recorded = Recorded {
            metric: metric.to_owned(),
            bound: label("le"),
            value,
            per_s: (value - first.get(series).copied().unwrap_or(0.0)) / at_s,
        };
        match shapes.iter_mut().find(|shape| shape.name == name) {
            Some(shape) => shape.series.push(recorded),
            None => shapes.push(Shape {
                name,
                series: vec![recorded],
            }),
        }
    }
    shapes
}

/// The size of a service: a multiple of its shape.
pub(crate) fn size(service: usize) -> f64 {
    [1.0, 2.0, 4.0, 8.0][service / 6 % 4]
}

/// Writes so many services in so many shards, a sample every `step_s` up to `steps`. Of each
/// service one shard begins anew halfway, so that its counters go backwards. How many series there
/// are.
pub(crate) fn write(
    out: &mut dyn Write,
    shapes: &[Shape],
    services: usize,
    shards: usize,
    step_s: u64,
    steps: u64,
) -> io::Result<usize> {
    let mut count = 0;
    for metric in USED {
        for service in 0..services {
            let shape = &shapes[service % shapes.len()];
            for series in shape.series.iter().filter(|series| series.metric == metric) {
                // Periods, time and windows do not grow with the service.
                let is_fixed = ["periods", "traced", "bucket"]
                    .iter()
                    .any(|part| metric.contains(part));
                let factor = if is_fixed { 1.0 } else { size(service) };
                let bound = series
                    .bound
                    .as_ref()
                    .map_or_else(String::new, |bound| format!(",le=\"{bound}\""));
                for shard in 0..shards {
                    count += 1;
                    let labels = format!(
                        "service=\"{}-{service:03}\",group=\"system.slice/{}-{service:03}\",instance=\"host-{shard:03}:9753\"{bound}",
                        shape.name, shape.name
                    );
                    for step in 0..=steps {
                        let time_s = START_S + step * step_s;
                        let restarted = shard == 0 && step > steps / 2;
                        let since_s = if restarted {
                            step - steps / 2
                        } else {
                            step + 100
                        } * step_s;
                        let value = if is_gauge(metric) {
                            factor * series.value
                        } else {
                            factor * series.per_s * since_s as f64
                        };
                        writeln!(out, "{metric}{{{labels}}} {value:.6} {time_s}")?;
                    }
                }
            }
        }
    }
    writeln!(out, "# EOF")?;
    Ok(count)
}
