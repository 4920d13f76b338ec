//! Ed25519 signatures of orders (RFC 8032), and what a worker does without one.

use std::path::Path;

use host::hex;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use tuner::protocol::WorkOrder;
use tuner::spec::{CheckedSpec, Spec};

use crate::config::{Allow, WorkerConfig};
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
/// one is measured only if [`is_allowed`].
pub(crate) fn is_trusted(
    config: &WorkerConfig,
    key: Option<&str>,
    signature: Option<&str>,
    body: &[u8],
) -> bool {
    is_signed(&config.coordinator_keys, key, signature, body)
}

/// Every command that a specification can lead to.
fn commands(spec: &Spec) -> Vec<&[String]> {
    let mut found: Vec<&[String]> = Vec::new();
    if let Some(target) = &spec.target {
        found.extend(target.prepare.as_deref());
        found.extend(target.start.as_deref());
        found.extend(
            target
                .apply
                .iter()
                .filter_map(|step| step.command.as_deref()),
        );
        found.extend(
            target
                .ready
                .as_ref()
                .and_then(|ready| ready.command.as_deref()),
        );
    }
    found.extend(
        spec.workload
            .as_ref()
            .map(|workload| workload.command.as_slice()),
    );
    found.extend(
        spec.metrics
            .values()
            .filter_map(|metric| metric.command.as_deref()),
    );
    found.retain(|command| !command.is_empty());
    found
}

/// Whether this host's own configuration allows everything that a specification would do.
///
/// # Errors
/// What it does not allow.
pub(crate) fn is_allowed(
    allow: &Allow,
    order: &WorkOrder,
    spec: &CheckedSpec,
) -> Result<(), String> {
    let refused = |what: String| {
        Err(format!(
            "{what} is not in the worker's allow list, and the order is not signed with a key that it knows"
        ))
    };
    for command in commands(&order.spec) {
        if !allow.commands.iter().any(|allowed| allowed == command) {
            return refused(format!("the command {command:?}"));
        }
    }
    for binding in spec.knobs.values() {
        let name = binding.knob.to_string();
        if !allow.knobs.contains(&name) {
            return refused(format!("the knob {name:?}"));
        }
    }
    let is_own = |path: &str| path.starts_with("{dir}/") && !path.contains("..");
    if let Some(file) = spec.target().files.iter().find(|file| !is_own(&file.path)) {
        return refused(format!("the file {:?}", file.path));
    }
    let pushes = order.spec.metrics.values();
    let mut sockets = pushes.filter_map(|metric| metric.push.as_ref()?.unix.as_ref());
    if let Some(socket) = sockets.find(|socket| !is_own(socket)) {
        return refused(format!("the socket {socket:?}"));
    }
    if order
        .spec
        .target
        .as_ref()
        .is_some_and(|target| target.quota.is_some())
    {
        return refused("target.quota".into());
    }
    Ok(())
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

    #[test]
    fn without_a_signature_only_what_is_listed_word_for_word_is_done() {
        let text = r#"{
            "parameters": [{ "name": "x", "type": "int", "low": 1, "high": 9, "sysctl": "net.core.somaxconn", "default": 5 }],
            "target": { "start": ["nginx", "-c", "{dir}/n.conf"], "apply": [{ "command": ["true"] }] },
            "workload": { "command": ["wrk", "{port}"], "parse": "wrk" },
            "objective": { "metric": "latency_p99_us" }
        }"#;
        let roots = host::Roots::default();
        let spec = tuner::spec::context(&roots)
            .check(text.into(), Path::new("/tmp/spec.json"))
            .unwrap();
        let order = WorkOrder {
            ticket: tuner::protocol::Ticket {
                experiment: 1,
                verification: 0,
                arm: 0,
                number: 1,
            },
            spec: spec.written().clone(),
            dir: "/tmp".into(),
            assignment: tuner::assignment::Assignment {
                purpose: tuner::assignment::Purpose::Search,
                arm: tuner::bench::Arm::default(),
                incumbent: None,
            },
            made_ms: None,
        };
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let mut allow = Allow::default();
        let mut refused = |allowed: &mut dyn FnMut(&mut Allow)| {
            let message = is_allowed(&allow, &order, &spec).unwrap_err();
            allowed(&mut allow);
            message
        };
        let listed =
            |command: &'static str| move |allow: &mut Allow| allow.commands.push(words(command));
        assert!(refused(&mut listed("nginx -c {dir}/n.conf")).contains("nginx"));
        assert!(refused(&mut listed("true")).contains("true"));
        assert!(refused(&mut listed("wrk 80")).contains("wrk"));
        assert!(
            refused(&mut listed("wrk {port}")).contains("wrk"),
            "word for word"
        );
        let knob = refused(&mut |allow| allow.knobs.push("net.core.somaxconn".into()));
        assert!(knob.contains("somaxconn"), "{knob}");
        assert_eq!(is_allowed(&allow, &order, &spec), Ok(()));
    }
}
