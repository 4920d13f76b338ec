//! The two ways to a receiver: a signed webhook, and the host's own mail program.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use hmac::{Hmac, Mac as _};
use http_client::Url;
use jiff::Timestamp;
use serde::Deserialize;
use sha2::Sha256;

use super::events::{Event, Kind};

/// A receiver that takes longer is tried again later.
const TIMEOUT: Duration = Duration::from_secs(10);

/// `[[webhook]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Webhook {
    url: String,
    /// The key of the signature; relative to the file of receivers.
    #[serde(default)]
    secret_file: Option<PathBuf>,
    /// All, where it is left out.
    #[serde(default)]
    events: Option<Vec<Kind>>,
}

/// `[[email]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Email {
    to: Vec<String>,
    #[serde(default)]
    from: Option<String>,
    /// Takes the message on its standard input.
    #[serde(default = "sendmail")]
    command: Vec<String>,
    #[serde(default)]
    events: Option<Vec<Kind>>,
}

fn sendmail() -> Vec<String> {
    ["/usr/sbin/sendmail", "-t", "-i"].map(str::to_owned).into()
}

/// Who is told, and of what.
#[derive(Debug)]
pub(crate) struct Receiver {
    events: Option<Vec<Kind>>,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Webhook {
        url: Url,
        secret: Option<Secret>,
    },
    Email {
        to: Vec<String>,
        from: Option<String>,
        command: Vec<String>,
    },
}

/// A key that no message shows.
struct Secret(Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Webhook {
    pub(super) fn receiver(&self, dir: &Path) -> Result<Receiver, String> {
        let url = Url::parse(&self.url).map_err(|why| format!("url: {why}"))?;
        if !self.url.starts_with("http://") && !self.url.starts_with("https://") {
            return Err("url: give an address that begins with http:// or https://".into());
        }
        let secret = self.secret_file.as_ref().map(|file| {
            let path = dir.join(file);
            let read = std::fs::read(&path);
            read.map_err(|error| format!("secret_file: {}: {error}", path.display()))
        });
        let secret = secret.transpose()?.map(|mut bytes| {
            bytes.truncate(bytes.trim_ascii_end().len());
            Secret(bytes)
        });
        if secret.as_ref().is_some_and(|secret| secret.0.is_empty()) {
            return Err("secret_file: the file is empty".into());
        }
        Ok(Receiver {
            events: self.events.clone(),
            way: Way::Webhook { url, secret },
        })
    }
}

impl Email {
    pub(super) fn receiver(&self) -> Result<Receiver, String> {
        let is_address = |it: &String| {
            it.contains('@') && tuner::spec::is_line(it) && !it.contains([',', '<', '>'])
        };
        if self.to.is_empty() || !self.to.iter().all(is_address) {
            return Err("to: give one address or more, each as name@domain".into());
        }
        if self.from.as_ref().is_some_and(|from| !is_address(from)) {
            return Err("from: give an address as name@domain".into());
        }
        if self.command.is_empty() {
            return Err("command: give a program and its arguments".into());
        }
        let way = Way::Email {
            to: self.to.clone(),
            from: self.from.clone(),
            command: self.command.clone(),
        };
        Ok(Receiver {
            events: self.events.clone(),
            way,
        })
    }
}

impl Receiver {
    pub(crate) fn wants(&self, kind: Kind) -> bool {
        self.events
            .as_ref()
            .is_none_or(|events| events.contains(&kind))
    }

    /// Tells of an event, or says why that failed.
    pub(crate) fn send(&self, event: &Event) -> Result<(), String> {
        match &self.way {
            Way::Webhook { url, secret } => post(url, secret.as_ref(), event),
            Way::Email { to, from, command } => mail(to, from.as_deref(), command, event),
        }
    }
}

/// HMAC-SHA256 (RFC 2104) of the moment and the body, so that a message that somebody kept cannot
/// be sent again later.
fn signature(secret: &[u8], at_s: i64, body: &str) -> String {
    // A key may have any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else {
        return String::new();
    };
    mac.update(format!("{at_s}.{body}").as_bytes());
    host::hex::encode(&mac.finalize().into_bytes())
}

