//! What people see of a specification.
//!
//! Nobody sees the login of an address: it is masked wherever a specification leaves the store. Those who may only read see no
//! secret either: values under names that look like one (`DB_PASSWORD`, `token`), options (`--password=x`, `--password x`) and
//! headers (`Authorization: …`) in commands. Values from files never are in a specification.

use http_client::{MASK, is_secret_name, mask_setting, redact};
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Spec;

/// For whom a specification is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masks {
    /// For those who may change things.
    ForWriters,
    /// For those who may only look.
    ForReaders,
}

impl Masks {
    /// The specification as JSON.
    #[must_use]
    pub fn spec(self, spec: &Spec) -> Value {
        let mut value = serde_json::to_value(spec).unwrap_or_default();
        self.json(None, &mut value);
        value
    }

    /// A specification's text, in TOML or JSON.
    #[must_use]
    pub fn text(self, source: &str) -> String {
        if self == Self::ForWriters {
            return redact(source);
        }
        if let Ok(mut value) = serde_json::from_str::<Value>(source) {
            let before = value.clone();
            self.json(None, &mut value);
            let is_same = value == before;
            let masked = serde_json::to_string_pretty(&value).unwrap_or_default();
            return if is_same { source.to_owned() } else { masked };
        }
        let mut text = source.to_owned();
        if let Ok(table) = DeTable::parse(source) {
            let mut found = Vec::new();
            self.table(table.get_ref(), &mut found);
            // From the end, so that what is before stays where it is.
            found.sort_by_key(|(span, _): &(std::ops::Range<usize>, String)| span.start);
            for (span, masked) in found.into_iter().rev() {
                let quoted = Value::String(masked).to_string();
                text.replace_range(span, &quoted);
            }
        }
        redact(&text)
    }

    /// What is shown of a text under a key, after another one in a list.
    fn string(self, key: Option<&str>, before: Option<&str>, text: &str) -> String {
        if self == Self::ForReaders && !text.is_empty() {
            let is_option = |it: &str| it.starts_with('-') && !it.contains('=');
            let is_value = before.is_some_and(|it| is_option(it) && is_secret_name(it));
            if is_value || key.is_some_and(is_secret_name) {
                return MASK.to_owned();
            }
            // A command of a shell has several words.
            if let Some(masked) = mask_setting(text) {
                return masked;
            }
            if text
                .split_whitespace()
                .any(|word| mask_setting(word).is_some())
            {
                let words = text
                    .split(' ')
                    .map(|word| mask_setting(word).unwrap_or_else(|| word.to_owned()));
                return redact(&words.collect::<Vec<_>>().join(" "));
            }
        }
        redact(text)
    }

    /// A word of a command, after another one.
    pub(crate) fn word(self, before: Option<&str>, word: &str) -> String {
        self.string(None, before, word)
    }

    fn json(self, key: Option<&str>, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.string(key, None, text),
            Value::Array(items) => {
                let mut before: Option<String> = None;
                for item in items {
                    match item {
                        Value::String(text) => {
                            let masked = self.string(key, before.as_deref(), text);
                            before = Some(std::mem::replace(text, masked));
                        }
                        item => self.json(key, item),
                    }
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    // A value from a file is named by its file, which is no secret.
                    if name != "file" {
                        self.json(Some(name), field);
                    }
                }
            }
            _ => {}
        }
    }

    fn table(self, table: &DeTable<'_>, found: &mut Vec<(std::ops::Range<usize>, String)>) {
        for (name, value) in table {
            if name.get_ref() != "file" {
                self.toml(name.get_ref(), None, value, found);
            }
        }
    }

    fn toml(
        self,
        key: &str,
        before: Option<&str>,
        value: &Spanned<DeValue<'_>>,
        found: &mut Vec<(std::ops::Range<usize>, String)>,
    ) {
        match value.get_ref() {
            DeValue::String(text) => {
                let masked = self.string(Some(key), before, text);
                if masked != *text {
                    found.push((value.span(), masked));
                }
            }
            DeValue::Array(items) => {
                let mut before: Option<&str> = None;
                for item in items.iter() {
                    self.toml(key, before, item, found);
                    before = match item.get_ref() {
                        DeValue::String(text) => Some(&**text),
                        _ => None,
                    };
                }
            }
            DeValue::Table(table) => self.table(table, found),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = r#"# a comment
parameters = [{ name = "x", type = "int", low = 1, high = 2 }]
[target]
start = ["sh", "-c", "exec db --password=s3cr3t --port {port}"] # with a password
prepare = ["init", "--token", "s3cr3t", "plain"]
env = { DB_PASSWORD = "s3cr3t", LEVEL = "3", API_TOKEN = { file = "token.txt" } }
[workload]
command = ["curl", "-H", "Authorization: Bearer s3cr3t", "http://me:s3cr3t@h/"]
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
            !shown.contains("s3cr3t") && !shown.contains("me:"),
            "{shown}"
        );
        for kept in [
            "# a comment",
            "--password=…",
            "--port {port}",
            "# with a password",
            r#"["init", "--token", "…", "plain"]"#,
            r#"LEVEL = "3""#,
            r#"{ file = "token.txt" }"#,
            "Authorization: …",
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
    fn writers_see_all_but_the_logins_of_addresses() {
        let shown = Masks::ForWriters.text(SPEC);
        assert!(shown.contains("DB_PASSWORD = \"s3cr3t\""), "{shown}");
        assert!(shown.contains("http://…@h:9090"), "{shown}");
        let nothing = "# http://h/\nparameters = []\n";
        assert_eq!(Masks::ForReaders.text(nothing), nothing);
    }
}
