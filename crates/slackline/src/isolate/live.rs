//! `slackline isolate status --live`: how it stands, in the terminal, as it goes.

use std::path::Path;

use tuner::process::Interrupt;

use super::text;
use crate::done::CommandOutcome;
use crate::live::{self, DRAW_EVERY, History, Key, LINE_ROWS, Line};

/// The lines of latency and best-effort cores, a value each second.
#[derive(Default)]
struct Seen {
    last_s: f64,
    latency: History,
    cores: History,
}

impl Seen {
    fn push(&mut self, status: &isolate_run::IsolationStatus) {
        if status.at_s <= self.last_s {
            return;
        }
        self.last_s = status.at_s;
        // The worst service, in percent of its objective.
        let shares = status
            .services
            .iter()
            .filter_map(|s| s.latency_ms.map(|ms| 100.0 * ms / s.objective_ms));
        let cores = status.groups.iter().filter_map(|group| group.cpu_cores);
        let cores: f64 = cores.sum();
        self.latency.push(shares.fold(0.0, f64::max));
        self.cores.push(100.0 * cores);
    }

    fn lines(&self) -> [Line; 2] {
        let (latency, cores) = (self.latency.values(), self.cores.values());
        let now = |values: &[u64]| values.last().copied().unwrap_or(0);
        let most = |values: &[u64]| values.iter().copied().max().unwrap_or(0);
        let in_cores = |hundredths: u64| hundredths as f64 / 100.0;
        let of_latency = format!(
            " tail of the worst service: {} % of its objective, up to {} % ",
            now(&latency),
            most(&latency),
        );
        let of_cores = format!(
            " best-effort cores in use: {:.2}, up to {:.2} · q quits ",
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
            .map_or_else(|| text::none_runs(state_dir), text::status);
        terminal.draw(|frame| live::draw(frame, &seen.lines(), LINE_ROWS, &shown))?;
        if let Some(Key::Quit) = live::key(DRAW_EVERY)? {
            return Ok(CommandOutcome::Positive);
        }
        if let Some(signal) = interrupt.signal() {
            return Ok(CommandOutcome::Signal(signal));
        }
    }
}
