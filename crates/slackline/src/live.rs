//! A view in the terminal that is drawn again and again: what all commands with `--live` share.

use std::collections::VecDeque;
use std::fs::File;
use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::prelude::CrosstermBackend;
use ratatui::style::Style;
use ratatui::widgets::{Block, Paragraph, Sparkline, Wrap};
use ratatui::{DefaultTerminal, Frame, Terminal, TerminalOptions, Viewport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How often a view is drawn.
pub(crate) const DRAW_EVERY: Duration = Duration::from_millis(500);
/// Rows of a line with its frame.
pub(crate) const LINE_ROWS: u16 = 5;
/// Rows of a line with its frame on a small screen.
const LOW_LINE_ROWS: u16 = 3;
/// A screen with fewer rows is small.
const SMALL_ROWS: u16 = 30;
/// The screen of a terminal that does not know its size, such as a serial console.
const UNKNOWN_SIZE: Rect = Rect {
    x: 0,
    y: 0,
    width: 80,
    height: 24,
};
/// The last row of a text that does not fit.
const CUT: &str = "More does not fit here: make the terminal larger, or leave out --live";
/// Values that a line remembers: more than a screen is wide.
const HISTORY: usize = 300;

/// Keys that mean something.
pub(crate) enum Key {
    Restart,
    Quit,
}

/// Runs `watch` on the whole screen, and gives the screen back afterwards.
pub(crate) fn on_screen<T>(
    watch: impl FnOnce(&mut DefaultTerminal) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut terminal = ratatui::try_init().context("--live needs a terminal")?;
    let seen = match has_no_size(&terminal) {
        true => with_unknown_size().and_then(|mut terminal| watch(&mut terminal)),
        false => watch(&mut terminal),
    };
    // Also after an error: nobody wants its message on a screen that goes away.
    ratatui::try_restore()?;
    seen
}

fn has_no_size(terminal: &DefaultTerminal) -> bool {
    terminal
        .size()
        .is_ok_and(|size| size.width == 0 || size.height == 0)
}

fn with_unknown_size() -> anyhow::Result<DefaultTerminal> {
    let viewport = Viewport::Fixed(UNKNOWN_SIZE);
    let backend = CrosstermBackend::new(std::io::stdout());
    Ok(Terminal::with_options(
        backend,
        TerminalOptions { viewport },
    )?)
}

/// Rows of a line on this screen: a small one leaves more of them to the text.
pub(crate) fn line_rows(screen: Rect) -> u16 {
    match screen.height < SMALL_ROWS {
        true => LOW_LINE_ROWS,
        false => LINE_ROWS,
    }
}

/// Whether the terminal has input within `wait`. crossterm's own wait would go on for ever, at full
/// speed, once the terminal is gone.
fn has_input(wait: Duration) -> anyhow::Result<bool> {
    // As crossterm chooses.
    let stdin = std::io::stdin();
    let other = match stdin.is_terminal() {
        true => None,
        false => Some(File::open("/dev/tty").context("/dev/tty")?),
    };
    let terminal = other.as_ref().map_or(stdin.as_fd(), File::as_fd);
    let timeout = Timespec::try_from(wait)?;
    let mut watched = [PollFd::new(&terminal, PollFlags::IN)];
    match poll(&mut watched, Some(&timeout)) {
        // A signal: the view looks which one.
        Err(Errno::INTR) => return Ok(false),
        polled => polled?,
    };
    let seen = watched[0].revents();
    let is_gone = seen.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
    anyhow::ensure!(!is_gone, "the terminal is gone");
    Ok(seen.contains(PollFlags::IN))
}

/// The next key that means something, if one is pressed within `wait`.
pub(crate) fn key(wait: Duration) -> anyhow::Result<Option<Key>> {
    let end = Instant::now() + wait;
    while has_input(end.saturating_duration_since(Instant::now()))? {
        // Half a key is none yet.
        if !event::poll(Duration::ZERO)? {
            continue;
        }
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

/// A figure as a line draws it: lines draw whole numbers.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value.round().clamp(0.0, 1e12) as u64
}

/// The last values of a figure.
#[derive(Default)]
pub(crate) struct History(VecDeque<u64>);

impl History {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push_back(whole(value));
        if self.0.len() > HISTORY {
            self.0.pop_front();
        }
    }

    pub(crate) fn values(&self) -> Vec<u64> {
        self.0.iter().copied().collect()
    }
}

/// A line with a frame.
pub(crate) struct Line {
    pub(crate) title: String,
    /// The newest value last. The values that fit are drawn.
    pub(crate) values: Vec<u64>,
    /// The value at the upper edge; `None`: the largest one.
    pub(crate) max: Option<u64>,
}

/// How many values a line of this area shows.
pub(crate) fn shown(area: Rect) -> usize {
    usize::from(area.width.saturating_sub(2))
}

/// Draws lines of `rows` rows each, and a text below them.
pub(crate) fn draw(frame: &mut Frame<'_>, lines: &[Line], rows: u16, text: &str) {
    let above = lines.iter().map(|_| Constraint::Length(rows));
    let areas = Layout::vertical(above.chain([Constraint::Min(0)])).split(frame.area());
    for (line, area) in lines.iter().zip(areas.iter()) {
        let first = line.values.len().saturating_sub(shown(*area));
        let mut sparkline = Sparkline::default()
            .block(Block::bordered().title(line.title.as_str()))
            .data(&line.values[first..])
            .style(Style::new().cyan());
        if let Some(max) = line.max {
            sparkline = sparkline.max(max);
        }
        frame.render_widget(sparkline, *area);
    }
    let Some(rest) = areas.last() else { return };
    let is_cut = rows_of(text, rest.width) > usize::from(rest.height);
    let last = u16::from(is_cut);
    let [shown, more] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(last)]).areas(*rest);
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), shown);
    frame.render_widget(Paragraph::new(CUT).style(Style::new().reversed()), more);
}

/// Rows that a text needs at least.
fn rows_of(text: &str, width: u16) -> usize {
    let width = usize::from(width.max(1));
    let rows = text
        .lines()
        .map(|line| line.chars().count().div_ceil(width).max(1));
    rows.sum()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    #[test]
    fn a_text_that_does_not_fit_says_so() {
        let screen = |text: &str| {
            let mut terminal = Terminal::new(TestBackend::new(80, 8)).unwrap();
            let line = Line {
                title: "line".to_owned(),
                values: vec![1],
                max: None,
            };
            terminal
                .draw(|frame| draw(frame, &[line], LINE_ROWS, text))
                .unwrap();
            terminal.backend().to_string()
        };
        let fits = screen("one\ntwo\nthree\n");
        assert!(fits.contains("three") && !fits.contains(CUT), "{fits}");
        for more in ["one\ntwo\nthree\nfour\n", &"x".repeat(241)] {
            let cut = screen(more);
            assert!(cut.contains(CUT), "{cut}");
        }
        let cut = screen("one\ntwo\nthree\nfour\n");
        assert!(cut.contains("two") && !cut.contains("three"), "{cut}");
    }
}
