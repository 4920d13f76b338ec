//! The JSON report of fio 2 and 3 (`--output-format=json` or `json+`). Times in it are in
//! nanoseconds (`clat_ns`), before fio 3 in microseconds (`clat`).

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::ParseError;
use super::json::last_object;
use super::report::{Report, number};

const DIRECTIONS: [&str; 3] = ["read", "write", "trim"];
const LOOKED_FOR: &str = "complete JSON object with `jobs` (fio --output-format=json)";

pub(super) fn parse(text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new("fio", text);
    // --status-interval prints a document at each interval, each counted from the start: the last
    // one has all.
    let json = last_object(text).map_err(|_| report.missing(LOOKED_FOR))?;
    let jobs = jobs_of(&json).ok_or_else(|| report.missing(LOOKED_FOR))?;
    // Jobs of one group run at once, groups one after the other (`stonewall`, `new_group`).
    let mut groups: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for job in &jobs {
        let group = job.get("groupid").and_then(Value::as_u64).unwrap_or(0);
        let sides = DIRECTIONS.iter().filter_map(|side| job.get(side));
        let active = sides.filter(|side| field(side, "total_ios") > 0.0);
        groups.entry(group).or_default().extend(active);
    }
    let active: Vec<&Value> = groups.values().flatten().copied().collect();
    let total = |value: fn(&Value) -> f64| active.iter().map(|side| value(side)).sum::<f64>();
    let requests = total(|side| field(side, "total_ios"));
    if requests <= 0.0 {
        return Err(report.no_requests());
    }
    for side in &active {
        check_side(side)?;
    }
    let longest_s = |sides: &Vec<&Value>| {
        let runtimes = sides.iter().map(|side| field(side, "runtime") / 1e3);
        runtimes.fold(0.0, f64::max)
    };
    let duration_s: f64 = groups.values().map(longest_s).sum();
    report.set("requests", Some(requests));
    report.set("duration_s", Some(duration_s));
    report.set("requests_per_s", Some(requests / duration_s));
    let bytes = total(|side| bytes_per_s(side) * field(side, "runtime") / 1e3);
    report.set("bytes_per_s", Some(bytes / duration_s));
    // `error` is the errno that ended a job, `total_err` what continue_on_error let pass.
    let errors = jobs
        .iter()
        .map(|job| field(job, "total_err").max(f64::from(field(job, "error") != 0.0)))
        .sum();
    report.set("errors", Some(errors));
    latencies(&mut report, &active);
    report.finish("`iops`")
}

/// The jobs; of several clients (`--client`) what they did together.
fn jobs_of(json: &Value) -> Option<Vec<&Value>> {
    if let Some(jobs) = json.get("jobs").and_then(Value::as_array) {
        return Some(jobs.iter().collect());
    }
    let clients = json.get("client_stats").and_then(Value::as_array)?;
    let is_sum = |job: &&Value| job.get("jobname").and_then(Value::as_str) == Some("All clients");
    let sum: Vec<&Value> = clients.iter().filter(is_sum).collect();
    Some(match sum.is_empty() {
        true => clients.iter().collect(),
        false => sum,
    })
}

/// One direction of one job has to be consistent in itself.
fn check_side(side: &Value) -> Result<(), ParseError> {
    let mut one = Report::new("fio", "");
    one.set("requests", Some(field(side, "total_ios")));
    one.set("requests_per_s", Some(field(side, "iops")));
    one.set("duration_s", Some(field(side, "runtime") / 1e3));
    one.finish("`iops`").map(drop)
}

/// fio 3 has `bw_bytes`, all have `bw` in KiB.
fn bytes_per_s(side: &Value) -> f64 {
    let bytes = side.get("bw_bytes").and_then(Value::as_f64);
    bytes.unwrap_or_else(|| field(side, "bw") * 1024.0)
}

/// Latencies of one direction, in microseconds.
struct Latency<'a> {
    of: &'a Value,
    us: f64,
    count: f64,
}

impl Latency<'_> {
    fn get(&self, key: &str) -> f64 {
        field(self.of, key) * self.us
    }
}

fn latencies(report: &mut Report<'_>, active: &[&Value]) {
    let latencies: Vec<Latency<'_>> = active.iter().filter_map(|side| latency(side)).collect();
    if latencies.len() != active.len() {
        return;
    }
    let count: f64 = latencies.iter().map(|l| l.count).sum();
    let sum: f64 = latencies.iter().map(|l| l.get("mean") * l.count).sum();
    let max = latencies.iter().map(|l| l.get("max")).fold(0.0, f64::max);
    report.set("latency_mean_us", Some(sum / count));
    report.set("latency_max_us", Some(max));
    // Percentiles of several groups do not add up to the percentile of all.
    if let [only] = latencies.as_slice() {
        report.set("latency_sd_us", Some(only.get("stddev")));
        let percentiles = only.of.get("percentile").and_then(Value::as_object);
        for (percent, value) in percentiles.into_iter().flatten() {
            if let Some(percent) = number(percent) {
                report.set_percentile(percent, value.as_f64().map(|value| value * only.us));
            }
        }
    }
}

/// The latency that has percentiles: completion by default, total with `lat_percentiles=1`. The
/// number of samples, `N`, came with fio 3.2.
fn latency(side: &Value) -> Option<Latency<'_>> {
    let of = |name: &str| {
        let nanoseconds = side.get(format!("{name}_ns")).map(|of| (of, 1e-3));
        let (of, us) = nanoseconds.or_else(|| side.get(name).map(|of| (of, 1.0)))?;
        let samples = of.get("N").and_then(Value::as_f64);
        let count = samples.unwrap_or_else(|| field(side, "total_ios"));
        (count > 0.0 && field(of, "max") > 0.0).then_some(Latency { of, us, count })
    };
    let has_percentiles = |latency: &Latency<'_>| latency.of.get("percentile").is_some();
    of("lat")
        .filter(has_percentiles)
        .or_else(|| of("clat"))
        .or_else(|| of("lat"))
}

fn field(object: &Value, key: &str) -> f64 {
    object.get(key).and_then(Value::as_f64).unwrap_or(0.0)
}
