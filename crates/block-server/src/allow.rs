//! Who may use a tenant: the key `allow` of the configuration.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::certificate::{ClientCertificate, Pin};
use crate::place::ConfigError;
use crate::reader::Reader;

/// A block of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    address: IpAddr,
    prefix_bits: u32,
}

impl AddressRange {
    /// Whether an address lies in the block.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differs = network.to_bits() ^ address.to_bits();
                differs.leading_zeros() >= self.prefix_bits
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differs = network.to_bits() ^ address.to_bits();
                differs.leading_zeros() >= self.prefix_bits
            }
            _ => false,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = prefix.unwrap_or(bits);
        (prefix_bits <= bits).then_some(Self {
            address,
            prefix_bits,
        })
    }
}

/// Who may use a tenant. A client has to satisfy both lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantAccess {
    /// Where clients may be; empty: anywhere.
    pub addresses: Vec<AddressRange>,
    /// Certificates that clients may have; empty: any, or none.
    pub certificates: Vec<Pin>,
}

/// Who a client is, as far as the server knows.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClientIdentity<'a> {
    /// Where the client is.
    pub address: Option<IpAddr>,
    /// The certificate that TLS has verified.
    pub certificate: Option<&'a ClientCertificate>,
}

impl<'a> ClientIdentity<'a> {
    /// A client that is known by its address only.
    pub fn at(address: Option<IpAddr>) -> Self {
        Self {
            address,
            certificate: None,
        }
    }

    /// A client with a certificate, if TLS has verified one.
    pub fn with(address: Option<IpAddr>, certificate: Option<&'a ClientCertificate>) -> Self {
        Self {
            address,
            certificate,
        }
    }
}

impl TenantAccess {
    /// Whether a client may use the tenant.
    pub fn admits(&self, client: ClientIdentity<'_>) -> bool {
        let is_near = |address| self.addresses.iter().any(|net| net.contains(address));
        let is_named = |certificate| self.certificates.iter().any(|pin| pin.fits(certificate));
        (self.addresses.is_empty() || client.address.is_some_and(is_near))
            && (self.certificates.is_empty() || client.certificate.is_some_and(is_named))
    }
}

/// The clients that may use a tenant. With both keys, a client must satisfy both.
#[derive(Deserialize, Default, JsonSchema)]
#[schemars(rename = "Allow")]
#[serde(deny_unknown_fields)]
pub(crate) struct RawAllow {
    /// Networks and addresses of clients, such as `"10.0.0.0/8"` or `"10.0.0.1"`. By default any
    /// address.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    addresses: Option<Spanned<Vec<Spanned<String>>>>,
    /// Certificates of clients: a name in the certificate, such as `"db.example.com"`, or its
    /// fingerprint (`"sha256:3F:8A:…"`). Needs `tls.client_ca`. By default any client.
    #[schemars(with = "Option<Vec<String>>", length(min = 1))]
    client_certificates: Option<Spanned<Vec<Spanned<String>>>>,
    // Known, so that the message can say what to write instead.
    #[schemars(skip)]
    tls_psk: Option<Spanned<String>>,
}

impl RawAllow {
    /// Checks the key.
    pub(crate) fn read(
        &self,
        reader: &Reader<'_>,
        has_client_ca: bool,
    ) -> Result<TenantAccess, ConfigError> {
        if let Some(key) = &self.tls_psk {
            return Err(reader.place(key, "tenant.allow.tls_psk").error(
                "pre-shared keys are not supported. Give each client a certificate instead: set `tls.client_ca`, and name the \
                 client here, as in client_certificates = [\"client.example\"]",
            ));
        }
        const KEY: &str = "tenant.allow.addresses";
        if let Some(list) = &self.addresses
            && list.as_ref().is_empty()
        {
            let text = "is empty: name a network, or leave the key out to admit every address";
            return Err(reader.place(list, KEY).error(text));
        }
        let addresses = self.addresses.iter().flat_map(|list| list.as_ref());
        let addresses = addresses.map(|text| {
            AddressRange::parse(text.as_ref()).ok_or_else(|| {
                reader.place(text, KEY).error(format!(
                    "{:?} is not a network, as in \"10.0.0.0/8\" or \"fd00::/8\"",
                    text.as_ref()
                ))
            })
        });
        Ok(TenantAccess {
            addresses: addresses.collect::<Result<_, _>>()?,
            certificates: self.certificates(reader, has_client_ca)?,
        })
    }

    fn certificates(
        &self,
        reader: &Reader<'_>,
        has_client_ca: bool,
    ) -> Result<Vec<Pin>, ConfigError> {
        const KEY: &str = "tenant.allow.client_certificates";
        let Some(list) = &self.client_certificates else {
            return Ok(Vec::new());
        };
        if list.as_ref().is_empty() {
            let text = "is empty: name a client, or leave the key out to admit every client";
            return Err(reader.place(list, KEY).error(text));
        }
        if !has_client_ca {
            return Err(reader.place(list, KEY).error(
                "needs `client_ca` in the table `tls`: without it no client shows a certificate",
            ));
        }
        let pins = list.as_ref().iter().map(|text| {
            Pin::parse(text.as_ref()).map_err(|why| {
                let message = format!("{:?} {why}", text.as_ref());
                reader.place(text, KEY).error(message)
            })
        });
        pins.collect()
    }
}
