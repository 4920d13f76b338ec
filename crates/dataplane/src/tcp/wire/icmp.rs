//! ICMP (RFC 792), ICMPv6 (RFC 4443) and neighbour discovery (RFC 4861).

use super::checksum::{self, Sum};
use super::ethernet::Mac;
use super::{Ip, be16, be32, ip, length32};

/// Bytes of an ICMP header.
pub const HEADER_BYTES: usize = 8;

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// The packet was too large for a link whose MTU may be given, in bytes.
    TooLarge {
        /// The next hop's MTU. `None` from a router older than RFC 1191.
        mtu_bytes: Option<u32>,
    },
    /// Nobody listens there, or a filter says so: hard for a connection that is being opened.
    Refused,
    /// Network or host cannot be reached at the moment.
    Soft,
}

/// A message that this stack acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Please answer with the same bytes.
    EchoRequest {
        /// Identifier, sequence number and data.
        body: &'a [u8],
    },
    /// A packet of ours did not arrive.
    Unreachable {
        /// The reason.
        why: Unreachable,
        /// The start of the packet of ours.
        quoted: &'a [u8],
    },
    /// Who has this IPv6 address?
    NeighbourSolicitation {
        /// The address.
        target: Ip,
        /// The sender's hardware address, if given.
        source_mac: Option<Mac>,
    },
    /// The target's hardware address.
    NeighbourAdvertisement {
        /// The address.
        target: Ip,
        /// Its hardware address, if given.
        target_mac: Option<Mac>,
        /// Whether this answers a solicitation.
        is_solicited: bool,
        /// Whether this replaces what is known.
        is_override: bool,
    },
}

/// Parses an ICMP message. `None` for damaged and for unknown ones.
pub fn parse_v4(bytes: &[u8]) -> Option<Message<'_>> {
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    if checksum::of(bytes) != 0 {
        return None;
    }
    let quoted = bytes.get(HEADER_BYTES..)?;
    match (header[0], header[1]) {
        (8, 0) => Some(Message::EchoRequest {
            body: bytes.get(4..)?,
        }),
        (3, code) => {
            let why = match code {
                4 => {
                    let mtu = be16(header, 6)?;
                    Unreachable::TooLarge {
                        mtu_bytes: (mtu != 0).then_some(u32::from(mtu)),
                    }
                }
                // Protocol, port, and prohibited (RFC 1122 §4.2.3.9).
                2 | 3 | 9 | 10 | 13 => Unreachable::Refused,
                _ => Unreachable::Soft,
            };
            Some(Message::Unreachable { why, quoted })
        }
        _ => None,
    }
}

/// Parses an ICMPv6 message. `None` for damaged and for unknown ones.
pub fn parse_v6<'a>(packet: &ip::Packet, bytes: &'a [u8]) -> Option<Message<'a>> {
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    let mut sum = Sum::pseudo_header(
        &packet.source,
        &packet.destination,
        ip::ICMPV6,
        length32(bytes.len()),
    );
    sum.add(bytes);
    if sum.finish() != 0 {
        return None;
    }
    let quoted = bytes.get(HEADER_BYTES..)?;
    match (header[0], header[1]) {
        (128, 0) => Some(Message::EchoRequest {
            body: bytes.get(4..)?,
        }),
        (2, 0) => Some(Message::Unreachable {
            why: Unreachable::TooLarge {
                mtu_bytes: be32(header, 4),
            },
            quoted,
        }),
        (1, code) => Some(Message::Unreachable {
            why: if matches!(code, 1 | 4) {
                Unreachable::Refused
            } else {
                Unreachable::Soft
            },
            quoted,
        }),
        // RFC 4861 §7.1: a neighbour's messages have not crossed a router.
        (135, 0) if packet.hop_limit == 255 => Some(Message::NeighbourSolicitation {
            target: Ip::v6(*quoted.first_chunk()?),
            source_mac: neighbour_option(quoted.get(16..)?, 1),
        }),
        (136, 0) if packet.hop_limit == 255 => Some(Message::NeighbourAdvertisement {
            target: Ip::v6(*quoted.first_chunk()?),
            target_mac: neighbour_option(quoted.get(16..)?, 2),
            is_solicited: header[4] & 0x40 != 0,
            is_override: header[4] & 0x20 != 0,
        }),
        _ => None,
    }
}

/// The hardware address in the option of this kind.
fn neighbour_option(mut options: &[u8], kind: u8) -> Option<Mac> {
    while let Some(&[found, units]) = options.first_chunk::<2>() {
        let length = usize::from(units) * 8;
        let option = options.get(..length)?;
        if length == 0 {
            return None;
        }
        if found == kind {
            return Some(Mac(*option.get(2..)?.first_chunk()?));
        }
        options = options.get(length..)?;
    }
    None
}

/// Fills in the checksum of a message of this stack.
pub fn fill_checksum(source: &Ip, destination: &Ip, message: &mut [u8]) {
    if let Some(field) = message.get_mut(2..4) {
        field.fill(0);
    }
    let mut sum = if destination.is_v4() {
        Sum::default()
    } else {
        Sum::pseudo_header(source, destination, ip::ICMPV6, length32(message.len()))
    };
    sum.add(message);
    let checksum = sum.finish();
    if let Some(field) = message.get_mut(2..4) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Bytes of a neighbour solicitation or advertisement with one option.
pub const NEIGHBOUR_BYTES: usize = 32;

/// A neighbour solicitation, without its checksum.
pub fn solicitation(target: &Ip, source_mac: Mac) -> [u8; NEIGHBOUR_BYTES] {
    neighbour_message(135, 0, target, 1, source_mac)
}

/// A neighbour advertisement, without its checksum.
pub fn advertisement(target: &Ip, mac: Mac, is_solicited: bool) -> [u8; NEIGHBOUR_BYTES] {
    let flags = if is_solicited { 0x60 } else { 0x20 };
    neighbour_message(136, flags, target, 2, mac)
}

fn neighbour_message(kind: u8, flags: u8, target: &Ip, option: u8, mac: Mac) -> [u8; 32] {
    let mut message = [0; NEIGHBOUR_BYTES];
    message[0] = kind;
    message[4] = flags;
    message[8..24].copy_from_slice(target.bytes());
    message[24] = option;
    message[25] = 1;
    message[26..].copy_from_slice(&mac.0);
    message
}

/// The multicast address at which the owner of `target` hears solicitations (RFC 4291 §2.7.1).
pub fn solicited_node(target: &Ip) -> Ip {
    let mut bytes = [0; 16];
    bytes[0] = 0xff;
    bytes[1] = 0x02;
    bytes[11] = 1;
    bytes[12] = 0xff;
    bytes[13..].copy_from_slice(&target.bytes()[13..]);
    Ip::v6(bytes)
}

/// The hardware address of an IPv6 multicast group (RFC 2464 §7).
pub fn multicast_mac(group: &Ip) -> Mac {
    let [.., a, b, c, d] = *group.bytes();
    Mac([0x33, 0x33, a, b, c, d])
}
