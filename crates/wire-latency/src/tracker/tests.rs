//! Conversations as they are seen on the wire: who sends what when, and what is made of it.

use super::*;
use crate::segment::{Endpoint, FIN, PSH};

const PORT: u16 = 80;
const MS: u64 = 1_000_000;
/// A moment in 2026, so that no time stamp is near zero.
const START_NS: u64 = 1_790_000_000_000_000_000;
/// Payload that is captured.
const CAPTURED: usize = 44;

/// One connection, whose sides count their bytes themselves.
struct Talk {
    tracker: Tracker,
    now_ns: u64,
    client_port: u16,
    /// What the client and the server send next.
    next: [u32; 2],
}

impl Talk {
    fn new(protocol: Protocol) -> Self {
        Self {
            tracker: Tracker::new(PORT, protocol),
            now_ns: START_NS,
            client_port: 40_000,
            // Both wrap around soon.
            next: [u32::MAX - 5, u32::MAX - 9],
        }
    }

    fn wait(&mut self, ms: u64) -> &mut Self {
        self.now_ns += ms * MS;
        self
    }

    fn send(&mut self, is_client: bool, at: u32, flags: u8, bytes: &[u8]) {
        let ends =
            [(1, self.client_port), (2, PORT)].map(|(address, port)| Endpoint { address, port });
        let (mine, other) = if is_client { (0, 1) } else { (1, 0) };
        let segment = Segment {
            source: ends[mine],
            destination: ends[other],
            sequence: at,
            acknowledged: self.next[other],
            flags,
            length: u32::try_from(bytes.len()).unwrap(),
            payload: &bytes[..bytes.len().min(CAPTURED)],
        };
        self.tracker.take(self.now_ns, &segment);
    }

    fn says(&mut self, is_client: bool, flags: u8, bytes: &[u8]) -> &mut Self {
        let side = usize::from(!is_client);
        let at = self.next[side];
        self.next[side] = at.wrapping_add(u32::try_from(bytes.len()).unwrap());
        self.send(is_client, at, flags, bytes);
        if flags & (FIN | SYN) != 0 {
            self.next[side] = self.next[side].wrapping_add(1);
        }
        self
    }

    fn client(&mut self, bytes: &[u8]) -> &mut Self {
        self.says(true, PSH, bytes)
    }

    fn server(&mut self, bytes: &[u8]) -> &mut Self {
        self.says(false, PSH, bytes)
    }

    fn harvest(&mut self) -> Harvest {
        self.tracker.harvest(self.now_ns)
    }

    /// The latencies in milliseconds, shortest first, and the other counts.
    fn found(&mut self) -> (Vec<u64>, Counts, u64) {
        let Harvest {
            latencies,
            counts,
            waiting,
            ..
        } = self.harvest();
        let count = latencies.requests();
        let at = |rank: u64| {
            latencies
                .quantile_us((rank as f64 - 0.5) / count as f64)
                .unwrap()
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "milliseconds of a test, rounded"
        )]
        let found = (1..=count)
            .map(|rank| (at(rank) / 1000.0).round() as u64)
            .collect();
        (found, counts, waiting)
    }

    fn latencies(&mut self) -> Vec<u64> {
        self.found().0
    }
}

const GET: &[u8] = b"GET /a/rather/long/path HTTP/1.1\r\nHost: service.example\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn keep_alive_gives_a_latency_for_each_request() {
    let mut talk = Talk::new(Protocol::Auto);
    talk.says(true, SYN, b"").says(false, SYN, b"");
    for ms in [3, 5, 70] {
        talk.wait(10).client(GET).wait(ms).server(OK);
        // The rest of a long answer.
        talk.wait(1)
            .server(&[b'x'; 1400])
            .wait(1)
            .server(&[b'x'; 1400]);
    }
    let (latencies, counts, waiting) = talk.found();
    assert_eq!((latencies, waiting), (vec![3, 5, 70], 0));
    assert_eq!(
        (counts.ambiguous, counts.connections, counts.packets),
        (0, 1, 14)
    );
}

