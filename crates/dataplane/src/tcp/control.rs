//! What is not TCP: ARP, neighbour discovery, echo, and ICMP errors.

use super::connection::{Connection, Context, Flags, REFUSED, State};
use super::frames::{FrameSink, mss_of_path};
use super::secrets::Ends;
use super::sequence::within;
use super::wire::arp::{self, ArpOperation};
use super::wire::ethernet::{self, Mac};
use super::wire::icmp::{self, Unreachable};
use super::wire::{Ip, be16, be32, ip};

/// Echo replies and ICMP errors a second at most.
const REPLIES_PER_SECOND: u32 = 1000;
/// Bytes of a quoted packet's transport header that routers must return (RFC 792).
const QUOTED_BYTES: usize = 8;

/// A bound on answers a second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateLimit {
    second: u32,
    count: u32,
}

impl RateLimit {
    pub(crate) fn allows(&mut self, now_ms: u32) -> bool {
        let second = now_ms / 1000;
        if second != self.second {
            *self = RateLimit { second, count: 0 };
        }
        self.count += 1;
        self.count <= REPLIES_PER_SECOND
    }
}

/// Sends what is no TCP segment. A full sink drops it.
pub(crate) struct Packet<'a> {
    pub(crate) mac: Mac,
    pub(crate) source: Ip,
    pub(crate) destination: Ip,
    pub(crate) protocol: u8,
    pub(crate) hop_limit: u8,
    /// An ICMP message whose checksum is filled in here.
    pub(crate) message: &'a [u8],
}

impl Packet<'_> {
    pub(crate) fn send<S: FrameSink>(&self, context: &mut Context, sink: &mut S) {
        let ip_bytes = ip::header_bytes(&self.destination);
        let length = ethernet::HEADER_BYTES + ip_bytes + self.message.len();
        let Some(frame) = sink.frame(length).and_then(|frame| frame.get_mut(..length)) else {
            return;
        };
        ethernet::Header {
            destination: self.mac,
            source: context.config.mac,
            ethertype: if self.destination.is_v4() {
                ethernet::IPV4
            } else {
                ethernet::IPV6
            },
        }
        .write(frame);
        let packet = &mut frame[ethernet::HEADER_BYTES..];
        ip::write_hops(
            packet,
            &self.source,
            &self.destination,
            self.protocol,
            self.message.len(),
            self.hop_limit,
        );
        let message = &mut packet[ip_bytes..];
        message.copy_from_slice(self.message);
        icmp::fill_checksum(&self.source, &self.destination, message);
        sink.send(length);
        context.counters.frames_sent += 1;
    }
}

/// Asks for a neighbour's hardware address: everybody, or only whoever had it last.
pub(crate) fn ask<S: FrameSink>(
    context: &mut Context,
    sink: &mut S,
    source: &Ip,
    target: &Ip,
    last_known: Option<Mac>,
) {
    if target.is_v4() {
        let packet = arp::ArpPacket {
            operation: ArpOperation::Request,
            sender_mac: context.config.mac,
            sender: *source,
            target_mac: Mac::default(),
            target: *target,
        };
        send_arp(context, sink, last_known.unwrap_or(Mac::BROADCAST), &packet);
    } else {
        let group = icmp::solicited_node(target);
        let message = icmp::solicitation(target, context.config.mac);
        Packet {
            mac: last_known.unwrap_or_else(|| icmp::multicast_mac(&group)),
            source: *source,
            destination: if last_known.is_some() { *target } else { group },
            protocol: ip::ICMPV6,
            hop_limit: 255,
            message: &message,
        }
        .send(context, sink);
    }
}

fn send_arp<S: FrameSink>(
    context: &mut Context,
    sink: &mut S,
    destination: Mac,
    packet: &arp::ArpPacket,
) {
    let length = ethernet::HEADER_BYTES + arp::PACKET_BYTES;
    let Some(frame) = sink.frame(length).and_then(|frame| frame.get_mut(..length)) else {
        return;
    };
    ethernet::Header {
        destination,
        source: context.config.mac,
        ethertype: ethernet::ARP,
    }
    .write(frame);
    frame[ethernet::HEADER_BYTES..].copy_from_slice(&packet.bytes());
    sink.send(length);
    context.counters.frames_sent += 1;
}

