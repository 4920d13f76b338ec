//! The page for Prometheus. The number of series is bounded: names come from the configuration,
//! reasons from a fixed list.

use std::fmt::Write as _;

use isolate_run::IsolationStatus;

/// A label's value, escaped as the text format wants it.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}=\"{}\"", label(value)))
            .collect();
        let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }
}

/// A service's figure; `None` where it is not known.
type Figure = fn(&isolate_run::ServiceStatus) -> Option<f64>;

pub(super) fn page(status: &IsolationStatus) -> String {
    let mut page = Page(String::new());
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
            |s| Some(s.cpu_cores),
        ),
    ];
    for (name, help, of) in gauges {
        page.head(name, "gauge", help);
        for service in &status.services {
            if let Some(value) = of(service) {
                page.value(name, &[("service", &service.name)], value);
            }
        }
    }
    page.head(
        "slackline_isolate_group_cores",
        "gauge",
        "CPU that a best-effort group uses, in cores.",
    );
    for group in &status.groups {
        page.value(
            "slackline_isolate_group_cores",
            &[("group", &group.name)],
            group.cpu_cores,
        );
    }
    page.head(
        "slackline_isolate_group_off",
        "gauge",
        "1 if a best-effort group is switched off, otherwise 0.",
    );
    for group in &status.groups {
        let is_off = group.settings.contains_key("off");
        page.value(
            "slackline_isolate_group_off",
            &[("group", &group.name)],
            f64::from(u8::from(is_off)),
        );
    }
    for (name, help, counts) in [
        (
            "slackline_isolate_decisions_total",
            "Decisions by reason.",
            &status.decisions,
        ),
        (
            "slackline_isolate_troubles_total",
            "Decisions that were not carried out, by outcome.",
            &status.troubles,
        ),
    ] {
        page.head(name, "counter", help);
        for (reason, count) in counts {
            #[expect(clippy::cast_precision_loss, reason = "a count of decisions")]
            page.value(name, &[("reason", reason)], *count as f64);
        }
    }
    page.head(
        "slackline_isolate_own_cores",
        "gauge",
        "CPU that the controller itself uses, in cores.",
    );
    page.value(
        "slackline_isolate_own_cores",
        &[("policy", status.policy.name())],
        status.own_cores,
    );
    page.0
}
