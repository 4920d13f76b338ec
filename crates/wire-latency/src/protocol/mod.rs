//! What is spoken on a connection, as far as the first bytes of a segment tell: where requests and
//! answers begin.

mod http;
mod memcached;
mod message;
mod mysql;
mod postgres;
mod redis;
mod tls;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use message::Message;
pub(crate) use message::{Bytes, Mark, Marks};

/// What is spoken on a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Each connection's first bytes decide.
    #[default]
    Auto,
    /// Any protocol in which client and server take turns.
    Turns,
    /// HTTP/1.0 and HTTP/1.1.
    Http1,
    /// HTTP/2 without TLS.
    Http2,
    /// TLS: every record of application data counts, whatever is inside. With `auto`, records too
    /// short for a request of HTTP do not count unless the client offers no HTTP/2.
    Tls,
    /// memcached's text and binary protocols.
    Memcached,
    /// Redis.
    Redis,
    /// MySQL and MariaDB.
    Mysql,
    /// PostgreSQL.
    Postgres,
}

impl Protocol {
    /// Whether each connection's first bytes decide.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// Where the next message of one direction begins.
#[derive(Clone, Copy, Debug, Default)]
struct Boundary(Option<u32>);

impl Boundary {
    /// Walks over the messages of a segment, from the first boundary on.
    fn walk(&mut self, bytes: Bytes<'_>, mut message: impl FnMut(&[u8]) -> Message) -> Marks {
        let length = usize::try_from(bytes.length).unwrap_or(usize::MAX);
        let mut marks = Marks::NONE;
        let known = self.0.map(|next| next.wrapping_sub(bytes.sequence));
        let ahead = known.and_then(|ahead| usize::try_from(ahead.cast_signed()).ok());
        let mut at = ahead.unwrap_or(0);
        if at > 0 {
            marks.push(Mark::More(0));
        }
        while let Some(rest) = bytes.seen.get(at..).filter(|rest| !rest.is_empty()) {
            let found = message(rest);
            // In the middle of nowhere, only what comes in turn is a beginning.
            let is_sure = ahead.is_some() || bytes.is_turn || at > 0;
            match found.mark {
                Some(Mark::Start(_)) if !is_sure => marks.push(Mark::More(0)),
                Some(mark) => marks.push(mark),
                None => {}
            }
            match found.length {
                Some(length) if length > 0 => at = at.saturating_add(length),
                _ => {
                    marks.is_hidden |= bytes.seen.len() < length;
                    self.0 = None;
                    return marks;
                }
            }
        }
        if at >= length {
            let next = u32::try_from(at).map(|at| bytes.sequence.wrapping_add(at));
            self.0 = next.ok();
        } else {
            marks.is_hidden = true;
            self.0 = None;
        }
        marks
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unknown,
    Turns,
    Http1,
    Http2,
    Tls,
    Memcached,
    Redis,
    Mysql,
    Postgres,
    /// A tunnel: nothing that can be paired.
    Opaque,
}

/// What one connection speaks, and where it is in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect {
    kind: Kind,
    client: Boundary,
    server: Boundary,
    tls: tls::State,
}

impl Dialect {
    pub(crate) fn new(protocol: Protocol) -> Self {
        Self {
            kind: match protocol {
                Protocol::Auto => Kind::Unknown,
                Protocol::Turns => Kind::Turns,
                Protocol::Http1 => Kind::Http1,
                Protocol::Http2 => Kind::Http2,
                Protocol::Tls => Kind::Tls,
                Protocol::Memcached => Kind::Memcached,
                Protocol::Redis => Kind::Redis,
                Protocol::Mysql => Kind::Mysql,
                Protocol::Postgres => Kind::Postgres,
            },
            client: Boundary::default(),
            server: Boundary::default(),
            tls: tls::State::new(protocol == Protocol::Tls),
        }
    }

    /// Whether a later part of a request cannot be told from a further request.
    pub(crate) fn merges_requests(&self) -> bool {
        self.kind == Kind::Turns
    }

    /// Whether requests that overlap cannot be told apart at all.
    pub(crate) fn is_multiplexed_blindly(&self) -> bool {
        self.kind == Kind::Tls && self.tls.carries_http2()
    }

