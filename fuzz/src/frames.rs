//! Any frames, calls and delays against the TCP/IP stack. Most frames have correct checksums and
//! numbers near those of the connection, so that they get past the header parsers.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};

use dataplane::FlowId;
use dataplane::tcp::wire::ethernet::{self, Mac};
use dataplane::tcp::wire::segment::{self, ACK, ChecksumVerdict, SYN, Segment};
use dataplane::tcp::wire::{Ip, arp, icmp, ip};
use dataplane::tcp::{ChecksumPolicy, Config, Data, Event, FrameSink, Stack};

use crate::bytes::Bytes;
use crate::seeds::kept;
use crate::target::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "frames",
    run,
    seeds: || kept("frames"),
    memory_max_bytes: 4 << 20,
};

const LOCAL_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
const REMOTE_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PORT: u16 = 11_211;
const MTU_BYTES: u16 = 1500;
/// What data of all connections may take.
const MEMORY_MAX_BYTES: usize = 1 << 16;
/// What table and timers of 16 connections take at most, with much room to spare.
const TABLE_MAX_BYTES: usize = 1 << 20;

/// Keeps the last frames. Now and then it is full.
#[derive(Default)]
struct Frames {
    place: Vec<u8>,
    sent: VecDeque<Vec<u8>>,
    room: usize,
}

impl FrameSink for Frames {
    fn frame(&mut self, length: usize) -> Option<&mut [u8]> {
        assert!(length <= usize::from(MTU_BYTES) + ethernet::HEADER_BYTES);
        if self.room == 0 {
            return None;
        }
        self.place.clear();
        self.place.resize(length, 0xee);
        Some(&mut self.place)
    }

    fn send(&mut self, length: usize) {
        self.room -= 1;
        let frame = self.place[..length].to_vec();
        check_sent(&frame);
        self.sent.push_back(frame);
        if self.sent.len() > 64 {
            self.sent.pop_front();
        }
    }
}

/// What the stack sends is well formed.
fn check_sent(frame: &[u8]) {
    let header = ethernet::Header::parse(frame).expect("an Ethernet header");
    assert_eq!(header.source, LOCAL_MAC);
    let bytes = &frame[ethernet::HEADER_BYTES..];
    let packet = match header.ethertype {
        ethernet::IPV4 => ip::parse_v4(bytes),
        ethernet::IPV6 => ip::parse_v6(bytes),
        _ => {
            arp::ArpPacket::parse(bytes).expect("an ARP packet");
            return;
        }
    };
    let packet = packet.expect("an IP packet");
    let payload = &bytes[packet.payload_start..packet.payload_end];
    if packet.protocol == ip::TCP {
        let verdict = segment::verify(&packet.source, &packet.destination, payload);
        assert_eq!(verdict, ChecksumVerdict::Valid);
        Segment::parse(payload).expect("a TCP header");
    }
}

/// The parsers alone: what they return lies in what they were given.
fn parse_all(bytes: &[u8]) {
    let _ = ethernet::Header::parse(bytes);
    let _ = arp::ArpPacket::parse(bytes);
    let _ = icmp::parse_v4(bytes);
    if let Some(segment) = Segment::parse(bytes) {
        assert!(segment.header_bytes <= bytes.len());
    }
    for packet in [ip::parse_v4(bytes), ip::parse_v6(bytes)] {
        let Some(packet) = packet else { continue };
        assert!(packet.payload_start <= packet.payload_end && packet.payload_end <= bytes.len());
        let payload = &bytes[packet.payload_start..packet.payload_end];
        let _ = icmp::parse_v6(&packet, payload);
        let _ = segment::verify(&packet.source, &packet.destination, payload);
    }
}

/// A stack with an application that answers, and what a peer knows of it.
struct World {
    stack: Stack,
    sink: Frames,
    events: Vec<Event>,
    flows: Vec<FlowId>,
    now_us: u64,
    answers: u8,
}

fn addresses(is_v6: bool) -> (Ip, Ip) {
    if is_v6 {
        let ip = |last| {
            Ip::from(IpAddr::V6(Ipv6Addr::new(
                0x2001, 0xdb8, 0, 0, 0, 0, 0, last,
            )))
        };
        (ip(2), ip(1))
    } else {
        (Ip::v4([10, 7, 0, 2]), Ip::v4([10, 7, 0, 1]))
    }
}

/// A frame around a payload. `protocol` is the IP header's.
fn packet(is_v6: bool, protocol: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
    let (local, remote) = addresses(is_v6);
    let start = ethernet::HEADER_BYTES + ip::header_bytes(&local);
    let mut frame = vec![0; start + payload.len()];
    ethernet::Header {
        destination: LOCAL_MAC,
        source: REMOTE_MAC,
        ethertype: if is_v6 {
            ethernet::IPV6
        } else {
            ethernet::IPV4
        },
    }
    .write(&mut frame);
    let bytes = &mut frame[ethernet::HEADER_BYTES..];
    let _ = ip::write_hops(bytes, &remote, &local, protocol, payload.len(), hops);
    frame[start..].copy_from_slice(payload);
    frame
}

