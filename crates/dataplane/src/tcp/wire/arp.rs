//! ARP for IPv4 over Ethernet (RFC 826).

use super::ethernet::{self, Mac};
use super::{Ip, be16};

/// Bytes of a packet, without the Ethernet header.
pub const PACKET_BYTES: usize = 28;

const HARDWARE_ETHERNET: u16 = 1;

/// Asks or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpOperation {
    /// Who has the target's address?
    Request,
    /// The sender has it.
    Reply,
}

/// A packet for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Request or reply.
    pub operation: ArpOperation,
    /// The sender's hardware address.
    pub sender_mac: Mac,
    /// The sender's address.
    pub sender: Ip,
    /// The target's hardware address: zero in a request.
    pub target_mac: Mac,
    /// The target's address.
    pub target: Ip,
}

impl ArpPacket {
    /// Parses what follows the Ethernet header.
    pub fn parse(bytes: &[u8]) -> Option<ArpPacket> {
        let packet = bytes.first_chunk::<PACKET_BYTES>()?;
        let known = be16(packet, 0)? == HARDWARE_ETHERNET
            && be16(packet, 2)? == ethernet::IPV4
            && packet[4] == 6
            && packet[5] == 4;
        if !known {
            return None;
        }
        let operation = match be16(packet, 6)? {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            _ => return None,
        };
        Some(ArpPacket {
            operation,
            sender_mac: Mac(*packet[8..].first_chunk()?),
            sender: Ip::v4(*packet[14..].first_chunk()?),
            target_mac: Mac(*packet[18..].first_chunk()?),
            target: Ip::v4(*packet[24..].first_chunk()?),
        })
    }

    /// The packet's bytes.
    pub fn bytes(&self) -> [u8; PACKET_BYTES] {
        let mut packet = [0; PACKET_BYTES];
        packet[..2].copy_from_slice(&HARDWARE_ETHERNET.to_be_bytes());
        packet[2..4].copy_from_slice(&ethernet::IPV4.to_be_bytes());
        packet[4] = 6;
        packet[5] = 4;
        packet[7] = match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        };
        packet[8..14].copy_from_slice(&self.sender_mac.0);
        packet[14..18].copy_from_slice(&self.sender.v4_bytes());
        packet[18..24].copy_from_slice(&self.target_mac.0);
        packet[24..].copy_from_slice(&self.target.v4_bytes());
        packet
    }
}
