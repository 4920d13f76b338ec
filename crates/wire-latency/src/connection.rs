//! One connection: its requests in the order in which they came, and which segment begins the
//! answer of which.
//!
//! A request's time runs from the arrival of its last byte to the first byte of its answer, both as
//! the host's network stack saw them.

use std::collections::VecDeque;

use crate::distribution::Fine;
use crate::protocol::{Bytes, Dialect, Mark, Protocol};
use crate::reading::Counts;
use crate::segment::{FIN, PSH, RST, SYN, Segment};

/// Requests of one connection that may wait at once; the oldest is given up beyond.
const WAITING_MAX: usize = 64;
/// Requests that can lie in the part of a segment that was not captured: 64 KiB (GSO) of requests
/// of 16 bytes. A client that skips more numbers did not use them.
const UNSEEN_MAX: u32 = 4096;
/// Exchanges that must not overlap before those of a blindly multiplexed connection are believed
/// again.
const MISTRUST: u8 = 16;

/// What connections add to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) latencies: Fine,
    pub(crate) counts: Counts,
    /// Requests that wait for an answer.
    pub(crate) waiting: u64,
}

impl Tally {
    fn record(&mut self, from_ns: u64, to_ns: u64) {
        match to_ns.checked_sub(from_ns) {
            Some(latency_ns) => self.latencies.record_ns(latency_ns),
            // The clock was set back.
            None => self.counts.ambiguous += 1,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Request {
    number: u32,
    /// Sequence number behind its last byte.
    end: u32,
    first_ns: u64,
    last_ns: u64,
    /// When its answer may have begun unseen.
    hidden_ns: Option<u64>,
    /// Its later parts may be further requests.
    is_merged: bool,
    is_excluded: bool,
    /// Requests before it may not have been seen: the next answer may be theirs.
    is_unsure: bool,
}

/// What a segment brings of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Next,
    /// Bytes before it have not been seen.
    AfterGap,
    /// Bytes that had been missing.
    Late,
    Repeated,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Sequence number behind the last byte that was seen.
    next: Option<u32>,
    /// Bytes that are missing, from and to.
    hole: Option<(u32, u32)>,
    is_finished: bool,
}

/// Signed distance of two sequence numbers (RFC 9293, section 3.4).
fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from).cast_signed()
}

impl Stream {
    fn advance(&mut self, sequence: u32, length: u32) -> News {
        let end = sequence.wrapping_add(length);
        let Some(next) = self.next else {
            self.next = Some(end);
            return News::Next;
        };
        if distance(next, sequence) > 0 {
            self.hole = Some((next, sequence));
            self.next = Some(end);
            return News::AfterGap;
        }
        if distance(next, end) > 0 {
            self.next = Some(end);
            return News::Next;
        }
        match self.hole {
            Some((from, to)) if distance(from, sequence) >= 0 && distance(end, to) >= 0 => {
                self.hole = match (sequence == from, end == to) {
                    (true, true) => None,
                    (true, false) => Some((end, to)),
                    (false, _) => Some((from, sequence)),
                };
                News::Late
            }
            _ => News::Repeated,
        }
    }
}

/// The part of a client's segments that was not captured, since the last request that was.
#[derive(Clone, Copy, Debug)]
struct Unseen {
    first_ns: u64,
    /// Sequence number behind it.
    end: u32,
    /// There are several such segments: a request may have come in any of them.
    is_several: bool,
}

#[derive(Debug)]
pub(crate) struct Connection {
    dialect: Dialect,
    client: Stream,
    server: Stream,
    waiting: VecDeque<Request>,
    mistrust: u8,
    /// The highest number of a request; 0 before the first one, and where requests have none.
    last_number: u32,
    /// Where requests with higher numbers may lie.
    unseen: Option<Unseen>,
    /// The client's last segment ended what the client wrote at once.
    client_pushed: bool,
    pub(crate) last_ns: u64,
    /// The harvest during which a request was last seen.
    pub(crate) active_in: u64,
}

impl Connection {
    pub(crate) fn new(protocol: Protocol) -> Self {
        Self {
            dialect: Dialect::new(protocol),
            client: Stream::default(),
            server: Stream::default(),
            waiting: VecDeque::new(),
            mistrust: 0,
            last_number: 0,
            unseen: None,
            client_pushed: false,
            last_ns: 0,
            active_in: u64::MAX,
        }
    }

    /// When the oldest request that waits began.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        let timed = self.waiting.iter().find(|request| !request.is_excluded);
        timed.map(|request| request.first_ns)
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Gives up all requests that wait.
    pub(crate) fn give_up(&mut self, tally: &mut Tally) {
        for request in self.waiting.drain(..) {
            tally.waiting -= 1;
            // Seen to be answered, but not when.
            match request.hidden_ns {
                Some(_) => tally.counts.ambiguous += 1,
                None if request.is_excluded => tally.counts.excluded += 1,
                None => tally.counts.unanswered += 1,
            }
        }
    }

