//! Reads a specification's text, or that of another file of configuration, and finds the line on
//! which a key stands.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use config_errors::plain;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::SpecError;

/// Longer paths of keys are not looked for: no key of a specification has one. So a text of a
/// megabyte costs no more memory than a few times its length.
const PATH_MAX_BYTES: usize = 256;
/// So many bytes of paths are kept of one text. Errors beyond them have the line of what the key
/// belongs to.
const PATHS_MAX_BYTES: usize = 8 << 20;
/// A message of the readers of JSON and TOML repeats what it read: so much of it is kept.
const MESSAGE_MAX_CHARS: usize = 600;

/// Where the keys of a text are.
#[derive(Default)]
struct Offsets {
    /// `parameters[2].low` → byte offset.
    of: HashMap<String, usize>,
    kept_bytes: usize,
}

impl Offsets {
    fn insert(&mut self, path: &str, at: usize) {
        if self.kept_bytes + path.len() <= PATHS_MAX_BYTES {
            self.kept_bytes += path.len();
            self.of.insert(path.to_owned(), at);
        }
    }
}

/// A file's text, and where its keys are.
pub struct Source {
    path: PathBuf,
    text: String,
    json: bool,
    offsets: HashMap<String, usize>,
    /// The first number that is none: its key, and what stands there.
    not_finite: Option<(String, f64)>,
}

