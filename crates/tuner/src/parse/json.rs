//! Metrics from JSON by path: `latency.p99`, `jobs[0].read.iops`, `percentile["99.000000"]`.

use std::collections::BTreeMap;

use experiment_spec::{JsonStep, json_steps};
use serde_json::Value;

use super::error::ParseError;
use super::report::{Report, first_lines, shown};

/// How many lines are tried as the beginning of the JSON document.
const MAX_BEGINNINGS: usize = 64;

/// Reads one number per metric from JSON output, in the unit that the document has.
///
/// `paths` maps a metric to a path: keys separated by dots, `[0]` for an element of an array,
/// `["a.b"]` for a key that holds a dot, an optional `$.` in front. Lines before the document
/// (warnings) are passed over. A string that holds a number is taken as the number.
///
/// # Errors
/// [`ParseError::NotJson`]; [`ParseError::JsonPath`] says up to where the path leads;
/// [`ParseError::NotANumber`] for what it leads to; [`ParseError::SeveralDocuments`] if the paths
/// lead to numbers in more than one document.
///
/// ```
/// let paths = [("p99_ms".to_string(), "latency[0].p99".to_string())].into();
/// let metrics = tuner::parse::parse_json(&paths, r#"{"latency": [{"p99": 1.5}]}"#)?;
/// assert_eq!(metrics["p99_ms"], 1.5);
/// # Ok::<(), tuner::parse::ParseError>(())
/// ```
pub fn parse_json(
    paths: &BTreeMap<String, String>,
    text: &str,
) -> Result<BTreeMap<String, f64>, ParseError> {
    let json = first_value(text).map_err(|message| ParseError::NotJson {
        message,
        got: first_lines(text),
    })?;
    let metrics = numbers_of(paths, &json)?;
    let documents = all_values(text);
    let with_all = documents.iter().filter(|it| numbers_of(paths, it).is_ok());
    match with_all.count() {
        0 | 1 => Ok(metrics),
        count => Err(ParseError::SeveralDocuments { count }),
    }
}

/// The number that each path leads to in one document.
fn numbers_of(
    paths: &BTreeMap<String, String>,
    json: &Value,
) -> Result<BTreeMap<String, f64>, ParseError> {
    paths
        .iter()
        .map(|(metric, path)| {
            let found = follow(json, path).map_err(|message| ParseError::JsonPath {
                metric: metric.clone(),
                path: path.clone(),
                message,
            })?;
            let value = match found {
                Value::Number(number) => number.as_f64(),
                Value::String(text) => text.trim().parse().ok(),
                _ => None,
            };
            match value.filter(|value| value.is_finite()) {
                Some(value) => Ok((metric.clone(), value)),
                None => Err(ParseError::NotANumber {
                    metric: metric.clone(),
                    found: found.to_string().chars().take(80).collect(),
                }),
            }
        })
        .collect()
}

/// The JSON document in an output: all of it, or what begins on a later line.
pub(super) fn first_value(text: &str) -> Result<Value, String> {
    let mut error = None;
    let mut at = 0;
    let mut beginnings = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with(['{', '[']) && beginnings < MAX_BEGINNINGS {
            beginnings += 1;
            let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
            match values.next() {
                // A log line like "[1] started" is an array too.
                Some(Ok(value)) if value.is_object() || beginnings == 1 && at == 0 => {
                    return Ok(value);
                }
                Some(Err(e)) if error.is_none() => error = Some(e.to_string()),
                _ => {}
            }
        }
        at += line.len();
    }
    Err(error.unwrap_or_else(|| "no line begins with { or [".to_owned()))
}

/// The last JSON object in an output, of tools that print one at each interval. One that is cut off
/// at the end is an error.
pub(super) fn last_object(text: &str) -> Result<Value, String> {
    let (mut values, error) = scan(text);
    values.retain(Value::is_object);
    match (error, values.pop()) {
        (Some(error), _) => Err(error),
        (None, last) => last.ok_or_else(|| "no line begins with {".to_owned()),
    }
}

