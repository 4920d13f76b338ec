//! `slackline isolate report`: the timeline of a run as one page with its pictures inside.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use isolate_run::{DecisionOutcome, RecordedRun};

use crate::page::{escaped, paragraphs, table};
use crate::timeline::{Line, timeline};

/// Decisions that the table lists.
const LISTED_MAX: usize = 300;

fn series<T>(
    rows: &[T],
    at: impl Fn(&T) -> f64,
    value: impl Fn(&T) -> Option<f64>,
) -> Vec<(f64, f64)> {
    rows.iter()
        .filter_map(|row| Some((at(row), value(row)?)))
        .collect()
}

/// Share of the seconds with data in which the tail was within its objective.
fn kept_share(points: &[(f64, f64)], objective_ms: f64) -> Option<f64> {
    let kept = points
        .iter()
        .filter(|(_, latency)| *latency <= objective_ms)
        .count();
    (!points.is_empty()).then(|| {
        #[expect(clippy::cast_precision_loss, reason = "counts of seconds")]
        let share = kept as f64 / points.len() as f64;
        share
    })
}

pub(super) fn body(recorded: &RecordedRun) -> String {
    let Some(last) = recorded.rows.last() else {
        return paragraphs(&["The recording is empty: the run ended at once.".to_owned()]);
    };
    let rows = &recorded.rows;
    let end_s = last.at_s;
    let marks: Vec<f64> = recorded
        .decisions
        .iter()
        .map(|(at_s, ..)| *at_s)
        .take(LISTED_MAX)
        .collect();
    let observe = if last.observe {
        " The controller only observed: it changed nothing."
    } else {
        ""
    };
    let mut html = paragraphs(&[format!(
        "Policy {}, {end_s:.0} s, {} decisions.{observe} Grey lines are decisions.",
        last.policy.name(),
        recorded.decisions.len()
    )]);
    for (index, service) in last.services.iter().enumerate() {
        html += &of_service(rows, index, service, end_s, &marks);
    }
    for (index, group) in last.groups.iter().enumerate() {
        let cores = series(
            rows,
            |row| row.at_s,
            |row| row.groups.get(index)?.cpu_cores,
        );
        let _ = writeln!(html, "<h2>{}</h2>", escaped(&group.name));
        let lines = [Line {
            points: cores,
            is_over: false,
        }];
        html += &timeline("Best-effort CPU", "cores", &lines, None, end_s, &marks);
        html += &work_done(rows, index, group, end_s);
        html += &actuators(recorded, &group.name, end_s);
    }
    let busy = series(rows, |row| row.at_s, |row| Some(row.busy_cores));
    html.push_str("<h2>Machine</h2>\n");
    let lines = [Line {
        points: busy,
        is_over: false,
    }];
    html += &timeline(
        "Cores in use; the dashed line is all cores of the machine",
        "cores",
        &lines,
        Some(last.cores),
        end_s,
        &[],
    );
    html + &decisions(recorded)
}

/// The tail, the load and the CPU time of a service over time.
fn of_service(
    rows: &[isolate_run::IsolationStatus],
    index: usize,
    service: &isolate_run::ServiceStatus,
    end_s: f64,
    marks: &[f64],
) -> String {
    let of = |row: &isolate_run::IsolationStatus| row.services.get(index).cloned();
    let tail = series(rows, |row| row.at_s, |row| of(row)?.latency_ms);
    let fresh = series(rows, |row| row.at_s, |row| of(row)?.fresh_ms);
    let load = series(rows, |row| row.at_s, |row| of(row)?.requests_per_s);
    let mut html = format!("<h2>{}</h2>\n", escaped(&service.name));
    let kept = kept_share(&tail, service.objective_ms);
    let kept = kept.map_or("The latency was never known.".to_owned(), |share| {
        let percent = 100.0 * share;
        format!(
            "The tail latency over the window was within the objective in {percent:.1} % of the seconds for which it is known."
        )
    });
    html += &paragraphs(&[format!(
        "{kept} The latency was read from {}.",
        service.source
    )]);
    let lines = [
        Line {
            points: fresh,
            is_over: false,
        },
        Line {
            points: tail,
            is_over: true,
        },
    ];
    let title = format!(
        "p{}: blue over each second, red over the window; the dashed line is the objective of {} ms",
        service.percentile, service.objective_ms
    );
    html += &timeline(
        &title,
        "ms",
        &lines,
        Some(service.objective_ms),
        end_s,
        marks,
    );
    let lines = [Line {
        points: load,
        is_over: false,
    }];
    html += &timeline("Load", "requests/s", &lines, None, end_s, &[]);
    let cores = series(rows, |row| row.at_s, |row| of(row)?.cpu_cores);
    let quota = series(rows, |row| row.at_s, |row| of(row)?.quota_cores);
    let lines = [
        Line {
            points: cores,
            is_over: false,
        },
        Line {
            points: quota,
            is_over: true,
        },
    ];
    html += &timeline(
        "Blue: the CPU that the service uses; red: its quota",
        "cores",
        &lines,
        None,
        end_s,
        &[],
    );
    html
}