#[test]
fn a_connection_that_was_open_before_is_followed_too() {
    let mut talk = Talk::new(Protocol::Auto);
    // The rest of an answer, then an exchange.
    talk.server(&[b'x'; 500])
        .wait(4)
        .client(GET)
        .wait(6)
        .server(OK);
    assert_eq!(talk.latencies(), [6]);
}

#[test]
fn a_request_in_parts_counts_from_its_last_byte_and_an_interim_answer_is_none() {
    let mut talk = Talk::new(Protocol::Auto);
    talk.client(b"POST /upload HTTP/1.1\r\nExpect: 100-continue\r\n\r\n");
    talk.wait(1).server(b"HTTP/1.1 100 Continue\r\n\r\n");
    talk.wait(2)
        .client(&[b'x'; 1400])
        .wait(2)
        .client(&[b'x'; 1400]);
    talk.wait(9).server(OK);
    assert_eq!(talk.latencies(), [9]);
}

#[test]
fn what_is_seen_twice_counts_once() {
    let mut talk = Talk::new(Protocol::Auto);
    for ms in [4, 8] {
        for (is_client, wait, bytes) in [(true, 1, GET), (false, ms, OK)] {
            talk.wait(wait);
            let at = talk.next[usize::from(!is_client)];
            talk.says(is_client, PSH, bytes);
            // On another interface, and retransmitted.
            talk.send(is_client, at, PSH, bytes);
            talk.wait(30).send(is_client, at, PSH, bytes);
            talk.now_ns -= 30 * MS;
        }
    }
    let (latencies, counts, _) = talk.found();
    assert_eq!(
        (latencies, counts.repeated, counts.ambiguous),
        (vec![4, 8], 8, 0)
    );
}

#[test]
fn a_keep_alive_probe_is_no_request() {
    let mut talk = Talk::new(Protocol::Turns);
    talk.client(b"ask").wait(2).server(b"answer");
    let at = talk.next[0].wrapping_sub(1);
    talk.wait(1000).send(true, at, 0, b"k");
    talk.client(b"ask").wait(3).server(b"answer");
    assert_eq!(talk.latencies(), [2, 3]);
}

#[test]
fn a_request_whose_first_part_comes_late_counts_from_then() {
    let mut talk = Talk::new(Protocol::Auto);
    talk.client(GET).wait(1).server(OK);
    let (first, second) = (talk.next[0], talk.next[0].wrapping_add(40));
    let body = [b'x'; 60];
    talk.next[0] = second.wrapping_add(60);
    talk.wait(1).send(true, second, PSH, &body);
    talk.wait(5).send(
        true,
        first,
        0,
        b"POST / HTTP/1.1\r\nContent-Length: 60\r\n\r\n\r",
    );
    talk.wait(7).server(OK);
    let (latencies, counts, _) = talk.found();
    // The second part alone looks like no request: the exchange is left out, and nothing is wrong.
    assert_eq!((latencies, counts.ambiguous), (vec![1], 0));
    talk.wait(1).client(GET).wait(4).server(OK);
    assert_eq!(talk.latencies(), [4]);

    let mut talk = Talk::new(Protocol::Auto);
    talk.client(b"POST / HTTP/1.1\r\nContent-Length: 80\r\n\r\n");
    let (first, second) = (talk.next[0], talk.next[0].wrapping_add(40));
    talk.next[0] = second.wrapping_add(40);
    talk.wait(1).send(true, second, PSH, &[b'y'; 40]);
    talk.wait(5).send(true, first, 0, &[b'x'; 40]);
    talk.wait(7).server(OK);
    assert_eq!(talk.latencies(), [7]);
}

#[test]
fn an_answer_behind_a_gap_is_ambiguous() {
    let mut talk = Talk::new(Protocol::Auto);
    talk.client(GET).wait(3).server(OK);
    talk.wait(1).client(GET);
    talk.next[1] = talk.next[1].wrapping_add(1000);
    talk.wait(9).server(OK);
    let (latencies, counts, waiting) = talk.found();
    assert_eq!((latencies, counts.ambiguous, waiting), (vec![3], 1, 0));
}

