//! The negotiation: options in, replies out, until a connection has an export.

use super::{ExportInfo, PAYLOAD_MAX_BYTES, STRING_MAX_BYTES, Style, number, number16, number32};
use crate::nbd::reply::ALLOCATION_CONTEXT;

const MAGIC: &[u8; 8] = b"NBDMAGIC";
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
const OPTION_HEADER_BYTES: usize = 16;
/// An option longer than this is refused; what it holds is skipped.
pub const OPTION_MAX_BYTES: usize = 32 * 1024;
/// A client that sends an option above this is cut off.
const OPTION_SKIP_MAX_BYTES: usize = 16 << 20;
const ALLOCATION: &str = "base:allocation";

/// Options.
mod option {
    pub(super) const EXPORT_NAME: u32 = 1;
    pub(super) const ABORT: u32 = 2;
    pub(super) const LIST: u32 = 3;
    pub(super) const STARTTLS: u32 = 5;
    pub(super) const INFO: u32 = 6;
    pub(super) const GO: u32 = 7;
    pub(super) const STRUCTURED_REPLY: u32 = 8;
    pub(super) const LIST_META_CONTEXT: u32 = 9;
    pub(super) const SET_META_CONTEXT: u32 = 10;
    pub(super) const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
mod answer {
    pub(super) const ACK: u32 = 1;
    pub(super) const SERVER: u32 = 2;
    pub(super) const INFO: u32 = 3;
    pub(super) const META_CONTEXT: u32 = 4;
    pub(super) const UNSUPPORTED: u32 = 1 << 31 | 1;
    pub(super) const POLICY: u32 = 1 << 31 | 2;
    pub(super) const INVALID: u32 = 1 << 31 | 3;
    pub(super) const TLS_REQUIRED: u32 = 1 << 31 | 5;
    pub(super) const UNKNOWN: u32 = 1 << 31 | 6;
    pub(super) const TOO_BIG: u32 = 1 << 31 | 9;
    pub(super) const EXTENDED_HEADERS_REQUIRED: u32 = 1 << 31 | 10;
}

/// Pieces of information about an export.
mod info {
    pub(super) const EXPORT: u16 = 0;
    pub(super) const NAME: u16 = 1;
    pub(super) const DESCRIPTION: u16 = 2;
    pub(super) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
mod flag {
    pub(super) const HAS_FLAGS: u16 = 1 << 0;
    pub(super) const READ_ONLY: u16 = 1 << 1;
    pub(super) const SEND_FLUSH: u16 = 1 << 2;
    pub(super) const SEND_FUA: u16 = 1 << 3;
    pub(super) const SEND_TRIM: u16 = 1 << 5;
    pub(super) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(super) const SEND_DF: u16 = 1 << 7;
    pub(super) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(super) const SEND_CACHE: u16 = 1 << 10;
    pub(super) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// The exports that one client may see.
pub trait Catalogue {
    /// What the server keeps of an export.
    type Export: Clone;

    /// Names and descriptions, in order.
    fn list(&self) -> Vec<(String, String)>;

    /// The export of a name. `None`: there is none that this client may use.
    fn find(&self, name: &str) -> Option<Self::Export>;

    /// What a client is told of it.
    fn describe(&self, export: &Self::Export) -> ExportInfo;

    /// The name that it is listed under.
    fn name(&self, export: &Self::Export) -> String;
}

/// Whether a connection has to be, or may become, a TLS connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPolicy {
    /// The server has no certificate.
    None,
    /// Nothing but `NBD_OPT_STARTTLS` is answered before TLS.
    Required,
    /// Both kinds of connections are served.
    Offered,
}

/// What was negotiated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen<E> {
    /// The export.
    pub export: E,
    /// How requests and replies look.
    pub style: Style,
    /// Whether `base:allocation` may be asked for.
    pub has_allocation: bool,
}

/// What comes after one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandshakeStep<E> {
    /// More bytes are needed.
    Wait,
    /// The step is done: go on with the rest.
    Next,
    /// After the reply is sent, TLS begins.
    StartTls,
    /// After the reply is sent, the connection ends.
    Close,
    /// The negotiation is over.
    Begin(Chosen<E>),
}

