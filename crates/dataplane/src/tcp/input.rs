//! A segment arrives at a connection (RFC 9293 §3.10.7, with RFC 5961 and RFC 7323).

use super::connection::{Connection, Context, Flags, State};
use super::reassembly::Reassembly;
use super::recovery::{Phase, Recovery};
use super::sequence::{at_most, before, distance, within};
use super::wire::length32;
use super::wire::segment::{ACK, FIN, RST, SYN, Segment};
use super::{Data, Event};
use crate::api::DeadReason;

/// Challenge acknowledgements of one connection are this far apart at least (RFC 5961 §7). The
/// bound is a connection's own, so that nobody can learn of other connections by using it up.
const CHALLENGE_INTERVAL_MS: u32 = 500;
/// An old timestamp counts for this long: 24 days (RFC 7323 §5.5).
const TIMESTAMP_VALID_MS: u32 = 24 * 24 * 3600 * 1000;

/// As the kernel reports a connection that the peer refuses.
pub(crate) const REFUSED: DeadReason = DeadReason::Os(libc::ECONNREFUSED);

/// What the stack does after a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing more.
    Done,
    /// The connection is gone.
    Gone,
    /// Answer the segment with an RST; the connection stays.
    Refuse,
    /// The segment opens a new connection in the place of this one, which was in TIME-WAIT.
    Reopen,
}

/// The parts of an arriving segment.
pub(crate) struct Arrival<'a> {
    pub(crate) segment: &'a Segment,
    pub(crate) payload: &'a [u8],
    /// The frame's number, and the payload's place in it.
    pub(crate) frame_index: u32,
    pub(crate) payload_start: usize,
}

impl Arrival<'_> {
    /// Sequence numbers that the segment takes (SEG.LEN).
    fn length(&self) -> u32 {
        length32(self.payload.len())
            + u32::from(self.segment.has(SYN))
            + u32::from(self.segment.has(FIN))
    }
}

impl Connection {
    /// Takes a segment that belongs to this connection.
    pub(crate) fn arrive(&mut self, context: &mut Context, arrival: &Arrival<'_>) -> After {
        if self.state == State::SynSent {
            return self.arrive_syn_sent(context, arrival);
        }
        let segment = arrival.segment;
        if self.state == State::TimeWait && self.may_reopen(segment) {
            return After::Reopen;
        }
        if let Some(after) = self.reject(context, arrival) {
            return after;
        }
        self.heard_ms = context.now_ms;
        if self.flight_bytes() == 0 {
            // The peer has answered a probe, or sends of its own accord.
            self.tries = 0;
        }
        if !segment.has(ACK) {
            return After::Done;
        }
        if self.state == State::SynReceived {
            let is_ours = within(
                segment.acknowledgement,
                self.unacknowledged.wrapping_add(1),
                self.next.wrapping_add(1),
            );
            if !is_ours {
                return After::Refuse;
            }
            self.establish(context, segment);
        }
        if !self.take_acknowledgement(context, arrival) {
            return After::Done;
        }
        if self.finish_acknowledged(context) {
            return After::Gone;
        }
        // Without data or FIN there is nothing to take, wherever the segment stands. An answer to a
        // bare acknowledgement beyond a hole would be answered in turn, without end.
        if arrival.length() > 0 {
            self.take_content(context, arrival);
        }
        if self.has_unsent() || self.recovery.is_some() {
            self.list(context);
        }
        After::Done
    }

    /// Data or FIN.
    fn take_content(&mut self, context: &mut Context, arrival: &Arrival<'_>) {
        let length = length32(arrival.payload.len());
        let end = arrival.segment.sequence.wrapping_add(length);
        let is_news = length > 0 && before(self.receive_next, end);
        if !self.state.may_receive() {
            self.acknowledge_now(context);
        } else if self.flags.has(Flags::CLOSED) && is_news {
            // The application is gone, and nobody will ever read this (RFC 9293 §3.6.1). Data that
            // is here already is no reason: the peer may send a FIN along with such data.
            self.flags.set(Flags::RESET_DUE);
            self.list(context);
        } else {
            self.take_data(context, arrival);
        }
    }

