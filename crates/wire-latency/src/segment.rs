//! One captured packet as a TCP segment: from the network header on, of which only the first bytes
//! were captured.

/// FIN of RFC 9293, section 3.1; likewise the others.
pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;

/// Ethernet types (IEEE 802 numbers, IANA).
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
/// VLAN tags that are looked behind.
const TAGS_MAX: usize = 2;
/// Extension headers of IPv6 that are looked behind.
const EXTENSIONS_MAX: usize = 4;
const TCP: u8 = 6;

/// An address and port. IPv4 addresses are mapped into IPv6 (RFC 4291, section 2.5.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    pub(crate) address: u128,
    pub(crate) port: u16,
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) source: Endpoint,
    pub(crate) destination: Endpoint,
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    pub(crate) flags: u8,
    /// Length of the payload on the wire, in bytes.
    pub(crate) length: u32,
    /// The part of the payload that was captured.
    pub(crate) payload: &'a [u8],
}

impl Segment<'_> {
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Reads a packet: its captured bytes from the network header on, its type as the link layer has
/// it, and its length on the wire. `None` for what is no TCP segment, is a later fragment, or was
/// cut within its headers.
pub(crate) fn parse(bytes: &[u8], ethernet_type: u16, wire_length: u32) -> Option<Segment<'_>> {
    let (mut bytes, mut kind, mut wire_length) = (bytes, ethernet_type, wire_length);
    for _ in 0..TAGS_MAX {
        if !matches!(kind, VLAN | SERVICE_VLAN) {
            break;
        }
        // A packet that is sent has its network header behind the tag already.
        let inner = u16_at(bytes, 2)?;
        kind = match inner {
            IPV4 | IPV6 | VLAN | SERVICE_VLAN => {
                bytes = bytes.get(4..)?;
                wire_length = wire_length.saturating_sub(4);
                inner
            }
            _ => match bytes.first()? >> 4 {
                4 => IPV4,
                _ => IPV6,
            },
        };
    }
    match kind {
        IPV4 => parse_v4(bytes, wire_length),
        IPV6 => parse_v6(bytes, wire_length),
        _ => None,
    }
}

fn parse_v4(bytes: &[u8], wire_length: u32) -> Option<Segment<'_>> {
    let first = *bytes.first()?;
    let header = usize::from(first & 0x0f) * 4;
    let is_later_fragment = u16_at(bytes, 6)? & 0x1fff != 0;
    if first >> 4 != 4 || header < 20 || is_later_fragment || *bytes.get(9)? != TCP {
        return None;
    }
    // 0 where segmentation offload has made a packet of more than 64 KiB (BIG TCP).
    let total = match u16_at(bytes, 2)? {
        0 => wire_length,
        total => u32::from(total),
    };
    let mapped = |at| Some(0xffff_0000_0000 | u128::from(u32_at(bytes, at)?));
    parse_tcp(
        bytes.get(header..)?,
        total.checked_sub(u32::try_from(header).ok()?)?,
        mapped(12)?,
        mapped(16)?,
    )
}

fn parse_v6(bytes: &[u8], wire_length: u32) -> Option<Segment<'_>> {
    const HEADER: usize = 40;
    if bytes.first()? >> 4 != 6 {
        return None;
    }
    let length = match u16_at(bytes, 4)? {
        0 => wire_length.checked_sub(40)?,
        length => u32::from(length),
    };
    let (source, destination) = (u128_at(bytes, 8)?, u128_at(bytes, 24)?);
    let (mut next, mut at) = (*bytes.get(6)?, HEADER);
    for _ in 0..EXTENSIONS_MAX {
        // RFC 8200, section 4: hop-by-hop, routing, destination options; fragment; RFC 4302:
        // authentication.
        let size = match next {
            0 | 43 | 60 => (usize::from(*bytes.get(at + 1)?) + 1) * 8,
            44 if u16_at(bytes, at + 2)? & 0xfff8 == 0 => 8,
            51 => (usize::from(*bytes.get(at + 1)?) + 2) * 4,
            _ => break,
        };
        next = *bytes.get(at)?;
        at += size;
    }
    if next != TCP {
        return None;
    }
    let extensions = u32::try_from(at - HEADER).ok()?;
    parse_tcp(
        bytes.get(at..)?,
        length.checked_sub(extensions)?,
        source,
        destination,
    )
}

