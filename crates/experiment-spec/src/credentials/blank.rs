//! Secrets that a blank alone stands before: settings of servers (`requirepass x`), variables
//! (`setenv NAME x`, `printf -v NAME %s x`), headers (`SetEnv`, `proxy_set_header`), SQL
//! (`PASSWORD 'x'`, `IDENTIFIED BY 'x'`) and `.netrc`. Names are ordinary words too, so it counts
//! where a name stands and what follows it.

use std::ops::Range;
use std::sync::LazyLock;

use http_client::is_secret_name;
use regex::Regex;

use super::words::{is_plain_word, looks_secret};

/// A name, and the quote that opens its value: behind a blank, in brackets as of a function, or as
/// a statement of SQL has it (`password FOR me = 'x'`). `E'x'` and `N'x'` are texts of SQL as well.
static QUOTED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    const BETWEEN: &str = r"(?:[ \t]+|[ \t]*\([ \t]*|[ \t]+(?i:for)[ \t]+\S+[ \t]*=[ \t]*)";
    let text = format!(r#"([A-Za-z0-9_.-]+){BETWEEN}(?:[EeNn]|[Uu]&)?(\\*["'][\\"']*|\$\w*\$)"#);
    Regex::new(&text).ok()
});

/// The password of a user of a database, in quotes or not.
static IDENTIFIED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    const WITH: &str = r"(?:with[ \t]+\S+[ \t]+)?(?:by|as|using)[ \t]+(?:password[ \t]+)?";
    let quote = r#"\\*["'][\\"']*"#;
    Regex::new(&format!(
        r#"((?i:identified))[ \t]+(?i:{WITH})(?:({quote})|([^\s;"'\\]+))"#
    ))
    .ok()
});

/// A line of `.netrc`.
static NETRC: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"\blogin\s+\S+\s+password\s+(\S+)").ok());

/// Words that say how a header's credentials are written. The credentials follow.
const SCHEMES: [&str; 6] = ["apikey", "basic", "bearer", "digest", "negotiate", "token"];

/// Programs and commands whose names look like those of secrets.
const PROGRAMS: [&str; 9] = [
    "auth",
    "chpasswd",
    "gpasswd",
    "htpasswd",
    "pass",
    "passwd",
    "pwd",
    "salt",
    "wpa_passphrase",
];

/// Words of commands and settings that give a value to what is named next. (`ENV` is Docker's.)
const SETTERS: [&str; 5] = ["ENV", "add_header", "config", "put", "setx"];

/// Where a word stands in its command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// It is the first one of a line.
    First,
    /// The word before it says that something is set.
    BehindSetter,
    /// Among the options of `printf`.
    OfPrintf,
    /// The variable that `printf -v` sets.
    OfPrintfV,
    /// It is another one, or a word of a list.
    #[default]
    Elsewhere,
}

impl Place {
    /// The place of the word behind this one, which stands here. Options are passed over.
    pub(super) fn next(self, word: &str) -> Self {
        match (self, word) {
            (Self::First, "printf") => Self::OfPrintf,
            (Self::OfPrintf, "-v") => Self::OfPrintfV,
            _ if is_setter(word) => Self::BehindSetter,
            _ if word.starts_with('-') => self,
            _ => Self::Elsewhere,
        }
    }
}

fn is_setter(word: &str) -> bool {
    let small = word.to_ascii_lowercase();
    let mut parts = small.split(['-', '_']);
    let is_set = parts.any(|part| part == "set" || part.starts_with("setenv"));
    !word.starts_with('-') && (is_set || small.ends_with("_param") || SETTERS.contains(&word))
}

/// How sure a name is that its value follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// Whatever follows is its value: it is the name of a variable or a header, or is set.
    Sure,
    /// A value that is a number is none: it is in small letters, as the names of metrics are.
    NoNumber,
    /// It is a word of the language as well: only what is no word is a secret.
    Word,
}

impl Name {
    /// What a word names that stands in that place.
    pub(super) fn of(word: &str, place: Place) -> Option<Self> {
        let is_char = |it: char| it.is_ascii_alphanumeric() || "_-.:/".contains(it);
        let is_somewhere = matches!(place, Place::First | Place::BehindSetter);
        if !is_somewhere || word.starts_with(['-', '/', '.']) {
            return None;
        }
        if !word.chars().all(is_char) || PROGRAMS.contains(&word) {
            return None;
        }
        // A key of a store, or of a file of properties: the last part of it tells.
        let last = word.rsplit(['/', ':', '.']).next()?;
        if !is_secret_name(last) {
            return None;
        }
        let is_behind_setter = place == Place::BehindSetter;
        let is_path = word.contains(['/', ':']);
        let is_header = last.contains('-') && word.starts_with(['X', 'x']);
        if !is_behind_setter && (is_path || last.contains('-') && !is_header) {
            // A program.
            return None;
        }
        let is_upper = !last.contains(|it: char| it.is_ascii_lowercase());
        let is_joined = last.contains('_') || word.contains('.');
        Some(if is_upper || is_header || is_of_server(last) {
            Self::Sure
        } else if is_joined {
            Self::NoNumber
        } else if is_behind_setter {
            Self::Sure
        } else {
            Self::Word
        })
    }