    /// RFC 9293 §3.10.7.3.
    fn arrive_syn_sent(&mut self, context: &mut Context, arrival: &Arrival<'_>) -> After {
        let segment = arrival.segment;
        let first = self.unacknowledged.wrapping_add(1);
        let is_ours = segment.acknowledgement == first && self.next == first;
        if segment.has(ACK) && !is_ours {
            return if segment.has(RST) {
                After::Done
            } else {
                After::Refuse
            };
        }
        if segment.has(RST) {
            if segment.has(ACK) {
                self.tell_dead(context, REFUSED);
                return After::Gone;
            }
            return After::Done;
        }
        if !segment.has(SYN) {
            return After::Done;
        }
        self.take_syn(context, segment);
        self.heard_ms = context.now_ms;
        if segment.has(ACK) {
            self.state = State::Established;
            self.unacknowledged = first;
            self.open(context, segment);
            context.counters.opened += 1;
            context.events.push(Event::Connected { flow: self.id() });
            self.acknowledge_now(context);
        } else {
            // Both sides open at the same time.
            self.state = State::SynReceived;
            self.flags.set(Flags::SYN_DUE);
            self.list(context);
        }
        After::Done
    }

    /// Takes the peer's SYN: its number, window and options.
    pub(crate) fn take_syn(&mut self, context: &mut Context, segment: &Segment) {
        let options = &segment.options;
        self.receive_next = segment.sequence.wrapping_add(1);
        self.acknowledged = self.receive_next;
        // RFC 7323 §2.2: the window of a SYN is never scaled.
        self.window = u32::from(segment.window);
        self.window_max = self.window;
        self.window_sequence = segment.sequence;
        self.window_acknowledgement = segment.acknowledgement;
        // RFC 9293 §3.7.1: 536 bytes over IPv4 and 1,220 over IPv6 without the option.
        let default = if self.ends.remote.is_v4() { 536 } else { 1220 };
        self.mss = self.mss.min(options.mss.unwrap_or(default)).max(64);
        match options.window_scale {
            Some(scale) if context.config.window_scaling => {
                self.flags.set(Flags::SCALED);
                self.send_scale = scale;
                self.receive_scale = context.config.receive_scale();
            }
            _ => {}
        }
        let sack = options.sack_permitted && context.config.sack;
        self.flags.put(Flags::SACK, sack);
        if let Some((value, _)) = options.timestamps
            && context.config.timestamps
        {
            self.flags.set(Flags::TIMESTAMPS);
            self.peer_timestamp = value;
            self.peer_timestamp_ms = context.now_ms;
        }
        self.receive_edge = self
            .receive_next
            .wrapping_add(context.config.receive_window_bytes.min(65_535));
    }

    /// The handshake of a connection that the peer opened is complete.
    fn establish(&mut self, context: &mut Context, segment: &Segment) {
        self.state = State::Established;
        self.unacknowledged = self.unacknowledged.wrapping_add(1);
        self.window = u32::from(segment.window) << self.send_scale;
        self.window_max = self.window_max.max(self.window);
        self.window_sequence = segment.sequence;
        self.window_acknowledgement = segment.acknowledgement;
        let was_opened_here = self.flags.has(Flags::KNOWN);
        self.open(context, segment);
        if was_opened_here {
            context.counters.opened += 1;
            context.events.push(Event::Connected { flow: self.id() });
        } else {
            self.knock(context);
        }
    }

    /// Tells the application of a connection that the peer opened.
    pub(crate) fn knock(&mut self, context: &mut Context) {
        context.counters.accepted += 1;
        self.flags.set(Flags::KNOWN);
        context.events.push(Event::Knock {
            flow: self.id(),
            ends: self.ends,
        });
    }

    /// What both ways into ESTABLISHED have in common.
    pub(crate) fn open(&mut self, context: &mut Context, segment: &Segment) {
        if self.flags.take(Flags::EMBRYO) {
            context.embryos = context.embryos.saturating_sub(1);
        }
        let was_lost = self.flags.has(Flags::SYN_LOST);
        self.congestion.start(self.segment_bytes(), was_lost);
        if self.flags.take(Flags::TIMED) && !was_lost {
            self.rtt
                .measure(low32(context.now_us).wrapping_sub(self.timed_us));
        } else {
            self.rtt.progress();
        }
        self.tries = 0;
        self.flags.clear(Flags::RESEND_ARMED);
        self.window_sequence = segment.sequence;
        if let Some(keep_alive) = context.config.keep_alive {
            self.arm_idle(context, keep_alive.idle_ms);
        }
        if self.has_unsent() {
            self.list(context);
        }
    }

