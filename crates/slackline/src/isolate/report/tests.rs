//! Tests of the page of a run: what a reload changes, gaps, legends and long cells.

use isolation::{ActuatorSetting, Decision, Reason};

use super::*;
use crate::isolate::samples;

fn decided(
    at_s: f64,
    setting: ActuatorSetting,
    outcome: DecisionOutcome,
) -> (f64, Decision, DecisionOutcome) {
    let decision = Decision::group("batch", setting, Reason::Slack);
    (at_s, decision, outcome)
}

/// Four seconds of observing, four of acting, and four with another objective. The tail is 12 ms.
fn reloaded() -> RecordedRun {
    let rows = (1..=12_u32).map(|second| {
        let objective_ms = if second <= 8 { 10.0 } else { 20.0 };
        let service = samples::service(objective_ms, if second == 1 { 5.0 } else { 12.0 });
        samples::row(second.into(), second <= 4, service)
    });
    RecordedRun {
        rows: rows.collect(),
        ..RecordedRun::default()
    }
}

#[test]
fn each_second_counts_against_its_own_objective_and_observing_counts_apart() {
    let html = body(&reloaded());
    for text in [
        "isolate only observed from 0 s to 5 s: it changed nothing then.",
        "While isolate acted, the tail over the window was within the objective in 50.0 % of 8 seconds. \
         While isolate only observed, in 25.0 % of 4 seconds.",
        "The objective changed: p99 below 10 ms (0 s to 9 s), p99 below 20 ms (9 s to 12 s). \
         Each second counts against its own objective.",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }
    // The dashed line is at half of the scale, and from second 9 on at its end.
    let limit = "points=\"0.0,64.0 615.0,64.0 615.0,2.0 820.0,2.0\"";
    assert!(html.contains(limit), "{html}");
}

#[test]
fn a_run_without_a_reload_names_its_objective_in_the_picture() {
    let mut recorded = reloaded();
    recorded.rows.truncate(8);
    recorded.rows.iter_mut().for_each(|row| row.observe = true);
    let html = body(&recorded);
    for text in [
        "isolate only observed: it changed nothing.",
        "While isolate only observed, the tail over the window was within the objective in 12.5 % of 8 seconds.",
        "dashed the objective (p99 below 10 ms)",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }
    recorded.rows.iter_mut().for_each(|row| row.observe = false);
    let html = body(&recorded);
    let text = "The tail over the window was within the objective in 12.5 % of 8 seconds.";
    assert!(html.contains(text) && !html.contains("observed"), "{html}");
    assert!(!html.contains("The objective changed"), "{html}");
}

#[test]
fn a_legend_names_only_what_is_drawn_and_a_scale_is_round() {
    let mut recorded = reloaded();
    let html = body(&recorded);
    for text in [
        "The CPU that the service uses (cores)",
        "Latency: red over the window, dashed the objective (ms)",
        "Cores in use; the dashed line is all cores of the machine",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }
    assert!(
        !html.contains("its quota") && !html.contains("each second,"),
        "{html}"
    );
    // 0.037 cores of the service, 0.5 of the group, 2 of the machine.
    for end in ["0.040", "0.50", "2.0"] {
        assert!(
            html.contains(&format!("<span>{end}</span>")),
            "{end}: {html}"
        );
    }
    recorded.rows[3].services[0].quota_cores = Some(1.0);
    recorded.rows[3].services[0].fresh_ms = Some(3.0);
    let html = body(&recorded);
    assert!(html.contains("red: its quota; a gap: no quota"), "{html}");
    assert!(
        html.contains("blue over each second, red over the window"),
        "{html}"
    );
}

#[test]
fn no_quota_is_a_gap_and_what_was_only_decided_is_no_setting() {
    let mut recorded = reloaded();
    let quota = |cores| ActuatorSetting::QuotaCores(cores);
    recorded.decisions = vec![
        decided(1.0, quota(Some(2.0)), DecisionOutcome::Observed),
        decided(6.0, quota(Some(1.0)), DecisionOutcome::Applied),
        decided(8.0, quota(None), DecisionOutcome::Applied),
        decided(9.0, quota(Some(2.0)), DecisionOutcome::Applied),
        decided(
            9.5,
            quota(Some(0.1)),
            DecisionOutcome::Refused("no".to_owned()),
        ),
    ];
    let html = body(&recorded);
    let title =
        "Actuator quota; dashed: decided while only observing, not set; a gap: no quota (cores)";
    assert!(html.contains(title), "{html}");
    for points in [
        "points=\"68.3,2.0 410.0,2.0\" style=\"stroke:var(--bar);stroke-dasharray",
        "points=\"410.0,64.0 546.7,64.0\" style=\"stroke:var(--bar)\"",
        "points=\"615.0,2.0 820.0,2.0\" style=\"stroke:var(--bar)\"",
    ] {
        assert!(html.contains(points), "{points}: {html}");
    }
}

#[test]
fn every_column_of_the_decisions_and_notes_has_a_heading_and_long_cells_wrap() {
    let mut recorded = reloaded();
    let why = DecisionOutcome::Yielded("somebody writes ".repeat(30));
    recorded.decisions = vec![decided(6.0, ActuatorSetting::Off(true), why)];
    recorded.notes = vec![(7.0, "the configuration was read again".to_owned())];
    let html = body(&recorded);
    for text in [
        "<table class=\"text\">\n<tr><th>time</th><th>decision</th><th>what became of it</th></tr>",
        "<td>6.0 s</td><td>group batch: off (slack)</td><td>left to somebody else: ",
        "<tr><th>time</th><th>note</th></tr>\n<tr><td>7.0 s</td><td>the configuration was read again",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }
    assert!(!html.contains("<th></th>"), "{html}");
}

#[test]
fn work_counts_on_over_a_reload_and_who_left_is_still_shown() {
    let mut recorded = reloaded();
    for row in recorded.rows.iter_mut().skip(8) {
        row.groups[0].cpu_s -= 8.0;
    }
    let mut other = samples::service(7.0, 3.0);
    other.name = "gone".to_owned();
    recorded.rows[0].services.insert(0, other);
    let html = body(&recorded);
    assert!(html.contains("Work done: 12.0 CPU seconds."), "{html}");
    for row in &mut recorded.rows {
        row.groups[0].cpu_cores = None;
        row.groups[0].cpu_s = 0.0;
    }
    assert!(body(&recorded).contains("Work done: an unknown CPU time."));
    let (gone, web) = (html.find("<h2>gone</h2>"), html.find("<h2>web</h2>"));
    assert!(gone.is_some() && gone < web, "{html}");
}

#[test]
fn a_span_ends_where_its_value_is_not_there() {
    let mut recorded = reloaded();
    recorded.rows[5].services.clear();
    let found = spans(&recorded.rows, |row| {
        Some(service(row, "web")?.objective_ms)
    });
    let found: Vec<(f64, f64, f64)> = found
        .iter()
        .map(|span| (span.from_s, span.to_s, span.value))
        .collect();
    assert_eq!(
        found,
        [(0.0, 6.0, 10.0), (7.0, 9.0, 10.0), (9.0, 12.0, 20.0)]
    );
    let found = spans(&recorded.rows, |row| {
        Some(service(row, "web")?.objective_ms)
    });
    let gaps = steps(&found, LineKind::Limit).points;
    assert_eq!(gaps.iter().filter(|(_, value)| value.is_none()).count(), 1);
}
