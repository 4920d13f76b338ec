//! The network layer: ARP, neighbour discovery, echo, ICMP errors and path MTU, IPv6.

use super::script::run;
use super::{Frames, LOCAL, LOCAL_MAC, REMOTE, REMOTE_MAC, config, ip};
use crate::tcp::wire::arp::{self, ArpOperation};
use crate::tcp::wire::ethernet::{self, Mac};
use crate::tcp::wire::icmp::{self, Message};
use crate::tcp::wire::ip::Packet;
use crate::tcp::wire::segment::{self, Segment};
use crate::tcp::wire::{self, Ip};
use crate::tcp::{Event, FrameSink, Stack};

/// The IPv6 packet of a frame, and what it carries.
fn v6_packet(frame: &[u8]) -> (Packet, &[u8]) {
    let packet = wire::ip::parse_v6(&frame[14..]).unwrap();
    let carried = &frame[14 + packet.payload_start..14 + packet.payload_end];
    (packet, carried)
}

fn open(rest: &str) {
    run(&format!(
        "
        < S 0:0(0) win 60000 <mss 1400>
        > S. 0:0(0) ack 1
        < . 1:1(0) ack 1 win 60000
        event Knock
        {rest}"
    ));
}

#[test]
fn a_narrow_path_makes_small_segments_and_sends_again() {
    open(
        "
        write 2800
        > . 1:1401(1400)
        > . 1401:2801(1400)
        icmp too-large 1000 1
        > . 1:961(960)
        > . 961:1921(960)
        > . 1921:2801(880)
        < . 1:1(0) ack 2801
        write 1000
        > . 2801:3761(960)
        > . 3761:3801(40)
    ",
    );
}

#[test]
fn a_router_without_an_mtu_means_the_smallest() {
    open(
        "
        write 1400
        > . 1:1401(1400)
        icmp too-large 0 1
        > . 1:513(512)
        > . 513:1025(512)
        > . 1025:1401(376)
    ",
    );
}

#[test]
fn a_message_about_nothing_in_flight_is_ignored() {
    open(
        "
        write 1400
        > . 1:1401(1400)
        icmp too-large 600 5000     # RFC 5927 §4.1
        > nothing
        < . 1:1(0) ack 1401
        icmp too-large 600 1
        write 1400
        > . 1401:2801(1400)
    ",
    );
}

#[test]
fn an_mtu_below_the_least_is_the_least() {
    open(
        "
        write 600
        > . 1:601(600)
        icmp too-large 68 1
        > . 1:513(512)
        > . 513:601(88)
    ",
    );
}

#[test]
fn a_refusal_is_hard_while_opening_and_soft_afterwards() {
    run("
        connect
        > S 0:0(0)
        icmp refused 0
        event Dead Os(111)
    ");
    open(
        "
        write 100
        > . 1:101(100)
        icmp refused 1
        event none
        +201
        > . 1:101(100)
    ",
    );
}

fn stack() -> (Stack, Frames) {
    let own = [(LOCAL, 24), (ip("2001:db8::2"), 64), (ip("fe80::2"), 64)];
    let mut stack = Stack::new(config(LOCAL_MAC, &own), 0);
    stack.listen(None, 11_211);
    (stack, Frames::default())
}

fn ethernet_frame(destination: Mac, ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; ethernet::HEADER_BYTES];
    ethernet::Header {
        destination,
        source: REMOTE_MAC,
        ethertype,
    }
    .write(&mut frame);
    frame.extend_from_slice(packet);
    frame
}

#[test]
fn arp_requests_for_our_address_are_answered() {
    let (mut stack, mut frames) = stack();
    let mut request = arp::ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: REMOTE_MAC,
        sender: REMOTE,
        target_mac: Mac::default(),
        target: LOCAL,
    };
    let frame = ethernet_frame(Mac::BROADCAST, ethernet::ARP, &request.bytes());
    stack.receive(0, &frame, &mut frames);
    let answer = frames.sent.pop_front().unwrap();
    let header = ethernet::Header::parse(&answer).unwrap();
    assert_eq!(header.destination, REMOTE_MAC);
    let reply = arp::ArpPacket::parse(&answer[ethernet::HEADER_BYTES..]).unwrap();
    assert_eq!(reply.operation, ArpOperation::Reply);
    assert_eq!((reply.sender_mac, reply.sender), (LOCAL_MAC, LOCAL));
    assert_eq!((reply.target_mac, reply.target), (REMOTE_MAC, REMOTE));
    request.target = Ip::v4([10, 7, 0, 3]);
    let frame = ethernet_frame(Mac::BROADCAST, ethernet::ARP, &request.bytes());
    stack.receive(0, &frame, &mut frames);
    assert!(frames.sent.is_empty(), "another's address");
}