    /// The tests that come before anything is believed: PAWS, the window, RST and SYN. `Some` ends
    /// the processing.
    fn reject(&mut self, context: &mut Context, arrival: &Arrival<'_>) -> Option<After> {
        let segment = arrival.segment;
        if self.flags.has(Flags::TIMESTAMPS) && !segment.has(RST) {
            match segment.options.timestamps {
                // RFC 7323 §3.2: once negotiated, every segment but an RST has them.
                None if !segment.has(SYN) => return Some(After::Done),
                Some((value, _)) if self.is_old(context, value) => {
                    context.counters.paws_rejected += 1;
                    self.answer_unacceptable(context, arrival);
                    return Some(After::Done);
                }
                _ => {}
            }
        }
        let start = segment.sequence;
        if self.state == State::SynReceived
            && segment.has(SYN | ACK)
            && start.wrapping_add(1) == self.receive_next
        {
            // The other half of a simultaneous open (RFC 9293 §3.5, figure 7).
            return None;
        }
        if !self.is_acceptable(start, arrival.length()) {
            if segment.has(RST) {
                return Some(After::Done);
            }
            let is_repeated_syn = self.state == State::SynReceived
                && segment.flags & (SYN | ACK) == SYN
                && start.wrapping_add(1) == self.receive_next;
            if is_repeated_syn {
                // The peer has not seen our SYN-ACK.
                self.flags.set(Flags::SYN_DUE);
                self.list(context);
            } else {
                self.answer_unacceptable(context, arrival);
            }
            return Some(After::Done);
        }
        if segment.has(RST) {
            return Some(self.take_reset(context, start));
        }
        if segment.has(SYN) {
            // RFC 5961 §4.2: whatever its number.
            self.challenge(context);
            return Some(After::Done);
        }
        if let Some((value, _)) = segment.options.timestamps
            && at_most(start, self.acknowledged)
            && self.flags.has(Flags::TIMESTAMPS)
            && !before(value, self.peer_timestamp)
        {
            // RFC 7323 §4.3 (2).
            self.peer_timestamp = value;
            self.peer_timestamp_ms = context.now_ms;
        }
        None
    }

    /// PAWS (RFC 7323 §5.3 R1).
    fn is_old(&self, context: &Context, value: u32) -> bool {
        before(value, self.peer_timestamp)
            && context.now_ms.wrapping_sub(self.peer_timestamp_ms) < TIMESTAMP_VALID_MS
    }

    /// The four cases of RFC 9293 §3.4, table 6.
    fn is_acceptable(&self, start: u32, length: u32) -> bool {
        let window = distance(self.receive_next, self.receive_edge);
        match (length, window) {
            (0, 0) => start == self.receive_next,
            (0, _) => within(start, self.receive_next, self.receive_edge),
            // A closed window still takes acknowledgements and RSTs that carry data.
            (_, 0) => start == self.receive_next,
            _ => {
                let last = start.wrapping_add(length - 1);
                within(start, self.receive_next, self.receive_edge)
                    || within(last, self.receive_next, self.receive_edge)
                    || (at_most(start, self.receive_next) && at_most(self.receive_edge, last))
            }
        }
    }

    /// RFC 9293 §3.10.7.4: an unacceptable segment is answered by an acknowledgement. Segments
    /// without data are answered now and then only, so that two ends cannot answer each other for
    /// ever.
    fn answer_unacceptable(&mut self, context: &mut Context, arrival: &Arrival<'_>) {
        if self.state == State::TimeWait {
            self.arm_idle(context, context.config.time_wait_ms);
        }
        // A keep-alive or window probe is one number before what is expected.
        let is_probe = arrival.segment.sequence.wrapping_add(1) == self.receive_next;
        if arrival.length() > 0 || is_probe {
            self.acknowledge_now(context);
        } else {
            self.challenge(context);
        }
    }