#[test]
fn a_half_closed_connection_is_still_answered() {
    let mut talk = Talk::new(Protocol::Auto);
    talk.says(true, PSH | FIN, GET)
        .wait(12)
        .server(OK)
        .says(false, FIN, b"");
    assert_eq!(talk.latencies(), [12]);
    assert_eq!(talk.tracker.connections.len(), 0);
}

#[test]
fn a_reset_leaves_a_request_unanswered_and_the_ports_may_be_used_again() {
    let mut talk = Talk::new(Protocol::Auto);
    talk.client(GET).wait(1);
    assert_eq!(talk.harvest().waiting, 1);
    talk.says(false, RST, b"");
    let (latencies, counts, waiting) = talk.found();
    assert_eq!((latencies, counts.unanswered, waiting), (vec![], 1, 0));
    // The same ports, other numbers; the end of the first one was not seen.
    talk.client(GET).wait(1);
    talk.next = [77, 99];
    talk.says(true, SYN, b"")
        .says(false, SYN, b"")
        .client(GET)
        .wait(5)
        .server(OK);
    let (latencies, counts, _) = talk.found();
    assert_eq!((latencies, counts.unanswered), (vec![5], 1));
}

#[test]
fn pipelined_requests_are_exact_where_their_answers_can_be_seen() {
    let mut talk = Talk::new(Protocol::Auto);
    let ping = b"*1\r\n$4\r\nPING\r\n";
    talk.client(ping).wait(1).client(ping).wait(1).client(ping);
    talk.wait(2)
        .server(b"+PONG\r\n")
        .wait(2)
        .server(b"+PONG\r\n+PONG\r\n");
    let (latencies, counts, waiting) = talk.found();
    assert_eq!(
        (latencies, counts.ambiguous, waiting),
        (vec![4, 4, 5], 0, 0)
    );
}

#[test]
fn pipelined_requests_whose_answers_are_hidden_are_ambiguous() {
    let mut talk = Talk::new(Protocol::Auto);
    talk.client(GET).wait(1).client(GET).wait(1).client(GET);
    talk.wait(2).server(&[OK, OK, OK].concat());
    let (latencies, counts, waiting) = talk.found();
    assert_eq!((latencies, counts.ambiguous, waiting), (vec![4], 2, 0));
    // Afterwards all is well.
    talk.wait(1).client(GET).wait(6).server(OK);
    assert_eq!(talk.latencies(), [6]);
}

#[test]
fn an_unknown_protocol_takes_turns_and_a_request_in_two_writes_is_bounded() {
    let mut talk = Talk::new(Protocol::Auto);
    talk.client(b"\x01\x02").wait(3).server(b"\x01");
    talk.wait(1)
        .client(b"\x01\x02")
        .wait(2)
        .client(b"\x03")
        .wait(4)
        .server(b"\x01");
    let (latencies, counts, _) = talk.found();
    assert_eq!((latencies, counts.bounded), (vec![3, 6], 1));
    // Of one write, in two segments.
    talk.says(true, 0, &[1; 1400])
        .wait(2)
        .client(b"\x03")
        .wait(5)
        .server(b"\x01");
    let (latencies, counts, _) = talk.found();
    assert_eq!((latencies, counts.bounded), (vec![5], 0));
}