/// `length` is that of header and payload on the wire.
fn parse_tcp(bytes: &[u8], length: u32, source: u128, destination: u128) -> Option<Segment<'_>> {
    let header = usize::from(*bytes.get(12)? >> 4) * 4;
    let length = length.checked_sub(u32::try_from(header).ok()?)?;
    if header < 20 {
        return None;
    }
    let captured = bytes.get(header..).unwrap_or_default();
    // An Ethernet frame is padded to 60 bytes: what is captured may be longer than what was sent.
    let payload = &captured[..captured.len().min(usize::try_from(length).ok()?)];
    Some(Segment {
        source: Endpoint {
            address: source,
            port: u16_at(bytes, 0)?,
        },
        destination: Endpoint {
            address: destination,
            port: u16_at(bytes, 2)?,
        },
        sequence: u32_at(bytes, 4)?,
        acknowledged: u32_at(bytes, 8)?,
        flags: *bytes.get(13)?,
        length,
        payload,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u128_at(bytes: &[u8], at: usize) -> Option<u128> {
    Some(u128::from_be_bytes(
        bytes.get(at..at + 16)?.try_into().ok()?,
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A TCP header and payload.
    pub(crate) fn tcp(
        ports: (u16, u16),
        sequence: u32,
        acknowledged: u32,
        flags: u8,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(ports.0.to_be_bytes());
        bytes.extend(ports.1.to_be_bytes());
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(acknowledged.to_be_bytes());
        // With the twelve bytes of a time stamp option.
        bytes.extend([0x80, flags, 1, 0, 0, 0, 0, 0]);
        bytes.extend([1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(payload);
        bytes
    }

    pub(crate) fn ipv4(tcp: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x45, 0];
        bytes.extend(u16::try_from(20 + tcp.len()).unwrap().to_be_bytes());
        bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend(tcp);
        bytes
    }

    pub(crate) fn ipv6(extensions: &[u8], first: u8, tcp: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x60, 0, 0, 0];
        bytes.extend(
            u16::try_from(extensions.len() + tcp.len())
                .unwrap()
                .to_be_bytes(),
        );
        bytes.extend([first, 64]);
        bytes.extend([0xfd; 16]);
        bytes.extend([0xfe; 16]);
        bytes.extend(extensions);
        bytes.extend(tcp);
        bytes
    }

    fn length(bytes: &[u8]) -> u32 {
        u32::try_from(bytes.len()).unwrap()
    }

    #[test]
    fn a_segment_of_ipv4_is_read_and_a_cut_one_knows_its_length() {
        let whole = ipv4(&tcp((4000, 80), 7, 9, PSH, b"GET / HTTP/1.1\r\n\r\n"));
        let cut = parse(&whole[..60], IPV4, length(&whole)).unwrap();
        assert_eq!((cut.source.port, cut.destination.port), (4000, 80));
        assert_eq!((cut.sequence, cut.acknowledged, cut.length), (7, 9, 18));
        assert_eq!(cut.payload, b"GET / HT");
        assert!(cut.has(PSH) && !cut.has(FIN));
        assert_eq!(cut.source.address, 0xffff_0a00_0001);
    }

    #[test]
    fn padding_is_no_payload() {
        let mut whole = ipv4(&tcp((4000, 80), 7, 9, 0x10, b""));
        whole.extend([0; 6]);
        let segment = parse(&whole, IPV4, length(&whole)).unwrap();
        assert_eq!((segment.length, segment.payload), (0, &b""[..]));
    }

    #[test]
    fn vlan_tags_and_extension_headers_are_looked_behind() {
        let plain = ipv4(&tcp((1, 2), 3, 4, 0, b"x"));
        let tagged: Vec<u8> = [&[0x40, 5, 0x08, 0][..], &plain].concat();
        assert_eq!(
            parse(&tagged, VLAN, length(&tagged)),
            parse(&plain, IPV4, length(&plain))
        );
        // Sent through a VLAN device: the type is the tag's, the bytes begin behind it.
        assert_eq!(parse(&plain, VLAN, length(&plain)).unwrap().length, 1);
        let twice: Vec<u8> = [&[0, 5, 0x81, 0, 0, 6, 0x08, 0][..], &plain].concat();
        assert_eq!(
            parse(&twice, SERVICE_VLAN, length(&twice)).unwrap().length,
            1
        );

        let inner = tcp((1, 2), 3, 4, 0, b"xyz");
        // Hop-by-hop of 8 bytes, then a first fragment.
        let extensions = [44, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 1, 0, 0, 0, 0];
        let packet = ipv6(&extensions, 0, &inner);
        let segment = parse(&packet, IPV6, length(&packet)).unwrap();
        assert_eq!((segment.length, segment.payload), (3, &b"xyz"[..]));
        let later = [44, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 9, 0, 0, 0, 0];
        let packet = ipv6(&later, 0, &inner);
        assert_eq!(parse(&packet, IPV6, length(&packet)), None);
    }

    #[test]
    fn what_is_no_whole_header_is_nothing() {
        let whole = ipv4(&tcp((1, 2), 3, 4, 0, b"x"));
        for cut in 0..40 {
            assert_eq!(
                parse(&whole[..cut], IPV4, length(&whole)).filter(|it| !it.payload.is_empty()),
                None
            );
        }
        let mut udp = whole.clone();
        udp[9] = 17;
        assert_eq!(parse(&udp, IPV4, length(&udp)), None);
        let mut fragment = whole.clone();
        fragment[7] = 1;
        assert_eq!(parse(&fragment, IPV4, length(&fragment)), None);
        assert_eq!(parse(&whole, 0x0806, length(&whole)), None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic_and_no_payload_is_longer_than_the_wire(
            bytes: Vec<u8>, kind in proptest::sample::select(vec![IPV4, IPV6, VLAN, SERVICE_VLAN]), wire: u32
        ) {
            if let Some(segment) = parse(&bytes, kind, wire) {
                proptest::prop_assert!(segment.payload.len() <= bytes.len());
                proptest::prop_assert!(segment.payload.len() <= segment.length as usize);
            }
        }

        #[test]
        fn a_damaged_packet_does_not_panic(at in 0_usize..80, to: u8, cut in 0_usize..100) {
            for (packet, kind) in [
                (ipv4(&tcp((1, 2), 3, 4, 0, b"0123456789")), IPV4),
                (ipv6(&[6, 0, 0, 0, 0, 0, 0, 0], 60, &tcp((1, 2), 3, 4, 0, b"0123456789")), IPV6),
            ] {
                let mut packet = packet;
                if let Some(byte) = packet.get_mut(at) {
                    *byte = to;
                }
                let cut = cut.min(packet.len());
                let _ = parse(&packet[..cut], kind, length(&packet));
            }
        }
    }
}
