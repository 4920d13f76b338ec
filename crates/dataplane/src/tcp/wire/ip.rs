//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers.

use super::{Ip, be16, checksum, length16};

/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// Bytes of an IPv4 header without options.
pub const V4_HEADER_BYTES: usize = 20;
/// Bytes of an IPv6 header without extensions.
pub const V6_HEADER_BYTES: usize = 40;

/// Hop limit of what this stack sends (RFC 1700's recommended value).
const HOP_LIMIT: u8 = 64;
/// Extension headers that are followed. More are no honest packet.
const EXTENSIONS_MAX: usize = 8;

/// A parsed packet: addresses, protocol, and the payload's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The sender.
    pub source: Ip,
    /// The receiver.
    pub destination: Ip,
    /// What the payload is, after all extension headers.
    pub protocol: u8,
    /// Hop limit or time to live.
    pub hop_limit: u8,
    /// The payload's first byte, from the packet's start.
    pub payload_start: usize,
    /// The first byte past the payload, from the packet's start. The frame's padding lies behind.
    pub payload_end: usize,
}

/// Parses an IPv4 packet. `None` for a packet that is damaged or a fragment.
///
/// Fragments are not put together: TCP peers send segments that fit (RFC 9293 §3.7.1).
pub fn parse_v4(packet: &[u8]) -> Option<Packet> {
    let header = packet.first_chunk::<V4_HEADER_BYTES>()?;
    let header_bytes = usize::from(header[0] & 0x0f) * 4;
    let total = usize::from(be16(header, 2)?);
    let fragment = be16(header, 6)? & 0x3fff;
    if header[0] >> 4 != 4
        || header_bytes < V4_HEADER_BYTES
        || total < header_bytes
        || total > packet.len()
        || fragment != 0
        || checksum::of(packet.get(..header_bytes)?) != 0
    {
        return None;
    }
    Some(Packet {
        source: Ip::v4(*header[12..].first_chunk()?),
        destination: Ip::v4(*header[16..].first_chunk()?),
        protocol: header[9],
        hop_limit: header[8],
        payload_start: header_bytes,
        payload_end: total,
    })
}

/// Parses an IPv6 packet and its extension headers. `None` for a packet that is damaged, a
/// fragment, or one with a routing header that is not used up.
pub fn parse_v6(packet: &[u8]) -> Option<Packet> {
    let header = packet.first_chunk::<V6_HEADER_BYTES>()?;
    let end = V6_HEADER_BYTES + usize::from(be16(header, 4)?);
    if header[0] >> 4 != 6 || end > packet.len() {
        return None;
    }
    let mut protocol = header[6];
    let mut start = V6_HEADER_BYTES;
    for _ in 0..EXTENSIONS_MAX {
        let (next, bytes) = match protocol {
            // Hop-by-hop and destination options, routing.
            0 | 43 | 60 => {
                let extension = packet.get(start..end)?.first_chunk::<8>()?;
                if protocol == 43 && extension[3] != 0 {
                    return None;
                }
                (extension[0], 8 + usize::from(extension[1]) * 8)
            }
            // A fragment that is the whole packet (RFC 6946).
            44 => {
                let extension = packet.get(start..end)?.first_chunk::<8>()?;
                if be16(extension, 2)? & 0xfff9 != 0 {
                    return None;
                }
                (extension[0], 8)
            }
            _ => {
                return Some(Packet {
                    source: Ip::v6(*header[8..].first_chunk()?),
                    destination: Ip::v6(*header[24..].first_chunk()?),
                    protocol,
                    hop_limit: header[7],
                    payload_start: start,
                    payload_end: end,
                });
            }
        };
        start += bytes;
        if start > end {
            return None;
        }
        protocol = next;
    }
    None
}

/// Bytes of the header that [`write()`] writes for this family.
pub fn header_bytes(ip: &Ip) -> usize {
    if ip.is_v4() {
        V4_HEADER_BYTES
    } else {
        V6_HEADER_BYTES
    }
}

/// Writes the header of a packet with `payload_bytes` behind it. "Don't fragment" is set, as path
/// MTU discovery asks (RFC 1191). Returns the header's bytes, or `None` if the slice is too short.
pub fn write(
    packet: &mut [u8],
    source: &Ip,
    destination: &Ip,
    protocol: u8,
    payload_bytes: usize,
) -> Option<usize> {
    write_hops(
        packet,
        source,
        destination,
        protocol,
        payload_bytes,
        HOP_LIMIT,
    )
}

/// As [`write()`], with a hop limit. Neighbour discovery needs 255.
pub fn write_hops(
    packet: &mut [u8],
    source: &Ip,
    destination: &Ip,
    protocol: u8,
    payload_bytes: usize,
    hop_limit: u8,
) -> Option<usize> {
    if destination.is_v4() {
        let header = packet.first_chunk_mut::<V4_HEADER_BYTES>()?;
        *header = [0; V4_HEADER_BYTES];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&length16(V4_HEADER_BYTES + payload_bytes).to_be_bytes());
        header[6] = 0x40;
        header[8] = hop_limit;
        header[9] = protocol;
        header[12..16].copy_from_slice(&source.v4_bytes());
        header[16..20].copy_from_slice(&destination.v4_bytes());
        let sum = checksum::of(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        Some(V4_HEADER_BYTES)
    } else {
        let header = packet.first_chunk_mut::<V6_HEADER_BYTES>()?;
        *header = [0; V6_HEADER_BYTES];
        header[0] = 0x60;
        header[4..6].copy_from_slice(&length16(payload_bytes).to_be_bytes());
        header[6] = protocol;
        header[7] = hop_limit;
        header[8..24].copy_from_slice(source.bytes());
        header[24..40].copy_from_slice(destination.bytes());
        Some(V6_HEADER_BYTES)
    }
}
