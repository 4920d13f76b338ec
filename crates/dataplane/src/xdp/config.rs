//! Settings of the backend, and the stack that follows from them.

use std::net::SocketAddr;

use super::error::XdpError;
use super::interface::Interface;
use super::socket::SocketConfig;
use crate::api::Time;
use crate::tcp::wire::Ip;
use crate::tcp::{ChecksumPolicy, Config, Stack};

/// Half-open connections have this part of the table at most. Further SYNs get cookies.
const BACKLOG_PART: usize = 4;

/// Settings of the backend.
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// The socket's settings.
    pub socket: SocketConfig,
    /// Addresses to listen on. Each must be an address of the interface, or unspecified.
    pub listen: Vec<SocketAddr>,
    /// Connections at most.
    pub connections_max: usize,
    /// Addresses of this stack besides the interface's own, each with the bits of its prefix.
    pub extra_addresses: Vec<(Ip, u8)>,
}

impl XdpConfig {
    /// Checks that the interface has all addresses to listen on.
    ///
    /// # Errors
    /// An address is not the interface's.
    pub fn check(&self, interface: &Interface) -> Result<(), XdpError> {
        let mut addresses = interface.addresses.iter().chain(&self.extra_addresses);
        for address in &self.listen {
            let ip = Ip::from(address.ip());
            let is_known = addresses.clone().any(|(own, _)| *own == ip);
            if !is_known && !address.ip().is_unspecified() {
                let known: Vec<String> = addresses.by_ref().map(|(ip, _)| ip.to_string()).collect();
                return Err(XdpError::ForeignAddress {
                    address: address.ip().to_string(),
                    interface: interface.name.clone(),
                    known: known.join(", "),
                });
            }
        }
        Ok(())
    }
}

/// A stack with the addresses and settings of an interface. `change` may change the settings.
pub(super) fn make_stack(
    interface: &Interface,
    config: &XdpConfig,
    secret: (u64, u64),
    change: &dyn Fn(&mut Config),
) -> Result<Stack, XdpError> {
    let mut addresses = interface.addresses.clone();
    addresses.extend_from_slice(&config.extra_addresses);
    config.check(interface)?;
    let mut settings = Config::new(interface.mac, interface.mtu_bytes, addresses, secret);
    settings.gateways.clone_from(&interface.gateways);
    settings.connections_max = config.connections_max;
    // Half-open connections have places in the same table: a flood may not fill it.
    let backlog_max = (config.connections_max / BACKLOG_PART).max(1);
    settings.backlog_max = settings.backlog_max.min(backlog_max);
    if interface.is_virtual() {
        settings.checksums = ChecksumPolicy::ValidOrPartial;
    }
    change(&mut settings);
    let mut stack = Stack::new(settings, Time::now().0 / 1000);
    for address in &config.listen {
        let ip = (!address.ip().is_unspecified()).then(|| Ip::from(address.ip()));
        stack.listen(ip, address.port());
    }
    Ok(stack)
}

/// Random numbers for the secrets of stacks.
pub(super) fn secret() -> Result<(u64, u64), XdpError> {
    let mut bytes = [0u8; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes))
        .map_err(|source| XdpError::of("reading random numbers", source))?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok((u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])))
}

#[cfg(test)]
mod tests {
    use super::super::interface::Queues;
    use super::*;
    use crate::tcp::wire::ethernet::Mac;

    fn interface() -> Interface {
        Interface {
            name: "eth9".into(),
            index: 9,
            mac: Mac([2, 0, 0, 0, 0, 9]),
            mtu_bytes: 1500,
            driver: "veth".into(),
            addresses: vec![(Ip::v4([10, 7, 0, 2]), 24)],
            gateways: Vec::new(),
            queues: Queues {
                receive: 1,
                send: 1,
                is_combined: false,
            },
        }
    }

    fn config(listen: &str, connections_max: usize) -> XdpConfig {
        XdpConfig {
            socket: SocketConfig::default(),
            listen: vec![listen.parse().unwrap()],
            connections_max,
            extra_addresses: Vec::new(),
        }
    }

    #[test]
    fn half_open_connections_have_a_part_of_a_small_table() {
        for (connections_max, backlog_max) in [(1, 1), (100, 25), (16_384, 1024)] {
            let config = config("10.7.0.2:11211", connections_max);
            let stack = make_stack(&interface(), &config, (1, 2), &|_| {}).unwrap();
            assert_eq!(stack.config().backlog_max, backlog_max);
        }
    }

    #[test]
    fn a_foreign_address_is_refused_with_the_known_ones() {
        let config = config("10.8.0.1:11211", 10);
        let error = make_stack(&interface(), &config, (1, 2), &|_| {}).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("10.8.0.1") && text.contains("10.7.0.2"),
            "{text}"
        );
        assert!(!error.is_missing_privilege());
    }
}
