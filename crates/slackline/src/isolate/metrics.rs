//! The page for Prometheus. The number of series is bounded: names come from the configuration,
//! reasons from a fixed list.

use isolate_run::IsolationStatus;
use prometheus_text::{Exposition, Labels, MetricKind};

/// A service's figure; `None` where it is not known.
type Figure = fn(&isolate_run::ServiceStatus) -> Option<f64>;

/// A best-effort group's figure; `None` where it is not known.
type GroupFigure = fn(&isolate_run::GroupStatus) -> Option<f64>;

pub(super) fn page(status: &IsolationStatus) -> String {
    let mut page = Exposition::new();
    let gauges: [(&str, &str, Figure); 6] = [
        (
            "slackline_isolate_latency_seconds",
            "The service's tail latency over the objective's window.",
            |s| s.latency_ms.map(|ms| ms / 1000.0),
        ),
        (
            "slackline_isolate_objective_seconds",
            "The objective: the limit for the tail latency.",
            |s| Some(s.objective_ms / 1000.0),
        ),
        (
            "slackline_isolate_slack_ratio",
            "(objective - latency) / objective.",
            |s| s.slack,
        ),
        (
            "slackline_isolate_has_data",
            "1 if the latency is known, otherwise 0.",
            |s| Some(f64::from(u8::from(s.no_data.is_none()))),
        ),
        (
            "slackline_isolate_requests_per_second",
            "Requests that the service answers, a second.",
            |s| s.requests_per_s,
        ),
        (
            "slackline_isolate_service_cores",
            "CPU that the service uses, in cores.",
            |s| s.cpu_cores,
        ),
    ];
    for (name, help, of) in gauges {
        let samples = status.services.iter().filter_map(|service| {
            let labels = Labels::new().and("service", &service.name);
            Some((labels, of(service)?))
        });
        page.family(name, MetricKind::Gauge, help).samples(samples);
    }
    let groups: [(&str, &str, GroupFigure); 2] = [
        (
            "slackline_isolate_group_cores",
            "CPU that a best-effort group uses, in cores.",
            |group| group.cpu_cores,
        ),
        (
            "slackline_isolate_group_off",
            "1 if a best-effort group is switched off, otherwise 0.",
            |group| Some(f64::from(u8::from(group.settings.contains_key("off")))),
        ),
    ];
    for (name, help, of) in groups {
        let samples = status.groups.iter().filter_map(|group| {
            let labels = Labels::new().and("group", &group.name);
            Some((labels, of(group)?))
        });
        page.family(name, MetricKind::Gauge, help).samples(samples);
    }
    for (name, help, counts) in [
        (
            "slackline_isolate_decisions_total",
            "Decisions by reason.",
            &status.decisions,
        ),
        (
            "slackline_isolate_troubles_total",
            "Decisions that were not carried out or are no longer in force, by outcome.",
            &status.troubles,
        ),
    ] {
        let all = counts.iter();
        let samples = all.map(|(reason, count)| (Labels::new().and("reason", reason), count));
        page.family(name, MetricKind::Counter, help)
            .samples(samples);
    }
    let mut observing = page.family(
        "slackline_isolate_observing",
        MetricKind::Gauge,
        "1 if the controller only observes: none of its decisions is carried out. Otherwise 0.",
    );
    observing.sample(&Labels::new(), f64::from(u8::from(status.observe)));
    let mut own = page.family(
        "slackline_isolate_own_cores",
        MetricKind::Gauge,
        "CPU that the controller itself uses, in cores.",
    );
    let labels = Labels::new().and("policy", status.policy.name());
    own.sample(&labels, status.own_cores);
    page.into_text()
}
