//! Services and best-effort groups, and what is known of them.

use std::mem::{self, Discriminant};
use std::time::{Duration, Instant};

use host::Roots;
use wire_latency::NoData;

use crate::best_effort::Work;
use crate::config::{IsolationConfig, LatencyObjective, Service};
use crate::counters::{Counters, Rates};
use crate::error::IsolateError;
use crate::latency::{self, Latency, Seen};
use crate::status::ServiceStatus;
use crate::subject::{Host, Place, place_of};

/// A source that gives no data for so long is reported.
const TROUBLE_AFTER: Duration = Duration::from_secs(5);

/// Why a source gives no data, and since when.
struct SourceTrouble {
    kind: Discriminant<NoData>,
    since: Instant,
    is_said: bool,
}

/// A service and what is known of it.
pub(super) struct Watched {
    pub(super) service: Service,
    pub(super) objective: LatencyObjective,
    pub(super) latency: Latency,
    pub(super) place: Option<Place>,
    /// The number of its group when it was last looked for.
    pub(super) number: Option<u64>,
    /// Whether it ran at the last look.
    pub(super) is_running: bool,
    /// Its processes when it was last looked for.
    pub(super) pids: Vec<u32>,
    pub(super) counters: Counters,
    pub(super) rates: Rates,
    pub(super) seen: Option<Seen>,
    trouble: Option<SourceTrouble>,
    /// The settings in force; those that would be, while only observing.
    pub(super) settings: Words,
}

impl Watched {
    /// What the user is told of the source now: why there has been no data for a while, or that
    /// there is data again.
    pub(super) fn source_news(&mut self, now: Instant) -> Option<String> {
        let name = &self.service.name;
        let window = self.seen.as_ref().map(|seen| &seen.window)?;
        match (window, &mut self.trouble) {
            (Err(NoData::Starting), _) => None,
            (Ok(_), trouble) => {
                let was_said = trouble.take().is_some_and(|trouble| trouble.is_said);
                was_said.then(|| format!("service {name}: its latency is known again"))
            }
            (Err(no_data), Some(trouble)) if trouble.kind == mem::discriminant(no_data) => {
                let is_due = now.saturating_duration_since(trouble.since) >= TROUBLE_AFTER;
                if trouble.is_said || !is_due {
                    return None;
                }
                trouble.is_said = true;
                Some(format!("service {name}: no data of its latency: {no_data}"))
            }
            (Err(no_data), trouble) => {
                // What was said before is another reason.
                *trouble = Some(SourceTrouble {
                    kind: mem::discriminant(no_data),
                    since: now,
                    is_said: false,
                });
                None
            }
        }
    }
}

/// A best-effort group and what is known of it.
pub(super) struct Steered {
    pub(super) work: Work,
    /// The number of its group when it was last looked for.
    pub(super) number: Option<u64>,
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
        number: None,
        counters: Counters::default(),
        rates: Rates::default(),
        is_running: false,
        cpu_s: 0.0,
        settings: Words::new(),
        reason: None,
    }
}

/// The group, if it is another one than at the last look, be it by the same name: a unit that
/// restarts has a new group, with none of the settings.
pub(super) fn made_again<'a>(
    known: &mut Option<u64>,
    host: Host<'_>,
    place: Option<&'a Place>,
) -> Option<&'a str> {
    let group = place.and_then(|place| place.group.as_deref());
    let number = group.and_then(|group| host.group_number(group));
    let before = std::mem::replace(known, number);
    group.filter(|_| before.is_some() && number.is_some() && before != number)
}

/// Finds each service and opens its source. A service that is not there now is an error: it may be
/// misspelt.
pub(super) fn open_services(
    roots: &Roots,
    config: &IsolationConfig,
) -> Result<Vec<Watched>, IsolateError> {
    let every = Duration::from_secs_f64((config.policy.step_ms / 2000.0).clamp(0.05, 0.25));
    let mut services = Vec::new();
    for (index, (service, objective, spec)) in config.services.iter().enumerate() {
        let place = place_of(roots, service).map_err(|error| config.about_service(index, error))?;
        let pid = place.pid.or_else(|| place.pids(roots).first().copied());
        let surroundings = latency::surroundings(pid, objective, config.services.len());
        let latency = Latency::start(&service.name, spec, *objective, &surroundings, every)
            .map_err(|error| config.about_source(index, error))?;
        services.push(Watched {
            service: service.clone(),
            objective: *objective,
            latency,
            place: Some(place),
            number: None,
            is_running: true,
            pids: Vec::new(),
            counters: Counters::default(),
            rates: Rates::default(),
            seen: None,
            trouble: None,
            settings: Words::new(),
        });
    }
    Ok(services)
}

/// What is told of a service. What is measured of one that does not run is of somebody else, or of
/// before.
pub(super) fn service_status(service: &Watched, observe: bool) -> ServiceStatus {
    let (settings, observed_settings) = told(&service.settings, observe);
    let seen = service.seen.as_ref().filter(|_| service.is_running);
    let window = seen.and_then(|seen| seen.window.as_ref().ok());
    let no_data = seen.and_then(|seen| seen.window.as_ref().err());
    let no_data = match service.is_running {
        true => no_data.map(ToString::to_string),
        false => Some("it does not run".to_owned()),
    };
    let has_requests = window.filter(|tail| tail.requests > 0);
    ServiceStatus {
        name: service.service.name.clone(),
        source: service.latency.description().to_owned(),
        is_running: service.is_running,
        percentile: service.objective.percentile,
        objective_ms: service.objective.latency_ms,
        latency_ms: has_requests.map(|tail| tail.latency_ms),
        fresh_ms: seen.and_then(|seen| seen.fresh).map(|tail| tail.latency_ms),
        slack: has_requests.map(|tail| tail.slack(service.objective.latency_ms)),
        requests: service
            .is_running
            .then(|| window.map_or(0, |tail| tail.requests)),
        requests_per_s: seen.and_then(|seen| seen.requests_per_s),
        no_data,
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
