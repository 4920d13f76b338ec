//! PDUs byte by byte, as the TCP transport of NVMe over Fabrics 1.1 draws them, and any bytes at
//! all.

use proptest::prelude::*;

use super::super::command::{Status, SubmissionEntry, completion};
use super::super::link::{Inbound, Link, LinkProgress};
use super::*;

const BOTH: Digests = Digests {
    header: true,
    data: true,
};

/// ICReq: 128 bytes, format 0, alignment of the host's choice, both digests, one R2T at a time.
fn icreq(alignment: u8, digests: u8) -> Vec<u8> {
    let mut bytes = vec![0x00, 0x00, 0x80, 0x00, 0x80, 0, 0, 0];
    bytes.extend([0, 0, alignment, digests, 0, 0, 0, 0]);
    bytes.resize(128, 0);
    bytes
}

/// A capsule with `data`, at the least data offset.
fn capsule(entry: &[u8; 64], data: &[u8], digests: Digests) -> Vec<u8> {
    let data_at = if data.is_empty() {
        0
    } else {
        72 + u8::try_from(digests.header_bytes()).unwrap()
    };
    let around = if data.is_empty() {
        0
    } else {
        digests.data_bytes()
    };
    let len = 72 + digests.header_bytes() + data.len() + around;
    let flags = u8::from(digests.header) | u8::from(around > 0) << 1;
    let mut bytes = vec![4, flags, 72, data_at];
    bytes.extend(u32::try_from(len).unwrap().to_le_bytes());
    bytes.extend(entry);
    if digests.header {
        bytes.extend(crc32c(&bytes).to_le_bytes());
    }
    bytes.extend(data);
    if around > 0 {
        bytes.extend(crc32c(data).to_le_bytes());
    }
    bytes
}

fn h2c_data((cid, tag): (u16, u16), offset: u32, data: &[u8], is_last: bool) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap();
    let mut bytes = vec![6, u8::from(is_last) << 2, 24, 24];
    bytes.extend((24 + len).to_le_bytes());
    bytes.extend(cid.to_le_bytes());
    bytes.extend(tag.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(data);
    bytes
}

fn fatal(bytes: &[u8], agreed: Option<Digests>) -> (Fatal, u32) {
    let fault = Pdu::parse(bytes, agreed).unwrap_err();
    (fault.fatal, fault.information)
}

#[test]
fn the_checksum_is_crc32c() {
    // The check value of CRC-32C (Castagnoli), as in RFC 3720, B.4: 32 bytes of zeros.
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
}

#[test]
fn a_connection_is_initialized() {
    let (pdu, used) = Pdu::parse(&icreq(3, 3), None).unwrap().unwrap();
    let expected = Pdu::Initialize {
        alignment: 3,
        digests: BOTH,
    };
    assert_eq!((pdu, used), (expected, 128));
    let mut out = Vec::new();
    initialized(BOTH, &mut out);
    let mut expected = vec![0x01, 0x00, 0x80, 0x00, 0x80, 0, 0, 0];
    expected.extend([0, 0, 0, 3, 0, 0, 0x10, 0]);
    expected.resize(128, 0);
    assert_eq!(out, expected);
    let mut other = icreq(0, 0);
    other[8] = 1;
    assert_eq!(fatal(&other, None), (Fatal::Unsupported, 8));
    assert_eq!(fatal(&icreq(32, 0), None), (Fatal::InvalidHeader, 10));
    // Twice, and a command before.
    assert_eq!(fatal(&icreq(0, 0), Some(BOTH)), (Fatal::Sequence, 0));
    let early = capsule(&[0; 64], &[], Digests::default());
    assert_eq!(fatal(&early, None), (Fatal::Sequence, 0));
}

#[test]
fn capsules_are_read_with_and_without_data_and_digests() {
    let mut entry = [0; 64];
    entry[2] = 9;
    for digests in [Digests::default(), BOTH] {
        for data in [&[][..], &[7; 512]] {
            let bytes = capsule(&entry, data, digests);
            let header_bytes = 72 + digests.header_bytes();
            for short in 0..header_bytes {
                assert_eq!(Pdu::parse(&bytes[..short], Some(digests)), Ok(None));
            }
            let expected = Pdu::Command {
                entry,
                data_bytes: data.len(),
            };
            let parsed = Pdu::parse(&bytes, Some(digests)).unwrap().unwrap();
            assert_eq!(parsed, (expected, header_bytes));
        }
    }
}

