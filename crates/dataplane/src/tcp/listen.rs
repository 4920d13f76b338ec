//! Peers open connections: listening ports, SYNs, cookies, and RSTs for what nobody listens for
//! (RFC 9293 §3.10.7.1 and §3.10.7.2, RFC 4987).

use super::arrival::Arrival;
use super::buffer::index;
use super::connection::{Flags, State};
use super::frames::{FrameSink, emit_segment, own_mss};
use super::secrets::{Ends, cookie_timestamp, options_of_timestamp};
use super::sequence::before;
use super::stack::{Listener, Stack};
use super::wire::ethernet::Mac;
use super::wire::segment::{ACK, FIN, Options, RST, SYN, Segment};
use super::wire::{Ip, length16, length32};

/// After a SYN was answered by a cookie, cookies are accepted for this long: the life of one.
const COOKIES_VALID_MS: u32 = 128_000;

impl Stack {
    /// Listens on a port of one address, or of all. The listener's number counts from 0.
    pub fn listen(&mut self, ip: Option<Ip>, port: u16) {
        self.listeners.push(Listener { ip, port });
    }

    /// Refuses new connections from now on.
    pub fn stop_listening(&mut self) {
        self.is_listening = false;
    }

    /// A segment for which there is no connection (RFC 9293 §3.10.7.1 and §3.10.7.2).
    pub(super) fn receive_new<S: FrameSink>(
        &mut self,
        ends: &Ends,
        mac: Mac,
        segment: &Segment,
        bytes: &[u8],
        place: (u32, usize),
        sink: &mut S,
    ) {
        let length = bytes.len() - segment.header_bytes;
        let is_heard = self.listener(ends).is_some();
        if segment.has(RST) {
            return;
        }
        if !is_heard {
            self.refuse(ends, mac, segment, length, sink);
            return;
        }
        if segment.has(ACK) {
            if let Some(slot) = self.open_by_cookie(ends, mac, segment) {
                let arrival = Arrival {
                    segment,
                    payload: &bytes[segment.header_bytes..],
                    frame_index: place.0,
                    payload_start: place.1 + segment.header_bytes,
                };
                let connection = &mut self.connections[index(slot)];
                connection.arrive(&mut self.context, &arrival);
            } else {
                self.refuse(ends, mac, segment, length, sink);
            }
            return;
        }
        if !segment.has(SYN) || segment.has(FIN) {
            return;
        }
        if self.context.embryos >= self.context.config.backlog_max {
            self.send_cookie(ends, mac, segment, sink);
            return;
        }
        if let Some(slot) = self.create(ends, Some(mac)) {
            let sequence = self.secrets.initial_sequence(ends, self.context.now_us);
            let context = &mut self.context;
            let connection = &mut self.connections[index(slot)];
            connection.state = State::SynReceived;
            connection.unacknowledged = sequence;
            connection.next = sequence;
            connection.take_syn(context, segment);
            connection.heard_ms = context.now_ms;
            connection.flags.set(Flags::EMBRYO);
            connection.flags.set(Flags::SYN_DUE);
            context.embryos += 1;
            connection.list(context);
        }
    }

    /// The listener for these ends, if new connections are wanted.
    fn listener(&self, ends: &Ends) -> Option<u16> {
        if !self.is_listening {
            return None;
        }
        self.listeners
            .iter()
            .position(|listener| {
                listener.port == ends.local_port && listener.ip.is_none_or(|ip| ip == ends.local)
            })
            .map(length16)
    }

    /// The listener at which this connection has knocked.
    pub fn listener_of(&self, ends: &Ends) -> u16 {
        self.listener(ends).unwrap_or(0)
    }