/// Takes an ARP packet. Returns the connections that waited for its sender, and whether the packet
/// tells other stacks of this interface something: an answer, or an address that has moved.
pub(crate) fn take_arp<S: FrameSink>(
    context: &mut Context,
    sink: &mut S,
    bytes: &[u8],
) -> (Vec<u32>, bool) {
    let Some(packet) = arp::ArpPacket::parse(bytes) else {
        context.counters.frames_ignored += 1;
        return (Vec::new(), false);
    };
    let is_conflict = context.is_own(&packet.sender);
    let waiting = if is_conflict || !packet.sender.is_host() {
        Vec::new()
    } else {
        context
            .neighbours
            .learn(packet.sender, packet.sender_mac, context.now_ms)
    };
    if packet.operation == ArpOperation::Request && context.is_own(&packet.target) {
        let reply = arp::ArpPacket {
            operation: ArpOperation::Reply,
            sender_mac: context.config.mac,
            sender: packet.target,
            target_mac: packet.sender_mac,
            target: packet.sender,
        };
        send_arp(context, sink, packet.sender_mac, &reply);
    }
    let is_answer = packet.operation == ArpOperation::Reply && context.is_own(&packet.target);
    let is_news = !is_conflict && (is_answer || packet.sender == packet.target);
    (waiting, is_news)
}

