//! How Slackline asks over HTTP, and whom it believes over TLS.

use std::time::Duration;

use ureq::config::ConfigBuilder;
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