    /// Whether answers name the request that they belong to.
    pub(crate) fn has_numbers(&self) -> bool {
        self.kind == Kind::Http2
    }

    /// Whether the last beginning of an answer may have been the server's own: a session ticket of
    /// TLS 1.3.
    pub(crate) fn answer_is_unsure(&self) -> bool {
        self.kind == Kind::Tls && self.tls.is_unsure()
    }

    /// Bytes are missing: no boundary is known any more.
    pub(crate) fn lose_client(&mut self) {
        self.client = Boundary(None);
    }

    /// Likewise of the server's.
    pub(crate) fn lose_server(&mut self) {
        self.server = Boundary(None);
    }

    /// What the client sent.
    pub(crate) fn client(&mut self, bytes: Bytes<'_>) -> Marks {
        if self.kind == Kind::Unknown {
            self.kind = detect(bytes.seen, bytes.length);
        }
        // STARTTLS in all its kinds: a client hello where a request may begin.
        if tls::is_client_hello(bytes.seen) && matches!(self.kind, Kind::Mysql | Kind::Postgres) {
            (self.kind, self.client, self.server) = (Kind::Tls, Boundary(None), Boundary(None));
        }
        match self.kind {
            Kind::Unknown | Kind::Opaque => Marks::NONE,
            Kind::Turns => match bytes.is_turn {
                true => Marks::one(Mark::Start(0)),
                false => Marks::one(Mark::More(0)),
            },
            Kind::Http1 if http::is_preface(bytes.seen) => {
                self.kind = Kind::Http2;
                self.client(bytes)
            }
            Kind::Http1 => match http::is_request(bytes.seen) {
                true => Marks::one(Mark::Start(0)),
                false => Marks::one(Mark::More(0)),
            },
            Kind::Http2 => self.client.walk(bytes, |rest| http::frame(rest, true)),
            Kind::Tls => {
                let (tls, mut is_turn) = (&mut self.tls, bytes.is_turn);
                self.client
                    .walk(bytes, |rest| tls.client_record(rest, &mut is_turn))
            }
            Kind::Memcached => self.client.walk(bytes, memcached::request),
            Kind::Redis => self.client.walk(bytes, redis::request),
            Kind::Mysql => self.client.walk(bytes, mysql::client_packet),
            Kind::Postgres => postgres::client(bytes),
        }
    }