/// A packet of ICMP or ICMPv6.
fn icmp_frame(destination_mac: Mac, from: &Ip, to: &Ip, hop_limit: u8, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    icmp::fill_checksum(from, to, &mut message);
    let mut packet = vec![0; wire::ip::header_bytes(to)];
    let protocol = if to.is_v4() {
        wire::ip::ICMP
    } else {
        wire::ip::ICMPV6
    };
    wire::ip::write_hops(&mut packet, from, to, protocol, message.len(), hop_limit).unwrap();
    packet.extend_from_slice(&message);
    let ethertype = if to.is_v4() {
        ethernet::IPV4
    } else {
        ethernet::IPV6
    };
    ethernet_frame(destination_mac, ethertype, &packet)
}

#[test]
fn solicitations_are_answered_only_from_the_link() {
    let (mut stack, mut frames) = stack();
    let (own, peer) = (ip("2001:db8::2"), ip("2001:db8::1"));
    let group = icmp::solicited_node(&own);
    let message = icmp::solicitation(&own, REMOTE_MAC);
    let mac = icmp::multicast_mac(&group);
    stack.receive(
        0,
        &icmp_frame(mac, &peer, &group, 64, &message),
        &mut frames,
    );
    assert!(
        frames.sent.is_empty(),
        "RFC 4861 §7.1.1: it has crossed a router"
    );
    stack.receive(
        0,
        &icmp_frame(mac, &peer, &group, 255, &message),
        &mut frames,
    );
    let answer = frames.sent.pop_front().unwrap();
    let (packet, bytes) = v6_packet(&answer);
    assert_eq!(
        (packet.source, packet.destination, packet.hop_limit),
        (own, peer, 255)
    );
    assert_eq!(
        icmp::parse_v6(&packet, bytes),
        Some(Message::NeighbourAdvertisement {
            target: own,
            target_mac: Some(LOCAL_MAC),
            is_solicited: true,
            is_override: true,
        })
    );
}

#[test]
fn echo_requests_are_answered_and_bounded() {
    let (mut stack, mut frames) = stack();
    let message = [8, 0, 0, 0, 1, 2, 3, 4, b'h', b'i'];
    let frame = icmp_frame(LOCAL_MAC, &REMOTE, &LOCAL, 64, &message);
    for _ in 0..3000 {
        stack.receive(0, &frame, &mut frames);
    }
    assert_eq!(frames.sent.len(), 1000, "a second's worth");
    let answer = &frames.sent[0];
    let packet = wire::ip::parse_v4(&answer[14..]).unwrap();
    assert_eq!((packet.source, packet.destination), (LOCAL, REMOTE));
    assert_eq!(answer[34..36], [0, 0]);
    assert_eq!(answer[38..44], message[4..]);
    let message = [128, 0, 0, 0, 1, 2, 3, 4];
    let frame = icmp_frame(LOCAL_MAC, &ip("fe80::1"), &ip("fe80::2"), 64, &message);
    stack.expire(2_000_000);
    frames.sent.clear();
    stack.receive(0, &frame, &mut frames);
    assert_eq!(frames.sent[0][54], 129);
}

#[test]
fn a_datagram_is_answered_by_port_unreachable() {
    let (mut stack, mut frames) = stack();
    let mut packet = vec![0; 28];
    wire::ip::write(&mut packet, &REMOTE, &LOCAL, wire::ip::UDP, 8).unwrap();
    stack.receive(
        0,
        &ethernet_frame(LOCAL_MAC, ethernet::IPV4, &packet),
        &mut frames,
    );
    let answer = frames.sent.pop_front().unwrap();
    assert_eq!(answer[34..36], [3, 3]);
    assert_eq!(answer[42..], packet[..]);
    // RFC 1122 §3.2.2: never about a broadcast.
    stack.receive(
        0,
        &ethernet_frame(Mac::BROADCAST, ethernet::IPV4, &packet),
        &mut frames,
    );
    assert!(frames.sent.is_empty());
}

