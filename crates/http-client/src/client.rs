//! The client: what it sends, what it takes as an answer, and whom it believes over TLS.

use std::fmt::Display;
use std::time::Duration;

use ureq::config::ConfigBuilder;
use ureq::http::{Request, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::typestate::AgentScope;

use crate::redaction::redact;
use crate::url::Url;

/// Why there is no answer. No text of an error shows credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server cannot be reached, or its answer breaks off or is too long.
    #[error("{url}: {reason}")]
    NoAnswer {
        /// The address.
        url: Url,
        /// The reason.
        reason: String,
    },
    /// The server answers with a status of 400 or above.
    #[error("{url} answered {status}")]
    Status {
        /// The address.
        url: Url,
        /// The status.
        status: StatusCode,
    },
    /// The answer is none of Prometheus.
    #[error("{url} answered {status} and {beginning:?}: {}", advice(*status))]
    NotPrometheus {
        /// The address.
        url: Url,
        /// The status.
        status: StatusCode,
        /// How the answer begins.
        beginning: String,
    },
    /// Prometheus refuses a query.
    #[error("Prometheus refused {query}: {kind}: {message}")]
    Refused {
        /// The query.
        query: String,
        /// Prometheus's word for the kind of error.
        kind: String,
        /// Prometheus's message.
        message: String,
    },
}

/// What to do about an answer that is none of Prometheus.
fn advice(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 | 403 => "it wants another login: http://USER:PASSWORD@HOST",
        500.. => "it, or a proxy before it, is in trouble",
        _ => "the address must be the base URL of a Prometheus server",
    }
}

/// A configuration of `ureq` that gives up after `timeout`. Over TLS it trusts the certificates
/// that the machine trusts: those in `/etc/ssl/certs`, or in `SSL_CERT_FILE` where that is set.
pub fn config(timeout: Duration) -> ConfigBuilder<AgentScope> {
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier);
    ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .tls_config(tls.build())
}

/// An HTTP client.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) agent: ureq::Agent,
    timeout: Duration,
}

impl Client {
    /// A client that gives up after `timeout`.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        let agent = config(timeout).http_status_as_error(false).build().into();
        Self { agent, timeout }
    }

    /// Sends a request with a body, and reads no answer beyond the status.
    ///
    /// # Errors
    /// There is no answer, or its status is 400 or above.
    pub fn send(&self, method: &str, url: &Url, body: &str) -> Result<(), Error> {
        let request = Request::builder().method(method).uri(url.expose());
        let request = request.body(body).map_err(|error| no_answer(url, error))?;
        let sent = if body.is_empty() {
            self.agent.run(request.map(|_| ()))
        } else {
            self.agent.run(request)
        };
        self.accepted(url, sent).map(drop)
    }

    /// The text at an address.
    ///
    /// # Errors
    /// There is no answer, its status is 400 or above, it is longer than `bytes_max`, or it is not
    /// UTF-8.
    pub fn text(&self, url: &Url, bytes_max: u64) -> Result<String, Error> {
        let mut response = self.accepted(url, self.agent.get(url.expose()).call())?;
        // `ureq` refuses a body of exactly its limit.
        let body = response
            .body_mut()
            .with_config()
            .limit(bytes_max.saturating_add(1));
        body.read_to_string()
            .map_err(|error| self.failed(url, &error))
    }

    fn accepted(&self, url: &Url, sent: Result<Response, ureq::Error>) -> Result<Response, Error> {
        let response = sent.map_err(|error| self.failed(url, &error))?;
        let status = response.status();
        if status.as_u16() >= 400 {
            let url = url.clone();
            return Err(Error::Status { url, status });
        }
        Ok(response)
    }

    /// Why a request has no answer, or no whole one.
    pub(crate) fn failed(&self, url: &Url, error: &ureq::Error) -> Error {
        match error {
            ureq::Error::Timeout(_) => {
                let limit_s = self.timeout.as_secs_f64();
                no_answer(url, format!("no answer within {limit_s} s"))
            }
            error => no_answer(url, error),
        }
    }
}

type Response = ureq::http::Response<ureq::Body>;

fn no_answer(url: &Url, error: impl Display) -> Error {
    Error::NoAnswer {
        url: url.clone(),
        reason: redact(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::answering;

    #[test]
    fn a_body_and_a_login_are_sent_and_the_login_is_shown_nowhere() {
        let (address, asked) = answering("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
        let url = Url::parse(&format!("http://me:secret@{address}/reload")).unwrap();
        let client = Client::new(Duration::from_secs(5));
        let error = client.send("POST", &url, "x=1").unwrap_err();
        let asked = asked.join().unwrap();
        // "me:secret" in Base64.
        assert!(
            asked.contains("authorization: basic bwu6c2vjcmv0"),
            "{asked}"
        );
        assert!(asked.ends_with("x=1"), "{asked}");
        let expected = format!("http://…@{address}/reload answered 503 Service Unavailable");
        assert_eq!(error.to_string(), expected);
        let unreachable = Url::parse("http://me:secret@127.0.0.1:9/").unwrap();
        let error = client.text(&unreachable, 10).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn a_server_that_is_silent_is_said_in_plain_words() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/metrics", silent.local_addr().unwrap());
        let client = Client::new(Duration::from_millis(500));
        let parsed = Url::parse(&url).unwrap();
        let expected = format!("{url}: no answer within 0.5 s");
        assert_eq!(client.text(&parsed, 10).unwrap_err().to_string(), expected);
        let error = client.prometheus(&parsed, "up", None).unwrap_err();
        assert!(error.to_string().ends_with(": no answer within 0.5 s"));
        // Also where an answer begins and does not end.
        let (address, _kept) = stalling("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nup");
        let url = Url::parse(&format!("http://{address}/metrics")).unwrap();
        let error = client.text(&url, 10).unwrap_err().to_string();
        assert!(error.ends_with(": no answer within 0.5 s"), "{error}");
    }

    /// A server that writes these bytes and stays: its address, and the connection.
    fn stalling(answer: &'static str) -> (String, std::sync::mpsc::Receiver<std::net::TcpStream>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
            let _ = sender.send(stream);
        });
        (address, receiver)
    }

    #[test]
    fn a_text_is_read_up_to_its_bound() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nup 1\n";
        let client = Client::new(Duration::from_secs(5));
        let read = |bytes_max| {
            let (address, asked) = answering(answer);
            let url = Url::parse(&format!("http://{address}/metrics")).unwrap();
            let text = client.text(&url, bytes_max);
            asked.join().unwrap();
            text
        };
        assert_eq!(read(5).unwrap(), "up 1\n");
        assert!(read(3).is_err());
    }
}
