//! Ethernet II.

use std::fmt;

/// A hardware address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// To everybody on the link.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether this is a group address, broadcast included.
    pub const fn is_group(&self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// Bytes of the header.
pub const HEADER_BYTES: usize = 14;
/// Ethertype of ARP.
pub const ARP: u16 = 0x0806;
/// Ethertype of IPv4.
pub const IPV4: u16 = 0x0800;
/// Ethertype of IPv6.
pub const IPV6: u16 = 0x86dd;

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The receiver.
    pub destination: Mac,
    /// The sender.
    pub source: Mac,
    /// What follows.
    pub ethertype: u16,
}

impl Header {
    /// Parses a frame's header.
    pub fn parse(frame: &[u8]) -> Option<Header> {
        let bytes = frame.first_chunk::<HEADER_BYTES>()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *bytes;
        Some(Header {
            destination: Mac([d0, d1, d2, d3, d4, d5]),
            source: Mac([s0, s1, s2, s3, s4, s5]),
            ethertype: u16::from_be_bytes([t0, t1]),
        })
    }

    /// Writes the header to the frame's start. A frame that is too short stays as it is.
    pub fn write(&self, frame: &mut [u8]) {
        if let Some(bytes) = frame.first_chunk_mut::<HEADER_BYTES>() {
            bytes[..6].copy_from_slice(&self.destination.0);
            bytes[6..12].copy_from_slice(&self.source.0);
            bytes[12..].copy_from_slice(&self.ethertype.to_be_bytes());
        }
    }
}
