//! The key `nvme` of the configuration.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use super::{DISCOVERY_NQN, NQN_MAX_BYTES};
use crate::place::ConfigError;
use crate::reader::Reader;

/// Where NVMe/TCP is served, and under which name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvmeSpec {
    /// Addresses. Hosts are told of them by discovery.
    pub listen: Vec<SocketAddr>,
    /// The subsystem's qualified name.
    pub subsystem: String,
}

/// Where NVMe/TCP is served, and under which name. NVMe/TCP has no TLS.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Nvme")]
#[serde(deny_unknown_fields)]
pub(crate) struct RawNvme {
    /// Addresses and ports for NVMe/TCP. Hosts connect to these addresses, so each must be an
    /// address of this host.
    #[schemars(with = "Vec<String>", length(min = 1))]
    pub(crate) listen: Vec<Spanned<String>>,
    /// The qualified name of the subsystem, such as `"nqn.2026-11.com.example:blocks"`. Give each
    /// server a name of its own.
    #[schemars(with = "String", regex(pattern = "^nqn\\."))]
    subsystem: Spanned<String>,
}

impl RawNvme {
    /// Checks the key.
    pub(crate) fn read(
        &self,
        reader: &Reader<'_>,
        plaintext_beyond_loopback: bool,
    ) -> Result<NvmeSpec, ConfigError> {
        let name = self.subsystem.as_ref();
        let place = reader.place(&self.subsystem, "nvme.subsystem");
        let is_printable = name.bytes().all(|byte| byte.is_ascii_graphic());
        if !name.starts_with("nqn.") || !is_printable || name.len() > NQN_MAX_BYTES {
            return Err(place.error(format!(
                "{name:?} is not a qualified name of at most {NQN_MAX_BYTES} bytes, as in \
                 \"nqn.2026-11.com.example:blocks\""
            )));
        }
        if name == DISCOVERY_NQN {
            return Err(place.error("is the name of every discovery subsystem: choose another"));
        }
        let mut listen = Vec::new();
        for text in &self.listen {
            let address = reader.listen_address(text, "nvme.listen", plaintext_beyond_loopback)?;
            if address.ip().is_unspecified() {
                return Err(reader.place(text, "nvme.listen").error(
                    "must be an address of this host: discovery tells clients to connect to it",
                ));
            }
            listen.push(address);
        }
        if listen.is_empty() {
            return Err(place.error("is served nowhere: name an address in nvme.listen"));
        }
        Ok(NvmeSpec {
            listen,
            subsystem: name.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::BlockConfig;

    fn parse(nvme: &str) -> Result<Option<NvmeSpec>, String> {
        let text = format!(
            "{nvme}\n[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n\
             [[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n"
        );
        BlockConfig::parse(Path::new("b.toml"), &text)
            .map(|config| config.nvme)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_key_is_read_and_what_is_wrong_is_named() {
        let good = "nvme = { listen = [\"127.0.0.1:4420\"], subsystem = \"nqn.2026-11.a:b\" }";
        let spec = parse(good).unwrap().unwrap();
        assert_eq!(spec.subsystem, "nqn.2026-11.a:b");
        assert_eq!(spec.listen, ["127.0.0.1:4420".parse().unwrap()]);
        assert_eq!(parse(""), Ok(None));
        let beyond = good.replace("127.0.0.1", "10.0.0.1");
        let told = format!("plaintext_beyond_loopback = true\n{beyond}");
        assert!(parse(&told).is_ok());
        let any = format!(
            "plaintext_beyond_loopback = true\n{}",
            good.replace("127.0.0.1", "0.0.0.0")
        );
        for (text, expected) in [
            (
                good.replace("nqn.2026", "iqn.2026"),
                "b.toml:1: nvme.subsystem: \"iqn.",
            ),
            (
                good.replace("a:b", "a b"),
                "b.toml:1: nvme.subsystem: \"nqn.",
            ),
            (
                good.replace("nqn.2026-11.a:b", DISCOVERY_NQN),
                "b.toml:1: nvme.subsystem: is the name of every discovery",
            ),
            (beyond, "b.toml:1: nvme.listen: is beyond loopback"),
            (
                any,
                "b.toml:2: nvme.listen: must be an address of this host",
            ),
            (
                good.replace("\"127.0.0.1:4420\"", ""),
                "b.toml:1: nvme.subsystem: is served nowhere",
            ),
            (good.replace("4420", "x"), "b.toml:1: nvme.listen: "),
            (
                good.replace("listen", "liston"),
                "b.toml:1: unknown key `liston`",
            ),
        ] {
            let message = parse(&text).unwrap_err();
            assert!(message.starts_with(expected), "{message}\n{expected}");
        }
    }
}
