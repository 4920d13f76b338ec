//! Random conversations through a bad network, as packets: whatever the network does, a latency
//! that is recorded is a true one.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::Config;

use super::*;
use crate::segment::tests::{ipv4, ipv6, tcp};
use crate::segment::{FIN, PSH, parse};

const PORT: u16 = 11211;
const CLIENT_PORT: u16 = 40_000;
const MS: u64 = 1_000_000;
const US: u64 = 1000;
/// Bytes of a segment at most, and of a packet that are captured.
const SEGMENT_BYTES: usize = 500;
const SNAP: usize = 96;
const ACK: u8 = 0x10;

/// What the network does to a packet.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Passes,
    /// It is seen on a second interface at once.
    Twice,
    /// It is sent once more after so long, although it had arrived.
    Repeated(u64),
    /// It was lost before it was seen, and is sent once more after so long.
    Late(u64),
}

impl Fate {
    fn delays_ns(self) -> Vec<u64> {
        match self {
            Self::Passes => vec![0],
            Self::Twice => vec![0, 0],
            Self::Repeated(after_ns) => vec![0, after_ns],
            Self::Late(after_ns) => vec![after_ns],
        }
    }
}

/// Packets that are seen twice, but never late.
fn repeating() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Passes),
        2 => Just(Fate::Twice),
        1 => (1_u64..400).prop_map(|ms| Fate::Repeated(ms * MS)),
    ]
}

/// Packets to which anything may happen; what is late is overtaken by those behind it.
fn bad() -> impl Strategy<Value = Fate> {
    prop_oneof![
        12 => Just(Fate::Passes),
        2 => Just(Fate::Twice),
        1 => (1_u64..400).prop_map(|ms| Fate::Repeated(ms * MS)),
        1 => (15_u64..45).prop_map(|us| Fate::Late(us * US)),
    ]
}

/// One exchange.
#[derive(Clone, Debug)]
struct Exchange {
    think_ms: u64,
    request_bytes: usize,
    latency_ms: u64,
    answer_bytes: usize,
    fates: Vec<Fate>,
    has_probe: bool,
}

fn exchange(fate: impl Strategy<Value = Fate>) -> impl Strategy<Value = Exchange> {
    let fates = proptest::collection::vec(fate, 12);
    let lengths = (60_usize..2000, 40_usize..2000);
    (1_u64..900, lengths, 1_u64..900, fates, any::<bool>()).prop_map(
        |(think_ms, (request_bytes, answer_bytes), latency_ms, fates, has_probe)| Exchange {
            think_ms,
            request_bytes,
            latency_ms,
            answer_bytes,
            fates,
            has_probe,
        },
    )
}

/// How a conversation ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Open,
    Closed,
    /// The client says with its last request that it will send no more.
    HalfClosed,
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::Open), Just(End::Closed), Just(End::HalfClosed)]
}

/// Packets with the moment at which each is seen.
struct Wire {
    is_v6: bool,
    now_ns: u64,
    /// What the client and the server send next.
    next: [u32; 2],
    packets: Vec<(u64, Vec<u8>)>,
    /// When the last packet of the last message was first seen, and the first one of it.
    whole_ns: u64,
    begun_ns: u64,
    /// A packet of the last exchange came late.
    is_disturbed: bool,
}

impl Wire {
    fn new(is_v6: bool, next: [u32; 2]) -> Self {
        Self {
            is_v6,
            now_ns: 1_790_000_000_000_000_000,
            next,
            packets: Vec::new(),
            whole_ns: 0,
            begun_ns: 0,
            is_disturbed: false,
        }
    }

    fn packet(&mut self, is_client: bool, at: u32, flags: u8, payload: &[u8], fate: Fate) {
        let (ports, other) = match is_client {
            true => ((CLIENT_PORT, PORT), 1),
            false => ((PORT, CLIENT_PORT), 0),
        };
        let tcp = tcp(ports, at, self.next[other], flags, payload);
        let mut bytes = match self.is_v6 {
            true => ipv6(&[], 6, &tcp),
            false => ipv4(&tcp),
        };
        if !is_client {
            // The addresses of the other direction.
            let (from, length) = if self.is_v6 { (8, 16) } else { (12, 4) };
            let (source, destination) = bytes[from..from + 2 * length].split_at_mut(length);
            source.swap_with_slice(destination);
        }
        for delay_ns in fate.delays_ns() {
            self.packets.push((self.now_ns + delay_ns, bytes.clone()));
        }
        let first_ns = self.now_ns + fate.delays_ns()[0];
        self.whole_ns = self.whole_ns.max(first_ns);
        self.is_disturbed |= first_ns > self.now_ns;
    }

