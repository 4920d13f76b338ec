//! Addresses of the configuration: each can be listened at once.

use std::net::SocketAddr;

use toml::Spanned;

use crate::config::{ConfigError, Reader};

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
