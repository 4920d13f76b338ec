//! Where secrets stand in the words of a command, or in a text: settings (`--password=x`,
//! `DB_PASSWORD=x`), headers, fields of JSON, options of known programs (`mysql -px`), and logins
//! (`user:password@host`). `blocks` has those of several lines, `blank` those that only a blank
//! stands before.
//!
//! A script of a shell is read word by word, with its quotes. What cannot be told apart is masked
//! too far rather than too little: a masked text is read by people, and never run.

mod blank;
mod blocks;
mod programs;
mod shell;
mod words;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use http_client::is_secret_name;
use regex::Regex;

use blank::{Name, Place};
use programs::{Program, Secret};
use shell::Shell;

/// `scheme://user:password@host`.
static ADDRESS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"://[^\s:/@]*:([^\s@]+)@").ok());

/// A name, the quote and the bracket that close it, and what stands between it and its value. Input
/// methods of East Asia write the signs in full width.
static SETTING: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r#"([A-Za-z0-9_.-]+)(\\*["'])?\]?([ \t]*)(:=|=>|\+=|[=:＝：])([ \t]*)"#).ok()
});

/// The last word of a line, a sign, and the next line that has one word.
static AT_LINE_END: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"([A-Za-z0-9_.-]+)[ \t]*([=:＝：]|\bis)?[ \t]*\r?\n\s*(\S+)[ \t]*(?:\r?\n|$)").ok()
});

/// `user:password@host` without a scheme.
static LOGIN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r#"(?:^|[\s"'=(,])([^\s:/@"'=(,]+):([^\s@/"'][^\s@"']*)@[\w\[]"#).ok()
});

/// Texts in quotes within texts in quotes: nobody writes more.
const DEPTH_MAX: usize = 4;

/// Reads the words of one command, in their order.
#[derive(Default)]
pub struct Words {
    /// The program whose options these are, as far as it is in the list.
    program: Option<&'static Program>,
    /// What the next word is.
    next: Next,
    /// Where it stands.
    place: Place,
}

/// What the next word of a command is, by those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    /// Nothing is known of it.
    #[default]
    Unknown,
    /// A secret.
    Secret,
    /// A secret, unless it is an option: then the one behind it.
    Argument,
    /// A secret if it may be the value of such a name.
    ValueOf(Name),
    /// The credentials of a header, unless it is an option.
    OfScheme,
    /// What `printf -v` puts into the variable of a secret, unless it is a format.
    Printed,
}

impl Words {
    /// The words of a line of a script.
    fn of_line() -> Self {
        Self {
            place: Place::First,
            ..Self::default()
        }
    }

    /// The secrets in the next word of a list, which may be a whole script.
    pub fn next(&mut self, word: &str) -> Vec<Range<usize>> {
        let is_script = word.contains(char::is_whitespace);
        if is_script && self.next == Next::Unknown {
            // Its commands are not this one.
            self.place = Place::Elsewhere;
            return in_text(word);
        }
        let mut found = self.word(word, 0, DEPTH_MAX);
        if is_script {
            found.extend(in_text(word));
        } else {
            found.extend(settings(word));
            found.extend(logins(word));
            found.extend(blocks::elements(word));
        }
        tidy(found)
    }

