//! A connection sends: what, how much of it, and when (RFC 9293 §3.8, RFC 6675).

use super::connection::{Connection, Context, Flags, State};
use super::control;
use super::frames::{FrameSink, emit_segment, own_mss};
use super::neighbours::Route;
use super::recovery::Phase;
use super::sequence::{before, distance, later, low32};
use super::wire::ethernet::Mac;
use super::wire::segment::{ACK, FIN, HEADER_BYTES, Options, PSH, RST, SYN, Segment};
use super::wire::{length32, segment};

/// What a connection's turn to send has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Everything is sent that may be sent now.
    Done,
    /// The sink is full.
    Full,
    /// The neighbour's hardware address is being asked for.
    Waiting {
        /// Whether a question is due now.
        ask: bool,
    },
    /// An RST went out. The connection is gone.
    Gone,
}

/// A part of the sequence space to send.
#[derive(Clone, Copy, Debug)]
struct Part {
    sequence: u32,
    length: u32,
    flags: u8,
}

impl Connection {
    /// Sends everything that may be sent now.
    pub(crate) fn transmit<S: FrameSink>(&mut self, context: &mut Context, sink: &mut S) -> Turn {
        let (mac, ask) = match context.neighbours.route(self.neighbour, context.now_ms) {
            Route::Send(mac) => (mac, false),
            Route::SendAndAsk(mac) => (mac, true),
            Route::Ask => return Turn::Waiting { ask: true },
            Route::Wait => return Turn::Waiting { ask: false },
        };
        if ask {
            self.ask_neighbour(context, sink, mac);
        }
        if self.flags.has(Flags::RESET_DUE) {
            return self.transmit_reset(context, sink, mac);
        }
        if matches!(self.state, State::SynSent | State::SynReceived) {
            return self.transmit_syn(context, sink, mac);
        }
        let turn = self.transmit_data(context, sink, mac);
        if turn == Turn::Full {
            return turn;
        }
        if self.flags.has(Flags::PROBE_DUE) {
            // One number before what the peer expects: any peer answers this.
            let part = Part {
                sequence: self.unacknowledged.wrapping_sub(1),
                length: 0,
                flags: ACK,
            };
            if !self.emit(context, sink, mac, part) {
                return Turn::Full;
            }
            self.flags.clear(Flags::PROBE_DUE);
        }
        self.transmit_acknowledgement(context, sink, mac)
    }

    fn transmit_reset<S: FrameSink>(
        &mut self,
        context: &mut Context,
        sink: &mut S,
        mac: Mac,
    ) -> Turn {
        let part = Part {
            sequence: self.next,
            length: 0,
            flags: RST | ACK,
        };
        if self.emit(context, sink, mac, part) {
            context.counters.resets_sent += 1;
            Turn::Gone
        } else {
            Turn::Full
        }
    }

    fn transmit_syn<S: FrameSink>(
        &mut self,
        context: &mut Context,
        sink: &mut S,
        mac: Mac,
    ) -> Turn {
        if !self.flags.has(Flags::SYN_DUE) {
            return Turn::Done;
        }
        let has_peer = self.state == State::SynReceived;
        let timestamps = if has_peer {
            self.flags.has(Flags::TIMESTAMPS)
        } else {
            context.config.timestamps
        };
        let scale = if has_peer {
            self.receive_scale_offered(context)
        } else {
            context
                .config
                .window_scaling
                .then(|| context.config.receive_scale())
        };
        let segment = Segment {
            source_port: self.ends.local_port,
            destination_port: self.ends.remote_port,
            sequence: self.unacknowledged,
            acknowledgement: if has_peer { self.receive_next } else { 0 },
            flags: if has_peer { SYN | ACK } else { SYN },
            window: window16(context.config.receive_window_bytes),
            options: Options {
                mss: Some(own_mss(context, &self.ends.remote)),
                window_scale: scale,
                sack_permitted: if has_peer {
                    self.flags.has(Flags::SACK)
                } else {
                    context.config.sack
                },
                timestamps: timestamps.then(|| (context.timestamp(), self.peer_timestamp)),
                ..Options::default()
            },
            header_bytes: 0,
        };
        if !emit_segment(context, sink, mac, &self.ends, &segment, (&[], &[])) {
            return Turn::Full;
        }
        if self.next == self.unacknowledged {
            self.next = self.unacknowledged.wrapping_add(1);
            self.timed_us = low32(context.now_us);
            self.flags.set(Flags::TIMED);
        } else {
            self.flags.set(Flags::SYN_LOST);
            self.flags.clear(Flags::TIMED);
        }
        self.flags.clear(Flags::SYN_DUE);
        self.flags.clear(Flags::ACK_NOW);
        self.arm_resend(context);
        Turn::Done
    }

