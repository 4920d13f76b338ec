//! Which services could give CPU back, and where latency can be won, from what the agents of a
//! fleet export.
//!
//! Every query sums over a service's shards in the server; the histograms come in batches, so that
//! no query looks at more samples than a server allows however large the fleet is.

mod prometheus;
mod report;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use throttle::fleet::{Fleet, FleetService, SavingState};

use self::prometheus::Prometheus;
pub use self::report::{FleetReport, WorstShard};
use crate::error::ThrottleError;

/// Series that one query for histograms looks at.
const BUCKETS_AT_ONCE: f64 = 20_000.0;
/// Matches limits that a group above the service's has. Agents of before do not say.
const OF_ANOTHER_GROUP: &str = "limit_group!=\"\"";
/// Services of which the worst shard is looked up.
const WORST_OF: usize = 50;

/// Which fleet, and when.
#[derive(Clone, Debug)]
pub struct FleetQuery {
    /// Base URL of the Prometheus server that scrapes the agents.
    pub prometheus: String,
    /// How much time before `at` is judged, in seconds.
    pub window_s: u32,
    /// End of the time that is judged, as Prometheus takes it; absent is now.
    pub at: Option<String>,
    /// Matchers of labels, such as `cluster="a"`.
    pub matchers: String,
}

impl FleetQuery {
    /// Asks the server; what was found, and what the server said beside its answers.
    ///
    /// # Errors
    /// The URL is none, the server does not answer, or it knows no agents.
    pub fn ask(&self) -> Result<(FleetReport, BTreeSet<String>), ThrottleError> {
        let mut server = Prometheus::new(&self.prometheus, self.at.as_deref())?;
        let report = report(self, &mut server)?;
        Ok((report, server.warnings))
    }
}

fn report(query: &FleetQuery, server: &mut Prometheus) -> Result<FleetReport, ThrottleError> {
    let selector = Selector {
        matchers: query.matchers.trim_matches(',').to_owned(),
        window_s: query.window_s,
    };
    let mut services = summed(&selector, server)?;
    if services.is_empty() {
        return Err(ThrottleError::NoAgents {
            window_s: query.window_s,
            matchers: match selector.matchers.as_str() {
                "" => String::new(),
                matchers => format!(" and {{{matchers}}}"),
            },
        });
    }
    shares(&selector, server, &mut services)?;
    let services: Vec<FleetService> = services.into_values().collect();
    let none = |of: fn(&FleetService) -> bool| !services.iter().any(of);
    let missing = [
        (
            "slackline_cpu_limit_cores",
            none(|one| one.limited_shards > 0.0),
        ),
        (
            "slackline_cpu_periods_total",
            none(|one| one.periods_per_s.is_some()),
        ),
        (
            "slackline_runnable_thread_seconds_total",
            none(|one| one.runnable.is_some()),
        ),
        (
            "slackline_run_queue_wait_seconds_total",
            none(|one| one.waiting.is_some()),
        ),
        (
            "slackline_cpu_use_of_limit_bucket",
            none(|one| !one.shares.is_empty()),
        ),
    ];
    let missing = missing.into_iter().filter(|(_, none)| *none);
    let missing = missing.map(|(name, _)| name).collect();
    let shared = selector.latest_of("cpu_limit_cores", OF_ANOTHER_GROUP);
    let shared = format!("sum (max by (instance, limit_group) ({shared}))");
    let shared = server.ask(&shared)?;
    let fleet = Fleet::of(services, shared.first().map_or(0.0, |sum| sum.value));
    let worst = worst(&selector, server, &fleet)?;
    Ok(FleetReport {
        prometheus: server.url.to_string(),
        window_s: query.window_s,
        at: query.at.clone(),
        fleet,
        worst,
        missing,
        queries: server.queries,
        queries_took_s: server.took.as_secs_f64(),
    })
}

/// Which series, over how long.
struct Selector {
    matchers: String,
    window_s: u32,
}

impl Selector {
    /// The latest values of a metric.
    fn latest(&self, metric: &str) -> String {
        format!("slackline_{metric}{{{}}}", self.matchers)
    }

    /// The same, of the series that a further matcher matches.
    fn latest_of(&self, metric: &str, matcher: &str) -> String {
        self.with(matcher).latest(metric)
    }

    fn with(&self, matcher: &str) -> Self {
        let comma = if self.matchers.is_empty() { "" } else { "," };
        Self {
            matchers: format!("{}{comma}{matcher}", self.matchers),
            ..*self
        }
    }

    /// What a counter advanced by each second; the server sees to counters that start anew.
    fn rate(&self, metric: &str) -> String {
        format!("rate({}[{}s])", self.latest(metric), self.window_s)
    }

    /// The same, of some services only.
    fn of(&self, services: &[&str]) -> Self {
        let names: Vec<String> = services.iter().map(|name| regex::escape(name)).collect();
        let pattern = names.join("|").replace('\\', "\\\\").replace('"', "\\\"");
        self.with(&format!("service=~\"{pattern}\""))
    }
}

