//! Secrets, and their digests.

use host::hex;
use sha2::{Digest as _, Sha256};

/// A secret that nobody guesses: 256 bits.
pub(crate) fn random_hex() -> String {
    hex::encode(&rand::random::<[u8; 32]>())
}

/// SHA-256 of a secret. Digests are compared, whose bytes tell a guesser nothing about the
/// secret's.
pub(crate) fn digest(secret: &str) -> String {
    hex::encode(&Sha256::digest(secret.as_bytes()))
}
