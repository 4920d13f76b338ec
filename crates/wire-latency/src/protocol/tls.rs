//! TLS: the beginnings of records (RFC 8446, section 5.1), and the client's offer of HTTP/2 (RFC
//! 7301).

use super::message::{Mark, Message};

const HEADER: usize = 5;
const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
/// The longest record of a frame that only steers HTTP/2: PING and GOAWAY have 17 bytes, a type of
/// one and a tag of 16 follow. No request or answer of HTTP is as short.
const CONTROL_MAX: usize = 34;
/// An alert, or a key update: two or five bytes, and the 17 behind them.
const ALERT_MAX: usize = 22;

pub(super) fn is_record(bytes: &[u8]) -> bool {
    matches!(bytes, [CHANGE_CIPHER_SPEC..=APPLICATION_DATA, 3, 0..=4, ..])
}

pub(super) fn is_client_hello(bytes: &[u8]) -> bool {
    matches!(bytes, [HANDSHAKE, 3, 0..=4, _, _, 1, ..])
}

/// Where a connection is in its handshake.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Every record counts, however short.
    counts_all: bool,
    /// The client's hello was seen, so that the handshake's end can be told from a request.
    from_hello: bool,
    /// `None` where the hello was not seen.
    offers_http2: Option<bool>,
    server_has_sent_data: bool,
    client_has_sent_data: bool,
    /// TLS 1.3: the server may send tickets, which look like an answer.
    tickets_are_due: bool,
    /// The last beginning of an answer may have been such tickets.
    is_unsure: bool,
}

impl State {
    pub(super) fn new(counts_all: bool) -> Self {
        Self {
            counts_all,
            from_hello: false,
            offers_http2: None,
            server_has_sent_data: false,
            client_has_sent_data: false,
            tickets_are_due: false,
            is_unsure: false,
        }
    }

    pub(super) fn carries_http2(&self) -> bool {
        !self.counts_all && self.offers_http2 == Some(true)
    }

    /// Whether the last beginning of an answer may have been a session ticket.
    pub(super) fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Whether a segment of the server's holds session tickets and nothing else (RFC 8446, section
    /// 4.6.1).
    pub(super) fn holds_tickets(&mut self, bytes: &[u8], on_wire: u32, is_turn: bool) -> bool {
        self.is_unsure = false;
        if !self.tickets_are_due || bytes.first() != Some(&APPLICATION_DATA) {
            return false;
        }
        self.tickets_are_due = false;
        if !is_turn {
            // No request has reached the server.
            return true;
        }
        // OpenSSL sends two of one size at once.
        let record = length(bytes).and_then(|length| u32::try_from(HEADER + length).ok());
        let is_pair = record.is_some_and(|record| record.checked_mul(2) == Some(on_wire));
        self.is_unsure = !is_pair;
        is_pair
    }

    /// Whether a record is none of a request or answer.
    fn is_control(&self, length: usize) -> bool {
        let longest = match (self.counts_all, self.offers_http2) {
            (true, _) => 0,
            (false, Some(false)) => ALERT_MAX.min(19),
            (false, _) => CONTROL_MAX,
        };
        length <= longest
    }

    /// A record of the client's; `is_turn` as long as no request waits for its answer.
    pub(super) fn client_record(&mut self, bytes: &[u8], is_turn: &mut bool) -> Message {
        if !is_record(bytes) {
            return Message::new(Mark::More(0), None);
        }
        if is_client_hello(bytes) {
            self.from_hello = true;
            self.offers_http2 = offers_http2(bytes).or(self.offers_http2);
        }
        let Some(length) = length(bytes) else {
            return Message::new(None, None);
        };
        if bytes[0] != APPLICATION_DATA {
            return Message::new(None, HEADER + length);
        }
        let is_first = !std::mem::replace(&mut self.client_has_sent_data, true);
        if is_first && self.from_hello && self.server_has_sent_data {
            // TLS 1.3: the client's Finished, disguised.
            self.tickets_are_due = true;
            return Message::new(None, HEADER + length);
        }
        Message::new(self.mark(length, is_turn), HEADER + length)
    }

    fn mark(&self, length: usize, is_turn: &mut bool) -> Option<Mark> {
        match (self.is_control(length), std::mem::replace(is_turn, false)) {
            (true, was_turn) => {
                *is_turn = was_turn;
                None
            }
            (false, true) => Some(Mark::Start(0)),
            (false, false) => Some(Mark::More(0)),
        }
    }

    /// A record of the server's; `is_turn` as long as a request waits for its answer.
    pub(super) fn server_record(&mut self, bytes: &[u8], is_turn: &mut bool) -> Message {
        if !is_record(bytes) {
            return Message::new(Mark::More(0), None);
        }
        let Some(length) = length(bytes) else {
            return Message::new(None, None);
        };
        if bytes[0] != APPLICATION_DATA {
            return Message::new(None, HEADER + length);
        }
        self.server_has_sent_data = true;
        Message::new(self.mark(length, is_turn), HEADER + length)
    }
}

fn length(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(3..HEADER)?;
    Some(usize::from(u16::from_be_bytes([length[0], length[1]])))
}

