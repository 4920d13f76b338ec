//! `slackline throttle watch --live`: the watch in the terminal, as it goes.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Style;
use ratatui::widgets::{Block, Paragraph, Sparkline, Wrap};
use tuner::process::Interrupt;

use super::collect::{self, Collected, Jobs};
use super::text;
use super::watch::{Report, Watch, named};

/// How often it is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(500);
/// Rows of the line of recent windows, with its frame.
const RECENT_ROWS: u16 = 6;

enum Key {
    Restart,
    Quit,
}

/// Watches until q, a signal or the end of `duration_s`; the report is what was seen since the last r.
pub(super) fn run(group: &str, duration_s: f64, interrupt: &Interrupt) -> anyhow::Result<Report> {
    let mut terminal = ratatui::try_init().context("--live needs a terminal")?;
    let seen = watch(&mut terminal, group, duration_s, interrupt);
    // Also after an error: nobody wants its message on a screen that goes away.
    ratatui::try_restore()?;
    seen
}

fn watch(
    terminal: &mut DefaultTerminal,
    group: &str,
    duration_s: f64,
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
            if drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_EVERY) {
                drawn = Some(Instant::now());
                draw(terminal, &watch.report(seen), seen)?;
            }
            Ok(pressed.is_none() && interrupt.signal().is_none())
        })?;
        if !matches!(pressed, Some(Key::Restart)) {
            return Ok(watch.report(&collected));
        }
    }
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
