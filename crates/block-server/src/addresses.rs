//! Addresses of the configuration: each can be listened at once, and beyond loopback only where
//! that is safe.

use std::net::SocketAddr;
use std::path::Path;

use toml::Spanned;

use crate::place::ConfigError;
use crate::reader::{Reader, text_of};

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

/// Refuses to serve NBD where others than programs of this machine reach it, unless that is safe.
pub(crate) fn check_nbd(address: SocketAddr, is_safe: bool) -> Result<(), String> {
    match is_safe || is_loopback(address) {
        true => Ok(()),
        false => Err(beyond_loopback(DATA, TLS_OR)),
    }
}

/// The value of `metrics` in a file that may be wrong elsewhere: a running server may have refused
/// the file. `None`: the file does not have the key.
///
/// # Errors
/// The file cannot be read, or the value is no address.
pub fn metrics_of(file: &Path) -> Result<Option<SocketAddr>, ConfigError> {
    let text = text_of(file)?;
    let lines = text
        .lines()
        .take_while(|line| !line.trim_start().starts_with('['));
    for (line, text) in (1..).zip(lines) {
        let Ok(table) = text.parse::<toml::Table>() else {
            // A line of a longer value, or a wrong one.
            continue;
        };
        let Some(value) = table.get("metrics") else {
            continue;
        };
        let address = value.as_str().and_then(|text| text.parse().ok());
        return address.map(Some).ok_or_else(|| ConfigError {
            file: file.to_path_buf(),
            line: Some(line),
            key: Some("metrics".to_owned()),
            message: format!("{value} is not an address, as in \"127.0.0.1:9152\""),
        });
    }
    Ok(None)
}

/// Whether who listens at `wide` listens at `narrow`, too. `[::]` is for IPv6 only, as the server
/// listens.
fn includes(wide: SocketAddr, narrow: SocketAddr) -> bool {
    let (ip, other) = (wide.ip(), narrow.ip());
    let is_any = ip.is_unspecified() && ip.is_ipv6() == other.is_ipv6();
    wide.port() == narrow.port() && (is_any || ip == other)
}

/// Refuses addresses that nobody can listen at together, under whichever keys.
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
        let clash = |&other: &SocketAddr| match (includes(other, address), includes(address, other))
        {
            (true, true) => Some(format!("{address} is named twice")),
            (true, false) => Some(format!("{address} is named, and {other} includes it")),
            (false, true) => Some(format!("{other} is named, and {address} includes it")),
            (false, false) => None,
        };
        if let Some(why) = seen.iter().find_map(clash) {
            let place = reader.place(text, key);
            return Err(place.error(format!("{why}: leave one out")));
        }
        seen.push(address);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_includes_others() {
        let includes = |wide: &str, narrow: &str| {
            super::includes(wide.parse().unwrap(), narrow.parse().unwrap())
        };
        for (wide, narrow) in [("0.0.0.0:1", "10.0.0.1:1"), ("[::]:1", "[::1]:1")] {
            assert!(includes(wide, narrow), "{wide} {narrow}");
            assert!(!includes(narrow, wide), "{wide} {narrow}");
            let other = format!("{}2", narrow.strip_suffix('1').unwrap());
            assert!(!includes(wide, &other), "{wide} {other}");
        }
        assert!(!includes("0.0.0.0:1", "[::1]:1"));
        assert!(!includes("[::]:1", "0.0.0.0:1"));
        assert!(!includes("10.0.0.1:1", "10.0.0.2:1"));
    }

    #[test]
    fn metrics_are_found_in_a_file_that_is_wrong_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("b.toml");
        let found = |text: &str| {
            std::fs::write(&file, text).unwrap();
            metrics_of(&file).map_err(|error| error.to_string())
        };
        let wrong = "listen = [\n  \"127.0.0.1:1\",\n]\nmetrics = \"127.0.0.1:9\" # here\nx = = 1\n[[device]]\n";
        assert_eq!(found(wrong), Ok(Some(([127, 0, 0, 1], 9).into())));
        assert_eq!(found("[tls]\nmetrics = \"127.0.0.1:9\"\n"), Ok(None));
        let error = found("x = 1\nmetrics = 9\n").unwrap_err();
        assert!(
            error.contains("b.toml:2: metrics: 9 is not an address"),
            "{error}"
        );
    }
}