impl Source {
    /// Reads the file: JSON where its name ends so, otherwise TOML.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        let error = |line, message| SpecError {
            file: path.to_owned(),
            line,
            key: String::new(),
            message,
        };
        let bytes = std::fs::read(path)
            .map_err(|source| error(None, format!("cannot be read: {source}")))?;
        let text = String::from_utf8(bytes).map_err(|source| {
            let good = &source.as_bytes()[..source.utf8_error().valid_up_to()];
            let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
            error(Some(line), "is not UTF-8 text".to_owned())
        })?;
        Ok(Self::new(path, text))
    }

    pub(super) fn new(path: &Path, text: String) -> Self {
        let json = path
            .extension()
            .is_some_and(|extension| extension == "json");
        let mut offsets = Offsets::default();
        let mut not_finite = None;
        if json {
            JsonKeys {
                text: text.as_bytes(),
                at: 0,
                found: &mut |key: &str, at| offsets.insert(key, at),
            }
            .value(Some(""), 0);
        } else if let Ok(table) = DeTable::parse(&text) {
            walk_table(table.get_ref(), "", &mut offsets);
            not_finite = not_finite_in(table.get_ref());
        }
        Self {
            path: path.to_owned(),
            text,
            json,
            offsets: offsets.of,
            not_finite,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What it says. Numbers are finite: JSON, in which a specification is kept, has no others.
    ///
    /// # Errors
    /// Where it is not of this form: the line, and the key if there is one.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, SpecError> {
        if self.text.trim().is_empty() {
            return Err(self.wrong(None, None, "the file is empty"));
        }
        let ending = self.path.extension().and_then(|ending| ending.to_str());
        if matches!(ending, Some("yaml" | "yml")) {
            return Err(self.wrong(
                None,
                None,
                "YAML is not read: write the specification as TOML, or as JSON in a file that ends in .json",
            ));
        }
        if self.json {
            // Else the reader takes a list for the fields in their order.
            if self.text.trim_start().starts_with('[') {
                return Err(self.wrong(Some(1), None, "it is a list, not an object"));
            }
            serde_json::from_str(&self.text).map_err(|error| {
                let at = self.offset_of(error.line(), error.column());
                let text = error.to_string();
                // The line is said before it, as of all errors.
                let said = format!(" at line {} column {}", error.line(), error.column());
                // What is missing is found at the end of its table, whose last key is not to blame.
                let is_of_key = error.is_data() && !text.starts_with("missing");
                let key = is_of_key.then(|| self.key_at(at)).flatten();
                // What is missing from the whole file has no line.
                let end = self.text.get(at..).unwrap_or_default().trim_end();
                let is_of_file = text.starts_with("missing") && end == "}";
                self.wrong(
                    (!is_of_file).then(|| error.line()),
                    key,
                    text.strip_suffix(&said).unwrap_or(&text),
                )
            })
        } else {
            let parsed = toml::from_str(&self.text).map_err(|error: toml::de::Error| {
                // What is missing from the whole file belongs to no key and no line of it.
                let is_of_file = |span: &Range<usize>| *span == (0..0);
                let is_missing = error.message().starts_with("missing");
                let span = error
                    .span()
                    .filter(|span| !(is_missing && is_of_file(span)));
                let key = span.as_ref().and_then(|span| self.key_at(span.start));
                let line = span.map(|span| self.line_of(span.start));
                self.wrong(line, key, error.message())
            })?;
            match &self.not_finite {
                Some((key, number)) => {
                    let why = format!("must be a finite number, not {number}");
                    Err(self.error(key, why))
                }
                None => Ok(parsed),
            }
        }
    }

    /// What the readers of JSON and TOML have found.
    fn wrong(&self, line: Option<usize>, key: Option<String>, message: &str) -> SpecError {
        let key = key.unwrap_or_default();
        let mut message = shortened(&plain(message));
        if line.is_none() && message == "`parameters` is missing" {
            message = self.no_parameters();
        }
        if key.starts_with("workload.parse") {
            message += PARSE_HINT;
        }
        SpecError {
            file: self.path.clone(),
            line,
            key,
            message,
        }
    }

    /// An error about `key`, on the line of the nearest enclosing key that the text has.
    #[must_use]
    pub fn error(&self, key: &str, message: impl Into<String>) -> SpecError {
        let mut prefix = key;
        let line = loop {
            if let Some(&offset) = self.offsets.get(prefix) {
                break Some(self.line_of(offset));
            }
            match prefix.rfind(['.', '[']) {
                Some(end) => prefix = &prefix[..end],
                None => break None,
            }
        };
        SpecError {
            file: self.path.clone(),
            line,
            key: key.to_owned(),
            message: message.into(),
        }
    }

    /// What is said of a specification without parameters.
    pub(super) fn no_parameters(&self) -> String {
        let list = if self.json {
            "parameters"
        } else {
            "[[parameters]]"
        };
        format!("the specification has no `{list}`: add at least one parameter")
    }

    fn line_of(&self, offset: usize) -> usize {
        let end = offset.min(self.text.len());
        1 + self.text.as_bytes()[..end]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
    }

    /// The byte at a line and column, both from 1.
    fn offset_of(&self, line: usize, column: usize) -> usize {
        let before: usize = self
            .text
            .split_inclusive('\n')
            .take(line.saturating_sub(1))
            .map(str::len)
            .sum();
        before + column.saturating_sub(1)
    }

    /// The last key that starts on the line of `offset` and not after it; where all do (the head of
    /// a table), the longest.
    fn key_at(&self, offset: usize) -> Option<String> {
        let bytes = self.text.as_bytes();
        let (before, after) = bytes.split_at(offset.min(bytes.len()));
        let is_end = |byte: &u8| *byte == b'\n';
        let from = before.iter().rposition(is_end).map_or(0, |at| at + 1);
        let to = after.iter().position(is_end);
        let to = to.map_or(bytes.len(), |at| before.len() + at);
        let on_line = || {
            self.offsets
                .iter()
                .filter(|(_, start)| (from..=to).contains(start))
        };
        let before = on_line().filter(|(_, start)| **start <= offset);
        before
            .max_by_key(|(key, start)| (**start, key.len()))
            .or_else(|| on_line().max_by_key(|(key, _)| key.len()))
            .map(|(key, _)| key.clone())
    }
}

/// What to write in place of a `parse` that there is not.
const PARSE_HINT: &str = "; what any other command prints is read by json = { requests = \"path.in.it\" } or regex = { requests = 'with a (group)' } in place of parse";

fn joined(prefix: &str, key: &str) -> Option<String> {
    short_path(match prefix.is_empty() {
        true => key.to_owned(),
        false => format!("{prefix}.{key}"),
    })
}

