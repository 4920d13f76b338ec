//! What isolation says in tables and lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

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
    if !service.is_running {
        return "does not run".to_owned();
    }
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

/// Everything in one line.
pub(super) fn line(status: &IsolationStatus) -> String {
    let services = status.services.iter().map(|service| {
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
    });
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

/// What is said before a state that is not that of now.
fn too_old(status: &IsolationStatus) -> String {
    let Some(age_s) = status.too_old_s() else {
        return String::new();
    };
    format!(
        "The last step was {age_s:.0} s ago: the controller (process {}) does not run. It was stopped, the machine is overloaded, \
         or the state directory cannot be written. All that follows is {age_s:.0} s old.\n\n",
        status.pid
    )
}

pub(super) fn status(status: &IsolationStatus) -> String {
    let observe = if status.observe { " (observing)" } else { "" };
    let mut text = too_old(status);
    let _ = write!(
        text,
        "Policy {}{observe}: {}.\nMachine: {:.2} of {:.0} cores in use; the controller uses {:.2} % of a core, a step every {:.2} s.\n\n",
        status.policy.name(),
        status.explanation,
        status.busy_cores,
        status.cores,
        100.0 * status.own_cores,
        status.step_s
    );
    if let Some(trouble) = &status.recording_trouble {
        let _ = writeln!(text, "Note: {trouble}.\n");
    }
    let mut services = table(&[
        "service",
        "tail",
        "objective",
        "slack",
        "requests",
        "requests/s",
        "cores",
        "quota",
        "settings",
    ]);
    for service in &status.services {
        services.add_row([
            service.name.clone(),
            match service.is_running {
                true => format!("p{} {}", service.percentile, latency(service)),
                false => latency(service),
            },
            format!("{} ms", service.objective_ms),
            percent(service.slack),
            or_dash(service.requests.map(|requests| requests.to_string())),
            or_dash(service.requests_per_s.map(|rate| format!("{rate:.0}"))),
            format!("{:.2}", service.cpu_cores),
            or_dash(service.quota_cores.map(|cores| format!("{cores:.2}"))),
            words(&service.settings),
        ]);
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
    if !status.recent.is_empty() {
        text.push_str("\nLast decisions:\n");
        text.extend(status.recent.iter().map(|line| format!("  {line}\n")));
    }
    text
}

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
        "SIMULATED, nothing here was measured.\nThe highest effective machine utilisation within the objective:\n{}",
        rendered(&rows)
    )
}