/// What each service's shards sum up to.
fn summed(
    selector: &Selector,
    server: &mut Prometheus,
) -> Result<BTreeMap<String, FleetService>, ThrottleError> {
    let (rate, latest) = (
        |metric| selector.rate(metric),
        |metric| selector.latest(metric),
    );
    let usage = rate("cpu_usage_seconds_total");
    let traced = rate("traced_seconds_total");
    let per_traced = |metric| format!("sum by (service) ({} / {traced})", rate(metric));
    let sum = |inner: String| format!("sum by (service) ({inner})");
    let count = |inner: &str| format!("count by (service) ({inner})");
    let mut services: BTreeMap<String, FleetService> = BTreeMap::new();
    for series in server.ask(&sum(usage.clone()))? {
        let name = series.label("service").to_owned();
        let service = FleetService {
            name: name.clone(),
            used_cores: series.value,
            ..FleetService::default()
        };
        services.insert(name, service);
    }
    if services.is_empty() {
        return Ok(services);
    }
    type Set = fn(&mut FleetService, f64);
    let shared = selector.latest_of("cpu_limit_cores", OF_ANOTHER_GROUP);
    let rest: [(String, Set); 9] = [
        (count(&usage), |service, value| service.shards = value),
        (count(&latest("cpu_limit_cores")), |service, value| {
            service.limited_shards = value;
        }),
        (sum(latest("cpu_limit_cores")), |service, value| {
            service.limit_cores = value;
        }),
        (sum(shared), |service, value| {
            service.shared_limit_cores = value;
        }),
        (sum(rate("cpu_periods_total")), |service, value| {
            service.periods_per_s = Some(value);
        }),
        (
            sum(rate("cpu_throttled_periods_total")),
            |service, value| {
                service.throttled_periods_per_s = Some(value);
            },
        ),
        (
            per_traced("runnable_thread_seconds_total"),
            |service, value| {
                service.runnable = Some(value);
            },
        ),
        (
            per_traced("run_queue_wait_seconds_total"),
            |service, value| {
                service.waiting = Some(value);
            },
        ),
        (
            format!(
                "sum by (service) ({}) / sum by (service) ({})",
                rate("run_queue_wait_seconds_total"),
                rate("run_queue_waits_total")
            ),
            |service, value| service.mean_wait_s = Some(value),
        ),
    ];
    for (query, set) in rest {
        for series in server.ask(&query)? {
            // A sum of rates is not negative, unless somebody wrote the series by hand.
            if let Some(service) = services.get_mut(series.label("service"))
                && series.value >= 0.0
            {
                set(service, series.value);
            }
        }
    }
    Ok(services)
}

/// The histograms of all services that have a limit, some services at a time.
fn shares(
    selector: &Selector,
    server: &mut Prometheus,
    services: &mut BTreeMap<String, FleetService>,
) -> Result<(), ThrottleError> {
    let limited: Vec<(String, f64)> = services
        .values()
        .filter(|service| service.limited_shards > 0.0)
        .map(|service| (service.name.clone(), service.shards))
        .collect();
    let mut left = limited.as_slice();
    while !left.is_empty() {
        let mut buckets = 0.0;
        let fitting = left.iter().take_while(|(_, shards)| {
            buckets += shards * (throttle::SHARE_BOUNDS.len() + 1) as f64;
            buckets <= BUCKETS_AT_ONCE
        });
        let (now, later) = left.split_at(fitting.count().max(1));
        left = later;
        let names: Vec<&str> = now.iter().map(|(name, _)| name.as_str()).collect();
        let query = format!(
            "sum by (service, le) (increase({}[{}s]))",
            selector.of(&names).latest("cpu_use_of_limit_bucket"),
            selector.window_s
        );
        let mut found: HashMap<String, Vec<(f64, f64)>> = HashMap::new();
        for series in server.ask(&query)? {
            if let Ok(bound) = series.label("le").parse::<f64>() {
                let service = found.entry(series.label("service").to_owned()).or_default();
                service.push((bound, series.value));
            }
        }
        for (name, mut shares) in found {
            shares.sort_by(|a, b| a.0.total_cmp(&b.0));
            if let Some(service) = services.get_mut(&name) {
                service.shares = shares;
            }
        }
    }
    Ok(())
}

/// Where to look first: of each throttled service the shard with the largest share of throttled
/// periods.
fn worst(
    selector: &Selector,
    server: &mut Prometheus,
    fleet: &Fleet,
) -> Result<BTreeMap<String, WorstShard>, ThrottleError> {
    let throttled = fleet.services.iter().filter(|finding| {
        matches!(
            finding.state,
            SavingState::Throttled | SavingState::QuotaTooSmall
        )
    });
    let names: Vec<&str> = throttled
        .take(WORST_OF)
        .map(|finding| finding.service.name.as_str())
        .collect();
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let selector = selector.of(&names);
    let query = format!(
        "topk by (service) (1, {} / {})",
        selector.rate("cpu_throttled_periods_total"),
        selector.rate("cpu_periods_total")
    );
    let shard = |series: prometheus::Series| {
        let shard = WorstShard {
            instance: series.label("instance").to_owned(),
            group: series.label("group").to_owned(),
            throttled_share: series.value,
        };
        (series.label("service").to_owned(), shard)
    };
    Ok(server.ask(&query)?.into_iter().map(shard).collect())
}
