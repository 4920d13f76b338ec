//! An address of HTTP whose text never shows its credentials.

use std::fmt;

use ureq::http::Uri;

use crate::redaction::redact;

/// An address of HTTP that can be asked. `Display` and `Debug` mask user, password and secrets.
///
/// ```
/// let url = http_client::Url::parse("http://me:secret@h:9090/a").unwrap();
/// assert_eq!(format!("{url} {url:?}"), "http://…@h:9090/a http://…@h:9090/a");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Url(String);

impl Url {
    /// Checks an address.
    ///
    /// # Errors
    /// As [`check_url`].
    pub fn parse(text: &str) -> Result<Self, String> {
        check_url(text)?;
        Ok(Self(text.to_owned()))
    }

    /// This address with `path` after it, as in `base.join("api/v1/query")`.
    #[must_use]
    pub fn join(&self, path: &str) -> Self {
        Self(format!("{}/{path}", self.0.trim_end_matches('/')))
    }

    /// The whole address, credentials included. Give it to a client, and put it into no text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact(&self.0))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Keeps a [`Url`] whole in a private file: `#[serde(with = "http_client::exposed")]`.
pub mod exposed {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use super::Url;

    /// Writes the whole address.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(url: &Url, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(url.expose())
    }

    /// Reads and checks an address.
    ///
    /// # Errors
    /// It is no address of HTTP.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Url, D::Error> {
        let text = String::deserialize(deserializer)?;
        Url::parse(&text).map_err(D::Error::custom)
    }
}

/// Whether `text` is an address of HTTP, with or without TLS.
#[must_use]
pub fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    ["http", "https"].contains(&scheme.to_ascii_lowercase().as_str())
}

/// Whether `text` is an address of HTTP that can be asked: it has a host, and only characters that
/// an address can have.
///
/// # Errors
/// What is wrong with it, without anything that may be a password.
///
/// ```
/// assert!(http_client::check_url("http://[::1]:8080/a?b=%20").is_ok());
/// assert!(http_client::check_url("http://127.0.0.1:99999/").is_err());
/// assert!(http_client::check_url("http://127.0.0.1:0/").is_err());
/// ```
pub fn check_url(text: &str) -> Result<(), String> {
    if !is_url(text) {
        return Err("it has to begin with http:// or https://".to_owned());
    }
    if text.contains('…') {
        return Err("its login is masked (…): write user and password again".to_owned());
    }
    if text.contains(char::is_whitespace) {
        return Err("a space has to be written as %20".to_owned());
    }
    let uri: Uri = text
        .parse()
        .map_err(|error| format!("it is no address of HTTP: {error}"))?;
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let host_and_port = authority.rsplit('@').next().unwrap_or_default();
    // The colons within brackets are those of an address of IPv6.
    let port = host_and_port
        .rsplit(']')
        .next()
        .and_then(|rest| rest.split_once(':'));
    match port {
        Some((_, port)) if !port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Err(if text.contains('@') {
                // The port may be the beginning of a password with a slash in it.
                "a port has to be 1 to 65535, and a / in a password has to be written as %2F"
                    .to_owned()
            } else {
                format!("{port:?} is no port: it has to be 1 to 65535")
            })
        }
        _ => Ok(()),
    }
}

/// Whether `method` can be sent: capitals, with digits, `-` and `_` after the first. CONNECT asks
/// for a tunnel, not an answer.
///
/// # Errors
/// What is wrong with it.
pub fn check_method(method: &str) -> Result<(), String> {
    let is_token = method.starts_with(|first: char| first.is_ascii_uppercase())
        && method.bytes().all(|byte| {
            byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"-_".contains(&byte)
        });
    if !is_token {
        return Err(format!(
            "{method:?} is no method: write it in capitals, as in GET or PURGE"
        ));
    }
    if method == "CONNECT" {
        return Err("CONNECT opens a tunnel: it cannot be sent as load".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_asked_is_refused_with_the_reason() {
        for text in [
            "http://127.0.0.1:8080/a?b=c#d",
            "HTTPS://example.org",
            "http://user:pass@[::1]:8080/",
            "http://[::1]/a:b",
        ] {
            assert_eq!(check_url(text), Ok(()), "{text}");
        }
        for (text, why) in [
            ("127.0.0.1:80", "begin with http://"),
            ("ftp://a/", "begin with http://"),
            ("http://", "no address"),
            ("http:///a", "no address"),
            ("http://h/a b", "%20"),
            ("http://h:99999/", "\"99999\" is no port"),
            ("http://h:x/", "no"),
            ("http://…@h/", "masked"),
            ("http://me:a/b@h/", "%2F"),
        ] {
            let error = check_url(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let error = check_url("http://me:hunter/2@h/").unwrap_err();
        assert!(!error.contains("hunter"), "{error}");
    }

    #[test]
    fn an_address_is_shown_without_its_login_and_kept_whole() {
        let url = Url::parse("http://me:s3cr3t@h:9/a/").unwrap();
        let joined = url.join("api");
        assert_eq!(joined.expose(), "http://me:s3cr3t@h:9/a/api");
        for shown in [
            joined.to_string(),
            format!("{joined:?}"),
            format!("{:?}", Some(&url)),
        ] {
            assert!(
                !shown.contains("s3cr3t") && !shown.contains("me:"),
                "{shown}"
            );
        }
    }
}
