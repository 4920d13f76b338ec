//! `slackline throttle watch --live`: the watch in the terminal, as it goes.

use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::layout::Rect;
use throttle_watch::{
    Collected, GroupWatch, Jobs, LatencyMoment, PortLatency, RequestLatency, RequestMonitor,
    WatchReport, collect, named,
};
use tuner::process::Interrupt;

use super::text;
use crate::live::{self, DRAW_EVERY, Key, LINE_ROWS, Line};
use crate::output::message;

/// Rows of the line of recent windows, with its frame.
const RECENT_ROWS: u16 = 6;

/// Watches until q, a signal or the end of `duration_s`; the report is what was seen since the last
/// r.
pub(super) fn run(
    group: &str,
    duration_s: f64,
    of_port: Option<&PortLatency>,
    interrupt: &Interrupt,
) -> anyhow::Result<WatchReport> {
    let requests = of_port.map(|of| RequestMonitor::start(of, group));
    let mut requests = requests.transpose()?;
    live::on_screen(|terminal| watch(terminal, group, duration_s, &mut requests, interrupt))
}

fn watch(
    terminal: &mut DefaultTerminal,
    group: &str,
    duration_s: f64,
    requests: &mut Option<RequestMonitor>,
    interrupt: &Interrupt,
) -> anyhow::Result<WatchReport> {
    let end = Instant::now() + Duration::from_secs_f64(duration_s);
    loop {
        let mut watch = GroupWatch::begin(group.to_owned())?;
        let mut pressed = None;
        let mut drawn: Option<Instant> = None;
        let left = end.saturating_duration_since(Instant::now());
        let limited_by = watch.limited_by().to_owned();
        let mut show = |seen: &Collected| {
            pressed = live::key(Duration::ZERO)?;
            if let Some(requests) = requests.as_mut() {
                requests.note(seen);
            }
            if drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_EVERY) {
                drawn = Some(Instant::now());
                let report = report(&mut watch, seen, requests.as_ref());
                draw(terminal, &report, seen)?;
            }
            Ok(pressed.is_none() && interrupt.signal().is_none())
        };
        let mut failed: Option<anyhow::Error> = None;
        let mut goes_on = |seen: &Collected| match show(seen) {
            Ok(goes_on) => goes_on,
            Err(error) => {
                failed = Some(error);
                false
            }
        };
        let jobs = Jobs::Summed;
        let collected = collect(group, &limited_by, left, jobs, &mut goes_on, &message)?;
        if let Some(error) = failed {
            return Err(error);
        }
        if !matches!(pressed, Some(Key::Restart)) {
            return Ok(report(&mut watch, &collected, requests.as_ref()));
        }
        if let Some(requests) = requests.as_mut() {
            requests.restart();
        }
    }
}

/// What is to be said by now, with the latency of the requests.
fn report(
    watch: &mut GroupWatch,
    seen: &Collected,
    requests: Option<&RequestMonitor>,
) -> WatchReport {
    let mut report = watch.report(seen);
    report.latency = requests.map(RequestMonitor::report);
    report
}

fn draw(
    terminal: &mut DefaultTerminal,
    report: &WatchReport,
    seen: &Collected,
) -> anyhow::Result<()> {
    terminal.draw(|frame| {
        let text = text::report(report);
        match &report.latency {
            Some(latency) => {
                let lines = latency_and_cores(frame.area(), report, latency);
                live::draw(frame, &lines, LINE_ROWS, &text);
            }
            None => {
                let line = recent_cores(frame.area(), report, seen);
                live::draw(frame, &[line], RECENT_ROWS, &text);
            }
        }
    })?;
    Ok(())
}

/// The cores in use in the last windows, in hundredths.
fn recent_cores(area: Rect, report: &WatchReport, seen: &Collected) -> Line {
    let quota = report.limit.and_then(|limit| limit.in_cores());
    let recent = seen.schedule.recent_cores(seen.end_ns, live::shown(area));
    let most = recent.iter().copied().fold(quota.unwrap_or(1.0), f64::max);
    Line {
        title: format!(
            " {}: cores in use, the last {} ms, up to {most:.1}{} · r restarts · q quits ",
            named(&report.group),
            10 * recent.len(),
            quota.map_or(String::new(), |quota| format!(", quota {quota:.2}"))
        ),
        values: recent
            .iter()
            .map(|cores| live::whole(100.0 * cores))
            .collect(),
        max: Some(live::whole(100.0 * most)),
    }
}

/// Latency and cores in use, over the same seconds.
fn latency_and_cores(area: Rect, report: &WatchReport, latency: &RequestLatency) -> [Line; 2] {
    let first = latency.moments.len().saturating_sub(live::shown(area));
    let moments = &latency.moments[first..];
    let seconds = moments.len();
    let worst_us = moments.iter().filter_map(|moment| moment.latency_us);
    let worst_ms = worst_us.fold(0.0, f64::max) / 1000.0;
    let most = moments
        .iter()
        .map(|moment| moment.cores)
        .fold(0.0, f64::max);
    let line = |title: String, value: fn(&LatencyMoment) -> f64| Line {
        title,
        values: moments
            .iter()
            .map(|moment| live::whole(value(moment)))
            .collect(),
        max: None,
    };
    [
        line(
            format!(
                " p{}, the last {seconds} s, up to {worst_ms:.2} ms · r restarts · q quits ",
                latency.percentile
            ),
            |moment| moment.latency_us.unwrap_or(0.0),
        ),
        line(
            format!(
                " {}: cores in use in the same seconds, up to {most:.2} ",
                named(&report.group)
            ),
            |moment| 1000.0 * moment.cores,
        ),
    ]
}