/// The JSON object of an output that has one of these keys, of which the first is in every complete
/// report. Of two reports neither is taken.
pub(super) fn only_object(
    report: &Report<'_>,
    text: &str,
    keys: &[&'static str],
    looked_for: &'static str,
) -> Result<Value, ParseError> {
    let (mut objects, error) = scan(text);
    objects.retain(|value| keys.iter().any(|key| value.get(key).is_some()));
    let last = objects.pop().filter(|_| error.is_none());
    let last = last.ok_or_else(|| report.missing(looked_for))?;
    match (objects.len(), keys) {
        (others @ 1.., [key, ..]) => {
            Err(report.several(format!("{} JSON objects with `{key}`", others + 1)))
        }
        _ => Ok(last),
    }
}

/// Every JSON object and array that begins a line of the output.
pub(super) fn all_values(text: &str) -> Vec<Value> {
    scan(text).0
}

/// The documents that begin a line, and the error of one that is cut off.
fn scan(text: &str) -> (Vec<Value>, Option<String>) {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..) {
        let begins = rest.trim_start();
        let from = at + (rest.len() - begins.len());
        if begins.starts_with(['{', '[']) {
            let mut values = serde_json::Deserializer::from_str(begins).into_iter::<Value>();
            match values.next() {
                Some(Ok(value)) => {
                    found.push(value);
                    at = from + values.byte_offset();
                    continue;
                }
                Some(Err(error)) if error.is_eof() => return (found, Some(error.to_string())),
                _ => {}
            }
        }
        // No document: a line of a log, such as "[1] started".
        match begins.find('\n') {
            Some(end) => at = from + end + 1,
            None => break,
        }
    }
    (found, None)
}

fn follow<'a>(json: &'a Value, path: &str) -> Result<&'a Value, String> {
    let mut value = json;
    for step in json_steps(path)? {
        let next = match &step {
            JsonStep::Key(key) => value.get(key),
            JsonStep::Index(index) => value.get(index),
        };
        value = next.ok_or_else(|| match (&step, value) {
            (JsonStep::Key(key), Value::Object(object)) => {
                let keys: Vec<String> = object.keys().take(12).map(|key| shown(key)).collect();
                format!("no key `{key}`; there are: {}", keys.join(", "))
            }
            (JsonStep::Key(key), _) => format!("no object where `{key}` is looked for"),
            (JsonStep::Index(index), Value::Array(array)) => {
                format!("no element [{index}] in an array of {}", array.len())
            }
            (JsonStep::Index(index), _) => format!("no array where [{index}] is looked for"),
        })?;
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use experiment_spec::check_json_path;
    use proptest::prelude::*;

    fn read(path: &str, text: &str) -> Result<f64, ParseError> {
        let paths = [("m".to_owned(), path.to_owned())].into();
        parse_json(&paths, text).map(|metrics| metrics["m"])
    }

    #[test]
    fn paths_lead_to_numbers() {
        let text = r#"{"a": {"b": [1, {"c.d": "2.5"}]}, "99.9": 7}"#;
        assert_eq!(read("a.b[0]", text), Ok(1.0));
        assert_eq!(read("$.a.b[1][\"c.d\"]", text), Ok(2.5));
        assert_eq!(read("a['b'][0]", text), Ok(1.0));
        assert_eq!(read("['99.9']", text), Ok(7.0));
        assert_eq!(read("[1]", "[3, 4]"), Ok(4.0));
    }

    #[test]
    fn warnings_before_the_document_are_passed_over() {
        assert_eq!(
            read("a", "note: psync\n[1] started\n{\n\"a\": 3}\nbye"),
            Ok(3.0)
        );
    }

    #[test]
    fn of_two_documents_with_the_paths_neither_is_taken() {
        assert_eq!(read("a", "{\"a\": 3}\n{\"b\": 4}\n"), Ok(3.0));
        let twice = read("a", "{\"a\": 3}\n{\"a\": 4}\n").unwrap_err();
        assert_eq!(twice, ParseError::SeveralDocuments { count: 2 });
    }

    #[test]
    fn an_error_says_where_the_path_ends() {
        let message = |path| read(path, r#"{"a": {"b": [1]}}"#).unwrap_err().to_string();
        assert_eq!(
            message("a.c"),
            "metric `m`: JSON path `a.c`: no key `c`; there are: b"
        );
        assert_eq!(
            message("a.b[3]"),
            "metric `m`: JSON path `a.b[3]`: no element [3] in an array of 1"
        );
        assert_eq!(message("a.b"), "metric `m`: `[1]` is not a finite number");
        let long = format!("{{\"{}\": 1}}", "k".repeat(100_000));
        let long = read("a", &long).unwrap_err().to_string();
        assert!(long.len() < 300, "{} bytes", long.len());
        let cut = read("a", "{\"a\": ").unwrap_err().to_string();
        assert!(
            cut.starts_with("the output is not JSON (EOF while"),
            "{cut}"
        );
        assert!(matches!(read("a", ""), Err(ParseError::NotJson { .. })));
    }

    #[test]
    fn malformed_paths() {
        for path in [
            "", "$", "a..b", "a.", "a[", "a[x]", "a[-1]", "a['b", "a['b'", "a[0]b", ".", "[]",
            "a[é",
        ] {
            assert!(check_json_path(path).is_err(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(path in ".{0,20}", text in "[\\[\\]{}\":,a-c0-9.\\n ]{0,60}") {
            let _ = check_json_path(&path);
            let _ = read(&path, &text);
        }
    }
}