/// What a group got done: units of work where it says, and CPU time.
fn work_done(
    rows: &[isolate_run::IsolationStatus],
    index: usize,
    group: &isolate_run::GroupStatus,
    end_s: f64,
) -> String {
    let cpu_s = group.cpu_s;
    let Some(units) = group.progress else {
        return paragraphs(&[format!("Work done: {cpu_s:.1} CPU seconds.")]);
    };
    let points = series(rows, |row| row.at_s, |row| row.groups.get(index)?.progress);
    let lines = [Line {
        points,
        is_over: false,
    }];
    let text = format!("Work done: {units} units, in {cpu_s:.1} CPU seconds.");
    paragraphs(&[text]) + &timeline("Work done", "units", &lines, None, end_s, &[])
}

/// Each actuator of a group over time, where it is a number.
fn actuators(recorded: &RecordedRun, group: &str, end_s: f64) -> String {
    let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    let subject = isolation::Subject::Group(group.to_owned());
    for (at_s, decision, outcome) in &recorded.decisions {
        // What was only observed was never in force.
        if decision.subject != subject || *outcome != DecisionOutcome::Applied {
            continue;
        }
        let value = match decision.setting {
            isolation::ActuatorSetting::Off(off) => f64::from(u8::from(off)),
            isolation::ActuatorSetting::CpuIdle(on) | isolation::ActuatorSetting::IoCost(on) => {
                f64::from(u8::from(on))
            }
            isolation::ActuatorSetting::QuotaCores(cores) => {
                cores.unwrap_or_else(|| recorded.rows.last().map_or(1.0, |row| row.cores))
            }
            isolation::ActuatorSetting::Frequency(share)
            | isolation::ActuatorSetting::Power(share)
            | isolation::ActuatorSetting::UclampMax(share)
            | isolation::ActuatorSetting::UclampMin(share) => share,
            isolation::ActuatorSetting::EgressMbit(rate) => rate,
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            isolation::ActuatorSetting::Weight(n)
            | isolation::ActuatorSetting::Cores(n)
            | isolation::ActuatorSetting::LlcWays(n)
            | isolation::ActuatorSetting::MemoryBandwidthPercent(n)
            | isolation::ActuatorSetting::MemoryHighBytes(n)
            | isolation::ActuatorSetting::MemoryLowBytes(n)
            | isolation::ActuatorSetting::IoReadBytesPerS(n)
            | isolation::ActuatorSetting::IoWriteBytesPerS(n)
            | isolation::ActuatorSetting::IoWeight(n) => n as f64,
            // A word.
            isolation::ActuatorSetting::EnergyPreference(_) => continue,
        };
        let points = lines.entry(decision.setting.actuator()).or_default();
        if let Some((_, before)) = points.last().copied() {
            points.push((*at_s, before));
        }
        points.push((*at_s, value));
    }
    let mut html = String::new();
    for (actuator, mut points) in lines {
        if let Some((_, value)) = points.last().copied() {
            points.push((end_s, value));
        }
        let lines = [Line {
            points,
            is_over: false,
        }];
        html += &timeline(
            &format!("Actuator {actuator}"),
            "as set",
            &lines,
            None,
            end_s,
            &[],
        );
    }
    html
}

fn decisions(recorded: &RecordedRun) -> String {
    let mut html = "<h2>Decisions</h2>\n".to_owned();
    let skipped = recorded.decisions.len().saturating_sub(LISTED_MAX);
    if skipped > 0 {
        html += &paragraphs(&[format!(
            "The first {LISTED_MAX} of {}.",
            recorded.decisions.len()
        )]);
    }
    let became = |outcome: &DecisionOutcome| match outcome {
        DecisionOutcome::Applied => "in force".to_owned(),
        DecisionOutcome::Observed => "only observed".to_owned(),
        DecisionOutcome::Vanished => "the group or service did not exist any more".to_owned(),
        DecisionOutcome::Lacking(why) => format!("not available: {why}"),
        DecisionOutcome::Refused(why) => format!("refused: {why}"),
        DecisionOutcome::Yielded(why) => format!("left to somebody else: {why}"),
    };
    let rows = recorded
        .decisions
        .iter()
        .take(LISTED_MAX)
        .map(|(at_s, decision, outcome)| {
            vec![
                format!("{at_s:.1} s"),
                decision.to_string(),
                became(outcome),
            ]
        });
    html += &table(&["time", "decision", "what became of it"], rows);
    let notes: Vec<String> = recorded
        .notes
        .iter()
        .map(|(at_s, text)| format!("{at_s:.1} s: {text}"))
        .collect();
    html + &paragraphs(&notes)
}

pub(super) fn write(recorded: &RecordedRun, file: &Path) -> anyhow::Result<()> {
    crate::page::write(file, "slackline isolate: a run", &body(recorded))
}