    /// Answers a SYN without remembering anything (RFC 4987 §3.6).
    fn send_cookie<S: FrameSink>(
        &mut self,
        ends: &Ends,
        mac: Mac,
        segment: &Segment,
        sink: &mut S,
    ) {
        let context = &mut self.context;
        let default = if ends.remote.is_v4() { 536 } else { 1220 };
        let own = own_mss(context, &ends.remote);
        let mss = segment.options.mss.unwrap_or(default).min(own);
        let sequence = self
            .secrets
            .cookie(ends, segment.sequence, mss, context.now_us);
        let timestamps = segment
            .options
            .timestamps
            .filter(|_| context.config.timestamps);
        let scale = segment
            .options
            .window_scale
            .filter(|_| context.config.window_scaling && timestamps.is_some());
        let sack = segment.options.sack_permitted && context.config.sack && timestamps.is_some();
        let window = context.config.receive_window_bytes;
        let answer = Segment {
            source_port: ends.local_port,
            destination_port: ends.remote_port,
            sequence,
            acknowledgement: segment.sequence.wrapping_add(1),
            flags: SYN | ACK,
            window: u16::try_from(window).unwrap_or(u16::MAX),
            options: Options {
                mss: Some(own),
                window_scale: scale.map(|_| context.config.receive_scale()),
                sack_permitted: sack,
                timestamps: timestamps
                    .map(|(value, _)| (cookie_timestamp(context.timestamp(), scale, sack), value)),
                ..Options::default()
            },
            header_bytes: 0,
        };
        let empty = (&[][..], &[][..]);
        emit_segment(context, sink, mac, ends, &answer, empty);
        context.counters.cookies_sent += 1;
        let until_ms = context.now_ms.wrapping_add(COOKIES_VALID_MS);
        self.accept_cookies_until(Some(until_ms));
    }

    /// Opens a connection if the segment answers a cookie.
    fn open_by_cookie(&mut self, ends: &Ends, mac: Mac, segment: &Segment) -> Option<u32> {
        let until_ms = self.cookies_until_ms()?;
        if before(until_ms, self.context.now_ms) {
            self.accept_cookies_until(None);
            return None;
        }
        let sequence = segment.acknowledgement.wrapping_sub(1);
        let peer_sequence = segment.sequence.wrapping_sub(1);
        let mss = self
            .secrets
            .check_cookie(ends, peer_sequence, sequence, self.context.now_us)?;
        let slot = self.create(ends, Some(mac))?;
        let (scale, sack_permitted) = segment
            .options
            .timestamps
            .map_or((None, false), |(_, echo)| options_of_timestamp(echo));
        // The SYN as the cookie has kept it.
        let syn = Segment {
            sequence: peer_sequence,
            window: segment.window,
            options: Options {
                mss: Some(mss),
                window_scale: scale,
                sack_permitted,
                timestamps: segment.options.timestamps,
                ..Options::default()
            },
            ..Segment::default()
        };
        let context = &mut self.context;
        let connection = &mut self.connections[index(slot)];
        connection.take_syn(context, &syn);
        connection.state = State::Established;
        connection.unacknowledged = segment.acknowledgement;
        connection.next = segment.acknowledgement;
        connection.window = u32::from(segment.window) << connection.send_scale;
        connection.window_max = connection.window;
        connection.heard_ms = context.now_ms;
        connection.open(context, segment);
        connection.knock(context);
        context.counters.cookies_accepted += 1;
        Some(slot)
    }

    /// Answers a segment with an RST (RFC 9293 §3.10.7.1).
    pub(super) fn refuse<S: FrameSink>(
        &mut self,
        ends: &Ends,
        mac: Mac,
        segment: &Segment,
        length: usize,
        sink: &mut S,
    ) {
        let (sequence, acknowledgement, flags) = if segment.has(ACK) {
            (segment.acknowledgement, 0, RST)
        } else {
            let taken =
                length32(length) + u32::from(segment.has(SYN)) + u32::from(segment.has(FIN));
            (0, segment.sequence.wrapping_add(taken), RST | ACK)
        };
        let answer = Segment {
            source_port: ends.local_port,
            destination_port: ends.remote_port,
            sequence,
            acknowledgement,
            flags,
            ..Segment::default()
        };
        let empty = (&[][..], &[][..]);
        let context = &mut self.context;
        if emit_segment(context, sink, mac, ends, &answer, empty) {
            context.counters.resets_sent += 1;
        }
    }
}
