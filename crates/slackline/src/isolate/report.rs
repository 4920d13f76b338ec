//! `slackline isolate report`: the time line of a run as one page with its pictures inside.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use isolate_run::{Outcome, Recorded};

use crate::page::{escaped, paragraphs, table};

/// Size of a time line, in its own units.
const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 44.0;
const BASE: f64 = 128.0;
/// Points of a line: more do not fit into the pixels.
const POINTS_MAX: usize = 1600;
/// Decisions that the table lists.
const LISTED_MAX: usize = 300;

/// One line of a picture.
struct Line {
    points: Vec<(f64, f64)>,
    is_over: bool,
}

/// A picture over time, with marks where decisions fell and a dashed line at the limit.
fn timeline(
    title: &str,
    unit: &str,
    lines: &[Line],
    limit: Option<f64>,
    end_s: f64,
    marks: &[f64],
) -> String {
    let values = lines
        .iter()
        .flat_map(|line| line.points.iter().map(|(_, value)| *value));
    // The objective stays visible where the latency is far above it.
    let most = values.chain(limit).fold(1e-9, f64::max) * 1.05;
    let x = |at_s: f64| LEFT + (WIDTH - LEFT) * at_s / end_s.max(1e-9);
    let y = |value: f64| BASE - (BASE - 8.0) * value / most;
    let title = escaped(title);
    let mut svg = format!(
        "<figure><svg style=\"max-width:none\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{title}\"><title>{title}</title>\n"
    );
    for at_s in marks {
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"8\" y2=\"{BASE}\"/>",
            x(*at_s)
        );
    }
    for line in lines {
        let every = line.points.len().div_ceil(POINTS_MAX).max(1);
        let points: Vec<String> = line
            .points
            .iter()
            .step_by(every)
            .map(|(at_s, value)| format!("{:.1},{:.1}", x(*at_s), y(*value)))
            .collect();
        let color = if line.is_over {
            "var(--over)"
        } else {
            "var(--bar)"
        };
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" style=\"fill:none;stroke:{color};stroke-width:1.5\"/>",
            points.join(" ")
        );
    }
    if let Some(limit) = limit {
        let _ = writeln!(
            svg,
            "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>",
            y(limit)
        );
    }
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{BASE}\" y2=\"{BASE}\"/>\n\
         <text x=\"{0}\" y=\"16\" text-anchor=\"end\">{most:.1}</text><text x=\"{0}\" y=\"{BASE}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{WIDTH}\" y=\"{1}\" text-anchor=\"end\">{end_s:.0} s</text></svg>\
         <figcaption>{title} ({unit})</figcaption></figure>",
        LEFT - 4.0,
        BASE + 15.0
    );
    svg
}

fn series<T>(
    rows: &[T],
    at: impl Fn(&T) -> f64,
    value: impl Fn(&T) -> Option<f64>,
) -> Vec<(f64, f64)> {
    rows.iter()
        .filter_map(|row| Some((at(row), value(row)?)))
        .collect()
}

/// Share of the seconds after the first window in which the tail was within its objective.
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

