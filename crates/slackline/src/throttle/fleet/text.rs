//! A fleet as text: what there is in all, and two rankings.

use std::fmt::Write as _;

use throttle::fleet::{FleetFinding, SavingState};
use throttle_watch::FleetReport;

use crate::table::table;

/// What all services together do, in sentences.
pub(super) fn summary(report: &FleetReport) -> Vec<String> {
    let fleet = &report.fleet;
    let count = |state| fleet.in_state(state).count();
    let standing: f64 = throttled(report)
        .filter_map(|finding| finding.service.waiting)
        // Not sum(), which is -0 of nothing.
        .fold(0.0, |sum, waiting| sum + waiting);
    let mut sentences = vec![
        format!(
            "{} services in {:.0} shards, over {} s: {:.1} cores reserved, {:.1} of them in use ({}).",
            fleet.services.len(),
            fleet.shards,
            report.window_s,
            fleet.limit_cores,
            fleet.used_cores,
            percent(fleet.used_cores / fleet.limit_cores.max(1e-9))
        ),
        format!(
            "{} are throttled, {} of them with less than 90 % of their quota in use: {standing:.1} threads stand still, on \
             average.",
            throttled(report).count(),
            count(SavingState::Throttled)
        ),
        format!(
            "{} could give back {:.1} cores ({} of what is reserved) and still stay within their limit in 999 of 1,000 windows \
             of 10 ms.",
            count(SavingState::Roomy),
            fleet.give_back_cores,
            percent(fleet.give_back_cores / fleet.limit_cores.max(1e-9))
        ),
    ];
    let above = fleet
        .runnable_per_core
        .iter()
        .filter(|per_core| **per_core > 1.0);
    let quantile = |share| fleet.runnable_quantile(share).unwrap_or(0.0);
    if !fleet.runnable_per_core.is_empty() {
        sentences.push(format!(
            "Threads that want to run per reserved core: {:.2} in half of the services, {:.2} in nine of ten, {:.2} at most; \
             more than 1 in {}.",
            quantile(0.5),
            quantile(0.9),
            quantile(1.0),
            percent(above.count() as f64 / fleet.runnable_per_core.len() as f64)
        ));
    }
    let sharing = count(SavingState::Shares);
    if sharing > 0 {
        sentences.push(format!(
            "{sharing} leave CPU unused, but their limit is that of a group above them, and others in that group may use the CPU. So the \
             cores to give back do not include this CPU."
        ));
    }
    let (unlimited, unknown) = (count(SavingState::NoLimit), count(SavingState::Unknown));
    if unlimited + unknown > 0 {
        sentences.push(format!(
            "Not judged: {unlimited} in which a shard has no limit, and {unknown} for which a count is missing."
        ));
    }
    sentences
}

/// Those in which threads stand still because of a quota, worst first.
pub(super) fn throttled(report: &FleetReport) -> impl Iterator<Item = &FleetFinding> {
    let services = report.fleet.services.iter();
    services.filter(|finding| {
        matches!(
            finding.state,
            SavingState::Throttled | SavingState::QuotaTooSmall
        )
    })
}

pub(super) fn text(report: &FleetReport, top: usize) -> String {
    let mut text = summary(report).join("\n") + "\n";
    let mut head = THROTTLED_HEAD.to_vec();
    head.insert(STANDING_AT, "stand still");
    let mut rows = table(&head);
    for finding in throttled(report).take(top) {
        let mut row = throttled_row(report, finding);
        let standing = optional(finding.service.waiting, |threads| {
            format!("{threads:.1} threads")
        });
        row.insert(STANDING_AT, standing);
        rows.add_row(row);
    }
    if throttled(report).next().is_some() {
        let _ = writeln!(text, "\nThrottled services\n{rows}");
        text.push_str(
            "On the worst shard, `slackline throttle watch` says why. In use above 90 %: only more quota helps.\n",
        );
    }
    let mut rows = table(&GIVING_HEAD);
    for finding in giving(report).into_iter().take(top) {
        rows.add_row(giving_row(finding, " cores"));
    }
    if report.fleet.in_state(SavingState::Roomy).next().is_some() {
        let _ = writeln!(text, "\nCPU to be given back\n{rows}");
    }
    text
}

/// The columns of [`throttled_row`].
pub(super) const THROTTLED_HEAD: [&str; 8] = [
    "service",
    "shards",
    "cores",
    "in use",
    "throttled",
    "want to run per core",
    "mean wait",
    "worst shard",
];
/// Where the text has the threads that stand still, which the page draws.
const STANDING_AT: usize = 6;

/// A throttled service, for a table.
pub(super) fn throttled_row(report: &FleetReport, finding: &FleetFinding) -> Vec<String> {
    let service = &finding.service;
    let worst = report.worst.get(&service.name);
    vec![
        service.name.clone(),
        format!("{:.0}", service.shards),
        format!("{:.1}", service.limit_cores),
        in_use(finding),
        optional(finding.throttled_share, percent),
        optional(finding.runnable_per_core, |per_core| {
            format!("{per_core:.2}")
        }),
        optional(service.mean_wait_s, |s| format!("{:.2} ms", 1e3 * s)),
        worst.map_or_else(String::new, |shard| {
            format!("{} {}", shard.instance, shard.group)
        }),
    ]
}

/// The columns of [`giving_row`].
pub(super) const GIVING_HEAD: [&str; 6] =
    ["service", "shards", "cores", "in use", "peak", "give back"];

/// A service that could give cores back, for a table; `unit` follows their number.
pub(super) fn giving_row(finding: &FleetFinding, unit: &str) -> Vec<String> {
    vec![
        finding.service.name.clone(),
        format!("{:.0}", finding.service.shards),
        format!("{:.1}", finding.service.limit_cores),
        in_use(finding),
        optional(finding.peak_share, percent),
        format!("{:.1}{unit}", finding.give_back_cores),
    ]
}

/// Those that could give something back, most first.
pub(super) fn giving(report: &FleetReport) -> Vec<&FleetFinding> {
    let mut giving: Vec<&FleetFinding> = report.fleet.in_state(SavingState::Roomy).collect();
    giving.sort_by(|a, b| b.give_back_cores.total_cmp(&a.give_back_cores));
    giving
}

fn in_use(finding: &FleetFinding) -> String {
    percent(finding.service.used_cores / finding.service.limit_cores.max(1e-9))
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn optional(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use throttle::fleet::Fleet;

    use super::*;

    #[test]
    fn where_nothing_is_throttled_no_thread_stands_still() {
        let report = FleetReport {
            prometheus: String::new(),
            window_s: 60,
            at: None,
            fleet: Fleet::of(Vec::new(), 0.0),
            worst: BTreeMap::new(),
            missing: Vec::new(),
            queries: 0,
            queries_took_s: 0.0,
        };
        let sentences = summary(&report).join("\n");
        assert!(
            sentences.contains(": 0.0 threads stand still"),
            "{sentences}"
        );
    }
}