/// Whether `h2` is among the protocols that a client hello offers. `None` where the hello is not
/// whole.
fn offers_http2(bytes: &[u8]) -> Option<bool> {
    let short = |at: usize| {
        let two = bytes.get(at..at + 2)?;
        Some(usize::from(u16::from_be_bytes([two[0], two[1]])))
    };
    // Record, handshake header, version and random; then session id, cipher suites, compression
    // methods.
    let mut at = HEADER + 4 + 2 + 32;
    at += 1 + usize::from(*bytes.get(at)?);
    at += 2 + short(at)?;
    at += 1 + usize::from(*bytes.get(at)?);
    let end = at + 2 + short(at)?;
    at += 2;
    while at < end {
        let (kind, length) = (short(at)?, short(at + 2)?);
        let body = bytes.get(at + 4..at + 4 + length)?;
        if kind == 16 {
            return Some(body.windows(3).any(|three| three == b"\x02h2"));
        }
        at += 4 + length;
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::super::{Bytes, Dialect, Mark, Protocol};
    use super::*;

    fn record(kind: u8, length: u16) -> Vec<u8> {
        let mut bytes = vec![kind, 3, 3];
        bytes.extend(length.to_be_bytes());
        bytes.extend(vec![0; usize::from(length)]);
        bytes
    }

    fn hello(protocols: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        let mut extensions = vec![0, 10, 0, 2, 0, 0];
        extensions.extend([0, 16]);
        extensions.extend(u16::try_from(protocols.len() + 2).unwrap().to_be_bytes());
        extensions.extend(u16::try_from(protocols.len()).unwrap().to_be_bytes());
        extensions.extend(protocols);
        body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
        body.extend(extensions);
        let mut bytes = vec![HANDSHAKE, 3, 1];
        bytes.extend(u16::try_from(body.len() + 4).unwrap().to_be_bytes());
        bytes.extend([1, 0]);
        bytes.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn a_hello_says_whether_it_offers_http_2() {
        assert_eq!(offers_http2(&hello(b"\x02h2\x08http/1.1")), Some(true));
        assert_eq!(offers_http2(&hello(b"\x08http/1.1")), Some(false));
        assert_eq!(offers_http2(&hello(b"\x02h2")[..60]), None);
    }

    /// A dialect, both sides' sequence numbers, and whether a request waits.
    struct Talk(Dialect, [u32; 2], bool);

    impl Talk {
        fn says(&mut self, is_client: bool, records: &[Vec<u8>]) -> Vec<Mark> {
            let bytes = records.concat();
            let length = u32::try_from(bytes.len()).unwrap();
            let sequence = &mut self.1[usize::from(is_client)];
            let captured = if bytes[0] == HANDSHAKE { 1400 } else { 44 };
            let given = Bytes {
                sequence: *sequence,
                length,
                seen: &bytes[..bytes.len().min(captured)],
                is_turn: self.2 != is_client,
            };
            *sequence = sequence.wrapping_add(length);
            let marks = if is_client {
                self.0.client(given)
            } else {
                self.0.server(given)
            };
            if marks.list().contains(&Mark::Start(0)) {
                self.2 = is_client;
            }
            marks.list().to_vec()
        }
    }

    #[test]
    fn the_handshake_of_tls_1_3_is_no_request_and_the_first_answer_is_unsure() {
        let mut talk = Talk(Dialect::new(Protocol::Auto), [0; 2], false);
        assert_eq!(talk.says(true, &[hello(b"\x08http/1.1")]), []);
        let flight = [
            record(HANDSHAKE, 90),
            record(20, 1),
            record(23, 30),
            record(23, 900),
        ];
        assert_eq!(
            talk.says(false, &flight)
                .iter()
                .filter(|it| **it == Mark::Start(0))
                .count(),
            0
        );
        assert_eq!(talk.says(true, &[record(20, 1), record(23, 53)]), []);
        // The header and the body of one request.
        assert_eq!(
            talk.says(true, &[record(23, 100), record(23, 50)])[0],
            Mark::Start(0)
        );
        assert_eq!(talk.says(true, &[record(23, 100)]), [Mark::More(0)]);
        assert_eq!(talk.says(false, &[record(23, 250), record(23, 250)]), []);
        assert_eq!(talk.says(false, &[record(23, 900)]), [Mark::Start(0)]);
        assert!(!talk.0.answer_is_unsure());
        assert_eq!(talk.says(false, &[record(23, 900)]), [Mark::More(0)]);
    }

    #[test]
    fn a_first_answer_that_may_be_a_ticket_is_unsure() {
        let mut talk = Talk(Dialect::new(Protocol::Auto), [0; 2], false);
        talk.says(true, &[hello(b"\x08http/1.1")]);
        talk.says(false, &[record(HANDSHAKE, 90), record(23, 900)]);
        talk.says(true, &[record(20, 1), record(23, 53)]);
        assert_eq!(talk.says(true, &[record(23, 100)]), [Mark::Start(0)]);
        assert_eq!(talk.says(false, &[record(23, 250)]), [Mark::Start(0)]);
        assert!(talk.0.answer_is_unsure());
        talk.says(true, &[record(23, 100)]);
        assert_eq!(talk.says(false, &[record(23, 250)]), [Mark::Start(0)]);
        assert!(!talk.0.answer_is_unsure());
    }

    #[test]
    fn frames_that_steer_http_2_are_no_requests() {
        let mut talk = Talk(Dialect::new(Protocol::Auto), [0; 2], false);
        talk.says(true, &[hello(b"\x02h2\x08http/1.1")]);
        assert!(talk.0.is_multiplexed_blindly());
        assert_eq!(talk.says(true, &[record(23, 26)]), []);
        assert_eq!(talk.says(true, &[record(23, 60)]), [Mark::Start(0)]);
        assert_eq!(talk.says(false, &[record(23, 30)]), []);
        let mut talk = Talk(Dialect::new(Protocol::Auto), [0; 2], false);
        talk.says(true, &[hello(b"\x08http/1.1")]);
        assert_eq!(talk.says(true, &[record(23, 25)]), [Mark::Start(0)]);
    }
}
