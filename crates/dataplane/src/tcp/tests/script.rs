//! Scripts in the manner of packetdrill (Cardwell et al., USENIX ATC'13): segments that come, and
//! segments that are expected.
//!
//! | line | meaning |
//! |---|---|
//! | `< S. 0:10(10) ack 1 win 100 <mss 1460>` | the peer sends this segment |
//! | `> . 1:1(0) ack 11` | the stack sends this segment next; what is not named is not compared |
//! | `> nothing` | the stack sends nothing |
//! | `+40` | 40 ms pass |
//! | `write 100`, `read 100`, `finish`, `close`, `abort`, `connect` | the application's calls |
//! | `arp` | the stack asks for the peer's hardware address next, and hears it |
//! | `event Knock` | the next event begins so; `event none`: there is none |
//! | `icmp too-large 1000 SEQ`, `icmp refused SEQ` | a router's message about our segment |
//! | `set NAME VALUE` | a setting, before anything else |
//!
//! Numbers count from each side's initial sequence number. Timestamps count from the script's
//! start; in a segment of the peer, `ecr .` echoes what the stack sent last.

use std::collections::VecDeque;

use super::{Frames, LOCAL, LOCAL_MAC, REMOTE, REMOTE_MAC, arp_frame, config};
use crate::api::FlowId;
use crate::tcp::wire::arp::{self, ArpOperation};
use crate::tcp::wire::segment::{self, Options, Segment};
use crate::tcp::wire::{ethernet, icmp, ip};
use crate::tcp::{Config, Data, Event, KeepAlive, Stack};

const PEER_START: u32 = 0xffff_ff00;
const PEER_PORT: u16 = 4000;
const PORT: u16 = 11_211;

/// Runs a script, and says which line failed.
pub(super) fn run(script: &str) {
    Runner::new().run(script);
}

/// Lines that expect so many segments of 1,000 bytes.
pub(super) fn segments(from: u32, count: u32) -> String {
    let start = |at: u32| from + at * 1000;
    (0..count)
        .map(|at| format!("> . {}:{}(1000)\n", start(at), start(at + 1)))
        .collect()
}

struct Runner {
    config: Option<Config>,
    stack: Option<Stack>,
    now_us: u64,
    frames: Frames,
    events: VecDeque<Event>,
    flow: Option<FlowId>,
    is_listening: bool,
    /// The stack's initial sequence number, from its first SYN.
    start: Option<u32>,
    /// The stack's timestamp of its first and of its last segment.
    timestamps: Option<(u32, u32)>,
    written: u32,
    received: u32,
    /// The window of the peer's last segment, which the next one has, too.
    peer_window: u16,
}

/// The byte at a place of either stream.
fn byte(offset: u32) -> u8 {
    u8::try_from(offset % 251).unwrap()
}

impl Runner {
    fn new() -> Runner {
        let mut config = config(LOCAL_MAC, &[(LOCAL, 24)]);
        config.timestamps = false;
        config.sack = false;
        config.window_scaling = false;
        config.receive_window_bytes = 20_000;
        config.keep_alive = None;
        Runner {
            config: Some(config),
            stack: None,
            now_us: 1_000_000_000,
            frames: Frames::default(),
            events: VecDeque::new(),
            flow: None,
            is_listening: true,
            start: None,
            timestamps: None,
            written: 0,
            received: 0,
            peer_window: 65_535,
        }
    }