    /// A message in as many segments as it needs, 10 µs apart.
    fn message(&mut self, is_client: bool, bytes: &[u8], last_flags: u8, fates: &[Fate]) {
        let side = usize::from(!is_client);
        (self.whole_ns, self.begun_ns) = (0, self.now_ns);
        let count = bytes.len().div_ceil(SEGMENT_BYTES);
        for (index, part) in bytes.chunks(SEGMENT_BYTES).enumerate() {
            let flags = ACK
                | if index + 1 == count {
                    PSH | last_flags
                } else {
                    0
                };
            let at = self.next[side];
            self.packet(is_client, at, flags, part, fates[index % fates.len()]);
            self.next[side] = at.wrapping_add(u32::try_from(part.len()).unwrap());
            self.now_ns += 10 * US;
        }
        if last_flags & FIN != 0 {
            self.next[side] = self.next[side].wrapping_add(1);
        }
        self.now_ns = self.now_ns.max(self.whole_ns);
    }

    /// Without payload.
    fn bare(&mut self, is_client: bool, flags: u8) {
        let side = usize::from(!is_client);
        let at = self.next[side];
        self.packet(is_client, at, flags | ACK, &[], Fate::Twice);
        if flags & (FIN | SYN) != 0 {
            self.next[side] = at.wrapping_add(1);
        }
        self.now_ns += 10 * US;
    }

    /// One exchange; its latency in milliseconds.
    fn exchange(&mut self, of: &Exchange, is_last_request: bool) -> u64 {
        self.is_disturbed = false;
        self.now_ns += of.think_ms * MS;
        if of.has_probe {
            // RFC 9293, section 3.8.4: one byte that has been acknowledged long ago.
            let at = self.next[0].wrapping_sub(1);
            self.packet(true, at, ACK, b"k", Fate::Passes);
            self.bare(false, 0);
        }
        let mut request = b"GET /some/path HTTP/1.1\r\nHost: service\r\nX: ".to_vec();
        request.resize(of.request_bytes, b'x');
        let flags = if is_last_request { FIN } else { 0 };
        self.message(true, &request, flags, &of.fates);
        let whole_ns = self.whole_ns;
        self.bare(false, 0);
        self.now_ns = whole_ns + of.latency_ms * MS;
        let mut answer = b"HTTP/1.1 200 OK\r\nContent-Length: ".to_vec();
        answer.resize(of.answer_bytes, b'y');
        self.message(false, &answer, 0, &of.fates[6..]);
        self.bare(true, 0);
        of.latency_ms
    }

    /// Hands all packets over in the order in which they are seen.
    fn seen_by(mut self, tracker: &mut Tracker) -> Harvest {
        self.packets.sort_by_key(|packet| packet.0);
        let kind = if self.is_v6 { 0x86dd } else { 0x0800 };
        for (at_ns, bytes) in &self.packets {
            let length = u32::try_from(bytes.len()).unwrap();
            let seen = &bytes[..bytes.len().min(SNAP)];
            tracker.take(*at_ns, &parse(seen, kind, length).unwrap());
        }
        tracker.harvest(self.now_ns)
    }
}

/// The latencies by whole milliseconds.
fn by_ms(latencies: &Fine) -> BTreeMap<u64, usize> {
    let count = latencies.requests();
    let mut found = BTreeMap::new();
    for rank in 1..=count {
        let us = latencies.quantile_us((rank as f64 - 0.5) / count as f64);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "milliseconds of a test, rounded"
        )]
        let ms = (us.unwrap() / 1000.0).round() as u64;
        *found.entry(ms).or_default() += 1;
    }
    found
}

fn counted(latencies: impl IntoIterator<Item = u64>) -> BTreeMap<u64, usize> {
    let mut counted = BTreeMap::new();
    for ms in latencies {
        *counted.entry(ms).or_default() += 1;
    }
    counted
}

/// Numbers of which many are about to wrap around.
fn sequence() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        (0_u32..5000).prop_map(|before| u32::MAX - before),
        (0_u32..5000).prop_map(|behind| (1_u32 << 31) - 2500 + behind),
    ]
}

