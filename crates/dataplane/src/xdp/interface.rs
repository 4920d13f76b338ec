//! What the kernel says of an interface: number, hardware address, MTU, driver, addresses, routers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketType};

use super::error::XdpError;
use super::sys::{InterfaceRequest, interface_addresses};
use crate::tcp::wire::Ip;
use crate::tcp::wire::ethernet::Mac;

/// An interface of this network namespace.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its hardware address.
    pub mac: Mac,
    /// Its MTU in bytes.
    pub mtu_bytes: u16,
    /// Its driver's name, empty if the driver does not tell.
    pub driver: String,
    /// Its addresses, each with the bits of its prefix.
    pub addresses: Vec<(Ip, u8)>,
    /// Its routers.
    pub gateways: Vec<Ip>,
}

impl Interface {
    /// Asks the kernel about an interface.
    ///
    /// # Errors
    /// There is none of this name, or it is no Ethernet interface.
    pub fn find(name: &str) -> Result<Interface, XdpError> {
        let missing = |source| XdpError::NoInterface {
            interface: name.to_owned(),
            source,
        };
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)
            .map_err(|error| missing(error.into()))?;
        let mut request = InterfaceRequest::new(name)
            .ok_or_else(|| missing(std::io::Error::from_raw_os_error(libc::ENODEV)))?;
        request
            .ask(socket.as_fd(), libc::SIOCGIFINDEX)
            .map_err(missing)?;
        let index = first_u32(&request);
        request
            .ask(socket.as_fd(), libc::SIOCGIFMTU)
            .map_err(missing)?;
        let mtu_bytes = u16::try_from(first_u32(&request)).unwrap_or(u16::MAX);
        request
            .ask(socket.as_fd(), libc::SIOCGIFHWADDR)
            .map_err(missing)?;
        // struct sockaddr: the family, then the address.
        let [family_low, family_high, a, b, c, d, e, f, ..] = request.data;
        if u16::from_ne_bytes([family_low, family_high]) != libc::ARPHRD_ETHER {
            return Err(XdpError::NotEthernet {
                interface: name.to_owned(),
            });
        }
        let driver = request.driver(socket.as_fd()).unwrap_or_default();
        let addresses = interface_addresses(name)
            .map_err(missing)?
            .into_iter()
            .map(|(ip, mask)| (Ip::from(ip), prefix_bits(&mask)))
            .collect();
        Ok(Interface {
            name: name.to_owned(),
            index,
            mac: Mac([a, b, c, d, e, f]),
            mtu_bytes,
            driver,
            addresses,
            gateways: gateways(name),
        })
    }

    /// Whether peers behind this interface leave checksums for it to complete, as peers on the same
    /// host do.
    pub fn is_virtual(&self) -> bool {
        matches!(self.driver.as_str(), "veth" | "virtio_net" | "tun")
    }
}

fn first_u32(request: &InterfaceRequest) -> u32 {
    let [a, b, c, d, ..] = request.data;
    u32::from_ne_bytes([a, b, c, d])
}

fn prefix_bits(mask: &IpAddr) -> u8 {
    let bits = match mask {
        IpAddr::V4(mask) => u32::from(*mask).count_ones(),
        IpAddr::V6(mask) => u128::from(*mask).count_ones(),
    };
    u8::try_from(bits).unwrap_or(0)
}

/// Default routers of an interface. Without them, peers must be on the same link.
fn gateways(name: &str) -> Vec<Ip> {
    let read = |file: &str| {
        std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default()
    };
    let v4 = default_v4(&read("route"), name).map(|ip| Ip::from(IpAddr::V4(ip)));
    let v6 = default_v6(&read("ipv6_route"), name).map(|ip| Ip::from(IpAddr::V6(ip)));
    v4.into_iter().chain(v6).collect()
}

/// `Iface Destination Gateway …`, in hexadecimal of the machine's byte order.
fn default_v4(table: &str, name: &str) -> Option<Ipv4Addr> {
    table.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let is_ours = fields.next()? == name && fields.next()? == "00000000";
        let gateway = u32::from_str_radix(fields.next()?, 16).ok()?;
        (is_ours && gateway != 0).then(|| Ipv4Addr::from(gateway.to_ne_bytes()))
    })
}

/// `destination prefix source prefix next-hop … interface`, in hexadecimal.
fn default_v6(table: &str, name: &str) -> Option<Ipv6Addr> {
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_ours = *fields.get(1)? == "00" && *fields.last()? == name;
        let gateway = u128::from_str_radix(fields.get(4)?, 16).ok()?;
        (is_ours && gateway != 0).then(|| Ipv6Addr::from(gateway))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_routes_are_found() {
        let table = "Iface Destination Gateway Flags\n\
                     eth0 0007000A 00000000 0001\n\
                     eth0 00000000 0100070A 0003\n";
        assert_eq!(default_v4(table, "eth0"), Some(Ipv4Addr::new(10, 7, 0, 1)));
        assert_eq!(default_v4(table, "eth1"), None);
        let zero = "0".repeat(32);
        let hop = format!("fe80{}1", "0".repeat(27));
        let table = format!("{zero} 00 {zero} 00 {hop} 00000400 1 0 3 eth0\n");
        assert_eq!(default_v6(&table, "eth0"), Some("fe80::1".parse().unwrap()));
        assert_eq!(default_v6(&table, "eth1"), None);
    }

    #[test]
    fn a_missing_interface_is_named() {
        let error = Interface::find("slack-none0").unwrap_err();
        assert!(error.to_string().contains("slack-none0"), "{error}");
        assert!(!error.is_missing_privilege());
        assert!(Interface::find("a name that is far too long").is_err());
    }
}