    /// The secrets in a word, which stands that far behind the beginning of its text. Texts in
    /// quotes are read so deep.
    fn word(&mut self, raw: &str, offset: usize, depth: usize) -> Vec<Range<usize>> {
        let (start, word) = inside_quotes(raw);
        let whole = offset + start..offset + start + word.len();
        let place = self.place;
        self.place = place.next(word);
        let next = std::mem::take(&mut self.next);
        let is_value = match next {
            Next::Unknown => false,
            Next::Secret => true,
            Next::ValueOf(name) => name.has(raw, word),
            Next::Argument | Next::OfScheme => !word.starts_with('-'),
            Next::Printed => !word.contains('%'),
        };
        if next == Next::Printed || next == Next::Argument && !is_value {
            self.next = next;
        } else if is_value && matches!(next, Next::ValueOf(_)) && blank::is_scheme(word) {
            self.next = Next::OfScheme;
        }
        if is_value {
            return std::iter::once(whole).collect();
        }
        if let Some(name) = Name::of(word, place) {
            self.next = Next::ValueOf(name);
        } else if place == Place::OfPrintfV && is_secret_name(word) {
            self.next = Next::Printed;
        }
        match self.program.and_then(|it| it.secret_of(word)) {
            Some(Secret::Attached(length)) => {
                return std::iter::once(whole.end - length..whole.end).collect();
            }
            Some(Secret::Next) => self.next = Next::Secret,
            Some(Secret::Argument) => self.next = Next::Argument,
            None => {}
        }
        // `my""sql` is `mysql`, and so is `$(which mysql)`.
        let plain = match word.contains(['"', '\'', '\\']) {
            true => Cow::Owned(word.replace(['"', '\'', '\\'], "")),
            false => Cow::Borrowed(word),
        };
        let name = plain.trim_end_matches([')', '`']);
        let name = name.rsplit(['/', ' ']).next().unwrap_or(name);
        let is_name = word.starts_with(['$', '`']) || !word.contains(char::is_whitespace);
        if is_name && let Some(program) = programs::named(name) {
            self.program = Some(program);
        }
        if word.contains(char::is_whitespace) {
            return in_parts(word, whole.start, start > 0, depth);
        }
        let is_option = word.starts_with('-') && !word.contains(['=', ':']);
        if is_option && is_secret_name(word) {
            self.next = Next::Secret;
        }
        Vec::new()
    }
}

/// The secrets in a word of several: a text in quotes, or, of `--run="a b"` and `x=$(a b)`, what is
/// in quotes and substitutions.
fn in_parts(word: &str, offset: usize, is_quoted: bool, depth: usize) -> Vec<Range<usize>> {
    let parts = match is_quoted {
        true => std::iter::once(0..word.len()).collect(),
        false => shell::parts(word),
    };
    let secrets = parts.into_iter().flat_map(|part| {
        let from = offset + part.start;
        let found = match depth.checked_sub(1) {
            Some(depth) => in_commands(&word[part], depth),
            // Too deep to be read.
            None => std::iter::once(0..part.len()).collect(),
        };
        found
            .into_iter()
            .map(move |it| it.start + from..it.end + from)
    });
    secrets.collect()
}

/// The secrets in a text: a script, a header, JSON, YAML, XML.
pub fn in_text(text: &str) -> Vec<Range<usize>> {
    let mut found = in_commands(text, DEPTH_MAX);
    found.extend(settings(text));
    found.extend(logins(text));
    found.extend(blank::in_statements(text));
    found.extend(blocks::private_keys(text));
    found.extend(blocks::elements(text));
    found.extend(blocks::in_comments(text));
    let mut from = 0;
    for (start, is_element) in blocks::pairs(text) {
        if start < from {
            continue;
        }
        let value = match is_element {
            true => {
                start
                    ..text[start..]
                        .find('<')
                        .map_or(text.len(), |end| start + end)
            }
            false => value(text, None, start, true),
        };
        from = value.end;
        found.push(value);
    }
    tidy(found)
}

/// The secrets of a text that may be longer than a line: private keys and blocks of YAML.
pub fn of_blocks(text: &str) -> Vec<Range<usize>> {
    let mut found = blocks::private_keys(text);
    let mut from = 0;
    let names = SETTING.iter().flat_map(|shape| shape.captures_iter(text));
    for groups in names {
        let (Some(whole), Some(name)) = (groups.get(0), groups.get(1)) else {
            continue;
        };
        let is_colon = groups.get(4).is_some_and(|it| it.as_str() == ":");
        let is_field = groups.get(2).is_some();
        let is_free = is_colon && name.start() >= from;
        if is_free
            && is_secret_name(name.as_str())
            && let Some(lines) = blocks::of_yaml(text, name.start(), whole.end(), is_field)
        {
            from = lines.end;
            found.push(lines);
        }
    }
    found
}