    /// Takes a segment in; whether the connection is over.
    pub(crate) fn take(
        &mut self,
        time_ns: u64,
        segment: &Segment<'_>,
        is_client: bool,
        tally: &mut Tally,
    ) -> bool {
        self.last_ns = time_ns;
        if segment.has(RST) {
            self.give_up(tally);
            return true;
        }
        if segment.has(SYN) {
            let next = Some(segment.sequence.wrapping_add(1));
            match is_client {
                // A pair of ports that is used again, unless it is the same SYN once more.
                true if self.client.next == next => {}
                true => {
                    self.give_up(tally);
                    self.client = Stream {
                        next,
                        ..Stream::default()
                    };
                    self.server = Stream::default();
                    (self.last_number, self.unseen) = (0, None);
                }
                false => self.server.next = next,
            }
            return false;
        }
        if segment.length > 0 {
            match is_client {
                true => self.take_client(time_ns, segment, tally),
                false => self.take_server(time_ns, segment, tally),
            }
        }
        if segment.has(FIN) {
            let stream = if is_client {
                &mut self.client
            } else {
                &mut self.server
            };
            stream.is_finished = true;
            if self.client.is_finished && self.server.is_finished {
                self.give_up(tally);
                return true;
            }
        }
        false
    }

    fn take_client(&mut self, time_ns: u64, segment: &Segment<'_>, tally: &mut Tally) {
        let end = segment.sequence.wrapping_add(segment.length);
        let mut is_after_gap = false;
        match self.client.advance(segment.sequence, segment.length) {
            News::Next => {}
            News::AfterGap => {
                self.dialect.lose_client();
                is_after_gap = true;
            }
            News::Repeated => {
                tally.counts.repeated += 1;
                return;
            }
            News::Late => {
                // Only now the request that the bytes belong to is whole.
                let is_behind = |request: &&mut Request| distance(end, request.end) >= 0;
                if let Some(request) = self.waiting.iter_mut().find(is_behind) {
                    request.last_ns = time_ns;
                }
                return;
            }
        }
        let marks = self.dialect.client(Bytes {
            sequence: segment.sequence,
            length: segment.length,
            seen: segment.payload,
            is_turn: self.waiting.is_empty(),
        });
        for mark in marks.list() {
            match *mark {
                Mark::Start(number) if self.has_number(number) => {
                    self.extend(number, end, time_ns);
                }
                Mark::Start(number) => {
                    self.find_unseen(number.saturating_sub(2), tally);
                    self.last_number = self.last_number.max(number);
                    self.unseen = None;
                    self.begin(number, end, time_ns, false, tally);
                }
                Mark::Excluded(number) => self.begin(number, end, time_ns, true, tally),
                Mark::More(number) => self.extend(number, end, time_ns),
                Mark::Cancel(number) => self.cancel(number, tally),
            }
        }
        if marks.is_hidden && self.dialect.has_numbers() {
            self.unseen = Some(match self.unseen {
                Some(unseen) => Unseen {
                    end,
                    is_several: true,
                    ..unseen
                },
                None => Unseen {
                    first_ns: time_ns,
                    end,
                    is_several: false,
                },
            });
        }
        if is_after_gap && !self.dialect.has_numbers() {
            let is_begun_here = |request: &&mut Request| request.end == end;
            for request in self.waiting.iter_mut().filter(is_begun_here) {
                request.is_unsure |= request.first_ns == time_ns;
            }
        }
        self.client_pushed = segment.has(PSH);
    }

    /// A client numbers its streams 1, 3, 5 and so on (RFC 9113, section 5.1.1). So a number up to
    /// `number` that was not seen is a request in what was not captured, or in a lost packet.
    fn find_unseen(&mut self, number: u32, tally: &mut Tally) {
        if self.last_number == 0 || number <= self.last_number || !self.dialect.has_numbers() {
            return;
        }
        let missing = ((number - self.last_number) / 2).min(UNSEEN_MAX);
        self.last_number = number;
        let Some(unseen) = self.unseen else {
            tally.counts.ambiguous += u64::from(missing);
            return;
        };
        let found = missing.min(u32::try_from(WAITING_MAX).unwrap_or(u32::MAX));
        tally.counts.ambiguous += u64::from(missing - found);
        for number in (0..found).rev().map(|back| number - 2 * back) {
            self.begin(number, unseen.end, unseen.first_ns, false, tally);
            if let Some(request) = self.waiting.back_mut() {
                request.is_merged = unseen.is_several;
            }
        }
    }

    fn has_number(&self, number: u32) -> bool {
        number != 0 && self.waiting.iter().any(|request| request.number == number)
    }

