//! The stack: frames and time come in, frames and events go out.

use std::collections::VecDeque;

use hashbrown::HashTable;

use super::config::{ChecksumPolicy, Config, Counters};
use super::connection::{Connection, Context, Flags, State};
use super::control::{self, RateLimit};
use super::directory::Share;
use super::expect::FETCHED_AHEAD;
use super::input::{After, Arrival, low32};
use super::lanes::Lanes;
use super::output::{FrameSink, Turn, emit_segment, own_mss};
use super::secrets::{Ends, Secrets, cookie_timestamp, options_of_timestamp};
use super::wire::ethernet::{self, Mac};
use super::wire::icmp::{self, Message};
use super::wire::segment::{self, ACK, ChecksumVerdict, FIN, Options, RST, SYN, Segment};
use super::wire::{Ip, ip, length16, length32};
use super::{Event, buffer::Pool, buffer::index, neighbours::Neighbours, timers::Wheel};
use crate::api::DeadReason;

/// How often applications that were refused memory try again, in milliseconds.
const STARVED_MS: u32 = 10;
/// Timers of each kind that one call of [`Stack::expire`] serves at most.
pub(super) const EXPIRED_MAX: usize = 1024;
/// After a SYN was answered by a cookie, cookies are accepted for this long: the life of one.
const COOKIES_VALID_MS: u32 = 128_000;
/// First port for connections that this side opens (RFC 6335 §6).
pub(super) const EPHEMERAL_FIRST: u16 = 49_152;

/// Why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No address of this stack has the peer's family.
    #[error("no local address for that family")]
    NoAddress,
    /// No queue of the interface leads to this stack.
    #[error("no queue of the interface leads to this shard")]
    NoQueue,
    /// The table of connections, or of neighbours, is full.
    #[error("the table of connections is full")]
    Full,
    /// All ports, or the chosen one, are in use with that peer.
    #[error("the port is in use")]
    PortInUse,
}

/// A listening port.
#[derive(Debug)]
struct Listener {
    ip: Option<Ip>,
    port: u16,
}

/// A TCP/IP stack of one shard. It reads no clock and does no I/O.
#[derive(Debug)]
pub struct Stack {
    pub(super) context: Context,
    pub(super) connections: Vec<Connection>,
    pub(super) free: Vec<u32>,
    pub(super) table: HashTable<u32>,
    pub(super) secrets: Secrets,
    /// What this stack shares with others on the same interface.
    pub(super) share: Option<Box<Share>>,
    listeners: Vec<Listener>,
    is_listening: bool,
    expired: Vec<u32>,
    /// Hashes of [`Stack::expect`]'s frames.
    pub(super) expected: Vec<u64>,
    replies: RateLimit,
    pub(super) cookies_until_ms: Option<u32>,
    pub(super) next_port: u16,
    /// The address from which the next connection is opened.
    pub(super) next_source: usize,
}

impl Stack {
    /// A stack with these settings. `now_us` is any clock that does not go back.
    pub fn new(config: Config, now_us: u64) -> Stack {
        let connections_max = config.connections_max;
        let now_ms = low32(now_us / 1000);
        let secrets = Secrets::new(config.secret);
        let offset = low32(config.secret.0 ^ config.secret.1.rotate_left(17));
        Stack {
            connections: Vec::with_capacity(connections_max),
            free: Vec::new(),
            table: HashTable::with_capacity(connections_max),
            secrets,
            share: None,
            listeners: Vec::new(),
            is_listening: true,
            expired: Vec::new(),
            expected: Vec::new(),
            replies: RateLimit::default(),
            cookies_until_ms: None,
            next_port: EPHEMERAL_FIRST + length16(index(offset & 0x3fff)),
            next_source: 0,
            context: Context {
                wheel: Wheel::new(now_ms, connections_max),
                lanes: Lanes::new(
                    config.delayed_ack_ms,
                    config.resend_floor_ms,
                    connections_max,
                ),
                pool: Pool::new(config.memory_max_bytes),
                neighbours: Neighbours::default(),
                events: Vec::new(),
                listed: Vec::new(),
                counters: Counters::default(),
                embryos: 0,
                timestamp_offset: offset,
                waiting: VecDeque::new(),
                time_waits: 0,
                starved: Vec::new(),
                now_us,
                now_ms,
                config,
            },
        }
    }

