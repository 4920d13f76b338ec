//! A Prometheus server as a source: buckets by `le`, or one number and the requests that it stands
//! on.

use std::time::{Duration, Instant};

use http_client::{Answer, Client, Data, Url};

use crate::Error;
use crate::distribution::{Buckets, Distribution};
use crate::pace::{LOOK_EVERY, Pace};
use crate::reading::{NoData, Slice};
use crate::scrape::bound_of;
use crate::source::{LatencySource, PrometheusSpec, Surroundings, Wrong};

/// A server that takes longer is given up.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A server that is asked for each poll. The window is that of the query.
#[derive(Debug)]
pub(crate) struct Prometheus {
    spec: PrometheusSpec,
    url: Url,
    client: Client,
    quantile: f64,
    window: Duration,
    pace: Pace,
}

impl Prometheus {
    pub(crate) fn new(spec: &PrometheusSpec, surroundings: &Surroundings) -> Result<Self, Error> {
        let url = Url::parse(&spec.url).map_err(|why| Wrong::new("prometheus.url", why))?;
        Ok(Self {
            spec: spec.clone(),
            url,
            client: Client::new(TIMEOUT),
            quantile: surroundings.percentile / 100.0,
            window: spec.window()?,
            pace: Pace::new(LOOK_EVERY),
        })
    }

    fn ask(&self, query: &str) -> Result<Answer, String> {
        let answer = self.client.prometheus(&self.url, query, None);
        answer.map_err(|error| error.to_string())
    }

    fn look(&self) -> Result<Distribution, String> {
        let answer = self.ask(&self.spec.query)?;
        if let Data::Vector(series) = &answer.data {
            if series.is_empty() {
                return Ok(Distribution::Empty);
            }
            if series.iter().all(|series| !series.label("le").is_empty()) {
                if self.spec.query.contains("rate(") {
                    return Err("rate(…) gives requests per second, not how many there were: write increase(…)".to_owned());
                }
                return self.buckets(&answer).map(Distribution::Buckets);
            }
        }
        let Some(value) = answer.number().filter(|value| *value >= 0.0) else {
            // `histogram_quantile` of no request is NaN.
            return match is_nan(&answer) {
                true => Ok(Distribution::Empty),
                false => Err(format!(
                    "{:?} yields neither one number nor buckets by le",
                    self.spec.query
                )),
            };
        };
        let query = self.spec.requests.as_ref().ok_or(
            "the query yields one number: add `requests`, a query for the number of requests behind it, or ask for \
             buckets by le",
        )?;
        let requests = self.ask(query)?;
        let number = requests
            .number()
            .or_else(|| is_nothing(&requests).then_some(0.0));
        let requests = number
            .filter(|number| *number >= 0.0)
            .ok_or_else(|| format!("{query:?} yields no single number"))?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "finite and not below 0, and a cast saturates"
        )]
        let requests = requests as u64;
        Ok(match requests {
            0 => Distribution::Empty,
            requests => Distribution::Figure {
                quantile: self.quantile,
                value_us: value * self.spec.unit.us(),
                requests,
            },
        })
    }

    fn buckets(&self, answer: &Answer) -> Result<Buckets, String> {
        let Data::Vector(series) = &answer.data else {
            return Err("no buckets".to_owned());
        };
        let mut cumulative: Vec<(f64, f64)> = Vec::new();
        for series in series {
            let bound = bound_of(series.label("le")).ok_or("a bucket has no number in le")?;
            let bound_us = bound * self.spec.unit.us();
            if cumulative.iter().any(|known| known.0 == bound_us) {
                return Err("several series have the same le: ask for sum by (le) (…)".to_owned());
            }
            cumulative.push((bound_us, series.value));
        }
        Buckets::from_cumulative(cumulative)
    }
}

fn is_nan(answer: &Answer) -> bool {
    match &answer.data {
        Data::Scalar(value) => value.is_nan(),
        Data::Vector(series) => matches!(series.as_slice(), [one] if one.value.is_nan()),
        _ => false,
    }
}

fn is_nothing(answer: &Answer) -> bool {
    matches!(&answer.data, Data::Vector(series) if series.is_empty())
}

impl LatencySource for Prometheus {
    fn describe(&self) -> String {
        format!("Prometheus at {}", self.url)
    }

    fn poll(&mut self, until: Instant) -> Result<Slice, NoData> {
        self.pace.wait(until);
        let distribution = self.look().map_err(|why| NoData::Failed { why })?;
        Ok(Slice {
            distribution,
            sampled_share: 1.0,
            own_window: Some(self.window),
            ..Slice::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Unit;
    use crate::tests::serving;

    fn source(answers: &[&str], requests: Option<&str>) -> Prometheus {
        let whole = |data: &&str| format!("{{\"status\":\"success\",\"data\":{data}}}");
        let (url, _) = serving(answers.iter().map(whole).collect());
        let spec = PrometheusSpec {
            url,
            query: "q[30s]".into(),
            requests: requests.map(str::to_owned),
            window_s: None,
            unit: Unit::Seconds,
        };
        Prometheus::new(&spec, &Surroundings::default()).unwrap()
    }

    const NUMBER: &str = r#"{"resultType":"vector","result":[{"metric":{},"value":[1,"0.25"]}]}"#;

    #[test]
    fn a_number_stands_on_requests_that_are_asked_for() {
        let count = r#"{"resultType":"scalar","result":[1,"1234.6"]}"#;
        let slice = source(&[NUMBER, count], Some("c"))
            .poll(Instant::now())
            .unwrap();
        assert_eq!(slice.distribution.requests(), 1234);
        assert_eq!(slice.distribution.quantile_us(0.99), Some(250_000.0));
        let why = source(&[NUMBER], None)
            .poll(Instant::now())
            .unwrap_err()
            .to_string();
        assert!(why.contains("add `requests`"), "{why}");
    }

    #[test]
    fn buckets_have_their_own_count() {
        let buckets = r#"{"resultType":"vector","result":[{"metric":{"le":"+Inf"},"value":[1,"10"]},
            {"metric":{"le":"0.1"},"value":[1,"8"]}]}"#;
        let slice = source(&[buckets], None).poll(Instant::now()).unwrap();
        assert_eq!(
            (
                slice.distribution.requests(),
                slice.distribution.quantile_us(0.4)
            ),
            (10, Some(50_000.0))
        );
        let mut rate = source(&[buckets], None);
        rate.spec.query = "sum by (le) (rate(a_bucket[30s]))".into();
        let why = rate.poll(Instant::now()).unwrap_err().to_string();
        assert!(why.contains("increase"), "{why}");
        let twice = r#"{"resultType":"vector","result":[{"metric":{"le":"1","a":"b"},"value":[1,"1"]},
            {"metric":{"le":"1"},"value":[1,"1"]}]}"#;
        assert!(source(&[twice], None).poll(Instant::now()).is_err());
    }

    #[test]
    fn no_request_is_none_and_nothing_else_is() {
        let nan = r#"{"resultType":"vector","result":[{"metric":{},"value":[1,"NaN"]}]}"#;
        let none = r#"{"resultType":"vector","result":[]}"#;
        for answer in [nan, none] {
            assert_eq!(
                source(&[answer], None)
                    .poll(Instant::now())
                    .unwrap()
                    .distribution
                    .requests(),
                0
            );
        }
        let two = r#"{"resultType":"vector","result":[{"metric":{"a":"1"},"value":[1,"1"]},
            {"metric":{"a":"2"},"value":[1,"1"]}]}"#;
        assert!(source(&[two], None).poll(Instant::now()).is_err());
    }
}
