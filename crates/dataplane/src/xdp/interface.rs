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
    /// Its queues.
    pub queues: Queues,
}

/// How many queues an interface has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Queues to receive.
    pub receive: u32,
    /// Queues to send.
    pub send: u32,
    /// Whether a queue to receive and one to send are made together.
    pub is_combined: bool,
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
        let queues = match request.channels(socket.as_fd()) {
            Ok([receive, send, combined]) => Queues {
                receive: receive + combined,
                send: send + combined,
                is_combined: combined > 0,
            },
            // The driver cannot change the number.
            Err(_) => Queues {
                receive: queues_in_sysfs(name, "rx-"),
                send: queues_in_sysfs(name, "tx-"),
                is_combined: true,
            },
        };
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
            queues,
        })
    }

    /// Checks that every shard can have a queue of its own each way.
    ///
    /// # Errors
    /// There are fewer queues than shards.
    pub fn check_shards(&self, shards: u8) -> Result<(), XdpError> {
        let Queues {
            receive,
            send,
            is_combined,
        } = self.queues;
        if receive.min(send) >= u32::from(shards) {
            return Ok(());
        }
        let kinds = match is_combined {
            true => format!("combined {shards}"),
            false => format!("rx {shards} tx {shards}"),
        };
        Err(XdpError::TooFewQueues {
            interface: self.name.clone(),
            shards,
            receive,
            send,
            command: format!("ethtool -L {} {kinds}", self.name),
        })
    }

    /// Checks that there is a queue to receive with this number.
    ///
    /// # Errors
    /// There is none.
    pub fn check_queue(&self, queue: u32) -> Result<(), XdpError> {
        if queue < self.queues.receive {
            return Ok(());
        }
        Err(XdpError::NoQueue {
            interface: self.name.clone(),
            queue,
            last: self.queues.receive.saturating_sub(1),
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

/// The queues of one kind that sysfs shows: one at least.
fn queues_in_sysfs(name: &str, kind: &str) -> u32 {
    let entries = std::fs::read_dir(format!("/sys/class/net/{name}/queues"));
    let names = entries.into_iter().flatten().flatten();
    let count = names.filter(|entry| entry.file_name().to_string_lossy().starts_with(kind));
    u32::try_from(count.count()).unwrap_or(u32::MAX).max(1)
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
    fn too_few_queues_are_named_with_what_makes_more() {
        let mut interface = Interface {
            name: "eth9".into(),
            index: 9,
            mac: Mac([2, 0, 0, 0, 0, 9]),
            mtu_bytes: 1500,
            driver: "veth".into(),
            addresses: Vec::new(),
            gateways: Vec::new(),
            queues: Queues {
                receive: 2,
                send: 1,
                is_combined: false,
            },
        };
        assert!(interface.check_shards(1).is_ok());
        let text = interface.check_shards(2).unwrap_err().to_string();
        assert!(text.contains("`ethtool -L eth9 rx 2 tx 2`"), "{text}");
        assert!(text.contains("2 to receive and 1 to send"), "{text}");
        interface.queues.is_combined = true;
        let text = interface.check_shards(3).unwrap_err().to_string();
        assert!(text.contains("`ethtool -L eth9 combined 3`"), "{text}");
        assert!(interface.check_queue(1).is_ok());
        let text = interface.check_queue(2).unwrap_err().to_string();
        assert_eq!(text, "eth9 has no queue 2: its receive queues are 0 to 1");
    }

    #[test]
    fn a_missing_interface_is_named() {
        let error = Interface::find("slack-none0").unwrap_err();
        assert!(error.to_string().contains("slack-none0"), "{error}");
        assert!(!error.is_missing_privilege());
        assert!(Interface::find("a name that is far too long").is_err());
    }
}