    fn begin(&mut self, number: u32, end: u32, time_ns: u64, is_excluded: bool, tally: &mut Tally) {
        // One stream at a time: the next one is opened when the last one's answer is there.
        if let [only] = self.waiting.make_contiguous()
            && let Some(hidden_ns) = only.hidden_ns
        {
            tally.record(only.last_ns, hidden_ns);
            tally.counts.bounded += 1;
            tally.waiting -= 1;
            self.waiting.clear();
        }
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
            tally.waiting -= 1;
            tally.counts.ambiguous += 1;
        }
        tally.waiting += 1;
        self.waiting.push_back(Request {
            number,
            end,
            first_ns: time_ns,
            last_ns: time_ns,
            hidden_ns: None,
            is_merged: false,
            is_excluded,
            is_unsure: false,
        });
    }

    /// A later part of a request, or of the last one.
    fn extend(&mut self, number: u32, end: u32, time_ns: u64) {
        let merges = self.dialect.merges_requests() && self.client_pushed;
        if self.dialect.is_multiplexed_blindly() && !self.waiting.is_empty() {
            self.mistrust = MISTRUST;
        }
        let is_it = |request: &&mut Request| number == 0 || request.number == number;
        if let Some(request) = self.waiting.iter_mut().rev().find(is_it) {
            request.end = end;
            request.last_ns = time_ns;
            request.is_merged |= merges;
        }
    }

    fn cancel(&mut self, number: u32, tally: &mut Tally) {
        if let Some(at) = self
            .waiting
            .iter()
            .position(|request| request.number == number)
        {
            self.waiting.remove(at);
            tally.waiting -= 1;
            tally.counts.unanswered += 1;
        }
    }

    fn take_server(&mut self, time_ns: u64, segment: &Segment<'_>, tally: &mut Tally) {
        let is_after_gap = match self.server.advance(segment.sequence, segment.length) {
            News::Next => false,
            News::AfterGap => {
                self.dialect.lose_server();
                true
            }
            News::Repeated => {
                tally.counts.repeated += 1;
                return;
            }
            News::Late => return,
        };
        let acknowledged = segment.acknowledged;
        let has_arrived = move |request: &Request| distance(request.end, acknowledged) >= 0;
        let marks = self.dialect.server(Bytes {
            sequence: segment.sequence,
            length: segment.length,
            seen: segment.payload,
            is_turn: self.waiting.front().is_some_and(has_arrived),
        });
        let has_numbers = self.dialect.has_numbers();
        let mut answers = 0;
        for mark in marks.list() {
            let found = |number| {
                move |request: &Request| {
                    if has_numbers {
                        request.number == number
                    } else {
                        has_arrived(request)
                    }
                }
            };
            match *mark {
                Mark::Start(number) | Mark::Excluded(number) => {
                    answers += 1;
                    if self.unseen.is_some() {
                        self.find_unseen(number, tally);
                    }
                    let at = match has_numbers {
                        true => self.waiting.iter().position(found(number)),
                        false => self.waiting.front().is_some_and(found(number)).then_some(0),
                    };
                    match at.and_then(|at| self.waiting.remove(at)) {
                        Some(request) => self.answer(request, time_ns, is_after_gap, tally),
                        // Requests that came in one segment with others, and were not seen.
                        None if answers > 1 => tally.counts.ambiguous += 1,
                        None => {}
                    }
                }
                // Its headers were in what was not captured.
                Mark::More(number) if has_numbers => {
                    if self.unseen.is_some() && number % 2 == 1 {
                        self.find_unseen(number, tally);
                    }
                    let at = self.waiting.iter().position(found(number));
                    if let Some(request) = at.and_then(|at| self.waiting.remove(at)) {
                        tally.counts.bounded += 1;
                        self.answer(request, time_ns, is_after_gap, tally);
                    }
                }
                Mark::More(_) => {}
                Mark::Cancel(number) => self.cancel(number, tally),
            }
        }
        // Behind a gap: what was not seen may have been the answers of all that have arrived. A
        // request that went on waiting would get the answer of the next one.
        if marks.is_hidden || is_after_gap {
            self.hide(time_ns, has_numbers, has_arrived, tally);
        }
    }

    /// Answers may have begun in the part of a segment that was not captured.
    fn hide(
        &mut self,
        time_ns: u64,
        has_numbers: bool,
        has_arrived: impl Fn(&Request) -> bool,
        tally: &mut Tally,
    ) {
        if has_numbers {
            for request in self
                .waiting
                .iter_mut()
                .filter(|request| has_arrived(request))
            {
                request.hidden_ns = request.hidden_ns.or(Some(time_ns));
            }
            return;
        }
        while self.waiting.front().is_some_and(&has_arrived) {
            self.waiting.pop_front();
            tally.waiting -= 1;
            tally.counts.ambiguous += 1;
        }
    }

    fn answer(&mut self, request: Request, time_ns: u64, is_after_gap: bool, tally: &mut Tally) {
        tally.waiting -= 1;
        let is_mistrusted = self.mistrust > 0;
        self.mistrust = self.mistrust.saturating_sub(1);
        if request.is_excluded {
            tally.counts.excluded += 1;
        } else if is_after_gap
            || is_mistrusted
            || request.is_unsure
            || self.dialect.answer_is_unsure()
        {
            tally.counts.ambiguous += 1;
        } else if request.is_merged {
            tally.counts.bounded += 1;
            tally.record(request.first_ns, time_ns);
        } else {
            tally.record(request.last_ns, time_ns);
        }
    }
}
