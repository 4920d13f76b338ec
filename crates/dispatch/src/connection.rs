//! A connection to NATS, by its configuration.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{Client, ClientError, ConnectOptions, Event};
use http_client::redact;

use crate::config::Nats;
use crate::error::Error;

/// The work queue.
pub(crate) const STREAM: &str = "SLACKLINE_WORK";
/// Orders: `slackline.work.CLASS.TICKET`.
pub(crate) const WORK: &str = "slackline.work";
/// What workers say to the coordinator.
pub(crate) const COORDINATOR: &str = "slackline.coordinator";

/// An answer that takes longer will not come.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a cut connection is noticed: after two such pings.
const PING: Duration = Duration::from_secs(5);

/// Connects, or goes on trying in the background; it also reconnects by itself. What keeps it from
/// that is reported, once.
pub(crate) async fn connect(nats: &Nats, name: &str, report: fn(&str)) -> Result<Client, Error> {
    let url = redact(&nats.url);
    let failed = |message: String| Error::Nats {
        url: url.clone(),
        message,
    };
    let link = Arc::new(Link {
        url: url.clone(),
        trouble: Mutex::default(),
        report,
    });
    let mut options = ConnectOptions::new()
        .name(name)
        .retry_on_initial_connect()
        .request_timeout(Some(REQUEST_TIMEOUT))
        .connection_timeout(REQUEST_TIMEOUT)
        .ping_interval(PING)
        .reconnect_delay_callback(|attempts| Duration::from_millis(100 * attempts.min(20) as u64))
        .require_tls(nats.url.starts_with("tls://"))
        .event_callback(move |event| {
            let link = Arc::clone(&link);
            async move { link.note(&event) }
        });
    if let Some(ca) = &nats.ca {
        options = options.add_root_certificates(ca.clone());
    }
    if let (Some(certificate), Some(key)) = (&nats.certificate, &nats.key) {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    if let Some(file) = &nats.password_file {
        let secret = std::fs::read_to_string(file).map_err(|source| Error::File {
            path: file.clone(),
            source,
        })?;
        let secret = secret.trim().to_owned();
        options = match &nats.user {
            Some(user) => options.user_and_password(user.clone(), secret),
            None => options.token(secret),
        };
    }
    options
        .connect(&nats.url)
        .await
        .map_err(|error| failed(error.to_string()))
}

/// A connection as those see it who look after it.
struct Link {
    url: String,
    /// What was said last; empty where all is well.
    trouble: Mutex<String>,
    report: fn(&str),
}

impl Link {
    /// Says what has changed.
    fn note(&self, event: &Event) {
        let now = match event {
            Event::Connected => String::new(),
            Event::ClientError(ClientError::Other(what)) => with_advice(what),
            Event::ServerError(error) => error.to_string(),
            _ => return,
        };
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *trouble == now {
            return;
        }
        (self.report)(&match now.as_str() {
            "" => format!("NATS at {} is reached", self.url),
            now => format!("NATS at {}: {now}", self.url),
        });
        *trouble = now;
    }
}

/// What the client says of a connection that fails is a kind in two words (`ConnectErrorKind`);
/// which key may be wrong is added.
fn with_advice(what: &str) -> String {
    let advice = match what {
        "authorization violation" => "does it know nats.user, and what nats.password_file holds?",
        "DNS error" => "is the host of nats.url right?",
        "IO error" | "timed out" => {
            "does it run, listen at nats.url, and speak TLS where that begins with tls://?"
        }
        "TLS error" => {
            "does it speak TLS, is its certificate of an authority in nats.ca, and are nats.certificate and nats.key what it asks for?"
        }
        _ => return what.to_owned(),
    };
    format!("{what}: {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[test]
    fn what_is_in_the_way_is_said_once_and_then_that_it_is_over() {
        let link = Link {
            url: redact("nats://me:secret@h:4222"),
            trouble: Mutex::default(),
            report: |text| SAID.lock().unwrap().push(text.to_owned()),
        };
        let failed = |what: &str| Event::ClientError(ClientError::Other(what.to_owned()));
        for event in [
            Event::Connected,
            failed("IO error"),
            failed("IO error"),
            failed("authorization violation"),
            Event::Connected,
        ] {
            link.note(&event);
        }
        let said = SAID.lock().unwrap();
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].starts_with("NATS at nats://…@h:4222: IO error: does it run"));
        assert!(said[1].contains("nats.password_file"), "{said:?}");
        assert_eq!(said[2], "NATS at nats://…@h:4222 is reached");
    }
}