    /// Listens on a port of one address, or of all. The listener's number counts from 0.
    pub fn listen(&mut self, ip: Option<Ip>, port: u16) {
        self.listeners.push(Listener { ip, port });
    }

    /// Refuses new connections from now on.
    pub fn stop_listening(&mut self) {
        self.is_listening = false;
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.context.config
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.context.counters
    }

    /// Connections, those in TIME-WAIT included.
    pub fn connections(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Connections that are not in TIME-WAIT.
    pub fn open_connections(&self) -> usize {
        self.connections().saturating_sub(self.context.time_waits)
    }

    /// Memory that is in use, in bytes: table, timers and data.
    pub fn memory_bytes(&self) -> usize {
        self.connections.len() * size_of::<Connection>()
            + self.table.len() * (size_of::<u32>() + 1)
            + self.context.wheel.memory_bytes()
            + self.context.lanes.memory_bytes()
            + self.context.pool.used_bytes()
    }

    /// Takes the events since the last call. `into` must be empty, and its memory is used again.
    pub fn take_events(&mut self, into: &mut Vec<Event>) {
        std::mem::swap(&mut self.context.events, into);
    }

    /// Number of events that wait.
    pub fn events(&self) -> usize {
        self.context.events.len()
    }

    /// Moves time on and serves the timers that are due.
    pub fn expire(&mut self, now_us: u64) {
        self.context.now_us = now_us;
        let now_ms = low32(now_us / 1000);
        if now_ms == self.context.now_ms {
            return;
        }
        self.context.now_ms = now_ms;
        let mut expired = std::mem::take(&mut self.expired);
        self.context.wheel.expire(now_ms, &mut expired, EXPIRED_MAX);
        for at in 0..expired.len() {
            self.expect_expired(expired.get(at + FETCHED_AHEAD).copied());
            let slot = expired[at];
            if let Some(connection) = self.connections.get_mut(index(slot))
                && connection.state != State::Free
                && connection.expire(&mut self.context)
            {
                self.remove(slot);
            }
        }
        expired.clear();
        self.expired = expired;
        self.expire_lanes(now_ms);
        self.forget_finished_waits();
        self.wake_starved();
    }

    /// Takes connections that are in TIME-WAIT no longer off the front of the list.
    fn forget_finished_waits(&mut self) {
        while let Some(&(slot, generation)) = self.context.waiting.front() {
            let connection = &self.connections[index(slot)];
            if connection.state == State::TimeWait && connection.generation == generation {
                return;
            }
            self.context.waiting.pop_front();
        }
    }

    /// Tells applications that were refused memory to try again.
    fn wake_starved(&mut self) {
        for slot in std::mem::take(&mut self.context.starved) {
            let connection = &mut self.connections[index(slot)];
            if connection.state != State::Free && connection.flags.take(Flags::BLOCKED) {
                self.context.events.push(Event::Sent {
                    flow: connection.id(),
                });
            }
        }
    }

    /// Milliseconds until a timer may be due.
    pub fn wait_ms(&self) -> Option<u32> {
        let waits = [
            self.context.wheel.wait_ms(),
            self.context.lanes.next_ms(self.context.now_ms),
        ];
        let wait_ms = waits.into_iter().flatten().min();
        if self.context.starved.is_empty() {
            return wait_ms;
        }
        Some(wait_ms.map_or(STARVED_MS, |wait_ms| wait_ms.min(STARVED_MS)))
    }

    /// Takes a frame. `frame_index` names it in events about its data. Answers that no connection
    /// sends, such as RSTs, go to the sink at once; everything else waits for [`Stack::flush`].
    pub fn receive<S: FrameSink>(&mut self, frame_index: u32, frame: &[u8], sink: &mut S) {
        self.context.counters.frames_received += 1;
        let Some(header) = ethernet::Header::parse(frame) else {
            self.context.counters.frames_ignored += 1;
            return;
        };
        let mac = &header.destination;
        if *mac != self.context.config.mac && !mac.is_group() {
            self.context.counters.frames_ignored += 1;
            return;
        }
        let bytes = &frame[ethernet::HEADER_BYTES..];
        let packet = match header.ethertype {
            ethernet::IPV4 => ip::parse_v4(bytes),
            ethernet::IPV6 => ip::parse_v6(bytes),
            ethernet::ARP => {
                let (waiting, is_news) = control::take_arp(&mut self.context, sink, bytes);
                self.wake(&waiting);
                if is_news {
                    self.hand_to_all(frame);
                }
                return;
            }
            _ => None,
        };
        let Some(packet) = packet else {
            self.context.counters.frames_ignored += 1;
            return;
        };
        let Some(payload) = bytes.get(packet.payload_start..packet.payload_end) else {
            return;
        };
        let is_own = self.context.is_own(&packet.destination);
        match packet.protocol {
            ip::TCP if is_own && !header.destination.is_group() => {
                let start = ethernet::HEADER_BYTES + packet.payload_start;
                let place = (frame_index, start);
                self.receive_segment(place, frame, &header, &packet, payload, sink);
            }
            ip::ICMP if packet.destination.is_v4() && is_own => {
                let message = icmp::parse_v4(payload);
                self.receive_icmp(frame, &header, &packet, message, sink);
            }
            ip::ICMPV6 if !packet.destination.is_v4() => {
                let message = icmp::parse_v6(&packet, payload);
                self.receive_icmp(frame, &header, &packet, message, sink);
            }
            ip::UDP if is_own && packet.source.is_host() && !header.destination.is_group() => {
                if self.replies.allows(self.context.now_ms) {
                    let whole = bytes.get(..packet.payload_end).unwrap_or(bytes);
                    control::refuse_datagram(
                        &mut self.context,
                        sink,
                        header.source,
                        &packet,
                        whole,
                    );
                }
            }
            _ => self.context.counters.frames_ignored += 1,
        }
    }

    fn wake(&mut self, waiting: &[u32]) {
        for slot in waiting {
            if let Some(connection) = self.connections.get_mut(index(*slot))
                && connection.state != State::Free
            {
                connection.list(&mut self.context);
            }
        }
    }

    fn receive_icmp<S: FrameSink>(
        &mut self,
        frame: &[u8],
        header: &ethernet::Header,
        packet: &ip::Packet,
        message: Option<Message<'_>>,
        sink: &mut S,
    ) {
        let context = &mut self.context;
        match message {
            Some(Message::EchoRequest { body })
                if context.is_own(&packet.destination)
                    && packet.source.is_host()
                    && self.replies.allows(context.now_ms) =>
            {
                let is_v4 = packet.destination.is_v4();
                let mut message = Vec::with_capacity(4 + body.len());
                message.extend_from_slice(&[if is_v4 { 0 } else { 129 }, 0, 0, 0]);
                message.extend_from_slice(body);
                control::Packet {
                    mac: header.source,
                    source: packet.destination,
                    destination: packet.source,
                    protocol: packet.protocol,
                    hop_limit: 64,
                    message: &message,
                }
                .send(context, sink);
            }
            Some(Message::NeighbourSolicitation { target, source_mac })
                if context.is_own(&target) =>
            {
                let mac = source_mac.unwrap_or(header.source);
                let waiting = if packet.source.is_host() {
                    context.neighbours.learn(packet.source, mac, context.now_ms)
                } else {
                    Vec::new()
                };
                control::answer_solicitation(context, sink, (&packet.source, mac), &target);
                self.wake(&waiting);
            }
            Some(Message::NeighbourAdvertisement {
                target,
                target_mac: Some(mac),
                ..
            }) if !context.is_own(&target) => {
                let waiting = context.neighbours.learn(target, mac, context.now_ms);
                self.wake(&waiting);
                self.hand_to_all(frame);
            }
            Some(Message::Unreachable { why, quoted }) => {
                let Some((ends, sequence)) = control::quoted_ends(quoted) else {
                    return;
                };
                let Some(slot) = self.find(&ends) else {
                    self.hand_on(&ends, frame);
                    return;
                };
                if self.connections[index(slot)].take_icmp(&mut self.context, why, sequence) {
                    self.remove(slot);
                }
            }
            _ => context.counters.frames_ignored += 1,
        }
    }

    pub(super) fn find(&self, ends: &Ends) -> Option<u32> {
        let hash = self.secrets.table_hash(ends);
        self.table
            .find(hash, |slot| self.connections[index(*slot)].ends == *ends)
            .copied()
    }

    fn receive_segment<S: FrameSink>(
        &mut self,
        place: (u32, usize),
        frame: &[u8],
        header: &ethernet::Header,
        packet: &ip::Packet,
        bytes: &[u8],
        sink: &mut S,
    ) {
        let Some(segment) = Segment::parse(bytes) else {
            self.context.counters.frames_ignored += 1;
            return;
        };
        match segment::verify(&packet.source, &packet.destination, bytes) {
            ChecksumVerdict::Valid => {}
            ChecksumVerdict::Partial
                if self.context.config.checksums == ChecksumPolicy::ValidOrPartial => {}
            _ => {
                self.context.counters.checksums_wrong += 1;
                return;
            }
        }
        let ends = Ends {
            local: packet.destination,
            local_port: segment.destination_port,
            remote: packet.source,
            remote_port: segment.source_port,
        };
        let (frame_index, tcp_start) = place;
        let Some(slot) = self.find(&ends) else {
            if packet.source.is_host() && !self.hand_on(&ends, frame) {
                self.receive_new(&ends, header.source, &segment, bytes, place, sink);
            }
            return;
        };
        let arrival = Arrival {
            segment: &segment,
            payload: &bytes[segment.header_bytes..],
            frame_index,
            payload_start: tcp_start + segment.header_bytes,
        };
        let connection = &mut self.connections[index(slot)];
        let before = (connection.unacknowledged, connection.receive_next);
        let after = connection.arrive(&mut self.context, &arrival);
        let (neighbour, now_ms) = (connection.neighbour, self.context.now_ms);
        self.context
            .neighbours
            .suggest(neighbour, header.source, now_ms);
        if before != (connection.unacknowledged, connection.receive_next) {
            self.context.neighbours.confirm(neighbour, now_ms);
        }
        match after {
            After::Done => {}
            After::Gone => self.remove(slot),
            After::Refuse => {
                let length = bytes.len() - segment.header_bytes;
                self.refuse(&ends, header.source, &segment, length, sink);
            }
            After::Reopen => {
                self.remove(slot);
                self.receive_new(&ends, header.source, &segment, bytes, place, sink);
            }
        }
    }

    /// A segment for which there is no connection (RFC 9293 §3.10.7.1 and §3.10.7.2).
    fn receive_new<S: FrameSink>(
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
        emit_segment(
            context,
            sink,
            mac,
            &ends.local,
            &ends.remote,
            &answer,
            empty,
        );
        context.counters.cookies_sent += 1;
        let until_ms = context.now_ms.wrapping_add(COOKIES_VALID_MS);
        self.accept_cookies_until(Some(until_ms));
    }

    /// Opens a connection if the segment answers a cookie.
    fn open_by_cookie(&mut self, ends: &Ends, mac: Mac, segment: &Segment) -> Option<u32> {
        let until_ms = self.cookies_until_ms()?;
        if super::sequence::before(until_ms, self.context.now_ms) {
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
    fn refuse<S: FrameSink>(
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
        if emit_segment(
            context,
            sink,
            mac,
            &ends.local,
            &ends.remote,
            &answer,
            empty,
        ) {
            context.counters.resets_sent += 1;
        }
    }

    /// A new connection's place in the table.
    pub(super) fn create(&mut self, ends: &Ends, mac: Option<Mac>) -> Option<u32> {
        if self.free.is_empty() && self.connections.len() >= self.context.config.connections_max {
            self.reuse_oldest_waiting();
            if self.free.is_empty() {
                self.context.counters.table_full += 1;
                return None;
            }
        }
        let group = self.claim(ends)?;
        let context = &mut self.context;
        let next_hop = context.next_hop(&ends.remote);
        let Some(neighbour) = context.neighbours.acquire(next_hop, context.now_ms) else {
            self.unclaim(ends);
            return None;
        };
        if let Some(mac) = mac {
            context.neighbours.suggest(neighbour, mac, context.now_ms);
        }
        let slot = if let Some(slot) = self.free.pop() {
            let generation = self.connections[index(slot)].generation.wrapping_add(1);
            self.connections[index(slot)] = Connection::new(*ends, slot, generation, neighbour);
            slot
        } else {
            let slot = length32(self.connections.len());
            self.connections
                .push(Connection::new(*ends, slot, 0, neighbour));
            slot
        };
        let connection = &mut self.connections[index(slot)];
        connection.mss = own_mss(context, &ends.remote);
        connection.group = group;
        self.insert(slot);
        Some(slot)
    }

    /// Puts a connection into the table.
    pub(super) fn insert(&mut self, slot: u32) {
        let (connections, secrets) = (&self.connections, &self.secrets);
        let hash_of = |slot: &u32| secrets.table_hash(&connections[index(*slot)].ends);
        self.table.insert_unique(hash_of(&slot), slot, hash_of);
    }

    /// Takes a connection's place out of the table, and makes it free for another one.
    pub(super) fn unlist(&mut self, slot: u32) {
        let connection = &self.connections[index(slot)];
        if connection.state == State::TimeWait {
            self.context.time_waits = self.context.time_waits.saturating_sub(1);
        }
        let hash = self.secrets.table_hash(&connection.ends);
        // The place may still be on the list of those with output: `flush` takes it off, and
        // meanwhile it is not reused as listed.
        if let Ok(entry) = self.table.find_entry(hash, |found| *found == slot) {
            entry.remove();
        }
        self.free.push(slot);
    }

    /// A full table gives up the connection that has been in TIME-WAIT for longest.
    fn reuse_oldest_waiting(&mut self) {
        while let Some((slot, generation)) = self.context.waiting.pop_front() {
            let connection = &self.connections[index(slot)];
            if connection.state == State::TimeWait && connection.generation == generation {
                self.remove(slot);
                return;
            }
        }
    }

    pub(super) fn remove(&mut self, slot: u32) {
        if self.connections[index(slot)].state == State::Free {
            return;
        }
        self.unlist(slot);
        self.unclaim(&self.connections[index(slot)].ends);
        let connection = &mut self.connections[index(slot)];
        connection.release(&mut self.context);
        self.context.neighbours.release(connection.neighbour);
        connection.state = State::Free;
    }

    /// Sends whatever connections may send now. Connections that a full sink leaves out go on with
    /// the next call.
    pub fn flush<S: FrameSink>(&mut self, sink: &mut S) {
        let mut listed = std::mem::take(&mut self.context.listed);
        let mut done = 0;
        for &slot in &listed {
            let Some(connection) = self.connections.get_mut(index(slot)) else {
                done += 1;
                continue;
            };
            if connection.state == State::Free || !connection.flags.has(Flags::LISTED) {
                done += 1;
                continue;
            }
            match connection.transmit(&mut self.context, sink) {
                Turn::Full => break,
                Turn::Done => connection.flags.clear(Flags::LISTED),
                Turn::Waiting { ask } => {
                    connection.flags.clear(Flags::LISTED);
                    let (neighbour, local) = (connection.neighbour, connection.ends.local);
                    self.context.neighbours.wait(neighbour, slot);
                    if let Some(target) = self.context.neighbours.ip(neighbour)
                        && ask
                    {
                        control::ask(&mut self.context, sink, &local, &target, None);
                    }
                    let connection = &mut self.connections[index(slot)];
                    if !connection.flags.has(Flags::RESEND_ARMED) {
                        connection.arm_resend(&mut self.context);
                    }
                }
                Turn::Gone => {
                    connection.tell_dead(&mut self.context, DeadReason::Aborted);
                    self.remove(slot);
                }
            }
            done += 1;
        }
        listed.drain(..done);
        // What was listed meanwhile comes after what is left.
        listed.append(&mut self.context.listed);
        self.context.listed = listed;
    }

    /// Whether [`Stack::flush`] has something to do.
    pub fn has_output(&self) -> bool {
        !self.context.listed.is_empty()
    }
}
