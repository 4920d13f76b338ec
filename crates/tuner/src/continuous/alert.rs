//! Whether an alert fires: an instant query of Prometheus
//! (prometheus.io/docs/prometheus/latest/querying/api).

use http_client::{Answer, Data, Url};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::client::client;
use crate::spec::AlertSpec;

/// An answer to the alert query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Alert {
    /// No alert fires: the query yields nothing.
    Quiet,
    /// An alert fires: the query yields this number of series.
    Firing(usize),
    /// The query was not answered, for this reason. This counts as an alert that fires.
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

/// Asks Prometheus.
pub fn ask(alert: &AlertSpec) -> Alert {
    let url = match Url::parse(&alert.prometheus) {
        Ok(url) => url,
        Err(why) => return Alert::Unreachable(format!("continuous.alert.prometheus: {why}")),
    };
    match client().prometheus(&url, &alert.query, None) {
        Ok(answer) => read(&answer),
        Err(error) => Alert::Unreachable(error.to_string()),
    }
}

fn read(answer: &Answer) -> Alert {
    match &answer.data {
        Data::Vector(series) if series.is_empty() => Alert::Quiet,
        Data::Matrix(0) => Alert::Quiet,
        Data::Vector(series) => Alert::Firing(series.len()),
        Data::Matrix(count) => Alert::Firing(*count),
        _ => Alert::Unreachable("the query yields no series: ask for an instant vector".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use http_client::Series;

    use super::*;

    #[test]
    fn no_series_is_quiet_and_a_text_is_not() {
        let read = |data| {
            read(&Answer {
                data,
                warnings: Vec::new(),
            })
        };
        assert_eq!(read(Data::Vector(Vec::new())), Alert::Quiet);
        assert_eq!(read(Data::Matrix(0)), Alert::Quiet);
        let one = Series {
            labels: BTreeMap::new(),
            value: f64::NAN,
        };
        assert_eq!(read(Data::Vector(vec![one])), Alert::Firing(1));
        assert!(matches!(read(Data::Text), Alert::Unreachable(_)));
    }

    #[test]
    fn a_server_that_does_not_answer_counts_as_firing_and_its_password_is_not_shown() {
        let alert = AlertSpec {
            prometheus: "http://me:s3cr3t@127.0.0.1:1".into(),
            query: "ALERTS".into(),
        };
        let Alert::Unreachable(why) = ask(&alert) else {
            panic!("it is answered");
        };
        assert!(why.contains("http://…@127.0.0.1:1/api/v1/query"), "{why}");
        assert!(!why.contains("s3cr3t"), "{why}");
    }
}