    /// RFC 7323 §2.2: a SYN-ACK scales only if the SYN did.
    fn receive_scale_offered(&self, context: &Context) -> Option<u8> {
        let is_agreed = self.flags.has(Flags::SCALED) && context.config.window_scaling;
        is_agreed.then_some(self.receive_scale)
    }

    /// Lost data first, then new data, then the FIN.
    fn transmit_data<S: FrameSink>(
        &mut self,
        context: &mut Context,
        sink: &mut S,
        mac: Mac,
    ) -> Turn {
        if self.recovery.is_none() && !self.has_unsent() {
            return Turn::Done;
        }
        if !matches!(
            self.state,
            State::Established
                | State::CloseWait
                | State::FinWait1
                | State::Closing
                | State::LastAck
        ) {
            return Turn::Done;
        }
        self.restart_after_idle(context);
        let mut pipe = self.pipe_bytes();
        while let Some((part, is_again)) = self.next_part(pipe) {
            if !self.emit(context, sink, mac, part) {
                return Turn::Full;
            }
            pipe = pipe.saturating_add(part.length);
            let end = part
                .sequence
                .wrapping_add(part.length)
                .wrapping_add(u32::from(part.flags & FIN != 0));
            if is_again {
                context.counters.retransmissions += 1;
                if let Some(recovery) = self.recovery.as_deref_mut() {
                    recovery.resent(end);
                }
                // The last segment carries a FIN that the application asked for after the segment
                // was first sent. The peer acknowledges the FIN, so SND.NXT has to cover the FIN.
                // Linux does the same in `tcp_send_fin`.
                self.next = later(self.next, end);
            } else {
                self.next = end;
                self.flags.clear(Flags::SMALL_DUE);
                if !self.flags.has(Flags::TIMED) && self.recovery.is_none() {
                    self.flags.set(Flags::TIMED);
                    self.timed_sequence = end;
                    self.timed_us = low32(context.now_us);
                }
            }
            if part.flags & FIN != 0 {
                self.flags.set(Flags::FIN_SENT);
            }
            if !self.flags.has(Flags::RESEND_ARMED) {
                self.arm_resend(context);
            }
        }
        // Something waits for the window alone: probe it (RFC 9293 §3.8.6.1).
        if self.flight_bytes() == 0 && self.has_unsent() && !self.flags.has(Flags::RESEND_ARMED) {
            self.arm_resend(context);
        }
        Turn::Done
    }

    /// RFC 5681 §4.1.
    fn restart_after_idle(&mut self, context: &Context) {
        let idle_ms = context.now_ms.wrapping_sub(self.sent_ms);
        if self.flight_bytes() == 0 && idle_ms > self.rtt.timeout_ms(context.config.resend_floor_ms)
        {
            let mss = self.segment_bytes();
            self.congestion.idle(mss);
        }
    }

    /// What to send next, and whether it is sent again.
    fn next_part(&self, pipe: u32) -> Option<(Part, bool)> {
        let mss = self.segment_bytes();
        if let Some(recovery) = self.recovery.as_deref()
            && recovery.phase != Phase::Suspicion
            && let Some((start, end)) = recovery.next_lost(self.unacknowledged, mss)
        {
            // The first lost segment goes out whatever the window is (RFC 6675 §5 (4.3)).
            let is_first = start == self.unacknowledged;
            if !is_first && pipe + mss > self.congestion.window_bytes() {
                return None;
            }
            return Some((self.part(start, distance(start, end)), true));
        }
        if !self.has_unsent() {
            return None;
        }
        let queue_end = self.queue_end();
        let left = distance(self.next, queue_end);
        let window_end = self.unacknowledged.wrapping_add(self.window);
        // RFC 3042: the first two duplicates let two segments more out.
        let extra = if self.is_limited_transmit() {
            2 * mss
        } else {
            0
        };
        let congestion_window = self.congestion.window_bytes() + extra;
        let allowed = distance(self.next, window_end).min(congestion_window.saturating_sub(pipe));
        let length = left.min(mss).min(allowed);
        // The sender's half of the silly window syndrome (RFC 9293 §3.8.6.2.1).
        let is_worth = length == left
            || length >= mss
            || length >= self.window_max / 2
            || self.flags.has(Flags::SMALL_DUE);
        if length > 0 && is_worth {
            return Some((self.part(self.next, length), false));
        }
        let is_fin_due = left == 0 && self.flags.has(Flags::FIN_WANTED);
        is_fin_due.then(|| (self.part(self.next, 0), false))
    }

    fn is_limited_transmit(&self) -> bool {
        self.recovery
            .as_deref()
            .is_some_and(|recovery| recovery.phase == Phase::Suspicion)
    }