    fn run(&mut self, script: &str) {
        for (number, line) in script.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let result = self.step(line);
            if let Err(message) = result {
                panic!(
                    "line {}: `{line}`: {message}\nnext event: {:?}",
                    number + 1,
                    self.events.front()
                );
            }
        }
    }

    fn stack(&mut self) -> &mut Stack {
        if self.stack.is_none() {
            let config = self.config.take().expect("settings come first");
            let mut stack = Stack::new(config, self.now_us);
            if self.is_listening {
                stack.listen(None, PORT);
            }
            self.stack = Some(stack);
        }
        self.stack.as_mut().unwrap()
    }

    fn step(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["set", name, value] => self.set(name, value),
            ["<", rest @ ..] => {
                let (mut segment, length) = self.parse(rest);
                self.peer_window = segment.window;
                segment.sequence = segment.sequence.wrapping_add(PEER_START);
                if segment.has(segment::ACK) {
                    let start = self.start.unwrap_or(0);
                    segment.acknowledgement = segment.acknowledgement.wrapping_add(start);
                }
                self.inject(&segment, length);
            }
            [">", "nothing"] => {
                if let Some(frame) = self.frames.sent.front() {
                    return Err(format!("sent {}", self.describe(frame)));
                }
            }
            [">", rest @ ..] => return self.expect(rest),
            ["event", "none"] => {
                if !self.events.is_empty() {
                    return Err("there is an event".into());
                }
            }
            ["event", rest @ ..] => return self.expect_event(&rest.join(" ")),
            ["icmp", rest @ ..] => self.inject_icmp(rest),
            _ => return self.call(&words),
        }
        self.turn();
        Ok(())
    }

    fn call(&mut self, words: &[&str]) -> Result<(), String> {
        if let Some(wait) = words[0].strip_prefix('+') {
            // Time goes on in steps, as a shard's loop would serve the timers.
            let wait_ms: u64 = wait.parse().map_err(|_| "no number".to_owned())?;
            let step_ms = match wait_ms {
                0..=5_000 => 1,
                5_001..100_000_000 => 100,
                // Weeks.
                _ => 60_000,
            };
            for _ in 0..wait_ms.div_ceil(step_ms) {
                self.now_us += 1000 * step_ms;
                let now_us = self.now_us;
                self.stack().expire(now_us);
                self.turn();
            }
            return Ok(());
        }
        let now_us = self.now_us;
        self.stack().expire(now_us);
        let flow = self.flow;
        match words {
            ["connect"] => {
                let flow = self
                    .stack()
                    .connect((LOCAL, PORT), (REMOTE, PEER_PORT))
                    .map_err(|error| error.to_string())?;
                self.flow = Some(flow);
                // The peer's hardware address is known at once.
                self.turn();
                self.answer_arp();
            }
            ["write", length] => {
                let length: u32 = length.parse().unwrap();
                let bytes: Vec<u8> = (self.written..self.written + length).map(byte).collect();
                let taken = self.stack().send(flow.unwrap(), &bytes);
                if taken != bytes.len() {
                    return Err(format!("only {taken} bytes were taken"));
                }
                self.written += length;
            }
            ["read", length] => {
                let length: usize = length.parse().unwrap();
                self.stack().receive_done(flow.unwrap(), length);
            }
            ["finish"] => self.stack().finish(flow.unwrap()),
            ["close"] => self.stack().close(flow.unwrap()),
            ["abort"] => self.stack().abort(flow.unwrap()),
            ["reject"] => self.stack().reject(flow.unwrap()),
            ["arp"] => self.answer_arp(),
            _ => return Err("no such step".into()),
        }
        self.turn();
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) {
        let config = self.config.as_mut().expect("settings come first");
        match name {
            "listen" => self.is_listening = value == "on",
            "timestamps" => config.timestamps = value == "on",
            "sack" => config.sack = value == "on",
            "scaling" => config.window_scaling = value == "on",
            "window" => config.receive_window_bytes = value.parse().unwrap(),
            "backlog" => config.backlog_max = value.parse().unwrap(),
            "retries" => config.retries_max = value.parse().unwrap(),
            "memory" => config.memory_max_bytes = value.parse().unwrap(),
            "keep-alive" => {
                config.keep_alive = Some(KeepAlive {
                    idle_ms: value.parse().unwrap(),
                    interval_ms: 100,
                    probes: 2,
                });
            }
            _ => panic!("no setting {name}"),
        }
    }

    /// A segment's words, without the direction.
    fn parse(&self, words: &[&str]) -> (Segment, u32) {
        let mut flags = 0;
        for letter in words[0].chars() {
            flags |= match letter {
                'S' => segment::SYN,
                'F' => segment::FIN,
                'R' => segment::RST,
                'P' => segment::PSH,
                '.' => segment::ACK,
                _ => panic!("no flag {letter}"),
            };
        }
        let (start, rest) = words[1].split_once(':').expect("start:end(length)");
        let (_, length) = rest.split_once('(').expect("start:end(length)");
        let length: u32 = length.trim_end_matches(')').parse().unwrap();
        let number = |text: &str| -> u32 {
            let signed: i64 = text.trim_matches(['<', '>', ',']).parse().unwrap();
            u32::try_from(signed & 0xffff_ffff).unwrap()
        };
        let mut segment = Segment {
            source_port: PEER_PORT,
            destination_port: PORT,
            sequence: number(start),
            flags,
            window: self.peer_window,
            ..Segment::default()
        };
        let mut rest = words[2..].iter();
        while let Some(word) = rest.next() {
            let mut next = || *rest.next().expect("a value");
            let options = &mut segment.options;
            match word.trim_matches(['<', '>', ',']) {
                "ack" => segment.acknowledgement = number(next()),
                "win" => segment.window = u16::try_from(number(next())).unwrap(),
                "mss" => options.mss = u16::try_from(number(next())).ok(),
                "wscale" => options.window_scale = u8::try_from(number(next())).ok(),
                "sackOK" => options.sack_permitted = true,
                "sack" => {
                    let (start, end) = next().split_once(':').expect("start:end");
                    options.sacks.push(number(start), number(end));
                }
                "TS" => {
                    let value = number(next());
                    assert_eq!(next(), "ecr");
                    let echo = next().trim_matches(['<', '>', ',']);
                    let last = self.timestamps.map_or(0, |(_, last)| last);
                    let echo = if echo == "." { last } else { number(echo) };
                    options.timestamps = Some((value, echo));
                }
                other => panic!("no option {other}"),
            }
        }
        (segment, length)
    }

    fn inject(&mut self, segment: &Segment, length: u32) {
        let mut segment = *segment;
        let start = self.start.unwrap_or(0);
        let mut sacks = segment::Sacks::default();
        for (from, to) in segment.options.sacks.ranges() {
            sacks.push(from.wrapping_add(start), to.wrapping_add(start));
        }
        segment.options.sacks = sacks;
        let data_start = segment
            .sequence
            .wrapping_sub(PEER_START)
            .wrapping_add(u32::from(segment.has(segment::SYN)))
            .wrapping_sub(1);
        let payload: Vec<u8> = (0..length)
            .map(|at| byte(data_start.wrapping_add(at)))
            .collect();
        let frame = frame(&segment, &payload);
        let now_us = self.now_us;
        let mut frames = std::mem::take(&mut self.frames);
        let stack = self.stack();
        stack.expire(now_us);
        stack.receive(7, &frame, &mut frames);
        self.frames = frames;
        self.collect(&frame);
    }

    /// Takes the events, and checks received data against the peer's stream.
    fn collect(&mut self, frame: &[u8]) {
        let mut events = Vec::new();
        self.stack().take_events(&mut events);
        for event in events {
            if let Event::Knock { flow, .. } = event {
                self.flow = Some(flow);
            }
            if let Event::Received { data, .. } = &event {
                let bytes = match data {
                    Data::Frame {
                        frame_index,
                        start,
                        length,
                    } => {
                        assert_eq!(*frame_index, 7);
                        &frame[*start..start + length]
                    }
                    Data::Owned(bytes) => bytes,
                };
                for found in bytes {
                    assert_eq!(*found, byte(self.received), "at byte {}", self.received);
                    self.received += 1;
                }
            }
            self.events.push_back(event);
        }
    }

    fn turn(&mut self) {
        if self.stack.is_some() {
            let mut frames = std::mem::take(&mut self.frames);
            self.stack().flush(&mut frames);
            self.frames = frames;
            self.collect(&[]);
        }
    }

    fn answer_arp(&mut self) {
        let frame = self.frames.sent.pop_front().expect("an ARP request");
        let bytes = &frame[ethernet::HEADER_BYTES..];
        let request = arp::ArpPacket::parse(bytes).expect("an ARP request");
        assert_eq!(request.target, REMOTE);
        assert_eq!(request.sender_mac, LOCAL_MAC);
        let frame = arp_frame(ArpOperation::Reply, request.sender);
        let mut frames = std::mem::take(&mut self.frames);
        self.stack().receive(0, &frame, &mut frames);
        self.frames = frames;
        self.turn();
    }

    fn expect(&mut self, words: &[&str]) -> Result<(), String> {
        let Some(frame) = self.frames.sent.pop_front() else {
            return Err("nothing was sent".into());
        };
        let described = self.describe(&frame);
        let (found, payload) = parse_frame(&frame);
        if found.has(segment::SYN) {
            self.start = Some(found.sequence);
        }
        // An RST for a connection that this stack never had has a number of the peer's.
        let start = self.start.unwrap_or(0);
        if let Some((value, _)) = found.options.timestamps {
            let first = self.timestamps.map_or(value, |(first, _)| first);
            self.timestamps = Some((first, value));
        }
        let (expected, length) = self.parse(words);
        let fail = |what: &str| Err(format!("{what} differs: sent {described}"));
        if found.flags & !segment::PSH != expected.flags & !segment::PSH {
            return fail("flags");
        }
        if found.sequence.wrapping_sub(start) != expected.sequence {
            return fail("sequence");
        }
        if payload.len() != length as usize {
            return fail("length");
        }
        for (at, found) in payload.iter().enumerate() {
            let offset = expected.sequence - 1 + u32::try_from(at).unwrap();
            if *found != byte(offset) {
                return fail("payload");
            }
        }
        let names = |name: &str| {
            words
                .iter()
                .any(|word| word.trim_matches(['<', ',']) == name)
        };
        if names("ack")
            && found.acknowledgement.wrapping_sub(PEER_START) != expected.acknowledgement
        {
            return fail("acknowledgement");
        }
        if names("win") && found.window != expected.window {
            return fail("window");
        }
        self.expect_options(&found.options, &expected.options, &names)
            .or_else(|what| fail(&what))
    }

    fn expect_options(
        &self,
        found: &Options,
        expected: &Options,
        names: &dyn Fn(&str) -> bool,
    ) -> Result<(), String> {
        if names("mss") && found.mss != expected.mss {
            return Err("mss".into());
        }
        if names("wscale") && found.window_scale != expected.window_scale {
            return Err("wscale".into());
        }
        if found.sack_permitted != expected.sack_permitted {
            return Err("sackOK".into());
        }
        let sacks: Vec<(u32, u32)> = found
            .sacks
            .ranges()
            .iter()
            .map(|(a, b)| (a.wrapping_sub(PEER_START), b.wrapping_sub(PEER_START)))
            .collect();
        if sacks != expected.sacks.ranges() {
            return Err("sack".into());
        }
        match (found.timestamps, expected.timestamps) {
            (None, None) => Ok(()),
            (Some((_, echo)), Some((_, expected))) if echo == expected => Ok(()),
            _ => Err("timestamps".into()),
        }
    }

    fn describe(&self, frame: &[u8]) -> String {
        let (segment, payload) = parse_frame(frame);
        format!(
            "seq {} length {} ack {} {segment:?}",
            segment.sequence.wrapping_sub(self.start.unwrap_or(0)),
            payload.len(),
            segment.acknowledgement.wrapping_sub(PEER_START),
        )
    }

    fn expect_event(&mut self, text: &str) -> Result<(), String> {
        let Some(event) = self.events.pop_front() else {
            return Err("there is no event".into());
        };
        let described = match &event {
            Event::Knock { .. } => "Knock".to_owned(),
            Event::Connected { .. } => "Connected".to_owned(),
            Event::Received { data, .. } => match data {
                Data::Frame { length, .. } => format!("Received {length}"),
                Data::Owned(bytes) => format!("Received {}", bytes.len()),
            },
            Event::Sent { .. } => "Sent".to_owned(),
            Event::Finished { .. } => "Finished".to_owned(),
            Event::Dead { reason, .. } => format!("Dead {reason:?}"),
        };
        if described == text {
            Ok(())
        } else {
            Err(format!("the event is {described}"))
        }
    }

    /// A router's message about a segment of ours with this sequence number.
    fn inject_icmp(&mut self, words: &[&str]) {
        let (kind, code, mtu, sequence) = match words {
            ["too-large", mtu, sequence] => (3u8, 4u8, mtu.parse::<u16>().unwrap(), sequence),
            ["refused", sequence] => (3, 3, 0, sequence),
            _ => panic!("no such message"),
        };
        let sequence: u32 = sequence.parse().unwrap();
        let sequence = sequence.wrapping_add(self.start.unwrap());
        let mut quoted = vec![0; 28];
        ip::write(&mut quoted, &LOCAL, &REMOTE, ip::TCP, 8).unwrap();
        quoted[20..22].copy_from_slice(&PORT.to_be_bytes());
        quoted[22..24].copy_from_slice(&PEER_PORT.to_be_bytes());
        quoted[24..].copy_from_slice(&sequence.to_be_bytes());
        let mut message = vec![kind, code, 0, 0, 0, 0];
        message.extend_from_slice(&mtu.to_be_bytes());
        message.extend_from_slice(&quoted);
        icmp::fill_checksum(&REMOTE, &LOCAL, &mut message);
        let mut frame = vec![0; ethernet::HEADER_BYTES + ip::V4_HEADER_BYTES];
        ethernet::Header {
            destination: LOCAL_MAC,
            source: REMOTE_MAC,
            ethertype: ethernet::IPV4,
        }
        .write(&mut frame);
        let packet = &mut frame[ethernet::HEADER_BYTES..];
        ip::write(packet, &REMOTE, &LOCAL, ip::ICMP, message.len()).unwrap();
        frame.extend_from_slice(&message);
        let mut frames = std::mem::take(&mut self.frames);
        self.stack().receive(0, &frame, &mut frames);
        self.frames = frames;
        self.collect(&[]);
    }
}

