//! `slackline isolate status --live`: how it stands, in the terminal, as it goes.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::widgets::{Block, Paragraph, Sparkline, Wrap};

use super::text;
use crate::Done;

/// The controller writes its status every second.
const DRAW_EVERY: Duration = Duration::from_millis(500);
/// Seconds of the lines of latency and best-effort cores.
const HISTORY: usize = 300;
const LINE_ROWS: u16 = 5;

#[derive(Default)]
struct History {
    last_s: f64,
    latency: VecDeque<u64>,
    cores: VecDeque<u64>,
}

impl History {
    fn push(&mut self, status: &isolate_run::Status) {
        if status.at_s <= self.last_s {
            return;
        }
        self.last_s = status.at_s;
        // The worst service, in percent of its objective.
        let shares = status
            .services
            .iter()
            .filter_map(|s| s.latency_ms.map(|ms| 100.0 * ms / s.objective_ms));
        let cores: f64 = status.groups.iter().map(|group| group.cpu_cores).sum();
        for (line, value) in [
            (&mut self.latency, shares.fold(0.0, f64::max)),
            (&mut self.cores, 100.0 * cores),
        ] {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a small share"
            )]
            line.push_back(value.clamp(0.0, 1e6) as u64);
            if line.len() > HISTORY {
                line.pop_front();
            }
        }
    }
}

pub(super) fn run(state_dir: &Path) -> anyhow::Result<Done> {
    let mut terminal = ratatui::try_init().context("--live needs a terminal")?;
    let ended = watch(&mut terminal, state_dir);
    // Also after an error: nobody wants its message on a screen that goes away.
    ratatui::try_restore()?;
    ended
}

fn watch(terminal: &mut ratatui::DefaultTerminal, state_dir: &Path) -> anyhow::Result<Done> {
    let mut history = History::default();
    loop {
        let status = isolate_run::read_status(state_dir)?;
        if let Some(status) = &status {
            history.push(status);
        }
        let shown = status.as_ref().map_or_else(
            || "No slackline isolate runs with this state directory.".to_owned(),
            text::status,
        );
        terminal.draw(|frame| draw(frame, &shown, &history))?;
        if event::poll(DRAW_EVERY)?
            && let Event::Key(key) = event::read()?
        {
            let is_interrupt =
                key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
            if is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(Done::Positive);
            }
        }
    }
}

fn draw(frame: &mut Frame<'_>, shown: &str, history: &History) {
    let parts = Layout::vertical([
        Constraint::Length(LINE_ROWS),
        Constraint::Length(LINE_ROWS),
        Constraint::Min(0),
    ])
    .split(frame.area());
    let lines = [
        (" tail, percent of the objective ", &history.latency),
        (" best-effort cores, hundredths; q ends ", &history.cores),
    ];
    for ((title, values), area) in lines.into_iter().zip(parts.iter()) {
        let width = usize::from(area.width.saturating_sub(2));
        let shown: Vec<u64> = values
            .iter()
            .copied()
            .skip(values.len().saturating_sub(width))
            .collect();
        frame.render_widget(
            Sparkline::default()
                .data(&shown)
                .block(Block::bordered().title(title)),
            *area,
        );
    }
    let status = Paragraph::new(shown).wrap(Wrap { trim: false });
    frame.render_widget(status, parts[2]);
}
