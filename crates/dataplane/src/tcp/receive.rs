//! A frame arrives: the stack finds out whose it is.

use super::arrival::{After, Arrival};
use super::buffer::index;
use super::config::ChecksumPolicy;
use super::connection::State;
use super::control;
use super::frames::FrameSink;
use super::secrets::Ends;
use super::stack::Stack;
use super::wire::icmp::{self, Message};
use super::wire::segment::{self, ChecksumVerdict, Segment};
use super::wire::{ethernet, ip};

impl Stack {
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
}
