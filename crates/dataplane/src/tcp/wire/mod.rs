//! Headers on the wire: Ethernet, ARP, IPv4, IPv6, ICMP, NDP and TCP, parsed and written.
//!
//! A parser takes a slice and returns `None` for everything that it cannot use. No parser reads
//! past the slice, and no parser panics: `fuzz` and the property tests hold them to that.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod ip;
pub mod segment;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IPv4 or IPv6 address in 16 bytes. IPv4 is kept in mapped form (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ip([u8; 16]);

impl Ip {
    /// The unspecified IPv6 address.
    pub const UNSPECIFIED_V6: Ip = Ip([0; 16]);

    /// An IPv4 address from its four bytes.
    pub const fn v4(bytes: [u8; 4]) -> Ip {
        let [a, b, c, d] = bytes;
        Ip([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// An IPv6 address from its sixteen bytes.
    pub const fn v6(bytes: [u8; 16]) -> Ip {
        Ip(bytes)
    }

    /// Whether this is an IPv4 address.
    pub fn is_v4(&self) -> bool {
        self.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
    }

    /// The four bytes of an IPv4 address, which are the last four of the mapped form.
    pub const fn v4_bytes(&self) -> [u8; 4] {
        [self.0[12], self.0[13], self.0[14], self.0[15]]
    }

    /// All sixteen bytes.
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Whether a host may send from this address: neither multicast, nor broadcast, unspecified or
    /// loopback.
    pub fn is_host(&self) -> bool {
        match self.std() {
            IpAddr::V4(ip) => {
                !(ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified() || ip.is_loopback())
            }
            IpAddr::V6(ip) => !(ip.is_multicast() || ip.is_unspecified() || ip.is_loopback()),
        }
    }

    /// Whether the first `prefix_bits` bits of both addresses agree. An IPv4 prefix counts from the
    /// IPv4 address's first bit. Addresses of different families never agree.
    pub fn agrees(&self, other: &Ip, prefix_bits: u8) -> bool {
        if self.is_v4() != other.is_v4() {
            return false;
        }
        let skipped = if self.is_v4() { 96 } else { 0 };
        let bits = (u32::from(prefix_bits) + skipped).min(128);
        let different = u128::from_be_bytes(self.0) ^ u128::from_be_bytes(other.0);
        different.leading_zeros() >= bits
    }

    /// As the standard library writes it.
    pub fn std(&self) -> IpAddr {
        if self.is_v4() {
            IpAddr::V4(Ipv4Addr::from(self.v4_bytes()))
        } else {
            IpAddr::V6(Ipv6Addr::from(self.0))
        }
    }
}

impl From<IpAddr> for Ip {
    fn from(ip: IpAddr) -> Ip {
        match ip {
            IpAddr::V4(ip) => Ip::v4(ip.octets()),
            IpAddr::V6(ip) => Ip::v6(ip.octets()),
        }
    }
}

impl fmt::Debug for Ip {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.std().fmt(out)
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.std().fmt(out)
    }
}

/// The two bytes at `at`, in network order.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*bytes))
}

/// The four bytes at `at`, in network order.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*bytes))
}

/// A length as the wire's 16 bits. Lengths here are bounded by a frame, so nothing is cut.
pub(crate) fn length16(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

/// A length as the 32 bits of sequence numbers. Buffers are bounded far below 4 GiB.
pub(crate) fn length32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_count_from_the_start_of_each_family() {
        let ip = |text: &str| Ip::from(text.parse::<IpAddr>().unwrap());
        assert!(ip("10.7.0.2").agrees(&ip("10.7.0.99"), 24));
        assert!(!ip("10.7.0.2").agrees(&ip("10.7.1.2"), 24));
        assert!(ip("10.7.0.2").agrees(&ip("192.0.2.1"), 0));
        assert!(ip("fe80::1").agrees(&ip("fe80::2"), 64));
        assert!(!ip("fe80::1").agrees(&ip("10.7.0.2"), 0));
        assert!(!ip("224.0.0.1").is_host());
        assert!(ip("2001:db8::1").is_host());
    }
}
