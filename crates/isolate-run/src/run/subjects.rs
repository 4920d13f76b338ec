//! Services and best-effort groups, and what is known of them.

use std::time::Duration;

use host::Roots;

use crate::best_effort::Work;
use crate::config::{IsolationConfig, LatencyObjective, Service};
use crate::counters::{Counters, Rates};
use crate::error::IsolateError;
use crate::latency::{self, Latency, Seen};
use crate::status::ServiceStatus;
use crate::subject::{Place, place_of};

/// A service and what is known of it.
pub(super) struct Watched {
    pub(super) service: Service,
    pub(super) objective: LatencyObjective,
    pub(super) latency: Latency,
    pub(super) place: Option<Place>,
    /// Its processes when it was last looked for.
    pub(super) pids: Vec<u32>,
    pub(super) counters: Counters,
    pub(super) rates: Rates,
    pub(super) seen: Option<Seen>,
    /// The settings in force; those that would be, while only observing.
    pub(super) settings: Words,
}

/// A best-effort group and what is known of it.
pub(super) struct Steered {
    pub(super) work: Work,
    pub(super) counters: Counters,
    pub(super) rates: Rates,
    pub(super) is_running: bool,
    /// CPU time since the start.
    pub(super) cpu_s: f64,
    /// The settings in force; those that would be, while only observing.
    pub(super) settings: Words,
    pub(super) reason: Option<isolation::Reason>,
}

pub(super) fn steered(work: crate::config::BestEffort) -> Steered {
    Steered {
        work: Work::new(work),
        counters: Counters::default(),
        rates: Rates::default(),
        is_running: false,
        cpu_s: 0.0,
        settings: Words::new(),
        reason: None,
    }
}

/// Finds each service and opens its source. A service that is not there now is an error: it may be
/// misspelt.
pub(super) fn open_services(
    roots: &Roots,
    config: &IsolationConfig,
) -> Result<Vec<Watched>, IsolateError> {
    let every = Duration::from_secs_f64((config.policy.step_ms / 2000.0).clamp(0.05, 0.25));
    let mut services = Vec::new();
    for (service, objective, spec) in &config.services {
        let place = place_of(roots, service)?;
        let pid = place.pid.or_else(|| place.pids(roots).first().copied());
        let surroundings = latency::surroundings(pid, objective, config.services.len());
        let latency = Latency::start(&service.name, spec, *objective, &surroundings, every)?;
        services.push(Watched {
            service: service.clone(),
            objective: *objective,
            latency,
            place: Some(place),
            pids: Vec::new(),
            counters: Counters::default(),
            rates: Rates::default(),
            seen: None,
            settings: Words::new(),
        });
    }
    Ok(services)
}

pub(super) fn service_status(service: &Watched, observe: bool) -> ServiceStatus {
    let (settings, observed_settings) = told(&service.settings, observe);
    let window = service
        .seen
        .as_ref()
        .and_then(|seen| seen.window.as_ref().ok());
    let no_data = service
        .seen
        .as_ref()
        .and_then(|seen| seen.window.as_ref().err());
    let has_requests = window.filter(|tail| tail.requests > 0);
    ServiceStatus {
        name: service.service.name.clone(),
        source: service.latency.description().to_owned(),
        is_running: service.place.is_some(),
        percentile: service.objective.percentile,
        objective_ms: service.objective.latency_ms,
        latency_ms: has_requests.map(|tail| tail.latency_ms),
        fresh_ms: service
            .seen
            .as_ref()
            .and_then(|seen| seen.fresh)
            .map(|tail| tail.latency_ms),
        slack: has_requests.map(|tail| tail.slack(service.objective.latency_ms)),
        requests: window.map_or(0, |tail| tail.requests),
        requests_per_s: service.seen.as_ref().and_then(|seen| seen.requests_per_s),
        no_data: no_data.map(ToString::to_string),
        cpu_cores: service.rates.cpu_cores,
        quota_cores: service.rates.quota_cores,
        waiting_share: service.rates.waiting_share,
        stalled_share: service.rates.stalled_share,
        settings,
        observed_settings,
    }
}

/// Settings by actuator, in words.
pub(super) type Words = std::collections::BTreeMap<String, String>;

/// The settings that are in force, and those that would be: one of the two is empty.
pub(super) fn told(settings: &Words, observe: bool) -> (Words, Words) {
    match observe {
        true => (Words::new(), settings.clone()),
        false => (settings.clone(), Words::new()),
    }
}