/// The secrets that a text for people tells in plain words.
pub fn in_prose(text: &str) -> Vec<Range<usize>> {
    let mut found = blocks::in_lines(text, false, |_| Some(0));
    // The name ends a line, and the secret is all of the next one. That line can itself end in a
    // name, so the search goes on behind the first name.
    let mut from = 0;
    let next = |from| AT_LINE_END.as_ref()?.captures_at(text, from);
    while let Some(groups) = next(from) {
        let (Some(name), Some(word)) = (groups.get(1), groups.get(3)) else {
            break;
        };
        from = name.end();
        let is_told = groups.get(2).is_some() || words::looks_secret(word.as_str());
        if is_told && is_secret_name(name.as_str()) && !words::is_plain_word(word.as_str()) {
            found.push(word.range());
        }
    }
    found
}

/// The secrets in the options of commands, and in what they are given to read.
fn in_commands(text: &str, depth: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut words = Words::of_line();
    let mut input = Input::default();
    for word in shell::words(text) {
        if word.begins_command {
            words = Words::of_line();
            found.extend(input.next_command(word.is_piped));
        }
        input.push(&word);
        found.extend(words.word(word.raw, word.start, depth));
    }
    found.extend(input.next_command(false));
    found
}

/// What a command reads: a here-string (`<<< x`), or what the one before it in a pipe prints.
#[derive(Default)]
struct Input {
    count: usize,
    /// What it prints itself, where it is `echo` or `printf`.
    prints: Option<Vec<Range<usize>>>,
    /// What is printed into it.
    piped: Vec<Range<usize>>,
    here: Vec<Range<usize>>,
    /// It reads a secret into a variable, or names one.
    names_secret: bool,
    /// It takes a password from its standard input.
    takes_password: bool,
}

impl Input {
    fn push(&mut self, word: &shell::Word<'_>) {
        let (start, text) = inside_quotes(word.raw);
        let whole = word.start + start..word.start + start + text.len();
        self.count += 1;
        let is_first = self.count == 1;
        if word.is_here {
            self.here
                .extend((!blank::is_reference(text)).then_some(whole));
            return;
        }
        let is_option = text.starts_with('-');
        let is_secret = !text.contains(char::is_whitespace) && is_secret_name(text);
        self.names_secret |= is_secret;
        self.takes_password |= is_secret && (is_first || is_option && text.contains("stdin"));
        if is_first {
            self.prints = matches!(text, "echo" | "printf").then(Vec::new);
        } else if !is_option && !text.contains('%') && !blank::is_reference(text) {
            self.prints.iter_mut().for_each(|it| it.push(whole.clone()));
        }
    }

    /// The secrets that the command reads, which ends here. The next one may read what it prints.
    fn next_command(&mut self, is_piped: bool) -> Vec<Range<usize>> {
        let ended = std::mem::take(self);
        if is_piped {
            self.piped = ended.prints.unwrap_or_default();
        }
        let mut found = Vec::new();
        if ended.names_secret {
            found.extend(ended.here);
        }
        if ended.takes_password {
            found.extend(ended.piped);
        }
        found
    }
}

/// In order, without those that lie in another one.
pub fn tidy(mut found: Vec<Range<usize>>) -> Vec<Range<usize>> {
    found.retain(|it| !it.is_empty());
    found.sort_by_key(|it| (it.start, std::cmp::Reverse(it.end)));
    let mut tidy: Vec<Range<usize>> = Vec::new();
    for it in found {
        match tidy.last_mut() {
            Some(last) if it.start < last.end => last.end = last.end.max(it.end),
            _ => tidy.push(it),
        }
    }
    tidy
}

