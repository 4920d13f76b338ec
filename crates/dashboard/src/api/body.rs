//! The bodies of requests.

use axum::body::Bytes;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::reply::Refusal;

/// How a refusal of a body begins. The command line has files in its place, and leaves it out.
pub const OF_BODY: &str = "the body of the request: ";

/// A body of JSON. What is wrong with one is said in words, with the key and what is allowed.
pub(crate) fn body<T: DeserializeOwned + JsonSchema>(bytes: &Bytes) -> Result<T, Refusal> {
    let wrong = |why: String| {
        let why = format!("{OF_BODY}{why}");
        Refusal::new(StatusCode::BAD_REQUEST, why)
    };
    let keys = || keys_of::<T>().join(", ");
    // Else the readers take a list for the fields in their order.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        let why = format!("it has to be an object in JSON with the keys {}", keys());
        return Err(wrong(why));
    }
    let in_words = |error: &serde_json::Error| {
        let message = error.to_string();
        let text = tuner::spec::plain(&message);
        match message.starts_with("missing field ") {
            // The place is where the object ends, which is not to blame.
            true => {
                let missing = text.split(" at line ").next().unwrap_or(&text);
                format!("{missing}; the keys are {}", keys())
            }
            false => text,
        }
    };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let text = in_words(error.inner());
        match error.path().to_string().as_str() {
            "." | "?" => wrong(text),
            // The text names the key itself.
            _ if text.starts_with("unknown key") => wrong(text),
            key => wrong(format!("{key}: {text}")),
        }
    })?;
    match reader.end() {
        Ok(()) => Ok(read),
        Err(error) => Err(wrong(in_words(&error))),
    }
}

/// The keys of an object.
fn keys_of<T: JsonSchema>() -> Vec<String> {
    let schema = schemars::schema_for!(T);
    let properties = schema.get("properties").and_then(|it| it.as_object());
    let keys = properties.into_iter().flat_map(|it| it.keys().cloned());
    keys.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{GivenBudget, GivenConfiguration, GivenFork, GivenNote, GivenSpec};

    fn refusal<T: DeserializeOwned + JsonSchema>(text: &str) -> String {
        let read = body::<T>(&Bytes::copy_from_slice(text.as_bytes()));
        let refused = read.err().unwrap();
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        let said = refused.text().to_owned();
        said.strip_prefix(OF_BODY).unwrap().to_owned()
    }

    #[test]
    fn a_refusal_names_the_key_and_what_is_allowed() {
        let object = "it has to be an object in JSON with the keys";
        assert_eq!(refusal::<GivenNote>(""), format!("{object} text"));
        assert_eq!(refusal::<GivenNote>("[1]"), format!("{object} text"));
        assert_eq!(
            refusal::<GivenNote>("{}"),
            "`text` is missing; the keys are text"
        );
        for (said, words) in [
            (
                refusal::<GivenNote>(r#"{"text": 5}"#),
                ["text: ", "integer `5`", "expected a text"],
            ),
            (
                refusal::<GivenNote>(r#"{"txt": "a"}"#),
                ["unknown key `txt`", "expected", "`text`"],
            ),
            (
                refusal::<GivenSpec>(r#"{"spec": "", "format": "yaml"}"#),
                ["format: ", "unknown value `yaml`", "`toml` or `json`"],
            ),
            (
                refusal::<GivenFork>(r#"{"dir": {}}"#),
                ["dir: ", "map", "expected"],
            ),
            (
                refusal::<GivenConfiguration>(r#"{"configuration": {"x": [1]}}"#),
                [
                    "configuration.x: ",
                    "expected true, false, a number or a text",
                    "",
                ],
            ),
            (
                refusal::<GivenBudget>(r#"{"evaluations": 8, "no_wall_time": 1}"#),
                ["no_wall_time: ", "integer `1`", "expected true or false"],
            ),
            (
                refusal::<GivenNote>(r#"{"text": "a"} {"#),
                ["trailing", "", ""],
            ),
        ] {
            for word in words {
                assert!(said.contains(word), "{word}: {said}");
            }
        }
    }
}
