//! Any bytes at all, as a client of NBD: the negotiation, then requests.

use block_server::nbd::handshake::{Catalogue, Handshake, HandshakeStep, TlsPolicy};
use block_server::nbd::request::{NbdRequest, RequestKind};
use block_server::nbd::{ExportInfo, Style};

use crate::seeds::kept;
use crate::target::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "nbd",
    run,
    seeds: || kept("nbd"),
    memory_max_bytes: 1 << 20,
};

/// Two exports.
struct Two;

impl Catalogue for Two {
    type Export = u8;

    fn list(&self) -> Vec<(String, String)> {
        vec![("a".into(), "first".into()), ("b".into(), String::new())]
    }

    fn find(&self, name: &str) -> Option<u8> {
        matches!(name, "a" | "").then_some(0)
    }

    fn describe(&self, _: &u8) -> ExportInfo {
        info()
    }

    fn name(&self, _: &u8) -> String {
        "a".into()
    }
}

fn info() -> ExportInfo {
    ExportInfo {
        size_bytes: 1 << 20,
        is_read_only: false,
        preferred_block_bytes: 4096,
        description: "first".into(),
    }
}

/// What a connection said and where it ended, if its bytes come in pieces of this length.
fn negotiate(
    tls: TlsPolicy,
    bytes: &[u8],
    piece: usize,
) -> (Vec<u8>, usize, Option<(Style, bool)>) {
    let mut handshake = Handshake::new(tls);
    let mut out = Vec::new();
    let (mut at, mut end) = (0, 0);
    loop {
        let (used, step) = handshake.step(&bytes[at..end], &Two, &mut out);
        assert!(used <= end - at, "more was used than there is");
        at += used;
        match step {
            HandshakeStep::Next => {}
            HandshakeStep::Wait if end == bytes.len() => return (out, at, None),
            HandshakeStep::Wait => end = (end + piece).min(bytes.len()),
            HandshakeStep::StartTls => handshake.on_tls(),
            HandshakeStep::Close => return (out, at, None),
            HandshakeStep::Begin(chosen) => {
                return (out, at, Some((chosen.style, chosen.has_allocation)));
            }
        }
    }
}

fn run(data: &[u8]) -> bool {
    let Some((&how, bytes)) = data.split_first() else {
        return false;
    };
    let tls = match how % 3 {
        0 => TlsPolicy::None,
        1 => TlsPolicy::Required,
        _ => TlsPolicy::Offered,
    };
    let whole = negotiate(tls, bytes, bytes.len().max(1));
    let pieces = negotiate(tls, bytes, usize::from(how / 3).max(1));
    // What a message means does not depend on how it was cut.
    assert_eq!(whole.2, pieces.2);
    assert_eq!((&whole.0, whole.1), (&pieces.0, pieces.1));
    let styles = [Style::Simple, Style::Structured, Style::Extended];
    let (mut at, style, has_allocation) = match whole.2 {
        Some((style, has_allocation)) => (whole.1, style, has_allocation),
        None => (0, styles[usize::from(how) % 3], how & 64 != 0),
    };
    let mut is_accepted = whole.2.is_some();
    while let Ok(Some((request, used))) = NbdRequest::parse(&bytes[at..], style) {
        assert!(used > 0 && used <= bytes.len() - at);
        is_accepted = true;
        if request.kind == RequestKind::Disconnect {
            break;
        }
        if request.check(&info(), style, has_allocation).is_ok() && request.len_bytes > 0 {
            let end = request.offset.checked_add(request.len_bytes);
            assert!(end.is_some_and(|end| end <= 1 << 20), "{request:?}");
        }
        let payload = usize::try_from(request.payload_bytes).unwrap_or(usize::MAX);
        at = match (at + used).checked_add(payload) {
            Some(next) if next <= bytes.len() => next,
            _ => break,
        };
    }
    is_accepted
}
