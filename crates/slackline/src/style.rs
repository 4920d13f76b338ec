//! Colours on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).

use std::io::IsTerminal as _;

/// What a colour says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// As wished.
    Good,
    /// Not as wished.
    Warning,
    /// Wrong.
    Bad,
    /// Of no weight.
    Quiet,
}

impl Colour {
    fn ansi(self) -> u8 {
        match self {
            Self::Good => 32,
            Self::Warning => 33,
            Self::Bad => 31,
            Self::Quiet => 90,
        }
    }
}

/// Whether what is printed may have colours.
fn has_colours(is_terminal: bool) -> bool {
    let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    is_terminal && !wants_none && !is_dumb
}

/// Text for standard output.
pub(crate) fn paint(text: &str, colour: Colour) -> String {
    painted(text, colour, std::io::stdout().is_terminal())
}

/// Text for standard error.
pub(crate) fn paint_message(text: &str, colour: Colour) -> String {
    painted(text, colour, std::io::stderr().is_terminal())
}

fn painted(text: &str, colour: Colour, is_terminal: bool) -> String {
    match has_colours(is_terminal) {
        true => format!("\u{1b}[{}m{text}\u{1b}[0m", colour.ansi()),
        false => text.to_owned(),
    }
}

/// A cell of a table on standard output.
pub(crate) fn cell(text: String, colour: Colour) -> comfy_table::Cell {
    let cell = comfy_table::Cell::new(text);
    if !has_colours(std::io::stdout().is_terminal()) {
        return cell;
    }
    cell.fg(match colour {
        Colour::Good => comfy_table::Color::Green,
        Colour::Warning => comfy_table::Color::Yellow,
        Colour::Bad => comfy_table::Color::Red,
        Colour::Quiet => comfy_table::Color::DarkGrey,
    })
}