proptest! {
    #![proptest_config(Config::with_cases(96))]

    /// Retransmissions, second interfaces, probes, wrapped numbers, half-closed connections: each
    /// request has its latency, and nothing else has one.
    #[test]
    fn what_is_seen_more_than_once_changes_nothing(
        is_v6: bool,
        next in [sequence(), sequence()],
        has_handshake: bool,
        exchanges in proptest::collection::vec(exchange(repeating()), 1..12),
        end in end(),
    ) {
        let mut wire = Wire::new(is_v6, next);
        if has_handshake {
            wire.bare(true, SYN);
            wire.bare(false, SYN);
        }
        let mut expected = Vec::new();
        for (index, exchange) in exchanges.iter().enumerate() {
            let is_last = index + 1 == exchanges.len() && end == End::HalfClosed;
            // A connection that is half-closed by its first packet was never seen open.
            let is_seen = has_handshake || !is_last || index > 0;
            let latency_ms = wire.exchange(exchange, is_last);
            expected.extend(is_seen.then_some(latency_ms));
        }
        // Who closes has all acknowledgements: nothing is sent once more behind the end.
        wire.now_ns += 500 * MS;
        if end == End::Closed {
            wire.bare(true, FIN);
        }
        if end != End::Open {
            wire.bare(false, FIN);
            wire.bare(true, 0);
        }
        let mut tracker = Tracker::new(PORT, Protocol::Auto);
        let harvest = wire.seen_by(&mut tracker);
        let counts = harvest.counts;
        if expected.len() == exchanges.len() {
            prop_assert_eq!(by_ms(&harvest.latencies), counted(expected));
        }
        prop_assert_eq!(counts.ambiguous + counts.bounded + counts.unanswered, 0);
        prop_assert_eq!(harvest.waiting, 0);
        if end != End::Open {
            prop_assert_eq!(tracker.connections.len(), 0, "a closed connection is forgotten");
        }
    }

    /// Packets that come late: exchanges without such have their latency, no latency is a false
    /// one, and afterwards all is well.
    #[test]
    fn what_comes_late_makes_no_false_latency(
        is_v6: bool,
        next in [sequence(), sequence()],
        exchanges in proptest::collection::vec(exchange(bad()), 1..20),
    ) {
        let mut wire = Wire::new(is_v6, next);
        wire.bare(true, SYN);
        wire.bare(false, SYN);
        let (mut all, mut undisturbed) = (Vec::new(), Vec::new());
        for exchange in &exchanges {
            let latency_ms = wire.exchange(exchange, false);
            all.push(latency_ms);
            undisturbed.extend((!wire.is_disturbed).then_some(latency_ms));
        }
        let harvest = wire.seen_by(&mut Tracker::new(PORT, Protocol::Auto));
        let found = by_ms(&harvest.latencies);
        let (all, undisturbed) = (counted(all), counted(undisturbed));
        for (ms, count) in &found {
            prop_assert!(all.get(ms) >= Some(count), "{ms} ms was no latency: {all:?}, {found:?}");
        }
        for (ms, count) in &undisturbed {
            prop_assert!(found.get(ms) >= Some(count), "{ms} ms is missing: {all:?}, {found:?}");
        }
    }

    /// Pipelined requests: exact where each answer begins a segment; all are accounted for in any
    /// case.
    #[test]
    fn pipelined_requests_are_exact_or_said_to_be_ambiguous(
        is_redis: bool,
        is_v6: bool,
        next in [sequence(), sequence()],
        bursts in proptest::collection::vec((1_usize..12, 1_usize..4, 1_u64..50), 1..10),
    ) {
        let (request, answer): (&[u8], &[u8]) = match is_redis {
            true => (b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n", b"$5\r\nvalue\r\n"),
            false => (
                b"GET /a/rather/long/path/with/a/name HTTP/1.1\r\nHost: service.example\r\n\r\n",
                // So short that it is captured whole, and nothing can hide behind it.
                b"HTTP/1.1 204 \r\n\r\n",
            ),
        };
        let mut wire = Wire::new(is_v6, next);
        wire.bare(true, SYN);
        wire.bare(false, SYN);
        let (mut expected, mut asked, mut is_exact) = (Vec::new(), 0, true);
        for (requests, at_once, gap_ms) in bursts {
            wire.now_ns += 100 * MS;
            let mut sent_ns = Vec::new();
            for _ in 0..requests {
                wire.message(true, request, 0, &[Fate::Passes]);
                sent_ns.push(wire.begun_ns);
            }
            asked += requests as u64;
            for batch in sent_ns.chunks(at_once) {
                is_exact &= batch.len() == 1;
                wire.now_ns += gap_ms * MS;
                wire.message(false, &answer.repeat(batch.len()), 0, &[Fate::Passes]);
                let latencies = batch.iter().map(|sent_ns| wire.begun_ns - sent_ns);
                expected.extend(latencies.map(|ns| (ns + MS / 2) / MS));
            }
        }
        let harvest = wire.seen_by(&mut Tracker::new(PORT, Protocol::Auto));
        let counts = harvest.counts;
        let (found, expected) = (by_ms(&harvest.latencies), counted(expected));
        prop_assert!(harvest.latencies.requests() + counts.ambiguous >= asked);
        for (ms, count) in &found {
            prop_assert!(expected.get(ms) >= Some(count), "{ms} ms: {found:?}, {expected:?}");
        }
        if is_exact {
            prop_assert_eq!(found, expected);
        }
    }
}
