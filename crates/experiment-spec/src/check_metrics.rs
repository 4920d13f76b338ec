//! What can be told of metrics from elsewhere before anything is started.

use std::collections::{BTreeMap, BTreeSet};

use super::form::{check_command, check_url};
use super::locate::Source;
use super::metric::{LatencyMetric, requests_of};
use super::{Spec, TargetSpec};
use crate::error::SpecError;
use crate::template::{self, Variables};

/// What names a value that the two instances of a started service do not share.
const OF_ONE_SIDE: [&str; 3] = ["port", "dir", "side"];

/// What can be told of the metrics before anything is started.
pub(super) fn check_metrics(
    spec: &Spec,
    source: &Source,
    target: &TargetSpec,
) -> Result<(), SpecError> {
    let mut sockets = BTreeMap::new();
    for (name, metric) in &spec.metrics {
        let key = format!("metrics.{name}");
        let given = [
            metric.prometheus.is_some(),
            metric.command.is_some(),
            metric.wire.is_some(),
            metric.scrape.is_some(),
            metric.push.is_some(),
        ];
        if given.into_iter().filter(|is_given| *is_given).count() != 1 {
            let why = "give exactly one of prometheus (with query), command, wire, scrape and push";
            return Err(source.error(&key, why));
        }
        if let Some(url) = &metric.prometheus {
            check_url(&format!("{key}.prometheus"), url, source)?;
        }
        if metric.prometheus.is_some() != metric.query.is_some() {
            return Err(source.error(&key, "prometheus and query belong together"));
        }
        check_command(&format!("{key}.command"), metric.command.as_ref(), source)?;
        let Some(latency) = metric.latency() else {
            continue;
        };
        let wrong = |below: &str, why: String| source.error(&format!("{key}.{below}"), why);
        if metric.counter {
            return Err(wrong(
                "counter",
                "a latency is no counter: leave it out".to_owned(),
            ));
        }
        let requests = requests_of(name);
        if spec.metrics.contains_key(&requests) {
            let why = format!(
                "this name is taken by the number of requests of {key}: choose another name"
            );
            return Err(source.error(&format!("metrics.{requests}"), why));
        }
        check_latency(latency, target).map_err(|(below, why)| wrong(&below, why))?;
        if let LatencyMetric::Push(push) = latency {
            let socket = (push.udp.clone(), push.unix.clone());
            let first = sockets.entry(socket).or_insert((&push.timer, key.clone()));
            if *first.0 != push.timer {
                let why = format!(
                    "{} reads this socket for another timer: give each timer its own socket",
                    first.1
                );
                return Err(wrong("push.timer", why));
            }
        }
    }
    Ok(())
}

/// The key and the reason where it cannot be meant.
fn check_latency(latency: LatencyMetric<'_>, target: &TargetSpec) -> Result<(), (String, String)> {
    let key = latency.key();
    let at = |below: &str| format!("{key}.{below}");
    let percentile = latency.percentile();
    if !(percentile > 0.0 && percentile < 100.0) {
        let percentile = bayes_opt::readable(percentile);
        let why = format!("{percentile} must be above 0 and below 100");
        return Err((at("percentile"), why));
    }
    if latency.minimum_requests() == 0 {
        return Err((at("minimum_requests"), "must be above 0".to_owned()));
    }
    let texts = latency.texts();
    for (below, text) in &texts {
        let names: BTreeSet<String> = template::names(text).collect();
        let is_of_one_side = match latency {
            LatencyMetric::Wire(_) => names.contains("port"),
            _ => OF_ONE_SIDE.iter().any(|name| names.contains(*name)),
        };
        if target.start.is_some() && !is_of_one_side {
            let write = match latency {
                LatencyMetric::Wire(_) => "\"{port}\"",
                _ => "{port}, {dir} or {side} in it",
            };
            let why = format!(
                "{text:?} is the same for the control's and the candidate's instance, whose requests could not be told apart: \
                 write {write}"
            );
            return Err(((*below).to_owned(), why));
        }
        if target.start.is_none() && target.ports.is_none() && names.contains("port") {
            let why =
                "Slackline starts no service whose {port} it could be: write the port's number";
            return Err(((*below).to_owned(), why.to_owned()));
        }
    }
    // A name may stand for anything; one that begins a text may be all of it.
    let is_open = texts.iter().any(|(_, text)| text.starts_with('{'));
    let names = texts.iter().flat_map(|(_, text)| template::names(text));
    let mut values: Variables = names.map(|name| (name, "1".to_owned())).collect();
    if is_open && !matches!(latency, LatencyMetric::Wire(_)) {
        return Ok(());
    }
    values.insert("port".to_owned(), "1".to_owned());
    latency.filled(&values).map(drop)
}
