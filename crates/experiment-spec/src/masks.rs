//! What people see of a specification.
//!
//! Nobody sees the login of an address: it is masked wherever a specification leaves the store.
//! Those who may only read see no secret either: values under names that look like one
//! (`DB_PASSWORD`, `token`), and what [`super::credentials`] finds in commands, scripts, headers
//! and JSON. Values from files never are in a specification.

use std::ops::Range;

use http_client::{MASK, is_secret_name, redact};
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Spec;
use super::credentials::{Words, in_prose, in_text, masked, of_blocks, replaced, tidy};

/// For whom a specification is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masks {
    /// For those who may change things.
    ForWriters,
    /// For those who may only look.
    ForReaders,
}

/// Where a text of a file is, with its quotes, and what is shown in its place; `None` where that is
/// as it is written.
type Shown = (Range<usize>, Option<String>);

impl Masks {
    /// The specification as JSON.
    #[must_use]
    pub fn spec(self, spec: &Spec) -> Value {
        self.value(spec)
    }

    /// Something else of an experiment, as JSON.
    #[must_use]
    pub fn value(self, value: impl serde::Serialize) -> Value {
        let mut value = serde_json::to_value(value).unwrap_or_default();
        self.json(None, &mut value);
        value
    }

    /// A specification's text, in TOML or JSON. Texts in quotes are masked as they are read:
    /// written, a line break in one is two characters, and would be a part of the address before
    /// it.
    #[must_use]
    pub fn text(self, source: &str) -> String {
        if let Ok(mut value) = serde_json::from_str::<Value>(source) {
            if self == Self::ForWriters {
                return redacted_json(source);
            }
            let before = value.clone();
            self.json(None, &mut value);
            let is_same = value == before;
            let masked = serde_json::to_string_pretty(&value).unwrap_or_default();
            return if is_same { source.to_owned() } else { masked };
        }
        let Ok(table) = DeTable::parse(source) else {
            return match self {
                Self::ForWriters => redact(source),
                Self::ForReaders => self.outside(&masked(source, &in_text(source))),
            };
        };
        let mut found = Vec::new();
        self.table(None, table.get_ref(), &mut found);
        found.sort_by_key(|(span, _): &Shown| span.start);
        let mut shown = String::with_capacity(source.len());
        let mut at = 0;
        for (span, masked) in found {
            shown.push_str(&self.outside(source.get(at..span.start).unwrap_or_default()));
            let as_written = source.get(span.clone()).unwrap_or_default();
            shown.push_str(masked.as_deref().unwrap_or(as_written));
            at = span.end.max(at);
        }
        shown + &self.outside(source.get(at..).unwrap_or_default())
    }

    /// What is shown of a part of a file that is in no text: keys, signs and comments.
    fn outside(self, part: &str) -> String {
        match self {
            Self::ForWriters => redact(part),
            Self::ForReaders => redact(&without_secrets_in_comments(part)),
        }
    }

    /// What is shown of a text under a key; `words` are those of the list that it stands in.
    fn string(self, key: Option<&str>, words: &mut Words, text: &str) -> String {
        if self == Self::ForReaders && !text.is_empty() {
            if key.is_some_and(is_secret_name) {
                return MASK.to_owned();
            }
            let mut spans = words.next(text);
            if key.is_none_or(|key| key == "note") {
                spans.extend(in_prose(text));
            }
            return redact(&masked(text, &tidy(spans)));
        }
        redact(text)
    }

    /// A line of free text, such as an experiment's name.
    #[must_use]
    pub fn line(self, text: &str) -> String {
        self.string(None, &mut Words::default(), text)
    }

