//! TLS: whom the machine trusts, and which protocols are offered.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use rustls_platform_verifier::BuilderVerifierExt as _;

use crate::Error;

/// How a run speaks TLS.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// TLS to a host: certificates count that the machine trusts, in `/etc/ssl/certs` or
    /// `SSL_CERT_FILE`.
    ///
    /// # Errors
    /// The machine's certificates cannot be read, or no certificate can be for such a host.
    pub(crate) fn to(host: &str, is_http2: bool) -> Result<Self, Error> {
        let error = |reason: String| Error::Number {
            what: "TLS",
            reason,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(rustls::ConfigBuilder::with_platform_verifier)
            .map_err(|why| error(why.to_string()))?
            .with_no_client_auth();
        config.alpn_protocols = vec![if is_http2 {
            b"h2".to_vec()
        } else {
            b"http/1.1".to_vec()
        }];
        let name =
            ServerName::try_from(host.to_owned()).map_err(|why| error(format!("{host}: {why}")))?;
        Ok(Self {
            config: Arc::new(config),
            name,
        })
    }

    /// A new connection.
    pub(crate) fn begin(&self) -> Result<ClientConnection, String> {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .map_err(|error| error.to_string())
    }
}