/// A frame of the peer.
pub(super) fn frame(segment: &Segment, payload: &[u8]) -> Vec<u8> {
    let tcp_bytes = segment.bytes() + payload.len();
    let mut frame = vec![0; ethernet::HEADER_BYTES + ip::V4_HEADER_BYTES + tcp_bytes];
    ethernet::Header {
        destination: LOCAL_MAC,
        source: REMOTE_MAC,
        ethertype: ethernet::IPV4,
    }
    .write(&mut frame);
    let packet = &mut frame[ethernet::HEADER_BYTES..];
    ip::write(packet, &REMOTE, &LOCAL, ip::TCP, tcp_bytes).unwrap();
    let tcp = &mut packet[ip::V4_HEADER_BYTES..];
    let header_bytes = segment.write(tcp).unwrap();
    tcp[header_bytes..].copy_from_slice(payload);
    segment::fill_checksum(&REMOTE, &LOCAL, tcp);
    frame
}

/// The segment and payload of a frame of ours, whose checksums must be right.
pub(super) fn parse_frame(frame: &[u8]) -> (Segment, &[u8]) {
    let bytes = &frame[ethernet::HEADER_BYTES..];
    let packet = ip::parse_v4(bytes).expect("an IPv4 packet");
    assert_eq!(packet.protocol, ip::TCP, "a TCP segment");
    let tcp = &bytes[packet.payload_start..packet.payload_end];
    let verdict = segment::verify(&packet.source, &packet.destination, tcp);
    assert_eq!(verdict, segment::ChecksumVerdict::Valid);
    let segment = Segment::parse(tcp).expect("a TCP header");
    (segment, &tcp[segment.header_bytes..])
}
