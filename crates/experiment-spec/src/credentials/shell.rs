//! Texts of a shell, followed character by character: quotes, backslashes, and commands whose
//! output is put in place (`$(…)`, `<(…)` and backticks).

use std::ops::Range;

/// What is open at the present place of a text.
#[derive(Default)]
pub(super) struct Shell {
    quote: Option<char>,
    is_escaped: bool,
    /// The last character was `$`, or `<` or `>` outside quotes: with `(` it begins a substitution.
    is_behind_sign: bool,
    /// The character that closes each substitution, and the quote that it stands in.
    open: Vec<(char, Option<char>)>,
}

impl Shell {
    /// A text that begins behind that quote.
    pub(super) fn within(quote: char) -> Self {
        Self {
            quote: Some(quote),
            ..Self::default()
        }
    }

    /// Nothing is open: a space ends a word here.
    pub(super) fn is_outside(&self) -> bool {
        self.quote.is_none() && !self.is_escaped && self.open.is_empty()
    }

    /// A substitution is open, which may go on in the next line.
    pub(super) fn is_in_substitution(&self) -> bool {
        !self.open.is_empty()
    }

    /// The character, read next, begins a substitution.
    fn opens(&self, it: char) -> bool {
        let is_ticks = it == '`' && self.open.last().is_none_or(|(closes, _)| *closes != '`');
        let is_read = !self.is_escaped && self.quote != Some('\'');
        is_read && (is_ticks || it == '(' && self.is_behind_sign)
    }

    /// Reads a character.
    pub(super) fn step(&mut self, it: char) {
        let is_special = matches!(it, '\\' | '"' | '\'' | '`' | '(' | ')' | '$' | '<' | '>');
        if !is_special && !self.is_escaped {
            self.is_behind_sign = false;
            return;
        }
        let opens = self.opens(it);
        let is_sign = match it {
            '$' => self.quote != Some('\''),
            '<' | '>' => self.quote.is_none(),
            _ => false,
        };
        self.is_behind_sign = is_sign && !self.is_escaped;
        if std::mem::take(&mut self.is_escaped) {
            return;
        }
        let closes = self.open.last().map(|(closes, _)| *closes);
        match (self.quote, it) {
            (None | Some('"'), '\\') => self.is_escaped = true,
            _ if opens => {
                let closes = if it == '(' { ')' } else { it };
                self.open.push((closes, self.quote.take()));
            }
            // Parentheses within a substitution end with it.
            (None, '(') if closes == Some(')') => self.open.push((')', None)),
            (None, it) if closes == Some(it) => {
                self.quote = self.open.pop().and_then(|(_, quote)| quote);
            }
            (None, '"' | '\'') => self.quote = Some(it),
            (Some(open), it) if open == it => self.quote = None,
            _ => {}
        }
    }
}

/// What is in quotes or in a substitution of a word, without these.
pub(super) fn parts(word: &str) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut shell = Shell::default();
    let mut begun: Option<usize> = None;
    for (at, it) in word.char_indices() {
        shell.step(it);
        match begun {
            None if !shell.is_outside() => begun = Some(at + it.len_utf8()),
            Some(start) if shell.is_outside() => {
                parts.push(start..at);
                begun = None;
            }
            _ => {}
        }
    }
    parts.extend(begun.map(|start| start..word.len()));
    parts
}

/// A word of a script.
pub(super) struct Word<'a> {
    /// Where it begins.
    pub(super) start: usize,
    /// As it is written, with its quotes.
    pub(super) raw: &'a str,
    /// It is the first one of a command.
    pub(super) begins_command: bool,
    /// It is the first one of a command that reads what the one before it prints.
    pub(super) is_piped: bool,
    /// It is a text for the command to read: `<<< word`.
    pub(super) is_here: bool,
}

/// The words of a script. A substitution belongs to the word that it stands in.
pub(super) fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut begun: Option<usize> = None;
    // What stands between two words, without blanks: `|`, `<<<`.
    let mut between = String::from("\n");
    let mut shell = Shell::default();
    let mut all = text.char_indices().peekable();
    while let Some((at, it)) = all.next() {
        let ends_command = matches!(it, ';' | '|' | '&' | '\n' | '(' | ')');
        let begins_process =
            matches!(it, '<' | '>') && all.peek().is_some_and(|(_, next)| *next == '(');
        let is_end = ends_command || it.is_whitespace() || matches!(it, '<' | '>');
        if is_end && !begins_process && shell.is_outside() && !shell.opens(it) {
            if let Some(start) = begun.take() {
                words.push(Word::new(start, &text[start..at], &between));
                between.clear();
            }
            if it == '\n' || !it.is_whitespace() {
                between.push(it);
            }
        } else {
            begun.get_or_insert(at);
        }
        shell.step(it);
    }
    if let Some(start) = begun {
        words.push(Word::new(start, &text[start..], &between));
    }
    words
}

impl<'a> Word<'a> {
    /// A word, which these signs separate from the one before it.
    fn new(start: usize, raw: &'a str, between: &str) -> Self {
        Self {
            start,
            raw,
            begins_command: between.contains([';', '|', '&', '\n', '(', ')']),
            is_piped: matches!(between, "|" | "|&" | "|\n"),
            is_here: between == "<<<",
        }
    }
}