fn short_path(path: String) -> Option<String> {
    Some(path).filter(|path| path.len() <= PATH_MAX_BYTES)
}

fn shortened(message: &str) -> String {
    match message.char_indices().nth(MESSAGE_MAX_CHARS) {
        Some((end, _)) => format!("{} …", &message[..end]),
        None => message.to_owned(),
    }
}

fn walk_table(table: &DeTable<'_>, prefix: &str, offsets: &mut Offsets) {
    for (key, value) in table {
        if let Some(path) = joined(prefix, key.get_ref()) {
            offsets.insert(&path, key.span().start);
            walk_value(value, &path, offsets);
        }
    }
}

fn walk_value(value: &Spanned<DeValue<'_>>, path: &str, offsets: &mut Offsets) {
    match value.get_ref() {
        DeValue::Table(table) => walk_table(table, path, offsets),
        DeValue::Array(array) => {
            for (index, element) in array.iter().enumerate() {
                if let Some(path) = short_path(format!("{path}[{index}]")) {
                    offsets.insert(&path, element.span().start);
                    walk_value(element, &path, offsets);
                }
            }
        }
        _ => {}
    }
}

/// The key of the first number in a table that is infinite or no number, and the number. That of a
/// list is the list's.
fn not_finite_in(table: &DeTable<'_>) -> Option<(String, f64)> {
    table.iter().find_map(|(key, value)| {
        let (rest, number) = not_finite(value.get_ref())?;
        Some((below(key.get_ref(), &rest), number))
    })
}

fn not_finite(value: &DeValue<'_>) -> Option<(String, f64)> {
    match value {
        DeValue::Float(float) => {
            let number: f64 = float.as_str().parse().ok()?;
            (!number.is_finite()).then(|| (String::new(), number))
        }
        DeValue::Table(table) => not_finite_in(table),
        DeValue::Array(array) => array.iter().enumerate().find_map(|(index, element)| {
            let (rest, number) = not_finite(element.get_ref())?;
            let key = match rest.is_empty() {
                true => rest,
                false => below(&format!("[{index}]"), &rest),
            };
            Some((key, number))
        }),
        _ => None,
    }
}

fn below(key: &str, rest: &str) -> String {
    match rest.is_empty() || rest.starts_with('[') {
        true => format!("{key}{rest}"),
        false => format!("{key}.{rest}"),
    }
}

/// The line of a JSON text on which a key stands, such as `evaluations[2].reason`, or that of what
/// the key belongs to. However long the text is, no more than one key is kept.
#[must_use]
pub fn line_of(text: &str, key: &str) -> Option<usize> {
    let mut last = None;
    let mut keys = JsonKeys {
        text: text.as_bytes(),
        at: 0,
        found: &mut |found: &str, at| {
            let rest = key.strip_prefix(found);
            if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '['])) {
                last = Some(at);
            }
        },
    };
    keys.value(Some(""), 0);
    let before = text.as_bytes().get(..last?)?;
    Some(1 + before.iter().filter(|byte| **byte == b'\n').count())
}

/// Finds the keys of a JSON text; stops silently where the text is not JSON, since serde reports
/// that.
struct JsonKeys<'a> {
    text: &'a [u8],
    at: usize,
    /// Is told of each key and where it stands.
    found: &'a mut dyn FnMut(&str, usize),
}

