//! Secrets that are no setting of one line: block scalars of YAML, private keys, elements of XML,
//! pairs of a name and a value, and comments in plain words.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use http_client::is_secret_name;
use regex::Regex;

use super::words::{is_plain_word, looks_secret};

/// An element's tag: its slash, its name without the prefix, and its attributes.
static TAG: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"<(/?)(?:[\w.-]+:)?([A-Za-z_][\w.-]*)(?:\s[^<>]*)?>").ok());

/// A name, and the beginning of its value, as fields (`"name": "PGPASSWORD", "value": `) or as
/// elements (`<name>password</name><value>`).
static PAIR: LazyLock<Option<Regex>> = LazyLock::new(|| {
    const FIELDS: &str = r#"(?-u:\b)(?:name|key)\\*["']?\s*[:=]\s*\\*["']?([\w.-]+)\\*["']?\s*[,;]?\s*\\*["']?value\\*["']?\s*[:=]\s*"#;
    const ELEMENTS: &str = r"<(?:name|key)>\s*([\w.-]+)\s*</(?:name|key)>\s*<(?:value|string)>";
    Regex::new(&format!("(?i)(?:{FIELDS}|{ELEMENTS})")).ok()
});

/// The label of a private key is shorter.
const BEGIN: &str = "-----BEGIN ";

/// Words that name a secret in a sentence. Others that do so in a setting, such as `auth`, are
/// ordinary words here.
const NOUNS: [&str; 9] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "pwd",
    "pw",
    "apikey",
];

/// What stands between a secret and its name.
const FILLERS: [&str; 4] = ["is", "was", "be", "="];

/// What stands between the name of a secret and the word for whose it is.
const OWNERS: [&str; 5] = ["at", "for", "in", "of", "on"];

/// No more words say whose secret it is.
const WORDS_BETWEEN_MAX: usize = 4;

/// What follows such a name in a comment of two words that gives no secret away.
const COMPANIONS: [&str; 14] = [
    "authentication",
    "below",
    "bucket",
    "buckets",
    "file",
    "follows",
    "hashing",
    "length",
    "needed",
    "optional",
    "policy",
    "protected",
    "required",
    "rotation",
];

/// The lines that belong to a key of YAML whose value begins there: a block scalar, or more
/// indented lines. Those of a key in quotes may be JSON, whose values end by themselves. Comment
/// signs count as indentation.
pub(super) fn of_yaml(
    text: &str,
    name: usize,
    start: usize,
    is_field: bool,
) -> Option<Range<usize>> {
    let rest = &text[start..];
    let is_indicator =
        |it: &char| matches!(it, '|' | '>' | '+' | '-' | ' ' | '\t' | '\r') || it.is_ascii_digit();
    let head: usize = rest.chars().take_while(is_indicator).count();
    let indicator = rest[..head].trim();
    let is_block = indicator.starts_with(['|', '>']);
    let is_end = rest[head..].starts_with('\n') || is_block && rest[head..].starts_with('#');
    if !is_end || !(is_block || indicator.is_empty() && !is_field) {
        return None;
    }
    let line = text[..name].rfind('\n').map_or(0, |at| at + 1);
    let before = text[line..name].chars();
    let column = before.take_while(|it| " \t#-".contains(*it)).count();
    let mut at = start + head + text[start + head..].find('\n')?;
    let mut end = None;
    while at < text.len() {
        let next = text[at + 1..]
            .find('\n')
            .map_or(text.len(), |end| at + 1 + end);
        let line = &text[at + 1..next];
        let content = line.trim_start_matches([' ', '\t', '#']);
        let indent = line.len() - content.len();
        let is_item = !is_block && indent == column && content.starts_with("- ");
        if content.trim().is_empty() {
            // It may stand between two lines of the block.
        } else if indent > column || is_item {
            end = Some(next);
        } else {
            break;
        }
        at = next;
    }
    end.map(|end| start..end)
}

/// The private keys in a text, without the lines that say what they are.
pub(super) fn private_keys(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(begin) = text[at..].find(BEGIN) {
        let label = at + begin + BEGIN.len();
        let Some(length) = text[label..].find("-----") else {
            break;
        };
        at = label;
        if text[label..label + length].contains("PRIVATE KEY") {
            let body = label + length + "-----".len();
            let end = text[body..]
                .find("-----END")
                .map_or(text.len(), |end| body + end);
            found.push(body..end);
            at = end;
        }
    }
    found
}

/// What stands in elements whose name looks secret.
pub(super) fn elements(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut open: HashMap<&str, usize> = HashMap::new();
    let tags = TAG.iter().flat_map(|shape| shape.captures_iter(text));
    for tag in tags {
        let (Some(whole), Some(name)) = (tag.get(0), tag.get(2)) else {
            continue;
        };
        let name = name.as_str();
        let is_closing = tag.get(1).is_some_and(|it| !it.is_empty());
        if !is_closing && !whole.as_str().ends_with("/>") && is_secret_name(name) {
            open.insert(name, whole.end());
        } else if is_closing && let Some(begin) = open.remove(name) {
            found.push(begin..whole.start());
        }
    }
    found
}

