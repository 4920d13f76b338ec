//! Instant queries to a Prometheus server, or to a store with the same interface
//! (prometheus.io/docs/prometheus/latest/querying/api).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::client::{Client, Error};
use crate::url::Url;

/// No answer is longer: 10,000 services with a histogram each have about 30 MiB.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// So much of an answer that is none of Prometheus is shown.
const BEGINNING_CHARS: usize = 80;

/// What Prometheus answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The result.
    pub data: Data,
    /// What the server says beside it.
    pub warnings: Vec<String>,
}

/// A result. Values may be NaN or infinite.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Data {
    /// A number without a series.
    Scalar(f64),
    /// A value for each series.
    Vector(Vec<Series>),
    /// The query asks for a range: so many series.
    Matrix(usize),
    /// The query is a text.
    Text,
}

/// The value of one series.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The labels, `__name__` among them.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

impl Series {
    /// The value of a label; empty where the series has none of that name.
    #[must_use]
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

impl Answer {
    /// The number, where the result is a single one that is finite.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        let number = match &self.data {
            Data::Scalar(value) => Some(*value),
            Data::Vector(series) => match series.as_slice() {
                [one] => Some(one.value),
                _ => None,
            },
            Data::Matrix(_) | Data::Text => None,
        };
        number.filter(|value| value.is_finite())
    }

    fn read(text: &str) -> Option<Result<Self, (String, String)>> {
        Some(match serde_json::from_str(text).ok()? {
            Message::Success { data, warnings } => Ok(Self {
                data: match data {
                    QueryResult::Vector(samples) => Data::Vector(
                        samples
                            .into_iter()
                            .map(|sample| {
                                Some(Series {
                                    labels: sample.metric,
                                    value: sample.value.1.parse().ok()?,
                                })
                            })
                            .collect::<Option<_>>()?,
                    ),
                    QueryResult::Scalar((_, value)) => Data::Scalar(value.parse().ok()?),
                    QueryResult::Matrix(series) => Data::Matrix(series.len()),
                    QueryResult::String(_) => Data::Text,
                },
                warnings,
            }),
            Message::Error { kind, error } => Err((kind, error)),
        })
    }
}

#[derive(Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
enum Message {
    Success {
        data: QueryResult,
        #[serde(default)]
        warnings: Vec<String>,
    },
    Error {
        #[serde(default, rename = "errorType")]
        kind: String,
        #[serde(default)]
        error: String,
    },
}

#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "snake_case")]
enum QueryResult {
    Vector(Vec<Sample>),
    Scalar(Point),
    Matrix(Vec<IgnoredAny>),
    String(IgnoredAny),
}

/// Time in seconds, and the value as text.
type Point = (f64, String);

#[derive(Deserialize)]
struct Sample {
    #[serde(default)]
    metric: BTreeMap<String, String>,
    value: Point,
}

impl Client {
    /// The value of a query now, or at `time` (seconds since 1970, or RFC 3339). `base` is the
    /// address under which the server has `/api/v1/query`.
    ///
    /// # Errors
    /// There is no answer, it is none of Prometheus, or Prometheus refuses the query.
    pub fn prometheus(&self, base: &Url, query: &str, time: Option<&str>) -> Result<Answer, Error> {
        let url = base.join("api/v1/query");
        let mut form = vec![("query", query)];
        form.extend(time.map(|time| ("time", time)));
        let sent = self.agent.post(url.expose()).send_form(form);
        let mut response = sent.map_err(|error| self.failed(&url, &error))?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let text = body
            .read_to_string()
            .map_err(|error| self.failed(&url, &error))?;
        match Answer::read(&text) {
            Some(Ok(answer)) => Ok(answer),
            Some(Err((kind, message))) => Err(Error::Refused {
                query: query.to_owned(),
                kind,
                message,
            }),
            None => Err(Error::NotPrometheus {
                url,
                status,
                beginning: text.trim().chars().take(BEGINNING_CHARS).collect(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tests::answering;

    #[test]
    fn answers_are_read() {
        let success = |kind: &str, result: &str| {
            let text = format!(
                r#"{{"status":"success","data":{{"resultType":"{kind}","result":{result}}}}}"#
            );
            Answer::read(&text).unwrap().unwrap()
        };
        let one = success("vector", r#"[{"metric":{"a":"b"},"value":[1.0,"2.5"]}]"#);
        assert_eq!(one.number(), Some(2.5));
        let Data::Vector(series) = &one.data else {
            panic!("{one:?}");
        };
        assert_eq!((series[0].label("a"), series[0].label("c")), ("b", ""));
        assert_eq!(success("vector", "[]").number(), None);
        assert_eq!(success("scalar", r#"[1,"7"]"#).number(), Some(7.0));
        assert_eq!(success("scalar", r#"[1,"NaN"]"#).number(), None);
        assert_eq!(success("matrix", "[{},{}]").data, Data::Matrix(2));
        assert_eq!(success("string", r#"[1,"x"]"#).data, Data::Text);
        let refused = Answer::read(r#"{"status":"error","errorType":"bad_data","error":"x"}"#);
        assert_eq!(refused, Some(Err(("bad_data".into(), "x".into()))));
        for garbage in ["", "{}", "[]", r#"{"status":"success"}"#, "<html>"] {
            assert_eq!(Answer::read(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn a_login_is_sent_and_never_shown() {
        for (answer, advice) in [
            (
                "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno",
                "it wants another login",
            ),
            (
                "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno",
                "is in trouble",
            ),
        ] {
            let (address, asked) = answering(answer);
            let base = Url::parse(&format!("http://me:secret@{address}/")).unwrap();
            let client = Client::new(Duration::from_secs(5));
            let error = client.prometheus(&base, "up", None).unwrap_err();
            let asked = asked.join().unwrap();
            // "me:secret" in Base64.
            assert!(
                asked.contains("authorization: basic bwu6c2vjcmv0"),
                "{asked}"
            );
            assert!(asked.ends_with("query=up"), "{asked}");
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(advice), "{shown}");
            assert!(
                shown.contains(&format!("http://…@{address}/api")),
                "{shown}"
            );
            assert!(!shown.contains("secret"), "{shown}");
        }
    }
}
