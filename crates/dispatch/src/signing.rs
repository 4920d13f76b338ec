//! Ed25519 signatures of orders (RFC 8032).

use std::path::Path;

use host::hex;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

use crate::config::WorkerConfig;
use crate::error::Error;

/// Header of the public key, in hexadecimal digits.
pub(crate) const KEY_HEADER: &str = "Slackline-Key";
/// Header of the signature of the body, in hexadecimal digits.
pub(crate) const SIGNATURE_HEADER: &str = "Slackline-Signature";

/// A coordinator's key.
pub(crate) struct Signer {
    key: Ed25519KeyPair,
}

impl Signer {
    /// The key in `signing.key` of the state directory, which is made where there is none;
    /// `signing.pub` beside it is for workers.
    pub(crate) fn at(state_dir: &Path) -> Result<Self, Error> {
        let path = state_dir.join("signing.key");
        let failed = |source| Error::File {
            path: path.clone(),
            source,
        };
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
                    .map_err(|_| failed(std::io::Error::other("no randomness")))?;
                host::replace_private(&path, made.as_ref()).map_err(failed)?;
                made.as_ref().to_vec()
            }
            Err(error) => return Err(failed(error)),
        };
        let key = Ed25519KeyPair::from_pkcs8(&bytes).map_err(|error| Error::Key {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        let signer = Self { key };
        let public = state_dir.join("signing.pub");
        std::fs::write(&public, signer.public() + "\n").map_err(|source| Error::File {
            path: public,
            source,
        })?;
        Ok(signer)
    }

    pub(crate) fn public(&self) -> String {
        hex::encode(self.key.public_key().as_ref())
    }

    pub(crate) fn sign(&self, body: &[u8]) -> String {
        hex::encode(self.key.sign(body).as_ref())
    }
}

/// Whether one of the keys has signed the body.
fn is_signed(keys: &[String], key: Option<&str>, signature: Option<&str>, body: &[u8]) -> bool {
    let (Some(key), Some(signature)) = (key.map(str::trim), signature.map(str::trim)) else {
        return false;
    };
    let known = keys
        .iter()
        .any(|known| known.trim().eq_ignore_ascii_case(key));
    let (Some(key), Some(signature)) = (hex::decode(key), hex::decode(signature)) else {
        return false;
    };
    known
        && UnparsedPublicKey::new(&ED25519, key)
            .verify(body, &signature)
            .is_ok()
}

/// Whether a worker may look further at an order: signed by a key that it knows. An order without
/// one is measured only if [`crate::allowed::is_allowed`].
pub(crate) fn is_trusted(
    config: &WorkerConfig,
    key: Option<&str>,
    signature: Option<&str>,
    body: &[u8],
) -> bool {
    is_signed(&config.coordinator_keys, key, signature, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_its_key_and_its_body_only() {
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::at(dir.path()).unwrap();
        let again = Signer::at(dir.path()).unwrap();
        assert_eq!(signer.public(), again.public(), "the key is kept");
        let (key, signature) = (signer.public(), signer.sign(b"order"));
        let known = [key.clone()];
        assert!(is_signed(&known, Some(&key), Some(&signature), b"order"));
        assert!(!is_signed(&known, Some(&key), Some(&signature), b"other"));
        assert!(!is_signed(&[], Some(&key), Some(&signature), b"order"));
        assert!(!is_signed(&known, Some(&key), None, b"order"));
        assert!(!is_signed(&known, Some(&key), Some("zz"), b"order"));
        let other = tempfile::tempdir().unwrap();
        let other = Signer::at(other.path()).unwrap();
        assert!(!is_signed(
            &known,
            Some(&other.public()),
            Some(&other.sign(b"order")),
            b"order"
        ));
    }
}