fn post(url: &Url, secret: Option<&Secret>, event: &Event) -> Result<(), String> {
    let redacted = |text: String| http_client::redact(&text);
    let body = serde_json::to_string(event).map_err(|error| error.to_string())?;
    // An answer that leads elsewhere is a refusal: what is signed goes where it was meant to.
    let config = http_client::config(TIMEOUT)
        .http_status_as_error(false)
        .max_redirects(0);
    let agent: ureq::Agent = config.max_redirects_will_error(false).build().into();
    let mut request = agent
        .post(url.expose())
        .header("content-type", "application/json")
        .header("slackline-event", event.event.name())
        .header("slackline-event-number", event.number.to_string());
    if let Some(secret) = secret {
        let at_s = Timestamp::now().as_second();
        let signed = format!("t={at_s},v1={}", signature(&secret.0, at_s, &body));
        request = request.header("slackline-signature", signed);
    }
    let answer = request
        .send(body.as_bytes())
        .map_err(|error| redacted(error.to_string()))?;
    match answer.status().is_success() {
        true => Ok(()),
        false => Err(format!("the receiver answers {}", answer.status())),
    }
}

/// The message, as RFC 5322 has it: names and texts of experiments are in its body alone.
fn message(to: &[String], from: Option<&str>, event: &Event) -> String {
    let from = from.map_or_else(String::new, |from| format!("From: {from}\r\n"));
    let subject = match event.experiment {
        Some(id) => format!("Slackline: experiment {id} {}", event.event.words()),
        None => format!("Slackline {}", event.event.words()),
    };
    let date = event.at.strftime("%a, %d %b %Y %H:%M:%S +0000");
    let line = |text: &str| wrapped(&text.replace(|it: char| it.is_control(), " "));
    format!(
        "{from}To: {}\r\nSubject: {subject}\r\nDate: {date}\r\nMIME-Version: 1.0\r\n\
         Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\nAuto-Submitted: auto-generated\r\n\r\n\
         {}\r\n\r\n{}\r\n\r\n{}\r\n",
        to.join(", "),
        line(&event.name),
        line(&event.text),
        event.url
    )
}

/// The words of a text in lines of at most 78 characters, where no word is longer (RFC 5322,
/// section 2.1.1).
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut length = 0;
    for word in text.split(' ') {
        let more = word.chars().count() + 1;
        if length > 0 && length + more > 78 {
            lines.push_str("\r\n");
            length = 0;
        } else if length > 0 {
            lines.push(' ');
        }
        lines.push_str(word);
        length += more;
    }
    lines
}

fn mail(
    to: &[String],
    from: Option<&str>,
    command: &[String],
    event: &Event,
) -> Result<(), String> {
    let [program, arguments @ ..] = command else {
        return Err("there is no command".into());
    };
    let failed = |error: std::io::Error| format!("{program}: {error}");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let text = message(to, from, event);
    if let Some(mut stdin) = child.stdin.take() {
        // A program that reads nothing may still succeed.
        let _ = stdin.write_all(text.as_bytes());
    }
    let end = std::time::Instant::now() + TIMEOUT;
    loop {
        match child.try_wait().map_err(failed)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{program}: {status}")),
            None if std::time::Instant::now() > end => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "{program} did not end within {} s",
                    TIMEOUT.as_secs()
                ));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_the_one_of_the_standard() {
        // `printf '7.{}' | openssl dgst -sha256 -hmac key`
        assert_eq!(
            signature(b"key", 7, "{}"),
            "77bc83bd1f40422311e47918b203449aecf84b02c1568bb1b570ac2a474cc2d8"
        );
    }

    #[test]
    fn a_message_has_no_more_headers_than_it_should() {
        let mut event = Event::new(
            Kind::Shown,
            Timestamp::UNIX_EPOCH,
            Some(3),
            "a\r\nBcc: x@y",
            "fine\n.\nDATA",
        );
        event.url = "http://h/experiments/3".into();
        let text = message(&["ops@example.org".into()], None, &event);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(!head.contains("Bcc"), "{head}");
        assert!(
            head.contains("Subject: Slackline: experiment 3 has shown an improvement"),
            "{head}"
        );
        assert!(
            head.contains("Date: Thu, 01 Jan 1970 00:00:00 +0000"),
            "{head}"
        );
        assert!(body.starts_with("a  Bcc: x@y\r\n"), "{body}");
        assert!(
            !body.contains("\r\n.\r\n"),
            "no line of a single dot: {body}"
        );
        let long = wrapped(&"word ".repeat(100));
        assert!(long.lines().all(|line| line.len() <= 78), "{long}");
        assert_eq!(long.split_whitespace().count(), 100);
    }
}
