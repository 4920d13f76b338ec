//! What isolation says in tables and lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use isolate_run::{Check, GroupStatus, IsolationStatus, SelftestRow, ServiceStatus};
use isolation::{Ceiling, Simulated};

fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(head.iter().copied());
    table
}

fn rendered(table: &Table) -> String {
    table
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".to_owned())
}

pub(super) fn check(check: &Check) -> String {
    let mut text: String = check
        .sentences
        .iter()
        .map(|sentence| format!("{sentence}\n"))
        .collect();
    let mut rows = table(&["", "actuator", "available", "now"]);
    for row in &check.rows {
        let available = match (&row.available, &row.missing) {
            (Some(form), _) => form.clone(),
            (_, Some(why)) => format!("no: {why}"),
            _ => String::new(),
        };
        rows.add_row([
            row.subject.clone(),
            row.actuator.clone(),
            available,
            or_dash(row.now.clone()),
        ]);
    }
    let _ = write!(text, "\n{}", rendered(&rows));
    for problem in &check.problems {
        let _ = writeln!(text, "\nProblem: {problem}");
    }
    for note in &check.notes {
        let _ = writeln!(text, "\nNote: {note}");
    }
    text
}

pub(super) fn selftest(rows: &[SelftestRow]) -> String {
    let mut table = table(&[
        "actuator",
        "form",
        "before",
        "wanted",
        "read back",
        "undone",
        "",
    ]);
    for row in rows {
        let verdict = match (row.has_failed(), &row.trouble) {
            (true, Some(why)) => format!("FAILED: {why}"),
            (_, Some(why)) => format!("not available: {why}"),
            _ if row.after.is_none() => "not tested: --machine tests it".to_owned(),
            _ => "ok".to_owned(),
        };
        let short =
            |text: &Option<String>| or_dash(text.as_ref().map(|text| text.replace('\n', "; ")));
        table.add_row([
            row.actuator.clone(),
            short(&row.form),
            short(&row.before),
            short(&row.wanted),
            short(&row.after),
            short(&row.restored),
            verdict,
        ]);
    }
    rendered(&table)
}

/// A latency, or why there is none.
fn latency(service: &ServiceStatus) -> String {
    match (service.latency_ms, &service.no_data) {
        (Some(latency), _) => format!("{latency:.2} ms"),
        (None, Some(why)) => format!("no data: {why}"),
        (None, None) => "no requests".to_owned(),
    }
}

fn percent(share: Option<f64>) -> String {
    or_dash(share.map(|share| format!("{:.0} %", 100.0 * share)))
}

fn settings(group: &GroupStatus) -> String {
    if !group.is_running {
        return "does not run".to_owned();
    }
    words(&group.settings)
}

/// Settings by actuator, in words.
fn words(settings: &BTreeMap<String, String>) -> String {
    let words: Vec<&str> = settings.values().map(String::as_str).collect();
    words.join(", ")
}

fn against_objective(service: &ServiceStatus) -> String {
    let ServiceStatus {
        name,
        percentile,
        objective_ms,
        ..
    } = service;
    match service.latency_ms {
        Some(latency) => format!("{name}: p{percentile} {latency:.2} ms of {objective_ms} ms"),
        None => format!("{name}: {}", latency(service)),
    }
}

/// Everything in one line.
pub(super) fn line(status: &IsolationStatus) -> String {
    let services = status.services.iter().map(against_objective);
    let groups = status
        .groups
        .iter()
        .map(|group| format!("{}: {:.2} cores", group.name, group.cpu_cores));
    services.chain(groups).collect::<Vec<_>>().join("; ")
}

/// There is no controller to show.
pub(super) fn none_runs(state_dir: &Path) -> String {
    format!(
        "No slackline isolate runs with the state directory {}. If one runs with another directory, name that directory with \
         --state-dir.",
        state_dir.display()
    )
}