    fn json(self, key: Option<&str>, value: &mut Value) {
        match value {
            Value::String(text) if key == Some(SOURCE) => *text = self.text(text),
            Value::String(text) => *text = self.string(key, &mut Words::default(), text),
            Value::Array(items) => {
                let mut words = Words::default();
                for item in items {
                    match item {
                        Value::String(text) => *text = self.string(key, &mut words, text),
                        item => self.json(key, item),
                    }
                }
            }
            Value::Object(fields) => {
                let named = NAMES.iter().find_map(|it| fields.get(*it)?.as_str());
                let owner = owner_of(key, named).map(str::to_owned);
                for (name, field) in fields {
                    if field.is_number() && self.hides_number(key, name) {
                        *field = MASK.into();
                    } else if name != "file" {
                        // A value from a file is named by its file, which is no secret.
                        self.json(Some(key_of(owner.as_deref(), name)), field);
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether a number is a secret: a constant or a variable of the environment with such a name.
    /// Elsewhere it is a number of something, such as the parameter `max_tokens`.
    fn hides_number(self, of: Option<&str>, name: &str) -> bool {
        let is_constant = of.is_some_and(|of| ["variables", "env"].contains(&of));
        self == Self::ForReaders && is_constant && is_secret_name(name)
    }

    /// Where each text of a table is, and what is shown in its place.
    fn table(self, key: Option<&str>, table: &DeTable<'_>, found: &mut Vec<Shown>) {
        let named = NAMES
            .iter()
            .find_map(|it| table.get(*it)?.get_ref().as_str());
        let owner = owner_of(key, named);
        for (name, value) in table {
            let name = name.get_ref();
            let is_number = matches!(value.get_ref(), DeValue::Integer(_) | DeValue::Float(_));
            if is_number && self.hides_number(key, name) {
                found.push((value.span(), Some(Value::from(MASK).to_string())));
            } else if name != "file" {
                self.toml(key_of(owner, name), &mut Words::default(), value, found);
            }
        }
    }

    fn toml(
        self,
        key: &str,
        words: &mut Words,
        value: &Spanned<DeValue<'_>>,
        found: &mut Vec<Shown>,
    ) {
        match value.get_ref() {
            DeValue::String(text) => {
                let masked = self.string(Some(key), words, text);
                let masked = (masked != *text).then(|| Value::from(masked).to_string());
                found.push((value.span(), masked));
            }
            DeValue::Array(items) => {
                let mut words = Words::default();
                for item in items.iter() {
                    self.toml(key, &mut words, item, found);
                }
            }
            DeValue::Table(table) => self.table(Some(key), table, found),
            _ => {}
        }
    }
}

/// The field that holds a specification's text.
const SOURCE: &str = "source";

/// Fields that name what a table is about.
const NAMES: [&str; 2] = ["name", "parameter"];

/// Fields that hold values of what a table is about: of a parameter, or of `{ name, value }`.
const VALUES: [&str; 6] = [
    "best_guess",
    "default",
    "prior",
    "special",
    "value",
    "values",
];

/// The secret that a table is about: by its key, or by the name in it.
fn owner_of<'a>(key: Option<&'a str>, named: Option<&'a str>) -> Option<&'a str> {
    named.or(key).filter(|it| is_secret_name(it))
}

/// The key by which a field of a table is masked: the values of a secret are secrets.
fn key_of<'a>(owner: Option<&'a str>, name: &'a str) -> &'a str {
    owner.filter(|_| VALUES.contains(&name)).unwrap_or(name)
}

/// JSON as it is written, but for the logins of addresses in its strings.
fn redacted_json(source: &str) -> String {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(quote) = source[at..].find('"') {
        let start = at + quote;
        at = start + 1 + end_of_string(&source[start + 1..], "\"", false);
        if let Ok(text) = serde_json::from_str::<String>(&source[start..at]) {
            let masked = redact(&text);
            if masked != text {
                found.push((start..at, Value::from(masked).to_string()));
            }
        }
    }
    replaced(source, found.into_iter())
}

/// The text of a TOML file, with the secrets in its comments masked.
fn without_secrets_in_comments(text: &str) -> String {
    let mut found = Vec::new();
    // Lines of comments that follow each other, as one.
    let mut whole: Option<Range<usize>> = None;
    let all = comments(text);
    let last = all.len().saturating_sub(1);
    for (index, comment) in all.into_iter().enumerate() {
        let secrets = in_text(&text[comment.clone()]).into_iter();
        found.extend(secrets.map(|it| it.start + comment.start..it.end + comment.start));
        let joined = whole
            .take()
            .filter(|it| text[it.end..comment.start].trim().is_empty());
        let joined = joined.map_or(comment.start, |it| it.start)..comment.end;
        let next = text[comment.end..].trim_start();
        if index < last && next.starts_with('#') {
            whole = Some(joined);
            continue;
        }
        let blocks = of_blocks(&text[joined.clone()]).into_iter();
        found.extend(blocks.map(|it| it.start + joined.start..it.end + joined.start));
    }
    masked(text, &tidy(found))
}

/// Where the comments of a TOML file are: from a `#` that is in no string to the end of the line.
fn comments(text: &str) -> Vec<Range<usize>> {
    let mut comments = Vec::new();
    let mut at = 0;
    while let Some(found) = text[at..].find(['#', '"', '\'']) {
        at += found;
        let rest = &text[at..];
        let (quotes, is_literal) = match rest.as_bytes() {
            [b'#', ..] => {
                let end = rest.find('\n').map_or(text.len(), |end| at + end);
                comments.push(at..end);
                at = end;
                continue;
            }
            [b'"', b'"', b'"', ..] => ("\"\"\"", false),
            [b'\'', b'\'', b'\'', ..] => ("\'\'\'", true),
            [b'"', ..] => ("\"", false),
            _ => ("\'", true),
        };
        at += quotes.len();
        at += end_of_string(&text[at..], quotes, is_literal);
    }
    comments
}

/// Where a string ends that has begun: behind its closing quotes, or at the end of its line.
fn end_of_string(text: &str, quotes: &str, is_literal: bool) -> usize {
    let mut is_escaped = false;
    for (at, character) in text.char_indices() {
        if is_escaped {
            is_escaped = false;
        } else if character == '\\' && !is_literal {
            is_escaped = true;
        } else if text[at..].starts_with(quotes) {
            return at + quotes.len();
        } else if character == '\n' && quotes.len() == 1 {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = r#"# a comment
# started by hand with DB_PASSWORD=s3cr3t
# password s3cr3t
# tls:
#   token: |
#     s3cr3t and
#     s3cr3t
# -----BEGIN RSA PRIVATE KEY-----
# s3cr3t
# -----END RSA PRIVATE KEY-----
name = "of --password=s3cr3t"
variables = { db_password = 918273645, max_level = 7 }
parameters = [
    { name = "x", type = "int", low = 1, high = 2 },
    { name = "db_password", type = "categorical", values = ["s3cr3t", "s3cr3t too"], default = "s3cr3t", prior = { best_guess = "s3cr3t", confidence = 0.5 } },
    { name = "auth_type", type = "categorical", values = ["none", "scram"] },
]
initial = [{ db_password = "s3cr3t" }]
[target] # for "now" DB_PASSWORD=s3cr3t
start = ["sh", "-c", "TOKEN=s3cr3t exec db --password=s3cr3t --port {port}"] # with a password
prepare = ["init", "--token", "s3cr3t", "plain"]
env = { DB_PASSWORD = "s3cr3t", LEVEL = "3", API_TOKEN = { file = "token.txt" } }
[workload]
command = ["curl", "-su", "me:s3cr3t", "-H", "Authorization: Bearer s3cr3t", "-d", '{"password": "s3cr3t", "n": 1}', "http://me:s3cr3t@h/"]
capacity_command = ["sh", "-c", "mysql -ps3cr3t db; ab you:s3cr3t@h; mysql -p's3cr3t and s3cr3t' db"]
json = {}
[metrics.m]
prometheus = 'http://me:s3cr3t@h:9090'
query = "up"
[objective]
metric = "m"
"#;

    #[test]
    fn readers_see_no_secret_and_all_else() {
        let shown = Masks::ForReaders.text(SPEC);
        assert!(
            !shown.contains("s3cr3t") && !shown.contains("me:") && !shown.contains("9182"),
            "{shown}"
        );
        for kept in [
            "# a comment",
            "# password …",
            "#   token: …\n# -----BEGIN RSA PRIVATE KEY-----…-----END RSA PRIVATE KEY-----",
            r#"values = ["…", "…"], default = "…""#,
            r#"values = ["none", "scram"]"#,
            "max_level = 7",
            "[target] # for \"now\" DB_PASSWORD=…",
            "--password=…",
            "--port {port}",
            "# with a password",
            r#"["init", "--token", "…", "plain"]"#,
            r#"LEVEL = "3""#,
            r#"{ file = "token.txt" }"#,
            "Authorization: …",
            "of --password=…",
            "mysql -p… db; ab you:…@h",
            "http://…@h:9090",
        ] {
            assert!(shown.contains(kept), "{kept}: {shown}");
        }
        let value: toml::Value = toml::from_str(SPEC).unwrap();
        let json = serde_json::to_string(&value).unwrap();
        let shown = Masks::ForReaders.text(&json);
        assert!(!shown.contains("s3cr3t"), "{shown}");
        assert!(shown.contains("token.txt"), "{shown}");
    }

    #[test]
    fn a_page_and_an_answer_mask_the_same_of_a_command() {
        for line in [
            "openssl enc -k s3cr3t -in a",
            "openssl req -passin pass:s3cr3t",
            "vault login s3cr3t",
            "vault login -no-print s3cr3t",
            "mysql -ps3cr3t -h db",
            "curl -su me:s3cr3t http://h/",
            "redis-cli -a s3cr3t ping",
            "db --password s3cr3t --port 1",
            "psql me:s3cr3t@db:5432/a",
            "sshpass -p s3cr3t ssh h",
            "env DB_PASSWORD=s3cr3t db",
            "echo s3cr3t | docker login -u me --password-stdin",
            "wrk -t2 -c 64 http://127.0.0.1:8080/a",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let spec = serde_json::json!({
                "workload": { "command": ["sh", "-c", line], "capacity_command": words },
                "target": { "prepare": [["sh", "-c", format!("set -e\n{line}\nls")]] },
            });
            let source = toml::to_string(&spec).unwrap();
            let page: Value = toml::from_str(&Masks::ForReaders.text(&source)).unwrap();
            let answer = Masks::ForReaders.value(&spec);
            assert_eq!(page, answer, "{line}");
            let is_in_script = |it: &Value| it.to_string().contains("s3cr3t");
            assert!(!is_in_script(&page["workload"]["command"]), "{page}");
            assert!(!is_in_script(&page["target"]), "{page}");
            // What a pipe leads into a command is told in a script alone.
            let is_in_list = is_in_script(&page["workload"]["capacity_command"]);
            assert_eq!(is_in_list, line.contains('|'), "{page}");
        }
    }

    #[test]
    fn readers_see_no_value_of_a_secret_parameter() {
        let shown = Masks::ForReaders.value(serde_json::json!({
            "configuration": { "db_password": "s3cr3t", "auth_type": "none", "max_tokens": 5 },
            "parameters": { "db_password": ["s3cr3t", "s3cr3t too"] },
            "dependence": [{ "parameter": "db_password", "value": ["s3cr3t"], "mean": [1.5] }],
            "env": [{ "name": "PGPASSWORD", "value": "s3cr3t" }],
            "note": "the password is s3cr3t, and passwords_changed=3",
        }));
        let text = shown.to_string();
        assert!(!text.contains("s3cr3t"), "{text}");
        for kept in [
            r#""auth_type":"none""#,
            r#""max_tokens":5"#,
            r#""mean":[1.5]"#,
            "the password is …, and passwords_changed=3",
        ] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
    }

    #[test]
    fn a_note_has_no_secret_over_a_line_end_or_behind_a_wide_sign() {
        for (note, shown) in [
            (
                "db password:\nhunter\nand more",
                "db password:\n…\nand more",
            ),
            ("the password is\r\nhunter2", "the password is\r\n…"),
            ("API token\n\n  hunter2\n", "API token\n\n  …\n"),
            ("of db\npassword:\nhunter\n", "of db\npassword:\n…\n"),
            ("password：hunter2 ok", "password：… ok"),
            ("password＝hunter2", "password＝…"),
            ("PIN: 1234, salt=9f86d0, MYPWD=hunter2", "PIN: …"),
            ("CARD_PIN=1234", "CARD_PIN=…"),
            // A heading, and a name in a sentence that goes on.
            (
                "About the password:\nit was changed",
                "About the password:\nit was changed",
            ),
            (
                "we changed the token\nyesterday",
                "we changed the token\nyesterday",
            ),
            ("cpu_pin: 3, salted: 2", "cpu_pin: 3, salted: 2"),
        ] {
            let value = serde_json::json!({ "note": note });
            assert_eq!(Masks::ForReaders.value(&value)["note"], shown);
        }
    }

    #[test]
    fn a_line_break_and_what_follows_it_are_no_part_of_an_address() {
        const TEXT: &str = r#"https://me:s3cr3t@h/x?token=s3cr3t\nnext \"word\""#;
        let shown = r#"https://…@h/x?token=…\nnext \"word\""#;
        for masks in [Masks::ForReaders, Masks::ForWriters] {
            let toml = |text: &str| format!("note = \"{text}\" # https://h/?token=s3cr3t\nx = 1\n");
            let expected = toml(shown).replace("s3cr3t", "…");
            assert_eq!(masks.text(&toml(TEXT)), expected);
            let json = |text: &str| format!("{{\n  \"note\": \"{text}\",\n  \"x\": 1\n}}");
            assert_eq!(masks.text(&json(TEXT)), json(shown));
            // In single quotes a backslash is a part of the text.
            let literal = |login: &str| format!("a = 'http://{login}@h' # b\n");
            assert_eq!(
                masks.text(&literal("me:s3\\nt")),
                literal("…").replace('\'', "\"")
            );
        }
    }

    #[test]
    fn writers_see_all_but_the_logins_of_addresses() {
        let shown = Masks::ForWriters.text(SPEC);
        assert!(shown.contains("DB_PASSWORD = \"s3cr3t\""), "{shown}");
        assert!(shown.contains("http://…@h:9090"), "{shown}");
        let nothing = "# http://h/\nparameters = []\n";
        assert_eq!(Masks::ForReaders.text(nothing), nothing);
    }
}
