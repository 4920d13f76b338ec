//! `slackline throttle watch --live`: the watch in the terminal, as it goes.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Style;
use ratatui::widgets::{Block, Paragraph, Sparkline, Wrap};
use ratatui::{DefaultTerminal, Frame};
use tuner::process::Interrupt;

use super::collect::{self, Collected, Jobs};
use super::requests::{Latency, Moment, OfPort, Requests};
use super::text;
use super::watch::{Report, Watch, named};

/// How often it is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(500);
/// Rows of the line of recent windows, with its frame.
const RECENT_ROWS: u16 = 6;
/// Rows of each of two lines over the same seconds, with its frame.
const LINE_ROWS: u16 = 5;

enum Key {
    Restart,
    Quit,
}

/// Watches until q, a signal or the end of `duration_s`; the report is what was seen since the last
/// r.
pub(super) fn run(
    group: &str,
    duration_s: f64,
    of_port: &OfPort,
    interrupt: &Interrupt,
) -> anyhow::Result<Report> {
    let mut requests = Requests::watch(of_port, group)?;
    let mut terminal = ratatui::try_init().context("--live needs a terminal")?;
    let seen = watch(&mut terminal, group, duration_s, &mut requests, interrupt);
    // Also after an error: nobody wants its message on a screen that goes away.
    ratatui::try_restore()?;
    seen
}

fn watch(
    terminal: &mut DefaultTerminal,
    group: &str,
    duration_s: f64,
    requests: &mut Option<Requests>,
    interrupt: &Interrupt,
) -> anyhow::Result<Report> {
    let end = Instant::now() + Duration::from_secs_f64(duration_s);
    loop {
        let mut watch = Watch::begin(group.to_owned())?;
        let mut pressed = None;
        let mut drawn: Option<Instant> = None;
        let left = end.saturating_duration_since(Instant::now());
        let limited_by = watch.limited_by().to_owned();
        let collected = collect::collect(group, &limited_by, left, Jobs::Summed, &mut |seen| {
            pressed = key()?;
            if let Some(requests) = requests.as_mut() {
                requests.note(seen);
            }
            if drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_EVERY) {
                drawn = Some(Instant::now());
                let report = report(&mut watch, seen, requests.as_ref());
                draw(terminal, &report, seen)?;
            }
            Ok(pressed.is_none() && interrupt.signal().is_none())
        })?;
        if !matches!(pressed, Some(Key::Restart)) {
            return Ok(report(&mut watch, &collected, requests.as_ref()));
        }
        if let Some(requests) = requests.as_mut() {
            requests.restart();
        }
    }
}

/// What is to be said by now, with the latency of the requests.
fn report(watch: &mut Watch, seen: &Collected, requests: Option<&Requests>) -> Report {
    let mut report = watch.report(seen);
    report.latency = requests.map(Requests::report);
    report
}

/// The key that was pressed, if it means anything.
fn key() -> anyhow::Result<Option<Key>> {
    while event::poll(Duration::ZERO)? {
        let Event::Key(pressed) = event::read()? else {
            continue;
        };
        let is_interrupt = pressed.modifiers.contains(KeyModifiers::CONTROL);
        match pressed.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(Some(Key::Quit)),
            KeyCode::Char('c') if is_interrupt => return Ok(Some(Key::Quit)),
            KeyCode::Char('r') => return Ok(Some(Key::Restart)),
            _ => {}
        }
    }
    Ok(None)
}

fn draw(terminal: &mut DefaultTerminal, report: &Report, seen: &Collected) -> anyhow::Result<()> {
    terminal.draw(|frame| {
        if let Some(latency) = &report.latency {
            draw_latency(frame, report, latency);
            return;
        }
        let [top, rest] = Layout::vertical([Constraint::Length(RECENT_ROWS), Constraint::Min(0)])
            .areas(frame.area());
        let quota = report.limit.and_then(|limit| limit.in_cores());
        let recent = seen
            .schedule
            .recent_cores(seen.end_ns, usize::from(top.width.saturating_sub(2)));
        // In hundredths, as a sparkline draws whole numbers.
        let hundredths = |cores: f64| (100.0 * cores).round().clamp(0.0, 1e9);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped"
        )]
        let whole = |cores: f64| hundredths(cores) as u64;
        let most = recent.iter().copied().fold(quota.unwrap_or(1.0), f64::max);
        let title = format!(
            " {}: cores in use, the last {} ms, up to {most:.1}{} · r restarts · q quits ",
            named(&report.group),
            10 * recent.len(),
            quota.map_or(String::new(), |quota| format!(", quota {quota:.2}"))
        );
        let data: Vec<u64> = recent.iter().map(|cores| whole(*cores)).collect();
        let line = Sparkline::default()
            .block(Block::bordered().title(title))
            .data(&data)
            .max(whole(most))
            .style(Style::new().cyan());
        frame.render_widget(line, top);
        let text = Paragraph::new(text::report(report)).wrap(Wrap { trim: false });
        frame.render_widget(text, rest);
    })?;
    Ok(())
}

/// Latency and cores in use, one above the other over the same seconds.
fn draw_latency(frame: &mut Frame<'_>, report: &Report, latency: &Latency) {
    let rows = Constraint::Length(LINE_ROWS);
    let [above, below, rest] =
        Layout::vertical([rows, rows, Constraint::Min(0)]).areas(frame.area());
    let shown = usize::from(above.width.saturating_sub(2));
    let moments = &latency.moments[latency.moments.len().saturating_sub(shown)..];
    let seconds = moments.len();
    let worst_us = moments.iter().filter_map(|moment| moment.latency_us);
    let worst_ms = worst_us.fold(0.0, f64::max) / 1000.0;
    let most = moments
        .iter()
        .map(|moment| moment.cores)
        .fold(0.0, f64::max);
    let titles = [
        format!(
            " p{}, the last {seconds} s, up to {worst_ms:.2} ms · r restarts · q quits ",
            latency.percentile
        ),
        format!(
            " {}: cores in use in the same seconds, up to {most:.2} ",
            named(&report.group)
        ),
    ];
    let values: [&dyn Fn(&Moment) -> f64; 2] =
        [&|moment| moment.latency_us.unwrap_or(0.0), &|moment| {
            1000.0 * moment.cores
        }];
    for ((area, title), value) in [above, below].into_iter().zip(titles).zip(values) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped"
        )]
        let whole = |moment: &Moment| value(moment).round().clamp(0.0, 1e12) as u64;
        let data: Vec<u64> = moments.iter().map(whole).collect();
        let line = Sparkline::default()
            .block(Block::bordered().title(title))
            .data(&data)
            .style(Style::new().cyan());
        frame.render_widget(line, area);
    }
    let text = Paragraph::new(text::report(report)).wrap(Wrap { trim: false });
    frame.render_widget(text, rest);
}
