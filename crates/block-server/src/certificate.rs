//! What a client's certificate says of the client, and which certificates a tenant admits.
//!
//! TLS has verified a certificate before anybody looks here.

use sha2::{Digest as _, Sha256};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Any, Tag, Tagged as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// `id-at-commonName` (RFC 5280, appendix A.1).
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
/// How a pin by fingerprint begins: as the manual has it, and as openssl prints it. Case does not
/// count.
const FINGERPRINT: [&str; 2] = ["sha256:", "sha256 fingerprint="];
const FINGERPRINT_BYTES: usize = 32;

/// A client's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The common name, and the alternative names for DNS, mail and URI.
    names: Vec<String>,
    /// SHA-256 of the whole certificate.
    fingerprint: [u8; FINGERPRINT_BYTES],
}

impl ClientCertificate {
    /// Reads a certificate (DER). A certificate that is not understood has no names.
    pub fn read(der: &[u8]) -> Self {
        let parsed = Certificate::from_der(der);
        Self {
            names: parsed.map(|parsed| names(&parsed)).unwrap_or_default(),
            fingerprint: Sha256::digest(der).into(),
        }
    }
}

/// The text of a value: all three kinds of strings hold UTF-8, or a part of it.
fn text(value: &Any) -> Option<String> {
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String => {
            String::from_utf8(value.value().to_vec()).ok()
        }
        _ => None,
    }
}

fn names(certificate: &Certificate) -> Vec<String> {
    let content = &certificate.tbs_certificate;
    let subject = content.subject.0.iter().flat_map(|part| part.0.iter());
    let mut names: Vec<String> = subject
        .filter(|attribute| attribute.oid == COMMON_NAME)
        .filter_map(|attribute| text(&attribute.value))
        .collect();
    if let Ok(Some((_, SubjectAltName(alternatives)))) = content.get::<SubjectAltName>() {
        names.extend(alternatives.iter().filter_map(|name| match name {
            GeneralName::DnsName(name)
            | GeneralName::Rfc822Name(name)
            | GeneralName::UniformResourceIdentifier(name) => Some(name.as_str().to_owned()),
            _ => None,
        }));
    }
    names
}

/// The digits of a text that is meant as a fingerprint.
fn digits_of(text: &str) -> Option<&str> {
    for start in FINGERPRINT {
        if let Some((found, digits)) = text.split_at_checked(start.len())
            && found.eq_ignore_ascii_case(start)
        {
            return Some(digits.trim());
        }
    }
    // One of another kind, which no name looks like.
    let is_other = text.to_ascii_lowercase().contains("fingerprint=");
    let is_pair = |pair: &str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
    let pairs = text.split(':').count();
    (is_other || pairs == FINGERPRINT_BYTES && text.split(':').all(is_pair)).then_some(text)
}

/// A certificate that a tenant admits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pin {
    /// By one of its names.
    Name(String),
    /// By the SHA-256 of the whole certificate.
    Fingerprint([u8; FINGERPRINT_BYTES]),
}

impl Pin {
    /// Reads a name, or a fingerprint: `sha256:` or openssl's `sha256 Fingerprint=`, and 64
    /// hexadecimal digits, with colons between them or without. Pairs of digits with colons need no
    /// beginning.
    ///
    /// # Errors
    /// What is wrong, for a message that begins with the text.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let Some(digits) = digits_of(text) else {
            return match text.trim() == text && !text.is_empty() {
                true => Ok(Self::Name(text.to_owned())),
                false => Err("is not a name: spaces around it, or nothing in it"),
            };
        };
        let digits: Vec<u8> = digits.bytes().filter(|&byte| byte != b':').collect();
        let bytes: Option<Vec<u8>> = digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        let fingerprint = bytes.filter(|_| digits.iter().all(u8::is_ascii_hexdigit));
        let fingerprint = fingerprint.and_then(|bytes| bytes.try_into().ok());
        fingerprint.map(Self::Fingerprint).ok_or(
            "is not a fingerprint by SHA-256: write the line that `openssl x509 -noout -fingerprint -sha256 -in \
             client-cert.pem` prints, or \"sha256:\" and its 64 digits, with or without colons",
        )
    }

    /// Whether this is the certificate that is meant.
    pub fn fits(&self, certificate: &ClientCertificate) -> bool {
        match self {
            Self::Name(wanted) => certificate.names.contains(wanted),
            Self::Fingerprint(wanted) => certificate.fingerprint == *wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_names_or_fingerprints() {
        let certificate = ClientCertificate {
            names: vec!["a.example".to_owned()],
            fingerprint: [0xab; FINGERPRINT_BYTES],
        };
        let fits = |text: &str| Pin::parse(text).map(|pin| pin.fits(&certificate));
        assert_eq!(fits("a.example"), Ok(true));
        assert_eq!(fits("b.example"), Ok(false));
        assert_eq!(fits(&format!("sha256:{}", "ab".repeat(32))), Ok(true));
        assert_eq!(fits(&format!("sha256:{}AB", "AB:".repeat(31))), Ok(true));
        assert_eq!(fits(&format!("sha256:{}", "ac".repeat(32))), Ok(false));
        let pairs = format!("{}AB", "AB:".repeat(31));
        for start in ["", "SHA256:", "sha256 Fingerprint=", "SHA256 Fingerprint="] {
            assert_eq!(fits(&format!("{start}{pairs}")), Ok(true), "{start}");
        }
        for wrong in [
            "",
            " a",
            "sha256:ab",
            "SHA1 Fingerprint=AB:AB",
            "sha256 Fingerprint=",
            &format!("sha256:{}", "+a".repeat(32)),
        ] {
            assert!(Pin::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_names() {
        let read = ClientCertificate::read(b"no certificate");
        assert!(read.names.is_empty());
        assert!(!Pin::Name(String::new()).fits(&read));
    }
}
