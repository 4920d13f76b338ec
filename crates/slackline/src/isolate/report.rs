//! `slackline isolate report`: the timeline of a run as one page with its pictures inside.

mod actuators;
mod spans;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::path::Path;

use isolate_run::{DecisionOutcome, GroupStatus, IsolationStatus, RecordedRun};

use self::spans::{Span, counted, kept, service, spans};
use crate::page::{escaped, paragraphs, text_table};
use crate::timeline::{Line, LineKind, timeline};

/// Decisions that the table lists.
const LISTED_MAX: usize = 300;

/// A value of each second.
fn line(
    rows: &[IsolationStatus],
    kind: LineKind,
    of: impl Fn(&IsolationStatus) -> Option<f64>,
) -> Line {
    Line {
        points: rows.iter().map(|row| (row.at_s, of(row))).collect(),
        kind,
    }
}

/// A value that changes in steps.
fn steps(spans: &[Span<f64>], kind: LineKind) -> Line {
    let mut points: Vec<(f64, Option<f64>)> = Vec::new();
    for span in spans {
        if points.last().is_some_and(|(at_s, _)| *at_s < span.from_s) {
            points.push((span.from_s, None));
        }
        points.push((span.from_s, Some(span.value)));
        points.push((span.to_s, Some(span.value)));
    }
    Line { points, kind }
}

/// The words for the lines that have values.
fn legend(lines: &[(&Line, &str)]) -> String {
    let there = lines.iter().filter(|(line, _)| line.has_values());
    let words: Vec<&str> = there.map(|(_, words)| *words).collect();
    match words.is_empty() {
        true => "no data".to_owned(),
        false => words.join(", "),
    }
}

/// Names in the order in which they first appear: a reload may add and remove some.
fn names<'a>(
    rows: &'a [IsolationStatus],
    of: impl Fn(&'a IsolationStatus) -> Vec<&'a str>,
) -> Vec<&'a str> {
    let mut names = Vec::new();
    for name in rows.iter().flat_map(of) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn group<'a>(row: &'a IsolationStatus, name: &str) -> Option<&'a GroupStatus> {
    row.groups.iter().find(|group| group.name == name)
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
    let mut html = paragraphs(&head(recorded, end_s));
    for name in names(rows, |row| {
        row.services.iter().map(|it| &*it.name).collect()
    }) {
        html += &of_service(rows, name, end_s, &marks);
    }
    for name in names(rows, |row| row.groups.iter().map(|it| &*it.name).collect()) {
        let cores = line(rows, LineKind::Plain, |row| group(row, name)?.cpu_cores);
        let _ = writeln!(html, "<h2>{}</h2>", escaped(name));
        html += &timeline("Best-effort CPU", "cores", &[cores], end_s, &marks);
        html += &work_done(rows, name, end_s);
        html += &actuators::pictures(recorded, name, end_s);
    }
    html.push_str("<h2>Machine</h2>\n");
    let lines = [
        line(rows, LineKind::Plain, |row| Some(row.busy_cores)),
        steps(&spans(rows, |row| Some(row.cores)), LineKind::Limit),
    ];
    html += &timeline(
        "Cores in use; the dashed line is all cores of the machine",
        "cores",
        &lines,
        end_s,
        &[],
    );
    html + &decisions(recorded)
}

/// What ran, and when it only observed.
fn head(recorded: &RecordedRun, end_s: f64) -> Vec<String> {
    let policies = spans(&recorded.rows, |row| Some(row.policy));
    let policies = match policies.as_slice() {
        [policy] => format!("Policy {}", policy.value.name()),
        several => {
            let several = several
                .iter()
                .map(|policy| format!("{} ({})", policy.value.name(), policy.times()));
            format!("Policies {}", several.collect::<Vec<_>>().join(", "))
        }
    };
    let count = recorded.decisions.len();
    let mut head = vec![format!(
        "{policies}, {end_s:.0} s, {count} decisions. Grey lines are decisions."
    )];
    let observe = spans(&recorded.rows, |row| Some(row.observe));
    let observed = observe.iter().filter(|span| span.value);
    let observed: Vec<String> = observed.map(Span::times).collect();
    if observe.iter().all(|span| span.value) {
        head.push("isolate only observed: it changed nothing.".to_owned());
    } else if !observed.is_empty() {
        head.push(format!(
            "isolate only observed from {}: it changed nothing then.",
            observed.join(", and from ")
        ));
    }
    head
}