/// Where the value of each pair begins whose name looks secret, and whether it is an element's.
pub(super) fn pairs(text: &str) -> impl Iterator<Item = (usize, bool)> {
    let found = PAIR.iter().flat_map(|shape| shape.captures_iter(text));
    found.filter_map(|pair| {
        let name = pair.get(1).or(pair.get(2))?;
        let whole = pair.get(0)?;
        is_secret_name(name.as_str()).then(|| (whole.end(), pair.get(2).is_some()))
    })
}

/// The secrets that the comments of a text tell in plain words: `# password hunter2`.
pub(super) fn in_comments(text: &str) -> Vec<Range<usize>> {
    in_lines(text, true, |line| {
        let is_sign = |at: usize| {
            let before = line[..at].chars().next_back();
            before.is_none_or(char::is_whitespace)
        };
        let mut signs = line.match_indices('#').map(|(at, _)| at);
        signs.find(|at| is_sign(*at))
    })
}

/// The secrets that the lines of a text tell in plain words, from where those begin in a line. A
/// comment that is a name and another word tells a secret, whatever the word looks like.
pub(super) fn in_lines(
    text: &str,
    is_comment: bool,
    begins: fn(&str) -> Option<usize>,
) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if let Some(at) = begins(line) {
            let begin = start + at;
            let secrets = in_sentence(&line[at..], is_comment).into_iter();
            found.extend(secrets.map(|it| it.start + begin..it.end + begin));
        }
        start += line.len();
    }
    found
}

/// The secrets in a line of words: what follows the name of a secret and is no word itself
/// (`password hunter2`), also where it is said whose it is (`the password for db is hunter2`).
fn in_sentence(line: &str, is_comment: bool) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut count = 0;
    let mut told = Told::default();
    let mut alone = None;
    let mut at = 0;
    for word in line.split_inclusive(char::is_whitespace) {
        let start = at;
        at += word.len();
        let is_aside = word.starts_with('(') && word.trim_end().ends_with(')');
        let word = word
            .trim_end()
            .trim_end_matches([',', '.', ';', ')', '"', '\'']);
        if word.is_empty() || is_aside || count == 0 && word.trim_matches('#').is_empty() {
            continue;
        }
        count += 1;
        let secret = start..start + word.len();
        let is_last = line[at..].trim().is_empty();
        if told.is_next && !told.is_filler(word) {
            alone = (count == 2 && !COMPANIONS.contains(&word)).then_some(secret.clone());
        }
        if told.is_secret(word, is_last) {
            found.push(secret);
        }
        told.read(word);
    }
    found.extend(alone.filter(|_| is_comment && count == 2));
    found
}

/// What a sentence has told of a secret so far.
#[derive(Default)]
struct Told {
    /// Words since its name, articles and fillers not counted; `None` without a name.
    since: Option<usize>,
    /// It may be the next word.
    is_next: bool,
    /// The last word was its name.
    is_adjacent: bool,
    /// It is the next word, whatever that looks like.
    is_certain: bool,
    /// It was said whose it is: `password for db`.
    has_owner: bool,
}

impl Told {
    fn is_filler(&self, word: &str) -> bool {
        self.since.is_some() && (word == ":" || FILLERS.contains(&word.trim_end_matches(':')))
    }

    fn is_secret(&self, word: &str, is_last: bool) -> bool {
        if self.is_filler(word) {
            return false;
        }
        let is_behind_owner = self.has_owner && self.since == Some(2) && is_last;
        if self.is_certain {
            return !is_plain_word(word);
        }
        let may_be = self.is_next || is_behind_owner;
        may_be && looks_secret(word) && (self.is_adjacent || !is_amount(word))
    }

    fn read(&mut self, word: &str) {
        if is_noun(word) {
            *self = Self {
                since: Some(0),
                is_next: true,
                is_adjacent: true,
                ..Self::default()
            };
            return;
        }
        self.is_adjacent = false;
        if self.is_filler(word) {
            self.is_next = true;
            self.is_certain = word.ends_with([':', '=']);
        } else {
            self.is_next = false;
            self.is_certain = false;
            if matches!(word, "a" | "an" | "my" | "our" | "the") {
                return;
            }
            self.has_owner |= self.since == Some(0) && OWNERS.contains(&word);
            // The length of a password is no secret.
            let is_of_kind = COMPANIONS.contains(&word)
                || !is_secret_name(&format!("password_{}", word.trim_end_matches(':')));
            let since = self.since.filter(|_| !is_of_kind).map(|since| since + 1);
            self.since = since.filter(|since| *since <= WORDS_BETWEEN_MAX);
        }
    }
}

/// An amount with its unit: `3600s`.
fn is_amount(word: &str) -> bool {
    const UNITS: [&str; 17] = [
        "%", "B", "GB", "GiB", "KiB", "MB", "MiB", "bytes", "chars", "d", "days", "h", "kB", "min",
        "ms", "req/s", "s",
    ];
    let unit = word.trim_start_matches(|it: char| it.is_ascii_digit() || ".,".contains(it));
    unit.len() < word.len() && UNITS.contains(&unit)
}

/// It names a secret: `password`, `DB_PASSWORD`, `API token`.
fn is_noun(word: &str) -> bool {
    let word = word
        .trim_matches(['#', '"', '\'', ':'])
        .to_ascii_lowercase();
    word.rsplit(['_', '-', '.'])
        .next()
        .is_some_and(|last| NOUNS.contains(&last))
}