    /// What the server sent.
    pub(crate) fn server(&mut self, bytes: Bytes<'_>) -> Marks {
        let by_turn = match bytes.is_turn {
            true => Marks::one(Mark::Start(0)),
            false => Marks::one(Mark::More(0)),
        };
        let is_cut = bytes.seen.len() < bytes.length as usize;
        match self.kind {
            Kind::Opaque => Marks::NONE,
            Kind::Unknown | Kind::Turns | Kind::Postgres => by_turn,
            Kind::Http1 => match http::status(bytes.seen) {
                Some(101) => {
                    self.kind = Kind::Opaque;
                    Marks::one(Mark::Start(0))
                }
                Some(100..=199) => Marks::NONE,
                Some(_) => Marks {
                    is_hidden: is_cut || http::has_further_answer(bytes.seen),
                    ..Marks::one(Mark::Start(0))
                },
                // The next answer may begin in the middle of the segment.
                None => Marks {
                    is_hidden: is_cut || http::has_further_answer(bytes.seen),
                    ..Marks::one(Mark::More(0))
                },
            },
            Kind::Http2 => self.server.walk(bytes, |rest| http::frame(rest, false)),
            Kind::Tls => {
                let (tls, mut is_turn) = (&mut self.tls, bytes.is_turn);
                let is_tickets = tls.holds_tickets(bytes.seen, bytes.length, is_turn);
                let marks = self
                    .server
                    .walk(bytes, |rest| tls.server_record(rest, &mut is_turn));
                if is_tickets { Marks::NONE } else { marks }
            }
            Kind::Memcached => self.server.walk(bytes, memcached::answer),
            Kind::Redis => self.server.walk(bytes, redis::answer),
            Kind::Mysql => self.server.walk(bytes, mysql::server_packet),
        }
    }
}

/// What begins like this. Bytes that begin like nothing known take turns, it is assumed.
fn detect(seen: &[u8], length: u32) -> Kind {
    if http::is_preface(seen) {
        Kind::Http2
    } else if http::is_request(seen) {
        Kind::Http1
    } else if tls::is_record(seen) {
        Kind::Tls
    } else if memcached::is_request(seen) {
        Kind::Memcached
    } else if redis::is_request(seen) {
        Kind::Redis
    } else if mysql::is_command(seen, length) {
        Kind::Mysql
    } else if postgres::is_message(seen, length) {
        Kind::Postgres
    } else {
        Kind::Turns
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::message::MARKS_MAX;
    use super::*;

    /// The marks of bytes of which so many were captured.
    pub(crate) fn marks(
        protocol: Protocol,
        is_client: bool,
        bytes: &[u8],
        captured: usize,
    ) -> (Vec<Mark>, bool) {
        let mut dialect = Dialect::new(protocol);
        let bytes = Bytes {
            sequence: 1000,
            length: u32::try_from(bytes.len()).unwrap(),
            seen: &bytes[..captured.min(bytes.len())],
            is_turn: true,
        };
        let marks = if is_client {
            dialect.client(bytes)
        } else {
            dialect.server(bytes)
        };
        (marks.list().to_vec(), marks.is_hidden)
    }

    #[test]
    fn the_first_bytes_say_what_is_spoken() {
        for (bytes, kind) in [
            (&b"GET / HTTP/1.1\r\n"[..], Kind::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Kind::Http2),
            (b"\x16\x03\x01\x02\x00\x01", Kind::Tls),
            (b"\x17\x03\x03\x00\x50xx", Kind::Tls),
            (b"get key\r\n", Kind::Memcached),
            (
                b"\x80\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x03",
                Kind::Memcached,
            ),
            (b"*1\r\n$4\r\nPING\r\n", Kind::Redis),
            (b"\x09\x00\x00\x00\x03SELECT 1", Kind::Mysql),
            (b"Q\x00\x00\x00\x0dSELECT 1\x00", Kind::Postgres),
            (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", Kind::Postgres),
            (b"\x01\x02\x03\x04\x05", Kind::Turns),
        ] {
            let length = u32::try_from(bytes.len()).unwrap();
            assert_eq!(detect(bytes, length), kind, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_boundary_beyond_the_segment_is_kept() {
        let mut boundary = Boundary::default();
        let of_ten = |_: &[u8]| Message::new(Mark::Start(0), 10);
        let bytes = |sequence, length, is_turn| Bytes {
            sequence,
            length,
            seen: &[0; 4],
            is_turn,
        };
        let marks = boundary.walk(bytes(u32::MAX - 3, 8, true), of_ten);
        assert_eq!(
            (marks.list(), marks.is_hidden),
            (&[Mark::Start(0)][..], false)
        );
        let marks = boundary.walk(bytes(4, 4, false), of_ten);
        assert_eq!(marks.list(), [Mark::More(0), Mark::Start(0)]);
        // The next begins at 16, within what was not captured.
        let marks = boundary.walk(bytes(8, 20, false), of_ten);
        assert_eq!(
            (marks.list(), marks.is_hidden),
            (&[Mark::More(0)][..], true)
        );
        let marks = boundary.walk(bytes(28, 4, false), of_ten);
        assert_eq!(marks.list(), [Mark::More(0)]);
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(64))]

        #[test]
        fn no_bytes_make_a_dialect_panic(segments: Vec<(bool, bool, Vec<u8>, u16)>, which in 0_usize..9) {
            use Protocol::{Auto, Http1, Http2, Memcached, Mysql, Postgres, Redis, Tls, Turns};
            let all = [Auto, Turns, Http1, Http2, Tls, Memcached, Redis, Mysql, Postgres];
            let mut dialect = Dialect::new(all[which]);
            let mut sequence = u32::MAX - 100;
            for (is_client, is_turn, seen, beyond) in segments {
                let length = u32::try_from(seen.len()).unwrap() + u32::from(beyond);
                let bytes = Bytes { sequence, length, seen: &seen, is_turn };
                let marks = if is_client { dialect.client(bytes) } else { dialect.server(bytes) };
                proptest::prop_assert!(marks.list().len() <= MARKS_MAX);
                sequence = sequence.wrapping_add(length);
            }
        }
    }
}
