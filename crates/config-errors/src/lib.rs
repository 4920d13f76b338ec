//! What the readers of JSON and TOML say about a wrong text, in words for people who do not know
//! the types of a program.
#![forbid(unsafe_code)]

/// Types as serde names them, and what to call them.
const NAMES: [(&str, &str); 23] = [
    (" as i128", " (beyond 64 bits)"),
    ("unknown field", "unknown key"),
    ("unknown variant", "unknown value"),
    ("EOF while parsing a value", "the text ends too early"),
    ("EOF while parsing an object", "the text ends too early"),
    ("EOF while parsing a list", "the text ends too early"),
    ("EOF while parsing a string", "the text ends too early"),
    ("expected usize", "expected a whole number from 0 on"),
    ("expected u64", "expected a whole number from 0 on"),
    ("expected u32", "expected a whole number from 0 on"),
    ("expected u16", "expected a whole number from 0 to 65535"),
    ("expected f64", "expected a number"),
    ("expected i64", "expected a whole number"),
    ("expected a boolean", "expected true or false"),
    ("expected a sequence", "expected a list"),
    ("expected a map", "expected a table of keys"),
    ("expected a string", "expected a text"),
    ("expected path string", "expected a text"),
    ("wanted string or table", "expected a text in quotes"),
    (
        "wanted exactly 1 element, found 0 elements",
        "expected one key, and there is none",
    ),
    (
        "wanted exactly 1 element, more than 1 element",
        "expected one key, and there are several",
    ),
    ("invalid socket address syntax", ADDRESS),
    ("expected socket address", ADDRESS),
];

/// What an address of a socket has to be.
const ADDRESS: &str = "expected an address and a port, such as 127.0.0.1:8125";

/// The message of a reader of JSON or TOML, without the names of types.
///
/// ```
/// let message = "invalid type: integer `1`, expected a boolean";
/// let plain = "invalid type: integer `1`, expected true or false";
/// assert_eq!(config_errors::plain(message), plain);
/// ```
pub fn plain(message: &str) -> String {
    let names = NAMES.iter();
    let mut plain = names.fold(message.to_owned(), |text, (type_name, words)| {
        text.replace(type_name, words)
    });
    plain = missing_first(&without_value(&plain));
    if let Some((before, name)) = plain.split_once("expected struct ") {
        let rest = name.trim_start_matches(|c: char| c.is_alphanumeric());
        plain = format!("{before}expected a table of keys{rest}");
    }
    plain
}

/// What is missing comes first, as in the messages of the configurations' own checks.
fn missing_first(message: &str) -> String {
    let parts = message.split_once("missing field `");
    let parts = parts.and_then(|(before, rest)| Some((before, rest.split_once('`')?)));
    match parts {
        Some((before, (key, after))) => format!("{before}`{key}` is missing{after}"),
        None => message.to_owned(),
    }
}

/// A text of the wrong type is not repeated: it may be a secret, or a whole file with some.
fn without_value(message: &str) -> String {
    const BEFORE: &str = "string \"";
    let Some((before, rest)) = message.split_once(BEFORE) else {
        return message.to_owned();
    };
    match rest.rsplit_once("\", expected") {
        Some((_, after)) => format!("{before}a text, expected{after}"),
        None => format!("{before}a text"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_words_and_texts_are_not_repeated() {
        for (message, expected) in [
            (
                "invalid type: string \"s3cr3t\", expected usize",
                "invalid type: a text, expected a whole number from 0 on",
            ),
            (
                "invalid type: string \"a\", expected b\", expected a map",
                "invalid type: a text, expected a table of keys",
            ),
            (
                "invalid type: integer `1`, expected struct RawRange at line 3",
                "invalid type: integer `1`, expected a table of keys at line 3",
            ),
            (
                "unknown field `a`, expected `b`",
                "unknown key `a`, expected `b`",
            ),
            ("missing field `a`", "`a` is missing"),
            ("wanted string or table", "expected a text in quotes"),
            (
                "wanted exactly 1 element, more than 1 element",
                "expected one key, and there are several",
            ),
            ("invalid socket address syntax", super::ADDRESS),
            (
                "invalid type: integer `1`, expected socket address",
                "invalid type: integer `1`, expected an address and a port, such as 127.0.0.1:8125",
            ),
            ("missing field `a` at line 3", "`a` is missing at line 3"),
            ("invalid value: string \"s3cr3t\"", "invalid value: a text"),
            ("as it is", "as it is"),
        ] {
            assert_eq!(plain(message), expected);
        }
    }
}
