//! Addresses of the configuration: each can be listened at once, and beyond loopback only where
//! that is safe.

use std::net::SocketAddr;

use toml::Spanned;

use crate::config::{Config, ConfigError, Reader};

const DATA: &str = "read the data";
const TLS_OR: &str = "add a table `tls` with `certificate`, `key` and `required = true`, or ";

/// Whether only programs of this machine reach an address.
fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Why an address is refused: `what` everybody there could do, and what else helps.
fn beyond_loopback(what: &str, tls: &str) -> String {
    format!(
        "is beyond loopback, and without TLS everybody on the network could {what}: {tls}set \
         `plaintext_beyond_loopback = true` if that network is trusted"
    )
}

impl Reader<'_> {
    /// An address to serve at without encryption.
    ///
    /// # Errors
    /// The text is no address. Or the address is beyond loopback, and nobody said that the network
    /// there is trusted.
    pub(crate) fn listen_address(
        &self,
        text: &Spanned<String>,
        key: &'static str,
        plaintext_beyond_loopback: bool,
    ) -> Result<SocketAddr, ConfigError> {
        let address = self.address(text, key)?;
        if plaintext_beyond_loopback || is_loopback(address) {
            return Ok(address);
        }
        let (what, tls) = match key {
            "listen" => (DATA, TLS_OR),
            "metrics" => ("read the names and figures of all tenants", ""),
            _ => (DATA, ""),
        };
        Err(self.place(text, key).error(beyond_loopback(what, tls)))
    }
}

impl Config {
    /// Whether NBD may be served at an address that the configuration does not name.
    ///
    /// # Errors
    /// The address is beyond loopback, TLS is not required, and nobody said that the network there
    /// is trusted.
    pub(crate) fn may_serve_nbd_at(&self, address: SocketAddr) -> Result<(), String> {
        let has_tls = self.tls.as_ref().is_some_and(|tls| tls.is_required);
        if has_tls || self.plaintext_beyond_loopback || is_loopback(address) {
            return Ok(());
        }
        Err(beyond_loopback(DATA, TLS_OR))
    }
}

/// Refuses an address that is named twice, under whichever keys. Port 0 stands for any port.
pub(crate) fn ensure_distinct<'a>(
    reader: &Reader<'_>,
    named: impl Iterator<Item = (&'static str, &'a Spanned<String>)>,
) -> Result<(), ConfigError> {
    let mut seen: Vec<SocketAddr> = Vec::new();
    for (key, text) in named {
        let Ok(address) = text.as_ref().parse::<SocketAddr>() else {
            // Refused where the key is read.
            continue;
        };
        if address.port() != 0 && seen.contains(&address) {
            let message = format!("{address} is named twice");
            return Err(reader.place(text, key).error(message));
        }
        seen.push(address);
    }
    Ok(())
}