/// A text with these parts, which are in order, replaced.
pub fn masked(text: &str, spans: &[Range<usize>]) -> String {
    let spans = spans.iter().map(|span| (span.clone(), http_client::MASK));
    replaced(text, spans)
}

/// A text with parts replaced that are in order.
pub fn replaced(
    text: &str,
    parts: impl Iterator<Item = (Range<usize>, impl AsRef<str>)>,
) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut at = 0;
    for (part, instead) in parts {
        shown.push_str(text.get(at..part.start).unwrap_or_default());
        shown.push_str(instead.as_ref());
        at = part.end.max(at);
    }
    shown.push_str(&text[at..]);
    shown
}

/// A word without the quotes around it, and where that begins.
fn inside_quotes(raw: &str) -> (usize, &str) {
    match raw.chars().next().filter(|it| matches!(it, '"' | '\'')) {
        Some(quote) => (1, raw[1..].strip_suffix(quote).unwrap_or(&raw[1..])),
        None => (0, raw),
    }
}

/// The values of settings, headers and fields whose name looks secret.
fn settings(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = 0;
    let mut quotes = Quotes::default();
    let Some(shape) = SETTING.as_ref() else {
        return found;
    };
    while let Some(groups) = shape.captures_at(text, from) {
        let (Some(whole), Some(name)) = (groups.get(0), groups.get(1)) else {
            break;
        };
        from = whole.end().max(from + 1);
        if !is_secret_name(name.as_str()) {
            continue;
        }
        let rest = &text[whole.end()..];
        let is_colon = groups
            .get(4)
            .is_some_and(|it| [":", "："].contains(&it.as_str()));
        let is_spaced = groups.get(5).is_some_and(|it| !it.is_empty());
        let is_field = groups.get(2).is_some();
        // A host and its port are no setting, nor is a scheme.
        let is_port =
            name.as_str().contains('.') && rest.starts_with(|it: char| it.is_ascii_digit());
        let is_address = is_colon && !is_spaced && (rest.starts_with("//") || is_port);
        if is_address || rest.is_empty() {
            continue;
        }
        let open = quotes.open_at(text, name.start());
        let value = if is_colon
            && let Some(lines) = blocks::of_yaml(text, name.start(), whole.end(), is_field)
        {
            lines
        } else if is_colon && is_spaced && !is_field && !starts_quoted(rest) {
            header_value(text, open, whole.end())
        } else {
            value(text, open, whole.end(), is_field)
        };
        from = value.end.max(from);
        found.push(value);
    }
    found
}

fn starts_quoted(rest: &str) -> bool {
    rest.trim_start_matches('\\').starts_with(['"', '\''])
}

/// A header's value goes to the end of its quote, or of its line.
fn header_value(text: &str, open: Option<char>, start: usize) -> Range<usize> {
    let ends = |it: char| it == '\n' || open == Some(it);
    let end = text[start..].find(ends);
    start..end.map_or(text.len(), |at| start + at)
}

