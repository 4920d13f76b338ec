//! How Slackline asks over HTTP, and whom it believes over TLS.

use std::time::Duration;

use ureq::config::ConfigBuilder;
use ureq::http::Uri;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::typestate::AgentScope;

/// An HTTP client that gives up after `timeout`. Over TLS it trusts whom the machine trusts: the certificates in `/etc/ssl/certs`,
/// or in `SSL_CERT_FILE` where that is set, so that a company's own authority counts.
pub fn client(timeout: Duration) -> ConfigBuilder<AgentScope> {
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier);
    ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .tls_config(tls.build())
}

/// Whether `text` is an address of HTTP, with or without TLS.
#[must_use]
pub fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    ["http", "https"].contains(&scheme.to_ascii_lowercase().as_str())
}

/// Whether `text` is an address of HTTP that can be asked: with a host, and no character that an address cannot have.
///
/// # Errors
/// What is wrong with it.
///
/// ```
/// assert!(load::check_url("http://[::1]:8080/a?b=%20").is_ok());
/// assert!(load::check_url("http://127.0.0.1:99999/").is_err());
/// ```
pub fn check_url(text: &str) -> Result<(), String> {
    if !is_url(text) {
        return Err("it has to begin with http:// or https://".to_owned());
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
        Some((_, port)) if port.parse::<u16>().is_err() => {
            Err(format!("{port:?} is no port: it has to be 1 to 65535"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check_url;

    #[test]
    fn what_cannot_be_asked_is_refused_with_the_reason() {
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
        ] {
            let error = check_url(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
