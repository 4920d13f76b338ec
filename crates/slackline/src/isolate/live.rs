//! `slackline isolate status --live`: how it stands, in the terminal, as it goes.

use std::path::Path;

use isolate_run::IsolationStatus;
use ratatui::Frame;
use tuner::process::Interrupt;

use super::text;
use crate::done::CommandOutcome;
use crate::live::{self, DRAW_EVERY, History, Key, Line};

/// The lines of latency and best-effort cores, a value each second.
#[derive(Default)]
struct Seen {
    last_s: f64,
    /// Whether the latency of a service is known now.
    has_latency: bool,
    latency: History,
    cores: History,
}

impl Seen {
    fn push(&mut self, status: &IsolationStatus) {
        if status.at_s <= self.last_s {
            return;
        }
        self.last_s = status.at_s;
        // The worst service, in percent of its objective.
        let shares = status
            .services
            .iter()
            .filter_map(|s| s.latency_ms.map(|ms| 100.0 * ms / s.objective_ms));
        let worst = shares.reduce(f64::max);
        let cores = status.groups.iter().filter_map(|group| group.cpu_cores);
        let cores: f64 = cores.sum();
        self.has_latency = worst.is_some();
        self.latency.push(worst.unwrap_or(0.0));
        self.cores.push(100.0 * cores);
    }

    fn lines(&self) -> [Line; 2] {
        let (latency, cores) = (self.latency.values(), self.cores.values());
        let now = |values: &[u64]| values.last().copied().unwrap_or(0);
        let most = |values: &[u64]| values.iter().copied().max().unwrap_or(0);
        let in_cores = |hundredths: u64| hundredths as f64 / 100.0;
        let latency_now = match self.has_latency {
            true => format!("{} %", now(&latency)),
            false => "no data".to_owned(),
        };
        let of_latency = format!(
            " worst tail in % of its objective: now {latency_now}, highest {} % ",
            most(&latency),
        );
        let of_cores = format!(
            " best-effort cores in use: now {:.2}, highest {:.2} · q quits ",
            in_cores(now(&cores)),
            in_cores(most(&cores)),
        );
        [(of_latency, latency), (of_cores, cores)].map(|(title, values)| Line {
            title,
            values,
            max: None,
        })
    }
}

pub(super) fn run(state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    let interrupt = Interrupt::on_signals()?;
    live::on_screen(|terminal| watch(terminal, state_dir, &interrupt))
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    state_dir: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<CommandOutcome> {
    let mut seen = Seen::default();
    loop {
        let status = isolate_run::read_status(state_dir)?;
        if let Some(status) = &status {
            seen.push(status);
        }
        let shown = status
            .as_ref()
            .map_or_else(|| text::none_runs(state_dir), text::live_status);
        terminal.draw(|frame| draw(frame, &seen, &shown))?;
        if let Some(Key::Quit) = live::key(DRAW_EVERY)? {
            return Ok(CommandOutcome::Positive);
        }
        if let Some(signal) = interrupt.signal() {
            return Ok(CommandOutcome::Signal(signal));
        }
    }
}

fn draw(frame: &mut Frame<'_>, seen: &Seen, text: &str) {
    let rows = live::line_rows(frame.area());
    live::draw(frame, &seen.lines(), rows, text);
}

#[cfg(test)]
mod tests {
    use isolate_run::IsolationStatus;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::isolate::samples;

    fn screen(status: &IsolationStatus, height: u16) -> String {
        let mut seen = Seen::default();
        seen.push(status);
        let mut terminal = Terminal::new(TestBackend::new(80, height)).unwrap();
        let text = text::live_status(status);
        terminal.draw(|frame| draw(frame, &seen, &text)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_usual_screen_has_room_for_the_newest_decisions() {
        let mut status = samples::row(12.0, false, samples::service(10.0, 2.7));
        status.explanation = "best-effort work may use 1.85 cores together (slack)".to_owned();
        status.recent = (1..=20).map(|n| format!("{n}.0 s: a decision")).collect();
        let shown = screen(&status, 24);
        for text in ["now 27 %, highest 27 %", "20.0 s: a", "18.0 s: a", "batch"] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
        assert!(!shown.contains(" 1.0 s: a"), "{shown}");
    }

    #[test]
    fn a_tail_that_is_not_known_is_no_nought() {
        let mut status = samples::row(12.0, false, samples::service(10.0, 2.7));
        status.services[0].latency_ms = None;
        let shown = screen(&status, 40);
        assert!(shown.contains("now no data, highest 0 %"), "{shown}");
    }
}