pub(super) fn body(recorded: &Recorded) -> String {
    let Some(last) = recorded.rows.last() else {
        return paragraphs(&["The record has no row: the run ended within a second.".to_owned()]);
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
        " It only observed: nothing was changed."
    } else {
        ""
    };
    let mut html = paragraphs(&[format!(
        "Policy {}, {end_s:.0} s, {} decisions.{observe} Grey lines are decisions.",
        last.policy.name(),
        recorded.decisions.len()
    )]);
    for (index, service) in last.services.iter().enumerate() {
        let of = |row: &isolate_run::Status| row.services.get(index).cloned();
        let tail = series(rows, |row| row.at_s, |row| of(row)?.latency_ms);
        let fresh = series(rows, |row| row.at_s, |row| of(row)?.fresh_ms);
        let load = series(rows, |row| row.at_s, |row| of(row)?.requests_per_s);
        let _ = writeln!(html, "<h2>{}</h2>", escaped(&service.name));
        let kept = kept_share(&tail, service.objective_ms);
        let kept = kept.map_or("no data".to_owned(), |share| {
            format!("{:.1} % of the looks", 100.0 * share)
        });
        html += &paragraphs(&[format!(
            "The tail over the window was within the objective in {kept}. It is read from {}.",
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
            "p{}: blue of each second, red over the window, dashed the objective of {} ms",
            service.percentile, service.objective_ms
        );
        html += &timeline(
            &title,
            "ms",
            &lines,
            Some(service.objective_ms),
            end_s,
            &marks,
        );
        let lines = [Line {
            points: load,
            is_over: false,
        }];
        html += &timeline("Load", "requests/s", &lines, None, end_s, &[]);
        let cores = series(rows, |row| row.at_s, |row| Some(of(row)?.cpu_cores));
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
            "The service's CPU, and its quota in red",
            "cores",
            &lines,
            None,
            end_s,
            &[],
        );
    }
    for (index, group) in last.groups.iter().enumerate() {
        let cores = series(
            rows,
            |row| row.at_s,
            |row| Some(row.groups.get(index)?.cpu_cores),
        );
        let _ = writeln!(html, "<h2>{}</h2>", escaped(&group.name));
        let lines = [Line {
            points: cores,
            is_over: false,
        }];
        html += &timeline("Best-effort CPU", "cores", &lines, None, end_s, &marks);
        html += &actuators(recorded, &group.name, end_s);
    }
    let busy = series(rows, |row| row.at_s, |row| Some(row.busy_cores));
    html.push_str("<h2>Machine</h2>\n");
    let lines = [Line {
        points: busy,
        is_over: false,
    }];
    html += &timeline(
        "Cores in use, dashed all that there are",
        "cores",
        &lines,
        Some(last.cores),
        end_s,
        &[],
    );
    html + &decisions(recorded)
}

/// Each actuator of a group over time, where it is a number.
fn actuators(recorded: &Recorded, group: &str, end_s: f64) -> String {
    let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    let subject = isolation::Subject::Group(group.to_owned());
    for (at_s, decision, outcome) in &recorded.decisions {
        if decision.subject != subject || !matches!(outcome, Outcome::Applied | Outcome::Observed) {
            continue;
        }
        let value = match decision.setting {
            isolation::Setting::Off(off) => f64::from(u8::from(off)),
            isolation::Setting::CpuIdle(on) => f64::from(u8::from(on)),
            isolation::Setting::QuotaCores(cores) => {
                cores.unwrap_or_else(|| recorded.rows.last().map_or(1.0, |row| row.cores))
            }
            isolation::Setting::Frequency(share) | isolation::Setting::Power(share) => share,
            isolation::Setting::EgressMbit(rate) => rate,
            #[expect(clippy::cast_precision_loss, reason = "small counts")]
            isolation::Setting::Weight(n)
            | isolation::Setting::Cores(n)
            | isolation::Setting::LlcWays(n)
            | isolation::Setting::MemoryBandwidthPercent(n) => n as f64,
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

fn decisions(recorded: &Recorded) -> String {
    let mut html = "<h2>Decisions</h2>\n".to_owned();
    let skipped = recorded.decisions.len().saturating_sub(LISTED_MAX);
    if skipped > 0 {
        html += &paragraphs(&[format!(
            "The first {LISTED_MAX} of {}.",
            recorded.decisions.len()
        )]);
    }
    let became = |outcome: &Outcome| match outcome {
        Outcome::Applied => "in force".to_owned(),
        Outcome::Observed => "only observed".to_owned(),
        Outcome::Vanished => "it had vanished".to_owned(),
        Outcome::Lacking(why) => format!("not here: {why}"),
        Outcome::Refused(why) => format!("refused: {why}"),
        Outcome::Yielded(why) => format!("left to somebody else: {why}"),
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
    html += &table(&["", "decision", ""], rows);
    let notes: Vec<String> = recorded
        .notes
        .iter()
        .map(|(at_s, text)| format!("{at_s:.1} s: {text}"))
        .collect();
    html + &paragraphs(&notes)
}

pub(super) fn write(recorded: &Recorded, file: &Path) -> anyhow::Result<()> {
    crate::page::write(file, "slackline isolate: a run", &body(recorded))
}