    /// Whether a word behind the name is its value.
    pub(super) fn has(self, raw: &str, word: &str) -> bool {
        if is_reference(word) || word.is_empty() || word.starts_with('-') {
            return false;
        }
        // In quotes it is a value.
        let is_quoted = raw.len() > word.len();
        let is_sign = !word.contains(char::is_alphanumeric);
        let is_plain = is_plain_word(word) || is_sign || is_path(word);
        match self {
            _ if is_quoted => true,
            Self::Sure => !is_plain,
            Self::NoNumber => !is_plain && word.parse::<f64>().is_err(),
            Self::Word => !is_plain && looks_secret(word),
        }
    }
}

/// A setting of Redis and its kind that needs no other sign of what it is.
fn is_of_server(name: &str) -> bool {
    ["requirepass", "masterauth", "primaryauth"].contains(&name.to_ascii_lowercase().as_str())
}

/// The name of a header's scheme.
pub(super) fn is_scheme(word: &str) -> bool {
    SCHEMES.contains(&word.to_ascii_lowercase().as_str())
}

/// `$NAME`, `${NAME}`, `{name}`, `%(name)s` and the formats of `printf` show no value.
pub(super) fn is_reference(word: &str) -> bool {
    static SHAPE: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"^(?:\$\w+|\$?\{\w+\}|%\(\w+\)s|(?:%[-+0-9.*]*[A-Za-z]|\\[a-z0])+)[;,)]*$").ok()
    });
    SHAPE.as_ref().is_some_and(|it| it.is_match(word))
}

/// A path by the look of it. A secret in Base64 has capital letters.
fn is_path(word: &str) -> bool {
    let is_char =
        |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || "/._-{}".contains(it);
    let begins = ["/", "./", "../", "~/"];
    let rest = word.trim_start_matches('~');
    begins.iter().any(|it| word.starts_with(it)) && rest.chars().all(is_char)
}

/// The secrets in quotes that a blank or a bracket separates from their names, those of statements
/// of SQL, and those of `.netrc`.
pub(super) fn in_statements(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    // Where the last value ends: what is in it is no other one.
    let mut from = 0;
    for groups in QUOTED.iter().flat_map(|shape| shape.captures_iter(text)) {
        let (Some(name), Some(quote)) = (groups.get(1), groups.get(2)) else {
            continue;
        };
        let is_free = name.start() >= from && !name.as_str().starts_with('-');
        if is_free
            && is_secret_name(name.as_str())
            && let Some(value) = quoted(text, quote.range())
        {
            from = value.end;
            found.push(value);
        }
    }
    from = 0;
    for groups in IDENTIFIED
        .iter()
        .flat_map(|shape| shape.captures_iter(text))
    {
        let Some(statement) = groups.get(1).filter(|it| it.start() >= from) else {
            continue;
        };
        let is_sure = |word: &str| statement.as_str() == "IDENTIFIED" || looks_secret(word);
        let bare = groups.get(3).filter(|it| !is_reference(it.as_str()));
        let value = match groups.get(2) {
            Some(quote) => quoted(text, quote.range()),
            None => bare.filter(|it| is_sure(it.as_str())).map(|it| it.range()),
        };
        if let Some(value) = value {
            from = value.end;
            found.push(value);
        }
    }
    let lines = NETRC.iter().flat_map(|shape| shape.captures_iter(text));
    found.extend(lines.filter_map(|groups| groups.get(1).map(|it| it.range())));
    found
}

/// What stands behind an opening quote of a text in SQL, which may stand in quotes of a shell
/// (`'\''x'\''`), to the quote that closes it. A quote that closes another text opens none.
fn quoted(text: &str, quote: Range<usize>) -> Option<Range<usize>> {
    let start = quote.end;
    let run = &text[quote];
    let rest = &text[start..];
    let is_empty = run.len() == 2 && (run == "''" || run == "\"\"");
    let next = rest.chars().next()?;
    if next.is_whitespace()
        || matches!(next, ';' | ')' | ',')
        || is_empty && !next.is_alphanumeric()
    {
        return None;
    }
    let end = match run.starts_with('$') {
        true => rest.find(run),
        false => closes(rest, run),
    };
    let end = end.unwrap_or(rest.len());
    (!is_reference(&rest[..end])).then(|| start..start + end)
}

/// Where a text ends that quotes have opened. Two of them are part of it, and so is one behind a
/// backslash, unless a backslash stands before the opening one too.
fn closes(rest: &str, opening: &str) -> Option<usize> {
    let quote = opening.chars().next_back()?;
    let is_behind_backslash = opening[..opening.len() - 1].ends_with('\\');
    let mut is_passed = false;
    for (at, it) in rest.char_indices() {
        if std::mem::take(&mut is_passed) {
            continue;
        }
        let behind = &rest[at + it.len_utf8()..];
        if it == '\\' {
            if is_behind_backslash && behind.starts_with(quote) {
                return Some(at);
            }
            is_passed = true;
        } else if it == quote {
            let next = behind.strip_prefix(quote);
            if !next.is_some_and(|next| next.starts_with(char::is_alphanumeric)) {
                return Some(at);
            }
            is_passed = true;
        }
    }
    None
}