#[test]
fn a_command_that_waits_is_left_out() {
    let mut talk = Talk::new(Protocol::Redis);
    talk.client(b"*3\r\n$5\r\nBLPOP\r\n$1\r\nq\r\n$1\r\n0\r\n")
        .wait(5000)
        .server(b"$-1\r\n");
    talk.client(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n")
        .wait(1)
        .server(b"$-1\r\n");
    let (latencies, counts, _) = talk.found();
    assert_eq!((latencies, counts.excluded), (vec![1], 1));
}

#[test]
fn a_greeting_and_a_push_are_nobodys_answer() {
    let mut talk = Talk::new(Protocol::Auto);
    talk.server(b"\x4a\0\0\0\x0a5.5.5-10.11").wait(1);
    let mut login = vec![37 - 4, 0, 0, 1, 0x85, 0xa6, 0xff, 1];
    login.resize(37, 0);
    talk.client(&login);
    talk.wait(1).server(b"\x07\0\0\x02\0\0\0\x02\0\0\0");
    talk.wait(1)
        .client(b"\x09\0\0\0\x03SELECT 1")
        .wait(8)
        .server(b"\x01\0\0\x01\x01\x03\0\0\x02def");
    let (latencies, counts, waiting) = talk.found();
    assert_eq!((latencies, counts.ambiguous, waiting), (vec![8], 0, 0));
}

fn frame(kind: u8, stream: u32, payload: u16) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(payload.to_be_bytes());
    bytes.extend([kind, 0]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(vec![0; payload.into()]);
    bytes
}

#[test]
fn streams_of_http_2_are_told_apart_and_hidden_ones_are_bounded() {
    let mut talk = Talk::new(Protocol::Http2);
    talk.client(&frame(1, 1, 30))
        .wait(1)
        .client(&frame(1, 3, 30))
        .wait(1);
    // The later one is answered first.
    talk.server(&frame(1, 3, 10))
        .wait(8)
        .server(&frame(1, 1, 10));
    let (latencies, counts, _) = talk.found();
    assert_eq!(
        (latencies, counts.bounded, counts.ambiguous),
        (vec![1, 10], 0, 0)
    );

    // The second answer's headers lie behind the data of the first.
    talk.client(&frame(1, 5, 30))
        .client(&frame(1, 7, 30))
        .wait(3);
    talk.server(&[frame(1, 5, 10), frame(0, 5, 200), frame(1, 7, 10)].concat());
    talk.wait(2).server(&frame(0, 7, 100));
    let (latencies, counts, _) = talk.found();
    assert_eq!((latencies, counts.bounded), (vec![3, 5], 1));

    // One that is never seen at all.
    talk.client(&frame(1, 9, 30))
        .client(&frame(1, 11, 30))
        .wait(3);
    talk.server(&[frame(1, 9, 10), frame(0, 9, 200), frame(1, 11, 10)].concat());
    talk.says(true, FIN, b"").says(false, FIN, b"");
    let (latencies, counts, _) = talk.found();
    assert_eq!((latencies, counts.ambiguous), (vec![3], 1));
}

#[test]
fn streams_behind_what_was_captured_are_found_by_their_numbers() {
    let mut talk = Talk::new(Protocol::Http2);
    talk.client(&frame(1, 1, 30))
        .wait(1)
        .server(&frame(1, 1, 10));
    assert_eq!(talk.latencies(), [1]);
    // Four requests in one segment, of which one is captured. The answers come apart.
    let four = |first: u32| [0, 2, 4, 6].map(|more| frame(1, first + more, 40)).concat();
    talk.wait(1).client(&four(3)).wait(2);
    for number in [3, 7, 5] {
        talk.server(&frame(1, number, 10)).wait(1);
    }
    let (latencies, counts, waiting) = talk.found();
    assert_eq!((latencies, waiting), (vec![2, 3, 4], 0));
    assert_eq!((counts.bounded, counts.ambiguous), (0, 0));
    // The last one is found when the next request has a higher number: it still waits.
    talk.client(&frame(1, 11, 30)).wait(5);
    talk.server(&frame(1, 11, 10));
    let (latencies, counts, waiting) = talk.found();
    assert_eq!((latencies, counts.ambiguous, waiting), (vec![5], 0, 1));
    // Two such segments: a request may have come in either, so its time is bounded by the first.
    talk.client(&[frame(0, 11, 100), frame(1, 13, 40)].concat());
    talk.wait(1)
        .client(&[frame(0, 11, 100), frame(1, 15, 40)].concat());
    talk.wait(1).server(&frame(1, 15, 10));
    let (latencies, counts, _) = talk.found();
    assert_eq!((latencies, counts.bounded), (vec![2], 1));
    // A lost packet: that there were requests is known, and no more. A jump is no million requests.
    let mut talk = Talk::new(Protocol::Http2);
    talk.client(&frame(1, 17, 30)).server(&frame(1, 17, 10));
    talk.client(&frame(1, 23, 30)).server(&frame(1, 23, 10));
    talk.client(&frame(1, 0x7fff_ffff, 30));
    assert_eq!(talk.found().1.ambiguous, 2 + 4096);
}

#[test]
fn a_stream_that_is_reset_is_unanswered() {
    let mut talk = Talk::new(Protocol::Http2);
    talk.client(&frame(1, 1, 30))
        .wait(1)
        .client(&frame(3, 1, 4));
    let (_, counts, waiting) = talk.found();
    assert_eq!((counts.unanswered, waiting), (1, 0));
}

#[test]
fn records_of_tls_are_timed_and_overlapping_streams_inside_are_not_believed() {
    let record = |length: u16| {
        let mut bytes = vec![23, 3, 3];
        bytes.extend(length.to_be_bytes());
        bytes.extend(vec![0; length.into()]);
        bytes
    };
    let mut talk = Talk::new(Protocol::Auto);
    for ms in [3, 4] {
        talk.wait(1)
            .client(&record(200))
            .wait(ms)
            .server(&record(900))
            .server(&record(900));
    }
    assert_eq!(talk.latencies(), [3, 4]);
}

#[test]
fn a_request_that_waits_for_long_is_said_and_then_given_up() {
    let mut talk = Talk::new(Protocol::Auto);
    talk.client(GET).wait(30_000);
    let harvest = talk.harvest();
    assert_eq!(
        (harvest.waiting, harvest.oldest_waiting_ns / MS),
        (1, 30_000)
    );
    talk.wait(31_000);
    let (_, counts, waiting) = talk.found();
    assert_eq!((counts.unanswered, waiting), (1, 0));
}

#[test]
fn what_is_sampled_no_more_is_forgotten() {
    let mut talk = Talk::new(Protocol::Auto);
    talk.client(GET);
    talk.tracker
        .retain(|client, port| (client, port) != (1, 40_000));
    assert_eq!(talk.harvest().waiting, 0);
    talk.client(GET).tracker.clear();
    assert_eq!(talk.harvest().waiting, 0);
}

#[test]
fn a_clock_that_is_set_back_makes_no_latency() {
    let mut talk = Talk::new(Protocol::Auto);
    talk.client(GET);
    talk.now_ns -= 1000 * MS;
    talk.server(OK);
    let (latencies, counts, _) = talk.found();
    assert_eq!((latencies, counts.ambiguous), (vec![], 1));
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(64))]

    /// Whatever comes, nothing panics and nothing waits that was not asked.
    #[test]
    fn no_segments_make_it_panic(
        which in 0_usize..9,
        segments in proptest::collection::vec((proptest::bool::ANY, 0_u32..3000, proptest::num::u8::ANY,
            proptest::collection::vec(proptest::num::u8::ANY, 0..60), 0_u64..50), 0..80),
    ) {
        use Protocol::{Auto, Http1, Http2, Memcached, Mysql, Postgres, Redis, Tls, Turns};
        let mut talk = Talk::new([Auto, Turns, Http1, Http2, Tls, Memcached, Redis, Mysql, Postgres][which]);
        let mut asked = 0_u64;
        for (is_client, at, flags, bytes, ms) in segments {
            asked += bytes.len() as u64 / 2 + 1;
            talk.wait(ms).send(is_client, at.wrapping_sub(1500), flags, &bytes);
        }
        let harvest = talk.harvest();
        let counts = harvest.counts;
        proptest::prop_assert!(harvest.waiting <= 64 && harvest.latencies.requests() <= asked);
        proptest::prop_assert!(counts.unanswered + counts.excluded <= asked);
    }

    /// Requests and answers in turn, of random lengths, give their latencies whatever is repeated.
    #[test]
    fn turns_are_exact_whatever_is_repeated(
        exchanges in proptest::collection::vec((1_usize..3000, 1_u64..200, proptest::bool::ANY), 1..30)
    ) {
        let mut talk = Talk::new(Protocol::Turns);
        let mut expected: Vec<u64> = Vec::new();
        for (length, ms, is_repeated) in exchanges {
            let at = talk.next[0];
            talk.wait(1).client(&vec![1; length]);
            if is_repeated {
                talk.send(true, at, PSH, &vec![1; length]);
            }
            talk.wait(ms).server(&vec![2; length]);
            expected.push(ms);
        }
        expected.sort_unstable();
        proptest::prop_assert_eq!(talk.latencies(), expected);
    }
}