    fn challenge(&mut self, context: &mut Context) {
        let waited_ms = context.now_ms.wrapping_sub(self.challenged_ms);
        if waited_ms >= CHALLENGE_INTERVAL_MS {
            self.challenged_ms = context.now_ms;
            context.counters.challenges += 1;
            self.acknowledge_now(context);
        }
    }

    /// An RST inside of the window (RFC 5961 §3.2).
    fn take_reset(&mut self, context: &mut Context, sequence: u32) -> After {
        if sequence != self.receive_next {
            self.challenge(context);
            return After::Done;
        }
        let reason = match self.state {
            State::SynReceived => REFUSED,
            // RFC 1337: TIME-WAIT is not cut short.
            State::TimeWait => return After::Done,
            // RFC 9293 §3.10.7.4: no error. The peer has all data, and has forgotten the
            // connection.
            State::Closing | State::LastAck if self.queue.len() == 0 => DeadReason::Closed,
            _ => DeadReason::Reset,
        };
        self.tell_dead(context, reason);
        After::Gone
    }

    /// RFC 9293 §3.10.7.4 and RFC 6191: a SYN with a later timestamp, or beyond what was received,
    /// may open the connection again.
    fn may_reopen(&self, segment: &Segment) -> bool {
        if segment.flags & (SYN | ACK | RST) != SYN {
            return false;
        }
        match segment.options.timestamps {
            Some((value, _)) if self.flags.has(Flags::TIMESTAMPS) => {
                before(self.peer_timestamp, value)
            }
            _ => before(self.receive_next, segment.sequence),
        }
    }

    /// The acknowledgement field, SACK and window. False if the segment is to be dropped.
    fn take_acknowledgement(&mut self, context: &mut Context, arrival: &Arrival<'_>) -> bool {
        let segment = arrival.segment;
        let acknowledged = segment.acknowledgement;
        // RFC 5961 §5.2: neither beyond what was sent, nor older than the largest window.
        let oldest = self
            .unacknowledged
            .wrapping_sub(self.window_max.max(1 << 16));
        if before(self.next, acknowledged) || before(acknowledged, oldest) {
            self.challenge(context);
            return false;
        }
        let is_window_same = self.take_window(segment, acknowledged);
        let is_sack_news = self.take_sacks(segment);
        if before(self.unacknowledged, acknowledged) {
            self.advance(context, acknowledged);
        } else if acknowledged == self.unacknowledged && self.flight_bytes() > 0 {
            let is_duplicate = if self.flags.has(Flags::SACK) {
                is_sack_news
            } else {
                arrival.length() == 0 && is_window_same
            };
            if is_duplicate {
                self.count_duplicate(context);
            }
        }
        if self.window > 0 && self.has_unsent() {
            self.list(context);
        }
        true
    }

    /// RFC 9293 §3.10.7.4, "SND.WND". True if the window stays.
    fn take_window(&mut self, segment: &Segment, acknowledged: u32) -> bool {
        if before(acknowledged, self.unacknowledged) {
            return true;
        }
        let is_newer = before(self.window_sequence, segment.sequence)
            || (self.window_sequence == segment.sequence
                && at_most(self.window_acknowledgement, acknowledged));
        if !is_newer {
            return true;
        }
        let window = u32::from(segment.window) << self.send_scale;
        let is_same = window == self.window;
        self.window = window;
        self.window_max = self.window_max.max(window);
        self.window_sequence = segment.sequence;
        self.window_acknowledgement = acknowledged;
        is_same
    }

    fn take_sacks(&mut self, segment: &Segment) -> bool {
        let ranges = segment.options.sacks.ranges();
        if ranges.is_empty() || !self.flags.has(Flags::SACK) || self.flight_bytes() == 0 {
            return false;
        }
        let (unacknowledged, next) = (self.unacknowledged, self.next);
        let from = super::sequence::later(unacknowledged, segment.acknowledgement);
        let recovery = self
            .recovery
            .get_or_insert_with(|| Box::new(Recovery::new(unacknowledged, true)));
        recovery.sacked(ranges, from, next)
    }

