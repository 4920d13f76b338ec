//! What isolation says in tables and lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use isolate_run::{Check, CheckRow, GroupStatus, IsolationStatus, SelftestRow, ServiceStatus};
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

/// What a check found; of the settings all, or only those that the policy may write.
pub(super) fn check(check: &Check, all: bool) -> String {
    let mut text: String = check
        .sentences
        .iter()
        .map(|sentence| format!("{sentence}\n"))
        .collect();
    let (used, others): (Vec<&CheckRow>, Vec<&CheckRow>) =
        check.rows.iter().partition(|row| row.is_used);
    let head = ["", "setting", "available", "now", "used by the policy"];
    let mut rows = table(if all { &head[..] } else { &head[..4] });
    let shown = used.iter().chain(others.iter().filter(|_| all));
    for row in shown {
        let available = match (&row.available, &row.missing) {
            (Some(form), _) => form.clone(),
            (_, Some(why)) => format!("no: {why}"),
            _ => String::new(),
        };
        let mut cells = vec![
            row.subject.clone(),
            row.actuator.clone(),
            available,
            or_dash(row.now.clone()),
        ];
        if all {
            cells.push(if row.is_used { "yes" } else { "no" }.to_owned());
        }
        rows.add_row(cells);
    }
    text.push_str(match (all, used.is_empty()) {
        (true, _) => "\n",
        (false, true) => "\nThe policy writes no setting.\n",
        (false, false) => "\nThe policy may write these settings:\n\n",
    });
    if all || !used.is_empty() {
        text += &rendered(&rows);
    }
    if !all && !others.is_empty() {
        let count = others.len();
        let _ = writeln!(
            text,
            "\n--all also lists {count} settings that the policy does not write."
        );
    }
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
    told(&group.settings, &group.observed_settings)
}

/// The settings in force or, while only observing, those that would be: one of the two is empty.
fn told(settings: &BTreeMap<String, String>, observed: &BTreeMap<String, String>) -> String {
    words(if settings.is_empty() {
        observed
    } else {
        settings
    })
}

/// Cores in use.
fn cores(cores: Option<f64>) -> String {
    or_dash(cores.map(|cores| format!("{cores:.2}")))
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

/// So many groups are named in a line.
const NAMED_MAX: usize = 8;

/// The first of what is said of groups, and how many there are more.
fn first(mut groups: Vec<String>) -> Vec<String> {
    let more = groups.len().saturating_sub(NAMED_MAX);
    if more > 1 {
        groups.truncate(NAMED_MAX);
        groups.push(format!("{more} more groups"));
    }
    groups
}

/// Everything in one line.
pub(super) fn line(status: &IsolationStatus) -> String {
    let services = status.services.iter().map(against_objective);
    let groups = status
        .groups
        .iter()
        .map(|group| format!("{}: {} cores", group.name, cores(group.cpu_cores)));
    let groups = first(groups.collect());
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
    let groups = status.groups.iter().map(|group| group.name.clone());
    let groups = match status.groups.is_empty() {
        true => "no best-effort work".to_owned(),
        false => format!("best-effort work {}", first(groups.collect()).join(", ")),
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
        let (name, cpu_s) = (&group.name, group.cpu_s);
        let is_counted = group.cpu_cores.is_some() || cpu_s > 0.0;
        match (group.progress, is_counted) {
            (Some(units), true) => format!("{name}: {units} units in {cpu_s:.1} CPU seconds"),
            (Some(units), false) => format!("{name}: {units} units"),
            (None, true) => format!("{name}: {cpu_s:.1} CPU seconds of work"),
            (None, false) => format!("{name}: CPU time not known"),
        }
    });
    let groups = first(groups.collect());
    format!(
        "Ended after {:.0} s. {}",
        status.at_s,
        services.chain(groups).collect::<Vec<_>>().join("; ")
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
    let settings_head = match status.observe {
        true => "would be",
        false => "settings",
    };
    // Most policies set nothing of a service, and the table then fits 80 columns.
    let has_settings = status
        .services
        .iter()
        .any(|service| !service.settings.is_empty() || !service.observed_settings.is_empty());
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
    head.extend(has_settings.then_some(settings_head));
    let mut services = table(&head);
    for service in &status.services {
        let mut cells = vec![
            service.name.clone(),
            match service.is_running {
                true => format!("p{} {}", service.percentile, latency(service)),
                false => latency(service),
            },
            format!("{} ms", service.objective_ms),
            percent(service.slack),
            or_dash(service.requests.map(|requests| requests.to_string())),
            or_dash(service.requests_per_s.map(|rate| format!("{rate:.0}"))),
            cores(service.cpu_cores),
            or_dash(service.quota_cores.map(|cores| format!("{cores:.2}"))),
        ];
        cells.extend(has_settings.then(|| told(&service.settings, &service.observed_settings)));
        services.add_row(cells);
    }
    text += &rendered(&services);
    if !status.groups.is_empty() {
        let mut groups = table(&["best effort", "cores", settings_head, "why", "progress"]);
        for group in &status.groups {
            groups.add_row([
                group.name.clone(),
                cores(group.cpu_cores),
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
    if !status.observed_machine_settings.is_empty() {
        let settings = words(&status.observed_machine_settings);
        let _ = writeln!(text, "\nSettings of the machine would be: {settings}");
    }
    for note in &status.notes {
        let _ = writeln!(text, "\nNote: {note}");
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
mod tests;