/// The first line of a run: what runs, how it ends, and where its metrics are.
pub(super) fn begun(
    status: &IsolationStatus,
    duration: Option<Duration>,
    metrics: Option<SocketAddr>,
) -> String {
    let services = status.services.iter().map(|service| {
        format!(
            "{} (p{} below {} ms)",
            service.name, service.percentile, service.objective_ms
        )
    });
    let groups: Vec<&str> = status
        .groups
        .iter()
        .map(|group| group.name.as_str())
        .collect();
    let groups = match groups.is_empty() {
        true => "no best-effort work".to_owned(),
        false => format!("best-effort work {}", groups.join(", ")),
    };
    let (does, then) = match status.observe {
        true => ("observes, and changes nothing,", ""),
        false => ("runs", ", and then restores every setting"),
    };
    let end = duration.map_or_else(
        || "It ends by Ctrl-C".to_owned(),
        |duration| format!("It ends after {} s or by Ctrl-C", duration.as_secs_f64()),
    );
    let metrics = metrics.map_or_else(String::new, |at| format!(" Metrics: http://{at}/metrics"));
    format!(
        "Policy {} {does} for {} with {groups}. {end}{then}.{metrics}",
        status.policy.name(),
        services.collect::<Vec<_>>().join(", ")
    )
}

/// The last line of a run: the latency at the end, and the work that each group has done.
pub(super) fn ended(status: &IsolationStatus) -> String {
    let services = status.services.iter().map(against_objective);
    let groups = status.groups.iter().map(|group| {
        let cpu_s = group.cpu_s;
        match group.progress {
            Some(units) => format!("{}: {units} units in {cpu_s:.1} CPU seconds", group.name),
            None => format!("{}: {cpu_s:.1} CPU seconds of work", group.name),
        }
    });
    format!(
        "Ended after {:.0} s. {}",
        status.at_s,
        services.chain(groups).collect::<Vec<_>>().join("; ")
    )
}

/// How it stands, and the last decisions, the newest last.
pub(super) fn status(status: &IsolationStatus) -> String {
    let mut text = standing(status);
    if !status.recent.is_empty() {
        text.push_str("\nLast decisions:\n");
        text.extend(status.recent.iter().map(|line| format!("  {line}\n")));
    }
    text
}

/// The same for a screen that may be too small for all of it: the newest decision first.
pub(super) fn live_status(status: &IsolationStatus) -> String {
    let mut text = standing(status);
    if !status.recent.is_empty() {
        text.push_str("\nLast decisions, the newest first:\n");
        let newest = status.recent.iter().rev();
        text.extend(newest.map(|line| format!("  {line}\n")));
    }
    text
}

fn standing(status: &IsolationStatus) -> String {
    let observe = if status.observe { " (observing)" } else { "" };
    let mut text = format!(
        "Policy {}{observe}: {}.\nMachine: {:.2} of {:.0} cores in use; the controller uses {:.2} % of a core, a step every {:.2} s.\n\n",
        status.policy.name(),
        status.explanation,
        status.busy_cores,
        status.cores,
        100.0 * status.own_cores,
        status.step_s
    );
    // Most policies set nothing of a service, and the table then fits 80 columns.
    let has_settings = status
        .services
        .iter()
        .any(|service| !service.settings.is_empty());
    let mut head = vec![
        "service",
        "tail",
        "objective",
        "slack",
        "requests",
        "requests/s",
        "cores",
        "quota",
    ];
    head.extend(has_settings.then_some("settings"));
    let mut services = table(&head);
    for service in &status.services {
        let mut cells = vec![
            service.name.clone(),
            format!("p{} {}", service.percentile, latency(service)),
            format!("{} ms", service.objective_ms),
            percent(service.slack),
            service.requests.to_string(),
            or_dash(service.requests_per_s.map(|rate| format!("{rate:.0}"))),
            format!("{:.2}", service.cpu_cores),
            or_dash(service.quota_cores.map(|cores| format!("{cores:.2}"))),
        ];
        cells.extend(has_settings.then(|| words(&service.settings)));
        services.add_row(cells);
    }
    text += &rendered(&services);
    if !status.groups.is_empty() {
        let mut groups = table(&["best effort", "cores", "settings", "why", "progress"]);
        for group in &status.groups {
            groups.add_row([
                group.name.clone(),
                format!("{:.2}", group.cpu_cores),
                settings(group),
                or_dash(group.reason.map(|reason| reason.name().to_owned())),
                or_dash(group.progress.map(|units| format!("{units}"))),
            ]);
        }
        let _ = write!(text, "\n{}", rendered(&groups));
    }
    if !status.machine_settings.is_empty() {
        let settings = words(&status.machine_settings);
        let _ = writeln!(text, "\nSettings of the machine: {settings}");
    }
    for yielded in &status.yielded {
        let _ = writeln!(text, "\nNo longer set: {yielded}");
    }
    if !status.yielded.is_empty() {
        text.push_str("After a restart, isolate sets it again.\n");
    }
    text
}

