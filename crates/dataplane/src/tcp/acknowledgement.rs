//! The peer acknowledges: what is sent is forgotten, and losses show (RFC 9293 §3.10.7.4, RFC 5681,
//! RFC 6675).

use super::Event;
use super::arrival::Arrival;
use super::connection::{Connection, Context, Flags};
use super::recovery::{Phase, Recovery};
use super::sequence::{at_most, before, distance, later, low32};
use super::wire::segment::Segment;

impl Connection {
    /// The acknowledgement field, SACK and window. False if the segment is to be dropped.
    #[inline]
    pub(super) fn take_acknowledgement(
        &mut self,
        context: &mut Context,
        arrival: &Arrival<'_>,
    ) -> bool {
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
        let from = later(unacknowledged, segment.acknowledgement);
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
}
