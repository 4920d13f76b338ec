//! TLS for NBD (`NBD_OPT_STARTTLS`), by rustls: no I/O of its own.

use std::io::{IoSlice, Read as _, Write as _};
use std::sync::Arc;

use dataplane::{Calls, FlowId};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::certificate::ClientCertificate;
use crate::config::{ConfigError, NamedFile, TlsSpec};

/// Plaintext that becomes records at once: four records.
const CHUNK_BYTES: usize = 64 << 10;

/// What connections of a server do about TLS.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    /// Whether a client without TLS gets nothing.
    pub is_required: bool,
}

impl ServerTls {
    /// Reads the certificates and the key that a configuration names.
    ///
    /// # Errors
    /// A file cannot be read, or does not hold what it should: the line of the configuration is
    /// named.
    pub fn load(spec: &TlsSpec) -> Result<Self, ConfigError> {
        let certificates = |file: &NamedFile| {
            let read = CertificateDer::pem_file_iter(&file.path)
                .and_then(|all| all.collect::<Result<Vec<_>, _>>())
                .map_err(|error| file.error(error))?;
            match read.is_empty() {
                true => Err(file.error("holds no certificate")),
                false => Ok(read),
            }
        };
        let chain = certificates(&spec.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&spec.key.path).map_err(|error| {
            let text = std::fs::read_to_string(&spec.key.path).unwrap_or_default();
            match no_key(&text) {
                Some(why) if matches!(error, pem::Error::NoItemsFound) => spec.key.error(why),
                _ => spec.key.error(error),
            }
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| spec.certificate.error(error))?;
        let builder = match &spec.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file)? {
                    roots.add(certificate).map_err(|error| file.error(error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(|error| file.error(error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder
            .with_single_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => spec.key.error(format!(
                    "is not the private key of the certificate {}: name the key that the certificate was made with",
                    spec.certificate.path.display()
                )),
                error => spec.key.error(error),
            })?;
        Ok(Self {
            config: Arc::new(config),
            is_required: spec.is_required,
        })
    }

    /// The TLS of one connection, before its first byte.
    pub(crate) fn begin(&self) -> Option<Tls> {
        let session = ServerConnection::new(Arc::clone(&self.config)).ok()?;
        Some(Tls {
            session,
            client: None,
            out: Vec::new(),
            out_at: 0,
            held_bytes: 0,
        })
    }
}

/// Why a text has no private key that the server can use.
fn no_key(text: &str) -> Option<&'static str> {
    let why = if text.contains("ENCRYPTED") {
        "is encrypted, and the server has no passphrase: write the key without one by `openssl pkey -in KEY -out NEW`"
    } else if text.contains("BEGIN CERTIFICATE") {
        "holds a certificate: name the file with the private key of the certificate"
    } else {
        "holds no private key in PEM, with a line BEGIN PRIVATE KEY"
    };
    (!text.is_empty()).then_some(why)
}

/// The TLS of one connection.
pub(crate) struct Tls {
    session: ServerConnection,
    /// The client's certificate, once somebody has asked for it.
    client: Option<ClientCertificate>,
    /// Records that the flow's queue had no room for: those of one chunk at most.
    out: Vec<u8>,
    out_at: usize,
    /// Received bytes whose plaintext nobody has taken yet.
    held_bytes: usize,
}

impl Tls {
    /// The certificate that the client has shown, if it has: TLS has verified it.
    pub(crate) fn client(&mut self) -> Option<&ClientCertificate> {
        if self.client.is_none() {
            let chain = self.session.peer_certificates()?;
            self.client = chain.first().map(|own| ClientCertificate::read(own));
        }
        self.client.as_ref()
    }

    /// Takes received records, and adds their plaintext to `plain`. An error ends the connection;
    /// its alert is among the records to send.
    pub(crate) fn receive(
        &mut self,
        mut records: &[u8],
        plain: &mut Vec<u8>,
    ) -> Result<(), rustls::Error> {
        self.held_bytes += records.len();
        while !records.is_empty() {
            // Reading from memory does not fail, but for a full buffer, which the loop empties.
            if self.session.read_tls(&mut records).unwrap_or(0) == 0 {
                return Err(rustls::Error::General("records that end nowhere".into()));
            }
            let processed = self.session.process_new_packets();
            self.collect();
            let waiting = processed?.plaintext_bytes_to_read();
            let at = plain.len();
            plain.resize(at + waiting, 0);
            let read = self.session.reader().read_exact(&mut plain[at..]);
            read.map_err(|error| rustls::Error::General(error.to_string()))?;
        }
        Ok(())
    }

    /// Bytes of the receive window that are free again, if so much plaintext is still untaken.
    pub(crate) fn release(&mut self, untaken_bytes: usize) -> usize {
        let kept = self.held_bytes.min(untaken_bytes);
        let released = self.held_bytes - kept;
        self.held_bytes = kept;
        released
    }

    /// Moves finished records to `out`.
    fn collect(&mut self) {
        while self.session.wants_write() {
            if self.session.write_tls(&mut self.out).unwrap_or(0) == 0 {
                return;
            }
        }
    }

    /// Whether every record is in the flow's queue.
    pub(crate) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Puts records into the flow's queue. False: some still wait, and the flow says when there is
    /// room.
    pub(crate) fn flush<C: Calls>(&mut self, calls: &mut C, flow: FlowId) -> bool {
        if self.out_at < self.out.len() {
            self.out_at += calls.send(flow, &self.out[self.out_at..]);
        }
        if self.out_at < self.out.len() {
            return false;
        }
        self.out.clear();
        self.out_at = 0;
        true
    }

    /// Sends plaintext in two pieces, and gives the number of bytes that were accepted: fewer than
    /// all when the flow's queue is full.
    pub(crate) fn send<C: Calls>(
        &mut self,
        calls: &mut C,
        flow: FlowId,
        (first, second): (&[u8], &[u8]),
    ) -> usize {
        let total = first.len() + second.len();
        let mut taken = 0;
        while taken < total && self.flush(calls, flow) {
            let head = first.get(taken..).unwrap_or_default();
            let head = &head[..head.len().min(CHUNK_BYTES)];
            let rest = &second[taken.saturating_sub(first.len())..];
            let rest = &rest[..rest.len().min(CHUNK_BYTES - head.len())];
            let pieces = [IoSlice::new(head), IoSlice::new(rest)];
            let written = self.session.writer().write_vectored(&pieces).unwrap_or(0);
            self.collect();
            if written == 0 {
                break;
            }
            taken += written;
        }
        self.flush(calls, flow);
        taken
    }

    /// Tells the client that nothing follows.
    pub(crate) fn close<C: Calls>(&mut self, calls: &mut C, flow: FlowId) {
        self.session.send_close_notify();
        self.collect();
        self.flush(calls, flow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_key_is_named_by_what_it_holds() {
        for (text, expected) in [
            ("-----BEGIN ENCRYPTED PRIVATE KEY-----\n", "is encrypted"),
            ("Proc-Type: 4,ENCRYPTED\n", "is encrypted"),
            ("-----BEGIN CERTIFICATE-----\n", "holds a certificate"),
            ("key\n", "holds no private key"),
        ] {
            assert!(no_key(text).unwrap().starts_with(expected), "{text}");
        }
        assert_eq!(no_key(""), None);
    }
}