#[test]
fn wrong_headers_are_named_by_their_field() {
    let plain = Some(Digests::default());
    let good = capsule(&[0; 64], &[1; 512], Digests::default());
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    assert_eq!(fatal(&with(0, 8), plain), (Fatal::InvalidHeader, 0));
    // PDUs that only controllers send.
    for kind in [1, 3, 5, 7, 9] {
        assert_eq!(fatal(&with(0, kind), plain), (Fatal::InvalidHeader, 0));
    }
    assert_eq!(fatal(&with(1, 1), plain), (Fatal::InvalidHeader, 1));
    assert_eq!(fatal(&with(1, 2), plain), (Fatal::InvalidHeader, 1));
    assert_eq!(fatal(&with(2, 71), plain), (Fatal::InvalidHeader, 2));
    assert_eq!(fatal(&with(3, 70), plain), (Fatal::InvalidHeader, 3));
    assert_eq!(fatal(&with(3, 73), plain), (Fatal::InvalidHeader, 3));
    assert_eq!(fatal(&with(3, 255), plain), (Fatal::InvalidHeader, 3));
    // Too short, and beyond what a capsule may carry.
    let mut short = good.clone();
    short[4..8].copy_from_slice(&71_u32.to_le_bytes());
    assert_eq!(fatal(&short, plain), (Fatal::InvalidHeader, 4));
    let mut long = good.clone();
    for len in [72 + 8193, u32::MAX] {
        long[4..8].copy_from_slice(&len.to_le_bytes());
        assert_eq!(fatal(&long, plain), (Fatal::InvalidHeader, 4));
    }
    let mut data = h2c_data((1, 0), 0, &[0; 512], true);
    data[4..8].copy_from_slice(&(24 + H2C_DATA_BYTES + 1).to_le_bytes());
    assert_eq!(fatal(&data, plain), (Fatal::TooMuchData, 4));
    data[4..8].copy_from_slice(&(24 + 511_u32).to_le_bytes());
    assert_eq!(fatal(&data, plain), (Fatal::InvalidHeader, 16));
    data[4..8].copy_from_slice(&24_u32.to_le_bytes());
    assert_eq!(fatal(&data, plain), (Fatal::InvalidHeader, 4));
}

#[test]
fn a_wrong_header_digest_is_told_back() {
    let mut bytes = capsule(&[0; 64], &[], BOTH);
    bytes[10] ^= 1;
    let received = number32(&bytes, 72);
    let fault = Pdu::parse(&bytes, Some(BOTH)).unwrap_err();
    assert_eq!(
        (fault.fatal, fault.information),
        (Fatal::HeaderDigest, received)
    );
    let mut out = Vec::new();
    terminated(&fault, &mut out);
    assert_eq!(out[..8], [3, 0, 24, 0, 96, 0, 0, 0]);
    assert_eq!(out[8..10], [3, 0]);
    assert_eq!(out[10..14], received.to_le_bytes());
    assert_eq!(out[24..], bytes[..72]);
}