/// In how many seconds the tail was within the objective: apart for acting and observing.
fn kept_in_words(rows: &[IsolationStatus], name: &str) -> String {
    let share = |(within, all): (usize, usize)| {
        #[expect(clippy::cast_precision_loss, reason = "counts of seconds")]
        let percent = 100.0 * within as f64 / all as f64;
        format!("{percent:.1} % of {all} seconds")
    };
    let acting = Some(kept(rows, name, false)).filter(|(_, all)| *all > 0);
    let observing = Some(kept(rows, name, true)).filter(|(_, all)| *all > 0);
    let what = "the tail over the window was within the objective in";
    match (acting.map(share), observing.map(share)) {
        (Some(acting), None) => {
            format!("The tail over the window was within the objective in {acting}.")
        }
        (Some(acting), Some(observing)) => format!(
            "While isolate acted, {what} {acting}. While isolate only observed, in {observing}."
        ),
        (None, Some(observing)) => format!("While isolate only observed, {what} {observing}."),
        (None, None) => "The latency was never known.".to_owned(),
    }
}

/// The tail, the load and the CPU time of a service over time.
fn of_service(rows: &[IsolationStatus], name: &str, end_s: f64, marks: &[f64]) -> String {
    let objectives = spans(rows, |row| {
        service(row, name).map(|service| (service.percentile, service.objective_ms))
    });
    let last = rows.iter().rev().find_map(|row| service(row, name));
    let mut texts = vec![kept_in_words(rows, name)];
    texts.extend(last.map(|last| format!("The latency was read from {}.", last.source)));
    let in_words = |span: &Span<(f64, f64)>| format!("p{} below {} ms", span.value.0, span.value.1);
    let objective = match objectives.as_slice() {
        [only] => format!("dashed the objective ({})", in_words(only)),
        several => {
            let several = several
                .iter()
                .map(|span| format!("{} ({})", in_words(span), span.times()));
            texts.push(format!(
                "The objective changed: {}. Each second counts against its own objective.",
                several.collect::<Vec<_>>().join(", ")
            ));
            "dashed the objective".to_owned()
        }
    };
    let mut html = format!("<h2>{}</h2>\n", escaped(name));
    html += &paragraphs(&[texts.join(" ")]);
    let limits: Vec<Span<f64>> = objectives
        .iter()
        .map(|span| Span {
            from_s: span.from_s,
            to_s: span.to_s,
            value: span.value.1,
        })
        .collect();
    let lines = [
        line(rows, LineKind::Plain, |row| service(row, name)?.fresh_ms),
        line(rows, LineKind::Over, |row| service(row, name)?.latency_ms),
        steps(&limits, LineKind::Limit),
    ];
    let title = legend(&[
        (&lines[0], "blue over each second"),
        (&lines[1], "red over the window"),
        (&lines[2], &objective),
    ]);
    html += &timeline(&format!("Latency: {title}"), "ms", &lines, end_s, marks);
    let load = line(rows, LineKind::Plain, |row| {
        service(row, name)?.requests_per_s
    });
    html += &timeline("Load", "requests/s", &[load], end_s, &[]);
    let lines = [
        line(rows, LineKind::Plain, |row| service(row, name)?.cpu_cores),
        line(rows, LineKind::Over, |row| service(row, name)?.quota_cores),
    ];
    let title = match lines[1].has_values() {
        true => "Blue: the CPU that the service uses; red: its quota; a gap: no quota",
        false => "The CPU that the service uses",
    };
    html += &timeline(title, "cores", &lines, end_s, &[]);
    html
}

/// What a group got done: units of work where it says, and CPU time.
fn work_done(rows: &[IsolationStatus], name: &str, end_s: f64) -> String {
    let cpu_s = counted(rows.iter().filter_map(|row| Some(group(row, name)?.cpu_s)));
    let mut seen = rows.iter().filter_map(|row| group(row, name)?.cpu_cores);
    let cpu = match cpu_s > 0.0 || seen.next().is_some() {
        true => format!("{cpu_s:.1} CPU seconds"),
        false => "an unknown CPU time".to_owned(),
    };
    let progress = |row: &IsolationStatus| group(row, name)?.progress;
    let Some(units) = rows.iter().rev().find_map(progress) else {
        return paragraphs(&[format!("Work done: {cpu}.")]);
    };
    let done = line(rows, LineKind::Plain, progress);
    let text = format!("Work done: {units} units, in {cpu}.");
    paragraphs(&[text]) + &timeline("Work done", "units", &[done], end_s, &[])
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
    html += &text_table(&["time", "decision", "what became of it"], rows);
    if recorded.notes.is_empty() {
        return html;
    }
    let notes = recorded.notes.iter();
    let notes = notes.map(|(at_s, text)| vec![format!("{at_s:.1} s"), text.clone()]);
    html + "<h2>Notes</h2>\n" + &text_table(&["time", "note"], notes)
}

pub(super) fn write(recorded: &RecordedRun, file: &Path) -> anyhow::Result<()> {
    crate::page::write(file, "slackline isolate: a run", &body(recorded))
}
