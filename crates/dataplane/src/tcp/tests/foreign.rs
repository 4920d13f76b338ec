//! Foreign bytes: no parser panics, whatever comes, and the stack stays usable.

use proptest::prelude::*;

use super::script::frame;
use super::{Frames, LOCAL, LOCAL_MAC, config, ip};
use crate::tcp::Stack;
use crate::tcp::wire::segment::{ACK, Options, SYN, Sacks, Segment};
use crate::tcp::wire::{arp, ethernet, icmp, ip as ip_header, segment};

fn options() -> impl Strategy<Value = Options> {
    (
        any::<Option<u16>>(),
        proptest::option::of(0u8..=14),
        any::<bool>(),
        any::<Option<(u32, u32)>>(),
        proptest::collection::vec(any::<(u32, u32)>(), 0..3),
    )
        .prop_map(|(mss, window_scale, sack_permitted, timestamps, ranges)| {
            let mut sacks = Sacks::default();
            for (start, end) in ranges.iter().take(if mss.is_some() { 0 } else { 3 }) {
                sacks.push(*start, *end);
            }
            Options {
                mss,
                window_scale,
                sack_permitted,
                timestamps,
                sacks,
            }
        })
}

/// Feeds frames to a stack that has a connection.
fn feed(frames: &[Vec<u8>]) {
    let mut settings = config(LOCAL_MAC, &[(LOCAL, 24), (ip("2001:db8::2"), 64)]);
    settings.memory_max_bytes = 1 << 16;
    let mut stack = Stack::new(settings, 0);
    stack.listen(None, 11_211);
    let mut sink = Frames::default();
    let syn = Segment {
        source_port: 4000,
        destination_port: 11_211,
        flags: SYN,
        window: 1000,
        ..Segment::default()
    };
    stack.receive(0, &frame(&syn, &[]), &mut sink);
    let mut events = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        stack.receive(0, frame, &mut sink);
        stack.flush(&mut sink);
        stack.expire(number as u64 * 300_000);
        events.clear();
        stack.take_events(&mut events);
        sink.sent.clear();
        assert!(stack.memory_bytes() < 1 << 20);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        let _ = ethernet::Header::parse(&bytes);
        let _ = arp::ArpPacket::parse(&bytes);
        let _ = ip_header::parse_v4(&bytes);
        let _ = icmp::parse_v4(&bytes);
        let _ = Segment::parse(&bytes);
        if let Some(packet) = ip_header::parse_v6(&bytes) {
            prop_assert!(packet.payload_end <= bytes.len());
            prop_assert!(packet.payload_start <= packet.payload_end);
            let _ = icmp::parse_v6(&packet, &bytes[packet.payload_start..packet.payload_end]);
        }
        let _ = crate::tcp::control::quoted_ends(&bytes);
    }

    #[test]
    fn options_come_back_as_they_were_written(options in options(), flags in any::<u8>()) {
        let written = Segment {
            source_port: 1,
            destination_port: 2,
            sequence: 3,
            acknowledgement: 4,
            flags,
            window: 5,
            options,
            header_bytes: 0,
        };
        prop_assume!(written.bytes() <= segment::HEADER_BYTES_MAX);
        let mut bytes = vec![0; 64];
        let length = written.write(&mut bytes).unwrap();
        let read = Segment::parse(&bytes[..length]).unwrap();
        prop_assert_eq!(Segment { header_bytes: length, ..written }, read);
        for cut in 0..length {
            prop_assert!(Segment::parse(&bytes[..cut]).is_none());
        }
    }

    /// Valid segments with any numbers and flags, and damaged ones.
    #[test]
    fn any_segments_are_survived(
        segments in proptest::collection::vec(
            (any::<u32>(), any::<u32>(), any::<u8>(), any::<u16>(), options(), 0usize..200, 0u32..4),
            1..40,
        ),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..14, any::<u8>()), 0..10),
    ) {
        let mut frames: Vec<Vec<u8>> = segments
            .iter()
            .map(|(sequence, acknowledgement, flags, window, options, length, near)| {
                // Most numbers near to what the connection expects.
                let sequence = if *near > 0 { sequence % 3000 } else { *sequence };
                let segment = Segment {
                    source_port: 4000,
                    destination_port: 11_211,
                    sequence,
                    acknowledgement: *acknowledgement,
                    flags: if *near > 1 { *flags | ACK } else { *flags },
                    window: *window,
                    options: *options,
                    header_bytes: 0,
                };
                frame(&segment, &vec![9; *length])
            })
            .filter(|frame| frame.len() < 400)
            .collect();
        for (index, at, value) in damage {
            if !frames.is_empty() {
                let at_frame = index.index(frames.len());
                let frame = &mut frames[at_frame];
                let place = 14 + at;
                frame[place] ^= value;
            }
        }
        feed(&frames);
    }

    #[test]
    fn frames_cut_anywhere_are_survived(cut in 0usize..66, extra in 0usize..20) {
        let segment = Segment {
            source_port: 4000,
            destination_port: 11_211,
            sequence: 1,
            flags: ACK,
            options: Options { timestamps: Some((1, 2)), ..Options::default() },
            ..Segment::default()
        };
        let mut whole = frame(&segment, &[]);
        whole.extend(std::iter::repeat_n(0, extra));
        whole.truncate(cut.min(whole.len()));
        feed(&[whole]);
    }
}
