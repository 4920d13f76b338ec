//! A connection to NATS, by its configuration.

use std::time::Duration;

use async_nats::{Client, ConnectOptions};

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

/// Connects, or goes on trying in the background; it also reconnects by itself.
pub(crate) async fn connect(nats: &Nats, name: &str) -> Result<Client, Error> {
    let failed = |message: String| Error::Nats {
        url: nats.url.clone(),
        message,
    };
    let mut options = ConnectOptions::new()
        .name(name)
        .retry_on_initial_connect()
        .request_timeout(Some(REQUEST_TIMEOUT))
        .connection_timeout(REQUEST_TIMEOUT)
        .ping_interval(PING)
        .reconnect_delay_callback(|attempts| Duration::from_millis(100 * attempts.min(20) as u64))
        .require_tls(nats.url.starts_with("tls://"));
    if let Some(ca) = &nats.ca {
        readable(ca)?;
        options = options.add_root_certificates(ca.clone());
    }
    if let (Some(certificate), Some(key)) = (&nats.certificate, &nats.key) {
        readable(certificate)?;
        readable(key)?;
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

fn readable(path: &std::path::Path) -> Result<(), Error> {
    match std::fs::File::open(path) {
        Ok(_) => Ok(()),
        Err(source) => Err(Error::File {
            path: path.to_owned(),
            source,
        }),
    }
}