    /// An acknowledgement without news of the first byte.
    fn count_duplicate(&mut self, context: &mut Context) {
        let mss = self.segment_bytes();
        let (unacknowledged, next) = (self.unacknowledged, self.next);
        let flight = self.flight_bytes();
        let has_sack = self.flags.has(Flags::SACK);
        let recovery = self
            .recovery
            .get_or_insert_with(|| Box::new(Recovery::new(unacknowledged, has_sack)));
        recovery.duplicate();
        match recovery.phase {
            Phase::Suspicion if recovery.is_loss_shown(unacknowledged, mss) => {
                recovery.enter_fast(unacknowledged, next, mss);
                self.congestion.lost(flight, mss);
                context.counters.fast_retransmits += 1;
                self.flags.clear(Flags::TIMED);
            }
            Phase::Fast => recovery.update_lost(unacknowledged, mss),
            _ => {}
        }
        self.list(context);
    }

    /// New data, SYN or FIN is acknowledged.
    fn advance(&mut self, context: &mut Context, acknowledged: u32) {
        let bytes = distance(self.unacknowledged, acknowledged);
        let flight = self.flight_bytes();
        let mss = self.segment_bytes();
        if self.flags.has(Flags::TIMED) && at_most(self.timed_sequence, acknowledged) {
            self.flags.clear(Flags::TIMED);
            let rtt_us = low32(context.now_us).wrapping_sub(self.timed_us);
            self.rtt.measure(rtt_us);
        } else {
            self.rtt.progress();
        }
        self.tries = 0;
        self.queue
            .consume(&mut context.pool, bytes.min(self.queue.len()));
        self.unacknowledged = acknowledged;
        let is_limited = flight + mss > self.congestion.window_bytes();
        match self.recovery.as_deref_mut() {
            None => self.congestion.acknowledged(bytes, mss, is_limited),
            Some(recovery) => {
                recovery.acknowledge(acknowledged);
                match recovery.phase {
                    Phase::Suspicion => {
                        self.congestion.acknowledged(bytes, mss, is_limited);
                        if recovery.is_idle() {
                            self.recovery = None;
                        }
                    }
                    _ if at_most(recovery.point, acknowledged) => self.recovery = None,
                    phase => {
                        if phase == Phase::Timeout {
                            self.congestion.acknowledged(bytes, mss, true);
                        }
                        recovery.update_lost(acknowledged, mss);
                    }
                }
            }
        }
        if self.flight_bytes() == 0 {
            self.flags.clear(Flags::RESEND_ARMED);
            self.recovery = None;
        } else {
            // RFC 6298 §5.3.
            self.arm_resend(context);
        }
        if self.flags.has(Flags::BLOCKED)
            && self.queue.len() <= context.config.send_queue_max_bytes / 2
        {
            self.flags.clear(Flags::BLOCKED);
            context.events.push(Event::Sent { flow: self.id() });
        }
    }