/// Answers a neighbour solicitation (RFC 4861 §7.2.4).
pub(crate) fn answer_solicitation<S: FrameSink>(
    context: &mut Context,
    sink: &mut S,
    from: (&Ip, Mac),
    target: &Ip,
) {
    let (source, mac) = from;
    // Who checks whether an address is free has none yet: everybody is told.
    let is_probe = *source == Ip::UNSPECIFIED_V6;
    let all_nodes = Ip::v6([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let destination = if is_probe { all_nodes } else { *source };
    let message = icmp::advertisement(target, context.config.mac, !is_probe);
    Packet {
        mac: if is_probe {
            icmp::multicast_mac(&all_nodes)
        } else {
            mac
        },
        source: *target,
        destination,
        protocol: ip::ICMPV6,
        hop_limit: 255,
        message: &message,
    }
    .send(context, sink);
}

/// The connection that an ICMP error speaks of, and the sequence number that it quotes.
pub(crate) fn quoted_ends(quoted: &[u8]) -> Option<(Ends, u32)> {
    // The quotation may be cut short, so the parsers that check lengths are of no use here.
    let version = quoted.first()? >> 4;
    let (source, destination, protocol, header_bytes) = match version {
        4 => (
            Ip::v4(*quoted.get(12..)?.first_chunk()?),
            Ip::v4(*quoted.get(16..)?.first_chunk()?),
            *quoted.get(9)?,
            usize::from(quoted.first()? & 0x0f) * 4,
        ),
        6 => (
            Ip::v6(*quoted.get(8..)?.first_chunk()?),
            Ip::v6(*quoted.get(24..)?.first_chunk()?),
            *quoted.get(6)?,
            ip::V6_HEADER_BYTES,
        ),
        _ => return None,
    };
    if protocol != ip::TCP || header_bytes < ip::V4_HEADER_BYTES {
        return None;
    }
    let transport = quoted.get(header_bytes..)?.get(..QUOTED_BYTES)?;
    let ends = Ends {
        local: source,
        local_port: be16(transport, 0)?,
        remote: destination,
        remote_port: be16(transport, 2)?,
    };
    Some((ends, be32(transport, 4)?))
}

impl Connection {
    /// An ICMP error speaks of this connection. True if the connection is gone.
    pub(crate) fn take_icmp(
        &mut self,
        context: &mut Context,
        why: Unreachable,
        sequence: u32,
    ) -> bool {
        // RFC 5927 §4.1: the quoted segment must be in flight, which an outsider cannot know.
        let is_in_flight = within(sequence, self.unacknowledged, self.next);
        if !is_in_flight {
            return false;
        }
        context.counters.icmp_errors += 1;
        let is_opening = matches!(self.state, State::SynSent | State::SynReceived);
        match why {
            Unreachable::TooLarge { mtu_bytes } => {
                self.shrink(context, mtu_bytes);
                false
            }
            // RFC 5461 §4: an error is hard only for a connection that is being opened.
            Unreachable::Refused if is_opening => {
                self.tell_dead(context, REFUSED);
                true
            }
            Unreachable::Refused | Unreachable::Soft => false,
        }
    }

    /// The path takes packets of `mtu_bytes` at most (RFC 1191, RFC 8201). What is in flight is
    /// sent again in smaller segments; congestion is not the reason (RFC 1191 §6.4).
    fn shrink(&mut self, context: &mut Context, mtu_bytes: Option<u32>) {
        let mss = mss_of_path(&self.ends.remote, mtu_bytes.unwrap_or(0));
        if mss >= self.mss {
            return;
        }
        self.mss = mss;
        self.flags.clear(Flags::TIMED);
        if self.flight_bytes() > 0 && !matches!(self.state, State::SynSent | State::SynReceived) {
            let (unacknowledged, next) = (self.unacknowledged, self.next);
            let has_sack = self.flags.has(Flags::SACK);
            self.recovery
                .get_or_insert_with(|| {
                    Box::new(super::recovery::Recovery::new(unacknowledged, has_sack))
                })
                .enter_timeout(unacknowledged, next);
            self.list(context);
        }
    }
}

/// An ICMP error about a packet that nobody here wants: the port is closed (RFC 1122 §3.2.2.1).
pub(crate) fn refuse_datagram<S: FrameSink>(
    context: &mut Context,
    sink: &mut S,
    mac: Mac,
    packet: &ip::Packet,
    bytes: &[u8],
) {
    let is_v4 = packet.destination.is_v4();
    // RFC 792 wants the header and 8 bytes; RFC 4443 as much as fits.
    let quoted = bytes.get(..bytes.len().min(548)).unwrap_or(bytes);
    let mut message = Vec::with_capacity(icmp::HEADER_BYTES + quoted.len());
    message.extend_from_slice(if is_v4 {
        &[3, 3, 0, 0, 0, 0, 0, 0]
    } else {
        &[1, 4, 0, 0, 0, 0, 0, 0]
    });
    message.extend_from_slice(quoted);
    Packet {
        mac,
        source: packet.destination,
        destination: packet.source,
        protocol: if is_v4 { ip::ICMP } else { ip::ICMPV6 },
        hop_limit: 64,
        message: &message,
    }
    .send(context, sink);
}

impl Context {
    /// Whether the address is this stack's.
    pub(crate) fn is_own(&self, ip: &Ip) -> bool {
        self.config.addresses.iter().any(|(own, _)| own == ip)
    }

    /// The neighbour to which packets for `remote` go: the peer itself on the same link, else the
    /// router, if there is one.
    pub(crate) fn next_hop(&self, remote: &Ip) -> Ip {
        let is_on_link = self
            .config
            .addresses
            .iter()
            .any(|(own, prefix)| own.agrees(remote, *prefix));
        if is_on_link {
            return *remote;
        }
        self.config
            .gateways
            .iter()
            .find(|gateway| gateway.is_v4() == remote.is_v4())
            .copied()
            .unwrap_or(*remote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::wire::length32;

    #[test]
    fn answers_are_bounded_each_second() {
        let mut limit = RateLimit::default();
        let allowed = (0..5000).filter(|_| limit.allows(7)).count();
        assert_eq!(length32(allowed), REPLIES_PER_SECOND);
        assert!(limit.allows(1007));
    }

    #[test]
    fn a_quotation_cut_short_is_ignored() {
        let mut packet = vec![0; 28];
        ip::write(
            &mut packet,
            &Ip::v4([10, 7, 0, 2]),
            &Ip::v4([10, 7, 0, 1]),
            ip::TCP,
            8,
        );
        packet[20..].copy_from_slice(&[0x2b, 0xcb, 0x0f, 0xa0, 0, 0, 0, 9]);
        let (ends, sequence) = quoted_ends(&packet).unwrap();
        assert_eq!(
            (ends.local_port, ends.remote_port, sequence),
            (11211, 4000, 9)
        );
        for length in 0..28 {
            assert_eq!(quoted_ends(&packet[..length]), None);
        }
    }
}
