//! Whether an alert fires: an instant query of Prometheus (prometheus.io/docs/prometheus/latest/querying/api).

use serde::{Deserialize, Serialize};

use crate::spec::AlertSpec;
use crate::target::agent;

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alert {
    /// The query yields nothing.
    Quiet,
    /// It yields so many series.
    Firing(usize),
    /// It was not answered, which counts as firing.
    Unreachable(String),
}

impl std::fmt::Display for Alert {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Quiet => f.write_str("no alert fires"),
            Self::Firing(count) => write!(f, "an alert fires ({count} series)"),
            Self::Unreachable(why) => {
                write!(
                    f,
                    "the alert query is not answered, which counts as firing: {why}"
                )
            }
        }
    }
}

/// Asks.
pub fn ask(alert: &AlertSpec) -> Alert {
    let url = format!("{}/api/v1/query", alert.prometheus.trim_end_matches('/'));
    let answer = agent()
        .get(&url)
        .query("query", &alert.query)
        .call()
        .and_then(|mut response| response.body_mut().read_json::<serde_json::Value>());
    match answer {
        Ok(answer) => read(&answer),
        Err(error) => Alert::Unreachable(format!("{url}: {error}")),
    }
}

fn read(answer: &serde_json::Value) -> Alert {
    let kind = answer["data"]["resultType"].as_str();
    match (kind, answer["data"]["result"].as_array()) {
        (Some("vector" | "matrix"), Some(series)) if series.is_empty() => Alert::Quiet,
        (Some("vector" | "matrix"), Some(series)) => Alert::Firing(series.len()),
        _ => Alert::Unreachable(format!(
            "not a vector: {}",
            answer.to_string().chars().take(200).collect::<String>()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_yields_nothing_is_quiet_and_what_is_not_understood_is_not() {
        let vector = |result: serde_json::Value| serde_json::json!({"status": "success", "data": {"resultType": "vector", "result": result}});
        assert_eq!(read(&vector(serde_json::json!([]))), Alert::Quiet);
        let one = serde_json::json!([{"metric": {}, "value": [1.0, "1"]}]);
        assert_eq!(read(&vector(one)), Alert::Firing(1));
        let error = serde_json::json!({"status": "error", "error": "parse error"});
        assert!(matches!(read(&error), Alert::Unreachable(_)));
    }

    #[test]
    fn a_server_that_does_not_answer_counts_as_firing() {
        let alert = AlertSpec {
            prometheus: "http://127.0.0.1:1".into(),
            query: "ALERTS".into(),
        };
        assert!(matches!(ask(&alert), Alert::Unreachable(_)));
    }
}