/// What effective machine utilisation is (Lo et al., Heracles, ISCA 2015).
pub(super) const UTILISATION: &str = "The effective machine utilisation is the service's load as a share of its peak load, plus the \
    batch work as a share of what it does alone. The peak load need not use all cores, so more than 100 % is possible.\n";

pub(super) fn simulated(done: &Simulated) -> String {
    let reasons = done
        .decisions
        .iter()
        .map(|(reason, count)| format!("{reason} {count}"));
    let reasons = match done.decisions.is_empty() {
        true => "none".to_owned(),
        false => reasons.collect::<Vec<_>>().join(", "),
    };
    format!(
        "SIMULATED, nothing here was measured.\nPolicy {}: {:.2} % of the windows violate the objective of {:.2} ms; effective \
         machine utilisation {:.1} %; mean power {:.0} W.\nDecisions by reason: {}.\n",
        done.policy.name(),
        100.0 * done.violated_share,
        done.objective_ms,
        100.0 * done.utilisation,
        done.power_w,
        reasons
    )
}

/// How much the modelled machine can be used.
pub(super) fn ceilings(all: &[Ceiling]) -> String {
    let mut rows = table(&["LOAD", "WITH CPU.IDLE AND QUOTA", "WITH EVERY SETTING"]);
    for ceiling in all {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        rows.add_row([
            percent(ceiling.load),
            percent(ceiling.with_quota),
            percent(ceiling.with_everything),
        ]);
    }
    format!(
        "SIMULATED, nothing here was measured.\nThe highest effective machine utilisation within the objective:\n{}\n{UTILISATION}",
        rendered(&rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolate::samples;

    #[test]
    fn a_run_says_at_its_start_how_it_ends_and_at_its_end_what_was_done() {
        let mut status = samples::row(60.4, false, samples::service(5.0, 0.71));
        let metrics = "127.0.0.1:9100".parse().ok();
        assert_eq!(
            begun(&status, Some(Duration::from_secs(60)), metrics),
            "Policy slackline runs for web (p99 below 5 ms) with best-effort work batch. It ends after 60 s or by Ctrl-C, \
             and then restores every setting. Metrics: http://127.0.0.1:9100/metrics"
        );
        assert_eq!(
            ended(&status),
            "Ended after 60 s. web: p99 0.71 ms of 5 ms; batch: 60.4 CPU seconds of work"
        );
        status.groups[0].progress = Some(1200.0);
        assert!(ended(&status).ends_with("; batch: 1200 units in 60.4 CPU seconds"));
        status.observe = true;
        status.groups.clear();
        assert_eq!(
            begun(&status, None, None),
            "Policy slackline observes, and changes nothing, for web (p99 below 5 ms) with no best-effort work. It ends by \
             Ctrl-C."
        );
        assert_eq!(ended(&status), "Ended after 60 s. web: p99 0.71 ms of 5 ms");
    }

    #[test]
    fn a_service_has_a_column_of_settings_where_something_is_set() {
        let mut status = samples::row(60.4, false, samples::service(5.0, 0.71));
        let head = |status: &IsolationStatus| {
            let text = super::status(status);
            let mut lines = text.lines();
            let head = lines.find(|line| line.starts_with(" service"));
            head.unwrap().to_owned()
        };
        assert!(head(&status).ends_with("quota"), "{}", head(&status));
        let set = ("weight".to_owned(), "weight 500".to_owned());
        status.services[0].settings.extend([set]);
        assert!(head(&status).ends_with("settings"), "{}", head(&status));
    }
}