impl World {
    fn new(how: u8) -> World {
        let addresses = vec![(addresses(false).0, 24), (addresses(true).0, 64)];
        let mut config = Config::new(LOCAL_MAC, MTU_BYTES, addresses, (1, 2));
        config.gateways = vec![Ip::v4([10, 7, 0, 254])];
        config.connections_max = 16;
        config.backlog_max = if how & 1 == 0 { 8 } else { 0 };
        config.memory_max_bytes = MEMORY_MAX_BYTES;
        config.send_queue_max_bytes = 20_000;
        config.receive_window_bytes = if how & 2 == 0 { 20_000 } else { 200_000 };
        config.timestamps = how & 4 == 0;
        config.sack = how & 8 == 0;
        config.window_scaling = how & 16 == 0;
        if how & 32 != 0 {
            config.checksums = ChecksumPolicy::ValidOrPartial;
        }
        let mut stack = Stack::new(config, 0);
        stack.listen(None, PORT);
        World {
            stack,
            sink: Frames::default(),
            events: Vec::new(),
            flows: Vec::new(),
            now_us: 0,
            answers: how >> 6,
        }
    }

    fn receive(&mut self, frame: &[u8]) {
        parse_all(frame);
        parse_all(frame.get(ethernet::HEADER_BYTES..).unwrap_or(&[]));
        self.stack.receive(0, frame, &mut self.sink);
        self.settle(frame);
    }

    /// The application hears what has happened, and the stack sends.
    fn settle(&mut self, frame: &[u8]) {
        self.stack.take_events(&mut self.events);
        for event in std::mem::take(&mut self.events) {
            let flow = match &event {
                Event::Knock { .. } | Event::Connected { .. } => None,
                Event::Received { flow, .. }
                | Event::Sent { flow }
                | Event::Finished { flow }
                | Event::Dead { flow, .. } => Some(*flow),
            };
            // No event comes before the first of a flow, after its last, or after its rejection.
            let is_known = flow.is_none_or(|flow| self.flows.contains(&flow));
            assert!(is_known, "{event:?}, and the flow is unknown");
            match event {
                Event::Knock { flow, .. } | Event::Connected { flow } => self.flows.push(flow),
                Event::Received { flow, data } => {
                    let length = match &data {
                        Data::Owned(bytes) => bytes.len(),
                        Data::Frame { start, length, .. } => {
                            assert!(frame.get(*start..start + length).is_some(), "outside");
                            *length
                        }
                    };
                    match self.answers {
                        0 => self.stack.receive_done(flow, length),
                        1 => {
                            self.stack.send(flow, &frame[..length.min(frame.len())]);
                            self.stack.receive_done(flow, length / 2);
                        }
                        _ => {}
                    }
                }
                Event::Finished { flow } => {
                    if self.answers != 3 {
                        self.stack.close(flow);
                    }
                }
                Event::Dead { flow, .. } => {
                    assert!(!self.stack.is_open(flow), "dead, and still open");
                    self.flows.retain(|known| *known != flow);
                }
                Event::Sent { .. } => {}
            }
        }
        self.stack.flush(&mut self.sink);
        assert!(self.stack.memory_bytes() <= MEMORY_MAX_BYTES + TABLE_MAX_BYTES);
        assert!(self.stack.connections() <= 16);
    }

    /// The last segment of TCP that the stack has sent.
    fn last_segment(&self) -> Option<Segment> {
        self.sink.sent.iter().rev().find_map(|frame| {
            let bytes = &frame[ethernet::HEADER_BYTES..];
            let packet = ip::parse_v4(bytes).or_else(|| ip::parse_v6(bytes))?;
            (packet.protocol == ip::TCP)
                .then(|| Segment::parse(&bytes[packet.payload_start..packet.payload_end]))?
        })
    }

    /// A segment whose numbers are near to what the stack expects, with any options.
    fn segment(&mut self, bytes: &mut Bytes<'_>) {
        let (kind, flags) = (bytes.byte(), bytes.byte());
        let last = self.last_segment().unwrap_or_default();
        let near = |number: u32, offset: u16| {
            number
                .wrapping_add(u32::from(offset))
                .wrapping_sub(u32::from(offset & 1) << 15)
        };
        let (sequence, acknowledgement) = match kind & 3 {
            0 => (bytes.u32_be(), bytes.u32_be()),
            1 => (near(last.acknowledgement, bytes.u16_be()), last.sequence),
            2 => (last.acknowledgement, near(last.sequence, bytes.u16_be())),
            _ => (last.acknowledgement, last.sequence.wrapping_add(1)),
        };
        let is_first = kind & 4 != 0;
        let mut header = [0_u8; 60];
        let options = bytes.take(usize::from(bytes.0.first().copied().unwrap_or(0) & 10) * 4);
        let header_bytes = 20 + options.len() / 4 * 4;
        let port = match last.destination_port {
            port if port != 0 && !is_first => port,
            _ => 4000 + u16::from(kind >> 5),
        };
        Segment {
            source_port: port,
            destination_port: if last.source_port == 0 {
                PORT
            } else {
                last.source_port
            },
            sequence,
            acknowledgement,
            flags: if is_first { SYN } else { flags | ACK },
            window: bytes.u16_be(),
            ..Segment::default()
        }
        .write(&mut header);
        header[12] = u8::try_from(header_bytes / 4).unwrap_or(5) << 4;
        header[20..header_bytes].copy_from_slice(&options[..header_bytes - 20]);
        let is_v6 = kind & 8 != 0;
        let (local, remote) = addresses(is_v6);
        let mut tcp = header[..header_bytes].to_vec();
        tcp.extend_from_slice(bytes.piece());
        segment::fill_checksum(&remote, &local, &mut tcp);
        self.receive(&packet(is_v6, ip::TCP, 64, &tcp));
    }