#[test]
fn an_ipv6_neighbour_is_asked_for_and_what_waited_goes_out() {
    let (mut stack, mut frames) = stack();
    let (own, peer) = (ip("2001:db8::2"), ip("2001:db8::1"));
    stack.connect((own, 0), (peer, 80)).unwrap();
    stack.flush(&mut frames);
    let question = frames.sent.pop_front().unwrap();
    assert!(frames.sent.is_empty(), "the SYN waits");
    let group = icmp::solicited_node(&peer);
    let header = ethernet::Header::parse(&question).unwrap();
    assert_eq!(header.destination, icmp::multicast_mac(&group));
    let (packet, bytes) = v6_packet(&question);
    assert_eq!(
        (packet.source, packet.destination, packet.hop_limit),
        (own, group, 255)
    );
    assert_eq!(
        icmp::parse_v6(&packet, bytes),
        Some(Message::NeighbourSolicitation {
            target: peer,
            source_mac: Some(LOCAL_MAC),
        })
    );
    let answer = icmp::advertisement(&peer, REMOTE_MAC, true);
    // RFC 4861 §7.1.2: what has crossed a router is no answer.
    for (hop_limit, sent) in [(254, 0), (255, 1)] {
        let frame = icmp_frame(LOCAL_MAC, &peer, &own, hop_limit, &answer);
        stack.receive(0, &frame, &mut frames);
        stack.flush(&mut frames);
        assert_eq!(frames.sent.len(), sent, "hop limit {hop_limit}");
    }
    let syn = frames.sent.pop_front().unwrap();
    let header = ethernet::Header::parse(&syn).unwrap();
    assert_eq!(header.destination, REMOTE_MAC);
    let segment = Segment::parse(&syn[14 + wire::ip::V6_HEADER_BYTES..]).unwrap();
    assert_eq!(segment.flags, segment::SYN);
}

fn v6_segment(from: &Ip, to: &Ip, segment: &Segment) -> Vec<u8> {
    let mut tcp = vec![0; segment.bytes()];
    segment.write(&mut tcp).unwrap();
    segment::fill_checksum(from, to, &mut tcp);
    let mut packet = vec![0; wire::ip::V6_HEADER_BYTES];
    wire::ip::write(&mut packet, from, to, wire::ip::TCP, tcp.len()).unwrap();
    packet.extend_from_slice(&tcp);
    ethernet_frame(LOCAL_MAC, ethernet::IPV6, &packet)
}

#[test]
fn a_connection_over_ipv6_has_its_own_segment_size() {
    let (mut stack, mut frames) = stack();
    let (own, peer) = (ip("2001:db8::2"), ip("2001:db8::1"));
    let syn = Segment {
        source_port: 4000,
        destination_port: 11_211,
        flags: segment::SYN,
        window: 1000,
        ..Segment::default()
    };
    stack.receive(0, &v6_segment(&peer, &own, &syn), &mut frames);
    stack.flush(&mut frames);
    let answer = frames.sent.pop_front().unwrap();
    let (packet, tcp) = v6_packet(&answer);
    let verdict = segment::verify(&packet.source, &packet.destination, tcp);
    assert_eq!(verdict, segment::ChecksumVerdict::Valid);
    let answer = Segment::parse(tcp).unwrap();
    assert_eq!(answer.flags, segment::SYN | segment::ACK);
    assert_eq!(answer.options.mss, Some(1440));
}

/// The sizes of the segments' payloads over IPv6 that are to be sent.
fn v6_payloads(frames: &mut Frames) -> Vec<usize> {
    let frames = frames.sent.drain(..);
    let sizes = frames.map(|frame| {
        let (_, tcp) = v6_packet(&frame);
        tcp.len() - Segment::parse(tcp).unwrap().header_bytes
    });
    sizes.collect()
}

#[test]
fn a_packet_too_big_over_ipv6_makes_small_segments_and_sends_again() {
    let (mut stack, mut frames) = stack();
    let (own, peer, router) = (ip("2001:db8::2"), ip("2001:db8::1"), ip("2001:db8::fe"));
    let mut segment = Segment {
        source_port: 4000,
        destination_port: 11_211,
        flags: segment::SYN,
        window: 20_000,
        ..Segment::default()
    };
    segment.options.mss = Some(1440);
    stack.receive(0, &v6_segment(&peer, &own, &segment), &mut frames);
    stack.flush(&mut frames);
    let answer = frames.sent.pop_front().unwrap();
    let tcp = &answer[14 + wire::ip::V6_HEADER_BYTES..];
    segment.sequence = 1;
    segment.acknowledgement = Segment::parse(tcp).unwrap().sequence.wrapping_add(1);
    segment.flags = segment::ACK;
    segment.options.mss = None;
    stack.receive(0, &v6_segment(&peer, &own, &segment), &mut frames);
    let mut events = Vec::new();
    stack.take_events(&mut events);
    let Some(&Event::Knock { flow, .. }) = events.first() else {
        panic!("{events:?}");
    };
    assert_eq!(stack.send(flow, &[0; 2880]), 2880);
    stack.flush(&mut frames);
    let quoted = frames.sent[0][14..].to_vec();
    assert_eq!(v6_payloads(&mut frames), [1440, 1440]);
    // RFC 8201 §4: a router's message, and then segments for packets of 1,280 bytes.
    let mut message = vec![2, 0, 0, 0];
    message.extend_from_slice(&1280_u32.to_be_bytes());
    message.extend_from_slice(&quoted[..1232]);
    let frame = icmp_frame(LOCAL_MAC, &router, &own, 64, &message);
    stack.receive(0, &frame, &mut frames);
    stack.flush(&mut frames);
    assert_eq!(v6_payloads(&mut frames), [1220, 1220, 440]);
}