    /// State changes that follow when our FIN is acknowledged. True if the connection is gone.
    fn finish_acknowledged(&mut self, context: &mut Context) -> bool {
        let is_finished =
            self.flags.has(Flags::FIN_SENT) && self.flight_bytes() == 0 && self.queue.len() == 0;
        if !is_finished {
            return false;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if self.flags.has(Flags::CLOSED) {
                    self.arm_idle(context, context.config.time_wait_ms);
                }
            }
            State::Closing => self.wait(context),
            State::LastAck => {
                self.tell_dead(context, DeadReason::Closed);
                return true;
            }
            _ => {}
        }
        false
    }

    /// Enters TIME-WAIT.
    fn wait(&mut self, context: &mut Context) {
        self.state = State::TimeWait;
        self.flags.clear(Flags::RESEND_ARMED);
        self.arm_idle(context, context.config.time_wait_ms);
        self.tell_dead(context, DeadReason::Closed);
        context.waiting.push_back((self.slot, self.generation));
        context.time_waits += 1;
    }

    /// The payload and the FIN.
    fn take_data(&mut self, context: &mut Context, arrival: &Arrival<'_>) {
        let segment = arrival.segment;
        let window = distance(self.receive_next, self.receive_edge);
        let start = segment.sequence.wrapping_add(u32::from(segment.has(SYN)));
        let skipped = distance(start, self.receive_next);
        let fin_at = start.wrapping_add(length32(arrival.payload.len()));
        if before(self.receive_next, start) {
            self.take_early_data(context, arrival, fin_at);
            return;
        }
        let fresh = arrival
            .payload
            .get(super::buffer::index(skipped)..)
            .unwrap_or(&[]);
        let fresh = fresh.get(..super::buffer::index(window)).unwrap_or(fresh);
        if !fresh.is_empty() {
            let length = length32(fresh.len());
            self.receive_next = self.receive_next.wrapping_add(length);
            self.held_bytes += length;
            context.events.push(Event::Received {
                flow: self.id(),
                data: Data::Frame {
                    frame_index: arrival.frame_index,
                    start: arrival.payload_start + super::buffer::index(skipped),
                    length: fresh.len(),
                },
            });
            let is_full = length >= self.segment_bytes();
            self.segments_received = self.segments_received.saturating_add(u8::from(is_full));
            self.flags.set(Flags::ACK_LATER);
            // RFC 9293 §3.8.6.3: every second full segment.
            if self.segments_received >= 2 {
                self.flags.set(Flags::ACK_NOW);
            }
            self.list(context);
        } else if !arrival.payload.is_empty() {
            // Data that is here already, or a probe of a closed window.
            self.acknowledge_now(context);
        }
        let mut has_fin = segment.has(FIN) && fin_at == self.receive_next;
        if let Some(mut pieces) = self.reassembly.take() {
            has_fin |= self.take_pieces(context, &mut pieces);
            if !pieces.is_empty() {
                self.reassembly = Some(pieces);
            }
            // RFC 5681 §4.2: a segment that fills a hole is acknowledged at once.
            self.acknowledge_now(context);
        }
        if has_fin {
            self.take_fin(context);
        }
    }

    /// Data beyond a hole.
    fn take_early_data(&mut self, context: &mut Context, arrival: &Arrival<'_>, fin_at: u32) {
        let room = super::buffer::index(distance(arrival.segment.sequence, self.receive_edge));
        let payload = arrival.payload.get(..room).unwrap_or(arrival.payload);
        let mut pieces = self.reassembly.take().unwrap_or_default();
        let is_whole = payload.len() == arrival.payload.len();
        let is_kept = payload.is_empty()
            || pieces.insert(&mut context.pool, arrival.segment.sequence, payload);
        if !is_kept {
            context.counters.out_of_memory += 1;
        } else if arrival.segment.has(FIN) && is_whole {
            pieces.note_fin(fin_at);
        }
        if !pieces.is_empty() {
            self.reassembly = Some(pieces);
        }
        self.acknowledge_now(context);
    }

    /// Hands over what was kept and is in order now. True if the FIN has its turn.
    fn take_pieces(&mut self, context: &mut Context, pieces: &mut Reassembly) -> bool {
        while let Some(bytes) = pieces.take(&mut context.pool, self.receive_next) {
            let length = length32(bytes.len());
            self.receive_next = self.receive_next.wrapping_add(length);
            self.held_bytes += length;
            context.events.push(Event::Received {
                flow: self.id(),
                data: Data::Owned(bytes),
            });
        }
        if pieces.fin_is_at(self.receive_next) {
            pieces.clear(&mut context.pool);
            return true;
        }
        false
    }

    fn take_fin(&mut self, context: &mut Context) {
        self.receive_next = self.receive_next.wrapping_add(1);
        self.acknowledge_now(context);
        match self.state {
            State::Established => {
                self.state = State::CloseWait;
                self.tell_finished(context);
            }
            State::FinWait1 => {
                self.state = State::Closing;
                self.tell_finished(context);
            }
            State::FinWait2 => {
                self.tell_finished(context);
                self.wait(context);
            }
            _ => {}
        }
    }

    fn tell_finished(&self, context: &mut Context) {
        if self.flags.has(Flags::KNOWN) {
            context.events.push(Event::Finished { flow: self.id() });
        }
    }
}

/// The low half: times in connections wrap after 71 minutes, and no round trip lasts that long.
pub(crate) const fn low32(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}