    /// A router's message about a frame that the stack sent.
    fn icmp(&mut self, bytes: &mut Bytes<'_>) {
        let Some(sent) = self.sink.sent.back() else {
            return;
        };
        let quoted = sent[ethernet::HEADER_BYTES..].to_vec();
        let is_v6 = quoted.first().is_some_and(|byte| byte >> 4 == 6);
        let (local, remote) = addresses(is_v6);
        let mut message = vec![
            bytes.byte(),
            bytes.byte(),
            0,
            0,
            0,
            0,
            bytes.byte(),
            bytes.byte(),
        ];
        message.extend_from_slice(&quoted[..quoted.len().min(usize::from(bytes.byte()))]);
        icmp::fill_checksum(&remote, &local, &mut message);
        let protocol = if is_v6 { ip::ICMPV6 } else { ip::ICMP };
        self.receive(&packet(is_v6, protocol, 64, &message));
    }

    fn call(&mut self, bytes: &mut Bytes<'_>) {
        let kind = bytes.byte();
        if kind & 7 == 7 {
            let (_, remote) = addresses(kind & 8 != 0);
            if let Ok(flow) = self.stack.connect_from_any((remote, 80)) {
                self.flows.push(flow);
            }
            return self.settle(&[]);
        }
        let Some(&flow) = self
            .flows
            .get(usize::from(kind >> 3) % self.flows.len().max(1))
        else {
            return;
        };
        match kind & 7 {
            0 | 1 => {
                let data = vec![kind; usize::from(bytes.u16_be())];
                let space = self.stack.send_space_bytes(flow);
                let taken = self.stack.send(flow, &data);
                assert!(taken <= data.len() && taken <= space);
            }
            2 => self.stack.receive_done(flow, usize::from(bytes.u16_be())),
            3 => self.stack.finish(flow),
            4 => self.stack.close(flow),
            5 => self.stack.abort(flow),
            // The end of a connection that is gone already is on its way.
            _ if self.stack.is_open(flow) => {
                self.stack.reject(flow);
                self.flows.retain(|known| *known != flow);
            }
            _ => {}
        }
        self.settle(&[]);
    }
}

fn run(data: &[u8]) -> bool {
    let mut bytes = Bytes(data);
    let mut world = World::new(bytes.byte());
    while !bytes.0.is_empty() {
        let kind = bytes.byte();
        // A sink that is full now and then.
        world.sink.room = if kind & 0x80 == 0 {
            64
        } else {
            usize::from(kind >> 4 & 3)
        };
        match kind & 7 {
            0 | 1 => world.segment(&mut bytes),
            2 => {
                let frame = bytes.piece();
                world.receive(frame);
            }
            3 => {
                let (protocol, hops) = (bytes.byte(), bytes.byte());
                let payload = bytes.piece();
                world.receive(&packet(protocol == ip::ICMPV6, protocol, hops, payload));
            }
            4 => world.icmp(&mut bytes),
            5 => {
                // From a millisecond to about a minute.
                world.now_us += u64::from(bytes.u16_be()) * 1000;
                let now_us = world.now_us;
                world.stack.expire(now_us);
                let _ = world.stack.wait_ms();
                world.settle(&[]);
            }
            6 => world.call(&mut bytes),
            _ => {
                // An ARP packet or a packet of IPv6 with a header of the input's own.
                let mut frame = vec![0; ethernet::HEADER_BYTES];
                ethernet::Header {
                    destination: if kind & 8 == 0 {
                        LOCAL_MAC
                    } else {
                        Mac::BROADCAST
                    },
                    source: REMOTE_MAC,
                    ethertype: if kind & 16 == 0 {
                        ethernet::ARP
                    } else {
                        ethernet::IPV6
                    },
                }
                .write(&mut frame);
                frame.extend_from_slice(bytes.piece());
                world.receive(&frame);
            }
        }
    }
    // Whatever has happened, all connections end within an hour, without a peer's help.
    world.sink.room = usize::MAX;
    world.stack.abort_all();
    world.settle(&[]);
    for _ in 0..360 {
        if world.stack.open_connections() == 0 {
            return !world.sink.sent.is_empty();
        }
        world.now_us += 10_000_000;
        let now_us = world.now_us;
        world.stack.expire(now_us);
        world.settle(&[]);
    }
    panic!("{} connections do not end", world.stack.open_connections());
}