#[test]
fn fragments_are_dropped_and_extension_headers_skipped() {
    let (mut stack, mut frames) = stack();
    let (own, peer) = (ip("2001:db8::2"), ip("2001:db8::1"));
    let syn = Segment {
        source_port: 4000,
        destination_port: 11_211,
        flags: segment::SYN,
        window: 1000,
        ..Segment::default()
    };
    let plain = v6_segment(&peer, &own, &syn);
    // A fragment header in front of TCP: the first of two, then a whole one.
    for (fragment, answers) in [([6, 0, 0, 1, 0, 0, 0, 9], 0), ([6, 0, 0, 0, 0, 0, 0, 9], 1)] {
        let mut frame = plain[..54].to_vec();
        frame[18..20].copy_from_slice(&28u16.to_be_bytes());
        frame[20] = 44;
        frame.extend_from_slice(&fragment);
        frame.extend_from_slice(&plain[54..]);
        stack.receive(0, &frame, &mut frames);
        stack.flush(&mut frames);
        assert_eq!(frames.sent.len(), answers);
    }
}

#[test]
fn checksums_left_to_the_device_are_accepted_only_if_allowed() {
    for (policy, answers) in [
        (crate::tcp::ChecksumPolicy::Valid, 0),
        (crate::tcp::ChecksumPolicy::ValidOrPartial, 1),
    ] {
        let mut settings = config(LOCAL_MAC, &[(LOCAL, 24)]);
        settings.checksums = policy;
        let mut stack = Stack::new(settings, 0);
        stack.listen(None, 11_211);
        let syn = Segment {
            source_port: 4000,
            destination_port: 11_211,
            flags: segment::SYN,
            window: 1000,
            ..Segment::default()
        };
        let mut frame = super::script::frame(&syn, &[]);
        let sum = wire::checksum::Sum::pseudo_header(&REMOTE, &LOCAL, wire::ip::TCP, 20);
        frame[50..52].copy_from_slice(&sum.folded().to_be_bytes());
        let mut frames = Frames::default();
        stack.receive(0, &frame, &mut frames);
        // What is neither valid nor unfinished is dropped in any case.
        frame[50] ^= 1;
        stack.receive(0, &frame, &mut frames);
        stack.flush(&mut frames);
        assert_eq!(frames.sent.len(), answers);
        assert_eq!(stack.counters().checksums_wrong, 2 - answers as u64);
    }
}

/// A device that completes checksums: the sum over everything from `tcp_start` on, the unfinished
/// field included.
#[derive(Default)]
struct Device(Frames);

impl FrameSink for Device {
    fn frame(&mut self, length: usize) -> Option<&mut [u8]> {
        self.0.frame(length)
    }

    fn send(&mut self, _length: usize) {
        panic!("a checksum was finished");
    }

    fn completes_checksums(&self) -> bool {
        true
    }

    fn send_unfinished(&mut self, length: usize, tcp_start: usize) {
        let tcp = &mut self.0.place[tcp_start..length];
        let checksum = wire::checksum::of(tcp);
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        self.0.send(length);
    }
}

#[test]
fn a_device_completes_the_checksums_that_are_left_to_it() {
    let (mut stack, _) = stack();
    let mut device = Device::default();
    let syn = Segment {
        source_port: 4000,
        destination_port: 11_211,
        flags: segment::SYN,
        window: 1000,
        ..Segment::default()
    };
    let closed = Segment {
        destination_port: 80,
        ..syn
    };
    let (own, peer) = (ip("2001:db8::2"), ip("2001:db8::1"));
    for asked in [syn, closed] {
        let frame = super::script::frame(&asked, &[]);
        stack.receive(0, &frame, &mut device);
        stack.flush(&mut device);
        // Its checksum is looked at, too.
        let answer = device.0.sent.pop_front().unwrap();
        assert!(super::script::parse_frame(&answer).0.has(segment::ACK));
        stack.receive(0, &v6_segment(&peer, &own, &asked), &mut device);
        stack.flush(&mut device);
        let answer = device.0.sent.pop_front().unwrap();
        let (packet, tcp) = v6_packet(&answer);
        let verdict = segment::verify(&packet.source, &packet.destination, tcp);
        assert_eq!(verdict, segment::ChecksumVerdict::Valid);
    }
}
