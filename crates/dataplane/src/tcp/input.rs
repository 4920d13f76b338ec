//! A segment arrives at a connection (RFC 9293 §3.10.7, with RFC 5961 and RFC 7323).

use super::arrival::{After, Arrival};
use super::connection::{Connection, Context, Flags, REFUSED, State};
use super::sequence::{at_most, before, distance, within};
use super::wire::segment::{ACK, RST, SYN, Segment};
use crate::api::DeadReason;

/// An old timestamp counts for this long: 24 days (RFC 7323 §5.5).
const TIMESTAMP_VALID_MS: u32 = 24 * 24 * 3600 * 1000;

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
}