#[test]
fn answers_look_as_the_specification_draws_them() {
    let mut out = Vec::new();
    let done = completion(0x0102, 5, 0x0a0b, Status::SUCCESS);
    response(&done, Digests::default(), &mut out);
    let expected = [
        5, 0, 24, 0, 24, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0x0b, 0x0a, 0, 0,
    ];
    assert_eq!(out, expected);
    out.clear();
    ready_to_transfer((0x0a0b, 7), (0, 4096), BOTH, &mut out);
    let header = [
        9, 1, 24, 0, 28, 0, 0, 0, 0x0b, 0x0a, 7, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(out[..24], header);
    assert_eq!(out[24..], crc32c(&header).to_le_bytes());
    out.clear();
    data(0x0a0b, 512, true, (Digests::default(), 0), &mut out);
    let header = [
        7, 12, 24, 24, 24, 2, 0, 0, 0x0b, 0x0a, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(out, header);
    // Aligned to 64 bytes: 24 of the header, 4 of its digest, 36 of nothing, data, 4 of their
    // digest.
    out.clear();
    data(1, 512, false, (BOTH, 15), &mut out);
    assert_eq!(out[..8], [7, 7, 24, 64, 0x44, 2, 0, 0]);
    assert_eq!((out.len(), &out[28..]), (64, &[0; 36][..]));
}

fn collect(link: &mut Link, bytes: &[u8]) -> Option<Inbound> {
    // Byte by byte, so that every boundary is met.
    let mut complete = None;
    for byte in bytes {
        if let (1, LinkProgress::Command(command)) = link.body(&[*byte]) {
            complete = Some(command);
        }
    }
    assert!(!link.is_in_body());
    complete
}

fn inbound(cid: u16, len_bytes: usize) -> Inbound {
    let mut entry = [0; ENTRY_BYTES];
    entry[2..4].copy_from_slice(&cid.to_le_bytes());
    Inbound {
        buffer: dataplane::file::FileBuffer::zeroed(len_bytes),
        len_bytes,
        ..Inbound::bare(SubmissionEntry(entry), 0)
    }
}

#[test]
fn data_of_several_commands_arrive_in_turns() {
    let mut link = Link::new();
    link.agree(Digests::default(), 0);
    let (first, second) = (link.ask(inbound(1, 8)), link.ask(inbound(2, 4)));
    let mut complete = Vec::new();
    for (id, offset, data, is_last) in [
        ((1, first), 0, &b"abcd"[..], false),
        ((2, second), 0, b"wxyz", true),
        ((1, first), 4, b"efgh", true),
    ] {
        let bytes = h2c_data(id, offset, data, is_last);
        let (pdu, used) = link.peek(&bytes).unwrap().unwrap();
        link.receive_data(&pdu, &bytes).unwrap();
        complete.extend(collect(&mut link, &bytes[used..]));
    }
    let data: Vec<&[u8]> = complete.iter().map(Inbound::data).collect();
    assert_eq!(data, [&b"wxyz"[..], b"abcdefgh"]);
    assert!(!link.has_transfers());
}

#[test]
fn data_that_were_not_asked_for_end_the_connection() {
    let mut link = Link::new();
    link.agree(Digests::default(), 0);
    let tag = link.ask(inbound(1, 8));
    for (id, offset, len, is_last, expected) in [
        ((1, tag + 1), 0, 8, true, (Fatal::InvalidHeader, 10)),
        ((2, tag), 0, 8, true, (Fatal::InvalidHeader, 8)),
        ((1, tag), 4, 4, true, (Fatal::OutOfRange, 12)),
        ((1, tag), 0, 12, true, (Fatal::OutOfRange, 16)),
        ((1, tag), 0, 4, true, (Fatal::InvalidHeader, 1)),
        ((1, tag), 0, 8, false, (Fatal::InvalidHeader, 1)),
    ] {
        let bytes = h2c_data(id, offset, &vec![0; len], is_last);
        let (pdu, _) = link.peek(&bytes).unwrap().unwrap();
        let fault = link.receive_data(&pdu, &bytes).unwrap_err();
        assert_eq!(
            (fault.fatal, fault.information),
            expected,
            "{id:?} {offset}"
        );
        assert_eq!(fault.header, bytes[..24]);
    }
}

#[test]
fn damaged_data_are_noticed_and_the_connection_goes_on() {
    let mut link = Link::new();
    link.agree(BOTH, 0);
    for damage in [false, true] {
        let mut bytes = capsule(&[0; 64], b"12345678", BOTH);
        bytes[80] ^= u8::from(damage);
        let (_, used) = link.peek(&bytes).unwrap().unwrap();
        link.receive(inbound(0, 8));
        let command = collect(&mut link, &bytes[used..]).unwrap();
        assert_eq!(command.is_intact, !damage);
    }
}

proptest! {
    /// Whatever comes, in whatever pieces: no panic, no more used than given, and buffers hold what
    /// was sent.
    #[test]
    fn any_bytes_are_taken_or_end_the_connection(
        noise in prop::collection::vec(any::<u8>(), 0..600),
        kind in 0_u8..10,
        has_frame in any::<bool>(),
        digests in 0_u8..4,
        piece in 1_usize..200,
    ) {
        let agreed = Digests { header: digests & 1 != 0, data: digests & 2 != 0 };
        let mut link = Link::new();
        link.agree(agreed, 0);
        link.ask(inbound(0, 64));
        let mut bytes = noise;
        if has_frame && bytes.len() >= 8 {
            // A header whose lengths are plausible gets further.
            let header = if kind == 4 { 72 } else { 24 };
            let len = u32::try_from(bytes.len()).unwrap();
            bytes[..4].copy_from_slice(&[kind, digests, header, header + 4 * (digests & 1)]);
            bytes[4..8].copy_from_slice(&len.to_le_bytes());
        }
        let mut at = 0;
        let mut end = 0;
        while end < bytes.len() {
            end = (end + piece).min(bytes.len());
            loop {
                let rest = &bytes[at..end];
                if link.is_in_body() {
                    let (used, progress) = link.body(rest);
                    prop_assert!(used <= rest.len());
                    at += used;
                    if matches!(progress, LinkProgress::More) {
                        break;
                    }
                    continue;
                }
                match link.peek(rest) {
                    Ok(None) => break,
                    Err(_) | Ok(Some((Pdu::Terminate, _))) => return Ok(()),
                    Ok(Some((pdu, used))) => {
                        prop_assert!(used <= rest.len() && used > 0);
                        match pdu {
                            Pdu::Command { data_bytes, .. } if data_bytes > 0 => {
                                prop_assert!(data_bytes <= IN_CAPSULE_BYTES);
                                link.receive(inbound(0, data_bytes));
                            }
                            Pdu::Data { .. } if link.receive_data(&pdu, rest).is_err() => {
                                return Ok(());
                            }
                            _ => {}
                        }
                        at += used;
                    }
                }
            }
        }
    }
}