/// The negotiation of one connection.
#[derive(Debug)]
pub struct Handshake {
    tls: TlsPolicy,
    is_tls: bool,
    has_greeted: bool,
    has_no_zeroes: bool,
    style: Style,
    /// The export name for which `base:allocation` was selected.
    allocation: Option<String>,
    skip_bytes: usize,
}

/// What the server says first.
pub fn greeting() -> Vec<u8> {
    let mut bytes = Vec::from(*MAGIC);
    bytes.extend_from_slice(OPTION_MAGIC);
    bytes.extend_from_slice(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    bytes
}

fn transmission_flags(export: &ExportInfo, style: Style) -> u16 {
    let mut flags = flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::SEND_FUA
        | flag::CAN_MULTI_CONN
        | flag::SEND_CACHE;
    if style != Style::Simple {
        flags |= flag::SEND_DF;
    }
    if export.is_read_only {
        flags | flag::READ_ONLY
    } else {
        flags | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
    }
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let len: usize = data.iter().map(|piece| piece.len()).sum();
    out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&u32::try_from(len).unwrap_or(0).to_be_bytes());
    for piece in data {
        out.extend_from_slice(piece);
    }
}

/// A string with its length before it, and the rest.
fn string(data: &[u8]) -> Option<(&str, &[u8])> {
    let (len, rest) = data.split_at_checked(4)?;
    let len = usize::try_from(number32(len)).ok()?;
    if len > STRING_MAX_BYTES {
        return None;
    }
    let (text, rest) = rest.split_at_checked(len)?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

impl Handshake {
    /// A new connection. Send [`greeting`] first.
    pub fn new(tls: TlsPolicy) -> Self {
        Self {
            tls,
            is_tls: false,
            has_greeted: false,
            has_no_zeroes: false,
            style: Style::Simple,
            allocation: None,
            skip_bytes: 0,
        }
    }

    /// TLS is up: what was negotiated before counts no more.
    pub fn on_tls(&mut self) {
        self.is_tls = true;
        self.style = Style::Simple;
        self.allocation = None;
    }

    /// Takes one step on the bytes that came. Gives how many of them it used.
    pub fn step<C: Catalogue>(
        &mut self,
        bytes: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> (usize, HandshakeStep<C::Export>) {
        if !self.has_greeted {
            return self.client_flags(bytes);
        }
        if self.skip_bytes > 0 {
            let skipped = self.skip_bytes.min(bytes.len());
            self.skip_bytes -= skipped;
            let is_done = self.skip_bytes == 0;
            return (
                skipped,
                if is_done {
                    HandshakeStep::Next
                } else {
                    HandshakeStep::Wait
                },
            );
        }
        let Some((header, rest)) = bytes.split_at_checked(OPTION_HEADER_BYTES) else {
            return (0, HandshakeStep::Wait);
        };
        if !header.starts_with(OPTION_MAGIC) {
            return (0, HandshakeStep::Close);
        }
        let option = number32(&header[8..12]);
        let len = usize::try_from(number32(&header[12..16])).unwrap_or(usize::MAX);
        if len > OPTION_MAX_BYTES {
            if len > OPTION_SKIP_MAX_BYTES || option == option::EXPORT_NAME {
                return (0, HandshakeStep::Close);
            }
            reply(out, option, answer::TOO_BIG, &[]);
            self.skip_bytes = len;
            return (OPTION_HEADER_BYTES, HandshakeStep::Next);
        }
        let Some(data) = rest.get(..len) else {
            return (0, HandshakeStep::Wait);
        };
        let step = self.option(option, data, catalogue, out);
        (OPTION_HEADER_BYTES + len, step)
    }

    fn client_flags<E>(&mut self, bytes: &[u8]) -> (usize, HandshakeStep<E>) {
        let Some(flags) = bytes.get(..4) else {
            return (0, HandshakeStep::Wait);
        };
        let flags = number32(flags);
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return (0, HandshakeStep::Close);
        }
        self.has_greeted = true;
        self.has_no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        (4, HandshakeStep::Next)
    }

    fn option<C: Catalogue>(
        &mut self,
        option: u32,
        data: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> HandshakeStep<C::Export> {
        let needs_tls = self.tls == TlsPolicy::Required && !self.is_tls;
        match option {
            option::ABORT => {
                reply(out, option, answer::ACK, &[]);
                return HandshakeStep::Close;
            }
            option::EXPORT_NAME if needs_tls => return HandshakeStep::Close,
            option::EXPORT_NAME => return self.export_name(data, catalogue, out),
            option::STARTTLS => return self.start_tls(data, out),
            _ if needs_tls => reply(
                out,
                option,
                answer::TLS_REQUIRED,
                &[b"this server speaks TLS only"],
            ),
            option::LIST if !data.is_empty() => reply(out, option, answer::INVALID, &[]),
            option::LIST => {
                for (name, description) in catalogue.list() {
                    let len = u32::try_from(name.len()).unwrap_or(0).to_be_bytes();
                    let data = [&len[..], name.as_bytes(), description.as_bytes()];
                    reply(out, option, answer::SERVER, &data);
                }
                reply(out, option, answer::ACK, &[]);
            }
            option::INFO | option::GO => {
                if let Some(chosen) = self.go(option, data, catalogue, out) {
                    return HandshakeStep::Begin(chosen);
                }
            }
            option::STRUCTURED_REPLY if !data.is_empty() => {
                reply(out, option, answer::INVALID, &[]);
            }
            option::STRUCTURED_REPLY if self.style == Style::Extended => {
                reply(out, option, answer::EXTENDED_HEADERS_REQUIRED, &[]);
            }
            option::STRUCTURED_REPLY => {
                self.style = Style::Structured;
                reply(out, option, answer::ACK, &[]);
            }
            option::EXTENDED_HEADERS if !data.is_empty() => {
                reply(out, option, answer::INVALID, &[]);
            }
            option::EXTENDED_HEADERS => {
                self.style = Style::Extended;
                reply(out, option, answer::ACK, &[]);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(option, data, catalogue, out);
            }
            _ => reply(out, option, answer::UNSUPPORTED, &[]),
        }
        HandshakeStep::Next
    }

    fn start_tls<E>(&self, data: &[u8], out: &mut Vec<u8>) -> HandshakeStep<E> {
        let option = option::STARTTLS;
        if !data.is_empty() || self.is_tls {
            reply(out, option, answer::INVALID, &[]);
        } else if self.tls == TlsPolicy::None {
            reply(
                out,
                option,
                answer::POLICY,
                &[b"this server has no certificate"],
            );
        } else {
            reply(out, option, answer::ACK, &[]);
            return HandshakeStep::StartTls;
        }
        HandshakeStep::Next
    }

    fn export_name<C: Catalogue>(
        &self,
        data: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> HandshakeStep<C::Export> {
        let name = std::str::from_utf8(data).ok();
        let found = name.and_then(|name| Some((name, catalogue.find(name)?)));
        let Some((name, export)) = found else {
            return HandshakeStep::Close;
        };
        if self.style == Style::Extended {
            return HandshakeStep::Close;
        }
        let described = catalogue.describe(&export);
        out.extend_from_slice(&described.size_bytes.to_be_bytes());
        out.extend_from_slice(&transmission_flags(&described, self.style).to_be_bytes());
        if !self.has_no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        HandshakeStep::Begin(self.chosen(export, name))
    }

    fn chosen<E>(&self, export: E, name: &str) -> Chosen<E> {
        Chosen {
            export,
            style: self.style,
            has_allocation: self.allocation.as_deref() == Some(name) && self.style != Style::Simple,
        }
    }

    /// The export of `name`; where there is none, the client is told.
    fn find<C: Catalogue>(
        option: u32,
        name: &str,
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> Option<C::Export> {
        let found = catalogue.find(name);
        if found.is_none() {
            // The same for an export that is not for this client: its name stays hidden.
            reply(out, option, answer::UNKNOWN, &[b"there is no such export"]);
        }
        found
    }

    fn go<C: Catalogue>(
        &self,
        option: u32,
        data: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) -> Option<Chosen<C::Export>> {
        let parsed = string(data).and_then(|(name, rest)| {
            let (count, wanted) = rest.split_at_checked(2)?;
            (wanted.len() == 2 * usize::from(number16(count))).then_some((name, wanted))
        });
        let Some((name, wanted)) = parsed else {
            reply(out, option, answer::INVALID, &[]);
            return None;
        };
        let export = Self::find(option, name, catalogue, out)?;
        let described = catalogue.describe(&export);
        let size = described.size_bytes.to_be_bytes();
        let flags = transmission_flags(&described, self.style).to_be_bytes();
        let mut tell = |kind: u16, data: [&[u8]; 3]| {
            let [first, second, third] = data;
            let data = [&kind.to_be_bytes()[..], first, second, third];
            reply(out, option, answer::INFO, &data);
        };
        tell(info::EXPORT, [&size, &flags, &[]]);
        for wanted in wanted.chunks_exact(2).map(number16) {
            match wanted {
                info::NAME => tell(info::NAME, [catalogue.name(&export).as_bytes(), &[], &[]]),
                info::DESCRIPTION if !described.description.is_empty() => {
                    tell(
                        info::DESCRIPTION,
                        [described.description.as_bytes(), &[], &[]],
                    );
                }
                info::BLOCK_SIZE => {
                    let preferred = described.preferred_block_bytes.to_be_bytes();
                    let sizes: [&[u8]; 3] = [
                        &1_u32.to_be_bytes(),
                        &preferred,
                        &PAYLOAD_MAX_BYTES.to_be_bytes(),
                    ];
                    tell(info::BLOCK_SIZE, sizes);
                }
                _ => {}
            }
        }
        reply(out, option, answer::ACK, &[]);
        (option == option::GO).then(|| self.chosen(export, name))
    }

    fn meta_context<C: Catalogue>(
        &mut self,
        option: u32,
        data: &[u8],
        catalogue: &C,
        out: &mut Vec<u8>,
    ) {
        let is_set = option == option::SET_META_CONTEXT;
        if is_set {
            self.allocation = None;
        }
        let queries = string(data).and_then(|(name, rest)| Some((name, queries(rest)?)));
        let Some((name, queries)) = queries.filter(|_| self.style != Style::Simple) else {
            reply(out, option, answer::INVALID, &[]);
            return;
        };
        if Self::find(option, name, catalogue, out).is_none() {
            return;
        }
        let has_allocation = if is_set {
            queries.contains(&ALLOCATION)
        } else {
            queries.is_empty()
                || queries
                    .iter()
                    .any(|&query| [ALLOCATION, "base:"].contains(&query))
        };
        if has_allocation {
            let id = if is_set { ALLOCATION_CONTEXT } else { 0 };
            let data = [&id.to_be_bytes()[..], ALLOCATION.as_bytes()];
            reply(out, option, answer::META_CONTEXT, &data);
            if is_set {
                self.allocation = Some(name.to_owned());
            }
        }
        reply(out, option, answer::ACK, &[]);
    }
}

fn queries(data: &[u8]) -> Option<Vec<&str>> {
    let (count, mut rest) = data.split_at_checked(4)?;
    let mut queries = Vec::new();
    for _ in 0..number(count) {
        let (query, after) = string(rest)?;
        queries.push(query);
        rest = after;
    }
    rest.is_empty().then_some(queries)
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