    /// The part of the sequence space from `start` on, with FIN and PSH where they belong.
    fn part(&self, start: u32, length: u32) -> Part {
        let queue_end = self.queue_end();
        let length = length.min(distance(start, queue_end));
        let is_last = start.wrapping_add(length) == queue_end;
        let mut flags = ACK;
        if is_last && length > 0 {
            flags |= PSH;
        }
        if is_last && self.flags.has(Flags::FIN_WANTED) {
            flags |= FIN;
        }
        Part {
            sequence: start,
            length,
            flags,
        }
    }

    fn transmit_acknowledgement<S: FrameSink>(
        &mut self,
        context: &mut Context,
        sink: &mut S,
        mac: Mac,
    ) -> Turn {
        if self.flags.take(Flags::WINDOW_OPENED)
            && before(self.receive_edge, self.window_edge(context))
            && self.state.may_receive()
        {
            self.flags.set(Flags::ACK_NOW);
        }
        if self.flags.has(Flags::ACK_NOW) {
            let part = Part {
                sequence: self.next,
                length: 0,
                flags: ACK,
            };
            if !self.emit(context, sink, mac, part) {
                return Turn::Full;
            }
        } else if self.flags.take(Flags::ACK_LATER) && !self.flags.has(Flags::ACK_ARMED) {
            self.ack_at_ms = context.now_ms.wrapping_add(context.config.delayed_ack_ms);
            self.flags.set(Flags::ACK_ARMED);
            self.schedule(context, self.ack_at_ms);
        }
        Turn::Done
    }

    /// Writes one segment. Every segment acknowledges what has come.
    fn emit<S: FrameSink>(
        &mut self,
        context: &mut Context,
        sink: &mut S,
        mac: Mac,
        part: Part,
    ) -> bool {
        let edge = self.window_edge(context);
        let (window, edge) = scaled_window(self.receive_next, edge, self.receive_scale);
        let mut options = Options::default();
        if self.flags.has(Flags::TIMESTAMPS) {
            options.timestamps = Some((context.timestamp(), self.peer_timestamp));
        }
        if let Some(pieces) = self.reassembly.as_deref()
            && self.flags.has(Flags::SACK)
        {
            options.sacks = pieces.sacks();
            // With timestamps there is room for three (RFC 2018 §3). Data needs room, too.
            options.sacks.truncate(if part.length > 0 { 1 } else { 3 });
        }
        let segment = Segment {
            source_port: self.ends.local_port,
            destination_port: self.ends.remote_port,
            sequence: part.sequence,
            acknowledgement: self.receive_next,
            flags: part.flags,
            window,
            options,
            header_bytes: 0,
        };
        // Options beyond the timestamps make room for themselves.
        let room = u32::from(self.mss) + length32(HEADER_BYTES);
        let fits = length32(segment.bytes()) + part.length <= room;
        let segment = if fits {
            segment
        } else {
            Segment {
                options: Options {
                    sacks: segment::Sacks::default(),
                    ..segment.options
                },
                ..segment
            }
        };
        let offset = distance(self.unacknowledged, part.sequence);
        let payload = if part.length > 0 {
            self.queue.slices(offset, part.length)
        } else {
            (&[][..], &[][..])
        };
        let is_sent = emit_segment(context, sink, mac, &self.ends, &segment, payload);
        if is_sent {
            self.receive_edge = edge;
            self.acknowledged = self.receive_next;
            self.segments_received = 0;
            self.sent_ms = context.now_ms;
            self.flags.clear(Flags::ACK_LATER);
            self.flags.clear(Flags::ACK_ARMED);
            if fits {
                // Else a segment without data follows, which has room for what is left out.
                self.flags.clear(Flags::ACK_NOW);
            }
        }
        is_sent
    }

    /// Asks a neighbour that has been silent whether it still has its address.
    fn ask_neighbour<S: FrameSink>(&self, context: &mut Context, sink: &mut S, mac: Mac) {
        if let Some(next_hop) = context.neighbours.ip(self.neighbour) {
            control::ask(context, sink, &self.ends.local, &next_hop, Some(mac));
        }
    }
}

/// The window field, and the edge that the peer will understand. The field is rounded up: the edge
/// may not move back.
fn scaled_window(next: u32, edge: u32, scale: u8) -> (u16, u32) {
    let bytes = distance(next, edge);
    let units = bytes.div_ceil(1 << scale).min(0xffff);
    let edge = next.wrapping_add(units << scale);
    (window16(units), edge)
}

fn window16(units: u32) -> u16 {
    u16::try_from(units).unwrap_or(u16::MAX)
}