/// The value that begins there, in a text of which that quote is open. A field of JSON may have it
/// on the next line.
fn value(text: &str, open: Option<char>, start: usize, is_field: bool) -> Range<usize> {
    let rest = &text[start..];
    let space = if is_field {
        rest.len() - rest.trim_start().len()
    } else {
        0
    };
    let (start, rest) = (start + space, &rest[space..]);
    let escapes = rest.len() - rest.trim_start_matches('\\').len();
    if starts_quoted(rest) {
        let quote = &rest[..=escapes];
        let inner = start + quote.len();
        if is_field || escapes > 0 {
            return inner..closing(text, inner, quote);
        }
        let end = closing_of_shell(text, inner, quote);
        let behind = text.get(end + 1..).and_then(|it| it.chars().next());
        // A word goes on behind its quotes: `'it'\''s'`.
        let goes_on = behind.is_some_and(|it| {
            open != Some(it) && (it.is_alphanumeric() || matches!(it, '\\' | '"' | '\'' | '$'))
        });
        return inner..if goes_on {
            end_of_word(text, open, end + 1)
        } else {
            end
        };
    }
    if is_field && rest.starts_with(['{', '[']) {
        return start..start + nested(rest);
    }
    if !is_field {
        return start..end_of_word(text, open, start);
    }
    let mut is_escaped = false;
    let end = rest.char_indices().find(|(_, it)| {
        let ends = match it {
            ',' | '}' | ']' => true,
            '"' | '\'' => open == Some(*it),
            it => it.is_whitespace(),
        };
        let is_end = ends && !is_escaped;
        is_escaped = *it == '\\' && !is_escaped;
        is_end
    });
    start..end.map_or(text.len(), |(at, _)| start + at)
}

/// Where a word of a shell ends that begins there: at a space, the end of the line, or the quote
/// that is open around it.
fn end_of_word(text: &str, open: Option<char>, start: usize) -> usize {
    let mut shell = Shell::default();
    for (at, it) in text[start..].char_indices() {
        let is_end = it.is_whitespace() || open == Some(it);
        if is_end && shell.is_outside() || it == '\n' && !shell.is_in_substitution() {
            return start + at;
        }
        shell.step(it);
    }
    text.len()
}

/// Where a text of a shell ends that begins behind a quote.
fn closing_of_shell(text: &str, start: usize, quote: &str) -> usize {
    let mut shell = Shell::within(if quote == "'" { '\'' } else { '"' });
    for (at, it) in text[start..].char_indices() {
        shell.step(it);
        if shell.is_outside() {
            return start + at;
        }
    }
    text.len()
}

/// Where a quoted text ends that begins there: a backslash before the quote makes it a part of the
/// text.
fn closing(text: &str, start: usize, quote: &str) -> usize {
    let mut from = start;
    while let Some(at) = text[from..].find(quote) {
        let at = from + at;
        let escapes = text[start..at]
            .bytes()
            .rev()
            .take_while(|it| *it == b'\\')
            .count();
        if escapes % 2 == 0 {
            return at;
        }
        from = at + quote.len();
    }
    text.len()
}

/// The length of the braces at the beginning of a text, with all that is in them.
fn nested(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, it) in text.char_indices() {
        match it {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + it.len_utf8();
        }
    }
    text.len()
}

/// Follows the quotes of a text.
#[derive(Default)]
struct Quotes {
    at: usize,
    open: Option<char>,
    is_escaped: bool,
}

impl Quotes {
    /// The quote that is open at a place, which is behind the last one asked of.
    fn open_at(&mut self, text: &str, place: usize) -> Option<char> {
        for it in text.get(self.at..place).unwrap_or_default().chars() {
            match (self.open, it) {
                _ if self.is_escaped => self.is_escaped = false,
                (_, '\\') => self.is_escaped = true,
                (None, '"' | '\'') => self.open = Some(it),
                (Some(quote), it) if quote == it => self.open = None,
                _ => {}
            }
        }
        self.at = self.at.max(place);
        self.open
    }
}

/// The passwords of addresses, for whoever looks for them in another text.
pub fn of_addresses(text: &str) -> impl Iterator<Item = &str> {
    let found = ADDRESS
        .iter()
        .flat_map(move |shape| shape.captures_iter(text));
    found.filter_map(|groups| groups.get(1).map(|it| it.as_str()))
}

/// The passwords of logins without a scheme. (Those of addresses are masked by
/// `http_client::redact`.)
fn logins(text: &str) -> Vec<Range<usize>> {
    let found = LOGIN.iter().flat_map(|shape| shape.captures_iter(text));
    found
        .filter_map(|groups| groups.get(2).map(|it| it.range()))
        .collect()
}

#[cfg(test)]
mod tests;