impl JsonKeys<'_> {
    fn space(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    fn tell(&mut self, key: Option<&str>, at: usize) {
        if let Some(key) = key {
            (self.found)(key, at);
        }
    }

    fn string(&mut self) -> Option<String> {
        if !self.eat(b'"') {
            return None;
        }
        let start = self.at;
        while *self.text.get(self.at)? != b'"' {
            self.at += if self.text[self.at] == b'\\' { 2 } else { 1 };
        }
        let text = String::from_utf8_lossy(&self.text[start..self.at]).into_owned();
        self.at += 1;
        Some(text)
    }

    /// `None` once the text stops being JSON. Depth is bounded by serde's own limit of 128. Without
    /// a path nothing below is told of: it is too long.
    fn value(&mut self, path: Option<&str>, depth: usize) -> Option<()> {
        self.space();
        if depth > 128 {
            return None;
        }
        match *self.text.get(self.at)? {
            b'{' => {
                self.at += 1;
                while !self.eat(b'}') {
                    self.space();
                    let start = self.at;
                    let name = self.string()?;
                    let key = path.and_then(|path| joined(path, &name));
                    self.tell(key.as_deref(), start);
                    if !self.eat(b':') {
                        return None;
                    }
                    self.value(key.as_deref(), depth + 1)?;
                    self.eat(b',');
                }
            }
            b'[' => {
                self.at += 1;
                let mut index = 0_usize;
                while !self.eat(b']') {
                    self.space();
                    let key = path.and_then(|path| short_path(format!("{path}[{index}]")));
                    self.tell(key.as_deref(), self.at);
                    self.value(key.as_deref(), depth + 1)?;
                    self.eat(b',');
                    index += 1;
                }
            }
            b'"' => {
                self.string()?;
            }
            _ => {
                let start = self.at;
                while self
                    .text
                    .get(self.at)
                    .is_some_and(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
                {
                    self.at += 1;
                }
                if self.at == start {
                    return None;
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Spec;
    use super::*;

    #[test]
    fn finds_lines_in_toml_and_json() {
        let toml = "seed = 1\n[[parameters]]\nname = \"a\"\ntype = \"int\"\nlow = 3\n";
        let source = Source::new(Path::new("x.toml"), toml.into());
        assert_eq!(source.error("parameters[0].low", "m").line, Some(5));
        assert_eq!(source.error("parameters[0].high", "m").line, Some(2));
        let json =
            "{\n \"seed\": 1,\n \"parameters\": [\n  {\"name\": \"a\",\n   \"low\": 3}\n ]\n}";
        let source = Source::new(Path::new("x.json"), json.into());
        assert_eq!(source.error("parameters[0].low", "m").line, Some(5));
        assert_eq!(source.error("seed", "m").line, Some(2));
        assert_eq!(line_of(json, "parameters[0].low"), Some(5));
        assert_eq!(line_of(json, "parameters[0].high"), Some(4));
        assert_eq!(line_of(json, "other"), None);
    }

    /// A reader of `serve` may have any text checked.
    #[test]
    fn a_hostile_text_costs_neither_memory_nor_time() {
        let long_key = "k".repeat(200_000);
        let many = "[],".repeat(100_000);
        let lines: String = (0..50_000).map(|n| format!("k{n} = 1\n")).collect();
        let texts = [
            ("x.toml", format!("{long_key} = [{}]", "1,".repeat(100_000))),
            ("x.toml", format!("a = [\n{many}]")),
            ("x.toml", lines),
            (
                "x.json",
                format!("{{\"{long_key}\": [{}1]}}", "1,".repeat(100_000)),
            ),
            ("x.json", format!("{{\"a\": [\n{many}[]]}}")),
        ];
        let begun = std::time::Instant::now();
        for (name, text) in texts {
            let source = Source::new(Path::new(name), text);
            let kept: usize = source.offsets.keys().map(String::len).sum();
            assert!(kept <= PATHS_MAX_BYTES, "{name}: {kept}");
            let error = source.parse::<Spec>().unwrap_err();
            assert!(error.to_string().len() < 5000, "{name}");
        }
        // Each took minutes, or gigabytes.
        assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let source = Source::new(
            Path::new("x.toml"),
            "seed = 1\nparameters = []\nsede = 2\n".into(),
        );
        let error = source.parse::<Spec>().unwrap_err();
        assert_eq!(error.line, Some(3));
        assert!(error.to_string().contains("sede"), "{error}");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in ".{0,200}", json in proptest::bool::ANY) {
            let source = Source::new(Path::new(if json { "x.json" } else { "x.toml" }), text);
            let _ = source.parse::<Spec>();
            let _ = source.error("parameters[0].low", "m");
        }
    }
}
