//! A connection opens (RFC 9293 §3.5 and §3.10.7.3).

use super::Event;
use super::arrival::{After, Arrival};
use super::connection::{Connection, Context, Flags, REFUSED, State};
use super::sequence::low32;
use super::wire::segment::{ACK, RST, SYN, Segment};

impl Connection {
    /// RFC 9293 §3.10.7.3.
    pub(super) fn arrive_syn_sent(
        &mut self,
        context: &mut Context,
        arrival: &Arrival<'_>,
    ) -> After {
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
    pub(super) fn establish(&mut self, context: &mut Context, segment: &Segment) {
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
        if was_lost {
            self.rtt.syn_was_lost();
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
}
