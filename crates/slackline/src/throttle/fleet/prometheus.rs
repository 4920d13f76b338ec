//! Instant queries to a Prometheus server, or to a store with the same interface
//! (prometheus.io/docs/prometheus/latest/querying/api).

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

/// No answer is longer: 10,000 services with a histogram each have about 30 MiB.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// Prometheus itself gives up after two minutes by default (`--query.timeout`).
const ANSWER_MAX: Duration = Duration::from_secs(130);

/// A server, and what asking it has cost.
pub(super) struct Prometheus {
    agent: ureq::Agent,
    url: String,
    /// The URL without a login: for messages and reports.
    pub(super) shown: String,
    at: Option<String>,
    /// What the server said beside its answers.
    pub(super) warnings: BTreeSet<String>,
    pub(super) queries: usize,
    pub(super) took: Duration,
}

/// One series' value.
pub(super) struct Series {
    labels: HashMap<String, String>,
    pub(super) value: f64,
}

impl Series {
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

#[derive(Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
enum Answer {
    Success {
        data: Data,
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
enum Data {
    Vector(Vec<Sample>),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Sample {
    metric: HashMap<String, String>,
    /// Time in seconds, and the value as text.
    value: (f64, String),
}

impl Prometheus {
    /// `at`: as of then instead of now.
    pub(super) fn new(url: &str, at: Option<&str>) -> anyhow::Result<Self> {
        let shown = tuner::spec::without_login(url.trim_end_matches('/'));
        ensure!(
            load::is_url(url),
            "--prometheus {shown}: it must begin with http:// or https://"
        );
        if let Err(reason) = load::check_url(url) {
            bail!("--prometheus {shown}: {reason}");
        }
        let config = load::client(ANSWER_MAX).http_status_as_error(false);
        Ok(Self {
            agent: config.build().new_agent(),
            url: url.trim_end_matches('/').to_owned(),
            shown,
            at: at.map(str::to_owned),
            warnings: BTreeSet::new(),
            queries: 0,
            took: Duration::ZERO,
        })
    }

    /// The series of an instant vector whose values are numbers: 0/0 of a group that did nothing is none.
    pub(super) fn ask(&mut self, query: &str) -> anyhow::Result<Vec<Series>> {
        let start = Instant::now();
        let mut form = vec![("query", query)];
        form.extend(self.at.as_deref().map(|at| ("time", at)));
        let url = format!("{}/api/v1/query", self.url);
        let sent = self.agent.post(&url).send_form(form);
        let url = format!("{}/api/v1/query", self.shown);
        let mut response = sent.with_context(|| {
            format!(
                "{url} cannot be asked; is Prometheus running, and is --prometheus its base URL?"
            )
        })?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let text = body
            .read_to_string()
            .with_context(|| format!("the answer of {url}"))?;
        self.queries += 1;
        self.took += start.elapsed();
        let Ok(answer) = serde_json::from_str(&text) else {
            let beginning: String = text.trim().chars().take(80).collect();
            let advice = match status.as_u16() {
                401 | 403 => "it wants another login: --prometheus http://USER:PASSWORD@HOST",
                500.. => "it, or what stands before it, is in trouble",
                _ => "--prometheus must be the base URL of a Prometheus server",
            };
            bail!("{url} answered {status} and {beginning:?}: {advice}");
        };
        match answer {
            Answer::Success {
                data: Data::Vector(samples),
                warnings,
            } => {
                self.warnings.extend(warnings);
                Ok(samples.into_iter().filter_map(series).collect())
            }
            Answer::Success {
                data: Data::Other, ..
            } => bail!("{url} answered {query} with something else than an instant vector"),
            Answer::Error { kind, error } => {
                let hint = if error.contains("too many samples") || kind == "timeout" {
                    "; take a shorter --window-s, or raise the server's --query.max-samples or --query.timeout"
                } else {
                    ""
                };
                bail!("Prometheus refused {query}: {kind}: {error}{hint}")
            }
        }
    }
}

fn series(sample: Sample) -> Option<Series> {
    let value: f64 = sample.value.1.parse().ok()?;
    value.is_finite().then_some(Series {
        labels: sample.metric,
        value,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// A server that answers one query with these bytes.
    fn answering(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 4096];
            let count = stream.read(&mut asked).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&asked[..count]).to_lowercase()
        });
        (address, serving)
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
            let (address, serving) = answering(answer);
            let url = format!("http://me:secret@{address}/");
            let mut server = Prometheus::new(&url, None).unwrap();
            let error = format!("{:#}", server.ask("up").err().unwrap());
            // "me:secret" in Base64.
            let asked = serving.join().unwrap();
            assert!(
                asked.contains("authorization: basic bwu6c2vjcmv0"),
                "{asked}"
            );
            assert!(error.contains(advice), "{error}");
            assert!(
                error.contains(&format!("http://…@{address}/api")),
                "{error}"
            );
            assert!(!error.contains("secret"), "{error}");
            assert_eq!(server.shown, format!("http://…@{address}"));
        }
    }
}
